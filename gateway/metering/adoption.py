"""The journals of dead processes: taken over under their locks, or said to be unreadable, or given up by an operator."""

from __future__ import annotations

import logging
from pathlib import Path

from gateway.metering.position import read_position
from gateway.metering.segments import is_given_up, process_folders, try_lock
from gateway.metering.source import Source
from gateway.metrics import Metrics

log = logging.getLogger(__name__)

REMEDY = "budgets wait for it; `metergate doctor` says what can be done"


class Adoption:
    """What one recorder has taken over below `root`. `sources`, by their process's name, are on their way into the database."""

    def __init__(self, root: Path, own: Path | None, metrics: Metrics) -> None:
        self._root = root
        self._own = own
        self._metrics = metrics
        self._refused: set[str] = set()
        self._looked = False
        self.sources: dict[str, Source] = {}

    @property
    def waiting(self) -> bool:
        """Whether the database may still lack what dead processes settled. True until the first look."""
        return not self._looked or bool(self.sources) or bool(self._refused)

    def look(self) -> list[Source]:
        """Takes over every unfinished journal whose process is dead; returns those that an operator has given up meanwhile.

        A folder that cannot even be locked holds up no other one.
        """
        dropped = [self.sources.pop(name) for name in list(self.sources) if is_given_up(self._root / name)]
        refused: set[str] = set()
        for folder in process_folders(self._root):
            if folder == self._own or folder.name in self.sources or is_given_up(folder):
                continue
            try:
                self._take(folder)
            except OSError as error:
                refused.add(folder.name)
                self._metrics.failures["journal"].inc()
                if folder.name not in self._refused:
                    log.error("journal %s cannot be taken over: %s; %s", folder.name, error, REMEDY)
        self._refused = refused
        self._looked = True
        return dropped

    def _take(self, folder: Path) -> None:
        if read_position(folder).complete_us is not None:
            return
        lock = try_lock(folder)
        if lock is None:
            return
        try:
            if read_position(folder).complete_us is not None:
                lock.release()
                return
            self.sources[folder.name] = Source(folder, lock=lock)
        except OSError:
            lock.release()
            raise
        self._metrics.adopted.inc()
        log.info("journal %s: adopted", folder.name)
