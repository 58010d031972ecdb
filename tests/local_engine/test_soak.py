"""Everything at once on a tiny pool: whatever comes, pages come back, the books balance, and undisturbed answers are as alone.

`SOAK_REQUESTS=10000 pytest tests/local_engine/test_soak.py` soaks for longer, and watches the process's memory.
"""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path
from typing import Any

import pytest

from local_engine.config import EngineConfig, SpeculativeConfig
from local_engine.engine_core import EngineCore
from local_engine.grammars import GrammarCompiler
from local_engine.messages import Abort, AddSequence, ResetPrefixCache, Update
from local_engine.sampling_params import SamplingParams
from local_engine.sequence import FinishReason
from local_engine.tokenizer import load_tokenizer

from .dice import DiceRunner, drained
from .test_structured_output import BOUNDED, as_grammar
from .tiny import END, VOCAB

pytestmark = pytest.mark.usefixtures("one_thread")

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "200"))
BLOCKS, MAX_LEN = 12, 160
GROWTH_KIB = 64 * 1024
"""Of the process from the first tenth to the end: what caches and an allocator may take, and where a leak does not stop."""


def request(draw: random.Random, grammars: list[str]) -> tuple[list[int], SamplingParams, bytes]:
    values: dict[str, Any] = {
        "seed": draw.getrandbits(64),
        "temperature": draw.choice([0.0, 0.7, 1.3]),
        "max_tokens": draw.randint(1, 60),
        "eos_token_ids": (END,),
        "stop_token_ids": draw.choice([(), tuple(range(20))]),
    }
    kind = draw.random()
    if kind < 0.2:
        values["grammar"] = draw.choice(grammars)
    elif kind < 0.4:
        values |= {"logprobs": 2, "prompt_logprobs": draw.choice([None, 0, 2])}
    elif kind < 0.6:
        values |= {"repetition_penalty": 1.2, "bad_words": ((3,), (5, 6)), "logit_bias": {7: 4.0}}
    elif kind < 0.65:
        values |= {"allowed_token_ids": (5,), "bad_words": ((5,),)}
    beginning = [1, 2, 3] * draw.randint(0, 20)
    prompt = beginning + [draw.randint(0, 5) for _ in range(draw.randint(1, 30))]
    return prompt, SamplingParams(**values), draw.choice([b"", b"", b"team"])


def alone(folder: Path, prompt: list[int], params: SamplingParams) -> list[int]:
    core = EngineCore(EngineConfig("dice"), DiceRunner(64, MAX_LEN, memory=2), grammars=compiler(folder))
    core.handle(AddSequence(1, prompt, params, 0, b"", 0, None))
    return [token for update in drained(core) for token in update.tokens]


def compiler(folder: Path) -> GrammarCompiler:
    return GrammarCompiler(lambda: load_tokenizer(folder), VOCAB)


def test_rule_37_a_soak_of_everything_gives_back_every_page(tiny_folder: Path) -> None:
    draw = random.Random(3)
    config = EngineConfig(
        "dice", max_num_batched_tokens=48, max_num_seqs=8, speculative_config=SpeculativeConfig(prompt_lookup_min=1)
    )
    core = EngineCore(config, DiceRunner(BLOCKS, MAX_LEN, memory=2), grammars=compiler(tiny_folder))
    grammars = [as_grammar(guided_json=schema) for schema in BOUNDED] + [as_grammar(guided_regex="(ab|c){2,20}")]
    asked: dict[int, tuple[list[int], SamplingParams]] = {}
    tokens: dict[int, list[int]] = {}
    ends: dict[int, FinishReason] = {}
    spent_us, aborted, memory_kib = 0, set(), 0

    def take(update: Update) -> None:
        nonlocal spent_us
        assert update.id not in ends, "an ended sequence has no more news"
        tokens[update.id] += update.tokens
        if update.finish_reason is not None:
            ends[update.id] = update.finish_reason
            spent_us += update.compute_us

    for number in range(REQUESTS):
        prompt, params, salt = request(draw, grammars)
        asked[number], tokens[number] = (prompt, params), []
        core.handle(AddSequence(number, prompt, params, 0, salt, 0, None))
        for _ in range(draw.randint(0, 12)):
            if draw.random() < 0.05:
                victim = draw.randint(max(0, number - 6), number)
                aborted.add(victim)
                core.handle(Abort(victim, draw.choice([None, 0, 3])))
            if draw.random() < 0.01:
                core.handle(ResetPrefixCache())
            for update in core.step():
                take(update)
        if number == REQUESTS // 10:
            memory_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for update in drained(core):
        take(update)
    core.check_integrity()
    stats = core.stats()
    assert ends.keys() == asked.keys()
    assert stats.free_blocks == BLOCKS and stats.busy_us == spent_us
    assert stats.preemptions > 0 and stats.prefix_hits > 0 and stats.accepted > 0
    assert {FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR} == set(ends.values())
    if REQUESTS > 1000:
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kib < GROWTH_KIB
    undisturbed = [number for number in asked if ends[number] in (FinishReason.STOP, FinishReason.LENGTH)]
    for number in draw.sample(undisturbed, min(40, len(undisturbed))):
        assert tokens[number] == alone(tiny_folder, *asked[number]), number
    assert all(ends[number] is not FinishReason.ERROR for number in asked if asked[number][1].allowed_token_ids is None)
