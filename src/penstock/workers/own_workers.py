"""Each worker thread's own Worker: its dataset and functions are copies, as those of a worker process are."""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch

from penstock.recipe.unseeded_generators import copies_before, reseed_copy
from penstock.workers.copies import NotCopied, Snapshot
from penstock.workers.worker import Worker, is_refused_write

Init = Callable[[int], object]
#: Of the tensors that threads share so many are looked at with each batch.
LOOKED_AT = 256
#: Packages whose classes hold nothing that is open.
_KNOWN = ("builtins", "typing", "torch", "torchvision", "numpy", "PIL")


class OwnWorkers:
    """What each thread of a crew fetches with.

    A snapshot is made with this, in the thread that begins the pass: what the loop does to its dataset later reaches no
    thread. Each thread has a copy of it, made by itself, one at a time. Raises NotCopied, also where a class of what is
    copied holds an open file or connection, which all its objects share.

    Arrays that the copies share are read-only; whether tensors were written to is seen by their versions.

    Args:
        init: the loader's worker_init_fn: where it reaches the dataset, it gets the thread's own.
        shared: nothing is copied.
    """

    def __init__(self, worker: Worker, init: Init | None, *, shared: bool = False) -> None:
        self._lock = threading.Lock()
        self.shared = shared
        self._looked_at = 0
        self._versions: Iterator[tuple[torch.Tensor, int]] = iter(())
        self._unseen: set[type] = set()
        self._given = (worker, init)
        self._taken = self._earlier = 0
        snapshot = Snapshot(share=as_shared)
        if not shared:
            _copied(snapshot.add, worker, init)
        self._copy, self._data, self._classes = snapshot.finish(), snapshot.shared, snapshot.kinds
        _refuse_handles(self._classes)
        if any(isinstance(part, np.ndarray) for part in self._data):
            _warn_of_no_array()

    def anew(self) -> OwnWorkers:
        """Return the same of the dataset as it is now. Raises NotCopied."""
        return OwnWorkers(*self._given, shared=self.shared)

    def take(self) -> tuple[Worker, Init | None]:
        """Return what is the calling thread's own. Raises NotCopied."""
        if self.shared:
            return self._given
        with self._lock:
            if self._taken == 0:
                self._earlier = copies_before(self._given[0].dataset)
            worker, init = _copied(self._copy(), *self._given)
            reseed_copy(worker.dataset, self._earlier, self._taken)
            self._taken += 1
        return worker, init

    def begin(self) -> None:
        """Take note that a pass begins: what was written to shared tensors before does not count."""
        tensors = [part for part in self._data if isinstance(part, torch.Tensor) and not part.is_inference()]
        self._looked_at = min(LOOKED_AT, len(tensors))
        self._versions = cycle([(tensor, tensor._version) for tensor in tensors])
        self._unseen = self._classes

    def check(self) -> None:
        """Raise NotCopied where a batch shows that threads cannot share what they do: behind each batch."""
        for tensor, version in islice(self._versions, self._looked_at):
            if tensor._version != version:
                shape = "x".join(map(str, tensor.shape))
                raise NotCopied(f"a tensor of {shape} that the copies share was written to")
        unseen, self._unseen = self._unseen, set()
        _refuse_handles(unseen)  # the first sample may have opened one

    def explained(self, error: BaseException) -> BaseException:
        """Return an error of the user's code, in the words of this where an array that the copies share caused it."""
        if not is_refused_write(error) or not any(isinstance(part, np.ndarray) for part in self._data):
            return error
        made = NotCopied(f"an array that the copies share was written to ({error})")
        made.__cause__ = error
        return made


def _copied(copies: Callable[[Any, str], Any], worker: Worker, init: Init | None) -> tuple[Worker, Init | None]:
    return worker.with_own(copies), copies(init, "worker_init_fn")


def as_shared(value: Any, snapshot: Snapshot) -> Any:
    """Return data with read-only views in the place of its arrays, where a worker process would have its own.

    Lists, tuples and dicts are looked into, and are the same where nothing of them is another. snapshot: its `shared`
    takes the tensors, and the arrays of which there are views.
    """
    kind = type(value)
    if isinstance(value, (np.ndarray, torch.Tensor)):
        read_only = isinstance(value, np.ndarray) and not value.flags.writeable
        if read_only or snapshot.mappings.hold(value):
            return value
        snapshot.shared.append(value)
        if isinstance(value, np.ndarray):
            value = value.view()
            value.setflags(write=False)
    elif kind is dict:
        parts = [as_shared(part, snapshot) for part in value.values()]
        if not all(map(operator.is_, parts, value.values())):
            return dict(zip(value, parts, strict=True))
    elif kind is list or isinstance(value, tuple):
        parts = [as_shared(part, snapshot) for part in value]
        if not all(map(operator.is_, parts, value)):
            return value._make(parts) if hasattr(value, "_make") else kind(parts)
    return value


def _refuse_handles(kinds: Iterable[type]) -> None:
    """Raise NotCopied for an open file or connection in an attribute of classes, which copies of objects share."""
    for owner in {base for kind in kinds for base in kind.__mro__}:
        if str(owner.__module__).partition(".")[0] in _KNOWN:
            continue
        for name, value in tuple(vars(owner).items()):
            if name.startswith("__") or hasattr(type(value), "__get__"):
                continue
            try:
                Snapshot().add(value, f"{owner.__qualname__}.{name}")
            except NotCopied as error:
                if error.closes:
                    raise


@cache
def _warn_of_no_array() -> None:
    """Have torch's warning of read-only arrays, which comes once a process, over: the user did not make these so."""
    array = np.empty(1)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(array)


def describe_copies(worker: Worker, init: Init | None, *, shared: bool) -> str:
    """Return whose dataset each thread uses, for explain()."""
    if shared:
        return "shared   all threads use the one dataset, as share_dataset=True says"
    try:
        OwnWorkers(worker, init)
    except NotCopied as error:
        return f"refused  {error}"
    return (
        "copies   each thread has its own copy of the dataset's Python objects and transforms; tensors and arrays are "
        "shared"
    )
