"""Penstock loaders in the hands of other frameworks."""

import sys
from typing import TYPE_CHECKING

from penstock.loader import DataLoader
from penstock.system.deferred import attributes_of, deferred

if TYPE_CHECKING:
    from penstock.frameworks import keeping
    from penstock.frameworks.keeping import keep_loaders
else:
    (keeping,) = deferred(__name__, "keeping")
    __getattr__ = attributes_of(__name__, {"keeping": ("keep_loaders",)})


def _meet_accelerate() -> bool:
    return "accelerate.data_loader" in sys.modules and keeping.meet_accelerate()


# Without importing Accelerate, and without being imported by the loader.
DataLoader.meet_accelerate = staticmethod(_meet_accelerate)  # type: ignore[method-assign]

__all__ = ["keep_loaders"]
