"""The floor: a raw ASGI route that forwards with pyreqwest and does nothing else. What Metergate adds is measured against it.

python -m bench.forward --port 9300 --upstream 9100
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from pyreqwest.client import Client, ClientBuilder

Message = MutableMapping[str, Any]
client: Client | None = None
url = ""


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    global client
    if scope["type"] != "http":
        return
    if client is None:
        client = ClientBuilder().build()
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    request = (
        client.post(url)
        .body_bytes(body)
        .header("content-type", "application/json")
        .streamed_read_buffer_limit(0)
        .build_streamed()
    )
    async with request as response:
        head = [(b"content-type", (response.get_header("content-type") or "application/json").encode())]
        await send({"type": "http.response.start", "status": response.status, "headers": head})
        while chunk := await response.body_reader.read_chunk():
            await send({"type": "http.response.body", "body": bytes(chunk), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", type=int, required=True)
    options = parser.parse_args()
    url = f"http://127.0.0.1:{options.upstream}/v1/chat/completions"
    uvicorn.run(
        app, host="127.0.0.1", port=options.port, loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )
