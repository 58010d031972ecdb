"""Every refusal of admission is explained where people look."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.admission import answers
from gateway.admission.claims import Counters, Scope
from gateway.admission.limits import Limits

PAGE = (Path(__file__).parents[3] / "docs" / "troubleshooting.md").read_text().partition("## Limits and budgets")[2]


@pytest.mark.interpreted
def test_every_code_of_a_refusal_is_in_the_troubleshooting_page() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \| \d{3} \|", PAGE, re.MULTILINE))
    raised = set(re.findall(r'code="(\w+)"', Path(answers.__file__).read_text()))
    assert raised and listed == raised | {"rate_limit_exceeded", "budget_exceeded"}


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (Limits(), ()),
        (Limits(max_parallel=3), ()),
        (Limits(requests_per_minute=60), ("requests",)),
        (Limits(tokens_per_minute=1000), ("tokens",)),
        (Limits(requests_per_minute=60, tokens_per_minute=1000), ("requests", "tokens")),
    ],
)
def test_a_caller_hears_of_the_limits_that_it_has_and_of_no_others(limits: Limits, named: tuple[str, ...]) -> None:
    headers = answers.limit_headers([Scope("key", limits)], [Counters(requests_used=1, tokens_used=10)])
    assert list(headers) == [f"x-ratelimit-{what}-{of}" for of in named for what in ("limit", "remaining", "reset")]
    assert answers.limit_headers([], []) == {}
