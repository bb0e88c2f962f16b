"""Readers bring files ahead of native threads where reads block: the same batches, the same errors."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
import torchvision
from torchvision import transforms as v1

import penstock
import penstock._native as _native
from penstock.errors import WorkerStuck
from penstock.workers import native_crew as crew
from tests.data import Order, tensor_files
from tests.forking import assert_in_child
from tests.reading import assert_read_ahead, readers
from tests.same import assert_same, assert_same_batches, outcomes
from tests.values import resumed, taken
from tests.waiting import wait_until

pytestmark = pytest.mark.native

SIZE = 500


def tensors(root, **options):
    return penstock.TensorFolder(str(root), **options)


def ours_of(dataset, **options):
    dataset = tensors(dataset) if isinstance(dataset, Path) else dataset
    return penstock.DataLoader(dataset, **{"batch_size": 8, "num_workers": 2, **options})


def theirs_of(root, **options):
    return list(tud.DataLoader(tensors(root), **{"batch_size": 8, **options}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tensor_files(tmp_path_factory.mktemp("tensors"), SIZE, (10, 50), "{:03}")


def start_readers(monkeypatch):
    """Have readers at the start of each pass, though nothing blocks."""
    real = _native.Pool

    def started(*arguments):
        made = real(*arguments)
        made.start_readers()
        return made

    monkeypatch.setattr(_native, "Pool", started)


def of_readers(tables):
    """Return the table that readers open files of: several at a time."""
    return max(tables, key=lambda table: table.deepest())


def ahead(loader):
    return loader.stats().reading.ahead + loader.stats().reading.awaited


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_torchs_loader(slow, folder, batch_size, shuffle):
    options = {"batch_size": batch_size, "shuffle": shuffle}
    torch.manual_seed(3)
    theirs, ours = theirs_of(folder, **options), ours_of(folder, **options)
    torch.manual_seed(3)
    assert_same(list(ours), theirs)
    counts, stages = assert_read_ahead(ours), ours.stats().stages
    assert stages["read_ahead"].samples >= counts.ahead + counts.awaited == stages["wait"].samples
    assert "reading  up to " in ours.explain()
    first = batch_size  # of unknown shape: the first batch is filled twice
    assert sorted(of_readers(slow).opened())[: SIZE - first] == [1] * (SIZE - first)


KINDS = pytest.mark.parametrize("kind", [torchvision.datasets.ImageFolder, penstock.ImageFolder])


@KINDS
def test_photos_are_those_of_torchs_loader(photos, kind, monkeypatch):
    start_readers(monkeypatch)
    dataset = kind(str(photos), v1.Compose([v1.Resize((16, 16)), v1.ToTensor()]))
    ours = ours_of(dataset, batch_size=4)
    assert_same_batches(ours, tud.DataLoader(dataset, batch_size=4))
    assert ahead(ours) > 0
    assert sum(ours.stats().read_by_python.values()) == 12


def test_there_are_no_readers_where_nothing_blocks_or_no_worker_is(folder, slow):
    alone = ours_of(tensors(folder, ids=[f"{i:03}" for i in range(120)]), num_workers=0)
    assert len(list(alone)) == len(alone)
    memory = ours_of(penstock.Arrays(np.zeros((5_000, 10), np.float32)))
    assert len(list(memory)) == len(memory)
    assert alone.stats().reading.deepest == memory.stats().reading.deepest == 0
    assert "reading" not in alone.explain() + memory.explain()


def test_readers_count_and_record_each_file(slow, folder):
    spans, ours = [], ours_of(folder)
    stop, began = ours.record_spans(lambda *piece: spans.append(piece)), time.perf_counter()
    list(ours)
    stop()
    read = [piece for piece in spans if piece[0] == "read_ahead"]
    reading, stages = assert_read_ahead(ours), ours.stats().stages
    assert reading.depth == 0
    # A busy machine may wake a thread before it is seen to sleep.
    assert 0.9 * reading.seen <= reading.blocked <= reading.seen and reading.bytes > 0 < reading.most_held
    assert len(read) == stages["read_ahead"].samples == reading.ahead + reading.awaited == stages["wait"].samples > 0
    assert {thread.rpartition("-")[0] for *_, thread in read} == {"penstock-read"}
    assert len({thread for *_, thread in read}) <= reading.deepest
    for _, seconds, samples, ended, _ in read:
        assert samples == 1 and began <= ended - seconds <= ended <= time.perf_counter()


def test_readers_cease_where_reads_cease_to_block(slow, folder):
    ours, depths = ours_of(folder, batch_size=2), []
    for i, _ in enumerate(ours):
        if i == 60:
            assert ours.stats().reading.depth > 0
            slow[-1].set_delay(0)
        depths.append(ours.stats().reading.depth)
    assert depths[-1] in (0, max(depths))  # a busy machine's threads may sleep for another reason
    assert_read_ahead(ours)


@pytest.mark.parametrize("replaced", [False, True])
def test_errors_and_replaced_samples_are_those_without_readers(broken, replaced, request):
    root, ids = broken
    (root / "085.pt").unlink()
    os.mkfifo(root / "085.pt")
    options = {"on_error": penstock.Replace(), "seed": 1} if replaced else {}
    ours, again = (ours_of(tensors(root, ids=ids), batch_size=4, **options) for _ in range(2))
    expected, slow = outcomes(ours), request.getfixturevalue("slow")
    assert_same(outcomes(again), expected)
    assert replaced or sum(isinstance(one, tuple) for one in expected) == 7
    assert of_readers(slow).deepest() > 2


def test_a_file_that_is_replaced_meanwhile_is_one_of_the_two(slow, tmp_path):
    tensor_files(tmp_path, SIZE, (100,), "{:03}")
    ours, seen = ours_of(tmp_path, batch_size=2), set()
    for number, batch in enumerate(ours):
        if number == 30:
            for i in range(SIZE):
                torch.save(torch.full((100,), i + 1000.0), tmp_path / "new")
                os.replace(tmp_path / "new", tmp_path / f"{i:03}.pt")
        for sample, i in zip(batch, (2 * number, 2 * number + 1), strict=True):
            (value,) = sample.unique().abs().tolist()
            assert value in (i, i + 1000)
            seen.add(value == i)
    assert seen == {True, False}
    assert_read_ahead(ours)


def test_bytes_held_ahead_are_bounded_and_a_larger_file_is_read(slow, tmp_path, monkeypatch):
    for i in range(150):
        torch.save(torch.full((100_000 if i % 50 == 49 else 1_000,), float(i)), tmp_path / f"{i:03}.pt")
    monkeypatch.setattr(crew, "READ_AHEAD_BYTES", 60_000)
    ours = ours_of(tmp_path, batch_size=1)
    assert_same(list(ours), theirs_of(tmp_path, batch_size=1))
    assert assert_read_ahead(ours).most_held <= 60_000


def test_a_sampler_of_the_users_is_asked_no_further_ahead(slow, folder):
    sampler = Order(range(SIZE))
    ours = ours_of(folder, batch_size=2, sampler=sampler, prefetch_factor=2)
    assert all(sampler.asked <= 2 * (number + 2 * 2 + 1) for number, _ in enumerate(ours, 1))
    assert_read_ahead(ours)


def test_readers_end_with_a_pass(slow, folder):
    gc.collect()
    before, ours = readers(), ours_of(folder)
    for end in ("dropped", "closed", "dropped again", "gone through"):
        batches = iter(ours)
        taken(batches, 15)
        assert readers() > before, end
        if end == "closed":
            batches.close()
        elif end == "gone through":
            assert len(list(batches)) == len(ours) - 15
        del batches
        gc.collect()
        wait_until(lambda: readers() == before)


def test_a_blocked_read_holds_nobody_up(slow, folder):
    gc.collect()
    before, batches = readers(), iter(ours_of(folder))
    taken(batches, 15)
    ahead = min(3, len(batches._queue))
    table = of_readers(slow)
    table.shut()
    taken(batches, ahead)  # they have been brought; readers go on to those behind what they knew
    wait_until(lambda: table.waiting() > 0)
    closing = threading.Thread(target=batches.close)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    tables = list(slow)
    slow.clear()
    del batches
    gc.collect()
    assert readers() > before and table.waiting() > 0  # at their read still
    for one in tables:
        one.release()
    gc.collect()
    wait_until(lambda: readers() == before)
    again = ours_of(folder)  # takes what was left behind away
    assert len(list(again)) == len(again)


def test_a_shut_store_is_a_timeout_and_goes_on(slow, folder):
    batches = iter(ours_of(folder, timeout=1))
    found = taken(batches, 10)
    slow[-1].shut()
    named = rf"sample '\d{{3}}' \({folder}/\d{{3}}\.pt\) is being read natively since \d+\.\d s"
    with pytest.raises(WorkerStuck, match=named):
        found.extend(batch for batch in iter(lambda: next(batches), None))
    slow[-1].release()
    found.extend(batches)
    assert_same(found, theirs_of(folder))


def test_a_fork_while_readers_work(slow, folder):
    batches = iter(ours_of(folder))
    expected, found = theirs_of(folder), taken(batches, 10)

    def check():
        assert_same(list(ours_of(folder)), expected)
        with pytest.raises(RuntimeError, match="another process"):
            next(batches)

    assert_in_child(check)
    assert_same([*found, *batches], expected)


def test_a_pass_goes_on_behind_its_state(slow, folder):
    options = {"batch_size": 4, "shuffle": True, "seed": 5}
    whole, ours, again = (ours_of(folder, **options) for _ in range(3))
    first, rest = resumed(ours, again, 30)
    assert_same([*first, *rest], list(whole))
    assert_read_ahead(rest)
    assert_read_ahead(ours)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_read_their_parts(slow, folder, rank):
    sampler: Any = tud.DistributedSampler(tensors(folder), 2, rank, shuffle=True, seed=4)
    ours = ours_of(folder, batch_size=3, sampler=sampler)
    assert_same(list(ours), theirs_of(folder, batch_size=3, sampler=sampler))
    assert_read_ahead(ours)
