"""Reports: pytorch/pytorch#13246, tier4/autoware-ml#78, metatensor/metatrain#1229, pytorch/pytorch#20433.

A list of dictionaries in a dataset is copied, page by page, into the memory of each worker process as it is read.

Worker processes copy it here too, for the pages are the kernel's; `penstock doctor` names the attribute and its size
before it happens, and `worker_method="thread"` reads the same class without a copy (0 MB more in the script).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

import penstock
from penstock.insight.lint import lint
from tests.reports.report import Found


class Annotations(Dataset[Any]):
    def __init__(self, size: int) -> None:
        self.rows: list[dict[str, Any]] = [
            {"path": f"photos/{index:09}.jpg", "label": index + 1000, "box": [index + 0.5]} for index in range(size)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        row = self.rows[index]
        return int(len(row["path"]) + row["label"] + row["box"][0])


def private_mb(pids: list[int]) -> int:
    """Return the memory of processes that they share with nobody, in MB."""
    found = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        found += sum(int(kib) for kib in re.findall(r"Private_\w+:\s+(\d+) kB", text))
    return found >> 10


def children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def growth(loader: Any, data: Annotations, **given: Any) -> int:
    """Return by how many MB the workers' own memory grows in three epochs."""
    before = children()
    batches: Any = loader(data, batch_size=1000, num_workers=4, persistent_workers=True, **given)
    counts = []
    for _ in range(3):
        for number, _batch in enumerate(batches):
            if number in (0, len(batches) - 1):
                counts.append(private_mb([pid for pid in children() if pid not in before]))
    return counts[-1] - counts[0]


def trouble(loader: Any, *, short: bool) -> Found:
    data = Annotations(100_000 if short else 1_000_000)
    said = ""
    if issubclass(loader, penstock.DataLoader):
        (remark,) = [one for one in lint(data) if one.rule == "python-objects"]
        said = remark.what
        assert growth(loader, data, worker_method="thread") == 0
    grown = 0 if short else growth(loader, data)
    return Found(grown, grown, "MB that four workers add in three epochs", said)


def answered(found: Found) -> bool:
    return "dataset.rows, a list, holds Python objects" in found.said
