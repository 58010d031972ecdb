"""OpenAI's usage object, normalised once into disjoint classes.

`prompt_tokens` includes cached and audio tokens, `completion_tokens` includes reasoning and audio. Providers differ at the
edges: DeepSeek names cached tokens `prompt_cache_hit_tokens`; xAI counts reasoning beside
`completion_tokens`. An impossible count is clamped and named in `Usage.flaw`, never billed negative.
"""

from __future__ import annotations

from typing import Final

import msgspec

from billing.usage import Usage
from gateway.upstream.shapes import CompletionDetails, PromptDetails, Reported, Timed

MOST_TOKENS: Final = 10**12
"""A single request beyond this is a provider's mistake; the product with any price still fits an amount's 64 bits or says so."""
MOST_COMPUTE_US: Final = 7 * 86_400 * 1_000_000
"""No request keeps an engine for more than a week."""
ENGINE_TIME: Final = "metergate"
"""The field of a usage object in which an engine tells its own time; it stays between the two."""
SHOWN_BELOW: Final = 2**64
"""A flaw shows a count up to this; the digits of a longer one say nothing and would fill the journal."""


_decoder = msgspec.json.Decoder(Reported, strict=False)
_timed = msgspec.json.Decoder(Timed)
_encode = msgspec.json.Encoder().encode
_NO_PROMPT: Final = PromptDetails()
_NO_COMPLETION: Final = CompletionDetails()


def shown(count: int) -> str:
    """A count as it may stand in a flaw's text, whatever its size."""
    return str(count) if abs(count) < SHOWN_BELOW else "beyond 64 bits"


class Counts:
    """Clamps counts and remembers the first thing that could not be."""

    __slots__ = ("flaw",)

    def __init__(self) -> None:
        self.flaw: str | None = None

    def take(self, name: str, count: int | None, most: int = MOST_TOKENS) -> int:
        if count is None or 0 <= count <= most:
            return count or 0
        self.mark(f"{name} is {shown(count)}" + (f", more than {most}" if 0 <= count < SHOWN_BELOW else ""))
        return max(0, min(count, most))

    def mark(self, flaw: str) -> None:
        self.flaw = self.flaw or flaw


def from_openai(raw: bytes) -> Usage | None:
    """None when `raw` is no usage object or counts nothing at all (a placeholder)."""
    try:
        reported = _decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    if reported.prompt_tokens is None and reported.completion_tokens is None:
        return None
    if reported.prompt_tokens_details is None and reported.completion_tokens_details is None:
        plain = _plain(reported)
        if plain is not None:
            return plain
    return _detailed(reported)


def from_engine(raw: bytes) -> Usage | None:
    """As `from_openai`, with the engine's own time (`metergate.compute_us`), which nobody else is believed to have."""
    usage = from_openai(raw)
    if usage is None:
        return None
    counts = Counts()
    counts.flaw = usage.flaw
    try:
        said = _timed.decode(raw).metergate
    except (msgspec.DecodeError, RecursionError):
        said, counts.flaw = None, counts.flaw or "compute_us is no count"
    spent_us = counts.take("compute_us", None if said is None else said.compute_us, MOST_COMPUTE_US)
    if not spent_us and counts.flaw == usage.flaw:
        return usage
    return msgspec.structs.replace(usage, compute_us=spent_us, flaw=counts.flaw)


def _plain(reported: Reported) -> Usage | None:
    """The common case: nothing but prompt and completion, and the total agrees."""
    prompt, completion = reported.prompt_tokens or 0, reported.completion_tokens or 0
    if reported.prompt_cache_hit_tokens or not (0 <= prompt <= MOST_TOKENS and 0 <= completion <= MOST_TOKENS):
        return None
    if reported.total_tokens is not None and reported.total_tokens != prompt + completion:
        return None
    return Usage(input=prompt, output=completion)


def _detailed(reported: Reported) -> Usage:
    counts = Counts()
    prompt_details = reported.prompt_tokens_details or _NO_PROMPT
    completion_details = reported.completion_tokens_details or _NO_COMPLETION
    prompt = counts.take("prompt_tokens", reported.prompt_tokens)
    completion = counts.take("completion_tokens", reported.completion_tokens)

    cached = prompt_details.cached_tokens
    cached = counts.take("cached tokens", reported.prompt_cache_hit_tokens if cached is None else cached, prompt)
    audio_input = counts.take("audio input tokens", prompt_details.audio_tokens, prompt - cached)
    image_input = counts.take("image input tokens", prompt_details.image_tokens, prompt - cached - audio_input)
    written = counts.take(
        "cache write tokens", prompt_details.cache_write_tokens, prompt - cached - audio_input - image_input
    )

    reasoning = counts.take("reasoning tokens", completion_details.reasoning_tokens)
    completion += _outside(reported, prompt, completion, reasoning, counts)
    if reasoning > completion:
        counts.flaw = counts.flaw or f"reasoning tokens are {reasoning}, more than {completion}"
        reasoning = completion
    audio_output = counts.take("audio output tokens", completion_details.audio_tokens, completion)
    image_output = counts.take("image output tokens", completion_details.image_tokens, completion - audio_output)
    return Usage(
        input=prompt - cached - audio_input - image_input - written,
        cache_read=cached,
        cache_write_5m=written,
        output=completion - audio_output - image_output,
        audio_input=audio_input,
        audio_output=audio_output,
        image_input=image_input,
        image_output=image_output,
        reasoning=reasoning,
        flaw=counts.flaw,
    )


def _outside(reported: Reported, prompt: int, completion: int, reasoning: int, counts: Counts) -> int:
    """Reasoning that the provider counted beside `completion_tokens`, as xAI does: the parts add up only with it.

    A total that they do not add up to is a flaw. It says nothing about which part is wrong, so nothing is derived from it.
    """
    total = reported.total_tokens
    if total is None or total == prompt + completion:
        return 0
    if reasoning and total == prompt + completion + reasoning:
        return reasoning
    counts.mark(f"total_tokens is {shown(total)}, but its parts add up to {prompt + completion}")
    return 0


def to_openai_fields(usage: Usage) -> dict[str, object]:
    """OpenAI's usage object for counts that no provider reported in it."""
    prompt: dict[str, int] = {"cached_tokens": usage.cache_read, "audio_tokens": usage.audio_input}
    if usage.cache_write_5m or usage.cache_write_1h:
        prompt["cache_write_tokens"] = usage.cache_write_5m + usage.cache_write_1h
    return {
        "prompt_tokens": usage.total_input,
        "completion_tokens": usage.total_output,
        "total_tokens": usage.total,
        "prompt_tokens_details": prompt,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": usage.audio_output},
    }


def to_openai(usage: Usage) -> bytes:
    return _encode(to_openai_fields(usage))
