"""What callers get, over real HTTP: bodies, streams, usage. The model repeats its prompt."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from .running import RunningEngine

MODEL = "tiny-model"


async def complete(client: httpx.AsyncClient, prompt: object, **body: object) -> dict[str, object]:
    answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 64, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def events(text: str) -> list[dict[str, object] | str]:
    found: list[dict[str, object] | str] = []
    for block in text.split("\n\n"):
        if block:
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


async def test_the_openai_sdk_chats(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Guten Tag, 你好"}])
    assert answer.choices[0].message.content == "Guten Tag, 你好"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 17
    assert answer.usage.completion_tokens == 18
    assert answer.usage.total_tokens == 35


async def test_the_openai_sdk_streams_whole_characters(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "你好😀"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert pieces == ["你", "好", "😀"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (10, 11)


async def test_no_usage_chunk_unless_asked(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "ab", "stream": True}
    answer = await client.post("/v1/completions", json=body)
    found = events(answer.text)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert found[-1] == "[DONE]"
    assert all("usage" not in event for event in found)
    texts = [event["choices"][0]["text"] for event in found[:-1]]  # type: ignore[index]
    assert "".join(texts) == "ab"


async def test_continuous_usage_grows(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = await client.post(
        "/v1/completions", json={"model": MODEL, "prompt": "abc", "stream": True, "stream_options": options}
    )
    counts = [event["usage"]["completion_tokens"] for event in events(answer.text)[:-1]]  # type: ignore[index]
    assert counts == sorted(counts)
    assert counts[-1] == 4


async def test_ten_calls_at_once(sdk: openai.AsyncOpenAI) -> None:
    async def ask(number: int) -> str | None:
        text = f"call number {number} of ten"
        answer = await sdk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}])
        return answer.choices[0].message.content

    assert await asyncio.gather(*(ask(number) for number in range(10))) == [
        f"call number {number} of ten" for number in range(10)
    ]


async def test_rule_35_a_stop_string_ends_the_stream_and_never_shows(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "one, two. STOP three"}],
        stop=["STOP"],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "one, two. "
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len("one, two. STOP")


async def test_rule_35_text_before_a_stop_string_that_never_came_is_delivered(client: httpx.AsyncClient) -> None:
    answer = await complete(client, "xxST", stop="STOP", max_tokens=4)
    assert answer["choices"][0]["text"] == "xxST"  # type: ignore[index]
    assert answer["choices"][0]["finish_reason"] == "length"  # type: ignore[index]


async def test_rule_35_a_character_cut_by_the_limit_is_flushed(client: httpx.AsyncClient) -> None:
    answer = await complete(client, "你", max_tokens=2)
    assert answer["choices"][0]["text"] == "\ufffd"  # type: ignore[index]


async def test_a_stop_token_is_named_and_not_shown(client: httpx.AsyncClient) -> None:
    answer = await complete(client, "abc", stop_token_ids=[ord("c")])
    choice = answer["choices"][0]  # type: ignore[index]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", ord("c"))
    assert answer["usage"]["completion_tokens"] == 3  # type: ignore[index]


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
    ],
)
async def test_all_forms_of_prompt(client: httpx.AsyncClient, prompt: object, texts: list[str]) -> None:
    answer = await complete(client, prompt)
    assert [choice["text"] for choice in answer["choices"]] == texts  # type: ignore[attr-defined]
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))  # type: ignore[attr-defined]
    assert answer["usage"]["prompt_tokens"] == sum(map(len, texts))  # type: ignore[index]


async def test_n_choices_count_their_prompt_once(client: httpx.AsyncClient) -> None:
    answer = await complete(client, ["a" * 40, "b" * 40], n=3)
    assert [choice["text"] for choice in answer["choices"]] == ["a" * 40] * 3 + ["b" * 40] * 3  # type: ignore[attr-defined]
    usage: dict[str, object] = answer["usage"]  # type: ignore[assignment]
    assert usage["prompt_tokens"] == 80
    assert usage["completion_tokens"] == 6 * 41
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_echo_puts_the_prompt_before_the_text(client: httpx.AsyncClient) -> None:
    assert (await complete(client, "ab", echo=True))["choices"][0]["text"] == "abab"  # type: ignore[index]
    only = await complete(client, "ab", echo=True, max_tokens=0)
    assert only["choices"][0]["text"] == "ab"  # type: ignore[index]
    assert only["usage"]["completion_tokens"] == 0  # type: ignore[index]
    streamed = await client.post(
        "/v1/completions", json={"model": MODEL, "prompt": "ab", "echo": True, "stream": True, "max_tokens": 64}
    )
    assert "".join(event["choices"][0]["text"] for event in events(streamed.text)[:-1]) == "abab"  # type: ignore[index]


async def test_cached_tokens_are_reported_and_salts_divide(client: httpx.AsyncClient) -> None:
    prompt = "cached " * 10

    async def cached(**body: object) -> int:
        answer = await complete(client, prompt, max_tokens=1, **body)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]  # type: ignore[index,no-any-return]

    assert [await cached(), await cached(), await cached(cache_salt="team"), await cached(cache_salt="team")] == [
        0,
        64,
        0,
        64,
    ]
    assert (await client.post("/reset_prefix_cache")).status_code == 200
    assert await cached() == 0


async def test_the_sum_of_compute_us_is_the_busy_time(client: httpx.AsyncClient, parrot: RunningEngine) -> None:
    busy_before = parrot.metric("metergate_engine_busy_seconds_total")
    answers = await asyncio.gather(
        complete(client, "a" * 100),
        complete(client, "b" * 30, n=2),
        complete(client, "stop here", stop="here"),
        complete(client, "c" * 200, max_tokens=3),
    )
    parts = [answer["usage"]["metergate"]["compute_us"] for answer in answers]  # type: ignore[index]
    assert all(isinstance(part, int) and part > 0 for part in parts)
    busy_s = parrot.metric("metergate_engine_busy_seconds_total") - busy_before
    assert round(busy_s * 1e6) == sum(parts)


async def test_the_callers_request_id_is_adopted(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "ab"}
    answer = await client.post("/v1/completions", json=body, headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.json()["id"] == "cmpl-mine-1"
    cancelled = await client.post("/v1/requests/mine-1/cancel")
    assert cancelled.json() == {"id": "mine-1", "status": "completed", "usage": answer.json()["usage"]}


async def test_models_tokenize_detokenize_version(client: httpx.AsyncClient) -> None:
    models = (await client.get("/v1/models")).json()
    assert [(card["id"], card["max_model_len"]) for card in models["data"]] == [(MODEL, 512)]
    assert (await client.get(f"/v1/models/{MODEL}")).json()["id"] == MODEL
    tokens = (await client.post("/tokenize", json={"prompt": "aé", "return_token_strs": True})).json()
    assert tokens == {"count": 3, "max_model_len": 512, "tokens": [97, 195, 169], "token_strs": ["a", "Ã", "©"]}
    chat = (await client.post("/tokenize", json={"messages": [{"role": "user", "content": "a"}]})).json()
    assert chat["tokens"] == [97]
    assert (await client.post("/detokenize", json={"tokens": [97, 195, 169]})).json() == {"prompt": "aé"}
    assert set((await client.get("/version")).json()) == {"version"}
    assert (await client.get("/ping")).json() == {"status": "ok"}


async def test_metrics_speak_our_names_and_vllms(client: httpx.AsyncClient) -> None:
    await complete(client, "ab")
    text = (await client.get("/metrics")).text
    for name in (
        "metergate_engine_generated_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
        "vllm:time_to_first_token_seconds_bucket",
        "metergate_engine_requests_total",
    ):
        assert f"{name}{{" in text, name
    assert 'model_name="tiny-model"' in text
