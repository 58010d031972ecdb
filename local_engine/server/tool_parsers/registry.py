"""Which parser reads which model's calls. A new one is one file and its line here.

Text that only looks like a call at first comes out as content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..tool_calls import ToolParser
from .hermes import HermesParser
from .llama3_json import Llama3JsonParser
from .mistral import MistralParser
from .pythonic import PythonicParser

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
