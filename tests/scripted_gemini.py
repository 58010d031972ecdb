"""What the scripted provider of kind `gemini` says; see tests/upstream_server.py.

prompt=9 output=5 cached=N thoughts=N audio=N             the counts of usageMetadata; thoughts stand beside the output
thought=WORDS text=WORDS chunks=3 tools=N                 parts of the answer
finish=STOP early=1                                       why it ended; `early` says so with every part, as old models do
block=SAFETY                                              the prompt itself is refused
"""

from __future__ import annotations

import json
from typing import Any

from tests.upstream_server import Script


class GeminiAnswers:
    def __init__(self, script: Script, body: dict[str, Any], path: str) -> None:
        self.script = script
        self.body = body
        self.method = path.partition("?")[0].rpartition(":")[2]
        self.streamed = self.method == "streamGenerateContent"

    @staticmethod
    def refusal(script: Script) -> dict[str, Any]:
        message = f"{script.text('message', 'scripted failure')} {script.text('quote')}"
        return {"error": {"code": script.number("status"), "message": message, "status": "INVALID_ARGUMENT"}}

    def failure(self) -> bytes:
        error = {"code": 503, "message": f"scripted in-band {self.script.text('quote')}", "status": "UNAVAILABLE"}
        return _event({"error": error})

    def usage(self) -> dict[str, Any]:
        number = self.script.number
        prompt, output, thoughts = number("prompt", 9), number("output", 5), number("thoughts")
        usage: dict[str, Any] = {"promptTokenCount": prompt, "candidatesTokenCount": output}
        usage["totalTokenCount"] = prompt + output + thoughts
        if thoughts:
            usage["thoughtsTokenCount"] = thoughts
        if "cached" in self.script.values:
            usage["cachedContentTokenCount"] = number("cached")
        details = [{"modality": "TEXT", "tokenCount": prompt - number("audio")}]
        if number("audio"):
            details.append({"modality": "AUDIO", "tokenCount": number("audio")})
        usage["promptTokensDetails"] = details
        return usage

    def parts(self, texts: list[str]) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        if "thought" in self.script.values:
            parts.append({"text": self.script.text("thought"), "thought": True})
        parts += [{"text": text} for text in texts]
        for index in range(self.script.number("tools")):
            call: dict[str, Any] = {"functionCall": {"name": f"tool_{index}", "args": {"place": str(index)}}}
            parts.append({**call, "thoughtSignature": "c2ln"} if index == 0 else call)
        return parts

    def response(self, parts: list[dict[str, Any]], finish: str | None) -> dict[str, Any]:
        head = {"modelVersion": "gemini-scripted-001", "responseId": "resp-scripted"}
        if "block" in self.script.values:
            return {**head, "promptFeedback": {"blockReason": self.script.text("block")}, "usageMetadata": self.usage()}
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        return {**head, "candidates": [candidate], "usageMetadata": self.usage()}

    def whole(self) -> bytes:
        if self.method == "countTokens":
            return json.dumps({"totalTokens": self.script.number("prompt", 9)}).encode()
        if self.method == "batchEmbedContents":
            embeddings = [{"values": [0.5, -0.25]} for _ in self.body["requests"]]
            return json.dumps({"embeddings": embeddings}).encode()
        parts = self.parts([self.script.text("text", "scripted")])
        return json.dumps(self.response(parts, self.script.text("finish", "STOP"))).encode()

    def events(self) -> list[bytes]:
        if "block" in self.script.values:
            return [_event(self.response([], None))]
        texts = [f"{self.script.text('text', 'scripted')}{place} " for place in range(self.script.number("chunks", 3))]
        early, finish = self.script.number("early"), self.script.text("finish", "STOP")
        parts = self.parts(texts)
        return [
            _event(self.response([part], finish if early or place == len(parts) - 1 else None))
            for place, part in enumerate(parts)
        ]


def _event(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode()
