"""Strict reading for translation: a body is decoded into the types of its dialect, or refused by the path of what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from gateway.errors import ApiError, bad_request

T = TypeVar("T")

encode: Final = msgspec.json.Encoder().encode
_any = msgspec.json.Decoder(dict[str, Any])
_PATH: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*?)`)?$", re.DOTALL)
_TRIVIAL: Final = frozenset({b"null", b"false", b"[]", b"{}", b"0", b"0.0"})


def read(decoder: msgspec.json.Decoder[T], fields: Mapping[str, Raw]) -> T:
    """`fields` as the decoder's type. Raises `ApiError` 400 that names the place."""
    try:
        return decoder.decode(encode(fields))
    except RecursionError as error:
        raise bad_request("The request is nested too deeply.", code="invalid_json") from error
    except msgspec.DecodeError as error:
        match = _PATH.match(str(error))
        what, path = (match["what"], match["path"]) if match is not None else (str(error), None)
        where = f"'{path}': " if path else ""
        raise bad_request(f"{where}{what[:300]}.", param=path[:200] if path else None) from error


def refuse_others(fields: Mapping[str, Raw], known: frozenset[str], target: str) -> None:
    """A field that has no counterpart and asks for something is refused by name, never dropped."""
    for name, raw in fields.items():
        if name not in known and bytes(raw) not in _TRIVIAL:
            raise unmapped(name[:100], target)


def unmapped(name: str, target: str, why: str = "") -> ApiError:
    reason = f": {why}" if why else ""
    return bad_request(
        f"'{name}' cannot be passed to {target}{reason}. Leave it out, or use a model whose provider has it.",
        param=name,
        code="unsupported_field",
    )


def arguments_object(text: str, place: str) -> dict[str, Any]:
    """The arguments of a tool call as an object; an empty text is an empty object. Raises `ApiError` 400."""
    if not text.strip():
        return {}
    try:
        return _any.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"'{place}' must be a JSON object.", param=place) from error


def data_url(url: str) -> tuple[str, str] | None:
    """Media type and base64 data of a `data:` URL; None for any other address."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head[5:-7].split(";", 1)[0] or "application/octet-stream", data
