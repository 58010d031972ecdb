"""How a verb's result is printed: a table for people, JSON as it came for machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.admin_client import Json

Command = TypeVar("Command", bound=Callable[..., Any])

MONEY: Final = {"amount", "currency"}

Column = str
"""`name` of a field, or `outer.inner`."""


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def admin_options(command: Command) -> Command:
    """`--url` and `--json`, which every verb of the admin API takes."""
    url = click.option(
        "--url",
        envvar="METERGATE_URL",
        default="http://127.0.0.1:8000",
        show_default=True,
        help="Where the gateway's admin API listens (METERGATE_URL).",
    )
    return url(json_option(command))


def print_rows(rows: Iterable[Json], columns: Sequence[Column], as_json: bool) -> None:
    """A list of objects. JSON: one array."""
    listed = list(rows)
    if as_json:
        click.echo(json.dumps(listed, ensure_ascii=False, indent=2))
        return
    if not listed:
        click.echo("none")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.rpartition(".")[2], overflow="fold")
    for row in listed:
        table.add_row(*(Text(cell(row, column)) for column in columns))
    _print(table)


def print_object(row: Json, as_json: bool) -> None:
    """One object: a field a line, then each list of objects as a table of its own. JSON: the object."""
    if as_json:
        click.echo(json.dumps(row, ensure_ascii=False, indent=2))
        return
    lists = {name: value for name, value in row.items() if _is_table(value)}
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name in row:
        if name not in lists:
            table.add_row(name, Text(cell(row, name)))
    _print(table)
    for name, listed in lists.items():
        columns = [each for each in listed[0] if any(show(item.get(each)) != "-" for item in listed)]
        click.echo(f"\n{name}")
        print_rows(listed, columns, as_json=False)


def _is_table(value: object) -> bool:
    """A list of objects; amounts of money are values, not rows."""
    return (
        isinstance(value, list) and bool(value) and all(isinstance(each, dict) and set(each) != MONEY for each in value)
    )


def _print(table: Table) -> None:
    """Without the blanks with which a table fills its last column."""
    output = console()
    with output.capture() as captured:
        output.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def cell(row: Json, column: Column) -> str:
    value: object = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return show(value)


def show(value: object) -> str:
    """A value as people read it: money as `0.42 USD`, null as a dash, lists with commas."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case {"amount": amount, "currency": currency, **rest} if not rest:
            return f"{amount} {currency}"
        case dict():
            return ", ".join(f"{name}={show(each)}" for name, each in value.items()) or "-"
        case list():
            return ", ".join(show(each) for each in value) or "none"
        case _:
            return str(value)


def console() -> Console:
    """As wide as the terminal; never narrower than what a pipe's reader would want whole."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=400)
