"""The last step of a recipe on the device: pixels become the elements that the host's native code would make."""

from __future__ import annotations

import threading
from typing import Any

import torch

#: Bytes that intermediate results may take.
_ROOM = 64 << 20
_Key = tuple[torch.device, torch.dtype]


class Arithmetic:
    """Turns pixels into the elements that a table gives for them: they are looked up, on any device the same bits.

    Any number of threads may call it, on any devices; it works on the current stream.

    Args:
        table: what each pixel value becomes: (channels, 256) of a floating-point dtype.

    Raises:
        ValueError: a table of another shape.
    """

    def __init__(self, table: torch.Tensor) -> None:
        if table.ndim != 2 or table.shape[1] != 256:
            raise ValueError(f"a table has shape (channels, 256), not {tuple(table.shape)}")
        self.table = table.detach().cpu().contiguous()
        self._held: dict[_Key, tuple[torch.Tensor, torch.Tensor]] = {}
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
        with self._lock:  # another thread may make them meanwhile
            if (device, dtype) not in self._held:
                firsts = torch.arange(0, self.table.numel(), 256, dtype=torch.int32, device="cpu").view(1, -1, 1, 1)
                self._held[device, dtype] = self.table.to(dtype).reshape(-1).to(device), firsts.to(device)
            held = self._held[device, dtype]
        if device.type not in ("cpu", "mps"):
            for one in held:  # allocated on the stream of the device's first batch
                one.record_stream(torch.accelerator.current_stream(device))
        return held

    def made_from(self, table: torch.Tensor) -> bool:
        """Return whether this table is the one that it was made from, bit for bit."""
        mine = self.table
        return mine.dtype == table.dtype and torch.equal(mine.view(torch.uint8), table.cpu().view(torch.uint8))

    def __reduce__(self) -> tuple[Any, ...]:
        return Arithmetic, (self.table,)

    def __repr__(self) -> str:
        return f"Arithmetic({len(self.table)} channels to {self.table.dtype})"


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor's elements in the order of memory."""
    return (tensor if tensor.is_contiguous() else tensor.permute(0, 2, 3, 1)).view(-1)
