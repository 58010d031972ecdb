"""Charts as SVG, drawn here: no script, no style attribute, every bar with its words for a pointer and a reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from markupsafe import Markup, escape

WIDTH: Final = 1000
HEIGHT: Final = 190
LEFT: Final = 56
"""Least room for the axis' texts; longer ones, such as 0.0000006, are given more."""
TICK_CHARACTER: Final = 8
"""A digit's width in the axis' type, rounded up."""
BOTTOM: Final = 24
TOP: Final = 10
_TOPS: Final = tuple(Decimal(each) for each in ("1", "1.5", "2", "3", "4", "5", "6", "8", "10"))


@dataclass(frozen=True, slots=True)
class Bar:
    """`label` stands below, where there is room; `words` is what a pointer is told."""

    label: str
    words: str
    parts: tuple[Decimal, ...]

    @property
    def total(self) -> Decimal:
        return sum(self.parts, Decimal(0))


def bars(data: Sequence[Bar], *, title: str, axis: Sequence[str] = ()) -> Markup:
    """Stacked bars over one axis; `axis` are the texts at 0, half and whole of it (`ticks` says of which values)."""
    top = ticks(data)[-1]
    left = max(LEFT, 8 + TICK_CHARACTER * max(map(len, axis), default=0))
    plot_width, plot_height = WIDTH - left - 4, HEIGHT - TOP - BOTTOM
    step = Decimal(plot_width) / max(1, len(data))
    gap = min(Decimal(4), step / 5)
    drawn = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for at, text in enumerate(axis):
        y = TOP + plot_height - plot_height * at / max(1, len(axis) - 1)
        drawn.append(f'<line class="grid" x1="{left}" x2="{WIDTH - 4}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text class="tick" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    every = max(1, -(-len(data) // 8))
    for at, bar in enumerate(data):
        x = left + step * at + gap / 2
        base = Decimal(TOP + plot_height)
        drawn.append(f"<g><title>{escape(bar.words)}</title>")
        drawn.append(
            f'<rect class="hit" x="{left + step * at:.1f}" y="{TOP}" width="{step:.1f}" height="{plot_height}"/>'
        )
        for number, part in enumerate(bar.parts):
            height = max(Decimal(0), part) * plot_height / top
            base -= height
            drawn.append(
                f'<rect class="bar s{number}" x="{x:.1f}" y="{base:.2f}" width="{step - gap:.1f}" height="{height:.2f}"/>'
            )
        drawn.append("</g>")
        if at % every == 0:
            drawn.append(
                f'<text class="tick" x="{x + (step - gap) / 2:.1f}" y="{HEIGHT - 6}" text-anchor="middle">'
                f"{escape(bar.label)}</text>"
            )
    return Markup("".join(drawn) + "</svg>")


def ticks(data: Sequence[Bar]) -> tuple[Decimal, Decimal, Decimal]:
    """0, half and whole of a round number above every bar."""
    most = max((bar.total for bar in data), default=Decimal(0))
    if most <= 0:
        return Decimal(0), Decimal("0.5"), Decimal(1)
    size = Decimal(1).scaleb(most.adjusted())
    top = next(size * each for each in _TOPS if size * each >= most)
    return Decimal(0), top / 2, top


def share(part: Decimal, whole: Decimal) -> Markup:
    """A thin bar for a table's cell: how much of the whole this is."""
    width = Decimal(0) if whole <= 0 else min(Decimal(100), max(Decimal(0), part) * 100 / whole)
    return Markup(
        '<svg class="share" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="6"/><rect class="fill" width="{width:.2f}" height="6"/></svg>'
    )
