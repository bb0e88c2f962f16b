"""Leases of batch memory: whoever may touch a block holds it; in every order of events nobody writes under a reader."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
import torch.utils.data as tud
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

import penstock
import penstock._native as _native
from penstock.executors.buffers import Field
from penstock.executors.workers import shared_memory
from penstock.executors.workers.shared_memory import MOST_KEPT, SharedBuffers, State
from penstock.executors.workers.worker_memory import WorkerBuffers
from tests.differential.values import pinning
from tests.forking import assert_ended_well, assert_in_child, begin_in_child
from tests.sample_datasets import Made

IN_FLIGHT = 3
ROWS = 4


def test_an_event_that_cannot_happen_is_an_error_and_changes_nothing() -> None:
    buffers = SharedBuffers()
    buffers.learn(1 << 16)
    buffers.expect(IN_FLIGHT)
    lease = buffers.reserve()
    assert lease is not None
    with pytest.raises(RuntimeError, match=r"Lease\(number=\d+, block=\d+, state=reserved\): it was not sent"):
        lease.received()
    assert lease.state is State.RESERVED
    lease.sent()
    with pytest.raises(RuntimeError, match=r"state=sent\): it was sent before"):
        lease.sent()
    assert lease.state is State.SENT


class Task:
    """A task on its way through a simulated worker."""

    def __init__(self, lease: Any, stamp: int) -> None:
        self.record: Any = lease
        self.name = lease.sent()
        self.block = lease._block
        self.stamp = stamp
        self.is_done = False


class Reader:
    """Somebody who reads what a batch holds; `values` may show memory without holding it, as a forked child does.

    mapping: of a child.
    """

    def __init__(self, values: Any, stamp: int, mapping: Any = None) -> None:
        self.values, self.stamp, self.mapping = values, stamp, mapping


class Life(RuleBasedStateMachine):
    """The life of blocks: the parent, its pin thread, a worker and forked children take their steps in any order."""

    tasks = Bundle("tasks")
    messages = Bundle("messages")
    received = Bundle("received")

    def __init__(self) -> None:
        super().__init__()
        self.buffers = SharedBuffers()
        self.buffers.expect(IN_FLIGHT)
        self.buffers.learn(1 << 14)
        self.stamp = 0
        self.elements = 1 << 12
        self.readers: list[Reader] = []
        self.records: list[Task] = []
        self.strays: list[Task] = []

    @rule(target=tasks)
    def send(self) -> Any:
        lease = self.buffers.reserve() if len(self.records) < IN_FLIGHT else None
        if lease is None:
            return None
        self.stamp += 1
        task = Task(lease, self.stamp)
        self.records.append(task)
        return task

    @rule()
    def reserve_and_be_interrupted(self) -> None:
        self.buffers.reserve()

    @rule(target=messages, task=consumes(tasks), keeps=st.sampled_from([False, False, True]), fails=st.booleans())
    def work(self, task: Task | None, keeps: bool, fails: bool) -> Any:
        if task is None or task in self.strays:
            return None
        task.is_done = True  # with the message a worker has finished with the block
        worker = WorkerBuffers()
        worker.begin(task.name)
        field = Field(_native.Spec("float32", [self.elements // ROWS]))
        rows = worker.rows(ROWS, field).tensor
        rows.fill_(task.stamp)
        if keeps:
            self.readers.append(Reader(rows[1], task.stamp))
        made = [[rows, rows[1:]]]
        del rows
        if fails and not keeps:
            return task, None, True
        packed = worker.packed(made)
        assert worker.kept == (keeps and task.name.nbytes >= 4 * self.elements)
        self.buffers.learn(worker.needed)
        return task, bytes(ForkingPickler.dumps(packed)), worker.kept

    @rule(target=received, message=consumes(messages))
    def receive(self, message: Any) -> Any:
        """The pin thread, or the main thread, makes tensors of a message."""
        if message is None:
            return None
        task, data, kept = message
        batch = None if data is None or task in self.strays else ForkingPickler.loads(data)
        return task, batch, kept

    @rule(arrival=consumes(received), first=st.booleans(), hold=st.sampled_from(["all", "view", "nothing", "copy"]))
    def hand_out(self, arrival: Any, first: bool, hold: str) -> None:
        """The pin thread copies or hands on, before or after the main thread takes note."""
        if arrival is None:
            return
        task, batch, kept = arrival
        if first:
            self.note_arrival(task, kept)
        if batch is not None:
            whole = batch[0]
            assert whole.unique().tolist() == [task.stamp]
            values = {"all": whole, "view": whole[1:, 3:].numpy(), "nothing": None, "copy": whole.clone()}[hold]
            del whole
            if values is not None:
                self.readers.append(Reader(values, task.stamp))
        del batch
        if not first:
            self.note_arrival(task, kept)

    @rule(
        keeps=st.sampled_from([False, False, True]),
        first=st.booleans(),
        hold=st.sampled_from(["all", "view", "nothing"]),
        forks=st.sampled_from([False, False, True]),
    )
    def a_batch_comes(self, keeps: bool, first: bool, hold: str, forks: bool) -> None:
        """All of it in a row, so that blocks are used many times; a child may be forked right behind it."""
        task = self.send()
        if task is not None:
            self.hand_out(self.receive(self.work(task, keeps, False)), first, hold)
        if forks:
            self.fork()
            self.readers = [reader for reader in self.readers if not isinstance(reader.values, torch.Tensor)]

    def note_arrival(self, task: Task, kept: bool) -> None:
        if task in self.records:
            task.record.received(kept=kept)
            task.record = None
            self.records.remove(task)

    @rule(number=st.integers(0, 100))
    def drop(self, number: int) -> None:
        if self.readers:
            self.readers.pop(number % len(self.readers))

    @rule()
    def fork(self) -> None:
        """A child is forked: it reads what its parent holds, and the parent's leases know nothing of when it ends."""
        shared_memory._before_fork()
        held = [(one, one.values) for one in self.readers if isinstance(one.values, torch.Tensor)]
        for one, values in held:
            block = next(
                (b for b in self.buffers._blocks if b.address <= values.data_ptr() < b.address + b.nbytes), None
            )
            if block is not None and values.is_contiguous():
                shown = _native.bytes_of(block, values.data_ptr(), values.nbytes).view("float32")
                self.readers.append(Reader(shown, one.stamp, block))
        shared_memory._after_fork_in_parent()

    @rule()
    def leave_the_pass(self) -> None:
        """The pass ends, or its workers are lost, with tasks under way: a worker may still write."""
        for task in self.records:
            task.record = None
        self.strays += self.records
        self.records.clear()

    @rule()
    def a_stray_worker_writes(self) -> None:
        for task in (task for task in self.strays if not task.is_done):
            _native.bytes_of(task.block, task.block.address, task.block.nbytes)[:] = 0x7F

    @rule(step=st.integers(-3, 3))
    def change_size(self, step: int) -> None:
        self.elements = max(1 << 12, self.elements + step * 4096)

    @invariant()
    def nobody_writes_under_a_reader(self) -> None:
        for reader in self.readers:
            assert (torch.as_tensor(reader.values) == reader.stamp).all(), reader.stamp

    @invariant()
    def a_block_has_one_lease_and_memory_its_bound(self) -> None:
        leased = [lease._block for lease in shared_memory._leases.values() if lease._free is self.buffers._free]
        assert len(set(map(id, leased))) == len(leased)
        assert not set(map(id, leased)) & set(map(id, self.buffers._free))
        _, free = self.buffers.counts()
        assert free <= IN_FLIGHT + 2
        assert len(leased) <= IN_FLIGHT + MOST_KEPT


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


# --- the real thing --------------------------------------------------------------------------------------------------


def rows(size: int = 800) -> Made:
    """Return a dataset whose sample i is a tensor of 3 x 40 x 40 that holds i, and i."""
    return Made(lambda index: (torch.full((3, 40, 40), float(index)), index), size)


def wrong_batches(batches: Any) -> int:
    return sum(not bool((images == labels.view(-1, 1, 1, 1)).all()) for images, labels in batches)


def two_epochs(ours: Any) -> Iterator[Any]:
    yield from ours
    yield from ours


@pytest.mark.parametrize("persistent", [False, True])
def test_pinned_batches_of_workers_are_right(persistent: bool) -> None:
    with pinning():
        ours = penstock.DataLoader(
            rows(), 8, num_workers=2, pin_memory=True, shuffle=True, persistent_workers=persistent
        )
        assert wrong_batches(two_epochs(ours)) == 0
        blocks, _ = ours._executors.shared.counts()
        assert blocks <= 4 + MOST_KEPT
        del ours


@pytest.mark.parametrize("pins", [False, True], ids=["", "pinned"])
def test_a_loader_that_is_used_before_a_fork_serves_parent_and_child(pins: bool) -> None:
    with pinning() if pins else contextlib.nullcontext():
        ours = penstock.DataLoader(rows(400), 8, num_workers=2, pin_memory=pins)
        held = [images for images, _ in ours][-3:]
        ready, go = os.pipe()

        def check() -> None:
            torch.set_num_threads(1)  # the threads of torch's pool are not forked
            os.write(go, b"x")
            assert wrong_batches(two_epochs(ours)) == 0
            assert [int(images[0, 0, 0, 0]) for images in held] == [376, 384, 392]
            assert all(bool((images[:1] == images[0, 0, 0, 0]).all()) for images in held)

        child = begin_in_child(check)
        os.read(ready, 1)
        held.clear()
        assert wrong_batches(two_epochs(ours)) == 0
        assert_ended_well(child)
        for descriptor in (ready, go):
            os.close(descriptor)


def test_a_forked_child_has_no_block_of_its_parents() -> None:
    ours = penstock.DataLoader(rows(80), 8, num_workers=2)
    list(ours)
    assert ours._executors.shared.counts()[1] > 0
    blocks = list(ours._executors.shared._blocks)

    def check() -> None:
        lease = ours._executors.shared.reserve()
        assert lease is not None and lease._block not in blocks

    assert_in_child(check)


def bytes_of_blocks(ours: Any) -> int:
    return sum(block.nbytes for block in ours._executors.shared._blocks)


def of_sizes(sizes: list[int]) -> Made:
    """Return a dataset whose sample i has sizes[i] elements."""
    return Made(lambda index: torch.full((sizes[index],), float(index)), len(sizes))


def most_bytes(ours: Any) -> int:
    most = 0
    for number, batch in enumerate(ours):
        assert batch.shape[0] == 1 and bool((batch == number).all())
        most = max(most, bytes_of_blocks(ours))
        del batch
    return most


def test_sizes_that_grow_keep_to_the_bound() -> None:
    sizes = [1 << 14] * 4 + [(1 << 14) + 700 * step for step in range(60)]
    ours = penstock.DataLoader(of_sizes(sizes), 1, num_workers=2)
    largest = 4 * max(sizes)
    assert most_bytes(ours) <= (4 + MOST_KEPT) * largest * 9 // 8


def test_one_large_batch_leaves_no_memory_behind() -> None:
    sizes = [1 << 13] * 30 + [1 << 20] + [1 << 13] * 60
    ours = penstock.DataLoader(of_sizes(sizes), 1, num_workers=2, persistent_workers=True)
    assert most_bytes(ours) > 4 << 20
    assert bytes_of_blocks(ours) <= (4 + MOST_KEPT) * (4 << 13) * 2


def lazily(samples: list[Any]) -> Any:
    numbers = torch.tensor([complex(index, 1) for _, index in samples])
    return {"conjugated": numbers.conj(), "negated": numbers.conj().imag, "large": numbers.repeat(2000).conj()}


def test_tensors_that_are_conjugated_or_negated_lazily() -> None:
    """torch's own workers send such tensors without the note of how to read them: its caller's thread is the oracle."""
    theirs = tud.DataLoader(rows(24), 8, collate_fn=lazily)
    ours = penstock.DataLoader(rows(24), 8, num_workers=1, collate_fn=lazily)
    for batch, expected in zip(ours, theirs, strict=True):
        for name, tensor in expected.items():
            assert torch.equal(batch[name], tensor)


@pytest.mark.parametrize("method", ["process", "thread", "auto"])
@pytest.mark.parametrize("shape", [(1, 3, 40, 40), (2, 3, 4, 5)])
def test_samples_with_the_channels_last_make_contiguous_batches_as_torchs_workers_do(shape: Any, method: Any) -> None:
    samples = Made(lambda i: torch.full(shape, float(i)).to(memory_format=torch.channels_last), 8)
    theirs = next(iter(tud.DataLoader(samples, 4, num_workers=1)))
    ours = next(iter(penstock.DataLoader(samples, 4, num_workers=1, worker_method=method)))
    assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


def twice(samples: list[Any]) -> Any:
    large = torch.stack([image for image, _ in samples])
    small = torch.ones(3)
    batch = [large, large, small, small, {"large": large}]
    return [*batch, batch, batch, batch[-1]]


def test_what_comes_twice_arrives_as_one() -> None:
    for made in (penstock.DataLoader, tud.DataLoader):
        for batch in two_epochs(made(rows(80), 8, num_workers=1, collate_fn=twice)):
            assert batch[0] is batch[1] is batch[4]["large"] and batch[2] is batch[3]
            assert batch[5] is batch[6] and batch[7] is batch[4] is batch[5][4]


def in_itself(samples: list[Any]) -> Any:
    batch: list[Any] = [torch.stack([image for image, _ in samples])]
    batch.append(batch)
    return batch


def test_a_batch_that_holds_itself() -> None:
    for batch in penstock.DataLoader(rows(24), 8, num_workers=1, collate_fn=in_itself):
        assert batch[1] is batch and bool((batch[0][:, 0, 0, 0] == batch[0][:, -1, -1, -1]).all())


def test_the_end_of_a_loader_ends_its_blocks() -> None:
    ours = penstock.DataLoader(rows(80), 8, num_workers=2)
    kept, *others = [images for images, _ in ours]
    others.clear()
    blocks = [weakref.ref(block) for block in ours._executors.shared._blocks]
    del ours
    assert sum(block() is not None for block in blocks) <= 1
    assert bool((kept[1] == 1).all())
    del kept
    assert all(block() is None for block in blocks)
