"""Passes that end early, fail, or do not fit: what is left, and what comes after."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import penstock
from tests.gpu.on_device import DEVICE, memory_left, numbered, on_host, settled_bytes, slowly
from tests.same import assert_same, outcomes
from tests.waiting import wait_until

MB = 1 << 20


def breaks(loader: Any) -> None:
    next(batch for number, batch in enumerate(loader) if number == 1)


def raises(loader: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        sum(1 // (1 - number) for number, _ in enumerate(loader))


def drops(loader: Any) -> None:
    next(iter(loader))


def closes(loader: Any) -> None:
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    assert list(iterator) == []


def exhausts(loader: Any) -> None:
    assert len(list(loader)) == 20


def reads(loader: Any) -> list[Any]:
    return [on_host(batch) for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("leave", [breaks, raises, drops, closes, exhausts, iter], ids=lambda one: one.__name__)
@pytest.mark.parametrize("around", ["loader", "prefetch"])
def test_nothing_is_left(leave: Callable[[Any], None], workers: int, around: str) -> None:
    dataset = numbered(100)
    host = penstock.DataLoader(dataset, batch_size=5, num_workers=workers)
    loader: Any = penstock.prefetch(host, "cuda")
    if around == "loader":
        loader = penstock.DataLoader(dataset, batch_size=5, num_workers=workers, device="cuda")
    wanted = list(host)
    assert_same(reads(loader), wanted)
    before, running = settled_bytes(), set(threading.enumerate())
    for _ in range(5):
        leave(loader)
    assert settled_bytes() == before
    wait_until(lambda: set(threading.enumerate()) <= running)
    assert_same(reads(loader), wanted)


def test_the_memory_of_batches_on_their_way_comes_back() -> None:
    before = settled_bytes()
    for _ in range(3):
        iterator = iter(penstock.prefetch([torch.zeros(16 * MB, dtype=torch.uint8)] * 10, "cuda", depth=4))
        kept = next(iterator)
        wait_until(lambda: torch.cuda.memory_allocated(DEVICE) >= before + 5 * 16 * MB)  # it and four more
        assert torch.cuda.memory_allocated(DEVICE) == before + 5 * 16 * MB
        del iterator
        gc.collect()
        wait_until(lambda: torch.cuda.memory_allocated(DEVICE) == before + 16 * MB)
        assert int(kept.sum()) == 0
        del kept
        assert settled_bytes() == before


def test_errors_are_raised_at_their_batch() -> None:
    def transform(batch: torch.Tensor) -> torch.Tensor:
        if int(batch[0]) == 3:  # which waits for the copy, on the stream of the copies
            raise ValueError("three")
        return batch * 2

    feeding = penstock.prefetch([torch.tensor([number]) for number in range(6)], "cuda", transform=transform)
    found = [one[1] if isinstance(one, tuple) else int(one) for one in outcomes(feeding)]
    assert found == [0, 2, 4, "three", 8, 10]


def test_a_device_that_is_not_there() -> None:
    count = torch.cuda.device_count()
    device = f"cuda:{count}"
    for loader in (
        penstock.DataLoader(numbered(), batch_size=4, device=device),
        penstock.prefetch([torch.zeros(1)], device),
    ):
        with pytest.raises(penstock.InvalidOption, match=rf"{device}.*sees {count} of them"):
            iter(loader)
    with pytest.raises(penstock.InvalidOption):
        penstock.DataLoader(numbered(), device="gpu")


def test_cuda_is_the_current_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    with torch.cuda.device(last):
        assert penstock.Feed("cuda").resolve() == last
    monkeypatch.setenv("LOCAL_RANK", str(last.index))
    assert penstock.Feed("cuda").resolve() == last


@pytest.mark.parametrize("depth", [1, 3])
def test_a_batch_that_does_not_fit_fails_alone(depth: int) -> None:
    sizes = [1, 2, 300, 3, 4]
    source = [torch.full((size * MB,), size % 251, dtype=torch.uint8) for size in sizes]
    found: list[Any] = []
    with memory_left(200 * MB):
        feeding = iter(penstock.prefetch(source, "cuda", depth=depth))
        for _ in sizes:
            try:
                batch = next(feeding)
                found.append((len(batch) // MB, int(batch[-1])))
                del batch
            except torch.OutOfMemoryError as error:
                assert any("while batch 2 of this pass" in note for note in error.__notes__)
                found.append("full")
        assert next(feeding, None) is None
        del feeding
    assert found == [(1, 1), (2, 2), "full", (3, 3), (4, 4)]
    assert [len(batch) for batch in penstock.prefetch(source, "cuda")] == [size * MB for size in sizes]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_without_memory_can_be_used_again(workers: int) -> None:
    dataset = torch.utils.data.TensorDataset(torch.zeros(8, 32 * MB, dtype=torch.uint8))
    loader = penstock.DataLoader(dataset, batch_size=4, num_workers=workers, device="cuda")
    with memory_left(100 * MB):
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                next(iterator)
        assert list(iterator) == []
        del iterator
    assert [x.shape[0] for (x,) in loader] == [4, 4]


#: What a sample takes in the steps below; beside it, two MB hold the batch itself.
SAMPLE = 32 * MB


def takes_memory(batch: torch.Tensor) -> torch.Tensor:
    scratch = torch.empty(len(batch) * SAMPLE, dtype=torch.uint8, device=DEVICE)
    scratch[:: 1 << 16] = 1
    return batch.clone().cpu()


def test_find_batch_size() -> None:
    example = torch.zeros(1, 4, device=DEVICE)
    with memory_left(8 * SAMPLE + 12 * MB):
        size = penstock.find_batch_size(takes_memory, example)
        assert 7 <= size <= 8
        before = settled_bytes()
        torch.cuda.empty_cache()
        takes_memory(torch.zeros(size, 4, device=DEVICE))
        torch.cuda.empty_cache()
        with pytest.raises(torch.OutOfMemoryError):
            takes_memory(torch.zeros(size + 1, 4, device=DEVICE))
        assert penstock.find_batch_size(takes_memory, example, start=16) == size and settled_bytes() == before


def test_run_within_memory() -> None:
    sizes: list[int] = []

    def step(batch: torch.Tensor) -> torch.Tensor:
        sizes.append(len(batch))
        return takes_memory(batch)

    batch = torch.arange(80.0, device=DEVICE).view(20, 4)
    with memory_left(8 * SAMPLE + 12 * MB):
        parts = penstock.run_within_memory(step, batch)
        assert torch.equal(torch.cat(parts), batch.cpu())
        assert sizes[0] == 20 and all(len(part) <= 8 for part in parts)
        worked = len(parts[0])
        sizes.clear()
        assert torch.equal(torch.cat(penstock.run_within_memory(step, batch)), batch.cpu())
        assert max(sizes) == worked  # remembered: nothing fails first


def test_gradients_within_memory() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 4).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(20, 16, device=DEVICE), torch.randint(0, 4, (20,), device=DEVICE)

    def step(batch: Any, share: float) -> float:
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(model(inputs), labels) * share
        loss.backward()
        takes_memory(inputs)
        return loss.item()

    def gradient() -> torch.Tensor:
        assert model.weight.grad is not None
        return model.weight.grad.clone()

    torch.nn.functional.cross_entropy(model(x), y).backward()
    wanted = gradient()
    optimizer.zero_grad()
    with memory_left(8 * SAMPLE + 12 * MB):
        losses = penstock.run_within_memory(step, (x, y), undo=optimizer.zero_grad)
    assert len(losses) > 1
    torch.testing.assert_close(gradient(), wanted, rtol=1e-4, atol=1e-5)


def test_memory_ends_while_copies_are_on_their_way() -> None:
    source = (torch.full((20 * MB,), number, dtype=torch.uint8) for number in range(30))
    kept: list[torch.Tensor] = []
    failed = 0
    with memory_left(101 * MB):
        feeding = iter(penstock.prefetch(source, "cuda", transform=slowly))
        for _ in range(30):
            try:
                kept.append(next(feeding))
            except torch.OutOfMemoryError:
                failed += 1
        assert next(feeding, None) is None
    assert failed == 25 and [int(batch[0]) for batch in kept] == [0, 1, 2, 3, 4]
