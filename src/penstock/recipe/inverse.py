"""The inverse of a conversion, from its elements back to the pixels, bit for bit."""

from __future__ import annotations

from typing import Any

import torch

from penstock.errors import InvalidOption

#: By an element's size in bytes: the integer dtype that holds its bits.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Inverse:
    """Finds the pixel value of which a table makes each element. Any number of threads may call it.

    Args:
        table: what each pixel value becomes: (channels, 256) of a floating-point dtype of 2, 4 or 8 bytes, on the CPU.

    Raises:
        ValueError: another dtype, or two pixel values become one element.
    """

    def __init__(self, table: torch.Tensor) -> None:
        if not table.is_floating_point() or table.element_size() not in _BITS:
            raise ValueError(f"a table of {table.dtype} stands for no pixels")
        self._dtype = table.dtype
        self._sorted, order = _bits(table).sort(dim=1)
        if (self._sorted[:, 1:] == self._sorted[:, :-1]).any():
            raise ValueError("two pixel values become one element")
        self._pixels = order.to(torch.uint8)

    def __call__(self, elements: torch.Tensor) -> torch.Tensor:
        """Return the pixels of elements of shape (channels, ...): uint8 of that shape.

        Raises:
            ValueError: another dtype or number of channels, or an element that the table does not make.
        """
        channels = len(self._sorted)
        if elements.dtype != self._dtype or elements.ndim < 2 or len(elements) != channels:
            shape = tuple(elements.shape)
            raise ValueError(f"{elements.dtype} of shape {shape}, not {self._dtype} of {channels} channels")
        bits = _bits(elements).reshape(channels, -1)
        places = torch.searchsorted(self._sorted, bits).clamp_(max=255)
        if not torch.equal(self._sorted.gather(1, places), bits):
            raise ValueError("an element that no pixel value becomes")
        return self._pixels.gather(1, places).reshape(elements.shape)


def _bits(elements: torch.Tensor) -> torch.Tensor:
    plain = elements.detach().as_subclass(torch.Tensor)
    return plain.contiguous().view(_BITS[plain.element_size()])


def refuse_pixels(batch: Any) -> None:
    """Raise InvalidOption for a batch that is uint8 after its conversion, which the device would convert once more."""
    first = batch[0] if isinstance(batch, list) else batch
    if isinstance(first, torch.Tensor) and first.dtype == torch.uint8:
        raise InvalidOption(
            "the dataset's transform now gives pixels another conversion than the one that the device was told of when "
            "this pass began; begin a new pass after such a change, or give device=None"
        )
