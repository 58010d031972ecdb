"""What is believed of a provider's counts: law over law, with exact figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.usage import Usage
from gateway.upstream.doubt import SLACK_FACTOR, SLACK_TOKENS, judged
from gateway.upstream.usage import from_openai

counts = st.integers(-(2**70), 2**70)


def judge(usage: Usage, *, delivered: int = 7, most: int | None = None) -> tuple[Usage, bool]:
    return judged(usage, input_tokens=11, most_output=most, delivered_tokens=lambda: delivered)


def test_a_usage_that_adds_up_is_billed_as_it_is() -> None:
    for usage in (Usage(input=9, output=5), Usage(output=5), Usage(input=9, output=5, flaw="something else")):
        assert judge(usage, most=5) == (usage, usage.total_input == 0 and usage.flaw is not None)


def test_output_that_was_delivered_is_never_billed_as_none() -> None:
    usage, estimated = judge(Usage(input=9))
    assert (usage, estimated) == (Usage(input=9, output=7, flaw="no output tokens are counted beside an answer"), True)
    assert judge(Usage(input=9), delivered=0) == (Usage(input=9), False)


@given(counts, counts, st.integers(0, 1000))
def test_a_negative_count_is_flagged_and_estimated_and_never_below_what_was_delivered(
    prompt: int, completion: int, delivered: int
) -> None:
    reported = from_openai(b'{"prompt_tokens":%d,"completion_tokens":%d}' % (prompt, completion))
    assert reported is not None
    usage, estimated = judge(reported, delivered=delivered)
    if completion <= 0:
        assert usage.output == delivered and (usage.flaw is not None or delivered == 0 == completion)
        assert estimated or delivered == 0
    if prompt < 0:
        assert usage.input == 11 and estimated and usage.flaw is not None
    assert usage.input >= 0 <= usage.output


@pytest.mark.parametrize("most", [1, 10, 4096])
def test_more_output_than_the_cap_keeps_the_providers_figure_and_is_flagged(most: int) -> None:
    bound = most * SLACK_FACTOR + SLACK_TOKENS
    for usage in (Usage(input=9, output=bound), Usage(input=9, output=bound + 500, reasoning=500)):
        assert judge(usage, most=most) == (usage, False)
    usage, estimated = judge(Usage(input=9, output=bound + 1), most=most)
    assert (usage.output, estimated) == (bound + 1, False)
    assert usage.flaw == f"output tokens are {bound + 1}, more than the cap of {most}"
    assert judge(Usage(input=9, output=10**9), most=None)[0].flaw is None
