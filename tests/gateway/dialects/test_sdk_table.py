"""The official clients, unchanged, sync and async: one row a helper of theirs, one column a kind of provider behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.gateway.dialects.conftest import World

pytestmark = pytest.mark.asyncio(loop_scope="module")

COLUMNS = ("on-openai", "on-motor", "on-claude", "on-google")
HELLO: list[Any] = [{"role": "user", "content": "Hello [[text=Hi;chunks=1]]"}]
EMPTY = "Fill it [[text={};chunks=1]]"
"""What a provider answers to it is JSON without any field."""
FUNCTION: Any = {
    "type": "function",
    "function": {"name": "tool_0", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}},
}
TOOL: Any = {"name": "tool_0", "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}}}


class Nothing(BaseModel):
    """An object without fields, which every provider can promise."""


def sync_openai(world: World) -> openai.OpenAI:
    return openai.OpenAI(base_url=world.openai.base_url, api_key=world.openai.api_key, max_retries=0)


def sync_anthropic(world: World) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=str(world.anthropic.base_url), api_key=world.anthropic.api_key, max_retries=0)


def begins_with_hi(text: object) -> bool:
    """Gemini's scripted chunks are numbered."""
    return isinstance(text, str) and text.startswith("Hi")


async def chat(world: World, model: str) -> None:
    answer = await world.openai.chat.completions.create(model=model, messages=HELLO)
    assert begins_with_hi(answer.choices[0].message.content) and answer.usage is not None


async def chat_sync(world: World, model: str) -> None:
    def call() -> None:
        with sync_openai(world) as client:
            answer = client.chat.completions.create(model=model, messages=HELLO)
            assert begins_with_hi(answer.choices[0].message.content)
            options: Any = {"include_usage": True}
            with client.chat.completions.create(
                model=model, messages=HELLO, stream=True, stream_options=options
            ) as chunks:
                told = list(chunks)
            assert begins_with_hi("".join(c.choices[0].delta.content or "" for c in told if c.choices))
            assert [chunk.usage is not None for chunk in told] == [False] * (len(told) - 1) + [True]

    await asyncio.to_thread(call)


async def chat_raw_stream(world: World, model: str) -> None:
    create = world.openai.chat.completions.with_streaming_response.create
    async with create(model=model, messages=HELLO) as answer:
        assert answer.status_code == 200 and (await answer.parse()).choices


async def chat_stream_helper(world: World, model: str) -> None:
    async with world.openai.chat.completions.stream(model=model, messages=HELLO) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert {"content.delta", "content.done"} <= set(kinds) and begins_with_hi(final.choices[0].message.content)


async def chat_parse(world: World, model: str) -> None:
    messages: Any = [{"role": "user", "content": EMPTY}]
    answer = await world.openai.chat.completions.parse(model=model, messages=messages, response_format=Nothing)
    assert answer.choices[0].message.parsed == Nothing()


async def chat_tool_loop(world: World, model: str) -> None:
    finish = "" if model == "on-google" else ";finish=tool_calls"
    messages: list[Any] = [{"role": "user", "content": f"Hi [[tools=1{finish}]]"}]
    asked = (await world.openai.chat.completions.create(model=model, messages=messages, tools=[FUNCTION])).choices[0]
    assert asked.finish_reason == "tool_calls" and asked.message.tool_calls
    call = asked.message.tool_calls[0]
    messages += [asked.message, {"role": "tool", "tool_call_id": call.id, "content": "[[text=Hi;chunks=1]]"}]
    messages[0] = {"role": "user", "content": "Hi"}
    answer = await world.openai.chat.completions.create(model=model, messages=messages, tools=[FUNCTION])
    assert begins_with_hi(answer.choices[0].message.content) and answer.choices[0].finish_reason == "stop"


async def response(world: World, model: str) -> None:
    answer = await world.openai.responses.create(model=model, input="Hello [[text=Hi;chunks=1]]")
    assert answer.status == "completed" and begins_with_hi(answer.output_text)


async def response_sync(world: World, model: str) -> None:
    def call() -> None:
        with sync_openai(world) as client:
            with client.responses.create(model=model, input="Hello [[text=Hi;chunks=1]]", stream=True) as events:
                told = list(events)
            assert [event.sequence_number for event in told] == list(range(len(told)))
            assert told[-1].type == "response.completed" and begins_with_hi(told[-1].response.output_text)

    await asyncio.to_thread(call)


async def response_stream_helper(world: World, model: str) -> None:
    async with world.openai.responses.stream(model=model, input="Hello [[text=Hi;chunks=1]]") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert "response.output_text.delta" in kinds and begins_with_hi(final.output_text)


async def response_parse(world: World, model: str) -> None:
    answer = await world.openai.responses.parse(model=model, input=EMPTY, text_format=Nothing)
    assert answer.output_parsed == Nothing()


async def embeddings(world: World, model: str) -> None:
    if model == "on-claude":
        with pytest.raises(openai.BadRequestError, match="no counterpart"):
            await world.openai.embeddings.create(model=model, input="a")
        return
    assert len((await world.openai.embeddings.create(model=model, input=["a", "b"])).data) == 2


async def models(world: World, model: str) -> None:
    assert model in [each.id async for each in world.openai.models.list()]
    assert (await world.openai.models.retrieve(model)).id == model


async def message(world: World, model: str) -> None:
    answer = await world.anthropic.messages.create(model=model, max_tokens=50, messages=HELLO)
    assert answer.stop_reason == "end_turn" and begins_with_hi(answer.content[0].text)  # type: ignore[union-attr]


async def message_sync(world: World, model: str) -> None:
    def call() -> None:
        with sync_anthropic(world) as client:
            with client.messages.stream(model=model, max_tokens=50, messages=HELLO) as stream:
                text = "".join(stream.text_stream)
            assert begins_with_hi(text)
            assert client.messages.count_tokens(model=model, messages=HELLO).input_tokens > 0

    await asyncio.to_thread(call)


async def message_stream_helper(world: World, model: str) -> None:
    async with world.anthropic.messages.stream(model=model, max_tokens=50, messages=HELLO) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert {"message_start", "text", "content_block_stop", "message_stop"} <= set(kinds)
    assert begins_with_hi(final.content[0].text) and final.usage.output_tokens > 0  # type: ignore[union-attr]


async def message_parse(world: World, model: str) -> None:
    messages: Any = [{"role": "user", "content": EMPTY}]
    answer = await world.anthropic.messages.parse(model=model, max_tokens=50, messages=messages, output_format=Nothing)
    assert answer.parsed_output == Nothing()


async def message_tool_loop(world: World, model: str) -> None:
    finish = "" if model == "on-google" else ";finish=tool_calls"
    messages: list[Any] = [{"role": "user", "content": f"Hi [[tools=1{finish}]]"}]
    asked = await world.anthropic.messages.create(model=model, max_tokens=50, messages=messages, tools=[TOOL])
    assert asked.stop_reason == "tool_use"
    use = next(block for block in asked.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "[[text=Hi;chunks=1]]"}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": asked.content}]
    messages.append({"role": "user", "content": [result]})
    answer = await world.anthropic.messages.create(model=model, max_tokens=50, messages=messages, tools=[TOOL])
    assert answer.stop_reason == "end_turn" and begins_with_hi(answer.content[0].text)  # type: ignore[union-attr]


async def count_tokens(world: World, model: str) -> None:
    counted = await world.anthropic.messages.count_tokens(model=model, messages=HELLO, system="Be brief.")
    assert counted.input_tokens > 0


ROWS: tuple[Callable[[World, str], Awaitable[None]], ...] = (
    chat, chat_sync, chat_raw_stream, chat_stream_helper, chat_parse, chat_tool_loop, response, response_sync,
    response_stream_helper, response_parse, embeddings, models, message, message_sync, message_stream_helper, message_parse,
    message_tool_loop, count_tokens,
)  # fmt: skip


@pytest.mark.parametrize("model", COLUMNS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
async def test_every_helper_works_in_front_of_every_kind(
    world: World, row: Callable[[World, str], Awaitable[None]], model: str
) -> None:
    await row(world, model)
