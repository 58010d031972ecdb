"""What a request wants its answer to look like, as a grammar (llguidance's JSON text). Raises `RequestError` for what is none.

JSON is written compactly (no line breaks, one form of separators): a model that likes spaces would otherwise write them for
ever, and a bounded schema would not end.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from ..errors import RequestError
from ..tokenizer import Tokenizer
from .grammar_limits import excess
from .reasoning import CLOSE, OPEN, Reasoning
from .requests import ChatRequest, CompletionRequest, StructuredOutputs, Tool

COMPACT = {"whitespace_flexible": False}
CHECKED_GRAMMARS = 256
"""Grammars whose check is remembered."""


def wants_structure(body: ChatRequest | CompletionRequest) -> bool:
    """Whether the answer is anything but free text."""
    return bool(_asked(body))


def grammar_of(body: ChatRequest | CompletionRequest) -> str | None:
    """From `response_format`, vLLM's `structured_outputs` and `guided_*`, or a `tool_choice` that demands a call."""
    asked = _asked(body)
    if len(asked) > 1:
        raise RequestError(
            f"{' and '.join(param for param, *_ in asked)} cannot be combined: each says what the answer looks like.",
            param=asked[1][0],
        )
    if not asked:
        return None
    param, kind, value = asked[0]
    if body.allowed_token_ids is not None:
        raise RequestError(f"allowed_token_ids cannot be combined with {param}.", param="allowed_token_ids")
    grammar = _grammar(param, kind, value)
    if error := excess(grammar) or _checked(grammar):
        raise RequestError(f"{param} cannot be followed: {error.strip()}", param=param)
    return grammar


def after_reasoning(grammar: str, beginning: Reasoning, tokenizer: Tokenizer) -> str:
    """The same for an answer that comes after reasoning, which is free, and follows its closing tag at once."""
    if beginning is Reasoning.NONE:
        return grammar
    whole = json.loads(grammar) if grammar.lstrip().startswith("{") else {"grammars": [{"lark_grammar": grammar}]}
    answer, *others = whole["grammars"]
    answer = {**answer, "name": answer.get("name") or "the_answer"}
    opening, closing = (_token(tokenizer, tag) for tag in (OPEN, CLOSE))
    thoughts, until = ("thoughts", f'[suffix="{CLOSE}"]') if closing is None else (f"thoughts {closing}", "")
    if beginning is Reasoning.POSSIBLE:
        thoughts = f"({opening or json.dumps(OPEN)} {thoughts})?"
    elif opening is not None:
        thoughts = f"{opening}? {thoughts}"
    rules = f"start: {thoughts} @{answer['name']}\nthoughts{until}: /(?s:.*)/"
    return json.dumps({**whole, "grammars": [{"lark_grammar": rules}, answer, *others]})


def _token(tokenizer: Tokenizer, tag: str) -> str | None:
    """The tag in a rule, where it is a special token: no text matches it then."""
    special = tokenizer.special_id(tag)
    return None if special is None else f"<[{special}]>"


def _asked(body: ChatRequest | CompletionRequest) -> list[tuple[str, str, Any]]:
    """(parameter, kind, value) of everything that restricts the answer."""
    asked: list[tuple[str, str, Any]] = []
    response = body.response_format
    if response is not None and response.type == "json_object":
        asked.append(("response_format", "json", {"type": "object"}))
    elif response is not None and response.type == "json_schema":
        if response.json_schema is None:
            raise RequestError("response_format.json_schema is missing.", param="response_format.json_schema")
        asked.append(("response_format", "json", response.json_schema.schema or {"type": "object"}))
    outputs = body.structured_outputs or StructuredOutputs()
    for kind in ("json", "regex", "choice", "grammar"):
        for param, value in (
            (f"structured_outputs.{kind}", getattr(outputs, kind)),
            (f"guided_{kind}", getattr(body, f"guided_{kind}")),
        ):
            if value is not None:
                asked.append((param, kind, value))
    if outputs.json_object:
        asked.append(("structured_outputs.json_object", "json", {"type": "object"}))
    if isinstance(body, ChatRequest) and body.tools and (schema := calls_schema(body)) is not None:
        asked.append(("tool_choice", "json", schema))
    return asked


def calls_schema(body: ChatRequest) -> dict[str, Any] | None:
    """What the whole answer is where calling is no matter of choice: the named function's arguments, or a list of calls."""
    assert body.tools is not None
    if isinstance(body.tool_choice, str | None):
        if body.tool_choice != "required":
            return None
        calls: dict[str, Any] = {
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": [_call(tool) for tool in body.tools]},
        }
        return calls if body.parallel_tool_calls else {**calls, "maxItems": 1}
    name = body.tool_choice.function.name
    for tool in body.tools:
        if tool.function.name == name:
            return tool.function.parameters or {"type": "object"}
    raise RequestError(f"tool_choice names the function {name!r}, which is not among the tools.", param="tool_choice")


def _call(tool: Tool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.function.name},
            "parameters": tool.function.parameters or {"type": "object"},
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _grammar(param: str, kind: str, value: Any) -> str:
    try:
        import llguidance
    except ImportError as error:
        raise RequestError(
            "Structured output needs the package llguidance on the server: pip install 'metergate[engine]'.",
            param=param,
            code="unsupported",
        ) from error
    try:
        if kind == "json":
            # As a part of the schema, which is how llguidance takes it from anywhere.
            return llguidance.LLMatcher.grammar_from_json_schema({**_schema(value), "x-guidance": COMPACT})
        if kind == "regex":
            return llguidance.LLMatcher.grammar_from_regex(value)
        if kind == "choice":
            if not value or not all(value):
                raise ValueError("it needs at least one text, and none may be empty")
            return llguidance.grammar_from("choice", json.dumps(value))
        return llguidance.grammar_from("grammar", value)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{param} cannot be followed: {error}", param=param) from error


def _schema(value: Any) -> dict[str, Any]:
    """A schema, or the text of one."""
    schema = json.loads(value) if isinstance(value, str) else value
    if not isinstance(schema, dict):
        raise ValueError("a JSON schema is an object")
    return schema


@functools.lru_cache(CHECKED_GRAMMARS)
def _checked(grammar: str) -> str:
    """What is wrong with it; empty if nothing is."""
    import llguidance

    wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, None)
    return messages[0] if wrong else ""
