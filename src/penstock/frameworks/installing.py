"""penstock.install(): loaders that other code makes by calling torch's class become Penstock's.

Libraries have torch's class under names of their own. What all of them call is its __init__, so that is the one thing
exchanged: an object of torch's class, and of no class derived from it, becomes one of penstock.DataLoader. Every loader
stays an instance of torch's class, and loaders that were made before stay what they are.
"""

from __future__ import annotations

import functools
import sys
from contextlib import ExitStack
from typing import Any

import torch.utils.data

from penstock.loader import DataLoader
from penstock.system.locks import ProcessLock

_Torchs: Any = torch.utils.data.DataLoader
_lock = ProcessLock()
_original: Any = None
_depth = 0
#: Builds a torch loader from the attributes of the one it is given; penstock.frameworks.accelerate puts ours into that.
_COPIES_LOADERS = "accelerate.data_loader"


def install() -> ExitStack:
    """Make every torch.utils.data.DataLoader that is built from now on, by any code, a penstock.DataLoader.

    Objects of classes derived from torch's do not change, because their code relies on torch's class. `with
    penstock.install():` ends with the block. Calls may be nested: each needs its uninstall().
    """
    global _original, _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            _original = _Torchs.__init__
            _Torchs.__init__ = _replacing(_original)
    installed = ExitStack()  # ends with uninstall() where it is a context manager
    installed.callback(uninstall)
    return installed


def uninstall() -> None:
    """Undo an install(). Loaders made in between remain Penstock's.

    Raises:
        RuntimeError: nothing is installed, or other code has exchanged torch's __init__ since.
    """
    global _depth
    with _lock:
        if not _depth:
            raise RuntimeError("penstock.uninstall() without an install() before it")
        if _depth == 1:
            if getattr(_Torchs.__init__, "__wrapped__", None) is not _original:
                raise RuntimeError("torch.utils.data.DataLoader.__init__ was replaced by other code since install()")
            _Torchs.__init__ = _original
        _depth -= 1


def _replacing(original: Any) -> Any:
    """Return an __init__ of torch's class that makes its object a penstock.DataLoader first."""

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        if type(self) is _Torchs and sys._getframe(1).f_globals.get("__name__") != _COPIES_LOADERS:
            self.__class__ = DataLoader
            DataLoader.__init__(self, *arguments, **named)  # which calls this one
        else:
            original(self, *arguments, **named)

    return __init__
