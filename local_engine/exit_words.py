"""How a process of the engine ended, and what that mostly means."""

from __future__ import annotations

import signal


def exit_words(status: int) -> str:
    """`status` as subprocess has it."""
    if status == -signal.SIGKILL:
        return (
            "signal 9: most likely the system's out-of-memory killer; give the machine or container more memory, or lower "
            "--kv-cache-memory-bytes"
        )
    return f"signal {-status}" if status < 0 else f"exit status {status}"
