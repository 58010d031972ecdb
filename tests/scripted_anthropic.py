"""What the scripted provider of kind `anthropic` says; see tests/upstream_server.py.

input=9 output=5 cached=N write_5m=N write_1h=N tier=standard   the counts that usage reports; `placeholder=1` begins a
                                                                stream with a wrong output count, as Anthropic does
thought=WORDS redacted=1 text=WORDS chunks=3 tools=N            blocks of the answer, in this order
stop=end_turn sequence=TEXT                                     why it ended (with tools: tool_use)
ping=1                                                          pings between the events
"""

from __future__ import annotations

import json
from typing import Any

from tests.upstream_server import Script


class AnthropicAnswers:
    def __init__(self, script: Script, body: dict[str, Any], path: str) -> None:
        self.script = script
        self.body = body
        self.counts = path.endswith("/count_tokens")
        self.streamed = bool(body.get("stream")) and not self.counts

    @staticmethod
    def refusal(script: Script) -> dict[str, Any]:
        message = f"{script.text('message', 'scripted failure')} {script.text('quote')}"
        return {"type": "error", "error": {"type": script.text("type", "invalid_request_error"), "message": message}}

    def failure(self) -> bytes:
        message = f"scripted in-band {self.script.text('quote')}"
        error = {"type": self.script.text("type", "overloaded_error"), "message": message}
        return _event({"type": "error", "error": error})

    def usage(self) -> dict[str, Any]:
        number = self.script.number
        usage: dict[str, Any] = {"input_tokens": number("input", 9), "output_tokens": number("output", 5)}
        if "cached" in self.script.values:
            usage["cache_read_input_tokens"] = number("cached")
        short, long = number("write_5m"), number("write_1h")
        if short or long:
            usage["cache_creation_input_tokens"] = short + long
            usage["cache_creation"] = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}
        if "thought" in self.script.values:
            usage["output_tokens_details"] = {"thinking_tokens": 2}
        usage["service_tier"] = self.script.text("tier", "standard")
        return usage

    def content(self) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if "thought" in self.script.values:
            blocks.append({"type": "thinking", "thinking": self.script.text("thought"), "signature": "sig=="})
        if self.script.number("redacted"):
            blocks.append({"type": "redacted_thinking", "data": "hidden"})
        blocks.append({"type": "text", "text": self.script.text("text", "scripted")})
        for index in range(self.script.number("tools")):
            call = {"type": "tool_use", "id": f"toolu_{index}", "name": f"tool_{index}", "input": {"place": str(index)}}
            blocks.append(call)
        return blocks

    def stop(self) -> dict[str, Any]:
        reason = "tool_use" if self.script.number("tools") else self.script.text("stop", "end_turn")
        return {"stop_reason": reason, "stop_sequence": self.script.values.get("sequence")}

    def message(self) -> dict[str, Any]:
        head = {"id": "msg_scripted", "type": "message", "role": "assistant", "model": self.body.get("model")}
        return {**head, "content": self.content(), **self.stop(), "usage": self.usage()}

    def whole(self) -> bytes:
        return json.dumps({"input_tokens": self.script.number("input", 9)} if self.counts else self.message()).encode()

    def events(self) -> list[bytes]:
        usage = self.usage()
        begun = {**usage, "output_tokens": 1 if self.script.number("placeholder") else 0}
        start = {**self.message(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": begun}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
        for index, block in enumerate(self.content()):
            events += self._block(index, block)
        final: dict[str, Any] = {"output_tokens": usage["output_tokens"]}
        if self.script.number("placeholder"):
            final |= {"input_tokens": usage["input_tokens"], "cache_read_input_tokens": None}
        events.append({"type": "message_delta", "delta": self.stop(), "usage": final})
        events.append({"type": "message_stop"})
        if self.script.number("ping"):
            events = [each for event in events for each in (event, {"type": "ping"})][:-1]
        return [_event(event) for event in events]

    def _block(self, index: int, block: dict[str, Any]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        start = dict(block)
        if block["type"] == "text":
            start["text"] = ""
            words = block["text"]
            count = self.script.number("chunks", 3)
            deltas = [{"type": "text_delta", "text": f"{words}{place} "} for place in range(count)]
        elif block["type"] == "thinking":
            start |= {"thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        elif block["type"] == "tool_use":
            start["input"] = {}
            text = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", text[:7], text[7:])]
        return [
            {"type": "content_block_start", "index": index, "content_block": start},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index},
        ]


def _event(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: ".encode() + json.dumps(event, separators=(",", ":")).encode()
