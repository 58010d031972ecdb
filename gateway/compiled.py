"""The path of a request as machine code: the same modules, translated by mypyc from the types that they have anyway.

`metergate compile` (`gateway/compiling.py`) makes it; from then on `import gateway` finds it. It is looked for under a digest
of the sources, so code that was changed since runs interpreted until it is compiled anew: nothing stale is ever run.
`METERGATE_COMPILED=off` leaves it aside. What it is worth, and its rules: docs/decisions/0019-compiled-path.md.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

MODULES: Final = tuple(
    """
    gateway.access.authenticator
    gateway.admission.admission
    gateway.admission.answers
    gateway.admission.asking
    gateway.admission.memory
    gateway.admission.memory_state
    gateway.admission.pipeline
    gateway.admission.reservation
    gateway.admission.resp
    gateway.admission.shared
    gateway.admission.valkey
    gateway.admission.window
    gateway.api.account
    gateway.api.app
    gateway.api.asgi
    gateway.api.attempt
    gateway.api.caps
    gateway.api.caller
    gateway.api.chat
    gateway.api.exchange
    gateway.api.serving
    gateway.api.streaming
    gateway.api.succession
    gateway.api.surface
    gateway.ids
    gateway.metering.bill
    gateway.metering.frames
    gateway.metering.journal
    gateway.metering.pairing
    gateway.metering.reader
    gateway.metering.source
    gateway.metrics_route
    gateway.routing.breaker
    gateway.routing.provider
    gateway.routing.retries
    gateway.routing.router
    gateway.serve.exchange
    gateway.serve.protocol
    gateway.sse
    gateway.tokens
    gateway.upstream.doubt
    gateway.upstream.http1
    gateway.upstream.openai
    gateway.upstream.policy
    gateway.upstream.usage
    billing.plans
    """.split()
)
"""What runs for every request. They import each other's types, so they are compiled, and taken, all or none."""

ROOT: Final = Path(__file__).resolve().parent.parent
_FOLDER: Final = ROOT / "gateway" / "__compiled__"
_SUFFIX: Final = EXTENSION_SUFFIXES[0]


def source_of(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def digest() -> str:
    """Of every source whose code or types a compiled module may rely on, and of the interpreter."""
    hashed = hashlib.sha256(" ".join((_SUFFIX, *MODULES)).encode())
    for package in ("billing", "gateway"):
        for path in sorted((ROOT / package).rglob("*.py")):
            hashed.update(f"{path.relative_to(ROOT)}\n".encode())
            hashed.update(path.read_bytes())
    return hashed.hexdigest()[:20]


def folder(of: str) -> Path:
    """Where the sources with this digest are, or would be, compiled: a tree of extension modules."""
    return _FOLDER / of


class _Finder(MetaPathFinder):
    """Looks when the first of `MODULES` is imported: a command that needs none of them reads no sources."""

    def __init__(self) -> None:
        self._files: dict[str, Path] | None = None

    def files(self) -> dict[str, Path]:
        """What is compiled of these sources, by the module's name; empty where nothing is."""
        if self._files is None:
            root = folder(digest())
            files = [(each.relative_to(root).as_posix(), each) for each in root.rglob(f"*{_SUFFIX}")]
            self._files = {name.removesuffix(_SUFFIX).replace("/", "."): each for name, each in files}
        return self._files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._files is None and fullname not in MODULES:
            return None
        file = self.files().get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def is_active() -> bool:
    """Whether this process runs the compiled path."""
    return any(isinstance(finder, _Finder) and finder.files() for finder in sys.meta_path)


def activate() -> None:
    """Have the compiled modules imported from now on, unless they are not wanted, or it is too late."""
    wanted = os.environ.get("METERGATE_COMPILED") != "off" and _FOLDER.is_dir()
    if wanted and sys.modules.keys().isdisjoint(MODULES):
        sys.meta_path.insert(0, _Finder())
