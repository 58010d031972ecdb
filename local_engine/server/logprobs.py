"""Log probabilities as OpenAI's chat, its older completions and vLLM word them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..token_logprobs import TokenLogprobs
from ..tokenizer import Tokenizer

LOWEST = -9999.0
"""What JSON has instead of minus infinity; vLLM's number."""


class LogprobWords:
    """How one request wants tokens spelt: as text, or with `as_ids` as `token_id:7`."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer, self._as_ids = tokenizer, as_ids

    def token(self, token_id: int) -> str:
        """Part of a character is shown as U+FFFD; `bytes` then tell what it is."""
        if self._as_ids:
            return f"token_id:{token_id}"
        return self._tokenizer.bytes_of(token_id).decode("utf-8", errors="replace")

    def chat(self, told: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """OpenAI's `logprobs` of a chat choice."""
        return {
            "content": [
                {
                    **self._entry(one.ids[0], one.values[0]),
                    "top_logprobs": [self._entry(*pair) for pair in list(zip(one.ids, one.values, strict=True))[1:]],
                }
                for one in told
            ],
            "refusal": None,
        }

    def completion(self, told: Sequence[TokenLogprobs | None], tokens: Sequence[int], offset: int) -> dict[str, Any]:
        """OpenAI's `logprobs` of a plain completion; `told` is None for a prompt's first token. `offset`: of the first token, in
        characters of the choice's text."""
        words = [self.token(token) for token in tokens]
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(self._tokenizer.bytes_of(token).decode("utf-8", errors="replace"))
        return {
            "tokens": words,
            "token_logprobs": [None if one is None else _number(one.values[0]) for one in told],
            "top_logprobs": [None if one is None else self._best(one) for one in told],
            "text_offset": offsets,
        }

    def prompt(self, told: Sequence[TokenLogprobs]) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: null for the first token, then by token id."""
        entries: list[dict[str, Any] | None] = [None]
        for one in told:
            ranks = [one.rank, *range(1, len(one.ids))]
            entries.append(
                {
                    str(token): {"logprob": _number(value), "rank": rank, "decoded_token": self.token(token)}
                    for token, value, rank in reversed(list(zip(one.ids, one.values, ranks, strict=True)))
                }
            )
        return entries

    def _best(self, one: TokenLogprobs) -> dict[str, float]:
        """The best ones and, as OpenAI does, the token itself."""
        pairs = [*zip(one.ids[1:], one.values[1:], strict=True), (one.ids[0], one.values[0])]
        return {self.token(token): _number(value) for token, value in pairs}

    def _entry(self, token_id: int, value: float) -> dict[str, Any]:
        return {
            "token": self.token(token_id),
            "logprob": _number(value),
            "bytes": list(self._tokenizer.bytes_of(token_id)),
        }


def _number(value: float) -> float:
    return max(value, LOWEST)
