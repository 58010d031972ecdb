"""Structured output on a model that draws by dice: what stops validates, what is cut is a valid prefix, bounded schemas end."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine.config import EngineConfig
from local_engine.engine_core import EngineCore
from local_engine.grammars import GrammarCompiler
from local_engine.messages import AddSequence
from local_engine.sampling_params import SamplingParams
from local_engine.sequence import FinishReason
from local_engine.server.requests import ChatRequest, parse
from local_engine.server.structure import grammar_of
from local_engine.tokenizer import load_tokenizer

from .dice import DiceRunner, drained
from .tiny import END, EXTRA_END, VOCAB

pytestmark = pytest.mark.usefixtures("one_thread")

BOUNDED: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"enum": ["yes", "no", 3, None]},
    {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2}]},
    {
        "type": "object",
        "properties": {"at": {"type": "object", "properties": {"x": {"const": 1}}, "required": ["x"],
                              "additionalProperties": False}},
        "required": ["at"],
        "additionalProperties": False,
    },
]  # fmt: skip
OPEN: list[dict[str, Any]] = [
    {"type": "object"},
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
]


def as_grammar(**asked: object) -> str:
    body = parse(json.dumps({"model": "m", "messages": [{"role": "user"}], **asked}).encode(), ChatRequest)
    grammar = grammar_of(body)
    assert grammar is not None
    return grammar


@dataclass
class Answer:
    tokens: list[int]
    reason: FinishReason | None = None
    stop_token: int | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        tokens = self.tokens[:-1] if self.stop_token is not None else self.tokens
        return bytes(tokens).decode(errors="replace")


def run(folder: Path, work: list[SamplingParams], blocks: int = 64, **config: Any) -> list[Answer]:
    compiler = GrammarCompiler(lambda: load_tokenizer(folder), VOCAB)
    core = EngineCore(EngineConfig("dice", **config), DiceRunner(blocks, min(512, 16 * blocks)), grammars=compiler)
    answers = [Answer([]) for _ in work]
    for number, params in enumerate(work):
        core.handle(AddSequence(number, [number % 7, 65, *([66] * (number % 40))], params, 0, b"", 0, None))
    for update in drained(core):
        answer = answers[update.id]
        answer.tokens += update.tokens
        answer.reason, answer.stop_token, answer.error = update.finish_reason, update.stop_token, update.error
    core.check_integrity()
    return answers


def params(grammar: str, seed: int, **values: Any) -> SamplingParams:
    return SamplingParams(
        **{"grammar": grammar, "seed": seed, "max_tokens": 200, "eos_token_ids": (END, EXTRA_END), **values}
    )


def test_two_hundred_answers_validate_or_are_a_valid_prefix(tiny_folder: Path) -> None:
    draw = random.Random(5)
    schemas = [draw.choice(BOUNDED + OPEN) for _ in range(200)]
    work = [
        params(
            as_grammar(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}),
            seed,
            temperature=draw.choice([0.0, 0.7, 1.5]),
            max_tokens=draw.choice([5, 40, 200]) if schema in OPEN else 200,
            min_tokens=draw.choice([0, 0, 3]),
        )
        for seed, schema in enumerate(schemas)
    ]
    compiler = GrammarCompiler(lambda: load_tokenizer(tiny_folder), VOCAB)
    stopped = 0
    for schema, answer, asked in zip(schemas, run(tiny_folder, work), work, strict=True):
        assert answer.error is None
        if answer.reason is FinishReason.STOP:
            stopped += 1
            jsonschema.validate(json.loads(answer.text), schema)
        else:
            assert answer.reason is FinishReason.LENGTH and schema in OPEN
            grammar = compiler.begin(asked.grammar or "").grammar()
            assert grammar.allowed(answer.tokens) == len(answer.tokens)
    assert stopped >= 100


@settings(max_examples=10, deadline=None)
@given(seeds=st.lists(st.integers(0, 99), min_size=1, max_size=4), budget=st.integers(1, 40), blocks=st.integers(8, 12))
def test_rule_36_a_structured_answer_depends_on_nothing_but_its_request(
    tiny_folder: Path, seeds: list[int], budget: int, blocks: int
) -> None:
    grammar = as_grammar(guided_json=OPEN[1])
    work = [params(grammar, seed, max_tokens=60) for seed in seeds]
    crowded = run(tiny_folder, work, blocks, max_num_batched_tokens=budget)
    assert [answer.tokens for answer in crowded] == [answer.tokens for answer in run(tiny_folder, work)]


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"guided_regex": "[a-c]{2,5}[0-9]"}, "[a-c]{2,5}[0-9]"),
        ({"structured_outputs": {"regex": "(ab)+c?"}}, "(ab)*(ab?c?)?"),
        ({"guided_choice": ["red", "green", 'b"lue']}, 'red|green|b"lue'),
        ({"structured_outputs": {"grammar": 'start: "x" y\ny: "1" | "2"'}}, "x[12]"),
        ({"guided_grammar": 'root ::= "q" [0-9] [0-9]'}, "q[0-9]{2}"),
    ],
)
def test_regular_expressions_choices_and_grammars_hold(tiny_folder: Path, asked: dict[str, Any], pattern: str) -> None:
    grammar = as_grammar(**asked)
    for answer in run(
        tiny_folder, [params(grammar, seed, max_tokens=20, ignore_eos=seed % 2 == 0) for seed in range(10)]
    ):
        assert re.fullmatch(pattern, answer.text), answer.text


def test_json_object_is_an_object_and_neighbours_stay_free(tiny_folder: Path) -> None:
    work = [params(as_grammar(response_format={"type": "json_object"}), 1), SamplingParams(seed=2, max_tokens=30)]
    both, alone = run(tiny_folder, work), run(tiny_folder, work[1:])
    assert both[0].text.startswith("{")
    prompt_differs = [SamplingParams(seed=2, max_tokens=30)] * 2
    assert both[1].tokens == run(tiny_folder, prompt_differs)[1].tokens
    assert len(alone[0].tokens) == 30


def test_a_grammar_that_does_not_compile_fails_its_request_alone(tiny_folder: Path) -> None:
    good = as_grammar(guided_choice=["abc"])
    broken, fine = run(tiny_folder, [params('{"grammars": [{"lark_grammar": "start: x"}]}', 1), params(good, 2)])
    assert broken.reason is FinishReason.REFUSED and "cannot be compiled" in str(broken.error)
    assert fine.text == "abc"


def test_the_mask_of_a_draft_is_the_mask_after_it(tiny_folder: Path) -> None:
    compiler = GrammarCompiler(lambda: load_tokenizer(tiny_folder), VOCAB)
    grammar = compiler.begin(as_grammar(guided_choice=["abc", "axe"])).grammar()
    assert grammar.allowed(list(b"axe")) == 3 and grammar.allowed(list(b"abd")) == 2
    (masks,) = compiler.masks([(grammar, list(b"ax"))])
    assert [[token for token in range(VOCAB) if mask[token // 32] >> (token % 32) & 1] for mask in masks] == [
        list(b"a"), list(b"bx"), list(b"e"),
    ]  # fmt: skip
    (again,) = compiler.masks([(grammar, ())])
    assert again[0].tolist() == masks[0].tolist()
