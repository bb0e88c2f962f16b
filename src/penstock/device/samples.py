"""A batch as samples along dimension 0, which can be cut into parts or repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from penstock.device.structure import leaves, map_leaves
from penstock.system.host_memory import available_bytes


class Samples:
    """A batch, as samples along dimension 0.

    Attributes:
        number: of samples, at least 1.
    """

    def __init__(self, batch: object) -> None:
        self._batch = batch
        self.number = _number_of_samples(batch)

    def part(self, begin: int, end: int) -> object:
        """Return samples [begin, end): views of the tensors and arrays; the batch itself where that is all."""
        if end - begin == self.number:
            return self._batch
        return map_leaves(self._batch, lambda leaf: leaf[begin:end] if self._is_cut(leaf) else leaf, self._is_column)

    def repeated(self, number: int) -> object:
        """Return a batch of that many samples in memory of its own. Raises MemoryError and the allocators' errors."""
        counted = [leaf for leaf in leaves(self._batch, self._is_column) if self._is_cut(leaf)]
        needed = sum(_host_bytes(leaf) for leaf in counted) * number // self.number
        available = available_bytes()
        if needed > available:
            raise MemoryError(
                f"{number} samples take {needed / 1e9:.1f} GB of host memory, of which {available / 1e9:.1f} GB is "
                "available"
            )
        return map_leaves(
            self._batch, lambda leaf: _repeated(leaf, number) if self._is_cut(leaf) else leaf, self._is_column
        )

    def _is_cut(self, leaf: object) -> bool:
        return _has_samples(leaf) or self._is_column(leaf)

    def _is_column(self, value: Any) -> bool:
        """Return whether a list or tuple holds one object a sample, none of them with tensors in it."""
        if not _is_sequence(value, self.number) or any(_has_samples(leaf) for leaf in leaves(value)):
            return False
        # default_collate turns samples of several strings into a list of such columns, perhaps just as many.
        return not all(_is_sequence(one, self.number) for one in value)


def _number_of_samples(batch: object) -> int:
    shapes: dict[int, tuple[int, ...]] = {}
    for leaf in leaves(batch, _is_packed):
        if _has_samples(leaf):
            if isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided:
                raise ValueError(f"a tensor of layout {leaf.layout} cannot be cut along dimension 0; make it dense")
            shapes.setdefault(leaf.shape[0], tuple(leaf.shape))
        elif not isinstance(leaf, torch.Tensor | type) and callable(getattr(leaf, "to", None)):
            raise ValueError(
                f"a {type(leaf).__name__} holds tensors of its own and cannot be cut along dimension 0; give a step "
                "that takes these tensors in a tuple, dict or dataclass"
            )
    # A batch without tensors, of strings for example, is as long as the lists and tuples that hold them.
    lengths = set(shapes) or {len(one) for one in leaves(batch, _is_flat) if _is_flat(one)}
    if len(lengths) > 1:
        raise ValueError(
            "the parts of a batch must have the same number of samples along dimension 0; found "
            + (f"tensors of shapes {', '.join(map(str, shapes.values()))}" if shapes else f"lists of {sorted(lengths)}")
        )
    if not lengths:
        raise ValueError(f"a batch of type {type(batch).__name__} without a tensor or array of at least one dimension")
    if lengths == {0}:
        raise ValueError("the batch has no samples: its size along dimension 0 is 0")
    return lengths.pop()


def _has_samples(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim > 0


def _is_packed(value: object) -> bool:
    """Return whether a value is a named tuple whose tensors hold the samples interleaved."""
    return isinstance(value, PackedSequence)


def _is_sequence(value: object, length: int | None = None) -> bool:
    """Return whether a value is a list or tuple, of that length where one is given, and no named tuple."""
    if not isinstance(value, list | tuple) or hasattr(value, "_fields"):
        return False
    return length is None or len(value) == length


def _is_flat(value: Any) -> bool:
    """Return whether a value is a list or tuple of leaves."""
    return _is_sequence(value) and all(next(leaves(one), None) is one for one in value)


def _host_bytes(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return leaf.numel() * leaf.element_size() if leaf.device.type == "cpu" else 0
    return leaf.nbytes if isinstance(leaf, np.ndarray) else 8 * len(leaf)  # pointers


def _repeated(leaf: Any, number: int) -> Any:
    """Return the samples of a tensor, array, list or tuple, from the first again after the last, number in all."""
    if isinstance(leaf, list | tuple):
        column: Any = leaf
        return column * (number // len(column)) + column[: number % len(column)]
    shape = (number, *leaf.shape[1:])
    if isinstance(leaf, torch.Tensor):  # channels_last stays
        made: Any = torch.empty_permuted(shape, leaf.dim_order(), dtype=leaf.dtype, device=leaf.device)
        source: Any = leaf.detach()
    else:
        made, source = np.empty_like(leaf, shape=shape), leaf
    filled = min(number, len(source))
    made[:filled] = source[:filled]
    while filled < number:
        more = min(filled, number - filled)
        made[filled : filled + more] = made[:more]
        filled += more
    return made.requires_grad_() if isinstance(leaf, torch.Tensor) and leaf.requires_grad else made
