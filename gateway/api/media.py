"""Audio, images, reranking, moderation: passed through to providers that have them, and priced by what they report."""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from gateway import tokens
from gateway.api.forms import read_form
from gateway.api.surface import OpenAIErrors, read_count, read_fields, read_model, read_streamed
from gateway.errors import bad_request
from gateway.upstream.base import Call, Form
from gateway.upstream.pass_through import PassThrough

BYTES_PER_TOKEN: Final = 64
"""Of a recording, erring upward: compressed speech takes a thousand bytes and more a second, in which ten tokens are heard."""
MOST_IMAGES: Final = 10


def _call(
    name: str, path: str, fields: dict[str, Raw], *, choices: int = 1, more_tokens: int = 0, form: Form | None = None
) -> Call:
    return Call(
        surface=name,
        path=path,
        fields=fields,
        model=read_model(fields),
        streamed=False,
        wants_usage=False,
        choices=choices,
        output_cap=0,
        speaks=False,
        input_tokens=tokens.estimate(fields) + more_tokens,
        over=PassThrough,
        form=form,
    )


def _check_whole(fields: dict[str, Raw]) -> None:
    if read_streamed(fields) or bytes(fields.get("stream_format", b"")) == b'"sse"':
        raise bad_request(
            "This endpoint answers whole through this gateway; leave out 'stream'.",
            param="stream",
            code="unsupported_field",
        )


class JsonMedia(OpenAIErrors):
    """`needed` is the field without which there is nothing to do."""

    def __init__(self, name: str, path: str, needed: str) -> None:
        self.name = name
        self.path = path
        self._needed = needed

    def read(self, body: bytes) -> Call:
        """Raises `ApiError` 400."""
        fields = read_fields(body)
        read_model(fields)
        if bytes(fields.get(self._needed, b"null")) == b"null":
            raise bad_request(f"'{self._needed}' is required.", param=self._needed, code="missing_field")
        _check_whole(fields)
        choices = read_count(fields, "n", least=1, most=MOST_IMAGES) or 1 if self.name == "images" else 1
        return _call(self.name, self.path, fields, choices=choices)


class FormMedia(OpenAIErrors):
    """A recording comes in, text goes out."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path

    def read(self, body: bytes) -> Call:
        """Raises `ApiError` 400."""
        fields, file_bytes, form = read_form(body)
        if not file_bytes:
            raise bad_request("'file' is required.", param="file", code="missing_field")
        if bytes(fields.get("stream", b'"false"')).lower() not in (b'"false"', b'"0"', b'""'):
            _check_whole({"stream": Raw(b"true")})
        return _call(self.name, self.path, fields, more_tokens=-(-file_bytes // BYTES_PER_TOKEN), form=form)


MEDIA: Final = (
    JsonMedia("speech", "/audio/speech", "input"),
    FormMedia("transcriptions", "/audio/transcriptions"),
    FormMedia("translations", "/audio/translations"),
    JsonMedia("images", "/images/generations", "prompt"),
    JsonMedia("rerank", "/rerank", "documents"),
    JsonMedia("moderations", "/moderations", "input"),
)
