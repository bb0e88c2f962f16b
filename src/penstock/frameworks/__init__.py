"""Penstock loaders in the hands of other frameworks, and of `penstock watch`: both are told of each loader."""

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.announcements import listeners
from penstock.system.deferred import attributes_of, deferred

if TYPE_CHECKING:
    from penstock import observe
    from penstock.frameworks import accelerate
    from penstock.frameworks.accelerate import keep_loaders
    from penstock.insight import publishing
else:
    (observe,) = deferred("penstock", "observe")
    (accelerate,) = deferred(__name__, "accelerate")
    (publishing,) = deferred("penstock.insight", "publishing")
    __getattr__ = attributes_of(__name__, {"accelerate": ("keep_loaders",)})


class _Frameworks:
    """Lets Accelerate keep a program's loaders, and `penstock watch` see them, without importing Accelerate."""

    def made(self, loader: Any) -> None:
        _watch()
        if "accelerate.data_loader" in sys.modules:
            accelerate.meet_accelerate()

    def copied(self, loader: Any) -> None:
        accelerate.before_copy(loader)


@cache
def _watch() -> None:
    """Have the live file follow the loaders of this process, from the first pass on."""
    observe.watch(lambda loader: publishing.begins(loader))


listeners.append(_Frameworks())

__all__ = ["keep_loaders"]
