"""Inference mode, which marks each tensor that is made in it for good.

What outlives the call that makes it (batch memory, batches made ahead, tables) is made outside of it. A batch is an
inference tensor where torch's loader gives one: where inference mode is on in the thread that takes the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def outside_inference() -> Iterator[None]:
    """Make normal tensors, without gradients where inference mode was on."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def in_callers_mode(batch: Any) -> Any:
    """Return a batch that was made outside of inference mode as the calling thread's mode has it.

    Tensors in tuples, lists and dicts are taken over by new ones on the same memory; all else stays as it is.
    """
    if not torch.is_inference_mode_enabled():
        return batch
    kind = type(batch)
    if kind is torch.Tensor:
        plain = batch.layout is torch.strided and not batch.requires_grad and not batch.is_inference()
        return torch.empty(0, dtype=batch.dtype, device=batch.device).set_(batch) if plain else batch
    if kind in (list, tuple):
        return kind(map(in_callers_mode, batch))
    if isinstance(batch, tuple) and hasattr(batch, "_make"):
        return batch._make(map(in_callers_mode, batch))
    if kind is dict:
        return {key: in_callers_mode(value) for key, value in batch.items()}
    return batch
