"""A form is read here as any other parser reads it, or refused; it passes byte for byte, and none takes long."""

from __future__ import annotations

import contextlib
import time
from email.parser import BytesParser
from io import BytesIO
from typing import cast

import httpx
import msgspec
import multipart  # type: ignore[import-untyped]
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.api.forms import MOST_HEAD_BYTES, MOST_PARTS, read_form
from gateway.errors import ApiError
from gateway.upstream.base import Form
from tests.gateway.api.conftest import Gateway, Upstream

PLAIN = b'Content-Disposition: form-data; name="%b"'
FILE = PLAIN % b"file" + b'; filename="a.mp3"'
UPSTREAM = b"served"


def form_of(*parts: tuple[bytes, bytes], boundary: bytes = b"B") -> bytes:
    written = b"".join(b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, head, content) for head, content in parts)
    return written + b"--%b--\r\n" % boundary


def by_others(form: Form) -> list[list[tuple[str, bytes]]]:
    """The names and contents that other parsers find in what goes to the provider."""
    body = form.before + UPSTREAM + form.after
    boundary = multipart.parse_options_header(form.content_type)[1]["boundary"]
    parts = multipart.MultipartParser(BytesIO(body), boundary).parts()
    message = BytesParser().parsebytes(b"Content-Type: %b\r\n\r\n%b" % (form.content_type.encode(), body))
    return [
        [(part.name, part.raw) for part in parts],
        [
            (str(part.get_param("name", header="content-disposition")), cast(bytes, part.get_payload(decode=True)))
            for part in message.walk()
            if not part.is_multipart()
        ],
    ]


NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12).filter(lambda name: name != "file")
CONTENTS = st.binary(max_size=60).map(lambda content: content.replace(b"--boundary", b""))


@given(st.dictionaries(NAMES, CONTENTS, max_size=6), CONTENTS, CONTENTS)
def test_a_form_passes_byte_for_byte_around_its_model(contents: dict[str, bytes], model: bytes, sound: bytes) -> None:
    contents["model"] = model
    parts = [(PLAIN % name.encode(), content) for name, content in contents.items()]
    body = form_of(*parts, (FILE, sound), boundary=b"boundary")
    fields, file_bytes, form = read_form(body)
    assert form.before + model + form.after == body
    assert file_bytes == len(sound)
    assert {name: msgspec.json.decode(raw) for name, raw in fields.items()} == {
        name: content.decode("utf-8", "replace") for name, content in contents.items()
    }


PIECES = st.sampled_from([
    b"Content-Disposition", b"content-disposition", b"Content-Type", b":", b": ", b" form-data", b";", b"; ", b'name="model"',
    b'name="x"', b"name=model", b"name*=utf-8''model", b'filename="a"', b'filename="a;', b"\\", b'"', b"=", b"\r\n", b"\n", b"\r",
    b" ", b"\t", b"\x00", b"--B", b"\r\n--B\r\n", b"\n--B\n", b"--B--", b"text/plain", b"multipart/mixed", b"model", b"x",
])  # fmt: skip
MESSES = st.lists(PIECES, max_size=12).map(b"".join)


@given(MESSES)
@example(b'; name="model"')
@example(b'\r\nContent-Disposition: form-data; name="model"')
@example(b'X: 1\r\nContent-Disposition: form-data; name="model"')
@example(b'Content-Disposition: form-data; x="; name="y"; name="model"')
@example(b'x\n--B\nContent-Disposition: form-data; name="model"\n\nother')
@example(b'x\r\n--B--\r\n--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nother')
def test_whatever_is_read_is_read_alike_by_other_parsers(mess: bytes) -> None:
    """Wherever the mess stands: as a part's headers, behind its name, as the file's name, as a content, behind the form."""
    model, field = (PLAIN % b"model", b"m"), PLAIN % b"y"
    for body in (
        form_of(model, (FILE, b"sound"), (mess, b"other")),
        form_of(model, (FILE, b"sound"), (field + mess, b"other")),
        form_of(model, (FILE.replace(b"a.mp3", mess), b"sound")),
        form_of(model, (FILE, mess), (field, mess)),
        form_of(model, (FILE, b"sound")) + mess,
    ):
        try:
            fields, _, form = read_form(body)
        except ApiError:
            continue
        read = {name: msgspec.json.decode(raw).encode() for name, raw in fields.items()} | {"model": UPSTREAM}
        for found in by_others(form):
            assert {name: text for name, text in found if name != "file"} == read
            assert len(found) == len(read) + 1


@pytest.mark.parametrize(
    "head",
    [
        PLAIN % b"x" + b'; name="model"',
        PLAIN % b"x" + b"\r\n" + PLAIN % b"model",
        b'Content-Disposition: form-data; x="; name="y"; name="model"',
        b"X-Other: 1\r\n" + PLAIN % b"x",
        PLAIN % b"x" + b"\r\nContent-Transfer-Encoding: base64",
        PLAIN % b"x" + b"\r\n folded",
        PLAIN % b"x" + b"\nContent-Type: text/plain",
        PLAIN % b"x" + b"\r\nContent-Type: text/plain; charset=utf-16",
        PLAIN % b"x" + b"\r\nContent-Type: multipart/mixed; boundary=C",
        PLAIN % b"x" + b"\r\nContent-Length: 4",
        PLAIN % b"x" + b"; filename*=utf-8''a",
        PLAIN % b"stream" + b'; filename="a"',
        PLAIN % b"mo\\del",
        b'Content-Disposition: attachment; name="x"',
        b"Content-Disposition: form-data",
        b"",
        PLAIN % b"model",
        PLAIN % b"stream",
        FILE,
        b"X" * MOST_HEAD_BYTES,
    ],
)
def test_any_head_that_is_not_plain_or_stands_twice_is_refused(head: bytes) -> None:
    body = form_of((PLAIN % b"model", b"m"), (PLAIN % b"stream", b"false"), (FILE, b"sound"), (head, b"other"))
    with pytest.raises(ApiError) as refused:
        read_form(body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_form")


@pytest.mark.parametrize(
    "head",
    [
        PLAIN % b"x",
        PLAIN.lower() % b"x",
        PLAIN % b"x" + b"\r\nContent-Type: text/plain; charset=UTF-8",
        b"content-type: text/plain;charset=utf-8\r\ncontent-length: 5\r\n" + PLAIN % b"x",
        PLAIN % b"timestamp_granularities[]",
    ],
)
def test_what_well_known_clients_send_is_read(head: bytes) -> None:
    named = FILE.replace(b"a.mp3", "Füchse (1) & co, 100%.mp3".encode()) + b"\r\nContent-Type: audio/mpeg"
    granular = PLAIN % b"timestamp_granularities[]"
    for boundary in (b"----WebKitFormBoundary7MA4", b"===============733==", b"6f1e-4a"):
        parts = [(PLAIN % b"model", b"m"), (granular, b"word"), (named, b"sound"), (head, b"other")]
        fields, file_bytes, form = read_form(form_of(*parts, boundary=boundary))
        assert file_bytes == 5 and len(fields) == 2 + (head != granular)
        for found in by_others(form):
            assert [content for _, content in found] == [UPSTREAM, b"word", b"sound", b"other"]


def test_a_form_of_too_many_parts_is_refused() -> None:
    parts = [(PLAIN % b"x[]", b"")] * MOST_PARTS
    assert read_form(form_of(*parts))[1] == 0
    with pytest.raises(ApiError, match="more than 100 parts"):
        read_form(form_of(*parts, *parts[:1]))


@pytest.mark.parametrize(
    "piece",
    [
        b"content-disposition:;name",
        b"content-disposition:",
        b";  ",
        b'; name="',
        b"\r\n",
        b"\r\n--",
        b"\r\n--B",
        b": ",
        b"a:\r\n",
    ],
)
def test_no_form_takes_more_time_than_its_size_explains(piece: bytes) -> None:
    """What is quadratic takes minutes at this size; of what is linear, seconds are far too many."""
    mess = piece * (2_000_000 // len(piece))
    begun_s = time.process_time()
    for body in (
        form_of((PLAIN % b"model", b"m"), (mess, b"x")),
        form_of((PLAIN % b"model", b"m"), (PLAIN % b"x" + mess, b"x")),
        form_of((PLAIN % b"model", b"m"), (PLAIN % b"x", mess)),
        form_of(*[(b'Content-Disposition: form-data; name="' + mess[: MOST_HEAD_BYTES - 50], b"x")] * MOST_PARTS),
        mess,
    ):
        with contextlib.suppress(ApiError):
            read_form(body)
    assert time.process_time() - begun_s < 5


@given(st.binary(max_size=300), st.booleans())
def test_nonsense_is_read_or_refused(body: bytes, begins_well: bool) -> None:
    with contextlib.suppress(ApiError):
        fields, _, form = read_form((b"--b\r\n" if begins_well else b"") + body)
        assert fields and len(form.before + form.after) <= len(body) + 5


async def test_a_key_for_one_model_reaches_no_other_by_a_form(gateway: Gateway, up: Upstream) -> None:
    key = await gateway.admin("/keys", {"team_id": gateway.team_id, "name": "few", "models": ["media"]})
    gateway.client.headers["authorization"] = f"Bearer {key['key']}"
    kind = {"content-type": "multipart/form-data; boundary=B"}

    async def send(*more: tuple[bytes, bytes]) -> httpx.Response:
        body = form_of((PLAIN % b"model", b"media"), (FILE, b"sound"), *more)
        return await gateway.client.post("/v1/audio/transcriptions", content=body, headers=kind)

    refused = await send((PLAIN % b"x" + b'; name="model"', b"other"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_form")
    assert await up.book() == []
    assert (await send((PLAIN % b"language", b"en"))).status_code == 200
