"""A streaming completions server over OpenVINO GenAI's continuous batching, which brings none for Python.

    python engine_openvino.py MODEL --port 9200

Run by the interpreter of OpenVINO's own environment, so it imports nothing of this project. It is made to cost as little as it
can: a bare protocol, one thread that steps, one hand-over for each step, and a table instead of a detokeniser.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import re
import threading
from typing import Any, cast

import openvino_genai
import uvloop

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(payload: str) -> bytes:
    data = f"data: {payload}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


class Engine(threading.Thread):
    """Steps the pipeline while anything runs, and hands each step's new tokens to the event loop at once."""

    def __init__(self, model: str, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        super().__init__(daemon=True)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = 2048
        scheduler.num_kv_blocks = 3072
        scheduler.enable_prefix_caching = True
        hint = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", hint)
        tokenizer = self.pipeline.get_tokenizer()
        self.encode = tokenizer.encode
        self.text: list[str] = tokenizer.decode([[token] for token in range(49152)])
        self.loop = loop
        self.arrivals: queue.SimpleQueue[tuple[Connection, Any, int]] = queue.SimpleQueue()
        self.running: dict[int, tuple[Connection, Any]] = {}

    def submit(self, connection: Connection, prompt: str, output_tokens: int) -> int:
        ids = self.encode(prompt, add_special_tokens=False).input_ids
        self.arrivals.put((connection, ids, output_tokens))
        return int(ids.shape[1])

    def run(self) -> None:
        number = 0
        while True:
            while not self.running or not self.arrivals.empty():
                connection, ids, output_tokens = self.arrivals.get()
                number += 1
                config = openvino_genai.GenerationConfig()
                config.max_new_tokens = output_tokens
                config.ignore_eos = True
                config.do_sample = False
                self.running[number] = (connection, self.pipeline.add_request(number, ids, config))
            self.pipeline.step()
            news = [(item, handle.read()) for item, (_, handle) in self.running.items() if handle.can_read()]
            tokens = [
                (self.running[item][0], list(output.generated_ids))
                for item, outputs in news
                for output in outputs.values()
            ]
            ended = [item for item, (_, handle) in self.running.items() if handle.get_status() != RUNNING]
            finished = [self.running.pop(item)[0] for item in ended]
            self.loop.call_soon_threadsafe(deliver, tokens, finished)


RUNNING = openvino_genai.GenerationStatus.RUNNING


def deliver(tokens: list[tuple[Connection, list[int]]], finished: list[Connection]) -> None:
    for connection, ids in tokens:
        connection.tokens(ids)
    for connection in finished:
        connection.finish()


class Connection(asyncio.Protocol):
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.buffer = b""
        self.prompt_tokens = self.output_tokens = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            assert self.transport is not None
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        match = LENGTH.search(self.buffer, 0, end) if end >= 0 else None
        if match is None or len(self.buffer) < end + 4 + int(match[1]):
            return
        body = json.loads(self.buffer[end + 4 :])
        self.buffer = b""
        self.output_tokens = 0
        self.prompt_tokens = self.engine.submit(self, body["prompt"], body["max_tokens"])
        assert self.transport is not None
        self.transport.write(HEAD)

    def tokens(self, ids: list[int]) -> None:
        self.output_tokens += len(ids)
        text = json.dumps("".join(self.engine.text[token] for token in ids))
        assert self.transport is not None
        self.transport.write(event(f'{{"choices": [{{"index": 0, "text": {text}}}]}}'))

    def finish(self) -> None:
        usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.output_tokens}
        assert self.transport is not None
        self.transport.write(event(json.dumps({"choices": [], "usage": usage})) + event("[DONE]") + b"0\r\n\r\n")


async def serve(model: str, port: int, threads: int) -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(model, loop, threads)
    engine.start()
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    uvloop.run(serve(options.model, options.port, options.threads))
