"""Messages events as chat chunks."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from gateway.dialects.anthropic import TO_FINISH
from gateway.sse import StreamBroken, payload_of
from gateway.upstream.anthropic_usage import merge_usage, partial_usage, tier_in
from gateway.upstream.events import EventScanner
from gateway.upstream.shapes import NULL, given


class _Delta(Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _Block(Struct):
    type: str = ""
    id: str = ""
    name: str = ""
    text: str = ""
    data: str = ""


class _Start(Struct):
    id: str = ""
    model: str = ""
    usage: Raw = NULL


class _Event(Struct):
    type: str
    index: int = 0
    message: _Start | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Raw = NULL
    error: Raw = NULL


_event = msgspec.json.Decoder(_Event)


class ChatScanner(EventScanner):
    """Messages events as chat chunks."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, int] = {}
        self._thought: list[str] = []
        self._reported: bytes | None = None
        self._counted = False

    @property
    def usage(self) -> bytes | None:
        return self._reported if self._counted else partial_usage(self._reported, self.output_tokens())

    def take(self, event: bytes) -> bytes:
        data = payload_of(event)
        return self._told(data) if data.strip() else b""

    def _told(self, data: bytes) -> bytes:
        try:
            event = _event.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StreamBroken(f"an event that is none of Anthropic's: {error}") from error
        if event.type == "message_start" and event.message is not None:
            self.writer.id, self.writer.model = event.message.id, event.message.model
            self._count(event.message.usage)
        elif event.type == "content_block_start" and event.content_block is not None:
            return self._begin(event.index, event.content_block)
        elif event.type == "content_block_delta" and event.delta is not None:
            return self._delta(event.index, event.delta)
        elif event.type == "message_delta":
            self._count(event.usage)
            self._counted = self._counted or given(event.usage)
            if event.delta is not None and event.delta.stop_reason is not None:
                self.finished = True
                return self.writer.write({}, finish=TO_FINISH.get(event.delta.stop_reason, "stop"))
        elif event.type == "message_stop":
            self.done = True
        elif event.type == "error":
            self.error, self.done = bytes(event.error), True
        return b""

    def _count(self, usage: Raw) -> None:
        if given(usage):
            self._reported = merge_usage(self._reported, bytes(usage))
            self.service_tier = tier_in(self._reported)

    def _begin(self, index: int, block: _Block) -> bytes:
        if block.type == "tool_use":
            self._calls[index] = len(self._calls)
            function = {"name": block.name, "arguments": ""}
            call = {"index": self._calls[index], "id": block.id, "type": "function", "function": function}
            return self.writer.write({"tool_calls": [call]})
        if block.type == "redacted_thinking":
            return self.writer.write({"thinking_blocks": [{"type": "redacted_thinking", "data": block.data}]})
        if block.type == "thinking":
            self._thought.clear()
        return self.writer.write({"content": block.text}) if block.text else b""

    def _delta(self, index: int, delta: _Delta) -> bytes:
        if delta.type == "text_delta":
            self.note(delta.text)
            return self.writer.write({"content": delta.text})
        if delta.type == "thinking_delta":
            self.note(delta.thinking)
            self._thought.append(delta.thinking)
            return self.writer.write({"reasoning_content": delta.thinking})
        if delta.type == "signature_delta":
            block = {"type": "thinking", "thinking": "".join(self._thought), "signature": delta.signature}
            return self.writer.write({"thinking_blocks": [block]})
        if delta.type == "input_json_delta" and index in self._calls:
            self.note(delta.partial_json)
            call = {"index": self._calls[index], "function": {"arguments": delta.partial_json}}
            return self.writer.write({"tool_calls": [call]})
        return b""
