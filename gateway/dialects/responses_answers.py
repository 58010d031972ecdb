"""Chat answers as responses: whole, and as the events of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from billing.usage import Usage
from gateway.dialects import chat
from gateway.dialects.anthropic_answers import Untranslatable
from gateway.dialects.chat import Json
from gateway.dialects.reading import encode

if TYPE_CHECKING:
    from gateway.upstream.base import Call

ECHOED: Final[Json] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "user": None,
}
"""What a response repeats of its request, and what it says where the request says nothing."""
INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


def usage_object(usage: Usage) -> Json:
    return {
        "input_tokens": usage.total_input,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.total_output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"


def frame(fields: Mapping[str, Raw], model: str) -> Json:
    """A response in progress."""
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
        "usage": None,
        **ECHOED,
        **{name: fields[name] for name in ECHOED if name in fields},
    }


def finished(response: Json, output: list[Json], finish: str | None, usage: Usage | None) -> Json:
    reason = INCOMPLETE.get(finish or "")
    return {
        **response,
        "status": "completed" if reason is None else "incomplete",
        "incomplete_details": None if reason is None else {"reason": reason},
        "output": output,
        "usage": None if usage is None else usage_object(usage),
    }


def message_item(id: str, text: str, refusal: str = "", status: str = "completed") -> Json:
    content: list[Json] = []
    if text or not refusal:
        content.append({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
    if refusal:
        content.append({"type": "refusal", "refusal": refusal})
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": content}


def call_item(id: str, call_id: str, name: str, arguments: str, status: str = "completed") -> Json:
    names: Json = {"id": id, "type": "function_call", "call_id": call_id, "name": name}
    return {**names, "arguments": arguments, "status": status}


def reasoning_item(id: str, text: str, status: str = "completed") -> Json:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": id, "type": "reasoning", "summary": [], "content": content, "status": status}


def response(fields: Mapping[str, Raw], model: str, body: bytes, usage: Usage | None) -> bytes:
    """A response of a chat completion. Raises `Untranslatable`."""
    try:
        answer = chat.ANSWER.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Untranslatable(f"the provider's answer is no chat completion: {error}") from error
    if not answer.choices:
        raise Untranslatable("the provider's answer has no choices")
    said, finish = answer.choices[0].message, answer.choices[0].finish_reason
    output: list[Json] = []
    if thought := said.reasoning_content or said.reasoning:
        output.append(reasoning_item(new_id("rs"), thought))
    if said.content or said.refusal or not said.tool_calls:
        output.append(message_item(new_id("msg"), said.content or "", said.refusal or ""))
    for call in said.tool_calls or []:
        if call.function is None:
            raise Untranslatable("the provider called a tool that is no function")
        name, arguments = call.function.name, call.function.arguments or "{}"
        output.append(call_item(new_id("fc"), call.id or new_id("call"), name, arguments))
    return encode(finished(frame(fields, model), output, finish, usage))


class _Item:
    """An output item while it is being told."""

    __slots__ = ("call_id", "id", "index", "kind", "name", "pieces")

    def __init__(self, kind: str, id: str, index: int) -> None:
        self.kind = kind
        self.id = id
        self.index = index
        self.call_id = ""
        self.name = ""
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def item(self, status: str) -> Json:
        text = "" if status == "in_progress" else self.text
        if self.kind == "call":
            return call_item(self.id, self.call_id, self.name, text, status)
        if self.kind == "reasoning":
            return reasoning_item(self.id, text, status)
        made = message_item(
            self.id, text if self.kind == "text" else "", text if self.kind == "refusal" else "", status
        )
        return {**made, "content": []} if status == "in_progress" else made


class ResponseWriter:
    """Chat chunks as the events of a response. Items have their own index, so parallel calls may be told in turns."""

    def __init__(self, call: Call) -> None:
        self._response = frame(call.fields, call.model)
        self._asked = call
        call.told = 0
        self._begun = False
        self._items: list[_Item] = []
        self._open: _Item | None = None
        self._calls: dict[int, _Item] = {}
        self._finish: str | None = None

    def chunk(self, chunk: chat.Chunk) -> bytes:
        out: list[bytes] = []
        self._begin(out)
        for choice in (chunk.choices or [])[:1]:
            if choice.delta is not None:
                self._delta(choice.delta, out)
            self._finish = choice.finish_reason or self._finish
        return b"".join(out)

    def ending(self, usage: Usage, cost: str | None) -> bytes:
        out: list[bytes] = []
        self._begin(out)
        self._close(out)
        if not self._items:
            self._say_in("text", "", out)
            self._close(out)
        for item in self._calls.values():
            self._done(item, out)
        output = [item.item("completed") for item in self._items]
        response = finished(self._response, output, self._finish, usage)
        if cost is not None:
            response["usage"] = {**response["usage"], "cost": cost}
        out.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(out)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = encode({"type": kind, "sequence_number": self._asked.told, **fields})
        self._asked.told += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _begin(self, out: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            out.append(self._event("response.created", response=self._response))
            out.append(self._event("response.in_progress", response=self._response))

    def _delta(self, delta: chat.Delta, out: list[bytes]) -> None:
        for kind, text in (("reasoning", delta.thought), ("text", delta.content), ("refusal", delta.refusal)):
            if text:
                self._say_in(kind, text, out)
        for call in delta.tool_calls or []:
            self._close(out)
            self._call(call, out)

    def _add(self, item: _Item, out: list[bytes]) -> None:
        self._items.append(item)
        out.append(self._event("response.output_item.added", output_index=item.index, item=item.item("in_progress")))

    def _say_in(self, kind: str, text: str, out: list[bytes]) -> None:
        if self._open is None or self._open.kind != kind:
            self._close(out)
            self._open = _Item(kind, new_id("rs" if kind == "reasoning" else "msg"), len(self._items))
            self._add(self._open, out)
            out.append(self._event("response.content_part.added", **self._place(self._open), part=_part(kind, "")))
        self._open.pieces.append(text)
        if text:
            extra: Json = {"logprobs": []} if kind == "text" else {}
            out.append(self._event(f"{_EVENTS[kind]}.delta", **self._place(self._open), delta=text, **extra))

    def _place(self, item: _Item) -> Json:
        return {"item_id": item.id, "output_index": item.index, "content_index": 0}

    def _close(self, out: list[bytes]) -> None:
        item, self._open = self._open, None
        if item is None:
            return
        place, text = self._place(item), item.text
        said = {"refusal": text} if item.kind == "refusal" else {"text": text}
        extra: Json = {"logprobs": []} if item.kind == "text" else {}
        out.append(self._event(f"{_EVENTS[item.kind]}.done", **place, **said, **extra))
        out.append(self._event("response.content_part.done", **place, part=_part(item.kind, text)))
        out.append(self._event("response.output_item.done", output_index=item.index, item=item.item("completed")))

    def _call(self, delta: chat.CallDelta, out: list[bytes]) -> None:
        item = self._calls.get(delta.index)
        function = delta.function or chat.DeltaFunction()
        if item is None:
            item = self._calls[delta.index] = _Item("call", new_id("fc"), len(self._items))
            item.call_id, item.name = delta.id or new_id("call"), function.name or ""
            self._add(item, out)
        if function.arguments:
            item.pieces.append(function.arguments)
            out.append(
                self._event(
                    "response.function_call_arguments.delta",
                    item_id=item.id,
                    output_index=item.index,
                    delta=function.arguments,
                )
            )

    def _done(self, item: _Item, out: list[bytes]) -> None:
        names: Json = {"item_id": item.id, "output_index": item.index, "name": item.name}
        out.append(self._event("response.function_call_arguments.done", **names, arguments=item.text))
        out.append(self._event("response.output_item.done", output_index=item.index, item=item.item("completed")))


_EVENTS: Final = {
    "text": "response.output_text",
    "refusal": "response.refusal",
    "reasoning": "response.reasoning_text",
}


def _part(kind: str, text: str) -> Json:
    if kind == "refusal":
        return {"type": "refusal", "refusal": text}
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
