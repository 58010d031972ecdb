"""What is billed where a provider's count is missing, impossible or hard to believe, through the whole door."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.tokens import of_text
from tests.gateway.api.conftest import MESSAGES, Gateway

PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Foxes"},
    "/v1/messages": {"messages": [{"role": "user", "content": "[[{script}]]"}], "max_tokens": 50},
    "/v1/responses": {"input": "[[{script}]]"},
}


async def ask(gateway: Gateway, path: str, script: str, streamed: bool, **more: Any) -> httpx.Response:
    body: dict[str, Any] = {"model": "m", "stream": streamed, **PATHS[path], **more}
    if path == "/v1/messages":
        body["messages"] = [{"role": "user", "content": f"[[{script}]]"}]
    elif path == "/v1/responses":
        body["input"] = f"[[{script}]]"
    else:
        body["user"] = script
    answer = await gateway.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("usage", ["usage=none", "output=-5", "output=0"])
async def test_the_same_answer_is_the_same_estimate_in_one_piece_and_as_a_stream(
    gateway: Gateway, path: str, usage: str
) -> None:
    text = "supercalifragilistic"
    rows = []
    for streamed in (False, True):
        answer = await ask(gateway, path, f"text={text};chunks=1;{usage}", streamed)
        assert text in answer.text
        rows.append(await gateway.row(answer))
    for row in rows:
        assert (row["tokens"]["output"], row["estimated"]) == (of_text(len(text)), True)


@pytest.mark.parametrize("streamed", [False, True])
async def test_output_far_above_the_cap_is_billed_as_reported_flagged_and_counted(
    gateway: Gateway, streamed: bool
) -> None:
    believed = await ask(gateway, "/v1/chat/completions", "output=50", streamed, max_tokens=5)
    doubted = await ask(gateway, "/v1/chat/completions", "output=500000", streamed, max_tokens=5)
    row = await gateway.row(believed)
    assert (row["tokens"]["output"], row["estimated"]) == (50, False)
    row = await gateway.row(doubted)
    assert (row["tokens"]["output"], row["estimated"]) == (500_000, True)
    assert 'metergate_flawed_usage_total{provider="up"} 1.0' in gateway.services.metrics.render().decode()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_total_beside_its_parts_bills_the_parts_and_is_flagged(gateway: Gateway, streamed: bool) -> None:
    answer = await ask(gateway, "/v1/chat/completions", "prompt=9;output=5;beside=1000000", streamed)
    row = await gateway.row(answer)
    assert (row["tokens"]["input"], row["tokens"]["output"], row["estimated"]) == (9, 5, True)
