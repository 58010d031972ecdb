"""A foreign YAML file as plain values, whatever stands in it: bounded, and every fault is one line."""

from __future__ import annotations

from pathlib import Path

import yaml

from gateway.yaml_bounds import MOST_VALUES, WRONG_VALUE, values


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
        if values(root) > MOST_VALUES:
            raise LiteLLMError(f"{path}: its aliases stand for more than {MOST_VALUES:,} values; write them out")
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        raise LiteLLMError(f"{path}: it is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise LiteLLMError(f"{path}: it is nested too deeply") from None
    except WRONG_VALUE as error:
        raise LiteLLMError(f"{path}: a value in it cannot be read: {error}") from error
