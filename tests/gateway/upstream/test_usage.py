"""Usage as providers report it, normalised into disjoint classes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from billing.usage import Usage
from gateway.upstream.anthropic_usage import from_anthropic
from gateway.upstream.gemini import from_gemini
from gateway.upstream.usage import MOST_COMPUTE_US, MOST_TOKENS, from_engine, from_openai, to_openai


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


@pytest.mark.parametrize("total", [-1, 0, 14, 16, 10**9, 2**70])
def test_nothing_is_derived_from_a_total_that_its_parts_do_not_add_up_to(total: int) -> None:
    shown = "beyond 64 bits" if total == 2**70 else str(total)
    flaw = f"total_tokens is {shown}, but its parts add up to 15"
    assert normalised(prompt_tokens=10, completion_tokens=5, total_tokens=total) == Usage(input=10, output=5, flaw=flaw)
    raw = {"promptTokenCount": 10, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": total}
    usage = from_gemini(json.dumps(raw).encode())
    assert usage is not None and usage.flaw is not None and (usage.input, usage.output) == (10, 5)
    assert usage.flaw == flaw.replace("total_tokens", "totalTokenCount")


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


def test_engine_time_is_the_engines_word_alone() -> None:
    reported = b'{"prompt_tokens":9,"completion_tokens":5,"metergate":{"compute_us":1234}}'
    assert from_engine(reported) == Usage(input=9, output=5, compute_us=1234)
    assert from_openai(reported) == Usage(input=9, output=5)


@pytest.mark.parametrize(
    "count", ["-1", str(2**53), str(2**63), str(2**64), "9" * 4000, "9" * 5000, "1e400", '"many"', "[]", "true", "null"]
)
def test_no_number_of_a_provider_leaves_its_bounds(count: str) -> None:
    """Law: whatever stands in any count of any provider, the usage is absent or within bounds, and its flaw is short."""
    texts = [
        f'{{"prompt_tokens":{count},"completion_tokens":5,"metergate":{{"compute_us":3}}}}',
        f'{{"prompt_tokens":9,"completion_tokens":{count},"total_tokens":{count}}}',
        f'{{"prompt_tokens":9,"completion_tokens":5,"total_tokens":{count},"prompt_tokens_details":{{"cached_tokens":{count}}}}}',
        f'{{"prompt_tokens":9,"completion_tokens":5,"completion_tokens_details":{{"reasoning_tokens":{count}}}}}',
        f'{{"prompt_tokens":9,"completion_tokens":5,"metergate":{{"compute_us":{count}}}}}',
        f'{{"input_tokens":{count},"output_tokens":{count},"cache_creation":{{"ephemeral_1h_input_tokens":{count}}}}}',
        f'{{"input_tokens":9,"output_tokens":5,"server_tool_use":{{"web_search_requests":{count}}}}}',
        f'{{"promptTokenCount":{count},"thoughtsTokenCount":{count},"toolUsePromptTokenCount":{count}}}',
        f'{{"promptTokenCount":9,"candidatesTokensDetails":[{{"modality":"AUDIO","tokenCount":{count}}}]}}',
    ]
    for text in texts:
        for read in (from_openai, from_engine, from_anthropic, from_gemini):
            usage = read(text.encode())
            if usage is None:
                continue
            counts = [value for value in msgspec.structs.astuple(usage) if isinstance(value, int)]
            assert min(counts) >= 0 and max(counts) <= max(2 * MOST_TOKENS, MOST_COMPUTE_US)
            assert usage.flaw is None or len(usage.flaw) < 100


def test_engine_time_beyond_a_week_is_clamped_and_flagged() -> None:
    reported = b'{"prompt_tokens":9,"completion_tokens":5,"metergate":{"compute_us":%d}}'
    assert from_engine(reported % 2**63) == Usage(
        input=9, output=5, compute_us=MOST_COMPUTE_US, flaw=f"compute_us is {2**63}, more than {MOST_COMPUTE_US}"
    )
    assert from_engine(reported % 10**30) == Usage(
        input=9, output=5, compute_us=MOST_COMPUTE_US, flaw="compute_us is beyond 64 bits"
    )


def test_there_and_back() -> None:
    usage = Usage(input=40, cache_read=60, output=50, reasoning=30)
    assert from_openai(to_openai(usage)) == usage
