"""A foreign YAML file as plain values, whatever stands in it: bounded, and every fault is one line."""

from __future__ import annotations

from pathlib import Path

from billing.yaml_text import YamlFault, read_yaml


class LiteLLMError(Exception):
    """The file is no LiteLLM proxy configuration; the message says where it is not."""


def load(path: Path) -> object:
    """Raises `LiteLLMError`."""
    try:
        return read_yaml(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LiteLLMError(f"{path}: it cannot be read: {error}") from error
    except YamlFault as error:
        raise LiteLLMError(f"{path}: {error}") from error
