"""Where the request leaves the model no choice but to call: a grammar holds it to JSON, which is read as the calls."""

from __future__ import annotations

from ..call_scanner import CallScanner, NotACall
from ..tool_calls import CallDelta, Calls


class RequiredParser:
    """The JSON list of calls to which a grammar holds the model where a call is required (structure.calls_schema)."""

    def __init__(self) -> None:
        self._calls = Calls()
        self._scanner: CallScanner | None = None

    def feed(self, text: str) -> tuple[str, list[CallDelta]]:
        parts: list[CallDelta] = []
        while text:
            if self._scanner is None:
                text = text.lstrip(" \n\t[,]")
                if not text:
                    break
                self._scanner = CallScanner(self._calls)
            try:
                found, text = self._scanner.feed(text)
            except NotACall:
                self._scanner = None
                break
            parts += found
            if self._scanner.done:
                self._scanner = None
        return "", parts

    def flush(self) -> tuple[str, list[CallDelta]]:
        return "", []


class NamedParser:
    """Everything is the arguments of the function that the request named."""

    def __init__(self, name: str) -> None:
        self._calls, self._name, self._begun = Calls(), name, False

    def feed(self, text: str) -> tuple[str, list[CallDelta]]:
        if not text:
            return "", []
        if self._begun:
            return "", [self._calls.more(text)]
        self._begun = True
        return "", [self._calls.begin(self._name, text)]

    def flush(self) -> tuple[str, list[CallDelta]]:
        return "", []
