"""The last step of a recipe on the device: pixels become the elements that the host's native code would make."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Operation = Callable[..., torch.Tensor]

#: Bytes that intermediate results may take.
_ROOM = 64 << 20
#: How many representable numbers around a guess are tried: as in native/planes.cc.
_REACH = 8


class Arithmetic:
    """Turns pixels into the elements that a table gives for them, bit for bit the same on every device.

    Elements are calculated in float32 where that gives the whole table, as a trial on the device itself shows; else
    they are looked up. Any number of threads may call it, on any devices; it works on the current stream.

    Args:
        table: what each pixel value becomes: (channels, 256) of a floating-point dtype.

    Raises:
        ValueError: a table of another shape.
    """

    def __init__(self, table: torch.Tensor) -> None:
        if table.ndim != 2 or table.shape[1] != 256:
            raise ValueError(f"a table has shape (channels, 256), not {tuple(table.shape)}")
        self.table = table.detach().cpu().contiguous()
        self._conversions: dict[tuple[torch.device, torch.dtype], Conversion] = {}
        self._lock = threading.Lock()

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
        with torch.no_grad():
            conversion = self.conversion(pixels.device, dtype)
            if pixels.device.type not in ("cpu", "mps"):
                stream = torch.accelerator.current_stream(pixels.device)
                for term in conversion.terms:  # allocated on the stream of the device's first batch
                    term.record_stream(stream)
            return _run(conversion, pixels, dtype or self.table.dtype, channels_last)

    def conversion(self, device: torch.device, dtype: torch.dtype | None = None) -> Conversion:
        """Return how elements of a dtype (None: the table's) are made on a device; chosen at the first call."""
        key = (device, dtype or self.table.dtype)
        if key not in self._conversions:
            with self._lock:  # another thread may choose it meanwhile
                if key not in self._conversions:
                    self._conversions[key] = _choose(self.table, *key)
        return self._conversions[key]

    def made_from(self, table: torch.Tensor) -> bool:
        """Return whether this table is the one that it was made from, bit for bit."""
        mine = self.table
        return mine.dtype == table.dtype and torch.equal(mine.view(torch.uint8), table.cpu().view(torch.uint8))

    def __reduce__(self) -> tuple[Any, ...]:
        return Arithmetic, (self.table,)

    def __repr__(self) -> str:
        return f"Arithmetic({len(self.table)} channels to {self.table.dtype})"


class Formula:
    """Elements by operations on float32, each rounded by itself, with terms that broadcast over a batch.

    The terms are tensors of the device: CUDA multiplies by a rounded reciprocal where a divisor is on the host.
    """

    def __init__(self, steps: list[tuple[Operation, Floats]], device: torch.device) -> None:
        self._operations = [operation for operation, _ in steps]
        self.terms = tuple(torch.from_numpy(term).view(1, -1, 1, 1).to(device) for _, term in steps)

    def write(self, pixels: torch.Tensor, out: torch.Tensor) -> None:
        """Write the elements of (samples, channels, height, width) to memory without gaps, in either format."""
        between = out if out.dtype == torch.float32 or len(self.terms) == 1 else _like(out, torch.float32)
        value, last = pixels, len(self.terms) - 1
        for number, (operation, term) in enumerate(zip(self._operations, self.terms, strict=True)):
            value = operation(value, term, out=out if number == last else between)


class Lookup:
    """Elements looked up in a table, which is on the device."""

    def __init__(self, table: torch.Tensor, device: torch.device) -> None:
        firsts = torch.arange(0, table.numel(), 256, dtype=torch.int32, device="cpu")
        self.terms = (table.reshape(-1).to(device), firsts.view(1, -1, 1, 1).to(device))

    def write(self, pixels: torch.Tensor, out: torch.Tensor) -> None:
        """Write the elements, as a Formula does."""
        table, firsts = self.terms
        places = _like(out, torch.int32)
        torch.add(pixels, firsts, out=places)
        torch.index_select(table, 0, _flat(places), out=_flat(out))


Conversion = Formula | Lookup


def _run(conversion: Conversion, pixels: torch.Tensor, dtype: torch.dtype, channels_last: bool) -> torch.Tensor:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    out = torch.empty(pixels.shape, dtype=dtype, device=pixels.device, memory_format=layout)
    parts = -(-4 * pixels.numel() // _ROOM)
    if parts <= 1:
        conversion.write(pixels, out)
    else:
        for some, elements in zip(pixels.tensor_split(parts), out.tensor_split(parts), strict=True):
            conversion.write(some, elements)
    return out


def _like(out: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return memory for as many elements of another dtype, in the same order."""
    return torch.empty_strided(out.shape, out.stride(), dtype=dtype, device=out.device)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor's elements in the order of memory."""
    return (tensor if tensor.is_contiguous() else tensor.permute(0, 2, 3, 1)).view(-1)


# --- the choice -------------------------------------------------------------------------------------------------------


def _choose(table: torch.Tensor, device: torch.device, dtype: torch.dtype) -> Conversion:
    """Return the first formula that gives the table on the device; a lookup where none does."""
    wanted = table.to(dtype)
    if table.dtype == torch.float32 and dtype.is_floating_point:
        for steps in formulas(table.numpy()):
            formula = Formula(steps, device)
            if _gives(formula, wanted, device):
                return formula
    return Lookup(wanted, device)


def _gives(formula: Formula, wanted: torch.Tensor, device: torch.device) -> bool:
    """Return whether each value of each channel becomes the element that is wanted, bit for bit, in both layouts."""
    values = torch.arange(256, dtype=torch.uint8, device=device).view(1, 1, 16, 16).expand(1, len(wanted), 16, 16)
    for channels_last in (False, True):
        made = _run(formula, values, wanted.dtype, channels_last).cpu().contiguous().view(wanted.shape)
        if not torch.equal(made.view(torch.uint8), wanted.view(torch.uint8)):
            return False
    return True


def formulas(table: Floats) -> Iterator[list[tuple[Operation, Floats]]]:
    """Yield the operations that give a table on the host: (x - mean) / std of x = v / 255, v * (1/255) or v.

    Each takes the value so far and a term: one number, or one a channel. The arithmetic is torchvision's, of ToTensor
    or ToDtype and Normalize; mean and std are found near those that the ends of the table give.
    """
    values = np.arange(256, dtype=np.float32)
    whole, step, one = (np.array([number], dtype=np.float32) for number in (255, 1 / 255, 1))
    scalings: list[tuple[Operation, Floats, Floats]] = [
        (torch.div, whole, values / whole),
        (torch.mul, step, values * step),
        (torch.mul, one, values),
    ]
    for operation, term, scaled in scalings:
        if all(_same(scaled, elements) for elements in table):
            yield [(operation, term)]
            continue
        found = [_normalisation(scaled, elements) for elements in table]
        terms = np.array([pair for pair in found if pair is not None], dtype=np.float32)
        if len(terms) == len(table):
            mean, std = np.ascontiguousarray(terms.T)
            yield [(operation, term), (torch.sub, mean), (torch.div, std)]


def _normalisation(scaled: Floats, elements: Floats) -> tuple[np.float32, np.float32] | None:
    """Return mean and std with which (scaled - mean) / std gives the elements, or None."""
    with np.errstate(all="ignore"):
        span = np.float64(elements[255]) - np.float64(elements[0])
        stds = _around(np.float32(scaled[255] / span))
        means = _around((-np.float64(elements[0]) * stds).astype(np.float32))
        near = (scaled[0] - means) / stds[:, None] == elements[0]
        for row, column in np.argwhere(near):
            mean, std = means[row, column], stds[row]
            if _same((scaled - mean) / std, elements):
                return mean, std
    return None


def _around(numbers: Any) -> Floats:
    """Return for each number those that are up to _REACH representable ones away, along a last dimension."""
    bits = np.asarray(numbers, dtype=np.float32)[..., None].view(np.int32)
    return (bits + np.arange(-_REACH, _REACH + 1, dtype=np.int32)).view(np.float32)


def _same(ours: Floats, theirs: Floats) -> bool:
    return ours.tobytes() == theirs.tobytes()
