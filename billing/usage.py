"""Usage: how many tokens of each class one attempt used, normalised so that the billable classes are disjoint.

OpenAI counts cached tokens inside `prompt_tokens`, Anthropic counts them beside `input_tokens`; a provider adapter turns
either into this one form, once, and everything after it multiplies and adds without asking where the counts came from.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class TokenClass(StrEnum):
    """The billable classes. Disjoint: a token is counted in exactly one of them."""

    INPUT = "input"
    CACHE_READ = "cache_read"
    CACHE_WRITE_5M = "cache_write_5m"
    CACHE_WRITE_1H = "cache_write_1h"
    OUTPUT = "output"
    AUDIO_INPUT = "audio_input"
    AUDIO_OUTPUT = "audio_output"
    IMAGE_INPUT = "image_input"
    IMAGE_OUTPUT = "image_output"
    WEB_SEARCH = "web_search"
    REQUEST = "request"


INPUT_CLASSES = (
    TokenClass.INPUT,
    TokenClass.CACHE_READ,
    TokenClass.CACHE_WRITE_5M,
    TokenClass.CACHE_WRITE_1H,
    TokenClass.AUDIO_INPUT,
    TokenClass.IMAGE_INPUT,
)
OUTPUT_CLASSES = (TokenClass.OUTPUT, TokenClass.AUDIO_OUTPUT, TokenClass.IMAGE_OUTPUT)


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Counts per class, all zero or more; `reasoning` (inside `output`) is a memo and never priced.

    `flaw` names an impossible count that an adapter met and clamped (for example more cached than prompt tokens): the row is
    flagged with it and never billed negative. `compute_us` is engine time in microseconds, for engines costed by the hour.
    """

    input: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    audio_input: int = 0
    audio_output: int = 0
    image_input: int = 0
    image_output: int = 0
    web_search: int = 0
    request: int = 0
    reasoning: int = 0
    compute_us: int = 0
    flaw: str | None = None

    def lines(self) -> list[tuple[TokenClass, int]]:
        """The classes with a count, in the order of `TokenClass`. Written out: a loop over eleven classes, of which two or three
        count, takes five times as long, and every request asks for it twice."""
        found: list[tuple[TokenClass, int]] = []
        if self.input:
            found.append((TokenClass.INPUT, self.input))
        if self.cache_read:
            found.append((TokenClass.CACHE_READ, self.cache_read))
        if self.cache_write_5m:
            found.append((TokenClass.CACHE_WRITE_5M, self.cache_write_5m))
        if self.cache_write_1h:
            found.append((TokenClass.CACHE_WRITE_1H, self.cache_write_1h))
        if self.output:
            found.append((TokenClass.OUTPUT, self.output))
        if self.audio_input:
            found.append((TokenClass.AUDIO_INPUT, self.audio_input))
        if self.audio_output:
            found.append((TokenClass.AUDIO_OUTPUT, self.audio_output))
        if self.image_input:
            found.append((TokenClass.IMAGE_INPUT, self.image_input))
        if self.image_output:
            found.append((TokenClass.IMAGE_OUTPUT, self.image_output))
        if self.web_search:
            found.append((TokenClass.WEB_SEARCH, self.web_search))
        if self.request:
            found.append((TokenClass.REQUEST, self.request))
        return found

    @property
    def total_input(self) -> int:
        """Everything read: uncached + cache reads + cache writes + audio and image input."""
        return (
            self.input
            + self.cache_read
            + self.cache_write_5m
            + self.cache_write_1h
            + self.audio_input
            + self.image_input
        )

    @property
    def total_output(self) -> int:
        return self.output + self.audio_output + self.image_output

    @property
    def total(self) -> int:
        return self.total_input + self.total_output
