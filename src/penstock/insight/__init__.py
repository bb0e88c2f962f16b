"""What observers wrote, read: diagnosis, machine checks, recordings, traces, reports and views.

`record` writes a trace and a report of a block of code; `publish` says whether `penstock watch` can see this process,
which it can by default.
"""

from penstock.insight.publishing import publish
from penstock.insight.recording import record

__all__ = ["publish", "record"]
