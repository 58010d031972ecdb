"""Reasoning apart from the answer: what stands between `<think>` and `</think>`.

A prompt that ends with one of the two tags says itself where the text begins (with `enable_thinking: false` a template writes
both). Otherwise `deepseek_r1`: the text begins with reasoning, whether the model opens the tag or not. `qwen3`: the model opens
the tag, or does not reason. As vLLM's parsers of these names have it.
"""

from __future__ import annotations

import enum

OPEN, CLOSE = "<think>", "</think>"


class Reasoning(enum.Enum):
    """What an answer begins with."""

    CERTAIN = "reasoning"
    POSSIBLE = "reasoning if it opens the tag, else the answer"
    NONE = "the answer"


def reasoning_after(prompt: str, parser: str | None) -> Reasoning:
    if parser is None or prompt.rstrip().endswith(CLOSE):
        return Reasoning.NONE
    if parser == "deepseek_r1" or prompt.rstrip().endswith(OPEN):
        return Reasoning.CERTAIN
    return Reasoning.POSSIBLE


class ReasoningParser:
    """Cuts one choice's text, which begins as `beginning` says (not `NONE`: nothing is to be cut there)."""

    def __init__(self, beginning: Reasoning) -> None:
        self._thinking = beginning is Reasoning.CERTAIN
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
