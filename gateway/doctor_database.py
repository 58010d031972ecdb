"""What `metergate doctor` finds in the database: its schema, the books, the audit log, and what has no price."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url

from billing.books import load_books
from billing.database import open_database, reading
from billing.times import now_us
from gateway import database
from gateway.admin.audit import verify
from gateway.doctor_finding import Check, fail, ok, warn
from gateway.metering.dead_letters import unresolved
from gateway.metering.reconcile import LOOK_BACK_HOURS, look
from gateway.settings import Settings, redact_url
from gateway.words import counted


async def schema(settings: Settings) -> Check:
    """Whether it answers, with a schema that this version runs on."""
    url = redact_url(settings.database_url)
    sqlite = make_url(settings.database_url)
    if sqlite.get_backend_name() == "sqlite" and not Path(sqlite.database or "").exists():
        return warn("database", f"{url} does not exist yet", "`metergate serve` makes it")
    state = await database.check(settings.database_url)
    if state.usable:
        return ok("database", f"{url}, schema {state.current}")
    if sqlite.get_backend_name() == "sqlite" and state.known:
        return warn(
            "database", f"{url}, schema {state.current}", "`metergate serve` brings SQLite up to date by itself"
        )
    return fail("database", url, state.advice)


async def books(settings: Settings) -> Check:
    """Rollups and wallets against their rows, and what was set aside."""
    engine = open_database(settings.database_url, pool_size=1)
    try:
        found = await look(engine)
        async with reading(engine) as connection:
            aside = len(await unresolved(connection))
    finally:
        await engine.dispose()
    if found:
        return fail(
            "books",
            f"{counted(len(found), 'derived figure is', 'derived figures are')} wrong: {found[0]}",
            "`metergate reconcile books --repair`",
        )
    if aside:
        return warn(
            "books", f"{counted(aside, 'record')} set aside", "mend what they lack, then `metergate journal replay`"
        )
    return ok("books", f"rollups and wallets equal their rows over {LOOK_BACK_HOURS} hours; nothing is set aside")


async def audit(settings: Settings) -> Check:
    """The whole chain of the audit log."""
    engine = open_database(settings.database_url, pool_size=1)
    try:
        async with reading(engine) as connection:
            chain = await verify(connection)
    finally:
        await engine.dispose()
    if chain.broken is not None:
        remedy = "somebody changed the database past the gateway: close its doors, then compare with a backup"
        return fail("audit", chain.broken, remedy)
    return ok("audit", f"{counted(chain.entries, 'entry', 'entries')}, each as it was written")


async def prices(settings: Settings) -> Check:
    """The routes that the price book does not cover now."""
    engine = open_database(settings.database_url, pool_size=1)
    try:
        async with reading(engine) as connection:
            found = await load_books(connection)
    finally:
        await engine.dispose()
    book, at_us, version = found.prices, now_us(), found.pins().book
    routes = sorted(
        {(settings.price_list(each.provider), each.model) for model in settings.models for each in model.routes}
    )
    lacking = [route for route in routes if not book.covers(*route, at_us=at_us, version=version)]
    if lacking:
        names = ", ".join(f"{provider}/{model}" for provider, model in lacking)
        return warn(
            "prices",
            f"no price in force for {names}: its calls are served without an amount in the books, and refused under a hard "
            "budget or from a prepaid wallet",
            f"`metergate price post {' '.join(lacking[0])} input AMOUNT CURRENCY` (per million tokens), and the same for output "
            "and for what else the provider counts (cache_read)" + ("; so for each" if len(lacking) > 1 else ""),
        )
    return ok("prices", f"{counted(len(routes), 'route is', 'routes are')} in version {version} of the price book")
