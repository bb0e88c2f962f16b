"""Reports: jingyaogong/minimind-v#121, ultralytics/ultralytics#24364.

Each worker process holds an Arrow table, or a cache in memory, of its own.

The rows of an Arrow table are gathered natively in the process that has it: no worker process starts. What a class
keeps by itself is each worker's own here too: `cache="8GiB"` keeps files once for all threads and processes.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from tests.reports.report import Found
from tests.reports.row_12_lists_of_dicts import children


def trouble(loader: Any, *, short: bool) -> Found:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    table = datasets.Dataset.from_dict({"tokens": [[1, 2, 3, 4]] * 1000, "label": list(range(1000))}).with_format(
        "torch"
    )
    before, workers = len(children()), 2
    batches = iter(loader(table, batch_size=10, num_workers=workers))
    list(islice(batches, 3))
    started = len(children()) - before
    return Found(started, workers, "worker processes that hold the table")
