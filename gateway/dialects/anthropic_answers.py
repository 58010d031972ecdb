"""Chat answers as messages: whole, and as a stream of Messages events."""

from __future__ import annotations

from typing import Any

import msgspec

from billing.usage import Usage
from gateway.dialects import chat
from gateway.dialects.anthropic import FROM_FINISH, usage_object
from gateway.dialects.chat import Json
from gateway.dialects.reading import arguments_object, encode
from gateway.errors import ApiError


class Untranslatable(Exception):
    """A provider's answer that the caller's dialect cannot say. The message is for the log."""


def stop_reason(finish: str | None, met: str | int | None) -> tuple[str, str | None]:
    """Anthropic's stop reason and the stop string that was met, if a server tells (vLLM does)."""
    if finish == "stop" and isinstance(met, str):
        return "stop_sequence", met
    return FROM_FINISH.get(finish or "stop", "end_turn"), None


def message(body: bytes, usage: Usage | None, model: str) -> bytes:
    """A message of a chat completion. Raises `Untranslatable`."""
    try:
        answer = chat.ANSWER.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Untranslatable(f"the provider's answer is no chat completion: {error}") from error
    if not answer.choices:
        raise Untranslatable("the provider's answer has no choices")
    choice = answer.choices[0]
    said = choice.message
    content: list[Json] = []
    if thought := said.reasoning_content or said.reasoning:
        content.append({"type": "thinking", "thinking": thought, "signature": ""})
    if text := (said.content or "") + (said.refusal or ""):
        content.append({"type": "text", "text": text})
    for place, call in enumerate(said.tool_calls or []):
        if call.function is None:
            raise Untranslatable("the provider called a tool that is no function")
        try:
            arguments = arguments_object(call.function.arguments or "", "arguments")
        except ApiError as error:
            raise Untranslatable("the arguments of a tool call are no JSON object") from error
        name, id = call.function.name, call.id or f"toolu_{place}"
        content.append({"type": "tool_use", "id": id, "name": name, "input": arguments})
    reason, sequence = stop_reason(choice.finish_reason, choice.stop_reason)
    return encode(
        {
            "id": message_id(answer.id),
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage_object(usage or Usage()),
        }
    )


def message_id(id: str) -> str:
    return id if id.startswith("msg_") else f"msg_{id or 'metergate'}"


def event(fields: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(fields["type"]).encode(), encode(fields))


class _Call:
    """A tool call that is being told. What comes for a call that may not speak yet waits."""

    __slots__ = ("id", "name", "waiting")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.waiting: list[str] = []


class MessageWriter:
    """Chat chunks as Messages events. Blocks are told one after the other: a second tool call waits for the first."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._begun = False
        self._block: str | None = None
        self._index = -1
        self._calls: dict[int, _Call] = {}
        self._speaking: int | None = None
        self._finish: tuple[str, str | None] = ("end_turn", None)

    def chunk(self, chunk: chat.Chunk) -> bytes:
        out: list[bytes] = []
        if not self._begun:
            self._begun = True
            out.append(self._start(chunk))
        for choice in (chunk.choices or [])[:1]:
            if choice.delta is not None:
                self._delta(choice.delta, out)
            if choice.finish_reason is not None:
                self._finish = stop_reason(choice.finish_reason, choice.stop_reason)
        return b"".join(out)

    def ending(self, usage: Usage, cost: str | None) -> bytes:
        out: list[bytes] = []
        if not self._begun:
            self._begun = True
            out.append(self._start(chat.Chunk()))
        for index in list(self._calls):
            if index != self._speaking:
                self._speak(index, out)
        self._close(out)
        counts = usage_object(usage)
        if cost is not None:
            counts["cost"] = cost
        delta = {"stop_reason": self._finish[0], "stop_sequence": self._finish[1]}
        out.append(event({"type": "message_delta", "delta": delta, "usage": counts}))
        out.append(event({"type": "message_stop"}))
        return b"".join(out)

    def _start(self, chunk: chat.Chunk) -> bytes:
        empty: dict[str, Any] = {
            "id": message_id(chunk.id),
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return event({"type": "message_start", "message": empty})

    def _delta(self, delta: chat.Delta, out: list[bytes]) -> None:
        if delta.thought:
            self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""}, out)
            self._say({"type": "thinking_delta", "thinking": delta.thought}, out)
        for text in (delta.content, delta.refusal):
            if text:
                self._open("text", {"type": "text", "text": ""}, out)
                self._say({"type": "text_delta", "text": text}, out)
        for call in delta.tool_calls or []:
            self._call(call, out)

    def _call(self, delta: chat.CallDelta, out: list[bytes]) -> None:
        call = self._calls.setdefault(delta.index, _Call())
        call.id = call.id or delta.id or ""
        arguments = ""
        if delta.function is not None:
            call.name = call.name or delta.function.name or ""
            arguments = delta.function.arguments or ""
        if arguments:
            call.waiting.append(arguments)
        if self._speaking == delta.index or (self._speaking is None and call.name):
            self._speak(delta.index, out)

    def _speak(self, index: int, out: list[bytes]) -> None:
        """Tells what waits of one call, opening its block where it has none yet."""
        call = self._calls[index]
        if self._speaking != index:
            self._close(out)
            self._speaking = index
            id = call.id or f"toolu_{index}"
            self._open("tool", {"type": "tool_use", "id": id, "name": call.name, "input": {}}, out)
        if call.waiting:
            self._say({"type": "input_json_delta", "partial_json": "".join(call.waiting)}, out)
            call.waiting.clear()

    def _open(self, kind: str, block: Json, out: list[bytes]) -> None:
        if self._block == kind and kind != "tool":
            return
        self._close(out)
        self._block = kind
        self._index += 1
        out.append(event({"type": "content_block_start", "index": self._index, "content_block": block}))

    def _say(self, delta: Json, out: list[bytes]) -> None:
        out.append(event({"type": "content_block_delta", "index": self._index, "delta": delta}))

    def _close(self, out: list[bytes]) -> None:
        if self._block is not None:
            out.append(event({"type": "content_block_stop", "index": self._index}))
            self._block = None
