from __future__ import annotations

import pytest

from local_engine.errors import RequestError
from local_engine.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("param", "value", "message"),
    [
        ("temperature", -0.1, r"temperature must be in \[0, 100\], got -0.1."),
        ("temperature", float("nan"), "temperature must be in"),
        ("top_p", 0.0, r"top_p must be in \(0, 1\], got 0.0."),
        ("top_k", -2, r"top_k must be in \[-1, 2147483647\], got -2."),
        ("min_p", 1.5, r"min_p must be in \[0, 1\]"),
        ("presence_penalty", 2.5, r"presence_penalty must be in \[-2, 2\]"),
        ("frequency_penalty", -3.0, r"frequency_penalty must be in \[-2, 2\]"),
        ("repetition_penalty", 0.0, r"repetition_penalty must be in \[0.01, 100\], got 0.0."),
        ("seed", 1 << 64, "seed must fit in 64 bits"),
        ("min_tokens", 17, "min_tokens must be at most max_tokens=16, got 17."),
        ("stop", ("",), "stop cannot contain an empty string."),
        ("logit_bias", {3: 101.0}, r"logit_bias of token 3 must be in \[-100, 100\]"),
    ],
)
def test_rule_38_a_value_out_of_range_is_refused_by_name(param: str, value: object, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        SamplingParams(**{param: value})  # type: ignore[arg-type]
    assert caught.value.param == param


def test_top_k_minus_one_means_off() -> None:
    assert SamplingParams(top_k=-1).top_k == 0


@pytest.mark.parametrize(("param", "value"), [("stop_token_ids", (10,)), ("logit_bias", {-1: 1.0})])
def test_rule_38_tokens_out_of_vocabulary_are_refused(param: str, value: object) -> None:
    params = SamplingParams(**{param: value})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"out of vocabulary \(0..9\)") as caught:
        params.check_vocabulary(10)
    assert caught.value.param == param


def test_ignore_eos_keeps_the_stop_tokens() -> None:
    params = SamplingParams(eos_token_ids=(1, 2), stop_token_ids=(3,), ignore_eos=True)
    assert params.ending_token_ids == {3}


def test_a_temperature_next_to_zero_is_greedy_or_raised_as_in_vllm() -> None:
    assert SamplingParams(temperature=1e-300).greedy
    assert SamplingParams(temperature=9e-6).greedy
    assert SamplingParams(temperature=1e-4).temperature == 0.01
    assert SamplingParams(temperature=0.01).temperature == 0.01


def test_min_tokens_with_every_token_a_stop_is_refused() -> None:
    params = SamplingParams(min_tokens=1, stop_token_ids=tuple(range(10)))
    with pytest.raises(RequestError, match="min_tokens forbids every token here") as caught:
        params.check_vocabulary(10)
    assert caught.value.param == "min_tokens"
