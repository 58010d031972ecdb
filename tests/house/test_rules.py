"""The house rules catch what they were written for, and leave honest code alone."""

from __future__ import annotations

import pytest

from tests.house.rules import check_file, long_functions


def messages(path: str, source: str) -> list[str]:
    return [finding.message for finding in check_file(path, source)]


@pytest.mark.parametrize(
    "source",
    [
        "rate = 7.3",
        "def f(x: float) -> int: ...",
        "x = float('7.3')",
        "half = total / 2",
        "total /= 2",
        "micro = 10 ** -6",
        "from sqlalchemy import Numeric",
        "import sqlalchemy as sa\ncolumn = sa.Float()",
        "from datetime import datetime\nnow = datetime.utcnow()",
        "from datetime import datetime\nnow = datetime.now()",
        "from datetime import datetime\nt = datetime.fromtimestamp(0)",
        "from datetime import datetime\nt = datetime(2026, 1, 1)",
        "from math import floor",
    ],
)
def test_inexact_money_and_naive_time_are_refused_in_billing_only(source: str) -> None:
    assert len(messages("billing/example.py", source)) == 1
    assert messages("gateway/example.py", source) == []


@pytest.mark.parametrize(
    "source",
    [
        "rate_pico = 7_300_000_000_000",
        "half = total // 2",
        "file = folder / 'price_book.yaml'",
        "from math import gcd",
        "from datetime import datetime, UTC\nnow = datetime.now(UTC)\nt = datetime(2026, 1, 1, tzinfo=UTC)",
        "from datetime import datetime, UTC\nt = datetime.fromtimestamp(0, UTC)",
        "from sqlalchemy import BigInteger",
    ],
)
def test_exact_code_passes(source: str) -> None:
    assert messages("billing/example.py", source) == []


def test_a_path_of_one_machine_is_found_in_any_text_file() -> None:
    path = "/".join(["", "home", "someone", "project"])
    assert messages("docs/setup.md", f"cd {path}") == [
        "a path of one machine; derive it from the repository or a setting"
    ]
    assert messages("docs/setup.md", "mkdir -p /var/lib/metergate") == []


def test_unfinished_work_is_found_in_the_product_only() -> None:
    source = "raise NotImplemented" + "Error"
    assert len(messages("gateway/example.py", source)) == 1
    assert messages("tests/example.py", source) == []


def test_a_function_is_measured_from_def_to_its_last_line() -> None:
    source = "@decorated\ndef f():\n    a = 1\n    b = 2\n    return a + b\n"
    assert [(length.lines, length.where) for length in long_functions("gateway/x.py", source, 3)] == [
        (4, "gateway/x.py:2 f")
    ]
    assert list(long_functions("gateway/x.py", source, 4)) == []
