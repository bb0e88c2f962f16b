"""Penstock: a drop-in DataLoader for PyTorch whose batches are filled by native threads.

A source knows where each sample's bytes are. The order says which sample goes into which batch. A recipe says
what is done to the bytes. The plan decides who does each step. Workers fill each batch's buffer by the plan.
The loader wires these together.
"""

from typing import TYPE_CHECKING

import penstock.system.forks  # noqa: F401  notes a fork before the loader is imported
from penstock import errors
from penstock.errors import *  # noqa: F403
from penstock.system.deferred import attributes_of as _attributes_of

if TYPE_CHECKING:
    from penstock import data as data
    from penstock.cluster.option import Ray
    from penstock.device.feed import Feed
    from penstock.device.feeding import prefetch
    from penstock.device.memory import find_batch_size, run_within_memory
    from penstock.executors.padded import Padded, PaddedSequences
    from penstock.frameworks.installing import install, uninstall
    from penstock.loader import DataLoader
    from penstock.order.buckets import Buckets
    from penstock.order.mix import Mix
    from penstock.order.weighted import Weighted
    from penstock.packing.pack import pack
    from penstock.recipe.reader import Views
    from penstock.sources import Arrays, ImageFolder, Images, Shards, TensorFolder
    from penstock.state.substitutes import Replace
    from penstock.stats import Stats

__version__ = "0.1.0"

if not TYPE_CHECKING:
    __getattr__ = _attributes_of(
        __name__,
        {
            "cluster.option": ("Ray",),
            "device.feed": ("Feed",),
            "device.feeding": ("prefetch",),
            "device.memory": ("find_batch_size", "run_within_memory"),
            "executors.padded": ("Padded", "PaddedSequences"),
            "loader": ("DataLoader",),
            "frameworks.installing": ("install", "uninstall"),
            "order.buckets": ("Buckets",),
            "order.mix": ("Mix",),
            "order.weighted": ("Weighted",),
            "packing.pack": ("pack",),
            "recipe.reader": ("Views",),
            "sources": ("Arrays", "ImageFolder", "Images", "Shards", "TensorFolder"),
            "state.substitutes": ("Replace",),
            "stats": ("Stats",),
        },
        submodules=("cli", "data", "frameworks", "insight", "sources", "testing"),
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "data", "frameworks", "insight"})


__all__ = [
    "Arrays",
    "Buckets",
    "DataLoader",
    "Feed",
    "ImageFolder",
    "Images",
    "Mix",
    "Padded",
    "PaddedSequences",
    "Ray",
    "Replace",
    "Shards",
    "Stats",
    "TensorFolder",
    "Views",
    "Weighted",
    "find_batch_size",
    "install",
    "pack",
    "prefetch",
    "run_within_memory",
    "uninstall",
]
__all__ += errors.__all__
