"""obstore, the client of object stores, where it is installed."""

from __future__ import annotations

from types import ModuleType

try:
    import obstore
    import obstore.exceptions
    import obstore.store
except ImportError:
    obstore = None  # type: ignore[assignment]


def client() -> ModuleType:
    """Return the obstore package. Raises ImportError where it is not installed."""
    if obstore is None:
        raise ImportError("shards in an object store are read by obstore: pip install 'penstock[remote]'")
    return obstore
