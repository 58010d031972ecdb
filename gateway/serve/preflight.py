"""Everything that can be known to fail before anything is started: each failure is one line that says what to do."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import shutil
import socket
from pathlib import Path
from typing import IO, Final

from gateway.keepalive import ask_whether_alive
from gateway.serve.errors import StartError
from gateway.settings import Settings

MIN_FREE_BYTES: Final = 64 << 20
"""Below this much free disk under METERGATE_HOME nothing starts: a journal without room refuses requests anyway."""


def prepare_home(home: Path) -> None:
    """Makes METERGATE_HOME (mode 0700) and proves that it can be written and has room. Raises `StartError`."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = home / f".write-probe-{os.getpid()}"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except FileExistsError as error:
        raise StartError(f"{home} is a file, not a folder; set METERGATE_HOME to a folder") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StartError(
                f"no disk space left under {home}; free some, or set METERGATE_HOME to another disk"
            ) from error
        raise StartError(
            f"cannot write to {home} ({error.strerror}); make it writable, or set METERGATE_HOME to a folder that is"
        ) from error
    free = shutil.disk_usage(home).free
    if free < MIN_FREE_BYTES:
        raise StartError(
            f"only {free >> 20} MB of disk free under {home} and {MIN_FREE_BYTES >> 20} MB are needed; "
            "free some, or set METERGATE_HOME to another disk"
        )


def lock_home(home: Path) -> IO[bytes]:
    """The lock of a single-process installation, held until the returned file is closed or the process ends.

    Two processes with in-memory limits over one database would each admit the whole of every limit. Raises `StartError`.
    """
    file = (home / "serve.lock").open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        pid = file.read(32).decode(errors="replace").strip() or "unknown"
        file.close()
        raise StartError(
            f"another metergate serve (process {pid}) runs on {home}; stop it, or set METERGATE_HOME to another folder"
        ) from error
    file.truncate(0)
    file.write(f"{os.getpid()}\n".encode())
    file.flush()
    return file


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on `host`:`port` (0 picks a free port). Raises `StartError`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise StartError(f"{host!r} is no address of this machine; give --host an address such as 127.0.0.1") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    ask_whether_alive(listener)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise StartError(_why_not(host, port, error)) from error
    listener.setblocking(False)
    return listener


def _why_not(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            free = f"--port {port + 1}" if port < 65535 else "another --port"
            return f"port {port} on {host} is in use; stop the program that has it, or choose another: {free}"
        case errno.EACCES | errno.EPERM:
            return f"port {port} on {host} needs more rights than this user has; choose one above 1023: --port 8000"
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine; use --host 127.0.0.1, or --host 0.0.0.0 for all of them"
        case _:
            return f"cannot listen on {host}:{port} ({error.strerror}); choose another --host or --port"


def check_workers(workers: int, settings: Settings) -> None:
    """Raises `StartError` that says what more than one worker needs."""
    if workers == 1:
        return
    if workers < 1:
        raise StartError("--workers must be 1 or more")
    missing = []
    if settings.database_url.startswith("sqlite"):
        missing.append("PostgreSQL (database_url)")
    if settings.redis_url is None:
        missing.append("Redis or Valkey (redis_url)")
    if missing:
        raise StartError(f"--workers {workers} needs {' and '.join(missing)}; without them run one worker")


def check_engine_installed(provider: str) -> None:
    """Raises `StartError` unless the parts of the bundled engine are installed (looked up, not imported)."""
    for package in ("local_engine", "torch", "tokenizers"):
        if importlib.util.find_spec(package) is None:
            raise StartError(
                f"provider {provider!r} is a bundled engine and {package} is not installed; pip install 'metergate[engine]', "
                "or give the provider a base_url of an engine that runs elsewhere"
            )
