"""Nothing but `[name(key=value, …), …]` (Llama 3.2, ToolACE)."""

from __future__ import annotations

import ast
import json
from typing import Any

from ..tool_calls import FUNCTION_NAME, CallDelta, Calls


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
    name = FUNCTION_NAME.match(text)
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
        if not FUNCTION_NAME.fullmatch(name):
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
