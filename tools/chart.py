"""Draws README's chart of gains, light and dark, and prints README's tables of rates, from benchmarks/results.

python tools/chart.py
"""

from __future__ import annotations

import html
import json
import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"

WIDTH, SIDE, HEAD, ROW, BAR = 500, 12, 50, 37, 13  # pixels: of the picture, its margins, its head, a row, a bar
LEAST, MOST = 0.7, 80.0  # the ends of the logarithmic axis
INKS = {
    "light": {"text": "#1f2328", "quiet": "#59636e", "line": "#d1d9e0", "faster": "#0969da", "slower": "#bc4c00"},
    "dark": {"text": "#f0f6fc", "quiet": "#9198a1", "line": "#3d444d", "faster": "#4493f8", "slower": "#f0883e"},
}


class Row(NamedTuple):
    """A dataset of benchmarks/results, and how torch's loader and Penstock's read it, in samples a second."""

    dataset: str
    question: str
    table: str
    penstock: str = "penstock"
    torch: str = "torch"
    drawn: bool = False

    @property
    def rates(self) -> tuple[float, float]:
        return rate(self.question, self.table, self.torch), rate(self.question, self.table, self.penstock)

    @property
    def gain(self) -> float:
        torch, penstock = self.rates
        return penstock / torch

    @property
    def cells(self) -> str:
        torch, penstock = self.rates
        return f"| {self.dataset} | {torch:,.0f} | {penstock:,.0f} | {written(self.gain)} |"


#: What the import line alone changes, 2 workers where nothing else is said.
UNCHANGED = (
    Row("CIFAR10: padded crop, flip, normalised", "cifar", "float32", drawn=True),
    Row("Hugging Face `datasets`: rows of numbers, 4 KB", "arrow", "arrow", drawn=True),
    Row(
        "Hugging Face rows of tokens, `DataCollatorWithPadding`, torch without workers",
        "rows",
        "padding",
        torch="torch, 0 workers",
        drawn=True,
    ),
    Row(
        "Hugging Face rows of strings and numbers, torch without workers",
        "rows",
        "columns",
        torch="torch, 0 workers",
        drawn=True,
    ),
    Row("Hugging Face images, a function of yours: RandomResizedCrop(224), flip", "rows", "images"),
    Row("`TensorDataset`: memory-mapped rows, 48 KB", "arrays", "mapped", "penstock on TensorDataset"),
    Row(
        "memory-mapped rows, torch without workers",
        "arrays",
        "mapped",
        "penstock on TensorDataset",
        "torch, 0 workers",
        drawn=True,
    ),
    Row("your `Dataset` that returns `self.x[i], self.y[i]`, no workers", "index", "pair", drawn=True),
    Row("a small network, trained on rows of such a `Dataset` by the CPU", "index", "program"),
    Row("your `Dataset` that calls `torch.load`, 48 KB files", "own_classes", "tutorial", drawn=True),
    Row("your `Dataset` that calls `cv2.imread` and Albumentations", "own_classes", "opencv"),
    Row("`ImageFolder`: RandomResizedCrop(224), flip, normalised", "photos", "float32", drawn=True),
    Row("`ImageFolder`: MixUp or CutMix in `collate_fn`", "recipes", "mixup", drawn=True),
    Row("your `Dataset` that opens photos with Pillow", "python_datasets", "pillow", drawn=True),
    Row("`ImageFolder` with a function of yours as a transform", "python_datasets", "unknown_transform", drawn=True),
    Row("your `IterableDataset` of small tensors", "no_regret", "iterable-processes", drawn=True),
    Row("your `Dataset`: 1 ms of your Python a sample, no workers", "no_regret", "python-none", drawn=True),
    Row("your `Dataset`: 64 samples an epoch, no workers", "no_regret", "few-none", drawn=True),
)
#: What a second line gives.
CHANGED = (
    Row("one `.pt` file a sample: `penstock.TensorFolder`", "tensor_files", "files"),
    Row("files packed by `penstock pack`: `penstock.Shards`", "shards", "tensors", "penstock shards"),
    Row("photos in a Parquet column: `penstock.Table`", "rows", "images", "penstock.Table"),
    Row("photos, Resize and CenterCrop, later epochs: `cache_decoded=True`", "cache", "photos", "photos+pixels"),
    Row('48 KB samples made quickly: `worker_method="thread"`', "own_classes", "held_48", "penstock thread"),
    Row('1 ms of your Python a sample: `worker_method="thread"`', "own_classes", "nothing_known", "penstock thread"),
)


@cache
def tables(question: str) -> dict[str, dict[str, Any]]:
    """Return the contestants of each table of a file of results, by name."""
    results = json.loads((ROOT / "benchmarks" / "results" / f"{question}.json").read_text(encoding="utf-8"))
    return {table["name"]: {one["name"]: one for one in table["contestants"]} for table in results["tables"]}


def rate(question: str, table: str, contestant: str) -> float:
    """Return a median, in samples a second."""
    median: float = tables(question)[table][contestant]["samples_per_s"]["median"]
    return median


def written(gain: float) -> str:
    return f"{gain:.1f}x" if gain >= 10 else f"{gain:.2f}x"


def x_of(gain: float) -> float:
    """Return where a gain lies on the axis, in pixels."""
    return SIDE + (WIDTH - 2 * SIDE) * math.log(gain / LEAST) / math.log(MOST / LEAST)


def drawing(theme: str) -> str:
    """Return the chart as SVG."""
    ink = INKS[theme]
    rows = sorted((row for row in UNCHANGED if row.drawn), key=lambda row: -row.gain)
    height = HEAD + ROW * len(rows) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13">',
        "<title>Samples a second of Penstock over those of torch's loader, with the import line changed</title>",
        f'<text x="{SIDE}" y="16" fill="{ink["quiet"]}">samples a second, times those of torch\'s loader</text>',
    ]
    for tick in (1, 2, 5, 10, 20, 50):
        x, colour = x_of(tick), ink["quiet" if tick == 1 else "line"]
        parts += [
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD - 8}" y2="{height - 8}" stroke="{colour}"/>',
            f'<text x="{x:.1f}" y="{HEAD - 13}" fill="{ink["quiet"]}" text-anchor="middle">{tick}x</text>',
        ]
    for place, row in enumerate(rows):
        gain, y = row.gain, HEAD + ROW * place
        left, right = sorted((x_of(1), x_of(gain)))
        colour = ink["faster" if gain >= 1 else "slower"]
        label = html.escape(row.dataset.replace("`", ""), quote=False)
        parts += [
            f'<text x="{x_of(1) + 4:.1f}" y="{y + 12}" fill="{ink["text"]}">{label}</text>',
            f'<rect x="{left:.1f}" y="{y + 17}" width="{right - left:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{right + 5:.1f}" y="{y + 28}" fill="{colour}" font-weight="600">{written(gain)}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    for theme in INKS:
        (PICTURES / f"gains-{theme}.svg").write_text(drawing(theme), encoding="utf-8")
    for rows in (UNCHANGED, CHANGED):
        print("\n".join(row.cells for row in rows), end="\n\n")


if __name__ == "__main__":
    main()
