"""Penstock: a drop-in DataLoader for PyTorch whose batches are filled by native threads.

A source knows where each sample's bytes are. The order says which sample goes into which batch. A recipe says
what is done to the bytes. The plan decides who does each step. Workers fill each batch's buffer by the plan.
The loader wires these together.
"""

from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from penstock import errors
from penstock.errors import *  # noqa: F403
from penstock.system import namesake as _namesake
from penstock.system.deferred import attributes_of as _attributes_of

if TYPE_CHECKING:
    from penstock import data as data
    from penstock.cluster.option import Ray as Ray
    from penstock.device.feed import Feed as Feed
    from penstock.device.feeding import prefetch as prefetch
    from penstock.device.memory import find_batch_size as find_batch_size, run_within_memory as run_within_memory
    from penstock.frameworks.installing import install as install, uninstall as uninstall
    from penstock.loader import DataLoader as DataLoader
    from penstock.order.buckets import Buckets as Buckets
    from penstock.order.mix import Mix as Mix
    from penstock.order.weighted import Weighted as Weighted
    from penstock.packing.pack import pack as pack
    from penstock.padded import Padded as Padded, PaddedSequences as PaddedSequences
    from penstock.recipe.reader import Views as Views
    from penstock.sources import (
        Arrays as Arrays,
        AudioFolder as AudioFolder,
        ImageFolder as ImageFolder,
        Images as Images,
        Shards as Shards,
        TensorFolder as TensorFolder,
    )
    from penstock.state.substitutes import Replace as Replace
    from penstock.stats import Stats as Stats
    from penstock.system.cache_folder import cache_folder as cache_folder
    from penstock.tables.packed import Packed as Packed
    from penstock.tables.table import Table as Table

__version__ = "0.2.0"

_namesake.warn(__file__)

_MODULES = {
    "cluster.option": ("Ray",),
    "device.feed": ("Feed",),
    "device.feeding": ("prefetch",),
    "device.memory": ("find_batch_size", "run_within_memory"),
    "padded": ("Padded", "PaddedSequences"),
    "frameworks.installing": ("install", "uninstall"),
    "loader": ("DataLoader",),
    "order.buckets": ("Buckets",),
    "order.mix": ("Mix",),
    "order.weighted": ("Weighted",),
    "packing.pack": ("pack",),
    "recipe.reader": ("Views",),
    "sources": ("Arrays", "AudioFolder", "ImageFolder", "Images", "Shards", "TensorFolder"),
    "state.substitutes": ("Replace",),
    "stats": ("Stats",),
    "system.cache_folder": ("cache_folder",),
    "tables.packed": ("Packed",),
    "tables.table": ("Table",),
}
if _find_spec("penstock._native") is None:
    from penstock import without_native  # noqa: F401

    _MODULES = {"without_native": tuple(name for names in _MODULES.values() for name in names)}
else:
    import penstock.frameworks
    import penstock.system.locks  # noqa: F401  notes the process, so that a fork before the first pass is seen
__all__ = sorted(name for names in _MODULES.values() for name in names)
__all__ += errors.__all__

if not TYPE_CHECKING:
    __getattr__ = _attributes_of(
        __name__, _MODULES, submodules=("cli", "data", "frameworks", "insight", "sources", "testing")
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "data", "frameworks", "insight"})
