"""Calls of tools, in OpenAI's words: what every parser of a model's text produces."""

from __future__ import annotations

import re
import secrets
import string
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

FUNCTION_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class CallDelta:
    """Part of call number `index`: the first part has an id and a name; `arguments` is a piece of JSON text."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None

    def __add__(self, other: CallDelta) -> CallDelta:
        return CallDelta(self.index, self.arguments + other.arguments, self.id, self.name)

    def delta(self) -> dict[str, Any]:
        function: dict[str, Any] = {"arguments": self.arguments}
        if self.id is None:
            return {"index": self.index, "function": function}
        return {"index": self.index, "id": self.id, "type": "function", "function": {"name": self.name, **function}}

    def whole(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments or "{}"}}


class ToolParser(Protocol):
    def feed(self, text: str) -> tuple[str, list[CallDelta]]:
        """(content, parts of calls) that this piece of text completes."""

    def flush(self) -> tuple[str, list[CallDelta]]:
        """The end of the text: what was held back."""


def call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


def mistral_call_id() -> str:
    """Mistral's templates accept nine letters and digits only."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


class Calls:
    """Numbers calls and words their parts."""

    def __init__(self, new_id: Callable[[], str] = call_id) -> None:
        self._new_id, self._count = new_id, 0

    def begin(self, name: str, arguments: str = "") -> CallDelta:
        self._count += 1
        return CallDelta(self._count - 1, arguments, self._new_id(), name)

    def more(self, arguments: str) -> CallDelta:
        return CallDelta(self._count - 1, arguments)
