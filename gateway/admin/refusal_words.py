"""msgspec's words for a value that does not fit, said as what the field asks for."""

from __future__ import annotations

import ast
import re
from typing import Any

from msgspec import inspect

from gateway.admin.texts import ASKED

_PATTERN = re.compile(r"matching regex (.*)$")
_LENGTH = re.compile(r"Expected `(str|array|object)` of length (>=|<=) (\d+)$")
_ENUM = "Invalid enum value"
_UNITS = {"str": "characters", "array": "entries", "object": "entries"}


def in_words(message: str, annotation: Any, path: str) -> str:
    """`message` without its place; `annotation` and `path` lead to the type of the value that it refuses."""
    if found := _PATTERN.search(message):
        return ASKED.get(ast.literal_eval(found[1]), message)
    if found := _LENGTH.search(message):
        kind, bound, length = found.groups()
        if (bound, length) == (">=", "1"):
            return "must not be empty"
        return f"must have {'at least' if bound == '>=' else 'at most'} {length} {_UNITS[kind]}"
    if message.startswith(_ENUM) and (allowed := _allowed(annotation, path)):
        return f"{message.replace(_ENUM, '').strip()} is none of {', '.join(allowed)}"
    return message


def _allowed(annotation: Any, path: str) -> list[str]:
    """Empty where the path leads to nothing that has a fixed list."""
    found: inspect.Type = inspect.type_info(annotation)
    for part in filter(None, re.split(r"[.\[\]]+", path)):
        found = next((step for each in _choices(found) if (step := _inside(each, part)) is not None), inspect.AnyType())
    return [str(value) for each in _choices(found) for value in _values(each)]


def _choices(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _inside(kind: inspect.Type, part: str) -> inspect.Type | None:
    match kind:
        case inspect.StructType():
            return next((field.type for field in kind.fields if field.encode_name == part), None)
        case inspect.ListType() | inspect.VarTupleType():
            return kind.item_type
        case inspect.DictType():
            return kind.value_type
        case _:
            return None


def _values(kind: inspect.Type) -> tuple[object, ...]:
    match kind:
        case inspect.LiteralType():
            return tuple(kind.values)
        case inspect.EnumType():
            return tuple(member.value for member in kind.cls)
        case _:
            return ()
