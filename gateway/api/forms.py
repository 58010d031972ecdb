"""A multipart form that passes through: its small fields are read, the model's name is written anew, every other byte stays.

What the provider's parser reads must be what was read here, and parsers differ over whatever is unusual: so only the plainest
form of RFC 7578 passes, each name stands once (but for lists, `name[]`), and the boundary nowhere but between the parts. Each
byte is looked at a fixed number of times, whatever the form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw

from gateway.errors import ApiError, bad_request
from gateway.upstream.base import Form

MOST_PARTS: Final = 100
MOST_HEAD_BYTES: Final = 8192
"""Of one part's headers."""
_DELIMITER: Final = re.compile(rb"--([0-9A-Za-z'+_.=-]{1,70})\r\n")
_DISPOSITION: Final = re.compile(
    rb'form-data; *name="([A-Za-z0-9_.\[\]-]{1,200})"(; *filename="[^"\\;\x00-\x1f\x7f]*")?'
)
_FIELD_TYPE: Final = re.compile(
    rb'(?:text/plain|application/json)(?:; *charset="?(?:utf-8|us-ascii)"?)?', re.IGNORECASE
)
_FILE_TYPE: Final = re.compile(rb"(?!multipart/|message/)[a-z0-9!#$&^_.+-]{1,100}/[\x20-\x7e]{1,300}", re.IGNORECASE)
_encode = msgspec.json.Encoder().encode


def read_form(body: bytes) -> tuple[dict[str, Raw], int, Form]:
    """The fields as JSON texts by name, the bytes of its file, and the form to pass on. Raises `ApiError` 400."""
    match = _DELIMITER.match(body)
    if match is None:
        raise _unreadable(
            "its body must be multipart/form-data and begin with its boundary, of letters, digits and -_.+='"
        )
    boundary = match[1]
    fields: dict[str, Raw] = {}
    names: set[str] = set()
    file_bytes, model_at = 0, (0, 0)
    for start, end in _parts(body, boundary):
        head_end = body.find(b"\r\n\r\n", start, min(end, start + MOST_HEAD_BYTES + 4))
        if head_end < 0:
            raise _unreadable(f"each part must have a name, in headers of at most {MOST_HEAD_BYTES} bytes")
        content = head_end + 4
        name, is_file = _read_head(body[start:head_end], end - content)
        if name in names and not name.endswith("[]"):
            raise _unreadable(f"'{name}' stands there twice")
        names.add(name)
        if is_file:
            file_bytes += end - content
            continue
        if name == "model":
            model_at = content, end
        fields[name] = Raw(_encode(body[content:end].decode("utf-8", "replace")))
    quoted = b'"%b"' % boundary if b"=" in boundary else boundary
    content_type = b"multipart/form-data; boundary=" + quoted
    return fields, file_bytes, Form(content_type.decode(), body[: model_at[0]], body[model_at[1] :])


def _read_head(head: bytes, content_bytes: int) -> tuple[str, bool]:
    """A part's name, and whether it is the file. Raises `ApiError` 400 for all but the plainest headers."""
    headers: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        key = key.lower()
        if key in headers or key not in (b"content-disposition", b"content-type", b"content-length"):
            raise _unreadable("a part has one Content-Disposition, at most one Content-Type, and no other headers")
        headers[key] = value.strip(b" \t")
    named = _DISPOSITION.fullmatch(headers.get(b"content-disposition", b""))
    if named is None:
        raise _unreadable(
            'a part\'s header must be Content-Disposition: form-data; name="…" and for the file ; filename="…",'
            " without backslashes and semicolons in them"
        )
    name, is_file = named[1].decode(), named[2] is not None
    if is_file != (name == "file"):
        raise _unreadable("'file' must be a file with a filename, and nothing else may be one")
    kind = headers.get(b"content-type")
    if kind is not None and not (_FILE_TYPE if is_file else _FIELD_TYPE).fullmatch(kind):
        raise _unreadable(f"the Content-Type of '{name}' cannot be passed on; leave it out")
    if headers.get(b"content-length", b"%d" % content_bytes) != b"%d" % content_bytes:
        raise _unreadable(f"the Content-Length of '{name}' is not its size")
    return name, is_file


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[int, int]]:
    """Where each part's headers begin, and where its content ends. Raises `ApiError` 400."""
    delimiter = b"\r\n--" + boundary
    at = len(boundary) + 4
    for count in range(1, MOST_PARTS + 1):
        end = body.find(delimiter, at)
        if end < 0:
            raise _unreadable("its last boundary is missing")
        yield at, end
        at = end + len(delimiter)
        if body[at : at + 2] == b"--":
            if body[at + 2 : at + 5] not in (b"", b"\r\n"):
                raise _unreadable("its last boundary is followed by something else")
            if body.count(delimiter[2:]) != count + 1:
                raise _unreadable("its boundary stands inside a part; choose another one")
            return
        if body[at : at + 2] != b"\r\n":
            raise _unreadable("a boundary is followed by something else")
        at += 2
    raise _unreadable(f"it has more than {MOST_PARTS} parts")


def _unreadable(why: str) -> ApiError:
    return bad_request(f"The form cannot be read: {why}.", code="invalid_form")
