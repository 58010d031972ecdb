"""The parts of a request, an answer or an event that are looked into: msgspec reads these and passes over all else.

They stand apart from the code that uses them because that is compiled (`gateway/compiled.py`), and a compiled class is none that
msgspec can fill.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw, Struct

NULL: Final = Raw(b"null")
"""A field that is absent and one that is null mean the same here."""


def given(raw: Raw) -> bool:
    return bytes(raw) != b"null"


class StreamOptions(Struct):
    """Of a request."""

    include_usage: bool | None = None


class Tool(Struct):
    """Of a request."""

    type: str = "function"


class WholeAnswer(Struct):
    """An answer in one piece."""

    usage: Raw = NULL
    error: Raw = NULL
    service_tier: str | None = None


class Part(Struct):
    """A choice of a chunk, or a provider's own extension of it."""

    usage: Raw = NULL


class Chunk(Struct):
    """An event of a stream."""

    choices: list[Part] | None = None
    usage: Raw = NULL
    error: Raw = NULL
    x_groq: Part | None = None
    service_tier: str | None = None


class Head(Struct, omit_defaults=True):
    """What a chunk made by us takes over from the stream's first chunk."""

    id: str = ""
    object: str = "chat.completion.chunk"
    created: int = 0
    model: str = ""
    choices: list[Raw] = []
    usage: Raw = NULL


class PromptDetails(Struct):
    cached_tokens: int | None = None
    audio_tokens: int | None = None
    image_tokens: int | None = None
    cache_write_tokens: int | None = None


class CompletionDetails(Struct):
    reasoning_tokens: int | None = None
    audio_tokens: int | None = None
    image_tokens: int | None = None


class Reported(Struct):
    """A usage object."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Metergate(Struct):
    """What an engine of ours adds to a usage object."""

    compute_us: int | None = None


class Timed(Struct):
    metergate: Metergate | None = None
