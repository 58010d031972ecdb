"""Bounds for a YAML file that somebody else may have written: a file of ten lines can stand for more values than there is memory,
and be nested deeper than Python's stack."""

from __future__ import annotations

from typing import Final

import yaml

MOST_VALUES: Final = 200_000
"""Once every alias is written out."""
WRONG_VALUE: Final = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What PyYAML lets through of a value that its own tag does not fit, such as 2026-13-45."""


def values(node: yaml.Node, known: dict[int, int] | None = None) -> int:
    """How many values the node stands for; one inside itself stands for too many. Raises `RecursionError` for deep nesting."""
    known = {} if known is None else known
    found = known.get(id(node))
    if found is None:
        known[id(node)] = MOST_VALUES + 1  # until it is known: whoever meets it now is inside it
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif isinstance(node, yaml.MappingNode):
            inner = [each for pair in node.value for each in pair]
        found = known[id(node)] = 1 + sum(values(each, known) for each in inner)
    return found
