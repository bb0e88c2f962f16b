"""Draws README's chart of gains, light and dark, and writes the tables of rates into the pages, from results.

python tools/chart.py
"""

from __future__ import annotations

import html
import json
import math
import re
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


NO_WORKERS, ON_ROWS = "torch, 0 workers", "penstock on TensorDataset"


class Row(NamedTuple):
    """A dataset of benchmarks/results, and how torch's loader and Penstock's read it, in samples a second."""

    dataset: str
    question: str
    table: str
    penstock: str = "penstock"
    torch: str = "torch"

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


#: README's rows: what the import line changes, with 2 workers; (*): torch's loader has none.
README = (
    Row("photos: `ImageFolder`, RandomResizedCrop(224), flip, normalised", "photos", "float32"),
    Row("photos: `ImageFolder`, MixUp or CutMix in `collate_fn`", "recipes", "mixup"),
    Row("photos: your `Dataset` that opens them with Pillow", "python_datasets", "pillow"),
    Row("photos: your `Dataset` with `cv2.imread` and Albumentations", "own_classes", "opencv"),
    Row("`.pt` files: your `Dataset` that calls `torch.load`", "own_classes", "tutorial"),
    Row("rows by index: your `Dataset` of `self.x[i], self.y[i]` (*)", "index", "pair"),
    Row("tokens: Hugging Face, `DataCollatorWithPadding` (*)", "rows", "padding", torch=NO_WORKERS),
    Row("CIFAR10: padded crop, flip, normalised", "cifar", "float32"),
    Row("your `Dataset`, 1 ms of Python a sample (*): nothing is won", "no_regret", "python-none"),
    Row("your `Dataset`, 64 samples an epoch (*): torch is faster", "no_regret", "few-none"),
)
#: Further rows that the import line changes.
UNCHANGED = (
    Row("Hugging Face `datasets`: rows of numbers, 4 KB", "arrow", "arrow"),
    Row("Hugging Face rows of strings and numbers, torch without workers", "rows", "columns", torch=NO_WORKERS),
    Row("Hugging Face images, a function of yours: RandomResizedCrop(224), flip", "rows", "images"),
    Row("`TensorDataset`: memory-mapped rows, 48 KB", "arrays", "mapped", ON_ROWS),
    Row("memory-mapped rows, torch without workers", "arrays", "mapped", ON_ROWS, NO_WORKERS),
    Row("a small network, trained on rows of your `Dataset` by the CPU", "index", "program"),
    Row("`ImageFolder` with a function of yours as a transform", "python_datasets", "unknown_transform"),
    Row("your `IterableDataset` of small tensors", "no_regret", "iterable-processes"),
)
#: What a second line gives.
CHANGED = (
    Row("one `.pt` file a sample: `penstock.TensorFolder`", "tensor_files", "files"),
    Row("files packed by `penstock pack`: `penstock.Shards`", "shards", "tensors", "penstock shards"),
    Row("photos in a Parquet column: `penstock.Table`", "rows", "images", "penstock.Table"),
    Row("photos, Resize and CenterCrop, later epochs: `cache_decoded=True`", "cache", "photos", "photos+pixels"),
)
#: Threads in the place of processes, for classes that only Python reads.
THREADS = (
    Row("48 KB each, made quickly", "own_classes", "held_48", "penstock thread"),
    Row("1 ms of pure Python each", "own_classes", "nothing_known", "penstock thread"),
)
#: Where each table is: the page, and what its first column is called there.
TABLES = {
    ("README.md", "your dataset"): README,
    ("docs/benchmarks.md", "dataset, only the import line changed"): UNCHANGED,
    ("docs/benchmarks.md", "dataset, a second line changed"): CHANGED,
    ("docs/workers.md", "samples of your own class"): THREADS,
}


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
    rows = sorted(README, key=lambda row: -row.gain)
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


def with_table(text: str, first: str, rows: tuple[Row, ...]) -> str:
    """Return a page with these rows in the table whose first column is called so."""
    head = rf"(^\| {re.escape(first)} \|.*\n\|---\|---\|---\|---\|\n)(?:\|.*\n)*"
    changed, count = re.subn(head, lambda found: found[1] + "".join(f"{row.cells}\n" for row in rows), text, flags=re.M)
    if count != 1:
        raise ValueError(f"there are {count} tables of {first!r}")
    return changed


def main() -> None:
    for theme in INKS:
        (PICTURES / f"gains-{theme}.svg").write_text(drawing(theme), encoding="utf-8")
    for (page, first), rows in TABLES.items():
        file = ROOT / page
        file.write_text(with_table(file.read_text(encoding="utf-8"), first, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
