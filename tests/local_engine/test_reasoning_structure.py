"""Reasoning before a structured answer: thoughts are free, and what follows their closing tag validates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from local_engine.config import EngineConfig
from local_engine.engine_core import EngineCore
from local_engine.grammars import GrammarCompiler
from local_engine.messages import AddSequence
from local_engine.server.reasoning import CLOSE, OPEN, Reasoning, ReasoningParser
from local_engine.server.replies import Piece, Reply
from local_engine.server.structure import after_reasoning
from local_engine.tokenizer import Tokenizer, load_tokenizer

from .dice import DiceRunner, drained
from .test_structured_output import BOUNDED, as_grammar, params
from .tiny import END, EXTRA_END, VOCAB, write_model_folder

pytestmark = pytest.mark.usefixtures("one_thread")

MOST = 500
ANSWERS: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": BOUNDED[0]}, '{"name":"x","age":3}'),
    ({"guided_regex": "[ab]+c"}, "abc"),
    ({"guided_choice": ["red", "<think>"]}, "red"),
    ({"guided_grammar": 'start: "x" y\ny: "1" | "2"'}, "x2"),
]


@pytest.mark.parametrize("beginning", [Reasoning.CERTAIN, Reasoning.POSSIBLE])
@pytest.mark.parametrize("tag", [CLOSE, OPEN + "ha" + CLOSE])
def test_after_reasoning_the_answer_validates(
    tiny_folder: Path, tiny_tokenizer: Tokenizer, beginning: Reasoning, tag: str
) -> None:
    compiler = GrammarCompiler(lambda: load_tokenizer(tiny_folder), VOCAB)
    core = EngineCore(EngineConfig("dice"), DiceRunner(256, MOST + 20, saying=tag.encode()), grammars=compiler)
    drawn: dict[int, list[int]] = {}
    for number in range(24):
        grammar = after_reasoning(as_grammar(guided_json=BOUNDED[number % 4]), beginning, tiny_tokenizer)
        drawn[number] = []
        core.handle(AddSequence(number, [number, 7], params(grammar, number, max_tokens=MOST), 0, b"", 0, None))
    for update in drained(core):
        assert update.error is None
        drawn[update.id] += update.tokens
    closed, thought = 0, 0
    for number, tokens in drawn.items():
        reply = Reply(ReasoningParser(beginning))
        text = bytes(token for token in tokens if token < 256).decode()
        said = sum((reply.feed(character) for character in text), Piece()) + reply.flush()
        thought += bool(said.reasoning)
        if tokens[-1] in (END, EXTRA_END) or len(tokens) < MOST:
            closed += 1
            jsonschema.validate(json.loads(said.content), BOUNDED[number % 4])
        else:
            assert said.content == "" and said.reasoning, "only thoughts are without bound"
    assert closed >= 12 and thought


@pytest.mark.parametrize(("asked", "answer"), ANSWERS)
@pytest.mark.parametrize("special", [False, True])
def test_every_kind_of_grammar_follows_the_tag_and_nothing_comes_between(
    tmp_path: Path, asked: dict[str, Any], answer: str, special: bool
) -> None:
    folder = write_model_folder(tmp_path / "m", *((CLOSE, OPEN) if special else ()))
    tokenizer = load_tokenizer(folder)
    compiler = GrammarCompiler(lambda: tokenizer, tokenizer.vocab_size)

    def allowed(beginning: Reasoning, text: str) -> bool:
        grammar = compiler.begin(after_reasoning(as_grammar(**asked), beginning, tokenizer)).grammar()
        assert grammar.error is None
        tokens = tokenizer.encode(text)
        return grammar.allowed(tokens) == len(tokens)

    for beginning in (Reasoning.CERTAIN, Reasoning.POSSIBLE):
        assert allowed(beginning, f"{OPEN}hm\n</think {answer} ü{CLOSE}{answer}")
        assert not allowed(beginning, f"{OPEN}hm{CLOSE}\n{answer}")
        assert not allowed(beginning, f"{OPEN}hm{CLOSE}?")
    assert allowed(Reasoning.CERTAIN, f"hm{CLOSE}{answer}") and not allowed(Reasoning.POSSIBLE, f"hm{CLOSE}{answer}")
    assert allowed(Reasoning.NONE, answer) and allowed(Reasoning.POSSIBLE, answer)
    assert not allowed(Reasoning.NONE, f"{OPEN}hm{CLOSE}{answer}") or answer == "red"
