"""The dashboard's way to the admin API: lists to their end, answers piece by piece, refusals before the first piece."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest

from gateway.admin.roles import ROOT
from gateway.dashboard.inside import MAX_PAGES, Inside, Refused


class Book:
    """An API with one long list, one answer in pieces, and one that fails half-way."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.sent = 0
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await {"list": self.list, "pieces": self.in_pieces, "broken": self.broken, "refused": self.refused}[
                scope["path"].rpartition("/")[2]
            ](scope, send)
        finally:
            self.ended.set()

    async def list(self, scope: Any, send: Any) -> None:
        at = int(parse_qs(scope["query_string"].decode()).get("cursor", ["0"])[0])
        body = {"data": [{"at": at}], "next_cursor": None if at + 1 == self.pages else str(at + 1)}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": msgspec.json.encode(body)})

    async def in_pieces(self, scope: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for at in range(self.pages):
            await send({"type": "http.response.body", "body": b"%d," % at, "more_body": True})
            self.sent += 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def broken(self, scope: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ArithmeticError("a sum is too large")

    async def refused(self, scope: Any, send: Any) -> None:
        body = {"error": {"message": "interval: no", "param": "interval"}}
        await send({"type": "http.response.start", "status": 422, "headers": []})
        await send({"type": "http.response.body", "body": msgspec.json.encode(body)})


def inside(pages: int) -> tuple[Book, Inside]:
    book = Book(pages)
    return book, Inside(book, ROOT, None)


@pytest.mark.parametrize("pages", [1, MAX_PAGES, MAX_PAGES + 1, 5 * MAX_PAGES])
async def test_a_list_is_read_to_its_end_for_a_file_and_a_page_knows_whether_it_has_all(pages: int) -> None:
    _, api = inside(pages)
    assert [row["at"] async for page in api.pages("/list") for row in page] == list(range(pages))
    rows, whole = await api.every("/list")
    assert (len(rows), whole) == (min(pages, MAX_PAGES), pages <= MAX_PAGES)


async def test_an_answer_in_pieces_is_never_more_than_some_ahead_of_its_reader() -> None:
    book, api = inside(1000)
    pieces = api.pieces("/pieces")
    assert await anext(pieces) == b""
    for at in range(10):
        assert await anext(pieces) == b"%d," % at
        assert book.sent <= at + 3
    await pieces.aclose()
    assert book.ended.is_set(), "who stops reading stops the answer"
    assert b"".join([piece async for piece in api.pieces("/pieces")]) == b"".join(b"%d," % at for at in range(1000))


async def test_a_refusal_comes_before_the_first_piece_and_a_failure_breaks_the_answer_off() -> None:
    _, api = inside(1)
    with pytest.raises(Refused) as refused:
        await anext(api.pieces("/refused"))
    assert (refused.value.status, refused.value.field) == (422, "interval")
    broken = api.pieces("/broken")
    assert [await anext(broken), await anext(broken)] == [b"", b"half"]
    with pytest.raises(ArithmeticError):
        await anext(broken)
