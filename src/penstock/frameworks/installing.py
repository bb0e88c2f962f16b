"""penstock.install(): loaders that other code makes of torch's class become Penstock's.

Libraries have torch's class under names of their own, and derive classes from it. What all of them call is its
__init__, so that is the one thing exchanged: an object of torch's class becomes one of penstock.DataLoader, and a
derived class gets penstock.DataLoader among its bases, in the place of torch's. Every loader stays an instance of
torch's class, and loaders that were made before stay what they are.
"""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any

import torch.utils.data

from penstock.loader import DataLoader
from penstock.system.process_lock import ProcessLock

_Torchs: type = torch.utils.data.DataLoader
#: A derived class with one of these of its own iterates in its own way, over iterators that it knows: it stays torch's.
_OWN_WAYS = ("__iter__", "_get_iterator")
_lock = ProcessLock()
_original: Any = None
_rebased: list[tuple[type, tuple[type, ...]]] = []
_depth = 0


class Installed:
    """What install() returns: a context manager that ends with uninstall()."""

    def __enter__(self) -> Installed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        uninstall()


def install() -> Installed:
    """Make every torch.utils.data.DataLoader that is built from now on, by any code, a penstock.DataLoader.

    Classes derived from torch's are included, unless they define __iter__ themselves, as torchdata's
    StatefulDataLoader does. `with penstock.install():` ends it behind the block. Calls may be nested: each needs its
    uninstall().
    """
    global _original, _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            _original = _Torchs.__init__  # type: ignore[misc]
            _Torchs.__init__ = _replacing(_original)  # type: ignore[misc]
    return Installed()


def uninstall() -> None:
    """Undo an install(). Loaders that were made meanwhile stay Penstock's; those of derived classes become torch's.

    Raises:
        RuntimeError: nothing is installed, or other code has exchanged torch's __init__ since.
    """
    global _depth
    with _lock:
        if not _depth:
            raise RuntimeError("penstock.uninstall() without an install() before it")
        if _depth == 1:
            if getattr(_Torchs.__init__, "__wrapped__", None) is not _original:  # type: ignore[misc]
                raise RuntimeError("torch.utils.data.DataLoader.__init__ was exchanged by other code since install()")
            _Torchs.__init__ = _original  # type: ignore[misc]
            while _rebased:
                derived, bases = _rebased.pop()
                derived.__bases__ = bases
        _depth -= 1


def _replacing(original: Any) -> Any:
    """Return an __init__ of torch's class that makes its object a penstock.DataLoader first."""

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        if not isinstance(self, DataLoader):
            _adopt(self)
        if isinstance(self, DataLoader) and "worker_method" not in vars(self):  # which its own __init__ sets first
            DataLoader.__init__(self, *arguments, **named)  # which calls this one
        else:
            original(self, *arguments, **named)

    return __init__


def _adopt(loader: Any) -> None:
    """Make an object of torch's class, or of one derived from it, a penstock.DataLoader, where that can be."""
    kind = type(loader)
    if kind is _Torchs:
        loader.__class__ = DataLoader
        return
    derived = kind.__mro__[: kind.__mro__.index(_Torchs)]
    if kind.__module__.partition(".")[0] == "penstock" or any(way in vars(one) for one in derived for way in _OWN_WAYS):
        return
    with _lock:
        for one in derived:
            if _Torchs in one.__bases__:
                before = one.__bases__
                try:
                    one.__bases__ = tuple(DataLoader if base is _Torchs else base for base in before)
                except TypeError:  # of another layout, or its bases cannot be put in order
                    return
                _rebased.append((one, before))
