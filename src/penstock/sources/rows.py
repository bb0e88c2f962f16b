"""Rows of tensors as samples; the adapter of torch's TensorDataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import TensorDataset

from penstock import _native
from penstock.recipe.steps import Refusal, Step
from penstock.sources import in_memory
from penstock.sources.premises import all_of, attributes, items, places
from penstock.sources.source import Field, NativeSource, Source


class TensorDatasetSource(Source):
    """The adapter of torch.utils.data.TensorDataset."""

    @classmethod
    def kinds(cls) -> tuple[type, ...]:
        return (TensorDataset,)

    def shapes(self) -> Iterator[int]:
        for tensor in self.dataset.tensors:
            yield from (tensor.ndim, *tensor.shape[1:], tensor.element_size())

    def native(self, raw: bool) -> NativeSource | Refusal:
        return native_rows(self.dataset, self.dataset.tensors)


def native_rows(dataset: object, tensors: Sequence[torch.Tensor]) -> NativeSource | Refusal:
    """Return how the native core copies the rows of tensors, which a dataset has as `tensors`, or why it cannot."""
    fields, aliases, shapes = [], [], []
    for number, tensor in enumerate(tensors):
        why = _not_gatherable(tensor) or (len(tensor) != len(tensors[0]) and "it has another number of rows") or None
        if why is not None:
            what = f"{type(dataset).__name__}, array {number}"
            return Refusal(what, why, "a plain tensor on the CPU whose rows are contiguous")
        spec = _native.Spec(str(tensor.dtype).removeprefix("torch."), list(tensor.shape[1:]))
        aliases.append(_as_bytes(tensor, spec.nbytes))
        fields.append(Field(_native.GatherFiller(aliases[-1], spec), spec))
        shapes.append(f"{spec.dtype}{list(spec.shape)}")
    size = len(tensors[0])
    return NativeSource(
        size=size,
        fields=tuple(fields),
        steps=(Step(f"gather  {size:,} rows of {', '.join(shapes)}", "native"),),
        identify=numbered,
        rescue=lambda position: tensors[0][position],
        apply=lambda position: tensors[0][position],
        held=in_memory.rows(tensors),
        still=all_of(attributes(dataset, "tensors"), items(tensors), places(tensors)),
        unmoved=places(aliases),
    )


def numbered(position: int) -> tuple[str, str | None]:
    """Return (ID, file) of a sample in memory, for messages."""
    return f"number {position}", None


def within_storage(tensor: torch.Tensor) -> bool:
    """Return whether a storage holds all elements of a tensor, as it does unless somebody resized it."""
    if tensor.numel() == 0:
        return True
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return bool(end <= tensor.untyped_storage().nbytes())


def _not_gatherable(tensor: torch.Tensor) -> str | None:
    """Return why the rows of a tensor cannot be copied as bytes, or None."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"{type(tensor).__name__} is a tensor class of its own"
    if tensor.device.type != "cpu":
        return f"it is on {tensor.device}"
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return "it is not a plain dense tensor"
    if tensor.requires_grad:
        return "it requires grad, which its batches would have to carry on"
    if tensor.ndim - 1 > _native.MAX_DIMS or str(tensor.dtype).removeprefix("torch.") not in _native.DTYPES:
        return f"dtype {tensor.dtype} or its {tensor.ndim} dimensions are not native"
    if len(tensor) > 0 and not tensor[0].is_contiguous():
        return "its rows are not contiguous"
    if not within_storage(tensor):
        return "its storage was made smaller"
    return None


def _as_bytes(tensor: torch.Tensor, row_bytes: int) -> torch.Tensor:
    """Return the rows as bytes, uint8 of shape (rows, row_bytes): an alias, which lies where the tensor lies."""
    if len(tensor) == 0 or row_bytes == 0:
        return torch.empty((len(tensor), row_bytes), dtype=torch.uint8, device="cpu")
    flat = torch.as_strided(
        tensor.detach(),
        (len(tensor), row_bytes // tensor.element_size()),
        (tensor.stride(0), 1),
        tensor.storage_offset(),
    )
    return flat.view(torch.uint8)
