"""What a cluster's nodes are sent, as pickles; what cannot be pickled is named with the attribute that holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.cluster.wire import whole
from penstock.errors import ClusterError
from penstock.system.words import size_of

#: Parts of a container that are looked at for one that cannot be pickled.
_LOOKED_AT = 1000
_DEEPEST = 20


def pickled(value: Any, name: str, held: Any) -> bytes:
    """Return what nodes are sent.

    Args:
        value: all of it.
        name: of the object of the user's in it, for the message.
        held: that object.

    Raises:
        ClusterError: it cannot be pickled; the message names the attribute.
    """
    try:
        return whole(value)
    except Exception as error:
        path, part, why = _first_that_fails(held, name, _DEEPEST) or (name, held, error)
        kind = type(part)
        raise ClusterError(
            f"{path}, of type {kind.__module__}.{kind.__qualname__}, cannot be pickled ({type(why).__name__}: {why}), "
            "and the nodes of a cluster get a pickle of it: open it where it is first used, in __getitem__, or leave "
            "it out of the pickle by a __getstate__ of its own"
        ) from error


def stored(ray: Any, value: Any) -> Any:
    """Return Ray's reference to what all nodes are sent: it crosses the network once a node. Raises ClusterError."""
    try:
        return ray.put(value)
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
        size = getattr(value, "nbytes", None) or len(value)
        raise ClusterError(
            f"what the nodes are sent has {size_of(size)}, and the object store of Ray on this node is full: leave "
            "arrays in files, or start Ray with a larger --object-store-memory"
        ) from error


def _first_that_fails(value: Any, path: str, depth: int) -> tuple[str, Any, Exception] | None:
    """Return the innermost part that cannot be pickled: its path, itself and the error; None: all of it can be."""
    try:
        whole(value)
        return None
    except Exception as error:
        if depth:
            for name, part in _parts(value):
                found = _first_that_fails(part, path + name, depth - 1)
                if found is not None:
                    return found
        return path, value, error


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, with what stands for it behind the object's name."""
    if isinstance(value, dict):
        for key, part in list(value.items())[:_LOOKED_AT]:
            yield f"[{key!r:.40}]", part
    elif isinstance(value, list | tuple | set | frozenset):
        for position, part in enumerate(list(value)[:_LOOKED_AT]):
            yield f"[{position}]", part
    elif callable(value) and getattr(value, "__closure__", None):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True):
            yield f"'s {name}", cell.cell_contents
    elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, type):
        for name, part in vars(value).items():
            yield f".{name}", part
