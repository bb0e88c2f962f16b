"""The table of docs/workers.md names every function that is replaced in a pass, and the page how to do without."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import penstock
from penstock.hooks.calls import ANSWERED
from penstock.recipe.keyed_methods import HOOKS
from penstock.recipe.patches import Lease, Patches, original_of
from tools import answered

pytestmark = pytest.mark.native

#: Modules whose functions are replaced where they are imported.
MODULES = ("cv2", "datasets", "safetensors.torch", "soundfile", "torchvision.io", "torchvision.transforms.v2")


def replaced(patches: Patches) -> Iterator[str]:
    """Yield the name of each function that a lease replaces in its own package."""
    with Lease(patches):
        for owner, name in zip(patches._owners, patches._names, strict=True):
            if not isinstance(owner, FunctionType):  # of which the name of its module is set
                home = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
                public = re.sub(r"^torch\.ops\.image\.", "torchvision.io.", f"{home}.{name}")
                yield re.sub(r"(?<=\.v2\.)_(?!transform\._)\w+\.", "", public)


def test_the_page_has_the_table_of_the_code() -> None:
    page = answered.PAGE.read_text(encoding="utf-8")
    assert f"{answered.BEGIN}\n{answered.text()}\n{answered.END}" in page, "run python tools/answered.py"


def test_readme_counts_the_libraries() -> None:
    libraries = {"torch", "numpy", "PIL", "cv2", "torchvision", "soundfile"}
    assert len(answered.by_library().keys() - libraries) == 4
    readme = " ".join((answered.PAGE.parents[1] / "README.md").read_text(encoding="utf-8").split())
    assert "torchvision, soundfile and four other libraries" in readme


@pytest.mark.parametrize("patches", [ANSWERED, HOOKS], ids=["answered", "drawn"])
def test_the_table_is_complete(patches: Patches) -> None:
    for module in MODULES:
        pytest.importorskip(module, reason=f"{module} is not installed")
    named = set(answered.answered() if patches is ANSWERED else answered.drawn())
    libraries = {name.partition(".")[0] for name in named}
    found = {name for name in replaced(patches) if name.partition(".")[0] in libraries}
    assert len(found) > 15 and found - named == set()


class Functions(Dataset[Any]):
    """Says of each sample whether it finds a function of ours."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> bool:
        return any(original_of(one) is not None for one in (torch.load, torch.utils.data.get_worker_info))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("method", ["process", "thread"])
def test_worker_method_process_does_without(workers: int, method: Any) -> None:
    loader = penstock.DataLoader(Functions(), batch_size=None, num_workers=workers, worker_method=method)
    assert {bool(one) for _ in range(2) for one in loader} <= {method == "thread", False}
    assert workers == 0 or any(loader) is (method == "thread")
    assert original_of(torch.load) is None


def test_no_attribute_of_another_package_is_set_by_processes_without_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Patches] = []
    monkeypatch.setattr(Patches, "begin", lambda self, lease: begun.append(self))
    monkeypatch.setattr(Patches, "end", lambda self, lease: None)
    for workers in (0, 1):
        list(penstock.DataLoader(Functions(), num_workers=workers, worker_method="process"))
    assert begun == []
