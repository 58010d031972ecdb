"""Bodies of megabytes, for whatever endpoint, are answered or refused, and who is being served beside them notices nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import tokenizers

from local_engine.async_engine import MAX_FRAMES_BYTES
from local_engine.server.requests import MAX_BAD_CHARACTERS, MAX_BAD_WORDS, MAX_ENTRIES
from local_engine.tokenizer import SpecialTokens, Tokenizer

MODEL = "tiny-model"
MEGABYTE = 1 << 20
COMPLETIONS = "/v1/completions"


class Pace:
    """How often a thread gets its turn."""

    turns = 0


@contextmanager
def other_thread() -> Iterator[Pace]:
    pace, over = Pace(), threading.Event()

    def run() -> None:
        while not over.is_set():
            pace.turns += 1
            time.sleep(0.001)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield pace
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("work", ["encode", "decode"])
def test_other_threads_run_while_a_long_text_is_tokenised(work: str) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split("b", "merged_with_previous")
    tokenizer = Tokenizer(backend, SpecialTokens(None, None, ()), None, {})
    jobs: dict[str, Callable[[], object]] = {
        "encode": lambda: tokenizer.encode("ab" * (MEGABYTE // 2)),
        "decode": lambda: tokenizer.decode([2] * (2 * MEGABYTE)),
    }
    with other_thread() as pace:
        before = pace.turns
        jobs[work]()
        assert pace.turns - before >= 10


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": [7] * MEGABYTE}, "prompt"),
        (COMPLETIONS, {"prompt": [[7] * 9] * 100_000}, "prompt"),
        (COMPLETIONS, {"prompt": "a" * MEGABYTE}, "prompt"),
        (COMPLETIONS, {"prompt": [7] * 500_000 + [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [7] * 500_000 + [True]}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "bad_words": ["a"] * (MAX_BAD_WORDS + 1)}, "bad_words"),
        (COMPLETIONS, {"prompt": "a", "bad_words": ["a" * (MAX_BAD_CHARACTERS + 1)]}, "bad_words"),
        (COMPLETIONS, {"prompt": "a", "stop_token_ids": [7] * (MAX_ENTRIES + 1)}, "stop_token_ids"),
        (COMPLETIONS, {"prompt": "a", "n": 128, "allowed_token_ids": [7] * (MAX_ENTRIES // 128 + 1)}, "allowed_token_ids"),
        (COMPLETIONS, {"prompt": "a", "n": 128, "stop": "a" * (MAX_FRAMES_BYTES // 127)}, "n"),
        ("/detokenize", {"tokens": [7] * 500_000 + [999]}, "tokens"),
    ],
)  # fmt: skip
async def test_rule_31_what_is_too_much_is_a_400_that_names_the_parameter(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    answer = await client.post(path, json={"model": MODEL, "max_tokens": 1, **body} if path == COMPLETIONS else body)
    assert answer.status_code == 400, answer.text[:300]
    assert answer.json()["error"]["param"] == param
    assert len(answer.json()["error"]["message"]) < 300


async def test_what_is_large_and_right_is_answered(client: httpx.AsyncClient) -> None:
    text = "ab" * MEGABYTE
    tokens = (await client.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"]) >= len(text)
    assert (await client.post("/detokenize", json={"tokens": tokens["tokens"]})).json()["prompt"].endswith(text)
    body = {"model": MODEL, "prompt": [[65] * 400] * 300, "max_tokens": 0, "echo": True}
    choices = (await client.post(COMPLETIONS, json=body)).json()["choices"]
    assert [choice["text"] for choice in choices] == ["A" * 400] * 300
