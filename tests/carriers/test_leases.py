"""Leases of batch memory: whoever may touch a block holds it. tests/differential has what programs do, in any order."""

from __future__ import annotations

import contextlib
import os
import weakref
from functools import partial
from itertools import chain
from typing import Any

import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.memory.shared_memory import MOST_KEPT, SharedBuffers, State
from tests.data import Made
from tests.differential.values import pinning
from tests.forking import assert_ended_well, assert_in_child, begin_in_child
from tests.same import assert_same


def buffers_for_batches() -> SharedBuffers:
    buffers = SharedBuffers()
    buffers.learn(1 << 16)
    buffers.expect(3)
    return buffers


def test_an_event_that_cannot_happen_is_an_error_and_changes_nothing() -> None:
    lease = buffers_for_batches().reserve()
    assert lease is not None
    with pytest.raises(RuntimeError, match=r"Lease\(number=\d+, block=\d+, state=reserved\): it was not sent"):
        lease.received()
    assert lease.state.name == State.RESERVED.name
    lease.sent()
    with pytest.raises(RuntimeError, match=r"state=sent\): it was sent before"):
        lease.sent()
    assert lease.state is State.SENT


FREE, NOT_FREE = ("", "f", "sr", "srr", "sfr", "fsrr"), ("s", "sf", "sk", "skr", "srk", "srf", "srfr", "skf")


@pytest.mark.parametrize("events", FREE + NOT_FREE)
def test_how_a_lease_ends_says_whether_its_block_is_used_again(events: str) -> None:
    """Events: sent, received, received and kept by the worker, forked."""
    buffers = buffers_for_batches()
    lease: Any = buffers.reserve()
    for event in events:
        {"s": lease.sent, "r": lease.received, "k": partial(lease.received, kept=True), "f": lease.forked}[event]()
    del lease
    assert buffers.counts()[1] == (events in FREE)


def rows(size: int = 800) -> Made:
    return Made(lambda index: (torch.full((3, 40, 40), float(index)), index), size)


def wrong_batches(batches: Any) -> int:
    return sum(not bool((images == labels.view(-1, 1, 1, 1)).all()) for images, labels in batches)


@pytest.mark.parametrize("persistent", [False, True])
def test_pinned_batches_of_workers_are_right(persistent: bool) -> None:
    with pinning():
        options: Any = {"num_workers": 2, "pin_memory": True, "persistent_workers": persistent}
        ours = penstock.DataLoader(rows(), 8, shuffle=True, **options)
        assert wrong_batches(chain(ours, ours)) == 0 and ours._pass_factory.shared.counts()[0] <= 4 + MOST_KEPT
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
            assert wrong_batches(chain(ours, ours)) == 0
            assert [int(images[0, 0, 0, 0]) for images in held] == [376, 384, 392]
            assert all(bool((images[:1] == images[0, 0, 0, 0]).all()) for images in held)

        child = begin_in_child(check)
        os.read(ready, 1)
        held.clear()
        assert wrong_batches(chain(ours, ours)) == 0
        assert_ended_well(child)
        for descriptor in (ready, go):
            os.close(descriptor)


def test_a_forked_child_has_no_block_of_its_parents() -> None:
    ours = penstock.DataLoader(rows(80), 8, num_workers=2)
    list(ours)
    assert ours._pass_factory.shared.counts()[1] > 0
    blocks = list(ours._pass_factory.shared._blocks)

    def check() -> None:
        lease = ours._pass_factory.shared.reserve()
        assert lease is not None and lease._block not in blocks

    assert_in_child(check)


def bytes_of_blocks(ours: Any) -> int:
    return sum(block.nbytes for block in ours._pass_factory.shared._blocks)


def of_sizes(sizes: list[int]) -> Made:
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
    assert most_bytes(ours) <= (4 + MOST_KEPT) * 4 * max(sizes) * 9 // 8


def test_one_large_batch_leaves_no_memory_behind() -> None:
    sizes = [1 << 13] * 30 + [1 << 20] + [1 << 13] * 60
    ours = penstock.DataLoader(of_sizes(sizes), 1, num_workers=2, persistent_workers=True)
    assert most_bytes(ours) > 4 << 20 and bytes_of_blocks(ours) <= (4 + MOST_KEPT) * (4 << 13) * 2


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
    theirs = tud.DataLoader(samples, 4, num_workers=1)
    assert_same(list(penstock.DataLoader(samples, 4, num_workers=1, worker_method=method)), list(theirs))


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
    blocks = weakref.WeakSet(ours._pass_factory.shared._blocks)
    del ours
    assert len(blocks) <= 1 and bool((kept[1] == 1).all())
    del kept
    assert not blocks
