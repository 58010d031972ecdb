"""Token ids to streamed text: never a broken character, never a part of a stop string, never a lost tail (rule 35)."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from .tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Text of one output sequence, token by token. An incomplete character waits for its remaining bytes."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """The characters that this token completes; may be empty."""
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._tokenizer.bytes_of(token_id))

    def flush(self) -> str:
        """What is left at the end: a character whose bytes never came is shown as U+FFFD."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Holds back text that may become a stop string, and cuts at the first one that is complete.

    Of several, the one that is complete first wins, whatever pieces the text arrives in.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, *, check: bool = True) -> str:
        """Text that may be shown now. After a match (`matched` is set) nothing more comes.

        With `check` false (fewer than `min_tokens` are out) the text passes unexamined.
        """
        if not self._stops or self.matched is not None:
            return "" if self.matched is not None else text
        if not check:
            return text
        self._held += text
        match = self._first_match()
        if match is not None:
            start, stop = match
            shown = self._held[: start + len(stop)] if self._include else self._held[:start]
            self.matched, self._held = stop, ""
            return shown
        keep = self._longest_beginning()
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held if self.matched is None else ""

    def _first_match(self) -> tuple[int, str] | None:
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _longest_beginning(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest
