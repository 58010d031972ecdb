"""The real model behind the real server, asked by the official OpenAI SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import openai
import pytest

from .running import ROOT, RunningEngine

MODEL = "smollm2-135m-instruct"
START_S = 240.0
"""The first start on a machine compiles the kernels."""


class RealEngine(RunningEngine):
    """`python -m local_engine serve` as a user starts it, with a small KV pool."""

    deadline_s = START_S

    def command(self) -> list[str]:
        flags = ["--port", "0", "--port-file", str(self.port_file), "--parent-fd", str(self._read_fd)]
        numbers = ["--dtype", "float32", "--num-gpu-blocks-override", "600"]
        return [sys.executable, "-m", "local_engine", "serve", MODEL, *flags, *numbers]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    scratch = tmp_path_factory.mktemp("smollm2")
    with RealEngine(scratch, scratch) as running:
        yield running


@pytest.fixture
async def sdk(real: RealEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False, timeout=240)
    async with openai.AsyncOpenAI(base_url=f"{real.url}/v1", api_key="none", http_client=http, max_retries=0) as sdk:
        yield sdk


async def ask(sdk: openai.AsyncOpenAI, text: str, **options: object) -> str:
    answer = await sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        **{"temperature": 0, **options},  # type: ignore[call-overload]
    )
    return str(answer.choices[0].message.content)


async def test_it_answers_a_question(sdk: openai.AsyncOpenAI) -> None:
    assert await ask(sdk, "What is the capital of France?") == "The capital of France is Paris."


async def test_a_stream_makes_the_same_text(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == "The capital of France is Paris."
    assert len([piece for piece in pieces if piece]) == 7
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (37, 8)


async def test_a_chinese_prompt_streams_whole_characters(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "用中文介绍一下你自己"}],
        temperature=0,
        max_completion_tokens=16,
        stream=True,
    )
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(pieces)
    assert all("\ufffd" not in piece for piece in pieces[:-1])


async def test_rule_36_ten_at_once_are_answered_as_alone(sdk: openai.AsyncOpenAI) -> None:
    questions = [f"Say the word {word}." for word in ("apple", "river", "stone", "cloud", "music")] * 2
    together = await asyncio.gather(*(ask(sdk, question, max_tokens=8) for question in questions))
    alone = [await ask(sdk, question, max_tokens=8) for question in questions[:5]]
    assert together == alone * 2


async def test_rule_36_a_seeded_answer_does_not_depend_on_its_neighbours(sdk: openai.AsyncOpenAI) -> None:
    options: dict[str, object] = {"temperature": 1.0, "seed": 7, "max_tokens": 10}
    alone = await ask(sdk, "Tell me a story.", **options)
    others = (ask(sdk, f"Tell me a story about {number}.", temperature=1.0, max_tokens=10) for number in range(3))
    among, *_ = await asyncio.gather(ask(sdk, "Tell me a story.", **options), *others)
    assert among == alone
    assert await ask(sdk, "Tell me a story.", **{**options, "seed": 8}) != alone


async def test_rule_35_a_stop_string_cuts_the_text(sdk: openai.AsyncOpenAI) -> None:
    assert await ask(sdk, "What is the capital of France?", stop=["of Fra"]) == "The capital "


async def test_rule_39_an_overlong_prompt_gets_the_right_numbers(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(sdk, "word " * 9000, max_completion_tokens=100)
    assert caught.value.code == "context_length_exceeded"
    assert str(caught.value.message).endswith(
        "This model's maximum context length is 8192 tokens. However, you requested 9131 tokens (9031 in the messages, "
        "100 in the completion). Please reduce the length of the messages or completion."
    )


def test_the_tokenizer_from_gguf_agrees_with_transformers(real: RealEngine) -> None:
    """An independent reading of the same file, in a process of its own: transformers is heavy and probes packages."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.local_engine.tokenizer_oracle"], cwd=ROOT, capture_output=True, timeout=240
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == "12 texts agree"
