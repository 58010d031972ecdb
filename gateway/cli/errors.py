"""Which errors are for the person at the shell: shown as one line, without a traceback."""

from __future__ import annotations


class CliError(Exception):
    """What a verb could not do, and what to do about it, in one line."""


def expected_errors() -> tuple[type[BaseException], ...]:
    from billing.errors import BillingError
    from gateway.serve.errors import StartError
    from gateway.settings import SettingsError

    return (CliError, StartError, SettingsError, BillingError)
