"""What one process counts in its memory of scopes, budget periods and leases, and whether a claim has room in a scope."""

from __future__ import annotations

from gateway.admission.claims import Charge, Claim, Counters, Refused, RefusedBy
from gateway.admission.limits import Limits
from gateway.admission.window import SlidingWindow


class ScopeState:
    __slots__ = ("bucket", "parallel", "requests", "tokens")

    def __init__(self) -> None:
        self.bucket = -1
        self.parallel = 0
        self.requests = SlidingWindow()
        self.tokens = SlidingWindow()

    def slide(self, bucket: int) -> None:
        if bucket != self.bucket:
            self.bucket = bucket
            self.requests.slide(bucket)
            self.tokens.slide(bucket)

    def counters(self, now_us: int) -> Counters:
        requests, tokens = self.requests, self.tokens
        reset_us = requests.reset_us(now_us)
        same = tokens.newest == requests.newest and tokens.used and requests.used
        return Counters(
            requests.used, tokens.used, self.parallel, reset_us, reset_us if same else tokens.reset_us(now_us)
        )


class HeldInScope:
    """What one lease counted in one scope; `tokens` is None where the scope had no token limit."""

    __slots__ = ("bucket", "requests", "state", "tokens")

    def __init__(self, state: ScopeState, limits: Limits, tokens: int, bucket: int) -> None:
        self.state = state
        self.requests = 0 if limits.requests_per_minute is None else 1
        self.tokens = None if limits.tokens_per_minute is None else tokens
        self.bucket = bucket
        state.parallel += 1
        if self.requests:
            state.requests.add(1, bucket)
        if self.tokens is not None:
            state.tokens.add(self.tokens, bucket)

    def correct(self, requests: int, tokens: int, bucket: int) -> None:
        """Replace what was counted by the actual figures, as far as its second is still in the minute at `bucket`."""
        self.state.slide(bucket)
        if self.requests != requests:
            self.state.requests.correct(self.bucket, requests - self.requests)
            self.requests = requests
        if self.tokens is not None:
            self.state.tokens.correct(self.bucket, tokens - self.tokens)
            self.tokens = tokens


class BudgetSum:
    """`spent` is the base plus what settled since. Version 0: never seeded."""

    __slots__ = ("base", "ends_us", "reserved", "spent", "version")

    def __init__(self, ends_us: int | None) -> None:
        self.ends_us = ends_us
        self.version = 0
        self.base = 0
        self.spent = 0
        self.reserved = 0


class HeldLease:
    __slots__ = ("charges", "expires_us", "held")

    def __init__(self, held: list[HeldInScope], charges: tuple[Charge, ...], expires_us: int) -> None:
        self.held = held
        self.charges = charges
        self.expires_us = expires_us


def check_scopes(claim: Claim, states: list[ScopeState], now_us: int) -> Refused | None:
    for scope, state in zip(claim.scopes, states, strict=True):
        limits = scope.limits
        requests, tokens, parallel = limits.requests_per_minute, limits.tokens_per_minute, limits.max_parallel
        if (
            (requests is not None and state.requests.used >= requests)
            or (tokens is not None and state.tokens.used + claim.tokens > tokens)
            or (parallel is not None and state.parallel >= parallel)
        ):
            return _refuse_scopes(claim, states, now_us)
    return None


def _refuse_scopes(claim: Claim, states: list[ScopeState], now_us: int) -> Refused:
    """The first scope and limit without room, with the longest wait of all that have none."""
    failed: list[tuple[RefusedBy, int]] = []
    waits: list[int | None] = []
    for index, (scope, state) in enumerate(zip(claim.scopes, states, strict=True)):
        limits = scope.limits
        limit = limits.requests_per_minute
        if limit is not None and state.requests.used >= limit:
            failed.append(("requests", index))
            waits.append(state.requests.wait_us(now_us, 1, limit))
        limit = limits.tokens_per_minute
        if limit is not None and state.tokens.used + claim.tokens > limit:
            failed.append(("tokens", index))
            waits.append(state.tokens.wait_us(now_us, claim.tokens, limit))
        limit = limits.max_parallel
        if limit is not None and state.parallel >= limit:
            failed.append(("parallel", index))
            waits.append(0 if limit else None)
    by, index = failed[0]
    longest = None if None in waits else max(wait for wait in waits if wait is not None)
    return Refused(by, tuple([state.counters(now_us) for state in states]), longest, index)


def check_amended(claim: Claim, lease: HeldLease, tokens: int, now_us: int) -> Refused | None:
    """Whether a running request may raise its token estimate; its place in the minute and its slot it has already."""
    for index, (scope, held) in enumerate(zip(claim.scopes, lease.held, strict=True)):
        limit = scope.limits.tokens_per_minute
        if limit is None or held.tokens is None or tokens <= held.tokens:
            continue
        window = held.state.tokens
        more = tokens - held.tokens
        if window.used + more > limit:
            counters = tuple([each.state.counters(now_us) for each in lease.held])
            return Refused("tokens", counters, window.wait_us(now_us, more, limit), index)
    return None
