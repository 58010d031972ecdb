"""How the tokens of one sequence are chosen and when it ends: vLLM's parameters with vLLM's meaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .errors import RequestError
from .ranges import ITEM_RANGES, check_range, shown

MAX_STOP_STRINGS = 16
GREEDY_BELOW = 1e-5
LOWEST_TEMPERATURE = 0.01
"""vLLM's two: below the first a temperature means greedy; below the second it is raised to it, for logits stay finite."""

_NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Validated at construction (`RequestError` names the parameter); `check_vocabulary` needs the model.

    The sampler reads: temperature (0 = greedy), top_p, top_k, min_p, seed, the penalties, logit_bias, bad_words,
    allowed_token_ids, logprobs and, while fewer than `min_tokens` tokens are out, it masks `eos_token_ids` and
    `stop_token_ids`. The scheduler reads the rest.
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
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens; the prefix cache is then not read."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that never come out whole."""
    allowed_token_ids: tuple[int, ...] | None = None
    pooling: Literal["last", "mean"] | None = None
    """Nothing is drawn; wanted is the vector of the prompt's last token, or the mean over all of its tokens."""
    grammar: str | None = None
    """What the output looks like (grammars.py). It ends the sequence where nothing may follow, also with `ignore_eos`."""

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            check_range(name, getattr(self, name))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if self.temperature < LOWEST_TEMPERATURE:
            effective = 0.0 if self.temperature < GREEDY_BELOW else LOWEST_TEMPERATURE
            object.__setattr__(self, "temperature", effective)
        if not 0 <= self.seed < 1 << 64:
            raise RequestError(f"seed must fit in 64 bits, got {shown(self.seed)}.", param="seed")
        if self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must be at most max_tokens={self.max_tokens}, got {self.min_tokens}.", param="min_tokens"
            )
        if any(not text for text in self.stop):
            raise RequestError("stop cannot contain an empty string.", param="stop")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}.", param="stop")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids must name at least one token.", param="allowed_token_ids")
        for token, bias in self.logit_bias.items():
            if bias not in ITEM_RANGES["logit_bias"]:
                allowed = ITEM_RANGES["logit_bias"]
                raise RequestError(
                    f"logit_bias of token {token} must be in {allowed}, got {shown(bias)}.", param="logit_bias"
                )

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
        for param, ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("logit_bias", tuple(self.logit_bias)),
            ("allowed_token_ids", self.allowed_token_ids or ()),
        ):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise RequestError(
                        f"token id {shown(token)} in {param} is out of vocabulary (0..{vocab_size - 1}).", param=param
                    )
        if not (self.min_tokens or self.bad_words):
            return
        allowed = set(self.allowed_token_ids if self.allowed_token_ids is not None else range(vocab_size))
        if self.min_tokens and allowed <= self.ending_token_ids:
            raise RequestError(
                "min_tokens forbids every token here: stop_token_ids name all that are allowed.", param="min_tokens"
            )
        if allowed <= {word[0] for word in self.bad_words if len(word) == 1}:
            raise RequestError("bad_words forbid every token that is allowed.", param="bad_words")
