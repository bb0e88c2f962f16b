"""A batch of any structure, moved to a device, with what the Feed asks done to it there."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from penstock.device.arithmetic import Arithmetic, finish
from penstock.device.copy_stream import CopyStream
from penstock.device.feed import Feed
from penstock.observe import Meter
from penstock.stats import samples_in


@dataclass
class Moved:
    """A batch whose copies have begun."""

    batch: Any
    mark: Any = None
    tensors: list[torch.Tensor] | None = None
    """All tensors of the batch. None: it is moved when it is handed over, on the stream that uses it."""
    error: Exception | None = None
    """What was raised instead."""


@dataclass(eq=False)
class Mover:
    """Moves batches: `send` begins, in any one thread; `receive` ends, in the thread that uses the batch."""

    feed: Feed
    device: torch.device
    """Where to, resolved."""
    stream: CopyStream | None
    """Copies to the device; None: `receive` does all, by plain copies."""
    arithmetic: Arithmetic | None = None
    """What is left to the device of what the loader's recipe does; None: nothing."""
    meter: Meter | None = None
    """Counts what moving a batch takes of the host's time, as stage "copy"."""

    def __post_init__(self) -> None:
        converts = self.arithmetic is not None or self.feed.dtype is not None or self.feed.channels_last
        self._idle = self.device.type == "cpu" and not converts and self.feed.transform is None

    def send(self, batch: Any) -> Moved:
        """Begin to move a batch. What its own types, the device or the transform raise is raised by `receive`."""
        stream = self.stream
        try:
            if stream is None:
                return Moved(batch)  # moved when it is handed over
            with stream.working():
                moved = self._moved(batch, stream)
                return Moved(moved, stream.mark(), list(tensors_in(moved)))
        except _NotHandedOver:
            return Moved(batch)
        except Exception as error:
            return Moved(None, error=error)

    def receive(self, moved: Moved) -> Any:
        """Return the batch for the calling thread's current stream. Raises what moving it raised."""
        error, moved.error = moved.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # whose traceback holds this frame
        if moved.tensors is None:
            if self._idle:
                return moved.batch
            return self._moved(moved.batch, None)
        assert self.stream is not None
        self.stream.receive(moved.mark, moved.tensors)
        return moved.batch

    def _moved(self, batch: Any, stream: CopyStream | None) -> Any:
        """Return a batch on the device; stream: None for plain copies."""
        meter = self.meter
        clock = None if meter is None else meter.begin_copy()
        moved = self._made(map_leaves(batch, lambda leaf: self._move(leaf, stream), _has_own_to))
        if meter is not None and clock is not None:
            samples = samples_in(batch, 1, iterable=True, stacks=True)
            seconds = clock.end(samples)
            if meter.sinks:
                meter.tell("copy", clock.begun, clock.begun + seconds, samples)
        return moved

    def _move(self, leaf: Any, stream: CopyStream | None) -> Any:
        """Return a leaf on the device; stream: None for a plain copy."""
        if isinstance(leaf, torch.Tensor):
            if stream is not None and leaf.layout is not torch.strided:
                raise _NotHandedOver
            if leaf.device == self.device:
                return leaf
            return leaf.to(self.device) if stream is None else stream.copy(leaf)
        if not _has_own_to(leaf):
            return leaf
        if stream is not None and {tensor.layout for tensor in tensors_in(leaf)} != {torch.strided}:
            raise _NotHandedOver
        leaf = leaf if stream is None else stream.pin(leaf)
        try:
            return leaf.to(self.device, non_blocking=True)
        except TypeError:  # it takes no such argument
            return leaf.to(self.device)

    def _made(self, batch: Any) -> Any:
        """Return a batch on the device with what the recipe and the Feed want done to it there."""
        if self.arithmetic is not None:
            batch = finish(self.arithmetic, batch, self.feed)
        if self.feed.dtype is not None or self.feed.channels_last:
            batch = map_leaves(batch, self._format, _has_own_to)
        if self.feed.transform is not None:
            with torch.no_grad():
                batch = self.feed.transform(batch)
        return batch

    def _format(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        dtype = self.feed.dtype if self.feed.dtype is not None and leaf.is_floating_point() else leaf.dtype
        last = self.feed.channels_last and leaf.ndim == 4
        return leaf.to(dtype=dtype, memory_format=torch.channels_last if last else torch.preserve_format)


def _has_own_to(value: Any) -> bool:
    """Return whether a value is of a type with a .to() of its own, such as PackedSequence or BatchEncoding."""
    return not isinstance(value, torch.Tensor | type) and callable(getattr(value, "to", None))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in containers and in the attributes of objects, each once."""
    if type(value) in (list, tuple) and all(type(one) is torch.Tensor for one in value):  # most batches
        yield from dict.fromkeys(value)
        return
    seen: set[int] = set()
    pending = [value]
    while pending:
        one = pending.pop()
        if id(one) in seen or one is None or isinstance(one, str | bytes | int | float | type):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, dict):
            pending += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            pending += one
        else:
            pending += getattr(one, "__dict__", {}).values()
            slots = [getattr(kind, "__slots__", ()) for kind in type(one).__mro__]
            names = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
            pending += [getattr(one, name) for name in names if hasattr(one, name)]


class _NotHandedOver(Exception):
    """Another stream cannot take all tensors: one is sparse, or what moves itself shows none."""


# --- batches of any structure -----------------------------------------------------------------------------------------


def map_leaves(batch: Any, function: Callable[[Any], Any], is_leaf: Callable[[Any], bool] = lambda value: False) -> Any:
    """Return the batch with function(leaf) in the place of each leaf; the batch itself is left as it is.

    Containers keep their types: tuples, named tuples, lists and their subclasses, mappings (a plain dict where the
    type cannot be built from a dict) and dataclasses, frozen ones too. Fields of a dataclass that its __init__ does
    not take are left to its __post_init__. All else is a leaf: tensors, arrays, numbers, strings, None, sets, objects.

    Args:
        function: called once a leaf, in order.
        is_leaf: asked first about every value, the batch included; true for a container that is to be a leaf.

    Raises:
        Exception: what function raises, and what a container's own type raises when it is built anew.
    """
    if is_leaf(batch) or (parts := _parts(batch)) is None:
        return function(batch)
    return _rebuilt(batch, [map_leaves(part, function, is_leaf) for part in parts])


def leaves(batch: Any, is_leaf: Callable[[Any], bool] = lambda value: False) -> Iterator[Any]:
    """Yield the leaves of a batch in the order of map_leaves."""
    if is_leaf(batch) or (parts := _parts(batch)) is None:
        yield batch
    else:
        for part in parts:
            yield from leaves(part, is_leaf)


def _parts(value: Any) -> list[Any] | None:
    """Return what a container holds, or None for all else."""
    if isinstance(value, torch.Tensor | str | bytes):  # most leaves are: no further question
        return None
    if isinstance(value, tuple | list):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # before Mapping: some types are both
        return [getattr(value, field.name) for field in dataclasses.fields(value) if field.init]
    if isinstance(value, Mapping):
        return list(value.values())
    return None


def _rebuilt(value: Any, parts: list[Any]) -> Any:
    """Return a container like value that holds parts instead."""
    kind = type(value)
    if kind is list:
        return parts
    if isinstance(value, tuple):
        return kind(*parts) if hasattr(value, "_fields") else kind(parts)
    if isinstance(value, list):
        clone = copy.copy(value)  # a subclass may have attributes of its own
        clone[:] = parts
        return clone
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **dict(zip(names, parts, strict=True)))
    items = dict(zip(value, parts, strict=True))
    if kind is dict:
        return items
    try:
        if isinstance(value, dict | UserDict):
            copied = copy.copy(value)  # a defaultdict keeps its factory, a BatchEncoding its encodings
            copied.update(items)
            return copied
        # Other mappings are not copied: a copy of one that wraps a dict would share that dict with the batch.
        return kind(items)
    except TypeError:  # its constructor takes no dict
        return items
