"""penstock.install(): loaders that other code makes by calling torch's class become Penstock's.

Libraries have torch's class under other names, and derive classes from it. What all of them call is exchanged:

- torch's __init__: an object of torch's class, and of no class derived from it, becomes one of penstock.DataLoader;
- torch's _get_iterator: a pass that a loader of another class begins by it is one of Penstock's;
- the __init__ of torchdata's StatefulDataLoader, which calls neither: an object of that class becomes one of a class
  derived from penstock.DataLoader and from it. torch's __init_subclass__ is called when torchdata is imported.

Every loader stays an instance of torch's class, and loaders that were made before keep their class.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch.utils.data

from penstock import derived
from penstock.loader import DataLoader
from penstock.system.deferred import deferred
from penstock.system.locks import ProcessLock

if TYPE_CHECKING:
    from penstock.frameworks import stateful
else:
    (stateful,) = deferred("penstock.frameworks", "stateful")

_Torchs: Any = torch.utils.data.DataLoader
_lock = ProcessLock()
_depth = 0
#: Each class, a method's name, what the class had by it (None: it was inherited), and what it has now.
_exchanged: list[tuple[Any, str, Any, Any]] = []
#: Builds a torch loader from the attributes of the one it is given; penstock.frameworks.accelerate puts ours into that.
_COPIES_LOADERS = "accelerate.data_loader"


#: What was seen of the loaders of each class since install(); nothing: no pass has begun.
_Seen = weakref.WeakKeyDictionary[Any, dict[str, None]]
_seen: _Seen = weakref.WeakKeyDictionary()


class Installed(ExitStack):
    """What install() returns; as a context manager it ends with uninstall()."""

    _seen: _Seen

    def explain(self) -> str:
        """Return as text who makes the batches of the loaders that were used since install(): a line for each class."""
        lines = [f"{_name(kind)}: {'; '.join(seen) or _begins(kind)}" for kind, seen in self._seen.items()]
        return "\n".join(sorted(lines)) or "no loader was made since install()"


def install() -> Installed:
    """Make every torch.utils.data.DataLoader that is built from now on, by any code, a penstock.DataLoader.

    Objects of classes derived from torch's keep their class, because their code relies on it; the passes that they
    begin from now on are Penstock's, unless the class makes its iterators itself. `with penstock.install():` ends with
    the block. Calls may be nested: each needs its uninstall(). `explain()` of what is returned says who makes the
    batches of the loaders of each class.
    """
    global _depth, _seen
    installed = Installed()
    with _lock:
        _depth += 1
        if _depth == 1:
            _seen = weakref.WeakKeyDictionary()
            _exchange(_Torchs, "__init__", functools.partial(_replacing, _Torchs))
            _exchange(_Torchs, "_get_iterator", _beginning)
            _exchange(_Torchs, "__init_subclass__", lambda original: classmethod(_deriving))
            if (module := sys.modules.get(derived.TORCHDATA)) is not None:
                _exchange_stateful(module.StatefulDataLoader)
        installed._seen = _seen
    installed.callback(uninstall)
    return installed


def uninstall() -> None:
    """Undo an install(). Loaders made in between remain Penstock's; those of derived classes begin torch's passes.

    Raises:
        RuntimeError: nothing is installed, or other code has exchanged one of these methods since.
    """
    global _depth
    with _lock:
        if not _depth:
            raise RuntimeError("penstock.uninstall() without an install() before it")
        if _depth == 1:
            for kind, name, _, ours in _exchanged:
                if vars(kind).get(name) is not ours:
                    raise RuntimeError(f"{_name(kind)}.{name} was replaced by other code since install()")
            for kind, name, original, _ in _exchanged:
                if original is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, original)
            _exchanged.clear()
        _depth -= 1


def _exchange(kind: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    original = vars(kind).get(name)
    ours = wrap(original)
    if original is not None:
        functools.update_wrapper(ours, original)
    setattr(kind, name, ours)
    _exchanged.append((kind, name, original, ours))


def _exchange_stateful(theirs: Any) -> None:
    _exchange(theirs, "__init__", functools.partial(_replacing, theirs))


def _note(kind: Any, *seen: str) -> None:
    _seen.setdefault(kind, {}).update(dict.fromkeys(seen))


def _begins(kind: Any) -> str:
    own = derived.iterates_itself(kind)
    return f"its own code makes the iterators: {own}" if own else "no pass has begun"


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


# In the place of the __init__ of torch's class, and of torchdata's.
def _replacing(kind: Any, original: Any) -> Any:
    """Return an __init__ of a class that makes its object one of ours first, but for objects of derived classes."""

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        copied = kind is _Torchs and sys._getframe(1).f_globals.get("__name__") == _COPIES_LOADERS
        if type(self) is not kind or copied:
            if not isinstance(self, DataLoader) and type(self) is not _Torchs:
                _note(type(self))
            original(self, *arguments, **named)
            return
        ours = DataLoader if kind is _Torchs else stateful.StatefulDataLoader
        self.__class__ = ours
        _note(ours, "each is a penstock.DataLoader, with an explain() of its own")
        ours.__init__(self, *arguments, **named)  # which calls this one

    return __init__


# In the place of torch's _get_iterator.
def _beginning(original: Any) -> Any:
    def _get_iterator(self: Any) -> Any:
        if isinstance(self, DataLoader):  # `penstock run` compares with torch's passes
            return original(self)
        if why := derived.stays_torchs(self):
            _note(type(self), f"torch makes the batches: {why}")
            return original(self)
        batches = derived.begin_pass(self)
        _note(type(self), "Penstock makes the batches")
        return batches

    return _get_iterator


# torch's __init_subclass__, which is Generic's.
def _deriving(cls: Any, /, **named: Any) -> None:
    super(_Torchs, cls).__init_subclass__(**named)
    if _name(cls) == f"{derived.TORCHDATA}.StatefulDataLoader":
        with _lock:
            if _depth:
                _exchange_stateful(cls)
