"""What a chat model's text says: content, reasoning and calls of tools, piece by piece.

A whole answer is read by the same code as a stream, in one piece: the two never differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .reasoning import ReasoningParser
from .tool_calls import CallDelta, ToolParser


@dataclass(frozen=True, slots=True)
class Piece:
    content: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)

    def __add__(self, other: Piece) -> Piece:
        return Piece(self.content + other.content, self.reasoning + other.reasoning, self.calls + other.calls)

    def delta(self) -> dict[str, Any]:
        """As a chunk's `delta`."""
        body: dict[str, Any] = {}
        if self.reasoning:
            body["reasoning_content"] = self.reasoning
        if self.content:
            body["content"] = self.content
        if self.calls:
            body["tool_calls"] = [call.delta() for call in self.calls]
        return body

    def message(self) -> dict[str, Any]:
        """As a whole answer's `message`."""
        calls = _joined(self.calls)
        body: dict[str, Any] = {"role": "assistant", "content": self.content, "refusal": None}
        if calls:
            body |= {"content": self.content or None, "tool_calls": [call.whole() for call in calls]}
        if self.reasoning:
            body["reasoning_content"] = self.reasoning
        return body


class Reply:
    """One choice's text on its way through the parsers that the server was started with."""

    def __init__(
        self,
        reasoning: ReasoningParser | None = None,
        tools: ToolParser | None = None,
        *,
        named: bool = False,
        parallel: bool = True,
        show_reasoning: bool = True,
    ) -> None:
        """`named`: the request named the function to call, so that a call is no news (`finish_reason` stays `stop`).
        `parallel` false: only the first call is passed on; `show_reasoning` false: reasoning is not.
        """
        self._reasoning, self._tools, self._named, self._parallel = reasoning, tools, named, parallel
        self._show_reasoning = show_reasoning
        self._called = False

    @property
    def ends_with_calls(self) -> bool:
        return self._called and not self._named

    def feed(self, text: str) -> Piece:
        reasoning = ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.feed(text)
        return self._parsed(reasoning, text)

    def flush(self) -> Piece:
        """What was held back and is now known to be nothing else."""
        reasoning = text = ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.flush()
        said = self._parsed(reasoning, text)
        if self._tools is None:
            return said
        content, calls = self._tools.flush()
        return said + Piece(content, "", self._passed(calls))

    def _parsed(self, reasoning: str, text: str) -> Piece:
        reasoning = reasoning if self._show_reasoning else ""
        if self._tools is None:
            return Piece(text, reasoning)
        content, calls = self._tools.feed(text)
        return Piece(content, reasoning, self._passed(calls))

    def _passed(self, calls: list[CallDelta]) -> tuple[CallDelta, ...]:
        self._called |= bool(calls)
        return tuple(call for call in calls if self._parallel or call.index == 0)


def _joined(deltas: Sequence[CallDelta]) -> list[CallDelta]:
    """One entry per call."""
    calls: dict[int, CallDelta] = {}
    for delta in deltas:
        before = calls.get(delta.index)
        calls[delta.index] = delta if before is None else before + delta
    return list(calls.values())
