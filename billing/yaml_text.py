"""YAML that somebody else may have written, and its bounds: ten lines can stand for more values than there is memory, be nested
deeper than Python's stack, and hold a date that is none."""

from __future__ import annotations

from typing import Final

import yaml

MOST_VALUES: Final = 200_000
"""Once every alias is written out."""
WRONG_VALUE: Final = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What PyYAML lets through of a value that its own tag does not fit, such as 2026-13-45."""


class YamlFault(ValueError):
    """The text is no YAML that could be read; the message says why in one line."""


def read_yaml(text: str) -> object:
    """Plain values. Raises `YamlFault`."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        if values(root) > MOST_VALUES:
            raise YamlFault(f"its aliases stand for more than {MOST_VALUES:,} values; write them out")
        return loader.construct_document(root)
    except YamlFault:
        raise
    except yaml.YAMLError as error:
        raise YamlFault(f"it is no YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise YamlFault("it is nested too deeply") from None
    except WRONG_VALUE as error:
        raise YamlFault(f"a value in it cannot be read: {error}") from error


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
