"""The official OpenAI SDK, unchanged, in front of a provider of each kind: chat, responses, embeddings."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.gateway.api.conftest import PROVIDER_KEY
from tests.gateway.dialects.conftest import MODELS, World

pytestmark = pytest.mark.asyncio(loop_scope="module")

NATIVE = ("on-claude", "on-google")
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOLS: list[Any] = [{"type": "function", "function": {"name": f"tool_{i}", "parameters": PARAMETERS}} for i in range(3)]
FLAT: list[Any] = [
    {"type": "function", "name": f"tool_{i}", "parameters": PARAMETERS, "strict": False} for i in range(3)
]
PIXEL = "data:image/png;base64,iVBORw0KGgo="
COUNTS = "prompt=140;input=40;cached=100;output=30"


def ask(script: str = "", text: str = "Hello") -> list[Any]:
    return [{"role": "user", "content": f"{text} [[{script}]]"}]


class Place(BaseModel):
    place: str


@pytest.mark.parametrize("model", NATIVE)
async def test_a_chat_is_answered_counted_and_charged(world: World, model: str) -> None:
    raw = await world.openai.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "system", "content": "Be brief."}, *ask(f"{COUNTS};text=Hi")],
        max_completion_tokens=50,
        temperature=0.5,
        stop="END",
        user="ann",
    )
    answer = raw.parse()
    assert (answer.object, answer.choices[0].finish_reason) == ("chat.completion", "stop")
    assert answer.choices[0].message.content == "Hi"
    usage = answer.usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens) == (140, 100, 30)
    assert raw.headers["x-metergate-cost"] == "0.0000266 CNY"
    row = await world.row(raw.headers)
    assert (row["tokens"]["input"], row["tokens"]["cache_read"], row["tokens"]["output"]) == (40, 100, 30)
    entry = await world.seen(model)
    body = entry["body"]
    if model == "on-claude":
        assert (entry["path"], entry["headers"]["x-api-key"]) == ("/v1/messages", PROVIDER_KEY)
        assert body["system"] == [{"type": "text", "text": "Be brief."}]
        assert (body["max_tokens"], body["temperature"], body["stop_sequences"]) == (50, 0.5, ["END"])
        assert body["metadata"] == {"user_id": "ann"}
    else:
        assert entry["path"] == "/v1beta/models/up-m:generateContent"
        assert entry["headers"]["x-goog-api-key"] == PROVIDER_KEY
        assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
        assert body["generationConfig"] == {"maxOutputTokens": 50, "temperature": 0.5, "stopSequences": ["END"]}


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("model", NATIVE)
async def test_rule_17_a_stream_has_one_usage_chunk_if_and_only_if_it_was_asked_for(
    world: World, model: str, asked: bool
) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if asked else {}
    stream = await world.openai.chat.completions.create(
        model=model, messages=ask(f"{COUNTS};text=w;thought=hm;thoughts=2;early=1"), stream=True, **options
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "w0 w1 w2 "
    first: Any = chunks[0].choices[0].delta
    assert (first.role, first.reasoning_content) == ("assistant", "hm")
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason] == [
        "stop"
    ]
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert len(usages) == (1 if asked else 0)
    if asked:
        output = 30 if model == "on-claude" else 32
        assert chunks[-1].choices == [] and usages[0].completion_tokens == output
        cost: Any = usages[0]
        assert cost.cost.endswith(" CNY")
        details = usages[0].completion_tokens_details
        assert details is not None and details.reasoning_tokens == 2
    row = await world.row(stream.response.headers)
    assert (row["tokens"]["input"], row["tokens"]["cache_read"]) == (40, 100)


@pytest.mark.parametrize("model", NATIVE)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_loop_with_parallel_calls_closes(world: World, model: str, streamed: bool) -> None:
    asked: dict[str, Any] = {"model": model, "tools": TOOLS, "messages": ask("tools=3;thought=hm")}
    if streamed:
        async with world.openai.chat.completions.stream(**asked) as stream:
            await stream.until_done()
            answer: Any = await stream.get_final_completion()
    else:
        answer = await world.openai.chat.completions.create(**asked)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = message.tool_calls
    assert [call.function.name for call in calls] == ["tool_0", "tool_1", "tool_2"]
    assert [Place.model_validate_json(call.function.arguments).place for call in calls] == ["0", "1", "2"]
    results: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": f'{{"n": {i}}}'} for i, call in enumerate(calls)
    ]
    said = message.model_dump(exclude_none=True, exclude={"parsed"})
    if streamed:
        for call in said["tool_calls"]:
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
    await world.openai.chat.completions.create(
        model=model, tools=TOOLS, tool_choice="required", messages=[*ask(text="Where?"), said, *results, *ask()]
    )
    body = (await world.seen(model))["body"]
    if model == "on-claude":
        assistant, user = body["messages"][1], body["messages"][2]
        assert [block["type"] for block in assistant["content"]] == [
            "thinking",
            "text",
            "tool_use",
            "tool_use",
            "tool_use",
        ]
        assert assistant["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "sig=="}
        assert user["content"][1] == {"type": "tool_result", "tool_use_id": "toolu_1", "content": '{"n": 1}'}
        assert body["tool_choice"] == {"type": "any"}
        assert body["tools"][0] == {"name": "tool_0", "input_schema": PARAMETERS}
    else:
        model_turn, user = body["contents"][1], body["contents"][2]
        assert model_turn["parts"][-3]["thoughtSignature"] == "c2ln"
        assert user["parts"][1] == {"functionResponse": {"name": "tool_1", "response": {"n": 1}}}
        assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}
        assert body["tools"][0]["functionDeclarations"][0] == {"name": "tool_0", "parametersJsonSchema": PARAMETERS}


@pytest.mark.parametrize("model", MODELS)
async def test_a_schema_reaches_the_provider(world: World, model: str) -> None:
    schema: Any = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "Place", "schema": schema, "strict": True}}
    await world.openai.chat.completions.create(model=model, messages=ask(), response_format=wanted)
    body = (await world.seen(model))["body"]
    if model == "on-claude":
        assert body["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
    elif model == "on-google":
        assert body["generationConfig"] == {"responseMimeType": "application/json", "responseJsonSchema": schema}
    else:
        assert body["response_format"] == wanted


@pytest.mark.parametrize("model", NATIVE)
async def test_pictures_cache_marks_and_effort_are_mapped(world: World, model: str) -> None:
    parts: Any = [
        {"type": "text", "text": "Long rules", "cache_control": {"type": "ephemeral"}},
        {"type": "image_url", "image_url": {"url": PIXEL}},
    ]
    await world.openai.chat.completions.create(
        model=model, messages=[{"role": "user", "content": parts}], reasoning_effort="low", max_tokens=3000
    )
    body = (await world.seen(model))["body"]
    if model == "on-claude":
        text, image = body["messages"][0]["content"]
        assert text["cache_control"] == {"type": "ephemeral"}
        assert image["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
        assert body["thinking"] == {"type": "enabled", "budget_tokens": 1024}
    else:
        assert body["contents"][0]["parts"][1] == {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}
        assert body["generationConfig"]["thinkingConfig"] == {"thinkingBudget": 1024, "includeThoughts": True}


@pytest.mark.parametrize(
    ("model", "fields", "param"),
    [
        ("on-claude", {"n": 2}, "n"),
        ("on-claude", {"logprobs": True}, "logprobs"),
        ("on-claude", {"temperature": 1.5}, "temperature"),
        ("on-claude", {"seed": 7}, "seed"),
        ("on-claude", {"response_format": {"type": "json_object"}}, "response_format"),
        ("on-claude", {"x_new": 1}, "x_new"),
        ("on-google", {"logit_bias": {"1": 2}}, "logit_bias"),
        ("on-google", {"logprobs": True}, "logprobs"),
        ("on-google", {"service_tier": "priority"}, "service_tier"),
        ("on-claude", {"service_tier": "flex"}, "service_tier"),
        ("on-claude", {"tools": [{"type": "web_search"}]}, "tools"),
        ("on-google", {"web_search_options": {"a": 1}}, "web_search_options"),
        ("on-google", {"parallel_tool_calls": False, "tools": TOOLS}, "parallel_tool_calls"),
        ("on-google", {"messages": [{"role": "tool", "tool_call_id": "x", "content": "y"}]}, "messages[0].tool_call_id"),
        ("on-claude", {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0].content[0].type"),
        ("on-claude", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ],
)  # fmt: skip
async def test_what_cannot_be_mapped_is_a_400_that_names_it(
    world: World, model: str, fields: dict[str, Any], param: str
) -> None:
    body = {"model": model, "messages": ask(), **fields}
    answer = await world.gateway.client.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert set(error) == {"message", "type", "param", "code"}


async def test_where_one_provider_cannot_be_told_another_one_is_asked(world: World) -> None:
    raw = await world.openai.chat.completions.with_raw_response.create(
        model="claude-then-openai", messages=ask(), seed=7, n=2
    )
    assert (raw.headers["x-metergate-provider"], raw.headers["x-metergate-attempts"]) == ("openai", "1")
    assert len(raw.parse().choices) == 2


@pytest.mark.parametrize("model", MODELS)
async def test_a_completion_of_plain_text_goes_to_openais_kind_alone(world: World, model: str) -> None:
    if model == "on-openai":
        answer = await world.openai.completions.create(model=model, prompt="Hello")
        assert answer.choices[0].text == "scripted"
        return
    with pytest.raises(openai.BadRequestError) as refused:
        await world.openai.completions.create(model=model, prompt="Hello")
    assert refused.value.code == "unsupported_endpoint"


@pytest.mark.parametrize("form", ["base64", "float"])
@pytest.mark.parametrize("model", MODELS)
async def test_embeddings(world: World, model: str, form: Any) -> None:
    if model == "on-claude":
        with pytest.raises(openai.BadRequestError) as refused:
            await world.openai.embeddings.create(model=model, input=["a", "b"], encoding_format=form)
        assert refused.value.code == "unsupported_endpoint"
        return
    raw = await world.openai.embeddings.with_raw_response.create(model=model, input=["a", "b"], encoding_format=form)
    data = raw.parse().data
    values: Any = [each.embedding for each in data]
    assert values == ([[0.5, -0.25]] * 2 if form == "float" else ["AAAAPwAAgL4="] * 2)
    row = await world.row(raw.headers)
    assert (row["surface"], row["status"], row["tokens"].get("output", 0)) == ("embeddings", "completed", 0)
    assert row["tokens"]["input"] == 8 if model == "on-openai" else row["estimated"]


@pytest.mark.parametrize("model", MODELS)
async def test_a_response_is_answered_counted_and_charged(world: World, model: str) -> None:
    raw = await world.openai.responses.with_raw_response.create(
        model=model,
        instructions="Be brief.",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": f"Hi [[{COUNTS};text=Yes;thought=hm]]"},
                                         {"type": "input_image", "image_url": PIXEL, "detail": "auto"}]},
        ],
        max_output_tokens=77,
        store=True,
    )  # fmt: skip
    response = raw.parse()
    assert (response.object, response.status, response.output_text) == ("response", "completed", "Yes")
    assert [item.type for item in response.output] == ["reasoning", "message"]
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens) == (140, 100, 30)
    assert (response.instructions, response.max_output_tokens) == ("Be brief.", 77)
    assert response.to_dict()["store"] is False
    assert raw.headers["x-metergate-cost"] == "0.0000266 CNY"
    row = await world.row(raw.headers)
    assert (row["surface"], row["tokens"]["input"], row["tokens"]["cache_read"]) == ("responses", 40, 100)
    body = (await world.seen(model))["body"]
    if model == "on-openai":
        assert (body["max_tokens"], body["messages"][0]) == (77, {"role": "system", "content": "Be brief."})
        assert body["messages"][1]["content"][1]["image_url"]["url"] == PIXEL
        assert "store" not in body and "instructions" not in body


@pytest.mark.parametrize("model", MODELS)
async def test_a_response_through_the_streaming_helper_tells_every_event(world: World, model: str) -> None:
    finish = "" if model == "on-google" else ";finish=tool_calls"
    kinds: list[str] = []
    numbers: list[int] = []
    async with world.openai.responses.stream(
        model=model, input=f"Hi [[{COUNTS};thought=hm;tools=2{finish}]]", tools=FLAT
    ) as stream:
        async for event in stream:
            kinds.append(event.type)
            numbers.append(event.sequence_number)
        response: Any = await stream.get_final_response()
        headers = stream._response.headers
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert numbers == list(range(len(numbers)))
    assert {"response.reasoning_text.delta", "response.output_text.delta", "response.output_text.done"} <= set(kinds)
    assert kinds.count("response.function_call_arguments.done") == 2
    calls = [item for item in response.output if item.type == "function_call"]
    assert [(call.name, Place.model_validate_json(call.arguments).place) for call in calls] == [
        ("tool_0", "0"),
        ("tool_1", "1"),
    ]
    assert response.output_text and response.usage.output_tokens == 30
    assert response.usage.cost.endswith(" CNY")
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls
    ]
    said = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
    again = await world.openai.responses.create(model=model, input=[*ask(), *said, *outputs], tools=FLAT)
    assert again.output_text == "scripted"
    row = await world.row(headers)
    assert (row["status"], row["tokens"]["input"], row["tokens"]["output"]) == ("completed", 40, 30)
    body = (await world.seen(model))["body"]
    if model == "on-openai":
        roles = [message["role"] for message in body["messages"]]
        assert roles == ["user", "assistant", "tool", "tool"]
        assert len(body["messages"][1]["tool_calls"]) == 2


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("script", ["error=4;chunks=6", "cut=4;chunks=6"])
async def test_rule_21_a_response_that_breaks_ends_in_an_error_event(world: World, model: str, script: str) -> None:
    stream = await world.openai.responses.create(model=model, input=f"[[{script};gap_ms=1]]", stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "error" and "provider" in events[-1].message
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "response.completed" not in {event.type for event in events}
    assert (await world.row(stream.response.headers))["status"] == "incomplete"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"truncation": "auto"}, "truncation"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
async def test_what_a_response_cannot_have_is_a_400_that_names_it(
    world: World, fields: dict[str, Any], param: str
) -> None:
    answer = await world.gateway.client.post("/v1/responses", json={"model": "on-openai", "input": "Hi", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize(("script", "reason"), [("finish=length;stop=max_tokens", "max_output_tokens")])
@pytest.mark.parametrize("model", ["on-openai", "on-claude"])
async def test_a_response_that_was_cut_short_says_so(world: World, model: str, script: str, reason: str) -> None:
    response = await world.openai.responses.create(model=model, input=f"[[{script}]]")
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == reason
