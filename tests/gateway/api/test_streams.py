"""Streams through the whole gateway, byte by byte."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from tests.gateway.api.conftest import CHAT, MESSAGES, PROVIDER_KEY, Gateway, Upstream, until

ASK = {"include_usage": True}


def chunks_of(body: bytes) -> list[Any]:
    return [
        json.loads(line.removeprefix(b"data:"))
        for line in body.splitlines()
        if line.startswith(b"data:") and b"[DONE]" not in line
    ]


def text_of(body: bytes) -> str:
    return "".join(c["choices"][0].get("delta", {}).get("content", "") for c in chunks_of(body) if c.get("choices"))


async def test_a_stream_is_passed_on_and_charged(gateway: Gateway, up: Upstream) -> None:
    answer, body = await gateway.stream("chunks=5;prompt=100;output=50")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-cache", "no")
    assert text_of(body) == "word0 word1 word2 word3 word4 "
    assert body.endswith(b"data: [DONE]\n\n") and body.count(b"[DONE]") == 1
    assert all(chunk["choices"] for chunk in chunks_of(body))
    assert (await up.book())[0]["body"]["stream_options"] == ASK
    row = await gateway.row(answer)
    assert (row["tokens"]["input"], row["tokens"]["output"], row["estimated"]) == (100, 50, False)
    assert row["ttft_ms"] is not None


async def test_rule_17_usage_is_given_if_and_only_if_it_was_asked_for(gateway: Gateway) -> None:
    _, body = await gateway.stream("prompt=0;output=1000000", stream_options=ASK)
    *_, last = chunks_of(body)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 1_000_000
    assert last["usage"]["cost"] == "0.42 CNY"
    assert sum(chunk.get("choices") == [] for chunk in chunks_of(body)) == 1
    _, body = await gateway.stream("prompt=0;output=1000000")
    assert b"completion_tokens" not in body


@pytest.mark.parametrize("where", ["final", "null", "finish", "every", "choice", "groq"])
@pytest.mark.parametrize("asked", [True, False])
async def test_rule_03_usage_is_found_wherever_it_stands(gateway: Gateway, where: str, asked: bool) -> None:
    script = f"usage={where};prompt=70;output=30"
    answer, body = await gateway.stream(script, **({"stream_options": ASK} if asked else {}))
    row = await gateway.row(answer)
    expected = (70, 30, False) if where != "null" else (row["tokens"]["input"], row["tokens"]["output"], True)
    assert (row["tokens"]["input"], row["tokens"]["output"], row["estimated"]) == expected
    assert sum(chunk.get("choices") == [] for chunk in chunks_of(body)) == (1 if asked else 0)
    assert body.endswith(b"data: [DONE]\n\n")
    if where in ("every", "finish") and not asked:
        assert b"prompt_tokens" not in body


@pytest.mark.parametrize(
    "script",
    ["split=1", "split=7", "newline=crlf", "newline=cr", "space=0", "comment=1", "newline=crlf;split=3", "done=0",
     "done=0;final_newline=0", "final_newline=0", "text=\u4f60\u597d;split=1", "line_bytes=1048576;chunks=1;split=65536"],
)  # fmt: skip
async def test_rule_18_any_form_of_a_stream_gives_the_same_answer(gateway: Gateway, script: str) -> None:
    answer, body = await gateway.stream(f"{script};output=11")
    assert body.count(b"[DONE]") == 1 and body.endswith(b"data: [DONE]\n\n")
    assert chunks_of(body)[-1]["choices"][0]["finish_reason"] == "stop"
    assert b"error" not in body
    row = await gateway.row(answer)
    assert (row["status"], row["tokens"]["output"]) == ("completed", 11)


async def test_two_choices_of_one_stream(gateway: Gateway) -> None:
    answer, body = await gateway.stream("done=0", n=2)
    assert sum(c["choices"][0]["finish_reason"] == "stop" for c in chunks_of(body)) == 2
    assert (await gateway.row(answer))["status"] == "completed"


async def test_a_flaw_in_usage_is_flagged_and_never_negative(gateway: Gateway) -> None:
    answer, _ = await gateway.stream("usage=bad")
    row = await gateway.row(answer)
    assert row["estimated"] and row["tokens"]["input"] > 5 and row["tokens"]["output"] == 5


@pytest.mark.parametrize(
    ("script", "reason"), [("cut=2", "cut"), ("error=2;gap_ms=30", "in_band_error"), ("stall=2", "timeout")]
)
async def test_rule_21_an_upstream_that_dies_mid_way_ends_in_band(gateway: Gateway, script: str, reason: str) -> None:
    answer, body = await gateway.stream(f"{script};quote={PROVIDER_KEY}", stream_options=ASK)
    assert answer.status_code == 200
    *content, last = chunks_of(body)
    assert len(content) == 2
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert b"[DONE]" not in body and PROVIDER_KEY.encode() not in body
    row = await gateway.row(answer)
    assert (row["status"], row["estimated"], row["error"]) == ("incomplete", True, reason)
    assert row["tokens"]["output"] >= 1


async def test_a_stream_that_ends_without_its_finish_is_no_clean_finish(gateway: Gateway) -> None:
    answer, body = await gateway.stream("finish=;done=0")
    assert b"[DONE]" in body or b"error" in body
    answer, body = await gateway.stream("empty=1")
    assert answer.status_code == 502


async def test_rule_22_an_answer_in_place_of_a_stream_is_streamed(gateway: Gateway) -> None:
    answer, body = await gateway.stream("mode=json;output=8", stream_options=ASK)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert text_of(body) == "scripted"
    assert chunks_of(body)[-1]["usage"]["completion_tokens"] == 8
    assert body.endswith(b"data: [DONE]\n\n")
    assert (await gateway.row(answer))["tokens"]["output"] == 8


async def test_the_outcome_is_journalled_before_done_goes_out(gateway: Gateway) -> None:
    body = {"model": "m", "messages": MESSAGES, "stream": True}
    async with gateway.client.stream("POST", CHAT, json=body) as answer:
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                assert gateway.services.journal.in_flight == 0


async def test_the_first_chunk_does_not_wait_for_the_second(gateway: Gateway) -> None:
    body = {"model": "m", "messages": MESSAGES, "stream": True, "user": "chunks=2;gap_ms=900"}
    loop = asyncio.get_running_loop()
    async with gateway.client.stream("POST", CHAT, json=body) as answer:
        began = loop.time()
        async for _ in answer.aiter_raw():
            break
        assert loop.time() - began < 0.5


async def test_rule_20_a_caller_that_leaves_a_stream_stops_the_provider_and_is_billed(
    gateway: Gateway, spare: Upstream
) -> None:
    """Told within a second: a busy machine has three tries. Of a provider whose silence has no limit here."""
    body = {"model": "far", "messages": MESSAGES, "stream": True, "user": "chunks=200;gap_ms=30"}
    told_s: list[float] = []
    while len(told_s) < 3 and min(told_s, default=1.0) >= 1.0:
        await spare.clear()
        async with gateway.client.stream("POST", CHAT, json=body) as answer:
            seen = 0
            async for line in answer.aiter_lines():
                seen += line.startswith("data:")
                if seen == 5:
                    break
            request_id = answer.headers["x-request-id"]
        left_s = time.monotonic()

        async def stopped() -> bool:
            return [entry["ended"] for entry in await spare.book()] == ["left"]

        await until(stopped, "the provider to be told")
        told_s.append(time.monotonic() - left_s)
        row = await gateway.row(request_id)
        assert (row["status"], row["estimated"]) == ("cancelled", True)
        assert 4 <= row["tokens"]["output"] <= 400
        assert row["tokens"]["input"] > 0 and row["settled"]["amount"] != "0"
        await gateway.settled()
    assert min(told_s) < 1.0


async def test_rule_21_a_gateway_that_stood_still_holds_it_against_no_provider(gateway: Gateway, up: Upstream) -> None:
    """The provider's limit is one second of silence; what it said meanwhile lies in the socket."""
    body = {"model": "m", "messages": MESSAGES, "stream": True, "user": "chunks=100;gap_ms=30"}
    async with gateway.client.stream("POST", CHAT, json=body) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        asyncio.get_running_loop().call_soon(time.sleep, 1.5)  # the whole loop, the gateway in it
        rest = [line async for line in lines]
    assert rest.count("data: [DONE]") == 1
    assert (await gateway.row(answer))["status"] == "completed"


async def test_rule_20_a_caller_that_leaves_a_plain_call_is_billed_too(gateway: Gateway, spare: Upstream) -> None:
    body = {"model": "far", "messages": MESSAGES, "user": "delay_ms=8000"}
    with pytest.raises(httpx.ReadTimeout):
        await gateway.client.post(CHAT, json=body, timeout=0.5)

    async def stopped() -> bool:
        return [entry["ended"] for entry in await spare.book()] == ["left"]

    await until(stopped, "the provider to be told")
    row = await gateway.only_row()
    assert (row["status"], row["estimated"]) == ("cancelled", True)
    assert row["tokens"]["input"] > 0
    await gateway.settled()


async def test_rule_20_an_engine_that_is_cancelled_tells_the_exact_usage(gateway: Gateway, motor: Upstream) -> None:
    script = "chunks=200;gap_ms=30;prompt=33;cancelled_output=6"
    body = {"model": "engine", "messages": MESSAGES, "stream": True, "user": script}
    async with gateway.client.stream("POST", CHAT, json=body) as answer:
        async for _ in answer.aiter_lines():
            break
        request_id = answer.headers["x-request-id"]
    row = await gateway.row(request_id)
    assert (row["status"], row["estimated"]) == ("cancelled", False)
    assert (row["tokens"]["input"], row["tokens"]["output"]) == (33, 6)
    (entry,) = await motor.book()
    assert (entry["ended"], entry["request_id"]) == ("cancelled", request_id)


async def test_a_parallel_slot_comes_back_whichever_way_a_stream_ends(gateway: Gateway) -> None:
    key = await gateway.admin("/keys", {"team_id": gateway.team_id, "name": "one", "limits": {"max_parallel": 1}})
    headers = {"authorization": f"Bearer {key['key']}"}
    for script in ("chunks=3", "cut=1", "error=1", "cut=0", "status=400", "empty=1"):
        answer = await gateway.chat(script, stream=True, headers={**headers, "x-metergate-no-retry": "1"})
        assert answer.status_code != 429, script


@pytest.mark.interpreted
async def test_rule_22_silence_is_filled_with_comments(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.api.caller.KEEP_ALIVE_S", 0.2)
    answer, body = await gateway.stream("first_delay_ms=900;chunks=2")
    assert body.startswith(b": keep-alive\n\n") and body.count(b": keep-alive\n\n") >= 2
    assert text_of(body) == "word0 word1 "
    assert answer.status_code == 200 and body.endswith(b"data: [DONE]\n\n")


async def test_twenty_thousand_chunks(gateway: Gateway) -> None:
    answer, body = await gateway.stream("chunks=20000;output=20000", model="far")
    assert body.count(b"data: ") == 20_002
    assert (await gateway.row(answer))["tokens"]["output"] == 20_000


@pytest.mark.interpreted
@pytest.mark.parametrize("way", ["answered", "streamed", "left"])
async def test_rule_12_a_request_that_cannot_be_rated_keeps_its_reservation_in_a_hard_budget(
    gateway: Gateway, up: Upstream, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Whatever the reason is, it was sent to a provider: its room is not free again before its row is there."""

    def fails(*_: object) -> None:
        raise ArithmeticError("a mistake of ours")

    budget = {"scope": "key", "scope_id": gateway.key_id, "amount": "0.0025", "currency": "CNY", "period": "total"}
    await gateway.admin("/budgets", budget)
    monkeypatch.setattr("gateway.api.account.rate_request", fails)
    await gateway.services.admission.seeding.stop()  # no round moves it on while we look
    if way == "left":
        with pytest.raises(httpx.ReadTimeout):
            await gateway.client.post(
                CHAT, json={"model": "m", "messages": MESSAGES, "user": "delay_ms=1500"}, timeout=0.3
            )
    else:
        assert (await gateway.chat(stream=way == "streamed")).status_code == 200
    await gateway.settled()
    unshipped = await gateway.services.admission.store.unshipped([], 10)
    (amounts,) = unshipped.settled.values()
    assert all(nano > 4096 * 420 for nano in amounts.values())
    assert (await gateway.chat()).status_code == 402
