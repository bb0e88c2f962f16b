"""obstore, the client of object stores, where it is installed."""

from __future__ import annotations

import os
from types import ModuleType

try:
    import obstore
    import obstore.exceptions
    import obstore.store
except ImportError:
    obstore = None  # type: ignore[assignment]


#: The process that used the client first: its threads, which no forked child has, serve all stores.
_FIRST: list[int] = []


def works_here() -> bool:
    """Return whether the client works in this process: not in a child that was forked after it was first used."""
    return not _FIRST or _FIRST[0] == os.getpid()


def client() -> ModuleType:
    """Return the obstore package. Raises ImportError where it is not installed."""
    if not _FIRST:
        _FIRST.append(os.getpid())
    if obstore is None:
        raise ImportError("shards in an object store are read by obstore: pip install 'penstock[remote]'")
    return obstore
