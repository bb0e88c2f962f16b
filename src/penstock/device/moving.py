"""A batch of any structure, moved to a device, with what the Feed asks done to it there."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from penstock.device.copy_stream import CopyStream
from penstock.device.feed import Feed
from penstock.observe import Meter
from penstock.stats import samples_in

#: Bytes that intermediate results of Arithmetic may take.
_ROOM = 64 << 20


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
        if (meter := self.meter) is None:
            return self._made(map_leaves(batch, lambda leaf: self._move(leaf, stream), _has_own_to))
        clock = meter.begin_copy()
        moved = self._made(map_leaves(batch, lambda leaf: self._move(leaf, stream), _has_own_to))
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


class _NotHandedOver(Exception):  # noqa: N818  nobody sees it
    """Another stream cannot take all tensors: one is sparse, or what moves itself shows none."""


# --- the last step of a recipe ----------------------------------------------------------------------------------------


class Arithmetic:
    """Turns pixels into the elements that a table gives for them: they are looked up, on any device the same bits.

    Any number of threads may call it, on any devices; it works on the current stream. Raises ValueError for a table
    that is not of shape (channels, 256) of a floating-point dtype: what each pixel value becomes.
    """

    def __init__(self, table: torch.Tensor) -> None:
        if table.ndim != 2 or table.shape[1] != 256:
            raise ValueError(f"a table has shape (channels, 256), not {tuple(table.shape)}")
        self.table = table.detach().cpu().contiguous()
        self._held: dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self, pixels: torch.Tensor, dtype: torch.dtype | None = None, channels_last: bool = False
    ) -> torch.Tensor:
        """Return the elements of pixels, in new memory of their device.

        Args:
            pixels: uint8 of shape (samples, channels, height, width).
            dtype: the elements are rounded to it, as Tensor.to does. None: the table's.
            channels_last: the result has torch's memory format of that name, not the contiguous one.

        Raises:
            ValueError: pixels of another dtype or shape.
        """
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[1] != len(self.table):
            what = f"{pixels.dtype} of shape {tuple(pixels.shape)}"
            raise ValueError(f"pixels are uint8 of shape (samples, {len(self.table)}, height, width), not {what}")
        layout = torch.channels_last if channels_last else torch.contiguous_format
        device, dtype = pixels.device, dtype or self.table.dtype
        with torch.no_grad():
            table, firsts = self._table_on(device, dtype)
            out = torch.empty(pixels.shape, dtype=dtype, device=device, memory_format=layout)
            parts = max(1, -(-4 * pixels.numel() // _ROOM))
            for some, elements in zip(pixels.tensor_split(parts), out.tensor_split(parts), strict=True):
                places = torch.empty_strided(elements.shape, elements.stride(), dtype=torch.int32, device=device)
                torch.add(some, firsts, out=places)
                torch.index_select(table, 0, _flat(places), out=_flat(elements))
        return out

    def _table_on(self, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the elements of all channels, and where those of each channel begin; copied at the first call."""
        if (held := self._held.get((device, dtype))) is None:
            firsts = torch.arange(0, self.table.numel(), 256, dtype=torch.int32, device="cpu").view(1, -1, 1, 1)
            made = self.table.to(dtype).reshape(-1).to(device), firsts.to(device)
            held = self._held.setdefault((device, dtype), made)  # another thread may have made them meanwhile
        if device.type not in ("cpu", "mps"):
            for one in held:  # allocated on the stream of the device's first batch
                one.record_stream(torch.accelerator.current_stream(device))
        return held


def finish(arithmetic: Arithmetic, batch: Any, feed: Feed) -> Any:
    """Return a batch with the elements of its recipe in the place of its first field, pixels."""
    pixels = batch[0] if isinstance(batch, list) else batch
    if pixels.dtype != torch.uint8:  # a sampler gave no indices, so that the dataset itself was asked
        return batch
    image = arithmetic(pixels, feed.dtype, feed.channels_last)
    return [image, *batch[1:]] if isinstance(batch, list) else image


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor's elements in the order of memory."""
    return (tensor if tensor.is_contiguous() else tensor.permute(0, 2, 3, 1)).view(-1)


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
