"""Law: who waits as long as the 429 says, in its header's whole seconds or in milliseconds, gets in if nobody else came."""

from __future__ import annotations

import random

import pytest

from gateway.admission.answers import refused as told
from gateway.admission.claims import Claim, Granted, Refused
from gateway.admission.store import LimitStore
from tests.gateway.admission.helpers import Clock, claim


@pytest.mark.parametrize("header", ["retry-after", "retry-after-ms"])
async def test_waiting_as_long_as_the_answer_says_succeeds(store: LimitStore, clock: Clock, header: str) -> None:
    dice, waits = random.Random(11), 0
    for turn in range(25):
        requests, tokens_limit = dice.choice([None, 1, 3, 7]), dice.choice([None, 100, 1000])
        running: list[Claim] = []
        for _ in range(25):
            asked = claim(
                key=f"key_{turn}", requests=requests, tokens_limit=tokens_limit, tokens=dice.randint(0, 100), ttl_s=600
            )
            answer = await store.admit(asked)
            if isinstance(answer, Refused):
                assert answer.retry_after_us is not None
                wait = float(told(asked, answer).headers[header])
                clock.advance(wait / (1000 if header.endswith("ms") else 1))
                assert isinstance(await store.admit(asked), Granted), (turn, answer)
                waits += 1
            running.append(asked)
            clock.advance(dice.choice([0, 0.001, 0.4, 5, 31]))
            if running and dice.random() < 0.5:
                await store.settle(running.pop(dice.randrange(len(running))), dice.randint(0, 300), {})
            elif running and dice.random() < 0.2:
                await store.release(running.pop())
    assert waits > 50
