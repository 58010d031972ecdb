"""Messages to prompt text by the model's own Jinja template, in a sandbox, as transformers renders it.

The template comes with the model and is trusted no further than the sandbox; messages are data and are never compiled.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .chat_messages import Message, prepare
from .errors import ChatTemplateError, ConfigError, RequestError
from .tokenizer import SpecialTokens


class _Refused(jinja2.TemplateError):
    """The template called raise_exception."""


class ChatTemplate:
    """Compiled once. Raises `ConfigError` when the source is no template."""

    def __init__(self, source: str, special: SpecialTokens) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(
                f"the chat template does not compile: {error}; give another by --chat-template"
            ) from error
        self._tokens = {"bos_token": special.bos or "", "eos_token": special.eos or "", **special.extra}

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. Raises `ChatTemplateError` with the template's own words when it refuses the messages."""
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt cannot both be true.", param="continue_final_message"
            )
        prepared = [prepare(message, index) for index, message in enumerate(messages)]
        try:
            text = self._template.render(
                **{**self._tokens, **(extra or {})},
                messages=prepared,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
            )
        except _Refused as refusal:
            raise ChatTemplateError(str(refusal)) from refusal
        except Exception as error:  # a template may fail as any program may
            raise ChatTemplateError(f"The model's chat template cannot render these messages: {error}") from error
        return _cut_after_final(text, prepared) if continue_final_message else text


def _cut_after_final(text: str, messages: Sequence[dict[str, Any]]) -> str:
    final = messages[-1].get("content") if messages else None
    wanted = final.strip() if isinstance(final, str) else ""
    position = text.rfind(wanted) if wanted else -1
    if position < 0:
        raise RequestError(
            "continue_final_message needs a last message with text that the template keeps.",
            param="continue_final_message",
        )
    return text[: position + len(wanted)]


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now(datetime.UTC).strftime(form)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
