from __future__ import annotations

import pytest

from bench.engine_load import Point, WrongAnswer, prompts, wave
from local_engine.tokenizer import load_tokenizer
from local_engine.weights.model_store import resolve_model
from tests.bench.scripted_engine import HEAD, server, stream


@pytest.mark.parametrize("piece", [1, 7, 100_000])
async def test_a_wave_counts_the_tokens_of_complete_streams_however_they_are_cut(piece: int) -> None:
    point = Point("p", 3, 32, output_tokens=4)
    async with server(stream(32, 4, ["", "a", "b", "c"]), piece) as target:
        seen = await wave(target, point, "seed", 30)
    assert seen.output_tokens == 12
    assert seen.tokens_per_s == 12 / seen.elapsed_s
    assert all(0 < first <= seen.elapsed_s for first in seen.first_s)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (stream(32, 3, ["a"]), "(32, 3) tokens"),
        (stream(31, 4, ["a"]), "(31, 4) tokens"),
        (stream(32, 4, ["", ""]), "(32, 4) tokens"),
        (HEAD + b"0\r\n\r\n", "no usage"),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n5\r\nsorry\r\n0\r\n\r\n", "500"),
    ],
    ids=["too few tokens", "another prompt", "no text", "no usage", "an error"],
)
async def test_an_answer_that_is_not_what_was_asked_for_has_no_figures(answer: bytes, words: str) -> None:
    async with server(answer, 100_000) as target:
        with pytest.raises(WrongAnswer) as caught:
            await wave(target, Point("p", 2, 32, output_tokens=4), "seed", 30)
    assert words in str(caught.value)


def test_a_prompt_has_as_many_tokens_as_the_point_says_and_no_cache_knows_it() -> None:
    tokenizer = load_tokenizer(resolve_model("smollm2-135m-instruct"))
    point = Point("p", 4, 80, shared_tokens=60)
    first, again = prompts(point, "first"), prompts(point, "again")
    ids = [tokenizer.encode(prompt) for prompt in [*first, *again]]
    assert [len(each) for each in ids] == [80] * 8
    assert len({tuple(each) for each in ids}) == 8
    assert len({tuple(each[:60]) for each in ids[:4]}) == 1
    assert ids[0][:16] != ids[4][:16]
    assert prompts(point, "first") == first
