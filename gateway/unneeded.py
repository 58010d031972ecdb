"""What libraries load with themselves and nobody here needs, kept from being loaded: 12 MB and a quarter of the start.

httpx brings its command line, and with that rich and pygments; it is ready for not having it. SQLAlchemy's asynchronous engine
brings the sessions of its ORM, and with those the ORM: what it takes from those two modules is None here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

ABSENT: Final = frozenset({"httpx._main"})
HOLLOW: Final = frozenset({"sqlalchemy.ext.asyncio.session", "sqlalchemy.ext.asyncio.scoping"})


class _Hollow(ModuleType):
    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Unneeded(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in ABSENT:
            raise ModuleNotFoundError(f"{fullname} is left out: gateway/unneeded.py", name=fullname)
        return ModuleSpec(fullname, self) if fullname in HOLLOW else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Hollow(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


def leave_out() -> None:
    """From now on; what is loaded already stays."""
    sys.meta_path.insert(0, _Unneeded())
