"""Lists page by key, never by offset: a page ends with an opaque cursor that says behind which row the next one begins."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from litestar.params import QueryParameter

from billing.money import INT64_MAX
from gateway.admin.failures import invalid

MAX_LIMIT: Final = 1000
DEFAULT_LIMIT: Final = 100

Limit = Annotated[int, QueryParameter(ge=1, le=MAX_LIMIT, description=f"Rows per page, 1 to {MAX_LIMIT}.")]
Cursor = Annotated[str | None, QueryParameter(max_length=500, description="`next_cursor` of the page before.")]

RowId = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
IdText = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[\x21-\x7e]*$")]
"""What a cursor may hold: it comes back from the client, who may have written it."""

Key = TypeVar("Key")
Row = TypeVar("Row")


def encode_cursor(key: Any) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(key)).decode().rstrip("=")


def decode_cursor(cursor: str | None, shape: Any) -> Any:
    """The key that `encode_cursor` was given. Raises `ApiError` 422 for anything else."""
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.msgpack.decode(raw, type=shape)
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise invalid("cursor: is not a `next_cursor` of this list", "cursor") from error


def cut(rows: list[Row], limit: int, key: Callable[[Row], Any]) -> tuple[list[Row], str | None]:
    """The page out of `limit` + 1 rows, and the cursor behind it: None when nothing follows."""
    page = rows[:limit]
    return page, encode_cursor(key(page[-1])) if len(rows) > limit else None


def after_id(cursor: str | None) -> int:
    """The row id of a cursor; 0, before all rows, without one."""
    return int(decode_cursor(cursor, RowId) or 0)
