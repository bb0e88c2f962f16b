"""What every class of tests/own_datasets passes: the same as with torch's loader, and with a seed for any workers."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from penstock.testing import assert_same_as_torch

_CHOOSING = ("shuffle", "sampler", "batch_sampler", "samples")


def assert_conforms(dataset: Any, *, invariant: bool = True, **options: Any) -> None:
    """Assert that a dataset gives the same with both loaders, in each worker method, in torch's random order.

    Args:
        dataset: of a user's class.
        invariant: with a seed, a sample does not depend on the worker that makes it.
        options: of assert_same_as_torch, and of the loaders. Most classes that draw nothing are given seed=None, and
            are read by one worker only: what these tests spend is the start of worker processes.
    """
    iterable = isinstance(dataset, IterableDataset)
    if not iterable and not any(name in options for name in _CHOOSING):
        options["shuffle"] = True
    if options.get("seed", 7) is None:
        options.setdefault("num_workers", (0, 1))
    assert_same_as_torch(dataset, worker_invariant=invariant and not iterable, **options)


class Files(Dataset[Any]):
    """Twelve samples in files of a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __len__(self) -> int:
        return 12


class Read(Files):
    """Twelve samples that a function reads, of the folder and the sample's number."""

    def __init__(self, root: Path, read: Callable[[Path, int], Any]) -> None:
        super().__init__(root)
        self.read = read

    def __getitem__(self, index: int) -> Any:
        return self.read(self.root, index)


class Pictures(Dataset[Any]):
    """Photos and their masks."""

    def __init__(self, photos: list[Path], masks: list[Path]) -> None:
        self.photos, self.masks = photos, masks

    def __len__(self) -> int:
        return len(self.photos)

    def photo(self, index: int) -> Image.Image:
        return Image.open(self.photos[index]).convert("RGB")


def kinds(*classes: Any, unseeded: tuple[Any, ...] = ()) -> pytest.MarkDecorator:
    """Parametrise `kind` with classes of datasets; and `seed`, where some of them are compared without one only.

    A class is skipped where a module that it names in `needs` is not installed.
    """
    given: list[Any] = []
    for kind in (*classes, *unseeded):
        missing = [name for name in getattr(kind, "needs", ()) if optional(name) is None]
        marks = [pytest.mark.skip(reason=f"{name} is not installed") for name in missing]
        values = (kind, 7 if kind in classes else None) if unseeded else (kind,)
        given.append(pytest.param(*values, marks=marks, id=kind.__name__))
    return pytest.mark.parametrize(("kind", "seed") if unseeded else "kind", given)


def listed(samples: Iterable[Any]) -> list[Any]:
    """Return the samples as they are: a collate_fn for what torch's own would stack or refuse."""
    return list(samples)


def optional(name: str) -> Any:
    """Return a module, or None where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own, which are not what is tested
        try:
            return importlib.import_module(name)
        except ImportError:
            return None
