"""What keeps the product from starting."""

from __future__ import annotations


class StartError(Exception):
    """The message is one line for the person at the shell: what is wrong and what to do. Exit status 1, no traceback."""
