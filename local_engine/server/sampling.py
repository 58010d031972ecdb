"""From a request body to sampling parameters: defaults, limits, seeds."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ..errors import ContextOverflow, RequestError
from ..ranges import shown
from ..sampling_params import SamplingParams
from .requests import (
    MAX_BAD_CHARACTERS,
    MAX_BAD_WORDS,
    MAX_BATCH,
    MAX_ENTRIES,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
)

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's, when a completion names no `max_tokens`; less where the context leaves less."""
_TOKEN_ID = re.compile("[0-9]{1,10}")

_DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


class ParameterBuilder:
    """What is the same for all requests of one model. `draw_seed` serves requests that name none."""

    def __init__(
        self,
        *,
        max_model_len: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        defaults: Mapping[str, Any],
        seed: int | None,
        priorities: bool,
        max_logprobs: int,
        encode: Callable[[str], list[int]],
    ) -> None:
        """`encode`: a text's tokens without special ones, for bad_words."""
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self._eos = eos_token_ids
        self._defaults = {**_DEFAULTS, **defaults}
        self._random = random.Random(seed)
        self._priorities = priorities
        self._max_logprobs = max_logprobs
        self._encode = encode

    def pooling(
        self, body: EmbeddingRequest, prompts: Sequence[Sequence[int]], mode: Literal["last", "mean"]
    ) -> list[SamplingParams]:
        """For sequences of which only a vector is wanted. Raises `RequestError` and `ContextOverflow`."""
        self._check_prompts(body, prompts, "input")
        for prompt in prompts:
            if len(prompt) >= self.max_model_len:
                raise ContextOverflow(limit=self.max_model_len - 1, prompt=len(prompt), output=None, param="input")
        return [SamplingParams(max_tokens=0, pooling=mode) for _ in prompts]

    def build(
        self,
        body: ChatRequest | CompletionRequest,
        prompts: Sequence[Sequence[int]],
        *,
        wanted: int | None,
        param: str,
        unasked: int | None = None,
        grammar: str | None = None,
        keep_special_tokens: bool = False,
    ) -> list[SamplingParams]:
        """One set of parameters per prompt. `wanted`: output tokens asked for; None: what the context leaves, at most
        `unasked`. `keep_special_tokens`: a parser looks for them in the text.

        Raises `RequestError`, and `ContextOverflow` with the limit, the prompt's and the output's tokens.
        """
        self._check_shape(body, prompts)
        given = {name: getattr(body, name) for name in _DEFAULTS if getattr(body, name) is not None}
        if grammar is not None and not self._eos:
            raise RequestError(
                "structured output needs a model with an end-of-sequence token.", param="response_format"
            )
        stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        logprobs, prompt_logprobs = self._logprobs(body)
        bad_words = self._bad_words(body.bad_words or [])
        logit_bias = _logit_bias(body.logit_bias)
        sets: list[SamplingParams] = []
        for prompt in prompts:
            room = self.max_model_len - len(prompt)
            if room < (1 if wanted is None else wanted) or room < 1:
                raise ContextOverflow(limit=self.max_model_len, prompt=len(prompt), output=wanted, param=param)
            output = min(room, unasked or room) if wanted is None else wanted
            values = {**self._defaults, **given}
            params = SamplingParams(
                **{name: values[name] for name in _DEFAULTS},
                seed=self._seed(body.seed),
                max_tokens=output,
                min_tokens=body.min_tokens,
                stop=stop,
                stop_token_ids=tuple(body.stop_token_ids or ()),
                eos_token_ids=self._eos,
                ignore_eos=body.ignore_eos,
                include_stop_str_in_output=body.include_stop_str_in_output,
                skip_special_tokens=body.skip_special_tokens and not keep_special_tokens,
                grammar=grammar,
                logit_bias=logit_bias,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                bad_words=bad_words,
                allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
            )
            sets.append(params)
        for params in sets[:1]:  # they differ in seeds and numbers of tokens alone
            params.check_vocabulary(self.vocab_size)
        return sets

    def _logprobs(self, body: ChatRequest | CompletionRequest) -> tuple[int | None, int | None]:
        """How many rivals of each output token, and of each prompt token; None: no log probabilities at all."""
        prompt = body.prompt_logprobs
        if isinstance(body, ChatRequest):
            if body.top_logprobs and not body.logprobs:
                raise RequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
            wanted = (body.top_logprobs or 0) if body.logprobs else None
            param = "top_logprobs"
        else:
            wanted, param = body.logprobs, "logprobs"
            if body.echo and prompt is None:
                prompt = wanted
        for name, count in ((param, wanted), ("prompt_logprobs", prompt)):
            if count is not None and count > self._max_logprobs:
                raise RequestError(
                    f"{name} must be at most {self._max_logprobs} here (--max-logprobs), got {shown(count)}.",
                    param=name,
                )
        if prompt is not None and body.stream and body.prompt_logprobs is not None:
            raise RequestError("prompt_logprobs cannot be streamed.", param="prompt_logprobs")
        return wanted, prompt

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as it begins a text and, where that is as many tokens with another first one, as it follows a space."""
        if len(words) > MAX_BAD_WORDS or sum(map(len, words)) > MAX_BAD_CHARACTERS:
            raise RequestError(
                f"bad_words takes at most {MAX_BAD_WORDS} words of {MAX_BAD_CHARACTERS} characters together, got {len(words)} of "
                f"{sum(map(len, words))}.",
                param="bad_words",
            )
        sequences: list[tuple[int, ...]] = []
        for word in words:
            bare, spaced = (tuple(self._encode(prefix + word.lstrip())) for prefix in ("", " "))
            if not bare:
                raise RequestError("bad_words cannot contain an empty string.", param="bad_words")
            sequences.append(bare)
            if len(spaced) == len(bare) and spaced[0] != bare[0]:
                sequences.append(spaced)
        return tuple(sequences)

    def truncated(
        self, body: ChatRequest | CompletionRequest | EmbeddingRequest, prompt: list[int], output: int | None
    ) -> list[int]:
        """The prompt's last `truncate_prompt_tokens`; with -1 as many as leave room for the output (one token if unsaid)."""
        keep = body.truncate_prompt_tokens
        if keep is None:
            return prompt
        if keep == 0:
            raise RequestError(
                "truncate_prompt_tokens must be -1 or at least 1, got 0.", param="truncate_prompt_tokens"
            )
        return prompt[-keep:] if keep > 0 else prompt[-max(1, self.max_model_len - (output or 1)) :]

    def _seed(self, seed: int | None) -> int:
        if seed is None:
            return self._random.getrandbits(64)
        return seed % (1 << 64)

    def _check_shape(self, body: ChatRequest | CompletionRequest, prompts: Sequence[Sequence[int]]) -> None:
        if body.stream_options is not None and not body.stream:
            raise RequestError("stream_options is allowed only when stream is true.", param="stream_options")
        if body.stream_options is not None and body.stream_options.include_obfuscation:
            raise RequestError("stream_options.include_obfuscation is not supported.", param="stream_options")
        check_batch(len(prompts), "prompt")
        if body.n * len(prompts) > MAX_BATCH:
            raise RequestError(
                f"n times the number of prompts is at most {MAX_BATCH}, got {body.n} times {len(prompts)}.", param="n"
            )
        _check_entries(body, body.n * len(prompts))
        self._check_prompts(body, prompts, "prompt")

    def _check_prompts(
        self, body: ChatRequest | CompletionRequest | EmbeddingRequest, prompts: Sequence[Sequence[int]], param: str
    ) -> None:
        check_batch(len(prompts), param)
        if body.priority != 0 and not self._priorities:
            raise RequestError("priority needs an engine started with --scheduling-policy priority.", param="priority")
        for index, prompt in enumerate(prompts):
            if not prompt:
                where = f"{param} {index} of {len(prompts)}" if len(prompts) > 1 else f"the {param}"
                raise RequestError(f"{where} is empty: it must hold at least one token.", param=param)
            check_token_ids(prompt, self.vocab_size, param)


def check_batch(prompts: int, param: str) -> None:
    if prompts > MAX_BATCH:
        raise RequestError(f"{param} takes at most {MAX_BATCH} prompts, got {prompts}.", param=param)


def check_token_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises `RequestError` naming the first of `ids` (at least one) that is no token of the model's."""
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise RequestError(f"token id {shown(wrong)} is out of vocabulary (0..{vocab_size - 1}).", param=param)


def chat_output_tokens(body: ChatRequest) -> int | None:
    """`max_completion_tokens`, or its older name; both only if they agree."""
    new, old = body.max_completion_tokens, body.max_tokens
    if new is not None and old is not None and new != old:
        raise RequestError("max_tokens and max_completion_tokens differ; send one of them.", param="max_tokens")
    wanted = new if new is not None else old
    if wanted is not None and wanted < 1:
        param = "max_completion_tokens" if new is not None else "max_tokens"
        raise RequestError(f"{param} must be at least 1, got {wanted}.", param=param)
    return wanted


def completion_output_tokens(body: CompletionRequest) -> int | None:
    """`max_tokens`; 0 is meant only to have the prompt echoed."""
    wanted = body.max_tokens
    if wanted is not None and wanted < (0 if body.echo else 1):
        raise RequestError(f"max_tokens must be at least 1 (0 only with echo), got {wanted}.", param="max_tokens")
    return wanted


def _check_entries(body: ChatRequest | CompletionRequest, sequences: int) -> None:
    for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
        entries = len(getattr(body, name) or ())
        if entries * sequences > MAX_ENTRIES:
            raise RequestError(
                f"{name} takes at most {MAX_ENTRIES} entries, counted for each of a request's sequences, got {entries} for "
                f"{sequences}.",
                param=name,
            )


def _logit_bias(given: Mapping[str, float] | None) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in (given or {}).items():
        if not _TOKEN_ID.fullmatch(key):
            raise RequestError(f"logit_bias takes token ids as keys, got {shown(key)}.", param="logit_bias")
        bias[int(key)] = value
    return bias
