"""What callers hear of their limits: headers in OpenAI's form, and refusals that say what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from billing.budgets import BudgetRow
from billing.money import Money
from billing.times import format_time
from gateway import errors
from gateway.admission.claims import Claim, Counters, Refused, Scope
from gateway.admission.store import StoreUnavailable
from gateway.admission.wallet import WALLET
from gateway.errors import ApiError

PARALLEL_RETRY_S: Final = 1.0
"""A slot is free when some request ends, which no clock knows: this is only a pause."""


def limit_lines(scopes: Sequence[Scope], counters: Sequence[Counters]) -> bytes:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, each of the scope that has least left: headers as they stand on
    the wire, each ended by CRLF."""
    lines = b""
    requests = tokens = _NO_LIMIT
    for scope, state in zip(scopes, counters, strict=True):
        limit = scope.limits.requests_per_minute
        if limit is not None and limit - state.requests_used < requests[0]:
            requests = limit - state.requests_used, limit, state.requests_reset_us
        limit = scope.limits.tokens_per_minute
        if limit is not None and limit - state.tokens_used < tokens[0]:
            tokens = limit - state.tokens_used, limit, state.tokens_reset_us
    reset = duration(requests[2])
    if requests != _NO_LIMIT:
        lines = _REQUESTS % (requests[1], max(requests[0], 0), reset)
    if tokens != _NO_LIMIT:
        lines += _TOKENS % (tokens[1], max(tokens[0], 0), reset if tokens[2] == requests[2] else duration(tokens[2]))
    return lines


def limit_headers(scopes: Sequence[Scope], counters: Sequence[Counters]) -> dict[str, str]:
    """The same by their names."""
    lines = limit_lines(scopes, counters).decode("ascii").split("\r\n")
    return dict(line.split(": ") for line in lines if line)


_NO_LIMIT: Final = (1 << 62, 0, 0)
_REQUESTS, _TOKENS = (
    b"x-ratelimit-limit-%b: %%d\r\nx-ratelimit-remaining-%b: %%d\r\nx-ratelimit-reset-%b: %%b\r\n" % (what, what, what)
    for what in (b"requests", b"tokens")
)


def duration(us: int) -> bytes:
    """As OpenAI writes it: 250ms, 8.64s, 6m0s. Rounded up to a millisecond."""
    ms = -(-us // 1000)
    if ms < 1000:
        return b"%dms" % ms
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    text = b"%d.%03d" % (seconds, ms)
    text = text.rstrip(b"0").rstrip(b".") if ms else b"%d" % seconds
    return b"%dm%ss" % (minutes, text) if minutes else text + b"s"


def refused(claim: Claim, answer: Refused) -> ApiError:
    """The error for a limit that has no room."""
    scope = claim.scopes[answer.scope]
    headers = limit_headers(claim.scopes, answer.counters)
    whose = "This key" if answer.scope == 0 else "This key, for this model,"
    limits, state = scope.limits, answer.counters[answer.scope]
    if answer.by == "parallel":
        message = f"{whose} may have {limits.max_parallel} requests running at once, and has {state.parallel}. "
        advice = "Wait for one to end." if limits.max_parallel else "It may not run any."
    elif answer.by == "requests":
        message = (
            f"{whose} may make {limits.requests_per_minute} requests in a minute, and made {state.requests_used}. "
        )
        advice = _when(answer.retry_after_us)
    else:
        message = (
            f"{whose} may use {limits.tokens_per_minute} tokens in a minute, and used {state.tokens_used}; "
            f"this request may need {claim.tokens}. "
        )
        advice = _when(answer.retry_after_us)
    if answer.retry_after_us is None:
        return ApiError(
            429, message + advice, errors.RATE_LIMIT, None, "rate_limit_exceeded", {**errors.DO_NOT_RETRY, **headers}
        )
    retry_after_s = max(answer.retry_after_us / 1e6, PARALLEL_RETRY_S if answer.by == "parallel" else 0.0)
    return errors.rate_limited(message + advice, retry_after_s=retry_after_s, headers=headers)


def _when(retry_after_us: int | None) -> str:
    if retry_after_us is None:
        return "It will never fit: ask for fewer tokens, or ask your operator for a higher limit."
    return f"Try again in {duration(retry_after_us).decode()}."


def _empty_wallet(budget: BudgetRow, answer: Refused, could_cost: Money) -> str:
    left = Money(budget.currency, max(0, answer.available_nano))
    credit = (
        f" (its credit limit of {Money(budget.currency, budget.amount_nano)} included)" if budget.amount_nano else ""
    )
    return (
        f"This team's prepaid wallet has {left} left{credit}, running requests deducted, and this request could cost "
        f"{could_cost}. Ask for fewer output tokens, or top the wallet up."
    )


def over_budget(
    budget: BudgetRow, answer: Refused, cost_nano: int, ends_us: int | None, headers: dict[str, str]
) -> ApiError:
    """A hard budget has no room. What everybody spent together is nobody's business but the operator's."""
    resets = "It never resets." if ends_us is None else f"It resets at {format_time(ends_us)}."
    could_cost = Money(budget.currency, cost_nano)
    if budget.scope == "all":
        message = f"The budget of this installation has no room for a request that could cost {could_cost}. {resets}"
    elif budget.scope == WALLET:
        message = _empty_wallet(budget, answer, could_cost)
    else:
        limit, left = Money(budget.currency, budget.amount_nano), Money(budget.currency, max(0, answer.available_nano))
        period = "in total" if budget.period == "total" else f"per {budget.period}"
        message = (
            f"This {budget.scope}'s budget of {limit} {period} has {left} left, running requests deducted, and this "
            f"request could cost {could_cost}. Ask for fewer output tokens. {resets}"
        )
    return errors.budget_exceeded(message, headers=headers)


def unpriced(model: str) -> ApiError:
    return errors.forbidden(
        f"The model '{model}' has no price, so it cannot be called under a hard budget or from a prepaid wallet. "
        "Ask your operator to publish one.",
        code="model_unpriced",
        param="model",
    )


def unbounded(model: str) -> ApiError:
    return errors.forbidden(
        f"The model '{model}' is priced by what only its answer counts (pictures, seconds), so it cannot be called under a hard "
        "budget or from a prepaid wallet. Ask your operator for a price per request or per million tokens.",
        code="model_unbounded",
        param="model",
    )


def unsettleable(model: str, reason: str) -> ApiError:
    return errors.forbidden(
        f"The model '{model}' cannot be charged to this team: {reason}. Ask your operator to record settlement terms.",
        code="currency_not_settleable",
        param="model",
    )


def beyond_amounts(model: str) -> ApiError:
    return errors.bad_request(
        f"This request to '{model}' could cost more than an amount of 64 bits holds. Ask for fewer tokens, or ask your "
        "operator whether the model's price is right.",
        code="amount_too_large",
        param="max_tokens",
    )


def uncountable(reason: str) -> ApiError:
    return errors.forbidden(
        f"A hard budget applies that cannot be counted: {reason}. Ask your operator to record the rate.",
        code="budget_not_countable",
    )


def store_unavailable(error: StoreUnavailable) -> ApiError:
    return errors.unavailable(
        "Limits and budgets cannot be checked just now, so nothing is let through. Try again shortly.",
        code="limits_unavailable",
        retry_after_s=error.retry_after_us / 1e6,
    )
