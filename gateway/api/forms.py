"""A multipart form that passes through: its small fields are read, the model's name is written anew, every other byte stays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw

from gateway.errors import ApiError, bad_request
from gateway.upstream.base import Form

MOST_PARTS: Final = 100
_DELIMITER: Final = re.compile(rb"--([0-9A-Za-z'()+_,./:=? -]{1,70})\r\n")
_NAME: Final = re.compile(rb'content-disposition:[^\r\n]*?;\s*name="([^"\r\n]{1,200})"', re.IGNORECASE)
_FILE: Final = re.compile(rb"content-disposition:[^\r\n]*?;\s*filename", re.IGNORECASE)
_encode = msgspec.json.Encoder().encode


def read_form(body: bytes) -> tuple[dict[str, Raw], int, Form]:
    """The fields as JSON texts by name, the bytes of all files, and the form to pass on. Raises `ApiError` 400."""
    match = _DELIMITER.match(body)
    if match is None:
        raise _unreadable("its body must be multipart/form-data and begin with its boundary")
    boundary = match[1]
    fields: dict[str, Raw] = {}
    file_bytes, model_at = 0, (0, 0)
    for start, end in _parts(body, boundary):
        head, gap, _ = body[start:end].partition(b"\r\n\r\n")
        named = _NAME.search(head)
        if not gap or named is None:
            raise _unreadable("each part must have a name")
        content = start + len(head) + 4
        if _FILE.search(head):
            file_bytes += end - content
            continue
        name = named[1].decode("utf-8", "replace")
        if name in fields and name == "model":
            raise _unreadable("'model' stands there twice")
        if name == "model":
            model_at = content, end
        fields[name] = Raw(_encode(body[content:end].decode("utf-8", "replace")))
    content_type = b"multipart/form-data; boundary=" + boundary
    return fields, file_bytes, Form(content_type.decode(), body[: model_at[0]], body[model_at[1] :])


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[int, int]]:
    """Where each part's headers begin, and where its content ends. Raises `ApiError` 400."""
    delimiter = b"\r\n--" + boundary
    at = len(boundary) + 4
    for _ in range(MOST_PARTS):
        end = body.find(delimiter, at)
        if end < 0:
            raise _unreadable("its last boundary is missing")
        yield at, end
        at = end + len(delimiter)
        if body[at : at + 2] == b"--":
            return
        if body[at : at + 2] != b"\r\n":
            raise _unreadable("a boundary is followed by something else")
        at += 2
    raise _unreadable(f"it has more than {MOST_PARTS} parts")


def _unreadable(why: str) -> ApiError:
    return bad_request(f"The form cannot be read: {why}.", code="invalid_form")
