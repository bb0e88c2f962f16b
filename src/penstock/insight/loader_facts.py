"""What tells the loaders of a program apart: their class, dataset and options, and the line that made them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch.utils.data
from torch.utils.data import BatchSampler, Subset

from penstock.insight import program
from penstock.loader import DataLoader
from penstock.system.warn_user import PACKAGE

#: Code between the line that makes a loader and torch's __init__.
_BETWEEN = (PACKAGE, os.path.dirname(os.path.abspath(torch.utils.data.__file__)) + os.sep)
#: Python's own library: typing makes a DataLoader[Any](...), threading and importlib run the code that makes others.
_PYTHONS = (os.path.dirname(os.path.abspath(os.__file__)) + os.sep, "<frozen ")
#: Parts of the paths of installed libraries.
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_library(file: str) -> bool:
    """Return whether a file is code of Penstock, of Python or of an installed library."""
    return file.startswith((PACKAGE, *_PYTHONS)) or any(folder in file for folder in _INSTALLED)


@dataclass(frozen=True)
class LoaderFacts:
    """What tells the loaders of a program apart."""

    name: str
    """Of the loader's class; "penstock.DataLoader" for Penstock's own."""
    dataset: str
    """The type of the dataset; "Subset of CIFAR10" for a torch.utils.data.Subset."""
    batching: str
    """How samples come together, as an argument: "batch_size=64", "batch_sampler=BucketSampler"."""
    workers: int
    place: str
    """The file and the line that made the loader: "train.py:12"; empty for a copy."""
    penstock: bool
    """It is a penstock.DataLoader."""

    @property
    def method(self) -> str:
        """Who makes the batches."""
        if self.penstock:
            return "Penstock"
        return "worker processes" if self.workers else "the caller's thread"

    def __str__(self) -> str:
        at = f" at {self.place}" if self.place else ""
        return f"{self.name}({self.dataset}, {self.batching}, num_workers={self.workers}){at}"


def facts_of(loader: Any, place: str = "") -> LoaderFacts:
    """Return what tells a loader apart; place: the file and line that made it."""
    ours, kind = isinstance(loader, DataLoader), type(loader)
    name = "penstock.DataLoader" if kind is DataLoader else kind.__name__
    if type(loader.batch_sampler) is BatchSampler:
        batching = f"batch_size={loader.batch_sampler.batch_size}"
    elif loader.batch_size is None and loader.batch_sampler is not None:
        batching = f"batch_sampler={type(loader.batch_sampler).__name__}"
    else:
        batching = f"batch_size={loader.batch_size}"
    return LoaderFacts(name, _dataset_name(loader.dataset), batching, loader.num_workers, place, ours)


def _dataset_name(dataset: Any) -> str:
    if type(dataset) is Subset:
        return f"Subset of {_dataset_name(dataset.dataset)}"
    return type(getattr(dataset, "_datapipe", dataset)).__name__  # torch wraps a DataPipe


def place_of(loader: Any, frame: FrameType | None) -> tuple[str | None, int]:
    """Return the file and the line that called a loader's class: not torch's nor Penstock's, nor of its own class.

    A line of the program is taken before one of an installed library that the program calls.
    """
    library: tuple[str | None, int] = None, 0
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        file = code.co_filename
        if file == program.__file__:
            break  # what is outside of the program runs it
        if first is loader or file.startswith(_BETWEEN):
            pass
        elif any(folder in file for folder in _INSTALLED):
            library = library if library[0] else (file, frame.f_lineno)
        elif not file.startswith(_PYTHONS):
            return file, frame.f_lineno
        frame = frame.f_back
    return library
