"""bench/results/engines.json as tables, and into docs/engine-speed.md between its two marks: python -m bench.engine_report"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.engine_load import Point
from bench.engine_roofline import Bound, Machine, bound, smollm2
from bench.gateways import ROOT

RESULTS = ROOT / "bench" / "results" / "engines.json"
PAGE = ROOT / "docs" / "engine-speed.md"
BEGIN, END = "<!-- measured: python -m bench.engine_report -->", "<!-- /measured -->"
OURS = "metergate"
FLOOR = 0.97
GOAL, OF_BOUND, GOAL_SHARED = 1.3, 0.85, 2.0
"""The goal: the smaller of so many times the best peer and such a part of the bound; twice the peer with a shared prefix."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Ours at one point beside the best peer of the same bits. Medians over the rounds, output tokens/s."""

    point: Point
    ours: float
    first_ms: float
    best: str | None
    best_per_s: float
    bound: Bound

    @property
    def ratio(self) -> float | None:
        return self.ours / self.best_per_s if self.best_per_s else None

    @property
    def of_bound(self) -> float:
        return self.ours / self.bound.tokens_per_s

    @property
    def goal_per_s(self) -> float:
        times = GOAL_SHARED if self.point.shared_tokens else GOAL
        part = OF_BOUND * self.bound.tokens_per_s
        return min(times * self.best_per_s, part) if self.best_per_s else part


def per_s(engine: Mapping[str, Any], point: str) -> float:
    """0 where it was not measured."""
    seen = engine["points"].get(point)
    return median(seen["tokens_per_s"]) if seen else 0.0


def standings(report: Mapping[str, Any], bits: int) -> Iterator[Standing]:
    """Of the points at which ours was measured with weights of `bits`."""
    machine = Machine(**report["rooflines"][str(bits)])
    engines = {name: engine for name, engine in report["engines"].items() if engine["bits"] == bits}
    for values in report["points"]:
        point = Point(**values)
        ours = [engine["points"].get(point.name) for name, engine in engines.items() if name.startswith(OURS)]
        peers = {name: per_s(engine, point.name) for name, engine in engines.items() if not name.startswith(OURS)}
        best = max(peers, key=lambda name: peers[name], default=None)
        if ours and ours[0]:
            known = best if best is not None and peers[best] else None
            top = peers[known] if known is not None else 0.0
            mine, first_ms = median(ours[0]["tokens_per_s"]), median(ours[0]["first_p50_ms"])
            yield Standing(point, mine, first_ms, known, top, bound(point, smollm2(bits), machine, bits))


def engines_table(report: Mapping[str, Any], bits: int) -> list[str]:
    """Output tokens/s and, in brackets, the median time to first text in ms."""
    points = [values["name"] for values in report["points"]]
    lines = ["| engine | " + " | ".join(points) + " | peak MB | start s |", "| --- " * (len(points) + 3) + "|"]
    for name, engine in report["engines"].items():
        if engine["bits"] != bits:
            continue
        cells = []
        for point in points:
            seen = engine["points"].get(point)
            cells.append(f"{per_s(engine, point):,.0f} ({median(seen['first_p50_ms']):,.0f})" if seen else "-")
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {engine['memory_mb']:,} | {engine['ready_s']} |")
    return lines


def standings_table(rows: Sequence[Standing]) -> list[str]:
    lines = ["| point | ours | best peer | ratio | bound | of bound | goal | reached |", "| --- " * 8 + "|"]
    for row in rows:
        peer = f"{row.best} {row.best_per_s:,.0f}" if row.best else "-"
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else "-"
        reached = "goal" if row.ours >= row.goal_per_s else "floor" if (row.ratio or 0) >= FLOOR else "no"
        lines.append(
            f"| {row.point.name} | {row.ours:,.0f} | {peer} | {ratio} | {row.bound.tokens_per_s:,.0f} | "
            f"{row.of_bound:.0%} | {row.goal_per_s:,.0f} | {reached} |"
        )
    return lines


def losses_table(rows: Sequence[Standing]) -> list[str]:
    """Where the time of ours goes beside the bound's: the median caller's first text and the mean token after it, which takes in
    the prompts of later callers; of the bound all prompts, and a step of nothing else.
    """
    lines = ["| point | ours: first text ms | per token ms | bound: prompts ms | step ms |", "| --- " * 5 + "|"]
    for row in rows:
        steps = row.point.output_tokens - 1
        total_s = row.point.callers * row.point.output_tokens / row.ours
        step_ms = (1000 * total_s - row.first_ms) / steps
        lines.append(
            f"| {row.point.name} | {row.first_ms:,.0f} | {step_ms:.1f} | {1000 * row.bound.prefill_s:,.0f} | "
            f"{1000 * row.bound.decode_s / steps:.1f} |"
        )
    return lines


def roofline_lines(report: Mapping[str, Any]) -> list[str]:
    """The machine's limits, measured before the engines of each precision, and what a step of each point takes of them."""
    taken = {int(bits): Machine(**values) for bits, values in report["rooflines"].items()}
    lines = [
        "| before the engines of | read GB/s | bfloat16 GFLOP/s | float32 GFLOP/s | int8 Gop/s |",
        "| --- " * 5 + "|",
    ]
    lines += [
        f"| {bits} bits | {each.read_gb_per_s:.1f} | {each.bfloat16_gflop_per_s:,.0f} | {each.float32_gflop_per_s:,.0f} | "
        f"{each.int8_gop_per_s:,.0f} |"
        for bits, each in taken.items()
    ]
    named = " / ".join(str(bits) for bits in taken)
    lines += ["", f"| point | MB read per step: {named} bits | Gop per step | bound's step ms: {named} bits |"]
    lines.append("| --- " * 4 + "|")
    for values in report["points"]:
        point = Point(**values)
        bounds = [bound(point, smollm2(bits), each, bits) for bits, each in taken.items()]
        read = " / ".join(f"{each.bytes_per_step / 1e6:,.0f}" for each in bounds)
        steps = " / ".join(f"{1000 * each.decode_s / (point.output_tokens - 1):.1f}" for each in bounds)
        lines.append(f"| {point.name} | {read} | {bounds[0].ops_per_step / 1e9:.1f} | {steps} |")
    return lines


def render(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']} before, Python {machine['python']}, "
        f"commit {machine['commit']}, {machine['date']}; the median of {report['rounds']} rounds."
    ]
    for bits, words in ((16, "bfloat16"), (8, "8 bits"), (4, "4 bits")):
        if str(bits) not in report["rooflines"]:
            continue
        lines += ["", f"### {words}", "", *engines_table(report, bits)]
        if rows := list(standings(report, bits)):
            lines += ["", *standings_table(rows), "", *losses_table(rows)]
    lines += ["", "### What the machine allows", "", *roofline_lines(report)]
    failed = {name: engine["failed"] for name, engine in report["engines"].items() if engine["failed"]}
    lines += [f"\n{name} has no figures: {why.splitlines()[0]}" for name, why in failed.items()]
    return "\n".join(lines)


def write_page(report: Mapping[str, Any]) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or not after:
        raise SystemExit(f"{PAGE.name} lacks {BEGIN} and {END}")
    PAGE.write_text("\n".join([before + BEGIN, "", render(report), "", END + after]))


if __name__ == "__main__":
    write_page(json.loads(RESULTS.read_text()))
