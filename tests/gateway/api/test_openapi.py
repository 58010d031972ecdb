"""The served OpenAPI document, asked of every operation that it lists: whatever is sent, never a 500."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.gateway.api.conftest import ADMIN_KEY, Gateway

EXAMPLES = 4
HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}
QUIET = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def asking(operation: Any, base_url: str, answers: list[tuple[str, int]]) -> Callable[[], None]:
    """Sends what the document allows for this operation, and notes how it is answered."""

    @QUIET
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        answer = case.call(base_url=base_url, headers=HEADERS, timeout=20)
        answers.append((operation.label, answer.status_code))
        assert answer.status_code < 500, f"{operation.label}: {answer.status_code} {answer.text[:300]}"

    return ask


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # the gateway beside it does, not the strategies
async def test_whatever_the_document_allows_there_is_no_500(gateway: Gateway) -> None:
    document = (await gateway.operator.get("/schema/openapi.json")).json()
    schema = schemathesis.openapi.from_dict(document)
    operations: list[Any] = [found.ok() for found in cast(Iterator[Any], schema.get_all_operations())]
    listed = sum(
        len(set(methods) & {"get", "post", "put", "patch", "delete"}) for methods in document["paths"].values()
    )
    assert len(operations) == listed > 40
    answers: list[tuple[str, int]] = []
    base_url = str(gateway.operator.base_url).rstrip("/")
    for operation in operations:
        await asyncio.to_thread(asking(operation, base_url, answers))
    assert {label for label, _ in answers} == {operation.label for operation in operations}
    good = sum(status < 300 for _, status in answers)
    assert good > len(operations) / 4, "most of what was sent must be understood, or nothing was tried"


async def test_a_number_beyond_64_bits_in_any_path_is_no_500(gateway: Gateway) -> None:
    document = (await gateway.operator.get("/schema/openapi.json")).json()
    tried = 0
    for path, methods in document["paths"].items():
        for method in set(methods) & {"get", "post", "patch", "delete"}:
            if "_id}" in path or "{version}" in path:
                named = re.sub(r"\{[^}]*\}", str(2**70), path)
                answer = await gateway.operator.request(method, named, json={} if method != "get" else None)
                assert 400 <= answer.status_code < 500, f"{method} {named}: {answer.text}"
                tried += 1
    assert tried > 15
