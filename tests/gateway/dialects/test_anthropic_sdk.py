"""The official Anthropic SDK, unchanged, in front of a provider of each kind."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.gateway.api.conftest import PROVIDER_KEY
from tests.gateway.dialects.conftest import MODELS, World

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOLS: list[Any] = [
    {"name": f"tool_{i}", "description": "A place", "input_schema": {"type": "object", "properties": {"place": {}}}}
    for i in range(3)
]
PIXEL = "iVBORw0KGgo="


def ask(script: str = "", text: str = "Hello") -> list[Any]:
    return [{"role": "user", "content": f"{text} [[{script}]]"}]


def counted(script: str) -> str:
    """The same counts in each provider's own words: 100 read from a cache, 40 not, 30 out."""
    return f"prompt=140;input=40;cached=100;output=30;{script}"


@pytest.mark.parametrize("model", MODELS)
async def test_a_message_is_answered_counted_and_charged(world: World, model: str) -> None:
    raw = await world.anthropic.messages.with_raw_response.create(
        model=model, max_tokens=100, system="Be brief.", messages=ask(counted("text=Hi"))
    )
    message = await raw.parse()
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "end_turn")
    assert [(block.type, getattr(block, "text", None)) for block in message.content] == [("text", "Hi")]
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (40, 100, 30)
    # 40 x 0.28 + 100 x 0.028 + 30 x 0.42 per million, at 1:1
    assert raw.headers["x-metergate-cost"] == "0.0000266 CNY"
    row = await world.row(raw.headers)
    assert (row["surface"], row["status"], row["estimated"]) == ("messages", "completed", False)
    assert (row["tokens"]["input"], row["tokens"]["cache_read"], row["tokens"]["output"]) == (40, 100, 30)


@pytest.mark.parametrize("model", MODELS)
async def test_a_stream_through_the_helpers_says_the_same(world: World, model: str) -> None:
    async with world.anthropic.messages.stream(
        model=model, max_tokens=100, messages=ask(counted("text=w;chunks=3"))
    ) as stream:
        pieces = [piece async for piece in stream.text_stream]
        message = await stream.get_final_message()
        headers = stream.response.headers
    assert "".join(pieces) == "www" if model == "on-openai" else pieces == ["w0 ", "w1 ", "w2 "]
    assert message.stop_reason == "end_turn"
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (40, 100, 30)
    row = await world.row(headers)
    assert (row["status"], row["tokens"]["input"], row["tokens"]["output"]) == ("completed", 40, 30)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("model", MODELS)
async def test_parallel_tools_and_thinking_come_back_and_the_loop_closes(
    world: World, model: str, streamed: bool
) -> None:
    first = ask("tools=3;thought=hm;finish=tool_calls;text=Let me see")
    if model == "on-google":
        first = ask("tools=3;thought=hm;text=Let me see")
    asked: dict[str, Any] = {"model": model, "max_tokens": 4096, "tools": TOOLS, "messages": first}
    if streamed:
        async with world.anthropic.messages.stream(**asked) as stream:
            message: Any = await stream.get_final_message()
    else:
        message = await world.anthropic.messages.create(**asked)
    kinds = [block.type for block in message.content]
    assert kinds[0] == "thinking" and message.content[0].thinking == "hm"
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in calls] == [(f"tool_{i}", {"place": str(i)}) for i in range(3)]
    assert len({call.id for call in calls}) == 3
    assert message.stop_reason == "tool_use"
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": call.id, "content": f"result {i}"} for i, call in enumerate(calls)
    ]
    turn = [{"type": "text", "text": "And now? [[text=Done]]"}]
    conversation = [
        first[0],
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [*results, *turn]},
    ]
    conversation[0] = {"role": "user", "content": "Where?"}
    final = await world.anthropic.messages.create(model=model, max_tokens=10, tools=TOOLS, messages=conversation)
    assert final.content[-1].type == "text" and final.content[-1].text == "Done"
    body = (await world.seen(model))["body"]
    if model == "on-openai":
        roles = [each["role"] for each in body["messages"]]
        assert roles == ["user", "assistant", "tool", "tool", "tool", "user"]
        assert [call["id"] for call in body["messages"][1]["tool_calls"]] == [call.id for call in calls]
        assert body["messages"][3] == {"role": "tool", "tool_call_id": calls[1].id, "content": "result 1"}
    elif model == "on-google":
        parts = body["contents"][2]["parts"]
        assert parts[1] == {"functionResponse": {"name": "tool_1", "response": {"result": "result 1"}}}
        assert [part["functionCall"]["name"] for part in body["contents"][1]["parts"] if "functionCall" in part] == [
            "tool_0",
            "tool_1",
            "tool_2",
        ]
    else:
        assert body["messages"][1]["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "sig=="}


@pytest.mark.parametrize(("model", "expected"), [("on-claude", 21), ("on-google", 21), ("on-motor", 17)])
async def test_tokens_are_counted_by_the_provider_and_cost_nothing(world: World, model: str, expected: int) -> None:
    raw = await world.anthropic.messages.with_raw_response.count_tokens(
        model=model, system="Be brief.", messages=ask("input=21;prompt=21")
    )
    assert (await raw.parse()).input_tokens == expected
    row = await world.row(raw.headers)
    assert (row["surface"], row["status"]) == ("count_tokens", "completed")
    assert row["tokens"].get("input", 0) == 0 and row["settled"] == {"amount": "0", "currency": "CNY"}


async def test_where_a_provider_counts_nothing_the_estimate_stands_and_nothing_is_sent(world: World) -> None:
    before = len(await world.upstreams["openai"].book())
    for words, least in ((3, 1), (4000, 4000)):
        raw = await world.anthropic.messages.with_raw_response.count_tokens(
            model="on-openai", messages=ask("word " * words)
        )
        assert least <= (await raw.parse()).input_tokens <= 2 * words + 40, "upward, within the estimate's error"
        row = await world.row(raw.headers)
        assert (row["surface"], row["status"], row["settled"]["amount"]) == ("count_tokens", "completed", "0")
    assert len(await world.upstreams["openai"].book()) == before


async def test_the_same_dialect_passes_untouched_but_for_model_and_cost(world: World) -> None:
    fields: dict[str, Any] = {
        "max_tokens": 77,
        "system": [{"type": "text", "text": "Rules", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "[[text=ok;ping=1]]", "x_new": [1.50]}]}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "u"},
        "x_unknown": {"a": None},
    }
    answer = await world.gateway.client.post("/v1/messages", json={"model": "on-claude", **fields, "stream": True})
    entry = await world.seen("on-claude")
    assert entry["body"] == {"model": "up-m", **fields, "stream": True}
    assert entry["path"] == "/v1/messages"
    assert entry["headers"]["x-api-key"] == PROVIDER_KEY and entry["headers"]["anthropic-version"] == "2023-06-01"
    assert "authorization" not in entry["headers"]
    assert b'event: ping\ndata: {"type":"ping"}\n\n' in answer.content
    assert answer.content.count(b"event: message_stop") == 1 and b"[DONE]" not in answer.content
    assert b'"cost":"' in answer.content


async def test_rule_02_a_placeholder_in_message_start_is_no_count_and_null_takes_nothing_away(world: World) -> None:
    async with world.anthropic.messages.stream(
        model="on-claude",
        max_tokens=10,
        messages=ask("input=50;cached=7;write_5m=3;write_1h=4;output=600;placeholder=1"),
    ) as stream:
        await stream.until_done()
        headers = stream.response.headers
    tokens = (await world.row(headers))["tokens"]
    assert (tokens["input"], tokens["cache_read"], tokens["output"]) == (50, 7, 600)
    assert (tokens["cache_write_5m"], tokens["cache_write_1h"]) == (3, 4)


@pytest.mark.parametrize("model", MODELS)
async def test_pictures_and_documents_reach_the_provider(world: World, model: str) -> None:
    source: Any = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    paper: Any = {"type": "base64", "media_type": "application/pdf", "data": PIXEL}
    content: Any = [
        {"type": "image", "source": source},
        {"type": "document", "source": paper, "title": "paper.pdf"},
        {"type": "text", "text": "What is this?"},
    ]
    await world.anthropic.messages.create(
        model=model,
        max_tokens=9,
        stop_sequences=["END"],
        messages=[{"role": "user", "content": content}],
        extra_body={"top_k": 5},
    )
    body = (await world.seen(model))["body"]
    if model == "on-openai":
        first, second, _ = body["messages"][0]["content"]
        assert first == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
        assert second["file"] == {"filename": "paper.pdf", "file_data": f"data:application/pdf;base64,{PIXEL}"}
        assert (body["stop"], body["max_tokens"], body["top_k"]) == (["END"], 9, 5)
    elif model == "on-google":
        parts = body["contents"][0]["parts"]
        assert parts[0] == {"inlineData": {"mimeType": "image/png", "data": PIXEL}}
        assert parts[1] == {"inlineData": {"mimeType": "application/pdf", "data": PIXEL}}
        assert body["generationConfig"] == {"maxOutputTokens": 9, "topK": 5, "stopSequences": ["END"]}
    else:
        assert body["messages"][0]["content"] == content


@pytest.mark.parametrize(
    ("model", "script", "reason"),
    [
        ("on-openai", "finish=length", "max_tokens"),
        ("on-openai", "finish=content_filter", "refusal"),
        ("on-google", "finish=MAX_TOKENS", "max_tokens"),
        ("on-google", "finish=SAFETY", "refusal"),
        ("on-google", "block=SAFETY", "refusal"),
        ("on-claude", "stop=refusal", "refusal"),
        ("on-claude", "stop=stop_sequence;sequence=END", "stop_sequence"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_stop_reasons(world: World, model: str, script: str, reason: str, streamed: bool) -> None:
    if streamed:
        async with world.anthropic.messages.stream(model=model, max_tokens=9, messages=ask(script)) as stream:
            message: Any = await stream.get_final_message()
    else:
        message = await world.anthropic.messages.create(model=model, max_tokens=9, messages=ask(script))
    assert message.stop_reason == reason


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("script", "error", "kind"),
    [
        ("status=400", anthropic.BadRequestError, "invalid_request_error"),
        ("status=401", anthropic.InternalServerError, "api_error"),
        ("status=429;retry_after=60", anthropic.RateLimitError, "rate_limit_error"),
        ("status=503;retry_after=60", anthropic.InternalServerError, "overloaded_error"),
    ],
)
async def test_errors_have_anthropics_shape(world: World, model: str, script: str, error: Any, kind: str) -> None:
    with pytest.raises(error) as raised:
        await world.anthropic.messages.create(
            model=model,
            max_tokens=9,
            messages=ask(f"{script};quote={PROVIDER_KEY}"),
            extra_headers={"x-metergate-no-retry": "1"},
        )
    body: Any = raised.value.body
    assert set(body) == {"type", "error"} and set(body["error"]) == {"type", "message"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert PROVIDER_KEY not in str(body) and PROVIDER_KEY[-8:] not in str(body)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("script", ["error=3;chunks=6", "cut=3;chunks=6", "stall=3;chunks=6"])
async def test_rule_21_a_stream_that_breaks_ends_in_an_error_event(world: World, model: str, script: str) -> None:
    pieces: list[str] = []

    async def listen(stream: Any) -> None:
        async for piece in stream.text_stream:
            pieces.append(piece)

    asked: Any = ask(f"{script};gap_ms=1")
    async with world.anthropic.messages.stream(model=model, max_tokens=9, messages=asked) as stream:
        headers = stream.response.headers
        with pytest.raises(anthropic.APIStatusError) as raised:
            await listen(stream)
    body: Any = raised.value.body
    assert body["type"] == "error" and pieces
    row = await world.row(headers)
    assert row["status"] == "incomplete" and row["tokens"]["output"] > 0 and row["tokens"]["input"] > 0
    assert row["estimated"] or model == "on-google"  # Gemini counts with every event


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"messages": []}, "at least one message"),
        ({"max_tokens": 0}, "at least 1"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "hologram"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}, "source"),
        ({"container": "c_1"}, "container"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
    ],
)
async def test_what_cannot_be_mapped_is_a_clear_400(world: World, fields: dict[str, Any], part: str) -> None:
    answer = await world.gateway.client.post(
        "/v1/messages", json={"model": "on-openai", "max_tokens": 5, "messages": ask(), **fields}
    )
    assert answer.status_code == 400
    assert answer.json()["type"] == "error" and part in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"container": "c_1"},
        {"mcp_servers": [{"url": "http://x"}]},
        {"speed": "fast"},
        {"inference_geo": "us"},
        {"service_tier": "priority"},
        {"tools": [{"type": "code_execution_20250522", "name": "x"}]},
    ],
)
async def test_rule_32d_what_costs_or_keeps_state_is_refused_to_anthropic_too(
    world: World, fields: dict[str, Any]
) -> None:
    answer = await world.gateway.client.post(
        "/v1/messages", json={"model": "on-claude", "max_tokens": 5, "messages": ask(), **fields}
    )
    assert answer.status_code == 400
    assert next(iter(fields)) in answer.json()["error"]["message"] or "run at the provider" in answer.text
