"""Penstock loaders in the hands of other frameworks, and of `penstock watch`: both are told of loaders."""

import sys
from typing import TYPE_CHECKING, Any

from penstock import announcements
from penstock.system.deferred import attributes_of, deferred

if TYPE_CHECKING:
    from penstock.frameworks import accelerate
    from penstock.frameworks.accelerate import keep_loaders
    from penstock.insight import publishing
else:
    (accelerate,) = deferred(__name__, "accelerate")
    (publishing,) = deferred("penstock.insight", "publishing")
    __getattr__ = attributes_of(__name__, {"accelerate": ("keep_loaders",)})


def _made(loader: Any) -> None:
    """Let Accelerate keep a program's loaders, without importing Accelerate."""
    if "accelerate.data_loader" in sys.modules:
        accelerate.meet_accelerate()


announcements.made.append(_made)
announcements.copied.append(lambda loader: accelerate.before_copy(loader))
announcements.looked.append(lambda loops, now: publishing.looked(loops, now))

__all__ = ["keep_loaders"]
