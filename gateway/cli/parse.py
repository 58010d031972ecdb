"""What several verbs read from their options, in the shapes the admin API takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click

config_option = click.option(
    "--config", type=click.Path(path_type=Path), envvar="METERGATE_CONFIG", help="Configuration file (YAML)."
)
HELP_TIME = "RFC 3339 time, such as 2026-01-01T00:00:00Z (default: now)."


def given(**fields: object) -> dict[str, object]:
    """The fields that were given: an option left out is left to the API's default."""
    return {name: value for name, value in fields.items() if value is not None and value != ()}


def model_limits(texts: tuple[str, ...]) -> Mapping[str, Mapping[str, int]] | None:
    """`MODEL:LIMIT=N,LIMIT=N` options by model; None when there are none."""
    if not texts:
        return None
    found: dict[str, dict[str, int]] = {}
    for text in texts:
        model, _, limits = text.rpartition(":")
        for pair in limits.split(","):
            name, _, number = pair.partition("=")
            if not model or not name or not number.isdigit():
                raise click.BadParameter(f"{text!r} must be MODEL:LIMIT=N,…")
            found.setdefault(model, {})[name] = int(number)
    return found


def text_lines(pieces: Iterable[str]) -> Iterator[str]:
    """A text that comes in pieces, line by line, each with its end."""
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        yield from (f"{line}\n" for line in lines)
    if rest:
        yield rest


def tags(pairs: tuple[str, ...]) -> Mapping[str, str] | None:
    """`k=v` options as a mapping; None when there are none."""
    if not pairs:
        return None
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{pair!r} must be NAME=VALUE")
        found[name] = value
    return found
