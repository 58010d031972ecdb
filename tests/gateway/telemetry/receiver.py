"""An OTLP/HTTP receiver: a process that takes JSON, reads it strictly by OpenTelemetry's own protobuf definitions, and keeps it.

`python -m tests.gateway.telemetry.receiver PORT_FILE KEPT_FILE [REFUSALS]`; the first REFUSALS posts are answered 503.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS: dict[str, Any] = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}
IDS = ("traceId", "spanId", "parentSpanId")


def read(path: str, body: bytes) -> dict[str, Any]:
    """What the definitions make of it, ids in hex again. Raises for anything that they do not know."""
    found = MessageToDict(
        ParseDict(_ids(json.loads(body), lambda text: base64.b64encode(bytes.fromhex(text)).decode()), KINDS[path]())
    )
    kept: dict[str, Any] = _ids(found, lambda text: base64.b64decode(text).hex())
    return kept


def _ids(value: Any, change: Any) -> Any:
    """OTLP's JSON writes ids in hex where protobuf's own JSON has base64."""
    if isinstance(value, dict):
        return {key: change(each) if key in IDS else _ids(each, change) for key, each in value.items()}
    return [_ids(each, change) for each in value] if isinstance(value, list) else value


def spans_of(kept: Path) -> Iterator[dict[str, Any]]:
    """Every span in the file, its attributes as plain values, with its resource's."""
    for path, payload in map(json.loads, kept.read_text().splitlines() if kept.exists() else ()):
        for resource in payload["resourceSpans"] if path == "/v1/traces" else ():
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    yield {
                        **span,
                        "attributes": plain(span["attributes"]),
                        "resource": plain(resource["resource"]["attributes"]),
                    }


def metrics_of(kept: Path) -> Iterator[dict[str, Any]]:
    for path, payload in map(json.loads, kept.read_text().splitlines() if kept.exists() else ()):
        for resource in payload["resourceMetrics"] if path == "/v1/metrics" else ():
            for scope in resource["scopeMetrics"]:
                yield from scope["metrics"]


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    found = {each["key"]: next(iter(each["value"].items())) for each in attributes}
    return {key: int(value) if kind == "intValue" else value for key, (kind, value) in found.items()}


def main(port_file: Path, kept: Path, refusals: int = 0) -> None:
    left = [refusals]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if left[0] > 0:
                left[0] -= 1
                self._answer(503)
                return
            try:
                payload = read(self.path, body)
            except Exception as error:  # whatever it is, the test is to see it
                payload, self.path = {"error": f"{type(error).__name__}: {error}"}, "error"
            with kept.open("a") as file:
                file.write(json.dumps([self.path, payload]) + "\n")
            self._answer(400 if self.path == "error" else 200)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port_file.write_text(str(server.server_address[1]))
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
