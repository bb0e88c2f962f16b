"""Draws docs/plots/*.svg from benchmarks/results: rates of each contestant, and gains over torch's loader.

    python tools/plots.py

A drawing follows the reader's choice of light or dark, and is read on a phone as it is.
"""

from __future__ import annotations

import ast
import html
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PLOTS = ROOT / "docs" / "plots"
WIDTH, BAR, ROW, TOP = 480, 14, 44, 34  # of the drawing, a bar, a row, and the heading, in pixels
STYLE = """
text { font: 16px system-ui, sans-serif; fill: #1f2328; }
.quiet { fill: #59636e; } .line { stroke: #1f2328; } .axis { stroke: #8c959f; }
.torch { fill: #8c959f; } .penstock { fill: #0f766e; } .peer { fill: #b7791f; } .aside { fill: #c9b48a; }
.bare { fill: none; stroke: #8c959f; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .quiet { fill: #9198a1; } .line { stroke: #e6edf3; } .penstock { fill: #2dd4bf; }
}
"""


class Chart(NamedTuple):
    """Rates of the contestants of one table."""

    question: str
    table: str
    measure: str = "samples_per_s"


CHARTS = {
    "files": Chart("tensor_files", "files"),
    "arrays": Chart("arrays", "mapped"),
    "photos": Chart("photos", "float32"),
    "cifar": Chart("cifar", "float32"),
    "cold": Chart("cold", "cold cache"),
    "shards": Chart("shards", "tensors"),
    "own-class": Chart("own_classes", "tutorial"),
    "pure-python": Chart("own_classes", "nothing_known"),
    "gpu": Chart("gpu", "training photos", "images_per_s"),
}
#: Of these questions every table is a row of the drawing of gains.
GAINS = ("no_regret", "own_classes", "recipes", "augmentations", "scenes")


def tables(question: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / f"benchmarks/results/{question}.json").read_text())["tables"]
    return found


def measured(chart: Chart) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield the name, the role and the median, least and most of each contestant that was measured."""
    (table,) = (one for one in tables(chart.question) if one["name"] == chart.table)
    for one in table["contestants"]:
        if chart.measure in one:
            yield one["name"], one["role"], one[chart.measure]


def bars(chart: Chart) -> str:
    """Return a bar for each contestant: its length is the median, the thin line spans the rounds."""
    rows = sorted(measured(chart), key=lambda row: -row[2]["median"])
    scale = (WIDTH - 4) / max(numbers["most"] for _, _, numbers in rows)
    unit = "images" if chart.measure == "images_per_s" else "samples"
    parts = [text(0, 20, f"{unit} a second", "quiet")]
    for place, (name, role, numbers) in enumerate(rows):
        y = TOP + place * ROW
        least, most = numbers["least"] * scale, numbers["most"] * scale
        parts += [
            text(0, y + 14, name),
            text(WIDTH, y + 14, f"{numbers['median']:,.0f}", end=True),
            f'<rect class="{role}" x="1" y="{y + 20}" width="{numbers["median"] * scale:.1f}" height="{BAR}"/>',
            f'<line class="line" x1="{least:.1f}" x2="{most:.1f}" y1="{y + 27}" y2="{y + 27}"/>',
        ]
    return svg(parts, TOP + len(rows) * ROW)


def gains() -> str:
    """Return a dot for each table: Penstock's rate over that of torch's loader, on a logarithmic axis."""
    found = []
    for question in GAINS:
        for table in tables(question):
            rates = {
                one["name"]: one["samples_per_s"]["median"] for one in table["contestants"] if "samples_per_s" in one
            }
            if {"torch", "penstock"} <= rates.keys():
                found.append((rates["penstock"] / rates["torch"], question))
    low, high = 0.9 * min(0.9, *(gain for gain, _ in found)), 1.1 * max(gain for gain, _ in found)

    def x(gain: float) -> float:
        return WIDTH * math.log(gain / low) / math.log(high / low)

    names = list(GAINS)
    bottom = TOP + len(names) * ROW
    parts = [text(0, 20, "times the rate of torch's loader; a dot a table", "quiet")]
    for tick in (1, 2, 5, 10):
        kind = "line" if tick == 1 else "axis"
        parts += [
            f'<line class="{kind}" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{bottom}"/>',
            text(x(tick) + 3, bottom + 18, f"{tick}x", "quiet"),
        ]
    for place, name in enumerate(names):
        y = TOP + place * ROW
        parts.append(text(x(1) + 6, y + 16, name))
        parts += [
            f'<circle class="penstock" cx="{x(gain):.1f}" cy="{y + 30}" r="5" fill-opacity="0.7"/>'
            for gain, question in sorted(found)
            if question == name
        ]
    return svg(parts, bottom + 26)


#: What the drawing of scaling calls the tables of `tuning`, whose loaders had each number of threads in turn.
SCALED = {
    "photos": "photos: RandomResizedCrop(224), flip, normalised",
    "files": "`.pt` files of 48 KB",
    "rows": "rows of 48 KB in memory",
}


def threads(table: str) -> dict[int, int]:
    """Return samples a second by the number of native threads, up to the CPUs of the machine."""
    results = json.loads((ROOT / "benchmarks/results/tuning.json").read_text())
    (found,) = (one for one in results["tables"] if one["name"] == table)
    rates = ast.literal_eval(found["contestants"][0]["explain"])["samples_per_s"]
    cpus = results["machine"]["cores_usable"]
    return {int(number): rate for number, rate in rates.items() if number != "None" and int(number) <= cpus}


def scaling() -> str:
    """Return bars of the rate with each number of native threads, for each workload over the rate of one thread."""
    y: float = TOP
    parts = [text(0, 20, "samples a second, by native threads at work", "quiet")]
    for table, title in SCALED.items():
        rates = threads(table)
        parts.append(text(0, y + 14, title.replace("`", "")))
        for number, rate in sorted(rates.items()):
            y += ROW / 2
            words = f"{rate:,} ({rate / rates[1]:.2f}x)" if number > 1 else f"{rate:,}"
            width = (WIDTH - 220) * rate / max(rates.values())
            parts += [
                text(0, y + 14, f"{number} thread{'s' * (number > 1)}", "quiet"),
                f'<rect class="penstock" x="80" y="{y + 2:.0f}" width="{width:.1f}" height="{BAR}"/>',
                text(86 + width, y + 14, words),
            ]
        y += ROW
    return svg(parts, y)


def text(x: float, y: float, words: str, kind: str = "", end: bool = False) -> str:
    more = f' class="{kind}"' * bool(kind) + ' text-anchor="end"' * end
    return f'<text x="{x:.0f}" y="{y:.0f}"{more}>{html.escape(words)}</text>'


def svg(parts: list[str], height: float) -> str:
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{STYLE}</style>", *parts, "</svg>\n"]
    )


def drawings() -> dict[str, str]:
    """Return each drawing by the name of its file."""
    return {f"{name}.svg": bars(chart) for name, chart in CHARTS.items()} | {
        "gains.svg": gains(),
        "scaling.svg": scaling(),
    }


if __name__ == "__main__":
    for file, drawing in drawings().items():
        (PLOTS / file).write_text(drawing, encoding="utf-8")
