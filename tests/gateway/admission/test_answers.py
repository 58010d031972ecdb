"""Every refusal of admission is explained where people look."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.admission import answers

PAGE = (Path(__file__).parents[3] / "docs" / "troubleshooting.md").read_text().partition("## Limits and budgets")[2]


@pytest.mark.interpreted
def test_every_code_of_a_refusal_is_in_the_troubleshooting_page() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \| \d{3} \|", PAGE, re.MULTILINE))
    raised = set(re.findall(r'code="(\w+)"', Path(answers.__file__).read_text()))
    assert raised and listed == raised | {"rate_limit_exceeded", "budget_exceeded"}
