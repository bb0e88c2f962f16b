"""The last step of a recipe, done where its pixels are: their conversion to floating-point elements by a table.

On a GPU a Triton kernel does it in one pass; torch's operations do it elsewhere, to the same bits.
"""

from __future__ import annotations

import importlib
import logging
from functools import cache
from typing import Any

import torch

from penstock.device.feed import Feed

#: Bytes that intermediate results may take.
_ROOM = 64 << 20

_log = logging.getLogger("penstock")


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
            table, firsts = self._on(device, dtype)
            out = torch.empty(pixels.shape, dtype=dtype, device=device, memory_format=layout)
            if run_kernel("convert", device, pixels.contiguous(memory_format=_dense(pixels)), table, out):
                return out
            parts = max(1, -(-4 * pixels.numel() // _ROOM))
            for some, elements in zip(pixels.tensor_split(parts), out.tensor_split(parts), strict=True):
                places = torch.empty_strided(elements.shape, elements.stride(), dtype=torch.int32, device=device)
                torch.add(some, firsts, out=places)
                torch.index_select(table, 0, _flat(places), out=_flat(elements))
        return out

    def on(self, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the elements of all channels in a row, on a device; dtype: as in a call."""
        return self._on(device, dtype or self.table.dtype)[0]

    def _on(self, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the elements of all channels, and where those of each channel begin; copied at the first call."""
        if (held := self._held.get((device, dtype))) is None:
            firsts = torch.arange(0, self.table.numel(), 256, dtype=torch.int32, device="cpu").view(1, -1, 1, 1)
            made = self.table.to(dtype).reshape(-1).to(device), firsts.to(device)
            held = self._held.setdefault((device, dtype), made)  # another thread may have made them meanwhile
        if device.type not in ("cpu", "mps"):
            for one in held:  # allocated on the stream of the device's first batch
                one.record_stream(torch.accelerator.current_stream(device))
        return held


def _dense(pixels: torch.Tensor) -> torch.memory_format:
    last = pixels.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def has_kernels(device: torch.device) -> bool:
    """Return whether Triton kernels run there: a GPU, where Triton is installed, and has made those that were tried."""
    return _runs_kernels(device) and not _unusable and _kernels() is not None


def run_kernel(name: str, device: torch.device, *arguments: Any) -> bool:
    """Have a Triton kernel of `kernels` do the work; False: torch's operations must, and write all of its result."""
    if not has_kernels(device):
        return False
    try:
        getattr(_kernels(), name)(*arguments)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler says
        _unusable.append(error)
        _log.info("Triton cannot make the kernel %s, so that torch's operations do its work: %s", name, error)
        return False
    return True


_unusable: list[Exception] = []
"""Why kernels cannot be made in this process."""


def _runs_kernels(device: torch.device) -> bool:
    return device.type == "cuda"


@cache
def _kernels() -> Any:
    try:
        return importlib.import_module("penstock.device.kernels")
    except Exception:  # it is not installed, or for another torch
        return None


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
