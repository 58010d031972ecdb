"""What a grammar may be, lest its compilation or its masks harm others: checked before llguidance sees it.

llguidance bounds most of it by itself. It follows references by recursion, though (a chain of some 3,000 overflows a stack of
8 MiB and ends the process), and a `multipleOf` of n takes n states, made before the first token (3 s and 100 MB at 10^6).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from ..ranges import shown

MAX_LEVELS = 5_000
"""Of references within each other, each with the deepest nesting between two. `deep_threads` has stack for four times as many."""
MAX_MULTIPLE = 10_000
"""States of all `multipleOf` together."""
MAX_TEXT = 1 << 19
"""Characters: each choice of a request brings the text along."""
_JSON = re.compile(r"%json\s*(?=\{)")
_OPAQUE = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/')
"""Lark's strings, comments and regular expressions."""


def excess(grammar: str) -> str | None:
    """What is too large in llguidance's text of a grammar (its JSON, or Lark alone), and what to do; None where nothing is."""
    try:
        return _excess(grammar)
    except RecursionError:
        return "it is nested too deeply: write it flatter"


def _excess(grammar: str) -> str | None:
    if len(grammar) > MAX_TEXT:
        return f"it is {len(grammar)} characters long, of which {MAX_TEXT} are allowed: leave out what is not needed"
    if not grammar.lstrip().startswith("{"):
        return _lark_excess(grammar)
    for part in json.loads(grammar)["grammars"]:
        schema, lark = part.get("json_schema"), part.get("lark_grammar")
        found = _schema_excess(schema) if isinstance(schema, dict) else _lark_excess(lark) if lark else None
        if found is not None:
            return found
    return None


def _lark_excess(text: str) -> str | None:
    rest, at = [], 0
    while (match := _JSON.search(text, at)) is not None:
        try:
            schema, end = json.JSONDecoder().raw_decode(text, match.end())
        except ValueError:
            break  # llguidance says what is wrong with it
        if (found := _schema_excess(schema)) is not None:
            return found
        rest.append(text[at : match.start()])
        at = end
    bare = _OPAQUE.sub(" ", "".join((*rest, text[at:])))
    return _levels_excess("rules", bare.count(":"), _bracket_depth(bare))


def _bracket_depth(text: str) -> int:
    depth = deepest = 1
    for sign in re.findall(r"[()\[\]]", text):
        depth += 1 if sign in "([" else -1
        deepest = max(deepest, depth)
    return deepest


def _schema_excess(schema: Any) -> str | None:
    targets: set[str] = set()
    together, deepest = Fraction(1), 1
    for key, value, depth in _entries(schema):
        deepest = max(deepest, depth)
        if key in ("$ref", "$dynamicRef") and isinstance(value, str):
            targets.add(value)
        elif key == "multipleOf" and isinstance(value, int | float) and 0 < value < math.inf:
            together = _common_multiple(together, Fraction(str(value)))
            if _states(together) > MAX_MULTIPLE:
                return (
                    f"its multipleOf ({shown(value)}, with those before it) takes more than {MAX_MULTIPLE} states: "
                    "leave it out, and check the number afterwards"
                )
    return _levels_excess("$ref", len(targets), deepest)


def _entries(schema: Any) -> Iterator[tuple[str, Any, int]]:
    """(key, value, depth) of every object at any depth."""
    waiting = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, dict):
            for key, item in value.items():
                yield key, item, depth
        items = value.values() if isinstance(value, dict) else value
        waiting += [(item, depth + 1) for item in items if isinstance(item, dict | list)]


def _common_multiple(one: Fraction, other: Fraction) -> Fraction:
    return Fraction(math.lcm(one.numerator, other.numerator), math.gcd(one.denominator, other.denominator))


def _states(step: Fraction) -> int:
    """The step as an integer, counted in its own last decimal."""
    while step.denominator != 1:
        step *= 10
    return step.numerator


def _levels_excess(what: str, references: int, depth: int) -> str | None:
    if references * depth <= MAX_LEVELS:
        return None
    return (
        f"it is too large: {references} {what} times {depth} levels of nesting, of which {MAX_LEVELS} are allowed: "
        "write out what is used, and nest less"
    )
