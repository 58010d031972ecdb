"""One request on its way: its choices, their text as it grows, and what it used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from .detokenizer import IncrementalDetokenizer, StopStrings
from .messages import Update
from .sampling_params import SamplingParams
from .sequence import FinishReason
from .token_logprobs import TokenLogprobs
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What the server asks of the engine: `n` choices for each prompt."""

    request_id: str
    prompts: list[list[int]]
    params: list[SamplingParams]
    """One per prompt, seeds drawn."""
    n: int = 1
    salt: bytes = b""
    priority: int = 0
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Exact counts. A prompt is counted once, however many choices it has; `cached` is part of `prompt`."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    compute_us: int


@dataclass(frozen=True, slots=True)
class Delta:
    """News of one choice: more text, more tokens, its end."""

    index: int
    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of `tokens`, where they were asked for."""


def joined(deltas: Sequence[Delta]) -> Delta:
    """All of a choice's news in one, in the state of the last."""
    last = deltas[-1]
    return replace(
        last,
        text="".join(delta.text for delta in deltas),
        tokens=tuple(chain.from_iterable(delta.tokens for delta in deltas)),
        logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
    )


class Choice:
    """One output sequence: turns tokens into text that may be shown, and counts what is billed."""

    def __init__(self, index: int, sequence_id: int, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.index = index
        self.sequence_id = sequence_id
        self.params = params
        self.tokens = 0
        self.compute_us = 0
        self.cached_tokens = 0
        self.ended = False
        self.last_token_s: float | None = None
        self.prompt_logprobs: list[TokenLogprobs] = []
        """Of the prompt's tokens from the second one on, as far as they are known."""
        self.embedding: list[float] = []
        self._stop_strings = StopStrings(params.stop, include=params.include_stop_str_in_output)
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that was found; tokens after it are discarded and not counted."""
        return self._stop_strings.matched

    def apply(self, update: Update) -> Delta:
        """Takes one update of the core in. After a match the choice ends when the core confirms."""
        self.compute_us = update.compute_us
        self.cached_tokens = update.cached_tokens
        self.prompt_logprobs += update.prompt_logprobs
        self.embedding = update.embedding
        text, tokens = self._read(update)
        logprobs = tuple(update.logprobs[: len(tokens)])
        if update.finish_reason is None:
            return Delta(self.index, text, tokens, logprobs=logprobs)
        self.ended = True
        if self._stop_strings.matched is None and update.error is None:
            text += self._stop_strings.feed(self._detokenizer.flush(), check=self._checks)
            text += self._stop_strings.flush()
        if self._stop_strings.matched is not None:
            return Delta(self.index, text, tokens, FinishReason.STOP, self._stop_strings.matched, None, logprobs)
        reason = update.stop_token if update.stop_token in self.params.stop_token_ids else None
        return Delta(self.index, text, tokens, update.finish_reason, reason, update.error, logprobs)

    def _read(self, update: Update) -> tuple[str, tuple[int, ...]]:
        """The text and the tokens that count: up to the one that completes a stop string."""
        text, taken = "", 0
        for token in update.tokens:
            if self.stopped_by is not None:
                break
            taken += 1
            self.tokens += 1
            ends = update.stop_token is not None and taken == len(update.tokens)
            if not ends or self.params.include_stop_str_in_output:
                text += self._stop_strings.feed(self._detokenizer.feed(token), check=self._checks)
        return text, tuple(update.tokens[:taken])

    @property
    def _checks(self) -> bool:
        return self.tokens >= self.params.min_tokens


@dataclass(slots=True, eq=False)
class Generation:
    """A request in flight, or just ended. `deltas` is read by one consumer; usage stands when `ended` is set."""

    request: GenerationRequest
    choices: list[Choice]
    started_s: float = field(default_factory=time.monotonic)
    first_token_s: float | None = None
    aborted: bool = False
    error: str | None = None
    """Why the whole request failed (the core died); a single choice's error is in its delta."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _pending: list[Delta] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def usage(self) -> Usage:
        n = self.request.n
        return Usage(
            prompt_tokens=sum(len(prompt) for prompt in self.request.prompts),
            completion_tokens=sum(choice.tokens for choice in self.choices),
            cached_tokens=sum(choice.cached_tokens for choice in self.choices[::n]),
            compute_us=sum(choice.compute_us for choice in self.choices),
        )

    def push(self, delta: Delta) -> None:
        self._pending.append(delta)
        self._news.set()

    def end(self, error: str | None = None) -> None:
        self.error = error
        self.ended.set()
        self._news.set()

    async def next(self) -> list[Delta]:
        """All deltas since the last call, waiting for the first; empty when there are no more."""
        while not self._pending and not self.ended.is_set():
            self._news.clear()
            await self._news.wait()
        pending, self._pending = self._pending, []
        return pending
