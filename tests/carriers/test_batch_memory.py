"""What a program may do with a batch's memory, which is recycled: all that it may with a batch of torch's loader."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
import torch.utils.dlpack
from torch.utils.data import TensorDataset

import penstock
from tests import python_processes
from tests.data import Made

SAMPLES = 64
BATCH = 4
WIDTH = 4096  # a batch is large enough for memory that is used again


def row(index: int) -> Any:
    return torch.full((WIDTH,), float(index)), np.full(WIDTH, index, np.float32)


def arrays() -> TensorDataset:
    values = torch.arange(float(SAMPLES))[:, None].repeat(1, WIDTH)
    return TensorDataset(values, values.clone())


LOADERS: dict[str, Callable[[], Any]] = {
    "native": lambda: penstock.DataLoader(arrays(), BATCH, num_workers=2),
    "native, here": lambda: penstock.DataLoader(arrays(), BATCH, num_workers=0),
    "threads": lambda: penstock.DataLoader(Made(row, SAMPLES), BATCH, num_workers=2, worker_method="thread"),
    "threads, here": lambda: penstock.DataLoader(Made(row, SAMPLES), BATCH, num_workers=0, worker_method="thread"),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "caller": lambda: penstock.DataLoader(Made(row, SAMPLES), BATCH, num_workers=0),
    "native, 1": lambda: penstock.DataLoader(arrays(), BATCH, num_workers=1),
    "processes": lambda: penstock.DataLoader(Made(row, SAMPLES), BATCH, num_workers=2),
}


@pytest.fixture(params=LOADERS.values(), ids=list(LOADERS))
def loader(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture(params=(LOADERS | OTHERS).values(), ids=[*LOADERS, *OTHERS])
def any_loader(request: pytest.FixtureRequest) -> Any:
    """Return a loader whose batches lie in the memory of this process, or in that of worker processes too."""
    return request.param()


def batch_of(number: int) -> torch.Tensor:
    return torch.arange(number * BATCH, number * BATCH + BATCH, dtype=torch.float32)[:, None].repeat(1, WIDTH)


def is_right(batch: Any, number: int) -> bool:
    return all(torch.equal(torch.as_tensor(field), batch_of(number)) for field in batch)


def are_right(batches: Any, first: int = 0) -> bool:
    return all(is_right(batch, number) for number, batch in enumerate(batches, first))


def differentiate(tensor: torch.Tensor) -> None:
    tensor.requires_grad_()
    (tensor * tensor).sum().backward()
    assert tensor.grad is not None


CHANGES: dict[str, Callable[[Any], Any]] = {
    "shrink": lambda tensor: tensor.resize_(2),
    "exchange": lambda tensor: tensor.set_(torch.full((3,), -1.0)),
    "exchange the data": lambda tensor: setattr(tensor, "data", torch.full((3,), -1.0)),
    "share": torch.Tensor.share_memory_,
    "differentiate": differentiate,
    "in inference mode": torch.inference_mode()(lambda tensor: tensor.fill_(-1)),
    "overwrite": lambda tensor: tensor.fill_(-1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_batch_may_be_changed_and_the_others_stay_right(loader: Any, change: str) -> None:
    for _ in range(3):
        for number, batch in enumerate(loader):
            assert is_right(batch, number)
            for field in batch:
                CHANGES[change](field)
            del field


def on_storage(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0).set_(storage, 0, (BATCH * WIDTH,), (1,))


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda tensor: tensor,
    "view": lambda tensor: tensor.view(2, -1),
    "row": lambda tensor: tensor[:],
    "part": lambda tensor: tensor[3:4, 5:6],
    "bytes of a part": lambda tensor: tensor.view(torch.int32)[3:4].view(torch.float32),
    "detached": torch.Tensor.detach,
    "data": lambda tensor: tensor.data,
    "numpy": torch.Tensor.numpy,
    "part of numpy's": lambda tensor: tensor.numpy()[3:4, 5:6],
    "asarray": np.asarray,
    "memoryview": lambda tensor: memoryview(tensor.numpy()),  # type: ignore[arg-type]
    "part of a memoryview": lambda tensor: memoryview(tensor.numpy().reshape(-1))[WIDTH:],  # type: ignore[arg-type]
    "dlpack": torch.Tensor.__dlpack__,
    "part by dlpack": lambda tensor: torch.utils.dlpack.from_dlpack(tensor)[3:4],
    "storage": torch.Tensor.untyped_storage,
    "typed storage": torch.Tensor._typed_storage,
    "new tensor on the storage": lambda tensor: on_storage(tensor.untyped_storage()),
    "graph": lambda tensor: (tensor * torch.ones(1, requires_grad=True)).sum(),
    "parameter": torch.nn.Parameter,
    "subclass": lambda tensor: tensor.as_subclass(torch.nn.Buffer),
}


def _read(held: Any) -> list[float]:
    if isinstance(held, torch.UntypedStorage):
        held = on_storage(held)
    elif isinstance(held, torch.storage.TypedStorage):
        held = on_storage(held._untyped_storage)
    elif isinstance(held, torch.Tensor) and held.grad_fn is not None:
        saved: Any = held.grad_fn.next_functions[0][0]
        return [float(value) for value in saved._saved_self.flatten().tolist()]
    elif type(held).__name__ == "PyCapsule":
        held = torch.utils.dlpack.from_dlpack(held)
    return [float(value) for value in np.asarray(held.detach() if isinstance(held, torch.Tensor) else held).flatten()]


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=list(HOLDERS))
def test_what_anybody_holds_of_a_batch_is_never_overwritten(any_loader: Any, hold: Callable[[Any], Any]) -> None:
    held: list[Any] = []
    for _ in range(2):
        batches = iter(any_loader)
        for batch in batches:
            held.append(hold(batch[0]))
            del batch
    assert any_loader.stats().buffers_lent > 0 or any_loader.num_workers == 0 or "processes" in any_loader.explain()
    assert [_read(one) for one in held] == [_read(hold(batch_of(number))) for number in range(SAMPLES // BATCH)] * 2
    held.clear()
    gc.collect()
    assert any_loader.stats().buffers_lent == 0


def test_memory_is_used_again(loader: Any) -> None:
    assert all(are_right(loader) for _ in range(20))
    stats = loader.stats()
    assert (stats.batches, stats.samples, stats.buffers_lent) == (20 * SAMPLES // BATCH, 20 * SAMPLES, 0)
    assert stats.buffers_created <= 40


def test_a_batch_in_another_thread_is_not_overwritten(loader: Any) -> None:
    box: SimpleQueue[Any] = SimpleQueue()
    right: list[bool] = []
    thread = threading.Thread(target=lambda: right.extend(is_right(box.get(), n) for n in range(SAMPLES // BATCH)))
    thread.start()
    for batch in loader:
        box.put(batch)
        del batch
    thread.join()
    assert right == [True] * (SAMPLES // BATCH)


def _receive(queue: Any, answer: Any) -> None:
    held = [queue.get() for _ in range(SAMPLES // BATCH)]
    for _ in range(2):
        answer.put([is_right(batch, number) for number, batch in enumerate(held)])
        queue.get()


@pytest.mark.timeout(120)
def test_batches_sent_to_another_process_stay_what_they_are(any_loader: Any) -> None:
    context = torch.multiprocessing.get_context("fork")
    queue, answer = context.Queue(), context.Queue()
    process = context.Process(target=_receive, args=(queue, answer))
    process.start()
    kept, in_processes = [], "processes" in any_loader.explain()
    for batch in any_loader:
        queue.put(batch)  # which moves it to shared memory
        kept.append(batch)
    assert are_right(kept) and all(answer.get())
    kept.clear()
    del batch
    for _ in range(2):
        for number, batch in enumerate(any_loader):
            assert is_right(batch, number)
            assert in_processes or not any(field.is_shared() for field in batch)
    for _ in range(2):
        queue.put(None)
    assert all(answer.get()), "the other process holds them still"
    process.join()


@pytest.mark.parametrize("make", LOADERS.values())
def test_a_batch_outlives_its_loader(make: Any) -> None:
    loader = make()
    batch, gone = next(iter(loader)), weakref.ref(loader)
    del loader
    assert gone() is None and is_right(batch, 0)


def test_a_pickled_batch_is_no_larger_than_torchs(loader: Any) -> None:
    batch, *_ = loader
    theirs, *_ = torch.utils.data.DataLoader(loader.dataset, BATCH)
    assert len(pickle.dumps(batch)) < len(pickle.dumps(theirs)) + 64  # of its memo
    for ours, their in zip(batch, theirs, strict=True):
        assert ours.untyped_storage().nbytes() == their.untyped_storage().nbytes() and not ours._is_view()


@pytest.mark.parametrize("listed", [False, True])
def test_labels_that_a_state_is_hashed_of_may_be_resized(listed: bool) -> None:
    targets: Any = [torch.ones(1) for _ in range(SAMPLES)] if listed else torch.arange(SAMPLES)
    dataset: Any = Made(lambda index: (torch.full((3,), float(index)), targets[index]), SAMPLES)
    dataset.targets = targets
    loader = penstock.DataLoader(dataset, BATCH)
    next(iter(loader))
    loader.state_dict()
    for tensor in targets if listed else [targets]:
        tensor.resize_(5 * SAMPLES)


def test_the_samples_of_a_worker_lie_in_the_pages_of_the_batch_before() -> None:
    script = """
import multiprocessing, resource, numpy, torch, penstock
multiprocessing.set_start_method("fork")
class Sounds(torch.utils.data.Dataset):
    def __len__(self): return 4 * 80
    def __getitem__(self, index):
        return numpy.full(1 << 18, index, numpy.float32), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
loader = penstock.DataLoader(Sounds(), 80, num_workers=1, prefetch_factor=1)
print(*[int(pages[-1] - pages[0]) for _, pages in loader])
"""
    done = python_processes.run(script)
    assert int(done.stdout.split()[-1]) < 80 * 25, done  # a tenth of a sample's


@pytest.mark.skipif(
    "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(), reason="the system has no huge pages"
)
def test_the_memory_of_batches_is_not_copied_where_a_forked_child_lives() -> None:
    script = """
import os, resource, sys, torch, penstock
def faults(loader):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in loader: pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
loader = penstock.DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 1 << 20)), 16, num_workers=2)
faults(loader), faults(loader)
reads, writes = os.pipe()
if not os.fork():
    os.close(writes)
    os.read(reads, 1)
    os._exit(0)
print(loader.stats().buffers_created, faults(loader))
"""
    blocks, faults = map(int, python_processes.run(script).stdout.split())
    assert blocks >= 2
    assert faults < 8_000  # 16,384 are of one block whose pages are copied one by one
