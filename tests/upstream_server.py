"""A scripted OpenAI-compatible provider as a process of its own: it answers as its request tells it to, and keeps books.

The kinds `anthropic` and `gemini` speak those providers' native APIs (tests/scripted_anthropic.py, tests/scripted_gemini.py).

Scripts travel in the request's `user` field as `name=value;name=value` (so they pass through a gateway untouched), in the
header `x-script`, or, for every dialect, as `[[name=value;name=value]]` in a text. `GET /book` returns what was served and what
became of it; `POST /book/clear` empties it.

    python -m tests.upstream_server [--port N] [--kind openai|engine] [--port-file PATH]

prompt=9 output=5 cached=0 reasoning=0 audio_in=0 audio_out=0 write=0   the counts that usage reports
usage=final|none|finish|every|null|choice|groq|bad      where a stream reports usage (final: a chunk of its own, as OpenAI)
chunks=3 gap_ms=0 delay_ms=0 first_delay_ms=0           how an answer is paced
split=0                                                 a stream's bytes in reads of so many bytes; 0 leaves them whole
newline=lf|crlf|cr                                      line ends of the stream
done=1 final_newline=1 comment=0 space=1                `[DONE]`, the last newline, comments, `data: ` with its space
cut=N   the connection breaks after N chunks            stall=N   silence for ever after N chunks
error=N an in-band error after N chunks                 status=429 with retry_after=S, retry_after_ms=MS, quote=TEXT, code=C
mode=sse|json   the other form than was asked for       empty=1   a stream without any event
text=WORD line_bytes=N                                  what a chunk's content is; a chunk of N bytes
cancel=unknown  an engine that knows no way to cancel a request
tier=default                                            `service_tier` of the answer
tools=N thought=WORDS                                   parallel tool calls, their arguments interleaved; reasoning
on=MODEL key=END    the script counts only for this model, or where our key ends so; any other request is answered plainly
fail_percent=N  so many of a hundred requests fail with 500, spread evenly
fail_first=N    the first N requests that name it (by `tag=`) fail with 500
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, cast

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_USER = re.compile(rb'"user" *: *"([^"\\]*)"')
_INLINE = re.compile(rb"\[\[([^\"\]\\]*)\]\]")
_SCRIPT = re.compile(rb"x-script: *([^\r]*)\r", re.IGNORECASE)
_REQUEST_ID = re.compile(rb"x-request-id: *([^\r]*)\r", re.IGNORECASE)
MEDIA = (
    "/audio/speech",
    "/audio/transcriptions",
    "/audio/translations",
    "/images/generations",
    "/rerank",
    "/moderations",
)
NEWLINES = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}


@dataclass(slots=True)
class Entry:
    """One request of the book. `ended`: finished, cut (by us), left (by the client), stalled, refused, cancelled."""

    path: str
    headers: dict[str, str]
    body: Any
    request_id: str = ""
    output_sent: int = 0
    ended: str = "running"


@dataclass(slots=True)
class Script:
    values: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Script:
        return cls(dict(item.split("=", 1) for item in text.split(";") if "=" in item))

    def elsewhere(self, model: Any, credentials: str) -> bool:
        """Whether it speaks of other requests than this one."""
        return self.values.get("on", model) != model or not credentials.endswith(self.text("key"))

    def number(self, name: str, default: int = 0) -> int:
        return int(self.values.get(name, default))

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, default)


class Book:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.entries: list[Entry] = []
        self.connections = 0
        self.asked = 0
        self.failed: dict[str, int] = {}
        self.cancelled: dict[str, Script] = {}


def usage_of(script: Script, output: int | None = None) -> dict[str, Any]:
    prompt = script.number("prompt", 9)
    completion = script.number("output", 5) if output is None else output
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion + script.number("beside"),
    }
    details = {"cached_tokens": "cached", "audio_tokens": "audio_in", "cache_write_tokens": "write"}
    found = {name: script.number(key) for name, key in details.items() if key in script.values}
    if found:
        usage["prompt_tokens_details"] = found
    details = {"reasoning_tokens": "reasoning", "audio_tokens": "audio_out"}
    found = {name: script.number(key) for name, key in details.items() if key in script.values}
    if found:
        usage["completion_tokens_details"] = found
    if "compute_us" in script.values:
        usage["metergate"] = {"compute_us": script.number("compute_us")}
    return usage


class Stream:
    """The events of one scripted stream, each as bytes without its end."""

    def __init__(self, script: Script, body: dict[str, Any], path: str) -> None:
        self.script = script
        self.chat = path.endswith("/chat/completions")
        self.n = int(body.get("n") or 1)
        options = body.get("stream_options") or {}
        self.asked = bool(options.get("include_usage"))
        self.model = body.get("model")

    def events(self) -> list[bytes]:
        script, where = self.script, self.script.text("usage", "final" if self.asked else "none")
        chunks, total = script.number("chunks", 3), script.number("output", 5)
        events: list[bytes] = self.thoughts_and_calls()
        for place in range(chunks):
            text = script.text("text", f"word{place} ")
            if script.number("line_bytes"):
                text = "x" * script.number("line_bytes")
            for index in range(self.n):
                chunk = self.chunk(index, text, None)
                if where == "every":
                    chunk["usage"] = usage_of(script, (place + 1) * total // chunks)
                elif where in ("final", "null"):
                    chunk["usage"] = None
                events.append(self.event(chunk))
        for index in range(self.n):
            last = self.chunk(index, "", script.text("finish", "stop"))
            if where in ("finish", "every"):
                last["usage"] = usage_of(script)
            elif where == "choice":
                last["choices"][0]["usage"] = usage_of(script)
            elif where == "groq":
                last["x_groq"] = {"id": "r", "usage": usage_of(script)}
            events.append(self.event(last))
        if where == "final":
            usage: Any = usage_of(script)
            events.append(self.event({**self.head(), "choices": [], "usage": usage}))
        elif where == "bad":
            events.append(
                self.event({**self.head(), "choices": [], "usage": {"prompt_tokens": -4, "completion_tokens": 5}})
            )
        if script.number("comment"):
            events = [piece for event in events for piece in (b": still here", event)]
        return events

    def failure(self) -> bytes:
        quoted = {"message": f"scripted in-band {self.script.text('quote')}", "type": "server_error", "code": None}
        return b"data: " + json.dumps({"error": quoted}).encode()

    def thoughts_and_calls(self) -> list[bytes]:
        """Reasoning as DeepSeek tells it, and parallel calls whose arguments come in turns."""
        calls = self.script.number("tools")
        events: list[dict[str, Any]] = []
        if "thought" in self.script.values:
            events.append({"reasoning_content": self.script.text("thought")})
        for index in range(calls):
            function: dict[str, Any] = {"name": f"tool_{index}", "arguments": ""}
            call = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
            events.append({"tool_calls": [call]})
        for piece in ('{"place":', ' "%d"}'):
            for index in range(calls):
                text = piece % index if "%" in piece else piece
                events.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        return [
            self.event({**self.head(), "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            for delta in events
        ]

    def head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        head = {"id": "chatcmpl-scripted", "object": kind, "created": 1_700_000_000, "model": self.model}
        if "tier" in self.script.values:
            head["service_tier"] = self.script.text("tier")
        return head

    def chunk(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "finish_reason": finish}
        choice |= {"delta": {"content": text} if text else {}} if self.chat else {"text": text}
        return {**self.head(), "choices": [choice]}

    def event(self, chunk: dict[str, Any]) -> bytes:
        data = json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode()
        return (b"data: " if self.script.number("space", 1) else b"data:") + data


def whole_answer(script: Script, body: dict[str, Any], path: str) -> bytes:
    chat = path.endswith("/chat/completions")
    text = script.text("text", "scripted")
    choices = []
    for index in range(int(body.get("n") or 1)):
        choice: dict[str, Any] = {"index": index, "finish_reason": script.text("finish", "stop")}
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if script.number("tools"):
            message["tool_calls"] = [
                {
                    "id": f"call_{i}",
                    "type": "function",
                    "function": {"name": f"tool_{i}", "arguments": f'{{"place": "{i}"}}'},
                }
                for i in range(script.number("tools"))
            ]
        if "thought" in script.values:
            message["reasoning_content"] = script.text("thought")
        choice |= {"message": message} if chat else {"text": text}
        choices.append(choice)
    answer: dict[str, Any] = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1_700_000_000,
        "model": body.get("model"),
        "choices": choices,
    }
    if "tier" in script.values:
        answer["service_tier"] = script.text("tier")
    if script.text("usage") != "none":
        answer["usage"] = usage_of(script)
    return json.dumps(answer, ensure_ascii=False).encode()


class Connection(asyncio.Protocol):
    """One client connection; requests one after the other."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.buffer = bytearray()
        self.transport: asyncio.Transport | None = None
        self.running: asyncio.Task[None] | None = None
        self.entry: Entry | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.book.connections += 1
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.running is not None and not self.running.done():
            if self.entry is not None and self.entry.ended in ("running", "stalled"):
                self.entry.ended = "left"
            self.running.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.buffer[: end + 2])
        match = _LENGTH.search(head)
        size = int(match[1]) if match else 0
        if len(self.buffer) < end + 4 + size:
            return
        body = bytes(self.buffer[end + 4 : end + 4 + size])
        del self.buffer[: end + 4 + size]
        self.running = asyncio.ensure_future(self.answer(head, body))

    async def answer(self, head: bytes, body: bytes) -> None:
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        if path == "/book":
            book = {"connections": self.book.connections, "entries": [asdict(entry) for entry in self.book.entries]}
            self.reply(200, json.dumps(book).encode())
        elif path == "/book/clear":
            self.book.entries.clear()
            self.reply(200, b"{}")
        elif path == "/health":
            self.reply(200, b"{}")
        elif path.endswith("/embeddings"):
            self.embed(path, head, body)
        elif path.endswith(MEDIA):
            self.media(path, head, body)
        elif path.endswith("/tokenize"):
            self.book.entries.append(Entry(path, {}, json.loads(body)))
            self.reply(200, b'{"count":17,"max_model_len":100,"tokens":[]}')
        elif method == "GET":
            self.reply(200, b'{"object":"list","data":[]}')
        elif path.endswith("/cancel"):
            self.cancel(path.split("/")[-2])
        else:
            await self.complete(path, head, body)

    def embed(self, path: str, head: bytes, body: bytes) -> None:
        """Two numbers for each text, in the form that was asked for."""
        parsed = json.loads(body)
        self.book.entries.append(Entry(path, {}, parsed))
        texts = parsed["input"] if isinstance(parsed["input"], list) else [parsed["input"]]
        values: Any = [0.5, -0.25]
        if parsed.get("encoding_format") == "base64":
            values = "AAAAPwAAgL4="
        data = [{"object": "embedding", "index": index, "embedding": values} for index in range(len(texts))]
        usage = {"prompt_tokens": 8, "total_tokens": 8}
        answer = {"object": "list", "data": data, "model": parsed["model"], "usage": usage}
        self.reply(200, json.dumps(answer).encode())

    def media(self, path: str, head: bytes, body: bytes) -> None:
        """Sound, pictures, rankings: of a form the book keeps the bytes. `seconds=1` reports a duration, `bare=1` no usage."""
        found = _INLINE.search(body)
        script = Script.parse(found[1].decode() if found else "")
        lines = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
        headers = {name.lower(): value.strip() for name, _, value in lines if name}
        text = body.decode("latin-1")
        self.book.entries.append(Entry(path, headers, json.loads(body) if body[:1] == b"{" else text, ended="finished"))
        if "status" in script.values:
            self.refuse(script)
            return
        if path.endswith("/audio/speech"):
            self.reply(200, b"ID3\x00\xff sound", content_type="audio/mpeg")
            return
        if script.number("plain"):
            self.reply(200, b"1\n00:00 --> 00:01\nfoxes\n", content_type="text/plain; charset=utf-8")
            return
        usage: dict[str, Any] = {"input_tokens": 14, "output_tokens": 5, "total_tokens": 19}
        usage["input_token_details"] = {"text_tokens": 4, "audio_tokens": 10}
        answer: dict[str, Any] = {"text": "foxes"}
        if path.endswith("/images/generations"):
            usage = {
                "input_tokens": 9,
                "output_tokens": 500,
                "input_tokens_details": {"text_tokens": 9, "image_tokens": 0},
            }
            answer = {"created": 1, "data": [{"b64_json": "AAAA"}] * 2}
        elif path.endswith("/rerank"):
            usage = {"total_tokens": 33}
            answer = {"model": "m", "results": [{"index": 0, "relevance_score": 0.5}]}
        elif path.endswith("/moderations"):
            answer = {"id": "modr-1", "model": "m", "results": [{"flagged": False}]}
        if script.number("seconds"):
            usage = {"type": "duration", "seconds": 2.5}
        if not script.number("bare") and not path.endswith("/moderations"):
            answer["usage"] = usage
        self.reply(200, json.dumps(answer).encode())

    async def complete(self, path: str, head: bytes, body: bytes) -> None:
        try:
            parsed = json.loads(body)
        except ValueError:
            self.reply(400, b'{"error":{"message":"no JSON","type":"invalid_request_error","param":null,"code":null}}')
            return
        found = _SCRIPT.search(head) or _INLINE.search(body) or _USER.search(body)
        script = Script.parse(found[1].decode() if found else "")
        lines = head.decode("latin-1").split("\r\n")[1:]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
        if script.elsewhere(parsed.get("model"), headers.get("authorization", "")):
            script = Script()
        match = _REQUEST_ID.search(head)
        entry = Entry(path, headers, parsed, match[1].decode() if match else "")
        self.book.entries.append(entry)
        self.entry = entry
        self.book.cancelled[entry.request_id] = script
        if script.number("delay_ms"):
            await asyncio.sleep(script.number("delay_ms") / 1000)
        if self.refuses(script):
            entry.ended = "refused"
            self.refuse(script)
            return
        answers = ANSWERS.get(self.book.kind)
        if answers is not None:
            await self.speak(answers(script, parsed, path), entry)
            return
        streamed = bool(parsed.get("stream"))
        if script.text("mode") == "sse" or (streamed and script.text("mode") != "json"):
            await self.stream(Stream(script, parsed, path), entry)
        else:
            entry.output_sent = script.number("output", 5)
            self.reply(200, whole_answer(script, parsed, path))
            entry.ended = "finished"

    async def speak(self, answers: Answers, entry: Entry) -> None:
        """Another dialect than OpenAI's."""
        if answers.streamed and answers.script.text("mode") != "json":
            await self.stream(answers, entry)
            return
        self.reply(200, answers.whole())
        entry.ended = "finished"

    def refuses(self, script: Script) -> bool:
        if "status" in script.values:
            return True
        percent = script.number("fail_percent")
        if percent:
            self.book.asked += percent
            if self.book.asked >= 100:
                self.book.asked -= 100
                script.values["status"] = "500"
                return True
        tag = script.text("tag")
        if not tag or self.book.failed.get(tag, 0) >= script.number("fail_first"):
            return False
        self.book.failed[tag] = self.book.failed.get(tag, 0) + 1
        script.values["status"] = "500"
        return True

    def refuse(self, script: Script) -> None:
        error = {
            "message": f"scripted failure {script.text('quote')}",
            "type": script.text("type", "scripted_error"),
            "param": None,
            "code": script.text("code", "scripted"),
        }
        extra = ""
        for name in ("retry_after", "retry_after_ms"):
            if name in script.values:
                extra += f"{name.replace('_', '-')}: {script.text(name)}\r\n"
        extra += f"x-secret-header: {script.text('quote')}\r\n"
        answers = ANSWERS.get(self.book.kind)
        body = {"error": error} if answers is None else answers.refusal(script)
        self.reply(script.number("status"), json.dumps(body).encode(), extra)

    def cancel(self, request_id: str) -> None:
        """As the engine does: ends the request and says what it used."""
        script = self.book.cancelled.get(request_id)
        if self.book.kind != "engine" or script is None or script.text("cancel") == "unknown":
            self.reply(404, b'{"error":{"message":"unknown request"}}')
            return
        for entry in self.book.entries:
            if entry.request_id == request_id:
                entry.ended = "cancelled"
        usage = usage_of(script, script.number("cancelled_output", 2))
        self.reply(200, json.dumps({"id": request_id, "usage": usage}).encode())

    async def stream(self, stream: Stream | Answers, entry: Entry) -> None:
        script, transport = stream.script, self.transport
        assert transport is not None
        newline = NEWLINES[script.text("newline", "lf")]
        transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-secret-header: s3cret\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        if script.number("first_delay_ms"):
            await asyncio.sleep(script.number("first_delay_ms") / 1000)
        out = bytearray()
        gap_s = script.number("gap_ms") / 1000
        events = [] if script.number("empty") else stream.events()
        for place, event in enumerate(events):
            if place == script.number("cut", -1):
                await self.flush(out, script)
                entry.ended = "cut"
                transport.close()
                return
            if place == script.number("stall", -1):
                await self.flush(out, script)
                entry.ended = "stalled"
                await asyncio.sleep(3600)
            if place == script.number("error", -1):
                out += stream.failure() + newline * 2
                break
            out += event + newline * 2
            entry.output_sent += 1
            if gap_s:
                await self.flush(out, script)
                await asyncio.sleep(gap_s)
        else:
            if script.number("done", 1) and events and isinstance(stream, Stream):
                out += b"data: [DONE]" + newline * 2
            if not script.number("final_newline", 1):
                del out[len(out.rstrip(b"\r\n")) :]
        await self.flush(out, script)
        transport.write(b"0\r\n\r\n")
        entry.ended = "finished"

    async def flush(self, out: bytearray, script: Script) -> None:
        """One HTTP chunk, or many small ones that arrive as reads of their own."""
        assert self.transport is not None
        if not out:
            return
        step = script.number("split") or len(out)
        for start in range(0, len(out), step):
            piece = bytes(out[start : start + step])
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if script.number("split"):
                await asyncio.sleep(0)
        out.clear()

    def reply(self, status: int, body: bytes, extra: str = "", content_type: str = "application/json") -> None:
        assert self.transport is not None
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n{extra}content-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode("latin-1") + body)


class Answers(Protocol):
    """What a provider of another dialect says: `whole`, or the events of a stream without their ends."""

    script: Script
    streamed: bool

    def __init__(self, script: Script, body: dict[str, Any], path: str) -> None: ...
    def whole(self) -> bytes: ...
    def events(self) -> list[bytes]: ...
    def failure(self) -> bytes: ...
    @staticmethod
    def refusal(script: Script) -> dict[str, Any]: ...


ANSWERS: dict[str, type[Answers]] = {}


async def serve(port: int, kind: str, port_file: str | None) -> None:
    book = Book(kind)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(book), "127.0.0.1", port)
    bound = server.sockets[0].getsockname()[1]
    if port_file:
        with open(port_file, "w") as file:
            file.write(f"{bound}\n")
    print(bound, flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted OpenAI-compatible provider.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--kind", choices=("openai", "engine", "anthropic", "gemini"), default="openai")
    parser.add_argument("--port-file")
    options = parser.parse_args()
    from tests.scripted_anthropic import AnthropicAnswers
    from tests.scripted_gemini import GeminiAnswers

    ANSWERS.update({"anthropic": AnthropicAnswers, "gemini": GeminiAnswers})
    try:
        import uvloop

        uvloop.run(serve(options.port, options.kind, options.port_file))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
