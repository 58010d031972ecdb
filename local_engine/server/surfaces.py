"""How the two surfaces word what a choice has said: OpenAI's chat and its older plain completions, with vLLM's extras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..generation import Choice, Delta, Generation
from ..sequence import FinishReason
from ..token_logprobs import TokenLogprobs
from .logprobs import LogprobWords
from .replies import Piece, Reply

Body = dict[str, Any]


class Surface(Protocol):
    """One request's. `pieces` is called with every delta of a choice in order, or `whole` once with all of them joined."""

    id_prefix: str
    object: str
    chunk_object: str

    def opening(self, choice: Choice) -> Body | None:
        """The first chunk of a choice, before anything it says."""

    def piece(self, delta: Delta) -> Body | None:
        """A chunk's choice; None where there is nothing to say yet."""

    def whole(self, delta: Delta) -> Body:
        """A finished choice, from one delta that holds all of it."""

    def extra(self, generation: Generation) -> Body:
        """Further fields of a whole answer."""


class ChatSurface:
    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, words: LogprobWords, new_reply: Callable[[], Reply], *, logprobs: bool) -> None:
        self._words, self._new_reply, self._logprobs = words, new_reply, logprobs
        self._replies: dict[int, Reply] = {}

    def opening(self, choice: Choice) -> Body | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, delta: Delta) -> Body | None:
        said = self._read(delta)
        if not said and delta.finish_reason is None and not delta.logprobs:
            return None
        return {"index": delta.index, "delta": said.delta(), **self._end(delta)}

    def whole(self, delta: Delta) -> Body:
        said = self._read(delta)
        return {"index": delta.index, "message": said.message(), **self._end(delta)}

    def extra(self, generation: Generation) -> Body:
        asked = generation.request.params[0].prompt_logprobs is not None
        return {"prompt_logprobs": self._words.prompt(generation.choices[0].prompt_logprobs)} if asked else {}

    def _read(self, delta: Delta) -> Piece:
        reply = self._replies.get(delta.index)
        if reply is None:
            reply = self._replies[delta.index] = self._new_reply()
        said = reply.feed(delta.text)
        return said + reply.flush() if delta.finish_reason is not None else said

    def _end(self, delta: Delta) -> Body:
        reason: str | None = delta.finish_reason
        if delta.finish_reason is FinishReason.STOP and self._replies[delta.index].ends_with_calls:
            reason = "tool_calls"
        logprobs = self._words.chat(delta.logprobs) if self._logprobs else None
        return {"logprobs": logprobs, "finish_reason": reason, "stop_reason": delta.stop_reason}


class CompletionSurface:
    """`echo`: each prompt's text, put before its choices' own; empty where nobody asked."""

    id_prefix = "cmpl-"
    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, words: LogprobWords, generation: Generation, echo: Sequence[str], *, logprobs: bool) -> None:
        self._words, self._generation, self._echo, self._logprobs = words, generation, echo, logprobs
        self._shown = [len(self._echo_of(choice.index)) for choice in generation.choices]
        """Characters of each choice's text so far."""

    def opening(self, choice: Choice) -> Body | None:
        text = self._echo_of(choice.index)
        return {"index": choice.index, "text": text, **self._end(Delta(choice.index, text, ()), None)} if text else None

    def piece(self, delta: Delta) -> Body | None:
        if not delta.text and delta.finish_reason is None and not delta.logprobs:
            return None
        return {"index": delta.index, "text": delta.text, **self._end(delta, self._told(delta))}

    def whole(self, delta: Delta) -> Body:
        text = self._echo_of(delta.index) + delta.text
        body: Body = {"index": delta.index, "text": text, **self._end(delta, self._told(delta, with_prompt=True))}
        prompt = self._prompt_logprobs(delta.index)
        if self._generation.request.params[0].prompt_logprobs is not None:
            body["prompt_logprobs"] = self._words.prompt(prompt)
        return body

    def extra(self, generation: Generation) -> Body:
        return {}

    def _told(self, delta: Delta, *, with_prompt: bool = False) -> Body | None:
        if not self._logprobs:
            return None
        told: list[TokenLogprobs | None] = list(delta.logprobs)
        tokens = list(delta.tokens)
        offset = self._shown[delta.index]
        if with_prompt and self._echo:
            prompt = self._generation.request.prompts[self._prompt_of(delta.index)]
            told, tokens, offset = [None, *self._prompt_logprobs(delta.index), *told], [*prompt, *tokens], 0
        self._shown[delta.index] += len(delta.text)
        return self._words.completion(told, tokens, offset)

    def _prompt_of(self, index: int) -> int:
        return index // self._generation.request.n

    def _prompt_logprobs(self, index: int) -> list[TokenLogprobs]:
        return self._generation.choices[self._prompt_of(index) * self._generation.request.n].prompt_logprobs

    def _echo_of(self, index: int) -> str:
        return self._echo[self._prompt_of(index)] if self._echo else ""

    def _end(self, delta: Delta, told: Body | None) -> Body:
        return {"logprobs": told, "finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
