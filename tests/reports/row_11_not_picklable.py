"""Reports: vllm-project/guidellm#782, metatensor/metatrain#1243, deepmodeling/deepmd-kit#5019.

With the start method forkserver, the default from Python 3.14 on, a lambda or a local class in a dataset ends in an
error that does not say where it is.

The error names the attribute and what to do; recognised datasets and threads pickle nothing, and work as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

import penstock
from tests.reports.report import Found


class Transformed(Dataset[Any]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.transform(index)


def trouble(loader: Any, *, short: bool) -> Found:
    data = Transformed(lambda index: index + 1)
    given: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "forkserver"}
    try:
        list(loader(data, **given))
        text = ""
    except Exception as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", [])])
    named = "dataset.transform" in text
    if issubclass(loader, penstock.DataLoader):
        threads: Any = loader(data, num_workers=2, worker_method="thread", multiprocessing_context="forkserver")
        assert sorted(map(int, threads)) == list(range(1, 9))
        rows: Any = loader(TensorDataset(torch.arange(8)), **given)
        assert len(list(rows)) == 8
    return Found(int(not named), 1, "errors that do not name the attribute", text.splitlines()[-1] if named else "")


def answered(found: Found) -> bool:
    return found.bad == 0
