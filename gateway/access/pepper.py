"""The pepper: the one secret under which every team key is hashed. It is never in the database; its fingerprint is.

It comes from `METERGATE_KEY_PEPPER` or from the file `key-pepper` (0600) under METERGATE_HOME, made at the first start.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from gateway.secret import MASK
from gateway.settings import Settings, SettingsError

FILE_NAME: Final = "key-pepper"
MINIMUM_LENGTH: Final = 16
_FINGERPRINT_MESSAGE: Final = b"metergate key pepper, version 1"


class PepperError(SettingsError):
    """No usable pepper, or not the one that the database's keys were hashed with. The process must not serve."""


class Pepper:
    """The pepper's bytes, and where they came from for messages. Does not print."""

    __slots__ = ("origin", "value")

    def __init__(self, value: bytes, origin: str) -> None:
        self.value = value
        self.origin = origin

    def __repr__(self) -> str:
        return f"Pepper({MASK}, {self.origin})"

    @property
    def fingerprint(self) -> str:
        """64 hex digits that tell two peppers apart and give neither away."""
        return hmac.digest(self.value, _FINGERPRINT_MESSAGE, "sha256").hex()

    def check(self, recorded: str) -> None:
        """Raises `PepperError` when the database recorded another pepper's fingerprint."""
        if not hmac.compare_digest(self.fingerprint, recorded):
            raise PepperError(
                f"the key pepper from {self.origin} is not the one this database's keys were hashed with, so no key would "
                "be recognised; put the original key-pepper file back or set METERGATE_KEY_PEPPER to its content"
            )


def load_pepper(settings: Settings) -> Pepper:
    """The configured pepper, or the file's, which is made when there is none. Raises `PepperError`."""
    if settings.key_pepper is not None:
        return _parse(settings.key_pepper.reveal(), "METERGATE_KEY_PEPPER")
    path = settings.home / FILE_NAME
    return _parse(read_or_create(path, secrets.token_hex(32))[0], str(path))


def read_or_create(path: Path, content: str) -> tuple[str, bool]:
    """The text of a secret file and whether it was made now (mode 0600, from `content`, safe against a parallel start)."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        created = not path.exists() and _create(path, content)
        if path.stat().st_mode & 0o007:
            raise PepperError(f"{path} can be read by every user of this machine; run: chmod 600 {path}")
        return path.read_text("utf-8").strip(), created
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise PepperError(f"cannot read or make {path}: {reason}; point METERGATE_HOME at a writable folder") from error


def _create(path: Path, content: str) -> bool:
    """Whole or not at all: written aside, synced, then linked to its name; False when another process was first."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _parse(text: str, origin: str) -> Pepper:
    if len(text) < MINIMUM_LENGTH:
        raise PepperError(f"the key pepper from {origin} is shorter than {MINIMUM_LENGTH} characters")
    return Pepper(text.encode(), origin)
