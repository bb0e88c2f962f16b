"""What the tests on a device share: the device, time that it loses, memory that it lacks, batches of it on the host."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import TensorDataset

import penstock
from penstock.device.moving import map_leaves, tensors_in
from tests.same import assert_same

DEVICE = torch.device("cuda", 0)

#: Cycles of a GPU for torch.cuda._sleep: ten milliseconds or more, in which some 500 MB could be copied.
PAUSE = 20_000_000


def sleep(cycles: int = PAUSE) -> None:
    """Keep the current stream busy."""
    torch.cuda._sleep(cycles)


def slowly(batch: Any) -> Any:
    """Keep the stream of the copies busy, as a transform."""
    sleep()
    return batch


def random_words(batches: int, words: int = 2 << 20) -> list[torch.Tensor]:
    """Return batches of 8-byte numbers, no two the same, whose sums do not overflow."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(-(1 << 40), 1 << 40, (words,), generator=generator) for _ in range(batches)]


def checksums(batches: Iterable[torch.Tensor]) -> list[int]:
    """Return the sum of each batch's bytes taken as 8-byte numbers, exact on every device."""
    return [int(checksum(batch)) for batch in batches]


def checksum(batch: torch.Tensor) -> torch.Tensor:
    return batch.view(torch.int64).sum()


def on_host(batch: Any) -> Any:
    """Return a batch in host memory. Fails where a tensor of it is not on the device."""
    assert all(tensor.device == DEVICE for tensor in tensors_in(batch))
    return map_leaves(batch, lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf)


def settled_bytes() -> int:
    """Return the bytes that tensors take on the device, once all work there is done."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(DEVICE)


@contextlib.contextmanager
def memory_left(more: int) -> Iterator[None]:
    """Let torch take no more than so many bytes beyond those that tensors keep from being freed."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info(DEVICE)
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(DEVICE) + more) / total, DEVICE)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, DEVICE)
        torch.cuda.empty_cache()


def numbered(samples: int = 40) -> TensorDataset:
    """Return a dataset that the native core reads."""
    return TensorDataset(torch.arange(samples * 96.0).view(samples, 3, 8, 4), torch.arange(samples))


def assert_as_on_host(dataset: Any, device: Any = "cuda", *, passes: int = 2, **options: Any) -> None:
    """Assert that the batches of each pass are, on the device, those that a loader without one gives."""
    plain = penstock.DataLoader(dataset, **options)
    fed = penstock.DataLoader(dataset, device=device, **options)
    for _ in range(passes):
        assert_same([on_host(batch) for batch in fed], list(plain))
    assert len(fed) == len(plain)


def assert_converted(dataset: Any, feed: penstock.Feed, **options: Any) -> None:
    """Assert that images come as bfloat16 with channels last, and labels as they are on the host."""
    wanted, found = (list(penstock.DataLoader(dataset, device=device, **options)) for device in (None, feed))
    for (images, labels), (host_images, host_labels) in zip(found, wanted, strict=True):
        assert (images.device, images.dtype) == (DEVICE, torch.bfloat16)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images.cpu(), host_images.bfloat16()) and torch.equal(labels.cpu(), host_labels)
