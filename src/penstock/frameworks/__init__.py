"""Penstock loaders in the hands of other frameworks, and of `penstock watch`. The loader's module imports this one."""

import sys
from typing import TYPE_CHECKING

from penstock.loader import DataLoader
from penstock.loop_times import follow_loops
from penstock.system.deferred import attributes_of, deferred

if TYPE_CHECKING:
    from penstock.frameworks import accelerate
    from penstock.frameworks.accelerate import keep_loaders
    from penstock.insight import publishing
else:
    (accelerate,) = deferred(__name__, "accelerate")
    (publishing,) = deferred("penstock.insight", "publishing")
    __getattr__ = attributes_of(__name__, {"accelerate": ("keep_loaders",)})


follow_loops(lambda loops, now: publishing.looked(loops, now))
# Without importing Accelerate.
DataLoader.meet_accelerate = staticmethod(  # type: ignore[method-assign]
    lambda: "accelerate.data_loader" in sys.modules and accelerate.meet_accelerate()
)
DataLoader._is_accelerate_prepared = property(lambda loader: accelerate.is_prepared(loader))  # type: ignore[attr-defined]

__all__ = ["keep_loaders"]
