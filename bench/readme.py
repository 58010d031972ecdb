"""Writes what was last measured into README.md, between its two marks: python -m bench.readme

From bench/results/gateway.json and footprint.json. A cell is Metergate's figure over another's: CPU below 1 and throughput above
1 are won.
"""

from __future__ import annotations

import json
from typing import Any

from bench.gateways import ROOT

README = ROOT / "README.md"
RESULTS = ROOT / "bench" / "results"
BEGIN, END = "<!-- measured: python -m bench.readme -->", "<!-- /measured -->"
LABELS = {
    "forward": "bare forward¹",
    "tensorzero": "TensorZero¹",
    "ferrogw": "ferrogw¹",
    "ferrogw-pg": "ferrogw, a row in PostgreSQL²",
    "portkey": "Portkey¹",
    "litellm": "LiteLLM¹",
    "metergate-interpreted": "Metergate, not compiled",
    "metergate-pg": "Metergate on PostgreSQL and Valkey",
    "metergate-pg-2": "the same, 2 workers",
}
LOADS = {
    "plain-1": "1 caller",
    "plain-16": "16 callers",
    "plain-64": "64 callers",
    "burst-16": "16 streams in bursts",
    "paced-32": "32 streams, a chunk per 20 ms",
    "paced-500": "500 streams, a chunk per 20 ms",
}


def ratio(mine: dict[str, Any], other: dict[str, Any], column: str) -> str:
    value = mine[column][0] / other[column][0]
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def table(measured: dict[str, Any]) -> list[str]:
    loads = measured["loads"]
    others = [name for name in LABELS if all(name in by for by in loads.values())]
    lines = ["| CPU / throughput | Metergate | " + " | ".join(LABELS[name] for name in others) + " |"]
    lines.append("| --- " * (len(others) + 2) + "|")
    for load, label in LOADS.items():
        if load not in loads:
            continue
        by, unit = loads[load], "request" if load.startswith("plain") else "chunk"
        mine = by["metergate"]
        cells = [f"{label} | {mine['cpu_us'][0]:.3g} us per {unit}, {mine['per_s'][0]:,.0f}/s"]
        cells += [f"{ratio(mine, by[name], 'cpu_us')} / {ratio(mine, by[name], 'per_s')}" for name in others]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def delays(measured: dict[str, Any]) -> str:
    one, streams = measured["loads"]["plain-1"], measured["loads"]["paced-32"]
    added = one["metergate"]["p50_ms"][0] - one["forward"]["p50_ms"][0]
    firsts = ", ".join(
        f"{LABELS.get(name, name).rstrip('¹²')} {streams[name]['first_p50_ms'][0]:.1f} / {streams[name]['first_p99_ms'][0]:.1f}"
        for name in ("direct", "forward", "metergate", "tensorzero", "ferrogw", "portkey", "litellm")
        if name in streams
    )
    return (
        f"At one caller it adds {added:.2f} ms to the bare forward's median. First chunk of 32 streams that begin at once, "
        f"p50 / p99 ms: {firsts}."
    )


def footprint(taken: dict[str, Any]) -> str:
    last = taken["memory_mb"][-1]
    ready = taken["ready_s"]
    return (
        f"After {last['requests']:,} requests the door holds {last['door']:.0f} MB and its recorder {last['recorder']:.0f} MB. "
        f"From the command to ready: {ready['first']} s in a new home, {ready['again']} s in one that was there."
    )


def main() -> None:
    measured = json.loads((RESULTS / "gateway.json").read_text())
    machine = measured["machine"]
    lines = [*table(measured), "", delays(measured)]
    if (RESULTS / "footprint.json").exists():
        lines.append(footprint(json.loads((RESULTS / "footprint.json").read_text())))
    lines += [
        "",
        f"{machine['cpu']}, {machine['cores']} cores under a load of {machine['load']} from other work, Python "
        f"{machine['python']}, {machine['date']}.",
    ]
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or not after:
        raise SystemExit(f"README.md lacks {BEGIN} and {END}")
    README.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]))


if __name__ == "__main__":
    main()
