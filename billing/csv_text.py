"""CSV that a spreadsheet opens without running anything in it.

A text that begins like a formula (rule 32e: `= + - @`, or a control character that a spreadsheet skips) gets an apostrophe in
front. Plain decimal numbers keep their sign: they are figures to be summed.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Final

_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def neutral(value: object) -> str:
    """The cell of a value; empty for None."""
    text = "" if value is None else str(value)
    if text.startswith(_FORMULA) and _NUMBER.fullmatch(text) is None:
        return f"'{text}"
    return text


def write_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A header and its rows, RFC 4180."""
    return csv_lines([header]) + csv_lines(rows)


def csv_lines(rows: Iterable[Sequence[object]]) -> str:
    """Rows without a header: the next piece of a file that is written in pieces."""
    out = io.StringIO()
    writer = csv.writer(out)
    for row in rows:
        writer.writerow([neutral(value) for value in row])
    return out.getvalue()
