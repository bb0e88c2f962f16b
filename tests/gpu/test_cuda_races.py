"""Races between copies and kernels, made wide: a naive prefetcher corrupts batches, Penstock does not.

Each batch is read late, behind a pause on the stream that reads it, and copied late, behind a pause on the stream of
the copies. A checksum taken on the device is compared with that of the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader, TensorDataset

import penstock
from tests.gpu.on_device import DEVICE, PAUSE, checksum, checksums, random_words, sleep, slowly
from tests.waiting import run_in_threads

BATCHES = 12


def consumed(batches: Iterable[torch.Tensor], pause: int) -> list[int]:
    """Return each batch's checksum, read after a pause; every batch is let go of before it is read."""
    sums = []
    for batch in batches:
        sleep(pause)
        sums.append(checksum(batch))
        del batch
    torch.cuda.synchronize()
    return [int(one) for one in sums]


def naive(pinned: list[torch.Tensor], lacks: str) -> Iterator[torch.Tensor]:
    """Yield batches on the device, each copied while nobody waits for it, or into memory that is still read."""
    side, current = torch.cuda.Stream(DEVICE), torch.cuda.current_stream(DEVICE)
    host = torch.empty_like(pinned[0], pin_memory=True) if lacks == "host buffers" else None
    device = torch.empty_like(pinned[0], device=DEVICE) if lacks == "device buffers" else None
    torch.cuda.synchronize()
    for batch in pinned:
        source = batch if host is None else host.copy_(batch)
        with torch.cuda.stream(side):
            if lacks in ("a wait", "host buffers"):
                sleep()
            copied = source.to(DEVICE, non_blocking=True) if device is None else device.copy_(source, non_blocking=True)
        if lacks != "a wait":
            current.wait_stream(side)
        if lacks == "host buffers":
            copied.record_stream(current)
        yield copied
        del copied


#: What each lacks, and the pause of the reader in which it is seen. Without a wait nobody waits for the copy; with one
#: host buffer the host overwrites what is still to be copied, with one device buffer the copy what is still read; and
#: without record_stream the allocator gives memory away when the tensor is dropped, not when it was read.
NAIVE = [("a wait", 0), ("host buffers", 0), ("device buffers", PAUSE), ("record_stream", PAUSE)]


@pytest.mark.parametrize(("lacks", "pause"), NAIVE)
def test_a_naive_prefetcher_corrupts_batches_and_penstock_does_not(lacks: str, pause: int) -> None:
    source = [batch.pin_memory() for batch in random_words(BATCHES)]
    wanted = checksums(source)
    assert len(set(wanted)) == BATCHES
    if all(consumed(naive(source, lacks), pause) == wanted for _ in range(5)):
        pytest.fail(f"without {lacks} nothing was corrupted, so that this test would not see a race")
    for transform in (None, slowly):
        assert consumed(penstock.prefetch(source, DEVICE, transform=transform), pause) == wanted


@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("transform", [None, slowly], ids=["", "slow copies"])
def test_batches_that_are_let_go_of_at_once(depth: int, pinned: bool, transform: Any) -> None:
    source = random_words(BATCHES)
    wanted = checksums(source)
    given = [batch.pin_memory() for batch in source] if pinned else source
    for pause in (0, PAUSE // 4, PAUSE):
        assert consumed(penstock.prefetch(given, DEVICE, depth=depth, transform=transform), pause) == wanted


def test_host_memory_is_not_used_again_before_it_was_copied() -> None:
    """Each batch is made when it is asked for, in memory that the one before it has given back."""
    wanted = checksums(random_words(BATCHES))

    def source() -> Iterator[torch.Tensor]:
        for batch in random_words(BATCHES):
            pinned = batch.pin_memory()
            del batch
            yield pinned
            del pinned

    assert consumed(penstock.prefetch(source(), DEVICE, transform=slowly), 0) == wanted


@pytest.mark.parametrize("depth", [1, 3])
def test_batches_on_several_streams_let_go_of_in_any_order(depth: int) -> None:
    source = random_words(24)
    wanted = checksums(source)
    streams = [torch.cuda.current_stream(DEVICE), torch.cuda.Stream(DEVICE), torch.cuda.Stream(DEVICE)]
    weights = torch.ones(2048, 2048, device=DEVICE)
    torch.cuda.synchronize()
    feeding = iter(penstock.prefetch(source, DEVICE, depth=depth))
    sums: list[torch.Tensor] = []
    held: dict[int, torch.Tensor] = {}
    for number in range(len(source)):
        with torch.cuda.stream(streams[number % 3]):
            batch = next(feeding)
            sleep(PAUSE // (1 + number % 4))
            torch.mm(weights, weights)
            sums.append(checksum(batch))
        held[number] = batch
        del batch
        if len(held) > 4:  # the oldest, the newest, one between
            del held[sorted(held)[(0, -1, len(held) // 2)[number % 3]]]
    torch.cuda.synchronize()
    assert [int(one) for one in sums] == wanted and len(held) == 4
    for number, batch in held.items():
        assert int(checksum(batch)) == wanted[number]
    assert list(feeding) == []


def test_kept_batches_are_never_overwritten() -> None:
    source = random_words(32)
    kept = list(penstock.prefetch(source, DEVICE, depth=3, transform=slowly))
    torch.cuda.synchronize()
    assert checksums(kept) == checksums(source)


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("kind", ["native", "torch"])
def test_loaders(kind: str, workers: int) -> None:
    dataset = TensorDataset(torch.stack(random_words(64, 256 << 10)))
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": workers}
    loader: Any
    if kind == "native":
        host = penstock.DataLoader(dataset, seed=1, **options)
        loader = penstock.DataLoader(dataset, seed=1, device=penstock.Feed(DEVICE, transform=slowly), **options)
    else:
        one, two = (torch.Generator().manual_seed(1) for _ in range(2))
        host = penstock.DataLoader(dataset, generator=one, **options)
        around: Any = TorchDataLoader(dataset, generator=two, pin_memory=workers == 1, **options)
        loader = penstock.prefetch(around, DEVICE, transform=slowly)
    for _ in range(3):
        wanted = checksums(x for (x,) in host)
        assert consumed((x for (x,) in loader), PAUSE // 2) == wanted


def sums_of_lanes(feedings: list[Any]) -> list[list[int]]:
    """Return the checksums of several passes that are gone through at once."""
    sums: list[list[torch.Tensor]] = [[] for _ in feedings]
    for batches in zip(*feedings, strict=True):
        for lane, batch in enumerate(batches):
            with torch.cuda.device(batch.device):
                sleep(PAUSE // 2)
                sums[lane].append(checksum(batch))
    return [[int(one) for one in lane] for lane in sums]


def test_several_loaders_at_once() -> None:
    sources = [random_words(BATCHES, words) for words in (1 << 20, 2 << 20, 3 << 19, 1 << 10)]
    feedings = [penstock.prefetch(one, DEVICE, depth=depth, transform=slowly) for depth, one in enumerate(sources, 1)]
    assert sums_of_lanes(feedings) == [checksums(source) for source in sources]


def test_several_threads_take_from_one_pass() -> None:
    source = random_words(32)
    feeding = iter(penstock.prefetch(source, DEVICE, transform=slowly))
    sums: list[int] = []

    def take(thread: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream(DEVICE)):
            sums.extend(consumed(feeding, PAUSE // 2))

    run_in_threads(3, take)
    assert sorted(sums) == sorted(checksums(source))


def test_several_devices_at_once() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device only")
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    source = random_words(BATCHES)
    feedings = [penstock.prefetch(source, device, transform=slowly) for device in devices]
    assert [next(iter(feeding)).device for feeding in feedings] == devices
    assert sums_of_lanes(feedings) == [checksums(source)] * len(devices)
