"""Reasoning apart from the answer: what stands between `<think>` and `</think>`.

`deepseek_r1`: the template has opened the tag already, so that the text begins with reasoning. `qwen3`: the model opens the tag
itself, or does not reason. As vLLM's parsers of these names have it.
"""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


class ReasoningParser:
    """Cuts one choice's text, as the parser of this name does."""

    def __init__(self, name: str) -> None:
        self._thinking = name == "deepseek_r1"
        self._held = ""
        self._opening = True
        """An opening tag may still come."""

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that this piece completes."""
        self._held += text
        if self._opening:
            self._open()
        if self._opening:
            return "", ""
        if not self._thinking:
            content, self._held = self._held, ""
            return "", content
        before, closed, after = self._held.partition(CLOSE)
        if closed:
            self._thinking, self._held = False, ""
            return before, after
        keep = overlap(self._held, CLOSE)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown, ""

    def flush(self) -> tuple[str, str]:
        held, self._held = self._held, ""
        return (held, "") if self._thinking else ("", held)

    def _open(self) -> None:
        """Takes the opening tag away, if the text begins with one; leaves things as they are while that cannot be known."""
        beginning = self._held.lstrip()
        if len(beginning) < len(OPEN) and OPEN.startswith(beginning):
            return
        self._opening = False
        if beginning.startswith(OPEN):
            self._held, self._thinking = beginning.removeprefix(OPEN), True


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag` without being all of it."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
