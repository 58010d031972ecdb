"""Sends what was recorded to an OTLP receiver: in the recorder's process, bounded, never waited for.

Telemetry is for watching: when the receiver is away or slow, spans are dropped and counted, and no row is held up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from importlib.metadata import version
from itertools import islice
from typing import Final

import httpx
import msgspec

from billing.records import UsageRecord
from gateway.metrics import Metrics
from gateway.telemetry.context import is_sampled, read_traceparent
from gateway.telemetry.histograms import Histograms
from gateway.telemetry.otlp import Json, attributes, metrics_payload, trace_payload
from gateway.telemetry.spans import request_spans
from gateway.telemetry.target import Target

log = logging.getLogger(__name__)

MOST_WAITING: Final = 20_000
"""Spans in memory; above, new ones are dropped."""
BATCH: Final = 512
EVERY_S: Final = 1.0
METRICS_EVERY_S: Final = 15.0
TRIES: Final = 4
FIRST_WAIT_S: Final = 0.5
TIMEOUT_S: Final = 10.0
RETRYABLE: Final = frozenset({429, 502, 503, 504})
"""What OTLP/HTTP says may be sent again."""


class Exporter:
    """`tell` from the recorder's loop, `run` as a task of it."""

    def __init__(self, target: Target, metrics: Metrics, instance: str) -> None:
        self._target = target
        self._spans = metrics.spans
        self._waiting: deque[Json] = deque()
        self._histograms = Histograms(time.time_ns())
        self._metrics_at_s = time.monotonic()
        release = version("metergate")
        self._scope = {"name": "metergate", "version": release}
        self._resource = attributes(
            {"service.name": target.service, "service.version": release, "service.instance.id": instance}
        )
        self._client = httpx.AsyncClient(
            base_url=target.endpoint.rstrip("/"),
            headers={**target.headers, "content-type": "application/json"},
            timeout=TIMEOUT_S,
            follow_redirects=False,
        )

    def tell(self, recorded: Iterable[tuple[UsageRecord, str]]) -> None:
        """New rows, each with the `traceparent` that its caller sent (or nothing). Never raises: the rows are committed, and a
        mistake here is none of theirs."""
        try:
            for row, header in recorded:
                self._tell_one(row, header)
        except Exception:
            log.exception("telemetry: recorded rows could not be told of")

    def _tell_one(self, row: UsageRecord, header: str) -> None:
        self._histograms.observe(row)
        parent = read_traceparent(header.encode()) if header else None
        if not is_sampled(row.id.bytes, parent, self._target.share):
            return
        spans = request_spans(row, parent)
        if len(self._waiting) + len(spans) > MOST_WAITING:
            self._spans.labels("dropped").inc(len(spans))
        else:
            self._waiting.extend(spans)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.flush()
            except Exception:
                log.exception("telemetry: what waits could not be sent")

    async def flush(self, *, whole: bool = False) -> None:
        """Sends what waits; the metrics too when they are due, or with `whole`."""
        while self._waiting:
            batch = list(islice(self._waiting, BATCH))
            sent = await self._post("/v1/traces", trace_payload(self._resource, self._scope, batch))
            for _ in batch:
                self._waiting.popleft()
            self._spans.labels("exported" if sent else "dropped").inc(len(batch))
        if whole or time.monotonic() - self._metrics_at_s >= METRICS_EVERY_S:
            self._metrics_at_s = time.monotonic()
            if found := self._histograms.take(time.time_ns()):
                await self._post("/v1/metrics", metrics_payload(self._resource, self._scope, found))

    async def close(self, within_s: float) -> None:
        """Sends what is left, for `within_s` at most."""
        try:
            async with asyncio.timeout(within_s):
                await self.flush(whole=True)
        except TimeoutError:
            self._spans.labels("dropped").inc(len(self._waiting))
        await self._client.aclose()

    async def _post(self, path: str, payload: Json) -> bool:
        body = msgspec.json.encode(payload)
        wait_s = FIRST_WAIT_S
        for attempt in range(1, TRIES + 1):
            try:
                answer = await self._client.post(path, content=body)
            except httpx.HTTPError as error:
                why = type(error).__name__
            else:
                if answer.is_success:
                    return True
                why = f"status {answer.status_code}"
                if answer.status_code not in RETRYABLE:
                    break
            if attempt < TRIES:
                await asyncio.sleep(wait_s)
                wait_s *= 2
        log.warning("telemetry: %s was not taken by the receiver: %s", path, why)
        return False
