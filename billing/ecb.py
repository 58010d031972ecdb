"""The European Central Bank's daily reference rates, out of its own history file (`eurofxref-hist.zip` or its CSV).

One EUR in each currency, per banking day; read with csv and decimal strings, never through a float. A rate starts to apply when
it is published, at 16:00 in Frankfurt on its day. Importing the same file again adds nothing; a figure that differs from what
the books hold is reported and not written, because the bank does not revise its rates.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Final

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.currencies import MINOR_DIGITS
from billing.database import bump_catalog_version
from billing.errors import InvalidAmount, InvalidRate
from billing.exchange import RateKind
from billing.money import PICO, format_scaled, parse_scaled
from billing.periods import zone_of
from billing.recording import MAX_RATE_PICO, MAX_RATE_STEP, MIN_RATE_PICO
from billing.times import now_us, us_of

SOURCE: Final = "ECB euro foreign exchange reference rates"
PUBLISHED_AT: Final = time(16, 0)
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
_ROWS_PER_INSERT: Final = 5_000
_MISSING: Final = ("N/A", "")


@dataclass(frozen=True, slots=True)
class EcbRate:
    """One EUR is `rate_pico` 1e-12 units of `quote` from `effective_from_us`."""

    day: date
    quote: str
    rate_pico: int

    @property
    def effective_from_us(self) -> int:
        return us_of(datetime.combine(self.day, PUBLISHED_AT, zone_of("Europe/Berlin")))


@dataclass(frozen=True, slots=True)
class ImportResult:
    """`conflicts` name figures that differ from what the books hold; they were not written."""

    added: int
    known: int
    conflicts: tuple[str, ...]


def read_file(path: Path) -> str:
    """The CSV text of the bank's zip, or of a CSV file. Raises `InvalidRate` when it is neither."""
    if not zipfile.is_zipfile(path):
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidRate(f"{path.name}: larger than any history of the ECB", field="file")
        return path.read_text(encoding="utf-8")
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".csv")]
        if len(names) != 1 or archive.getinfo(names[0]).file_size > MAX_FILE_BYTES:
            raise InvalidRate(f"{path.name}: expected one CSV file in it, as in eurofxref-hist.zip", field="file")
        return archive.read(names[0]).decode("utf-8")


def parse(text: str, since: date) -> Iterator[EcbRate]:
    """Rates from `since` on, newest first as in the file; currencies that ISO 4217 has withdrawn are left out.

    Raises `InvalidRate` with the line for a header, date or figure that cannot be.
    """
    reader = csv.reader(io.StringIO(text), strict=True)
    header = [name.strip() for name in next(reader, [])]
    if not header or header[0] != "Date" or "USD" not in header:
        raise InvalidRate("line 1: no header of the ECB's history (Date,USD,JPY,…)", field="file")
    wanted = [(at, name) for at, name in enumerate(header) if name in MINOR_DIGITS]
    for line in reader:
        number = reader.line_num
        if len(line) != len(header):
            raise InvalidRate(f"line {number}: {len(line)} columns where the header has {len(header)}", field="file")
        try:
            day = date.fromisoformat(line[0])
        except ValueError as error:
            raise InvalidRate(f"line {number}: {line[0]!r} is no date", field="file") from error
        if day < since:
            continue
        for at, currency in wanted:
            figure = line[at].strip()
            if figure not in _MISSING:
                yield EcbRate(day, currency, _pico(figure, currency, number))


def _pico(figure: str, currency: str, number: int) -> int:
    try:
        pico = parse_scaled(figure, PICO, currency)
    except InvalidAmount as error:
        raise InvalidRate(f"line {number}: {error}", field="file") from error
    if not MIN_RATE_PICO <= pico <= MAX_RATE_PICO:
        raise InvalidRate(f"line {number}: {currency} {figure} cannot be a rate", field="file")
    return pico


async def import_rates(connection: AsyncConnection, rates: Iterable[EcbRate]) -> ImportResult:
    """Record what the books lack, oldest first, in one catalog write; nothing at all when a figure jumps absurdly.

    Raises `InvalidRate` when a day's rate is more than 20 times off the one before it.
    """
    ordered = sorted(rates, key=lambda rate: (rate.day, rate.quote))
    _refuse_jumps(ordered)
    await bump_catalog_version(connection)
    table = tables.rate_rows
    held = {
        (row.quote, row.effective_from_us): row.rate_pico
        for row in await connection.execute(
            select(table.c.quote, table.c.effective_from_us, table.c.rate_pico).where(
                table.c.base == "EUR", table.c.kind == RateKind.REFERENCE, table.c.source == SOURCE
            )
        )
    }
    fresh, conflicts, known = [], [], 0
    for rate in ordered:
        starts_us = rate.effective_from_us
        standing = held.get((rate.quote, starts_us))
        if standing is None:
            fresh.append((rate, starts_us))
        elif standing == rate.rate_pico:
            known += 1
        else:
            ours, theirs = format_scaled(standing, PICO), format_scaled(rate.rate_pico, PICO)
            conflicts.append(f"{rate.day} EUR/{rate.quote}: the books have {ours}, the file {theirs}")
    recorded_at_us = now_us()
    values = [
        {
            "base": "EUR",
            "quote": rate.quote,
            "kind": str(RateKind.REFERENCE),
            "rate_pico": rate.rate_pico,
            "source": SOURCE,
            "effective_from_us": starts_us,
            "recorded_at_us": recorded_at_us,
        }
        for rate, starts_us in fresh
    ]
    for start in range(0, len(values), _ROWS_PER_INSERT):
        await connection.execute(insert(table), values[start : start + _ROWS_PER_INSERT])
    return ImportResult(len(values), known, tuple(conflicts))


def _refuse_jumps(ordered: list[EcbRate]) -> None:
    last: dict[str, EcbRate] = {}
    for rate in ordered:
        before = last.get(rate.quote)
        if before is not None and not (
            before.rate_pico <= rate.rate_pico * MAX_RATE_STEP and rate.rate_pico <= before.rate_pico * MAX_RATE_STEP
        ):
            raise InvalidRate(
                f"EUR/{rate.quote}: {format_scaled(rate.rate_pico, PICO)} on {rate.day} is more than {MAX_RATE_STEP} times off "
                f"{format_scaled(before.rate_pico, PICO)} on {before.day}",
                field="file",
            )
        last[rate.quote] = rate
