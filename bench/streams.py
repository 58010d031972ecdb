"""Whether a gateway's memory stays bounded: streams of 20,000 chunks, and 1 GiB of streams, by eager and by slow callers.

    python -m bench.streams [--gib 1] [--only many-chunks|bytes|slow-callers]

A real `metergate serve` over SQLite in front of a scripted provider that sends as fast as it can. Resident memory of the
gateway's process is read every 20 ms: before, at its highest, and after; every stream is counted to its last byte. Results
land in `bench/results/streams.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.gateway import machine
from gateway.database import upgrade
from tests.faults.stage import Provider, Stage

RESULTS: Final = Path(__file__).parent / "results" / "streams.json"
CHUNKS: Final = 20_000
CHUNK_BYTES: Final = 16 << 10
STREAM_CHUNKS: Final = 1024
MIB: Final = 1 << 20
SAMPLE_S: Final = 0.02
WARM_UP: Final = 40
SLOW_BYTES_S: Final = 2 * MIB


@dataclass(slots=True)
class Case:
    """`slow`: how many bytes a second each caller takes, None as many as come."""

    name: str
    streams: int
    at_once: int
    script: str
    slow: int | None = None


@dataclass(slots=True)
class Figures:
    """Memory in MiB, of the gateway's process alone."""

    streams: int
    at_once: int
    mib: float
    seconds: float
    rss_before: float
    rss_peak: float
    rss_after: float


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def listen(stage: Stage, case: Case) -> int:
    """One stream to its end; how many bytes came. Raises when it is not whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.gateway.port, limit=256 << 10)
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": True, "user": case.script}
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {stage.callers.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(payload)}\r\nconnection: close\r\n\r\n"
    )
    size, last, began_s = 0, b"", time.monotonic()
    try:
        writer.write(head.encode() + payload)
        while data := await reader.read(256 << 10):
            size += len(data)
            last = (last + data)[-64:]
            if case.slow is not None:
                await asyncio.sleep(max(0.0, began_s + size / case.slow - time.monotonic()))
    finally:
        writer.close()
    if b"data: [DONE]" not in last:
        raise RuntimeError(f"a stream ended after {size} bytes with {last!r}")
    return size


async def run(stage: Stage, case: Case) -> Figures:
    pid, room, peak = stage.gateway.pid, asyncio.Semaphore(case.at_once), 0.0

    async def one() -> int:
        async with room:
            return await listen(stage, case)

    async def sample() -> None:
        nonlocal peak
        while True:
            peak = max(peak, rss_mib(pid))
            await asyncio.sleep(SAMPLE_S)

    before, began_s = rss_mib(pid), time.monotonic()
    sampling = asyncio.create_task(sample())
    try:
        sizes = await asyncio.gather(*(one() for _ in range(case.streams)))
    finally:
        sampling.cancel()
    seconds = time.monotonic() - began_s
    await asyncio.sleep(2.0)
    return Figures(
        case.streams, case.at_once, round(sum(sizes) / MIB, 1), round(seconds, 1), round(before, 1), round(peak, 1),
        round(rss_mib(pid), 1),
    )  # fmt: skip


def cases(gib: float) -> list[Case]:
    whole = f"chunks={STREAM_CHUNKS};line_bytes={CHUNK_BYTES};output={STREAM_CHUNKS}"
    streams = max(1, round(gib * 1024 * MIB / (STREAM_CHUNKS * CHUNK_BYTES)))
    return [
        Case("many-chunks", 8, 4, f"chunks={CHUNKS};output={CHUNKS}"),
        Case("bytes", streams, 4, whole),
        Case("slow-callers", 4, 4, whole, SLOW_BYTES_S),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--only")
    options = parser.parse_args()
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="metergate-streams-") as name:
        url = f"sqlite:///{name}/metergate.db"
        asyncio.run(upgrade(url))
        provider = Provider()
        stage = Stage(Path(name) / "home", url, provider)
        try:
            stage.open()
            asyncio.run(run(stage, Case("warm-up", WARM_UP, 4, "chunks=20;output=20")))
            for case in cases(options.gib):
                if options.only in (None, case.name):
                    found[case.name] = asyncio.run(run(stage, case))
                    print(case.name, asdict(found[case.name]), flush=True)
            stage.gateway.stop()
        finally:
            stage.kill_everything()
            provider.stop()
    figures = {
        "machine": machine(),
        "cases": {name: asdict(each) for name, each in found.items()},
    }
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
