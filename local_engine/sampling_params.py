"""How the tokens of one sequence are chosen and when it ends: vLLM's parameters with vLLM's meaning."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .errors import RequestError

MAX_STOP_STRINGS = 16


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Validated at construction (`RequestError` names the parameter); `check_vocabulary` needs the model.

    The sampler reads: temperature (0 = greedy), top_p, top_k, min_p, seed, the penalties, logit_bias, logprobs and, while
    fewer than `min_tokens` tokens are out, it masks `eos_token_ids` and `stop_token_ids`. The scheduler reads the rest.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1 at the edge: off. Stored as 0."""
    min_p: float = 0.0
    seed: int = 0
    """Philox key, 64 bits. Always set by the time a sequence is scheduled."""
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    """All EOS ids of the model's generation config; filled in by the engine, not by callers."""
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    presence_penalty: float = 0.0
    """Over output tokens, as OpenAI documents."""
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output tokens."""
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    """None: none. k: the sampled token's and the k best, of the raw distribution."""

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0.0, 100.0)
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be in (0, 1], got {self.top_p}.", param="top_p")
        if self.top_k < -1:
            raise RequestError(f"top_k must be 0 or -1 (off) or at least 1, got {self.top_k}.", param="top_k")
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0.0):
            raise RequestError(
                f"repetition_penalty must be greater than zero, got {self.repetition_penalty}.",
                param="repetition_penalty",
            )
        if not 0 <= self.seed < 1 << 64:
            raise RequestError(f"seed must fit in 64 bits, got {self.seed}.", param="seed")
        if self.max_tokens < 0:
            raise RequestError(f"max_tokens must be at least 1, got {self.max_tokens}.", param="max_tokens")
        if not self.min_tokens >= 0:
            raise RequestError(f"min_tokens must be 0 or more, got {self.min_tokens}.", param="min_tokens")
        if self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must be at most max_tokens={self.max_tokens}, got {self.min_tokens}.", param="min_tokens"
            )
        if any(not text for text in self.stop):
            raise RequestError("stop cannot contain an empty string.", param="stop")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}.", param="stop")
        if self.logprobs is not None and self.logprobs < 0:
            raise RequestError(f"logprobs must be 0 or more, got {self.logprobs}.", param="logprobs")
        for token, bias in self.logit_bias.items():
            _within("logit_bias", bias, -100.0, 100.0, what=f"logit_bias of token {token}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def ending_token_ids(self) -> frozenset[int]:
        """Tokens that end the sequence once `min_tokens` are out."""
        eos = () if self.ignore_eos else self.eos_token_ids
        return frozenset(eos) | frozenset(self.stop_token_ids)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises `RequestError` when a token id named here is not one of the model's (ids are 0..vocab_size-1)."""
        for param, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", tuple(self.logit_bias))):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise RequestError(
                        f"token id {token} in {param} is out of vocabulary (0..{vocab_size - 1}).", param=param
                    )


def _within(param: str, value: float, low: float, high: float, what: str | None = None) -> None:
    if not low <= value <= high:
        raise RequestError(f"{what or param} must be in [{low:g}, {high:g}], got {value}.", param=param)
