"""How budgets stand in their present periods, for operators: spent and reserved, as the limit store and the database know it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from billing.budgets import BudgetRow
from gateway.admission.periods import Period, Periods
from gateway.admission.store import StoreUnavailable

if TYPE_CHECKING:
    from gateway.admission.admission import Admission

logger = logging.getLogger(__name__)

AT_ONCE: Final = 50


class Standing(NamedTuple):
    """In nano of the budget's currency; `resets_at_us` is None for a total."""

    spent_nano: int
    reserved_nano: int
    resets_at_us: int | None


async def standings(admission: Admission, budgets: Sequence[BudgetRow], at_us: int) -> dict[int, Standing]:
    """By id. Left out is what cannot be told: the store or the database is away, or a rate is missing."""
    periods, found = Periods(), dict[int, Standing]()
    wanted = ((budget, periods.of(budget, at_us)) for budget in budgets)
    try:
        while some := list(islice(wanted, AT_ONCE)):
            found |= await _look(admission, some)
    except StoreUnavailable as error:
        logger.info("what is spent of budgets cannot be told now: %s", error)
    return found


async def _look(admission: Admission, some: list[tuple[BudgetRow, Period]]) -> dict[int, Standing]:
    """A period that nobody draws on is not kept in line with the database, and has to be counted first."""
    await admission.seeding.inherit()
    windows = [period.window for _, period in some]
    try:
        await admission.seeding.seed([window for window in windows if not admission.seeding.follows(window)])
    except StoreUnavailable as error:
        logger.info("budgets are told of as the limit store knows them: %s", error)
    view = await admission.store.view("", windows)
    return {
        budget.id: Standing(state.spent_nano, state.reserved_nano, period.end_us)
        for budget, period in some
        if (state := view.budgets[period.window]).seeded and period.window not in admission.seeding.uncountable
    }
