"""One JSON object with a name and arguments, read character by character, so that arguments stream as they are written."""

from __future__ import annotations

import json

from .tool_calls import CallDelta, Calls

NAME_KEYS = ("name", "function")
ARGUMENT_KEYS = ("arguments", "parameters")
OTHER_KEYS = ("type", "id", "description")
"""Keys that a call may have beside its own; an object that begins with any other is none."""


class NotACall(Exception):
    """The text is no call, or no JSON. `rest`: what of the piece was not looked at any more."""

    rest = ""


class CallScanner:
    """Feeds on the text of an object until `done`. `text` is all it has eaten."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.text = ""
        self.done = False
        self._depth = 0
        self._in_string = self._escaped = False
        self._token = ""
        """The key, or the value, that is being read at depth 1."""
        self._key: str | None = None
        self._name: str | None = None
        self._begun = False
        self._waiting = ""
        """Arguments that came before the name."""

    @property
    def begun(self) -> bool:
        """A call was reported: from here on the text is no content any more."""
        return self._begun

    def feed(self, text: str) -> tuple[list[CallDelta], str]:
        """Parts of the call, and the text after the object's end. Raises `NotACall`."""
        shown, at = "", 0
        try:
            while at < len(text) and not self.done:
                self.text += text[at]
                at += 1
                shown += self._step(text[at - 1])
            return self._parts(shown), text[at:]
        except NotACall as error:
            error.rest = text[at:]
            raise

    def _parts(self, shown: str) -> list[CallDelta]:
        if self._name is None:
            self._waiting += shown
            if self.done:
                raise NotACall
            return []
        shown, self._waiting = self._waiting + shown, ""
        if not self._begun:
            self._begun = True
            return [self._calls.begin(self._name, shown)]
        return [self._calls.more(shown)] if shown else []

    def _step(self, character: str) -> str:
        """Takes one character in; returns what of it belongs to the arguments."""
        inside = self._key in ARGUMENT_KEYS
        if self._in_string:
            self._token += character
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
            return character if inside else ""
        if self._depth == 0:
            if character.isspace():
                return ""
            if character != "{":
                raise NotACall
            self._depth = 1
            return ""
        if self._depth == 1 and character in ":,}":
            return self._boundary(character)
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        elif self._depth == 1 and self._key is None and not character.isspace():
            raise NotACall
        if self._depth == 1 and character.isspace():
            return ""
        self._token += character
        return character if inside else ""

    def _boundary(self, character: str) -> str:
        token, self._token = self._token.strip(), ""
        if character == ":":
            self._key = str(_value(token))
            if self._key not in (*NAME_KEYS, *ARGUMENT_KEYS, *OTHER_KEYS):
                raise NotACall
            return ""
        if self._key in NAME_KEYS:
            name = _value(token)
            if not isinstance(name, str) or not name:
                raise NotACall
            self._name = name
        elif self._key is None and character == ",":
            raise NotACall
        self._key = None
        if character == "}":
            self._depth, self.done = 0, True
        return ""


def _value(token: str) -> object:
    try:
        return json.loads(token)
    except (ValueError, RecursionError) as error:
        raise NotACall from error
