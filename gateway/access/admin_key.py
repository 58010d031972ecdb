"""The operator's key: `METERGATE_ADMIN_KEY`, or the file `admin-key` (0600) under METERGATE_HOME, made at the first start."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Final

from gateway.access.pepper import PepperError, read_or_create
from gateway.secret import Secret
from gateway.settings import Settings, SettingsError

FILE_NAME: Final = "admin-key"
MINIMUM_LENGTH: Final = 16


@dataclass(frozen=True, slots=True)
class AdminKey:
    secret: Secret
    created: bool
    """Whether this start made it: then, and only then, a first-run banner shows it."""

    def matches(self, presented: bytes) -> bool:
        """In constant time."""
        return hmac.compare_digest(self.secret.reveal().encode(), presented)


def load_admin_key(settings: Settings) -> AdminKey:
    """Raises `SettingsError` when the key is too short to be one, or the file can be neither read nor made."""
    if settings.admin_key is not None:
        return _checked(settings.admin_key.reveal(), "METERGATE_ADMIN_KEY", created=False)
    path = settings.home / FILE_NAME
    try:
        text, created = read_or_create(path, f"sk-mg-admin-{secrets.token_hex(24)}")
    except PepperError as error:
        raise SettingsError(str(error)) from error
    return _checked(text, str(path), created=created)


def _checked(text: str, origin: str, *, created: bool) -> AdminKey:
    if len(text) < MINIMUM_LENGTH:
        raise SettingsError(f"the admin key from {origin} is shorter than {MINIMUM_LENGTH} characters")
    return AdminKey(Secret(text), created)
