"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number (Hermes, Qwen)."""

from __future__ import annotations

from ..call_scanner import CallScanner, NotACall
from ..reasoning import overlap
from ..tool_calls import CallDelta, Calls

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser:
    """Content may stand before, between and after calls. Blanks beside a call belong to it."""

    def __init__(self) -> None:
        self._calls = Calls()
        self._held = ""
        self._blanks = ""
        """Before the tag of the call that is being read."""
        self._scanner: CallScanner | None = None
        self._closing = False
        """After a call's object, until its closing tag."""
        self._after_call = False
        """No content since the last call."""

    def feed(self, text: str) -> tuple[str, list[CallDelta]]:
        content = ""
        parts: list[CallDelta] = []
        self._held += text
        while self._held:
            if self._scanner is not None:
                content += self._scan(parts)
                continue
            if self._closing and not self._close():
                break
            before, opened, after = self._held.partition(OPEN)
            kept = before if opened else self._held[: len(self._held) - overlap(self._held, OPEN)]
            shown = kept.rstrip()
            content += shown
            self._after_call &= not shown
            if not opened:
                self._held = self._held[len(shown) :]
                break
            self._blanks, self._held, self._scanner = before[len(shown) :], after, CallScanner(self._calls)
        return content, parts

    def _close(self) -> bool:
        """Takes the closing tag away; False while it may still come."""
        beginning = self._held.lstrip()
        if len(beginning) < len(CLOSE) and CLOSE.startswith(beginning):
            return False
        self._closing = False
        self._held = beginning.removeprefix(CLOSE)
        return True

    def _scan(self, parts: list[CallDelta]) -> str:
        """Feeds what is held to the scanner; returns the text if it turns out to be no call."""
        assert self._scanner is not None
        scanner = self._scanner
        try:
            found, self._held = scanner.feed(self._held)
        except NotACall as error:
            content = self._unread()
            self._held, self._scanner = error.rest, None
            self._after_call = scanner.begun
            return content
        parts += found
        if scanner.done:
            self._scanner, self._closing, self._after_call = None, True, True
        return ""

    def _unread(self) -> str:
        """What was read as a call and is content after all; nothing if some of it was passed on as a call."""
        assert self._scanner is not None
        return "" if self._scanner.begun else self._blanks + OPEN + self._scanner.text

    def flush(self) -> tuple[str, list[CallDelta]]:
        held, self._held = self._held, ""
        if self._scanner is not None:
            return self._unread(), []
        return ("" if self._closing or (self._after_call and not held.strip()) else held), []
