"""`[TOOL_CALLS]` and `[{"name": …, "arguments": {…}}, …]`, or `name{…}` after each mark (Mistral)."""

from __future__ import annotations

from ..call_scanner import CallScanner, NotACall
from ..reasoning import overlap
from ..tool_calls import FUNCTION_NAME, CallDelta, Calls, mistral_call_id

TOOL_CALLS, ARGS = "[TOOL_CALLS]", "[ARGS]"


class MistralParser:
    """Content before the mark; after it a JSON list of calls, or a name with its arguments for each mark."""

    def __init__(self) -> None:
        self._calls = Calls(mistral_call_id)
        self._held = ""
        self._inside = False
        self._scanner: CallScanner | None = None
        self._named: JsonValue | None = None

    def feed(self, text: str) -> tuple[str, list[CallDelta]]:
        content = ""
        parts: list[CallDelta] = []
        self._held += text
        while self._held:
            if self._scanner is not None or self._named is not None:
                self._read(parts)
                continue
            before, marked, after = self._held.partition(TOOL_CALLS)
            if marked and (not self._inside or not before.strip(" \n,[]")):
                content += "" if self._inside else before
                self._held, self._inside = after, True
                continue
            if not self._inside:
                keep = overlap(self._held, TOOL_CALLS)
                content += self._held[: len(self._held) - keep]
                self._held = self._held[len(self._held) - keep :]
                break
            if not self._begin(parts):
                break
        return content, parts

    def _begin(self, parts: list[CallDelta]) -> bool:
        """Starts the next call; False while its beginning is not there yet."""
        if TOOL_CALLS.startswith(self._held):
            return False
        beginning = self._held.lstrip(" \n,[")
        if beginning.startswith("{"):
            self._scanner, self._held = CallScanner(self._calls), beginning
            return True
        name = FUNCTION_NAME.match(beginning)
        if name is None:
            self._held = beginning if not beginning.startswith("]") else beginning[1:]
            return bool(self._held) and beginning.startswith("]")
        after = beginning[name.end() :]
        if "{" not in after:
            self._held = beginning
            return False
        if after[: after.index("{")].replace(ARGS, "").strip():
            self._held = ""
            return False
        parts.append(self._calls.begin(name[0]))
        self._named, self._held = JsonValue(), after[after.index("{") :]
        return True

    def _read(self, parts: list[CallDelta]) -> None:
        held, self._held = self._held, ""
        if self._named is not None:
            arguments, self._held = self._named.feed(held)
            parts += [self._calls.more(arguments)] if arguments else []
            self._named = None if self._named.done else self._named
            return
        assert self._scanner is not None
        try:
            found, self._held = self._scanner.feed(held)
        except NotACall as error:
            self._scanner, self._held = None, error.rest
            return
        parts += found
        self._scanner = None if self._scanner.done else self._scanner

    def flush(self) -> tuple[str, list[CallDelta]]:
        held, self._held = self._held, ""
        return ("" if self._inside else held), []


class JsonValue:
    """The text of one JSON object or list as it streams."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, text: str) -> tuple[str, str]:
        """(what belongs to it, what comes after it)."""
        for at, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.done = True
                    return text[: at + 1], text[at + 1 :]
        return text, ""
