"""Structured output in the core: which tokens a grammar allows next, for all sequences of a step at once.

The automaton is llguidance's (https://github.com/guidance-ai/llguidance); its grammars travel as its own JSON text. A grammar
goes on by the tokens that were drawn and depends on nothing else: chunks, preemption and neighbours change nothing about it.
Compiling takes milliseconds, or a second for a large schema: threads do it while the core steps on (llguidance lets the
interpreter go meanwhile).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import llguidance
import llguidance.numpy

from .batch import Mask
from .deep_threads import deep_threads
from .tokenizer import Tokenizer

KEPT_GRAMMARS = 64
"""Compiled and at hand for the next request that brings the same text."""
COMPILERS = 2
"""Threads: a large grammar does not hold up a small one."""


class Grammar:
    """One sequence's place in its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self.matcher = matcher

    @property
    def ended(self) -> bool:
        """Nothing may follow any more."""
        return self.matcher.is_stopped() and not self.matcher.is_error()

    def advance(self, token: int) -> None:
        self.matcher.consume_token(token)

    @property
    def error(self) -> str | None:
        return self.matcher.get_error() if self.matcher.is_error() else None

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many of these, from the first on, may follow one after the other."""
        return self.matcher.validate_tokens(list(tokens))


class Compilation:
    """A grammar on its way, or there; any number of sequences wait for one."""

    def __init__(self, matcher: Future[llguidance.LLMatcher]) -> None:
        self._matcher = matcher
        self.awaited = 0
        """Sequences that have begun it, less those that left."""

    def leave(self) -> None:
        """One who began it waits no more: what nobody waits for, and no thread has taken up, is not compiled."""
        self.awaited -= 1
        if self.awaited == 0:
            self._matcher.cancel()

    @property
    def done(self) -> bool:
        return self._matcher.done()

    @property
    def failed(self) -> bool:
        """It raised, which a later try need not, or was called off."""
        return self.done and (self._matcher.cancelled() or self._matcher.exception() is not None)

    def grammar(self) -> Grammar:
        """A place at its beginning, waiting until it is compiled. Raises what compiling raised; what the library found wrong
        is in `Grammar.error`."""
        return Grammar(self._matcher.result().deep_copy())


class GrammarCompiler:
    """For one model. `load_tokenizer` is called when the first grammar comes; `compiled` by a thread whenever one is done."""

    def __init__(
        self, load_tokenizer: Callable[[], Tokenizer], vocab_size: int, compiled: Callable[[], None] = lambda: None
    ) -> None:
        self._load_tokenizer, self._vocab_size, self._compiled = load_tokenizer, vocab_size, compiled
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._loading = threading.Lock()
        self._threads = deep_threads(COMPILERS, "grammar")
        self._executor = llguidance.LLExecutor(num_threads=1)
        self._begun: OrderedDict[str, Compilation] = OrderedDict()

    def begin(self, grammar: str) -> Compilation:
        """Of a text that the HTTP process has checked; one that was seen lately is done already. Called by one thread."""
        found = self._begun.get(grammar)
        if found is None or found.failed:
            matcher = self._threads.submit(self._compile, grammar)
            matcher.add_done_callback(lambda _: self._compiled())
            found = self._begun[grammar] = Compilation(matcher)
            if len(self._begun) > KEPT_GRAMMARS:
                self._begun.popitem(last=False)
        self._begun.move_to_end(grammar)
        found.awaited += 1
        return found

    def _compile(self, grammar: str) -> llguidance.LLMatcher:
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = grammar_tokenizer(self._load_tokenizer(), self._vocab_size)
        return llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)

    def masks(self, wanted: Sequence[tuple[Grammar, Sequence[int]]]) -> list[list[Mask]]:
        """For each grammar the mask of the next token, and one for the token after each of its drafts (which it allows)."""
        rows = sum(1 + len(drafts) for _, drafts in wanted)
        bits = llguidance.numpy.allocate_token_bitmask(rows, self._vocab_size)
        plain: list[tuple[llguidance.LLMatcher, int]] = []
        drafted: list[tuple[llguidance.LLMatcher, int, list[int]]] = []
        result: list[list[Mask]] = []
        at = 0
        for grammar, drafts in wanted:
            if drafts:
                drafted.append((grammar.matcher, at, list(drafts)))
            else:
                plain.append((grammar.matcher, at))
            result.append([bits[row] for row in range(at, at + 1 + len(drafts))])
            at += 1 + len(drafts)
        if plain:
            llguidance.numpy.fill_next_token_bitmask_par(self._executor, plain, bits)
        if drafted:
            llguidance.numpy.fill_next_token_bitmask_par_with_draft_tokens(self._executor, drafted, bits)
        return result


class _Wrapped:
    """Our tokenizer as llguidance asks for one."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.eos_token_id = tokenizer.special.eos_ids[0]
        self.bos_token_id = None
        self.tokens = [tokenizer.bytes_of(token) for token in range(vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        return self._tokenizer.encode(text, add_special_tokens=False)


def grammar_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> llguidance.LLTokenizer:
    """`vocab_size` is the model's, which may be larger than the tokenizer's own."""
    wrapped = llguidance.TokenizerWrapper(_Wrapped(tokenizer, vocab_size))
    return llguidance.LLTokenizer(wrapped, n_vocab=vocab_size, eos_token=list(tokenizer.special.eos_ids))
