"""The real server in its real processes, with the tiny runner in the core. Arguments: two JSON objects and the folder."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import msgspec

from local_engine.config import EngineConfig, ServerConfig
from local_engine.errors import EngineError
from local_engine.server.run import serve

CORE = (sys.executable, "-m", os.environ.get("TINY_CORE", "tests.local_engine.tiny"))

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    engine = msgspec.json.decode(sys.argv[1], type=EngineConfig)
    settings = msgspec.json.decode(sys.argv[2], type=ServerConfig)
    try:
        sys.exit(serve(engine, settings, Path(sys.argv[3]), core_command=CORE))
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
