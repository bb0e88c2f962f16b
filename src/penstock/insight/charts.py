"""Charts of a report, as SVG that needs no script and nothing from outside: colours are classes of the page's style."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from penstock.system.words import compact

Numbers = NDArray[np.float64]

#: Of a chart, in units of its viewBox.
WIDTH, HEIGHT, _LEFT, _BELOW = 960, 120, 64, 20


def stacked(layers: Sequence[tuple[str, str, Numbers]], edges: Numbers, title: str) -> str:
    """Return a chart of shares, 0 to 1, that lie on each other. layers: name, class of the colour, and (n,) shares."""
    parts = [_axes(edges, title, "100 %")]
    floor = np.zeros(len(edges) - 1)
    step = (WIDTH - _LEFT) / len(floor)
    for name, kind, shares in layers:
        for place in np.flatnonzero(shares > 1e-4).tolist():
            low, high = float(floor[place]), min(1.0, float(floor[place] + shares[place]))
            x, y, tall = _LEFT + place * step, HEIGHT * (1 - high), HEIGHT * (high - low)
            words = escape(f"{name}: {shares[place]:.0%}, {compact(edges[place] - edges[0])} s after the beginning")
            size = f'x="{x:.2f}" y="{y:.2f}" width="{step + 0.1:.2f}" height="{max(tall, 0):.2f}"'
            parts.append(f'<rect class="{kind}" {size}><title>{words}</title></rect>')
        floor += shares
    return _svg(parts, title)


def curve(values: Numbers, edges: Numbers, title: str, unit: str) -> str:
    """Return a chart of (n,) values over time, from 0 to the greatest."""
    top = float(values.max()) if len(values) else 0.0
    parts = [_axes(edges, title, compact(top))]
    step = (WIDTH - _LEFT) / max(len(values), 1)
    heights = HEIGHT * (1 - values / top) if top > 0 else np.full(len(values), float(HEIGHT))
    points = [f"{_LEFT + (i + side) * step:.2f},{y:.2f}" for i, y in enumerate(heights.tolist()) for side in (0, 1)]
    if points:
        parts.append(f'<polyline class="line" points="{" ".join(points)}"/>')
    for place, value in enumerate(values.tolist()):
        words = escape(f"{compact(value)} {unit}, {compact(edges[place] - edges[0])} s after the beginning")
        size = f'x="{_LEFT + place * step:.2f}" y="0" width="{step:.2f}" height="{HEIGHT}"'
        parts.append(f'<rect class="hover" {size}><title>{words}</title></rect>')
    return _svg(parts, title)


def columns(values: Sequence[float], labels: Sequence[str], title: str) -> str:
    """Return a chart of one column for each value, with a label below."""
    top = max(values, default=0.0) or 1.0
    step = (WIDTH - _LEFT) / max(len(values), 1)
    parts = [_label(_LEFT - 6, 10, f"{top:,.0f}", "end"), _label(_LEFT - 6, HEIGHT, "0", "end")]
    for place, (value, label) in enumerate(zip(values, labels, strict=True)):
        tall, x = HEIGHT * value / top, _LEFT + place * step
        size = f'x="{x + 1:.2f}" y="{HEIGHT - tall:.2f}" width="{max(step - 2, 1):.2f}" height="{tall:.2f}"'
        parts.append(f'<rect class="bar" {size}><title>{escape(f"{label}: {value:,.0f}")}</title></rect>')
        parts.append(_label(x + step / 2, HEIGHT + 14, label, "middle"))
    return _svg(parts, title)


def _axes(edges: Numbers, title: str, top: str) -> str:
    seconds = float(edges[-1] - edges[0])
    parts = [f'<rect class="ground" x="{_LEFT}" y="0" width="{WIDTH - _LEFT}" height="{HEIGHT}"/>']
    parts += [_label(_LEFT - 6, 10, top, "end"), _label(_LEFT - 6, HEIGHT, "0", "end")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
        parts.append(_label(_LEFT + share * (WIDTH - _LEFT), HEIGHT + 14, f"{compact(seconds * share)} s", anchor))
    return "".join(parts)


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str], title: str) -> str:
    box = f'viewBox="0 0 {WIDTH} {HEIGHT + _BELOW}"'
    return f'<svg {box} role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
