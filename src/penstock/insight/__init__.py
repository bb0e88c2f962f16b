"""What observers wrote, read: diagnosis, machine checks, recordings, traces, reports and views.

`record` writes a trace and a report of a block of code; `publish` says whether `penstock watch` can see this process,
which it can by default.
"""

from typing import TYPE_CHECKING

from penstock.system.deferred import attributes_of

if TYPE_CHECKING:
    from penstock.insight.publishing import publish
    from penstock.insight.recorded import record

if not TYPE_CHECKING:
    __getattr__ = attributes_of(__name__, {"publishing": ("publish",), "recorded": ("record",)})

__all__ = ["publish", "record"]
