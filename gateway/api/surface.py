"""What distinguishes one caller surface from another: how its body is read and how its errors look.

A new surface is one file with one object of this shape, added to `gateway/api/app.py`; it cannot skip the keys, limits,
journal or rating, because `Exchange` owns those and no surface sees them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import Raw
from mypy_extensions import mypyc_attr

from gateway import errors
from gateway.errors import ApiError, bad_request
from gateway.upstream.base import Call
from gateway.upstream.shapes import StreamOptions

MOST_CHOICES: Final = 128
MOST_TAGS: Final = 16
_LONGEST_NUMBER: Final = 32
_NUMBER_START: Final = frozenset(b"-0123456789")
_TAG_KEY: Final = re.compile(r"^[A-Za-z0-9_.-]{1,64}$")
_MOST_TAG_CHARS: Final = 256

_fields = msgspec.json.Decoder(dict[str, Raw])
_text = msgspec.json.Decoder(str)
_integer = msgspec.json.Decoder(int | None)
_boolean = msgspec.json.Decoder(bool | None)
_number = msgspec.json.Decoder(float)


_stream_options = msgspec.json.Decoder(StreamOptions | None)


class Surface(Protocol):
    name: str

    def read(self, body: bytes) -> Call: ...
    def error_body(self, error: ApiError) -> bytes: ...
    def error_event(self, error: ApiError, call: Call) -> bytes: ...


@mypyc_attr(allow_interpreted_subclasses=True)
class OpenAIErrors:
    """Errors in OpenAI's shape, whole or in-band."""

    def error_body(self, error: ApiError) -> bytes:
        return errors.render(error)

    def error_event(self, error: ApiError, call: Call) -> bytes:
        return errors.render_event(error)


def read_fields(body: bytes) -> dict[str, Raw]:
    """The top level of a JSON object; of two equal names the last counts. Raises `ApiError` 400."""
    if not body:
        raise bad_request("The request body is empty; send a JSON object.", code="invalid_json")
    try:
        fields = _fields.decode(body)
        if not body.isascii():
            str(body, "utf-8")
    except RecursionError as error:
        raise errors.invalid_json("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise errors.invalid_json(f"it is not UTF-8 (byte {error.start})") from error
    except msgspec.ValidationError as error:
        raise bad_request("The request body must be a JSON object.", code="invalid_json") from error
    except msgspec.DecodeError as error:
        raise errors.invalid_json(str(error)) from error
    for name, raw in fields.items():
        view = memoryview(raw)
        if view[0] in _NUMBER_START:
            _check_number(name, bytes(view))
    return fields


def _check_number(name: str, raw: bytes) -> None:
    if len(raw) <= _LONGEST_NUMBER:
        if raw.isdigit():
            return
        try:
            _number.decode(raw)
        except msgspec.ValidationError:
            pass
        else:
            return
    raise bad_request(f"'{name[:100]}' is a number out of range.", param=name[:100])


_T = TypeVar("_T")


def _typed(fields: Mapping[str, Raw], name: str, decoder: msgspec.json.Decoder[_T], kind: str) -> _T:
    """The value of `fields[name]`. Raises `ApiError` 400."""
    try:
        return decoder.decode(fields[name])
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"'{name}' must be {kind}.", param=name) from error


def read_model(fields: Mapping[str, Raw]) -> str:
    if "model" not in fields:
        raise bad_request("'model' is required: name one of GET /v1/models.", param="model", code="missing_field")
    return _typed(fields, "model", _text, "a string")


def read_count(fields: Mapping[str, Raw], name: str, *, least: int, most: int | None = None) -> int | None:
    """A whole number of at least `least`; None when absent or null. Raises `ApiError` 400."""
    if name not in fields:
        return None
    value = _typed(fields, name, _integer, "an integer")
    if value is None:
        return None
    if value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"between {least} and {most}"
        raise bad_request(f"'{name}' must be {bounds}; got {value}.", param=name)
    return value


def read_streamed(fields: Mapping[str, Raw]) -> bool:
    return bool(_typed(fields, "stream", _boolean, "a boolean")) if "stream" in fields else False


def read_stream(fields: Mapping[str, Raw]) -> tuple[bool, bool]:
    """Whether the answer is streamed, and whether its usage is wanted."""
    streamed = read_streamed(fields)
    if "stream_options" not in fields:
        return streamed, False
    options = _typed(fields, "stream_options", _stream_options, "an object whose 'include_usage' is a boolean")
    if options is None:
        return streamed, False
    if not streamed:
        raise bad_request("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    return True, bool(options.include_usage)


def read_tags(header: bytes | None, own: Mapping[str, str]) -> dict[str, str]:
    """The key's tags over those of `x-metergate-tags: k=v,…`. Raises `ApiError` 400."""
    if header is None:
        return dict(own) if own else {}
    tags: dict[str, str] = {}
    for item in header.decode("latin-1").split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not item.strip():
            continue
        if not equals or not _TAG_KEY.match(name) or len(value) > _MOST_TAG_CHARS:
            raise bad_request(
                "'x-metergate-tags' must be a list 'name=value,name=value'; names are letters, digits, '_', '.', '-'.",
                param="x-metergate-tags",
            )
        tags[name] = value
    if len(tags) > MOST_TAGS:
        raise bad_request(f"'x-metergate-tags' may have at most {MOST_TAGS} tags.", param="x-metergate-tags")
    return {**tags, **own}
