"""Where compiled kernels stay from one start to the next. Compiles nothing itself."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numba


def cache_folder() -> Path:
    """NUMBA_CACHE_DIR where it is set; else a folder of our own.

    numba compares the date of the file that holds a function, not of those it takes intrinsics from; so the folder is named
    after the contents of all our sources.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        return Path(given)
    home = os.environ.get("METERGATE_HOME")
    base = Path(home) if home else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "metergate"
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return base / "numba" / digest.hexdigest()[:16]


def use_cache_folder() -> None:
    """Has to come before the first kernel."""
    if "NUMBA_CACHE_DIR" not in os.environ:
        numba.config.CACHE_DIR = str(cache_folder())


def nothing_compiled() -> bool:
    return next(cache_folder().glob("**/*.nbi"), None) is None
