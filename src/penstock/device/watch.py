"""Whether an array is as it was, as far as that can be known at little cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.executors.buffers import bytes_in

_BLOCK = 4096
#: Blocks that are summed at each look at a large array: 4 MB, or about a millisecond.
_BLOCKS = 1024
#: Weights of a block's elements. They are odd: one changed element always changes the sum. They differ: two exchanged
#: elements mostly change it.
_WEIGHTS = np.arange(1, _BLOCK // 4, 2, dtype=np.int64) * 0x5851F42D4C957F2D


class Watch:
    """Remembers a tensor on the CPU, and tells whether another is the same one, unchanged.

    It is another one where its memory, shape, strides or dtype differ. It is changed where torch has counted a change
    (``Tensor._version``), or where the weighted sum of a block of 4 KB differs. Sums tell of what numpy or others write
    to the memory: all are compared for arrays up to 4 MB, else each time another share of them, spread over the array.
    So a large array that is changed throughout is noticed at once, and a single element after a few passes. Tensors
    with gaps between their rows have no sums.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # held, so that no other can be where it is
        self._key = key(tensor)
        memory = _dense_bytes(tensor)
        whole = len(memory) // _BLOCK
        self._blocks = memory[: whole * _BLOCK].view(np.int64).reshape(whole, _BLOCK // 8)
        self._tail = memory[whole * _BLOCK :]
        self._sums = _sums(self._blocks)
        self._end = self._tail.tobytes()
        self._turn = 0

    def same(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is the one that is watched, as it was."""
        if key(tensor) != self._key:
            return False
        step = max(1, -(-len(self._sums) // _BLOCKS))
        turn, self._turn = self._turn % step, self._turn + 1
        share = slice(turn, None, step)
        return np.array_equal(_sums(self._blocks[share]), self._sums[share]) and self._tail.tobytes() == self._end


def key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return where a tensor is, what it is like, and how often torch has changed it in place."""
    version = 0 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, version


def _dense_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return a tensor's memory from end to end, whatever the order of its dimensions; nothing where it has gaps."""
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    if tensor.numel() == 0 or not tensor.permute(order).is_contiguous():
        return np.empty(0, dtype=np.uint8)
    return bytes_in(tensor)


def _sums(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    sums: NDArray[np.int64] = blocks @ _WEIGHTS  # modulo 2**64
    return sums
