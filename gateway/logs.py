"""The process's log: lines for people or JSON for collectors, with everything that looks like a key masked (rule 27).

Whoever logs takes care that no secret gets there; the mask is the second line, for texts that come from elsewhere.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal

from gateway.secret import MASK

Format = Literal["text", "json"]

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
NOISY: Final = ("aiosqlite", "alembic", "asyncio", "httpcore", "httpx", "uvicorn")

_SECRET: Final = re.compile(
    r"\b(sk|pk|rk|mgt)-[A-Za-z0-9_-]{8,}|(?<=://)([^/\s:@]*):[^/\s@]+(?=@)|(?i:bearer)\s+[A-Za-z0-9._~+/-]{8,}=*"
)
_REQUEST: Final = re.compile(r"\brequest ([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12})\b")


def scrubbed(text: str) -> str:
    """The text with keys, bearer tokens and passwords of addresses masked."""
    return _SECRET.sub(lambda found: f"{found[2]}:{MASK}" if found[2] is not None else MASK, text)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        return scrubbed(super().format(record))


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, and where there is one `request_id`, `error`."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        line = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if (request := _REQUEST.search(message)) is not None:
            line["request_id"] = request[1]
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return scrubbed(json.dumps(line, ensure_ascii=False))


def teller(style: Format) -> Callable[[str], None]:
    """Takes the lines of other programs (an engine's), which are no records of ours, to standard error."""

    def tell(line: str) -> None:
        told = JsonFormatter().format(logging.makeLogRecord({"name": "engine", "levelname": "INFO", "msg": line}))
        print(told if style == "json" else scrubbed(line), file=sys.stderr, flush=True)

    return tell


def configure(level: int | str, style: Format) -> None:
    """The root logger, to standard error; once a process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(level)
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.root.level))
