"""A month of usage in bulk: for SQLite row by row from here, for PostgreSQL by its own generate_series, a day at a time.

Both make the same kind of month: rows evenly spaced, 10 teams, 1,000 keys of unequal weight that each call one of five models
mostly, two lines and one attempt a request, and the rollups that the recorder would have written.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]

from bench.metering import KEY_WEIGHTS, KEYS, MODELS
from billing import tables
from billing.times import DAY_US, QUARTER_US

TEAMS: Final = 10
CHUNK: Final = 20_000
LOADED: Final = ("usage", "usage_lines", "attempts", "rollup_money", "rollup_traffic")
Rows = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who calls what: each key has one model that it calls mostly, and a weight."""

    teams: tuple[str, ...]
    start_us: int
    end_us: int
    rows: int


def load_sqlite(path: str, plan: Plan) -> None:
    """By executemany, in the order of time."""
    plain = sqlite3.connect(path, isolation_level=None)
    plain.execute("PRAGMA synchronous = OFF")
    for rows in october(plan, lambda number: number.to_bytes(16, "big")):
        plain.execute("BEGIN")
        for name, part in rows.items():
            if part:
                names = ", ".join(_columns(name))
                plain.executemany(f"INSERT INTO {name} ({names}) VALUES ({','.join('?' * len(part[0]))})", part)
        plain.execute("COMMIT")
    plain.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    plain.execute("ANALYZE")
    plain.close()


async def load_postgresql(url: str, plan: Plan) -> None:
    """By INSERT .. SELECT, each day out of a table of its requests."""
    connection = await asyncpg.connect(url)
    sums = list(accumulate(KEY_WEIGHTS))
    bounds = [each / sums[-1] for each in sums[:-1]]
    step_us = (plan.end_us - plan.start_us) // plan.rows
    for setting in ("max_wal_size = '16GB'", "checkpoint_timeout = '1h'"):
        await connection.execute(f"ALTER SYSTEM SET {setting}")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.execute("SET synchronous_commit = off; SET work_mem = '256MB'; SELECT setseed(0.5)")
    for day_us in range(plan.start_us, plan.end_us, DAY_US):
        first, last = (-(-(at_us - plan.start_us) // step_us) for at_us in (day_us, day_us + DAY_US))
        last = min(last, plan.rows)
        await connection.execute("DROP TABLE IF EXISTS day")
        numbered = (first, last - 1, plan.start_us, step_us, bounds, list(plan.teams), list(MODELS))
        await connection.execute(_DAY, *numbered)
        for statement in _FROM_DAY:
            await connection.execute(statement)
        print(f"postgresql: {last:,} rows", flush=True)
    await connection.execute("DROP TABLE IF EXISTS day")
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("ALTER SYSTEM RESET ALL")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.execute("CHECKPOINT")
    await connection.close()


_DAY: Final = f"""
    CREATE TEMPORARY TABLE day AS
    SELECT (lpad(to_hex(at_us / 1000), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))::uuid AS id, at_us,
        at_us - at_us % {QUARTER_US} AS bucket_us, 'key_' || lpad(key::text, 16, '0') AS key_id,
        teams[key % {TEAMS} + 1] AS team_id, models[CASE WHEN same < 0.9 THEN key % 5 ELSE other END + 1] AS model,
        read, written, read * 280 + written * 420 AS listed
    FROM (
        SELECT n, $3::bigint + n * $4::bigint AS at_us, width_bucket(random(), $5::float8[]) AS key, random() AS same,
            floor(random() * 5)::int AS other, 200 + floor(random() * 3000)::bigint AS read,
            50 + floor(random() * 800)::bigint AS written, $6::text[] AS teams, $7::text[] AS models
        FROM generate_series($1::bigint, $2::bigint) AS n
    ) AS requests
"""
_LATENCY_US: Final = 812_345
_POLICY, _REFERENCE = "{0} * 73 / 10", "{0} * 66529 / 10000"
_KINDS: Final = (("input", "read", 280, 1), ("output", "written", 420, 3))
_LINES: Final = " UNION ALL ".join(
    f"SELECT id, team_id, bucket_us, model, '{kind}' AS token_class, {count} AS quantity, {row}::bigint AS price_row_id, "
    f"{count} * {nano} AS listed FROM day"
    for kind, count, nano, row in _KINDS
)
_FROM_DAY: Final = (
    f"""INSERT INTO usage (id, kind, team_id, key_id, model, provider, provider_model, surface, status, estimated, streamed,
            total_input, total_output, reasoning, compute_us, list_currency, list_nano, settlement_currency, settled_nano,
            policy_nano, reference_nano, cost_currency, cost_nano, terms_id, rate_ids, pin_book, pin_rates, pin_terms,
            pin_sell, tags, latency_us, ttft_us, recorded_at_us)
        SELECT id, 'usage', team_id, key_id, model, 'deepseek', model, 'chat.completions', 'completed', FALSE, TRUE,
            read, written, 0, 0, 'USD', listed, 'CNY', listed, {_POLICY.format("listed")}, {_REFERENCE.format("listed")},
            'USD', listed, 1, '1,2', 1, 2, 1, 0, '{{}}', {_LATENCY_US}, 204123, at_us
        FROM day ORDER BY id""",
    f"""INSERT INTO usage_lines (usage_id, token_class, quantity, price_row_id, currency, list_nano, settled_nano,
            policy_nano, reference_nano)
        SELECT id, token_class, quantity, price_row_id, 'USD', listed, listed, {_POLICY.format("listed")},
            {_REFERENCE.format("listed")}
        FROM ({_LINES}) AS lines ORDER BY id, token_class""",
    f"""INSERT INTO attempts (usage_id, sequence, provider, provider_model, status, tokens, cost_currency, cost_nano,
            price_row_ids, started_at_us, latency_us, ttft_us, service_tier, processing)
        SELECT id, 0, 'deepseek', model, 'completed', format('{{"input":%s,"output":%s}}', read, written), 'USD', listed,
            '1,3', at_us, {_LATENCY_US}, 204123, 'default', 'standard'
        FROM day ORDER BY id""",
    f"""INSERT INTO rollup_money ({", ".join((*tables.MONEY_KEY, *tables.MONEY_SUMS))})
        SELECT team_id, bucket_us, model, 'deepseek', model, token_class, price_row_id, 1, 0, '1,2', 'USD', 'CNY', count(*),
            sum(quantity), sum(listed), sum(listed), sum({_POLICY.format("listed")}), sum({_REFERENCE.format("listed")})
        FROM ({_LINES}) AS lines GROUP BY team_id, bucket_us, model, token_class, price_row_id""",
    f"""INSERT INTO rollup_traffic ({", ".join((*tables.TRAFFIC_KEY, *tables.TRAFFIC_SUMS))})
        SELECT bucket_us, team_id, key_id, model, 'deepseek', model, 'USD', 'CNY', 'USD', {{sums}}
        FROM day GROUP BY bucket_us, team_id, key_id, model""".format(
        sums=", ".join(
            {
                "requests": "count(*)",
                "input": "sum(read)",
                "output": "sum(written)",
                "list_nano": "sum(listed)",
                "settled_nano": "sum(listed)",
                "policy_nano": f"sum({_POLICY.format('listed')})",
                "reference_nano": f"sum({_REFERENCE.format('listed')})",
                "cost_nano": "sum(listed)",
                "latency_us": f"count(*) * {_LATENCY_US}",
                "latency_le_1000_ms": "count(*)",
            }.get(name, "0")
            for name in tables.TRAFFIC_SUMS
        )
    ),
)


def october(plan: Plan, as_id: Callable[[int], Any]) -> Iterator[Rows]:
    """All rows in the order of time, some thousands at a time, each quarter-hour's rollups with it."""
    chance = random.Random(20261001)
    quarters = (plan.end_us - plan.start_us) // QUARTER_US
    made, out = 0, {name: list[tuple[Any, ...]]() for name in LOADED}
    for quarter in range(quarters):
        bucket_us = plan.start_us + quarter * QUARTER_US
        until = plan.rows * (quarter + 1) // quarters
        _quarter(plan, chance, bucket_us, until - made, made, as_id, out)
        made = until
        if len(out["usage"]) >= CHUNK:
            yield out
            out = {name: [] for name in LOADED}
    yield out


def _quarter(
    plan: Plan,
    chance: random.Random,
    bucket_us: int,
    count: int,
    serial: int,
    as_id: Callable[[int], Any],
    out: Rows,
) -> None:
    money: dict[tuple[str, str, str], list[int]] = {}
    traffic: dict[tuple[str, str, str], list[int]] = {}
    latency_at = tables.TRAFFIC_SUMS.index("latency_le_1000_ms")
    for at, key in enumerate(chance.choices(range(KEYS), KEY_WEIGHTS, k=count)):
        model = MODELS[key % 5 if chance.random() < 0.9 else chance.randrange(5)]
        team, key_id = plan.teams[key % TEAMS], f"key_{key:016d}"
        at_us = bucket_us + QUARTER_US * at // max(count, 1)
        id_ = as_id((at_us // 1000) << 80 | 7 << 76 | 2 << 62 | (serial + at))
        read, written = 200 + chance.randrange(3000), 50 + chance.randrange(800)
        amounts = [(read, "input", read * 280), (written, "output", written * 420)]
        listed = sum(nano for _, _, nano in amounts)
        policy, reference = listed * 73 // 10, listed * 66529 // 10000
        out["usage"].append(_usage(id_, team, key_id, model, read, written, listed, policy, reference, at_us))
        for quantity, token_class, nano in amounts:
            line = (quantity, nano, nano, nano * 73 // 10, nano * 66529 // 10000)
            out["usage_lines"].append(
                (id_, token_class, quantity, 1 if token_class == "input" else 3, "USD", *line[1:])
            )
            cell = money.setdefault((team, model, token_class), [0] * 6)
            for index, value in enumerate((1, *line)):
                cell[index] += value
        out["attempts"].append(
            (
                id_,
                0,
                "deepseek",
                model,
                "completed",
                f'{{"input":{read},"output":{written}}}',
                "USD",
                listed,
                "1,3",
                None,
                at_us,
                812_345,
                204_123,
                "default",
                "standard",
                None,
                None,
            )
        )
        sums = traffic.setdefault((team, key_id, model), [0] * len(tables.TRAFFIC_SUMS))
        for name, value in (
            ("requests", 1),
            ("input", read),
            ("output", written),
            ("list_nano", listed),
            ("settled_nano", listed),
            ("policy_nano", policy),
            ("reference_nano", reference),
            ("cost_nano", listed),
            ("latency_us", 812_345),
        ):
            sums[_AT[name]] += value
        sums[latency_at] += 1
    out["rollup_money"] += [
        (
            team,
            bucket_us,
            model,
            "deepseek",
            model,
            kind,
            1 if kind == "input" else 3,
            1,
            0,
            "1,2",
            "USD",
            "CNY",
            *sums6,
        )
        for (team, model, kind), sums6 in sorted(money.items())
    ]
    out["rollup_traffic"] += [
        (bucket_us, team, key_id, model, "deepseek", model, "USD", "CNY", "USD", *sums)
        for (team, key_id, model), sums in sorted(traffic.items())
    ]


_AT: Final = {name: at for at, name in enumerate(tables.TRAFFIC_SUMS)}
_USAGE: Final = tuple(column.name for column in tables.usage.columns)


def _usage(
    id_: Any,
    team: str,
    key: str,
    model: str,
    read: int,
    written: int,
    listed: int,
    policy: int,
    reference: int,
    at_us: int,
) -> tuple[Any, ...]:
    values: dict[str, Any] = {
        "id": id_,
        "kind": "usage",
        "team_id": team,
        "key_id": key,
        "model": model,
        "provider": "deepseek",
        "provider_model": model,
        "surface": "chat.completions",
        "status": "completed",
        "estimated": False,
        "streamed": True,
        "total_input": read,
        "total_output": written,
        "reasoning": 0,
        "compute_us": 0,
        "list_currency": "USD",
        "list_nano": listed,
        "settlement_currency": "CNY",
        "settled_nano": listed,
        "policy_nano": policy,
        "reference_nano": reference,
        "cost_currency": "USD",
        "cost_nano": listed,
        "terms_id": 1,
        "rate_ids": "1,2",
        "pin_book": 1,
        "pin_rates": 2,
        "pin_terms": 1,
        "pin_sell": 0,
        "tags": "{}",
        "latency_us": 812_345,
        "ttft_us": 204_123,
        "recorded_at_us": at_us,
    }
    return tuple(values.get(name) for name in _USAGE)


def _columns(name: str) -> list[str]:
    return [column.name for column in tables.metadata.tables[name].columns]
