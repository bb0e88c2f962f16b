"""Reports: vllm-project/guidellm#782, metatensor/metatrain#1243, deepmodeling/deepmd-kit#5019.

With the start method forkserver, the default from Python 3.14 on, a lambda or a local class in a dataset ends in an
error that does not say where it is.

The error names the attribute and what to do; recognised datasets and threads pickle nothing, and work as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import TensorDataset

import penstock
from tests.data import Made
from tests.reports.report import Found


def trouble(loader: Any, *, short: bool) -> Found:
    data = Made(lambda index: index + 1, 8)
    given: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "forkserver"}
    try:
        list(loader(data, **given))
        text = ""
    except Exception as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", [])])
    named = "dataset.make" in text
    if issubclass(loader, penstock.DataLoader):
        threads: Any = loader(data, num_workers=2, worker_method="thread", multiprocessing_context="forkserver")
        assert sorted(map(int, threads)) == list(range(1, 9))
        rows: Any = loader(TensorDataset(torch.arange(8)), **given)
        assert len(list(rows)) == 8
    return Found(int(not named), 1, "errors that do not name the attribute", text.splitlines()[-1] if named else "")
