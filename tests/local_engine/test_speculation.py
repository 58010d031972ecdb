"""Speculation by prompt lookup: the same output on or off, whatever else is going on."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine.cli import speculative_flag
from local_engine.config import EngineConfig, SpeculativeConfig
from local_engine.engine_core import EngineCore
from local_engine.errors import ConfigError
from local_engine.grammars import GrammarCompiler
from local_engine.messages import AddSequence, Stats, Update
from local_engine.sampling_params import SamplingParams
from local_engine.speculation import NgramIndex, Speculator
from local_engine.tokenizer import load_tokenizer

from .dice import DiceRunner, drained
from .test_structured_output import as_grammar
from .tiny import END, VOCAB

pytestmark = pytest.mark.usefixtures("one_thread")

NGRAM = SpeculativeConfig(num_speculative_tokens=5, prompt_lookup_max=3, prompt_lookup_min=1)


def run(
    work: list[tuple[list[int], SamplingParams]], spec: SpeculativeConfig | None, blocks: int = 64, budget: int = 256,
    folder: Path | None = None,
) -> tuple[dict[int, list[Update]], Stats, int]:  # fmt: skip
    config = EngineConfig("dice", speculative_config=spec, max_num_batched_tokens=budget)
    runner = DiceRunner(blocks, 128, memory=1)
    grammars = GrammarCompiler(lambda: load_tokenizer(folder), VOCAB) if folder is not None else None
    core = EngineCore(config, runner, grammars=grammars)
    updates: dict[int, list[Update]] = {number: [] for number in range(len(work))}
    for number, (prompt, params) in enumerate(work):
        core.handle(AddSequence(number, prompt, params, 0, b"", 0, None))
    for update in drained(core):
        updates[update.id].append(update)
    core.check_integrity()
    assert core.stats().free_blocks == blocks
    return updates, core.stats(), runner.steps


def told(updates: list[Update]) -> tuple[object, ...]:
    """Everything that a caller sees, and nothing of when."""
    last = updates[-1]
    logprobs = [(one.ids, [round(value, 3) for value in one.values]) for update in updates for one in update.logprobs]
    return [token for update in updates for token in update.tokens], last.finish_reason, last.stop_token, logprobs


REQUEST = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.0, 0.3, 1.0]),
        "seed": st.integers(0, 9),
        "max_tokens": st.integers(1, 40),
        "min_tokens": st.just(0),
        "stop_token_ids": st.sampled_from([(), (7, 100, 200), tuple(range(40))]),
        "logprobs": st.sampled_from([None, 2]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "bad_words": st.sampled_from([(), ((3,), (5, 6))]),
    }
)
WORK = st.lists(st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=50), REQUEST), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(WORK, st.integers(8, 12), st.integers(2, 40))
def test_rule_36_output_is_the_same_with_speculation_on_and_off(
    asked: list[tuple[list[int], dict[str, Any]]], blocks: int, budget: int
) -> None:
    work = [(prompt, SamplingParams(**values)) for prompt, values in asked]
    plain, _, _ = run(work, None)
    guessed, _, _ = run(work, NGRAM, blocks, budget)
    for number in range(len(work)):
        assert told(guessed[number]) == told(plain[number])


def test_output_that_repeats_itself_is_guessed_and_takes_fewer_steps() -> None:
    work = [([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=100))]
    plain, none, many = run(work, None)
    guessed, stats, few = run(work, NGRAM)
    assert told(guessed[0]) == told(plain[0])
    assert 0 < stats.accepted <= stats.drafted and none.drafted == 0
    assert few < many
    assert max(len(update.tokens) for update in guessed[0]) == 6


def test_a_grammar_filters_what_is_guessed_and_goes_on_from_what_held(tiny_folder: Path) -> None:
    grammar = as_grammar(guided_regex="(ab|cd){3,30}e")
    work = [
        (
            [97, 98, 97, 98],
            SamplingParams(grammar=grammar, seed=seed, max_tokens=50, eos_token_ids=(END,), temperature=0.0),
        )
        for seed in range(3)
    ]
    plain, _, _ = run(work, None, folder=tiny_folder)
    guessed, stats, _ = run(work, NGRAM, folder=tiny_folder)
    assert [told(guessed[number]) for number in range(3)] == [told(plain[number]) for number in range(3)]
    assert stats.accepted > 0


def test_the_longest_known_end_is_followed_and_the_latest_place() -> None:
    index = NgramIndex(1, 2)
    assert index.guess([1, 2, 3], 4) == ()
    assert index.guess([1, 2, 3, 9, 2], 4) == (3, 9, 2)
    assert index.guess([1, 2, 3, 9, 2, 8, 1, 2], 2) == (3, 9), "two tokens of context beat one"
    assert index.guess([1, 2, 3, 9, 2, 8, 1, 2, 5, 2], 2) == (5, 2), "the latest place of one token"


def test_guessing_stops_where_the_clock_says_that_it_does_not_pay_and_is_tried_again() -> None:
    speculator = Speculator(NGRAM)
    guesses = []
    for _ in range(100):
        speculator.begin_step(4)
        drafts = speculator.guess(1, [1, 2, 1], 3)
        guesses.append(bool(drafts))
        speculator.end_step(4, len(drafts), 0, tokens=4, elapsed_us=900 if drafts else 400)
    assert 3 <= sum(guesses) <= 6, "tried at first and now and then"
    speculator.begin_step(64)
    assert speculator.guess(1, [1, 2, 1], 3), "other numbers of sequences are judged by themselves"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "eagle"}, "method 'eagle' is not supported; choose one of: ngram"),
        ({"prompt_lookup_min": 5}, "1 <= prompt_lookup_min <= prompt_lookup_max <= 16"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must lie in 1..32, not 0"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeculativeConfig(**values)


def test_the_flag_takes_vllms_json() -> None:
    text = json.dumps({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 5, "prompt_lookup_min": 3})
    assert speculative_flag(text) == SpeculativeConfig("ngram", 3, 5, 3)
    for wrong in ("{", '{"method": "eagle"}', '{"num_speculative_tokens": "x"}'):
        with pytest.raises(argparse.ArgumentTypeError):
            speculative_flag(wrong)
