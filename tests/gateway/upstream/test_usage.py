"""Usage as providers report it, normalised into disjoint classes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from billing.usage import Usage
from gateway.upstream.usage import from_openai, to_openai


def normalised(**usage: Any) -> Usage | None:
    return from_openai(json.dumps(usage).encode())


def test_plain_counts() -> None:
    assert normalised(prompt_tokens=9, completion_tokens=5, total_tokens=14) == Usage(input=9, output=5)


def test_rule_01_cached_tokens_are_priced_once() -> None:
    usage = normalised(prompt_tokens=100, completion_tokens=5, prompt_tokens_details={"cached_tokens": 60})
    assert usage == Usage(input=40, cache_read=60, output=5)
    assert usage.total_input == 100


def test_rule_01_deepseek_names_its_cache_hits_otherwise() -> None:
    assert normalised(
        prompt_tokens=100, completion_tokens=5, prompt_cache_hit_tokens=60, prompt_cache_miss_tokens=40
    ) == Usage(input=40, cache_read=60, output=5)


def test_rule_01_reasoning_is_inside_output() -> None:
    usage = normalised(prompt_tokens=10, completion_tokens=50, completion_tokens_details={"reasoning_tokens": 30})
    assert usage == Usage(input=10, output=50, reasoning=30)
    assert usage.total_output == 50


def test_rule_01_reasoning_counted_beside_the_output_is_added_once() -> None:
    exact = normalised(
        prompt_tokens=10, completion_tokens=20, total_tokens=60, completion_tokens_details={"reasoning_tokens": 30}
    )
    assert exact == Usage(input=10, output=50, reasoning=30)
    assert normalised(prompt_tokens=10, completion_tokens=20, total_tokens=60) == Usage(input=10, output=50)


def test_audio_and_images_are_classes_of_their_own() -> None:
    usage = normalised(
        prompt_tokens=100,
        completion_tokens=50,
        prompt_tokens_details={"cached_tokens": 10, "audio_tokens": 20, "image_tokens": 30},
        completion_tokens_details={"audio_tokens": 15},
    )
    assert usage == Usage(input=40, cache_read=10, audio_input=20, image_input=30, output=35, audio_output=15)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}},
            Usage(cache_read=5, output=1, flaw="cached tokens is 9, more than 5"),
        ),
        ({"prompt_tokens": -4, "completion_tokens": 5}, Usage(output=5, flaw="prompt_tokens is -4")),
        (
            {"prompt_tokens": 1, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 9}},
            Usage(input=1, output=5, reasoning=5, flaw="reasoning tokens are 9, more than 5"),
        ),
        (
            {"prompt_tokens": 10**15, "completion_tokens": 5},
            Usage(input=10**12, output=5, flaw=f"prompt_tokens is {10**15}, more than {10**12}"),
        ),
    ],
)
def test_an_impossible_count_is_flagged_and_never_billed_negative(reported: dict[str, Any], expected: Usage) -> None:
    assert normalised(**reported) == expected


@pytest.mark.parametrize("raw", [b"{}", b'{"prompt_tokens":null}', b"[]", b'"x"', b'{"prompt_tokens":"many"}', b"{"])
def test_a_placeholder_is_no_usage(raw: bytes) -> None:
    assert from_openai(raw) is None


def test_counts_written_as_floats_or_strings_are_read() -> None:
    assert from_openai(b'{"prompt_tokens":9.0,"completion_tokens":"5"}') == Usage(input=9, output=5)


def test_engine_time_comes_along() -> None:
    assert normalised(prompt_tokens=9, completion_tokens=5, metergate={"compute_us": 1234}) == Usage(
        input=9, output=5, compute_us=1234
    )


def test_there_and_back() -> None:
    usage = Usage(input=40, cache_read=60, output=50, reasoning=30)
    assert from_openai(to_openai(usage)) == usage
