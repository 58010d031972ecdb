"""Nothing but `{"name": …, "parameters": {…}}`, several parted by `;` or `,` (Llama 3.1 and later)."""

from __future__ import annotations

from ..call_scanner import CallScanner, NotACall
from ..tool_calls import CallDelta, Calls

PYTHON_TAG = "<|python_tag|>"


class Llama3JsonParser:
    """A reply is calls or content, as its first characters tell."""

    def __init__(self) -> None:
        self._calls = Calls()
        self._held = ""
        self._scanner: CallScanner | None = None
        self._called = self._content = False

    def feed(self, text: str) -> tuple[str, list[CallDelta]]:
        parts: list[CallDelta] = []
        self._held += text
        while self._held:
            if self._scanner is not None:
                self._scan(parts)
            elif not self._begin():
                break
            if self._content:
                held, self._held = self._held, ""
                return held, parts
        return "", parts

    def _begin(self) -> bool:
        """Starts the next call, or decides that there is none; False while that cannot be known."""
        if self._content:
            return True
        beginning = self._held.lstrip(" \n\t;," if self._called else " \n\t")
        if len(beginning) < len(PYTHON_TAG) and PYTHON_TAG.startswith(beginning):
            return False
        call = beginning.removeprefix(PYTHON_TAG).lstrip()
        if call.startswith("{"):
            self._scanner, self._held = CallScanner(self._calls), call
        elif call:
            self._content = True
        return bool(call)

    def _scan(self, parts: list[CallDelta]) -> None:
        assert self._scanner is not None
        try:
            found, self._held = self._scanner.feed(self._held)
        except NotACall as error:
            self._held = "" if self._scanner.begun else self._scanner.text + error.rest
            self._content, self._scanner = True, None
            return
        parts += found
        self._called |= bool(found)
        if self._scanner.done:
            self._scanner = None

    def flush(self) -> tuple[str, list[CallDelta]]:
        if self._scanner is not None:
            return ("" if self._scanner.begun else self._scanner.text), []
        return ("" if self._called else self._held), []
