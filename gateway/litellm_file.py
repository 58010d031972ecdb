"""A foreign YAML file as plain values, whatever stands in it: bounded, and every fault is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

MOST_VALUES: Final = 200_000
"""Once every alias is written out: a file of ten lines can stand for more values than there is memory."""


class LiteLLMError(Exception):
    """The file is no LiteLLM proxy configuration; the message says where it is not."""


def load(path: Path) -> object:
    """Raises `LiteLLMError`."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LiteLLMError(f"{path}: it cannot be read: {error}") from error
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        if _values(root, {}) > MOST_VALUES:
            raise LiteLLMError(f"{path}: its aliases stand for more than {MOST_VALUES:,} values; write them out")
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        raise LiteLLMError(f"{path}: it is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise LiteLLMError(f"{path}: it is nested too deeply") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # what PyYAML lets through of a value that its own tag does not fit, such as 2026-13-45
        raise LiteLLMError(f"{path}: a value in it cannot be read: {error}") from error


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values the node stands for; one inside itself stands for too many."""
    found = known.get(id(node))
    if found is None:
        known[id(node)] = MOST_VALUES + 1  # until it is known: whoever meets it now is inside it
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif isinstance(node, yaml.MappingNode):
            inner = [each for pair in node.value for each in pair]
        found = known[id(node)] = 1 + sum(_values(each, known) for each in inner)
    return found
