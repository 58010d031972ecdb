"""Grammars are compiled beside the loop: who waits for one holds nobody else up, and ends as everybody ends."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local_engine.config import EngineConfig
from local_engine.core_process import Channel
from local_engine.engine_core import EngineCore
from local_engine.grammars import COMPILERS, GrammarCompiler
from local_engine.messages import Abort, AddSequence, ResetPrefixCache, Update, frame
from local_engine.sampling_params import SamplingParams
from local_engine.sequence import FinishReason
from local_engine.tokenizer import Tokenizer, load_tokenizer

from .dice import DiceRunner, drained
from .test_structured_output import as_grammar, params
from .tiny import VOCAB

pytestmark = pytest.mark.usefixtures("one_thread")

FREE, ASKING, LATER = 1, 2, 3
PATIENCE_S = 60.0


class Bench:
    """A core whose first grammar cannot be compiled before `go`."""

    def __init__(self, folder: Path, load: Callable[[Path], Tokenizer] = load_tokenizer) -> None:
        self.may_load, self.compiled = threading.Event(), threading.Event()

        def wait_and_load() -> Tokenizer:
            assert self.may_load.wait(PATIENCE_S)
            return load(folder)

        self.compiler = GrammarCompiler(wait_and_load, VOCAB, self.compiled.set)
        self.core = EngineCore(EngineConfig("dice"), DiceRunner(64, 512), grammars=self.compiler)

    def add(self, number: int, asked: SamplingParams) -> None:
        self.core.handle(AddSequence(number, [number, 65, 66], asked, 0, b"", 0, None))

    def go(self) -> None:
        self.may_load.set()
        assert self.compiled.wait(PATIENCE_S)

    def rest(self) -> dict[int, list[Update]]:
        updates: dict[int, list[Update]] = {}
        for update in drained(self.core):
            updates.setdefault(update.id, []).append(update)
        self.core.check_integrity()
        return updates


@pytest.fixture
def bench(tiny_folder: Path) -> Iterator[Bench]:
    made = Bench(tiny_folder)
    yield made
    made.may_load.set()


def test_every_step_of_a_compilation_gives_every_other_stream_its_token(bench: Bench) -> None:
    """The gap between two tokens of a stream is one step, however long a grammar takes; nothing is computed for its request."""
    bench.add(FREE, SamplingParams(seed=3, max_tokens=60, ignore_eos=True))
    bench.add(ASKING, params(as_grammar(guided_choice=["abc"]), 2))
    for _ in range(40):
        assert bench.core.has_work
        assert [(update.id, len(update.tokens)) for update in bench.core.step()] == [(FREE, 1)]
    assert bench.core.stats().waiting == 1
    bench.go()
    first = {update.id: len(update.tokens) for update in bench.core.step()}
    assert first == {FREE: 1, ASKING: 1}, "it starts with the very next step"
    assert bytes(token for update in bench.rest()[ASKING] for token in update.tokens) == b"bc"


def test_the_answer_does_not_depend_on_when_its_grammar_was_ready(bench: Bench) -> None:
    asked = params(as_grammar(guided_json={"type": "array", "items": {"type": "string"}}), 7, max_tokens=40)
    bench.add(ASKING, asked)
    before = bench.core.has_work
    bench.go()
    assert (before, bench.core.has_work) == (False, True), "an idle core sleeps until the compiler wakes it"
    waited = [token for update in bench.rest()[ASKING] for token in update.tokens]
    bench.add(ASKING, asked)
    assert not bench.core.held, "a known grammar is at hand"
    assert [token for update in bench.rest()[ASKING] for token in update.tokens] == waited


def test_one_that_waits_for_its_grammar_can_be_aborted(bench: Bench) -> None:
    bench.add(ASKING, params(as_grammar(guided_choice=["abc"]), 2))
    bench.core.handle(Abort(ASKING, None))
    (update,) = bench.core.step()
    assert (update.id, update.finish_reason) == (ASKING, FinishReason.ABORT)
    bench.go()
    assert bench.rest() == {}


def test_what_nobody_waits_for_any_more_is_not_compiled(bench: Bench) -> None:
    """A thousand callers who leave at once hold nobody up; one of two who leaves takes nothing from the other."""
    kept = as_grammar(guided_choice=["kept"])
    left = [as_grammar(guided_choice=[f"left{number}"]) for number in range(1_000)]
    for number, grammar in enumerate((*left, kept, kept)):
        bench.add(10 + number, params(grammar, 2))
    waiting = {held.sequence.id: held.compilation for held in bench.core.held}
    for number in (*range(10, 1_010), 1_011):
        bench.core.handle(Abort(number, None))
    undone = [number for number in range(10, 1_010) if not waiting[number].failed]
    assert len(undone) <= COMPILERS, "only those that a thread has begun"
    assert not waiting[1_010].done
    again = bench.compiler.begin(left[-1])
    assert again is not waiting[1_009]
    bench.go()
    again.grammar()
    ended = {number: updates[-1].finish_reason for number, updates in bench.rest().items()}
    assert ended.pop(1_010) is FinishReason.STOP
    assert set(ended.values()) == {FinishReason.ABORT}


def test_a_compiler_that_fails_fails_its_request_alone_and_is_tried_again(tiny_folder: Path) -> None:
    folders = [tiny_folder / "missing", tiny_folder]
    bench = Bench(tiny_folder, lambda _: load_tokenizer(folders.pop(0)))
    grammar = as_grammar(guided_choice=["abc"])
    bench.add(FREE, SamplingParams(seed=3, max_tokens=5, ignore_eos=True))
    bench.add(ASKING, params(grammar, 2))
    bench.go()
    ended = {number: updates[-1] for number, updates in bench.rest().items()}
    assert ended[FREE].finish_reason is FinishReason.LENGTH
    assert "cannot be compiled" in str(ended[ASKING].error)
    bench.add(LATER, params(grammar, 2))
    assert bytes(token for update in bench.rest()[LATER] for token in update.tokens) == b"abc"


def test_a_wake_up_ends_the_wait_for_messages_and_loses_none() -> None:
    ours, theirs = socket.socketpair()
    with contextlib.closing(ours), contextlib.closing(theirs), contextlib.closing(Channel(ours)) as channel:
        threading.Timer(0.01, channel.wake).start()
        assert channel.receive(None) == []
        for _ in range(10_000):
            channel.wake()
        theirs.sendall(frame(ResetPrefixCache()))
        assert channel.receive(None) == [ResetPrefixCache()]
        assert channel.receive(0.0) == []
