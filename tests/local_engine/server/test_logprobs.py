"""Log probabilities over HTTP, in OpenAI's and vLLM's shapes. The model draws by dice (dice.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from ..dice import dice_logits
from .running import RunningEngine
from .test_answers import events

MODEL = "tiny-model"


@pytest.fixture(scope="module")
def parrot(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with RunningEngine(tiny_folder, tmp_path_factory.mktemp("dice"), core="tests.local_engine.dice") as running:
        yield running


async def test_rule_40_a_chat_gets_the_tokens_their_bytes_and_their_rivals(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=12, seed=1, logprobs=True, top_logprobs=3
    )
    told = answer.choices[0].logprobs
    assert told is not None and told.content is not None and answer.usage is not None
    assert len(told.content) == answer.usage.completion_tokens
    before = list(b"hi")
    for one in told.content:
        assert one.bytes is not None and len(one.bytes) == 1
        token = one.bytes[0]
        assert one.token == bytes([token]).decode(errors="replace")
        expected = dice_logits(before).log_softmax(-1)
        assert one.logprob == pytest.approx(float(expected[token]), abs=1e-4)
        assert [top.logprob for top in one.top_logprobs] == pytest.approx(expected.topk(3).values.tolist(), abs=1e-4)
        before.append(token)


async def test_a_stream_tells_the_same_as_a_whole_answer(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.completions.create(model=MODEL, prompt="hi", max_tokens=12, seed=1, logprobs=2)
    stream = await sdk.completions.create(model=MODEL, prompt="hi", max_tokens=12, seed=1, logprobs=2, stream=True)
    told = [choice.logprobs async for chunk in stream for choice in chunk.choices if choice.logprobs]
    expected = whole.choices[0].logprobs
    assert expected is not None and expected.tokens is not None
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [item for one in told for item in getattr(one, name)] == getattr(expected, name)
    assert len(expected.tokens) == 12


async def test_echo_tells_of_the_prompt_too_and_its_first_token_has_no_number(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "Ah, you", "max_tokens": 2, "seed": 4, "echo": True, "logprobs": 1}
    choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
    told = choice["logprobs"]
    assert told["tokens"][:7] == list("Ah, you")
    assert told["text_offset"][:8] == list(range(8))
    assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
    assert told["token_logprobs"][1] == pytest.approx(float(dice_logits([65]).log_softmax(-1)[104]), abs=1e-4)
    assert len(told["tokens"]) == 9


async def test_prompt_logprobs_have_vllms_shape_and_repeat_though_the_prefix_is_cached(
    client: httpx.AsyncClient,
) -> None:
    body = {"model": MODEL, "prompt": "x" * 40, "max_tokens": 1, "n": 2, "seed": 4, "prompt_logprobs": 2}
    first, second = [(await client.post("/v1/completions", json=body)).json() for _ in range(2)]
    for choice in first["choices"]:
        told = choice["prompt_logprobs"]
        assert told[0] is None and len(told) == 40
        expected = dice_logits([120]).log_softmax(-1)
        assert told[1]["120"]["logprob"] == pytest.approx(float(expected[120]), abs=1e-4)
        assert told[1]["120"]["decoded_token"] == "x"
        assert {entry["rank"] for entry in told[1].values()} >= {1, 2}
    assert first["choices"] == second["choices"]


async def test_tokens_can_be_spelt_as_ids(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 2, "logprobs": 0, "return_tokens_as_token_ids": True}
    told = (await client.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]
    assert all(token.startswith("token_id:") for token in told["tokens"])
    assert all(math.isfinite(number) for number in told["token_logprobs"])


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"bad_words": ["a", ""]}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [260]}, "allowed_token_ids"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
)
async def test_rule_38_what_cannot_be_told_is_refused_by_name(
    client: httpx.AsyncClient, extra: dict[str, object], param: str
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **extra}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_a_prompt_can_be_cut_to_its_last_tokens(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "x" * 600, "max_tokens": 10}
    for keep, expected in ((7, 7), (-1, 502)):
        answer = await client.post("/v1/completions", json={**body, "truncate_prompt_tokens": keep})
        assert answer.json()["usage"]["prompt_tokens"] == expected


async def test_a_stream_of_empty_pieces_still_tells(client: httpx.AsyncClient) -> None:
    """Half a character is no text yet, but its token has a number."""
    allowed = {"allowed_token_ids": [0xE4], "logprobs": 0, "stream": True, "max_tokens": 3}
    answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": "a", **allowed})
    told = [event["choices"][0]["logprobs"] for event in events(answer.text)[:-1]]  # type: ignore[index]
    assert sum(len(one["tokens"]) for one in told if one) == 3
