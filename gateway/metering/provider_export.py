"""A provider's own account of what it served, beside ours: OpenAI's organization usage as JSON, or its table as CSV.

OpenAI's `input_tokens` include the cached ones, as ours do here. Attempts are compared, not requests: a retry that the provider
served is in its account although no caller paid for it. A day is the provider's: UTC, by the moment the attempt was made.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.errors import BillingError
from billing.times import DAY_US, HOUR_US, first_id_at, format_time, parse_time
from billing.usage import Usage
from gateway.metering.errors import MeteringError

SNAPSHOT: Final = re.compile(r"-\d{4}-?\d{2}-?\d{2}$")
"""The date at the end of the name of a model's snapshot, which providers report and callers leave out."""
ROWS_PER_STEP: Final = 5000
_usage: Final = msgspec.json.Decoder(Usage)


class ExportError(MeteringError):
    """The file is no export; the message says where and what was expected."""


@dataclass(frozen=True, slots=True)
class Counts:
    requests: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.requests + other.requests,
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One day and model. `verdict`: matched, differing, missing_here, missing_there. `uncertain` of our attempts (lost, or with
    an estimated count) are in `here`, and may explain a difference."""

    day: str
    model: str
    verdict: str
    here: Counts
    there: Counts
    uncertain: int


@dataclass(slots=True)
class _Side:
    counts: Counts = field(default_factory=Counts)
    uncertain: int = 0


def read_export(content: bytes) -> dict[tuple[int, str], Counts]:
    """Counts by day (microseconds of its start, UTC) and model. Raises `ExportError`."""
    text = content.decode("utf-8-sig", "replace").strip()
    rows = _json_rows(text) if text.startswith(("{", "[")) else _csv_rows(text)
    found: dict[tuple[int, str], Counts] = {}
    for where, start, row in rows:
        model = row.get("model")
        if not model:
            raise ExportError(f"{where}: no `model`; export the usage grouped by model (group_by=model)")
        counts = Counts(
            _count(where, row, "num_model_requests", "requests"),
            _count(where, row, "input_tokens"),
            _count(where, row, "input_cached_tokens", missing=0),
            _count(where, row, "output_tokens"),
        )
        key = (start // DAY_US * DAY_US, str(model))
        found[key] = found.get(key, Counts()) + counts
    if not found:
        raise ExportError("the export has no rows")
    return found


def _json_rows(text: str) -> list[tuple[str, int, Mapping[str, Any]]]:
    try:
        page = json.loads(text)
    except ValueError as error:
        raise ExportError(f"no JSON: {error}") from error
    pages = page if isinstance(page, list) else [page]
    rows: list[tuple[str, int, Mapping[str, Any]]] = []
    for number, each in enumerate(pages, 1):
        if not isinstance(each, dict) or not isinstance(each.get("data"), list):
            raise ExportError(
                f"page {number}: no `data` list; expected the answer of /v1/organization/usage/completions"
            )
        if each.get("has_more") and number == len(pages):
            raise ExportError(
                "the export says `has_more`: fetch the other pages too, and give them all as one JSON array"
            )
        for at, bucket in enumerate(each["data"], 1):
            where = f"page {number}, bucket {at}"
            results = bucket.get("results", bucket.get("result")) if isinstance(bucket, dict) else None
            if not isinstance(results, list):
                raise ExportError(f"{where}: no `results` list")
            start_us = _moment(where, bucket.get("start_time"))
            rows += [(where, start_us, result) for result in results if isinstance(result, dict)]
    return rows


def _csv_rows(text: str) -> list[tuple[str, int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text))
    names = [name.strip().lower() for name in reader.fieldnames or ()]
    if "model" not in names or not {"start_time", "start_time_iso", "date"} & set(names):
        raise ExportError(
            f"line 1: the columns are {', '.join(names) or 'none'}; needed: start_time, model, input_tokens, …"
        )
    rows: list[tuple[str, int, Mapping[str, Any]]] = []
    for line, values in enumerate(reader, 2):
        row = {
            str(name).strip().lower(): (value or "").strip() for name, value in values.items() if isinstance(value, str)
        }
        moment = row.get("start_time_iso") or row.get("start_time") or row.get("date")
        rows.append((f"line {line}", _moment(f"line {line}", moment), row))
    return rows


def _moment(where: str, value: object) -> int:
    """Unix seconds, a day, or RFC 3339."""
    text = str(value)
    try:
        if re.fullmatch(r"\d{9,11}(\.0)?", text):
            return int(text.partition(".")[0]) * 1_000_000
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            text += "T00:00:00Z"
        elif not re.search(r"(Z|[+-]\d{2}:\d{2})$", text):
            text += "Z"
        return parse_time(text, "start_time")
    except BillingError as error:
        raise ExportError(f"{where}: {value!r} is no time; expected Unix seconds or RFC 3339") from error


def _count(where: str, row: Mapping[str, Any], *names: str, missing: int | None = None) -> int:
    value = next((row[name] for name in names if row.get(name) not in (None, "")), missing)
    if value is None:
        raise ExportError(f"{where}: no `{names[0]}`")
    text = str(value)
    if not re.fullmatch(r"\d{1,18}(\.0+)?", text):
        raise ExportError(f"{where}: {names[0]} is {text!r}, not a count")
    return int(text.partition(".")[0])


async def compare(
    connection: AsyncConnection,
    provider: str,
    export: Mapping[tuple[int, str], Counts],
    *,
    aliases: Mapping[str, str] | None = None,
) -> list[Comparison]:
    """Our attempts at `provider` against its export, for the days that the export has, by day and model.

    A model of the export that we know without its snapshot's date, or by an alias, is compared under our name.
    """
    days = sorted({day for day, _ in export})
    ours: dict[tuple[int, str], _Side] = {}
    for day in days:
        await _add_day(connection, provider, day, ours)
    known = {model for _, model in ours}
    theirs: dict[tuple[int, str], Counts] = {}
    for (day, model), counts in export.items():
        name = (aliases or {}).get(model) or model
        short = SNAPSHOT.sub("", name)
        name = short if name not in known and short in known else name
        theirs[day, name] = theirs.get((day, name), Counts()) + counts
    answer = []
    for day, model in sorted(ours.keys() | theirs.keys()):
        here, there = ours.get((day, model), _Side()), theirs.get((day, model), Counts())
        verdict = "matched" if here.counts == there else "differing"
        if (day, model) not in ours:
            verdict = "missing_here"
        elif (day, model) not in theirs:
            verdict = "missing_there"
        answer.append(Comparison(format_time(day)[:10], model, verdict, here.counts, there, here.uncertain))
    return answer


async def _add_day(connection: AsyncConnection, provider: str, day_us: int, ours: dict[tuple[int, str], _Side]) -> None:
    """An attempt may begin long after its request; a request of the hours before the day can have one in it."""
    attempts, usage = tables.attempts.c, tables.usage.c
    after, end = first_id_at(day_us - HOUR_US), first_id_at(day_us + DAY_US)
    while True:
        ids = select(usage.id).where(usage.id > after, usage.id < end).order_by(usage.id).limit(ROWS_PER_STEP)
        page = (await connection.execute(ids)).scalars().all()
        if not page:
            return
        query = (
            select(attempts.provider_model, attempts.status, attempts.tokens, attempts.started_at_us, usage.estimated)
            .select_from(tables.attempts.join(tables.usage, usage.id == attempts.usage_id))
            .where(attempts.usage_id >= page[0], attempts.usage_id <= page[-1], attempts.provider == provider)
        )
        for model, status, tokens, started_us, estimated in await connection.execute(query):
            if tokens is None or not day_us <= started_us < day_us + DAY_US:
                continue
            used = _usage.decode(tokens)
            if not used.total:
                continue
            side = ours.setdefault((day_us, model), _Side())
            side.counts += Counts(1, used.total_input, used.cache_read, used.total_output)
            side.uncertain += status == "lost" or bool(estimated)
        after = page[-1]
