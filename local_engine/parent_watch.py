"""No process of the engine outlives the one that started it, however that one ends."""

from __future__ import annotations

import os
import threading


def exit_with_parent(fd: int) -> None:
    """Ends this process when the pipe whose read end is `fd` closes. Nobody writes to it; a kill closes it too."""
    os.set_inheritable(fd, False)

    def wait() -> None:
        while os.read(fd, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()
