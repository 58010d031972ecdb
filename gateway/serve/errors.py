"""What keeps the product from starting."""

from __future__ import annotations


class StartError(Exception):
    """The message is one line for the person at the shell: what is wrong and what to do. Exit status 1, no traceback."""


class DatabaseAway(StartError):
    """It does not answer, or somebody else holds it: waiting may help."""
