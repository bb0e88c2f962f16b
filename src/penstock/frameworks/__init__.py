"""Penstock loaders in the hands of other frameworks."""

import sys
from typing import TYPE_CHECKING

from penstock.loader import DataLoader
from penstock.system.deferred import attributes_of, deferred

if TYPE_CHECKING:
    from penstock.frameworks import accelerate
    from penstock.frameworks.accelerate import keep_loaders
else:
    (accelerate,) = deferred(__name__, "accelerate")
    __getattr__ = attributes_of(__name__, {"accelerate": ("keep_loaders",)})


def _meet_accelerate() -> bool:
    return "accelerate.data_loader" in sys.modules and accelerate.meet_accelerate()


# Without importing Accelerate, and without being imported by the loader.
DataLoader.meet_accelerate = staticmethod(_meet_accelerate)  # type: ignore[method-assign]
DataLoader._is_accelerate_prepared = property(lambda loader: accelerate.is_prepared(loader))  # type: ignore[attr-defined]

__all__ = ["keep_loaders"]
