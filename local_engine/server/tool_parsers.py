"""Calls of tools out of a model's text, as it streams. One parser for each way in which models write them.

| name | the model writes |
| --- | --- |
| hermes | `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number (Hermes, Qwen) |
| llama3_json | nothing but `{"name": …, "parameters": {…}}`, several parted by `;` or `,` (Llama 3.1 and later) |
| mistral | `[TOOL_CALLS]` and `[{"name": …, "arguments": {…}}, …]`, or `name{…}` after each mark (Mistral) |
| pythonic | nothing but `[name(key=value, …), …]` (Llama 3.2, ToolACE) |

Text that only looks like a call at first comes out as content.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from .call_scanner import CallScanner, NotACall
from .reasoning import overlap
from .tool_calls import CallDelta, Calls, ToolParser, mistral_call_id

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TOOL_CALLS, ARGS = "[TOOL_CALLS]", "[ARGS]"
PYTHON_TAG = "<|python_tag|>"
_FUNCTION = re.compile(r"[A-Za-z_][\w.-]*")


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
        name = _FUNCTION.match(beginning)
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


class PythonicParser:
    """A list of calls as Python writes them. A call is reported when it is whole: half of one has no JSON."""

    def __init__(self) -> None:
        self._calls = Calls()
        self._held = ""
        self._content = False
        self._open = False

    def feed(self, text: str) -> tuple[str, list[CallDelta]]:
        if self._content:
            return text, []
        self._held += text
        parts: list[CallDelta] = []
        if not self._open:
            beginning = self._held.lstrip()
            if not beginning:
                return "", []
            if not beginning.startswith("[") or (beginning[1:].lstrip() and not _could_be_call(beginning[1:].lstrip())):
                return self._give_up(), []
        while (end := _end_of_call(self._held.lstrip(" \n,[" if not self._open else " \n,"))) is not None:
            source = self._held.lstrip(" \n,[")
            call = _python_call(source[:end])
            if call is None:
                return ("" if self._open else self._give_up()), parts
            self._open = True
            parts.append(self._calls.begin(*call))
            self._held = source[end:]
        return "", parts

    def _give_up(self) -> str:
        held, self._held = self._held, ""
        self._content = True
        return held

    def flush(self) -> tuple[str, list[CallDelta]]:
        return ("" if self._open else self._held), []


def _could_be_call(text: str) -> bool:
    name = _FUNCTION.match(text)
    return name is not None and (name.end() == len(text) or text[name.end()] == "(")


def _end_of_call(text: str) -> int | None:
    """Where the first `name(…)` of the text ends; None while it is not whole."""
    depth, quote, escaped = 0, "", False
    for at, character in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth <= 0:
                return at + 1 if character == ")" and depth == 0 else None
    return None


def _python_call(source: str) -> tuple[str, str] | None:
    """Name and arguments (as JSON) of `name(key=literal, …)`; None for anything else."""
    try:
        call = ast.parse(source, mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        name = ast.unparse(call.func)
        if not _FUNCTION.fullmatch(name):
            return None
        arguments: dict[str, Any] = {word.arg: _literal(word.value) for word in call.keywords if word.arg is not None}
        return name, json.dumps(arguments, ensure_ascii=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _literal(node: ast.expr) -> Any:
    """Python's literals, and JSON's true, false and null."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.Dict):
        return {_literal(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    return ast.literal_eval(node)


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


TOOL_PARSERS: Mapping[str, Callable[[], ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
    "pythonic": PythonicParser,
}


def new_tool_parser(name: str) -> ToolParser:
    return TOOL_PARSERS[name]()


def keeps_special_tokens(name: str) -> bool:
    """Whether the parser looks for a mark that is a special token, which must then stay in the text."""
    return name == "mistral"
