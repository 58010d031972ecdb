"""What `GET /v1/key` says of a key's limits and budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from billing.budgets import BudgetRow
from billing.money import NANO, format_scaled
from billing.times import format_time
from gateway.admission.admission import Admission
from gateway.admission.answers import store_unavailable
from gateway.admission.claims import BudgetState
from gateway.admission.periods import Periods
from gateway.admission.store import StoreUnavailable
from gateway.admission.wallet import wallet_budget

if TYPE_CHECKING:
    from gateway.access.identity import Identity
    from gateway.catalog import Snapshot


class Remaining(msgspec.Struct, frozen=True):
    """What is left of each limit now; null where there is none."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    max_parallel: int | None


class BudgetLeft(msgspec.Struct, frozen=True):
    """Amounts are decimal strings of `currency`; `reserved` is held by running requests."""

    id: int
    scope: str
    amount: str
    spent: str
    reserved: str
    remaining: str
    currency: str
    period: str
    timezone: str
    hard: bool
    resets_at: str | None


class WalletLeft(msgspec.Struct, frozen=True):
    """A prepaid team's wallet: `remaining` is balance and credit limit less what running requests hold."""

    balance: str
    credit_limit: str
    reserved: str
    remaining: str
    currency: str


class KeyState(msgspec.Struct, frozen=True):
    """`wallet` is null for a team that pays afterwards."""

    remaining: Remaining
    budgets: list[BudgetLeft]
    wallet: WalletLeft | None


async def key_state(admission: Admission, snapshot: Snapshot, identity: Identity, at_us: int) -> KeyState:
    """The key's and its team's budgets; what everybody spent together is not told. Raises `ApiError` 503.

    A period that no request drew on lately is counted anew, so that a correction or a lost request shows; while the database is
    away, what the store knows is told.
    """
    budgets = [budget for budget in snapshot.budgets.over(identity) if budget.scope != "all"]
    periods = Periods()
    windows = {budget.id: periods.of(budget, at_us) for budget in budgets}
    wallet = wallet_budget(snapshot.teams[identity.team_id]) if identity.prepaid else None
    asked = [period.window for period in windows.values()]
    if wallet is not None:
        asked.append(periods.of(wallet, at_us).window)
    try:
        if asked:
            await admission.seeding.inherit()
        view = await admission.store.view(identity.key_id, asked)
        unseeded = [window for window, state in view.budgets.items() if not state.seeded]
        if wallet is not None and not admission.seeding.follows(asked[-1]) and asked[-1] not in unseeded:
            unseeded.append(asked[-1])
        idle = [window for window in asked if window not in unseeded and not admission.seeding.follows(window)]
        if unseeded or idle:
            try:
                await admission.seeding.seed([*unseeded, *idle])
            except StoreUnavailable:
                if unseeded:
                    raise
            view = await admission.store.view(identity.key_id, asked)
    except StoreUnavailable as error:
        raise store_unavailable(error) from error
    lefts = []
    for budget in budgets:
        period = windows[budget.id]
        state = view.budgets[period.window]
        left = budget.amount_nano - state.spent_nano - state.reserved_nano
        lefts.append(
            BudgetLeft(
                id=budget.id,
                scope=budget.scope,
                amount=format_scaled(budget.amount_nano, NANO),
                spent=format_scaled(state.spent_nano, NANO),
                reserved=format_scaled(state.reserved_nano, NANO),
                remaining=format_scaled(max(0, left), NANO),
                currency=budget.currency,
                period=budget.period,
                timezone=budget.timezone,
                hard=budget.hard,
                resets_at=None if period.end_us is None else format_time(period.end_us),
            )
        )
    limits, counters = identity.limits, view.counters
    remaining = Remaining(
        _left(limits.requests_per_minute, counters.requests_used),
        _left(limits.tokens_per_minute, counters.tokens_used),
        _left(limits.max_parallel, counters.parallel),
    )
    return KeyState(remaining, lefts, None if wallet is None else _wallet_left(wallet, view.budgets[asked[-1]]))


def _wallet_left(wallet: BudgetRow, state: BudgetState) -> WalletLeft:
    balance_nano = -state.spent_nano
    left = balance_nano + wallet.amount_nano - state.reserved_nano
    return WalletLeft(
        balance=format_scaled(balance_nano, NANO),
        credit_limit=format_scaled(wallet.amount_nano, NANO),
        reserved=format_scaled(state.reserved_nano, NANO),
        remaining=format_scaled(max(0, left), NANO),
        currency=wallet.currency,
    )


def _left(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)
