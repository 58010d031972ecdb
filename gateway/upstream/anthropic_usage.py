"""Anthropic's usage object: cumulative, with cached input beside `input_tokens`, normalised once into disjoint classes."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from billing.usage import Usage
from gateway.dialects.reading import encode
from gateway.sse import StreamBroken
from gateway.upstream.openai import tier_of
from gateway.upstream.shapes import given
from gateway.upstream.usage import Counts


class _Cache(Struct):
    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class _Tools(Struct):
    web_search_requests: int | None = None


class _Details(Struct):
    thinking_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: _Cache | None = None
    server_tool_use: _Tools | None = None
    output_tokens_details: _Details | None = None
    service_tier: str | None = None
    metergate_partial: bool = False


_usage = msgspec.json.Decoder(_Usage)
_fields = msgspec.json.Decoder(dict[str, Raw])


def from_anthropic(raw: bytes) -> Usage | None:
    """Rule 1: cached tokens stand beside `input_tokens`, never inside. None when `raw` counts nothing at all."""
    try:
        said = _usage.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    if said.input_tokens is None and said.output_tokens is None:
        return None
    counts = Counts()
    output = counts.take("output_tokens", said.output_tokens)
    written = counts.take("cache_creation_input_tokens", said.cache_creation_input_tokens)
    parts = said.cache_creation or _Cache()
    hour = counts.take("ephemeral_1h_input_tokens", parts.ephemeral_1h_input_tokens)
    written = max(written, hour + counts.take("ephemeral_5m_input_tokens", parts.ephemeral_5m_input_tokens))
    thinking = said.output_tokens_details.thinking_tokens if said.output_tokens_details is not None else None
    if said.metergate_partial:
        counts.flaw = counts.flaw or "the stream ended before its output was counted"
    searches = said.server_tool_use.web_search_requests if said.server_tool_use is not None else None
    return Usage(
        input=counts.take("input_tokens", said.input_tokens),
        cache_read=counts.take("cache_read_input_tokens", said.cache_read_input_tokens),
        cache_write_5m=written - hour,
        cache_write_1h=hour,
        output=output,
        web_search=counts.take("web_search_requests", searches),
        reasoning=counts.take("thinking_tokens", thinking, output),
        flaw=counts.flaw,
    )


def merge_usage(old: bytes | None, new: bytes) -> bytes:
    """Rule 2: cumulative per field; the last value that is not null wins, whatever a placeholder said before."""
    if old is None:
        return new
    try:
        fields = {**_fields.decode(old), **{name: raw for name, raw in _fields.decode(new).items() if given(raw)}}
    except (msgspec.DecodeError, RecursionError) as error:
        raise StreamBroken("a usage that is no object") from error
    return encode(fields)


def partial_usage(begun: bytes | None, output_tokens: int) -> bytes | None:
    """What `message_start` said, with an estimate in place of its output count, which is a placeholder; flagged as such. None
    where it said nothing that can be read."""
    if begun is None:
        return None
    try:
        said = _fields.decode(begun)
    except (msgspec.DecodeError, RecursionError):
        return None
    return encode({**said, "output_tokens": Raw(str(output_tokens).encode()), "metergate_partial": Raw(b"true")})


def tier_in(usage: bytes) -> str:
    try:
        return tier_of(_usage.decode(usage).service_tier)
    except (msgspec.DecodeError, RecursionError):
        return "default"
