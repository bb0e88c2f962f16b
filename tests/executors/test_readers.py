"""Readers bring files ahead of the workers where reads block: same batches, same errors, and nothing left behind."""

from __future__ import annotations

import gc
import os
import threading
import time

import numpy as np
import pytest
import torch
import torch.utils.data as tud
import torchvision
from torchvision import transforms as v1

import penstock
import penstock._native as _native
from penstock.errors import WorkerStuck
from penstock.executors.workers import native as crew
from tests.forking import assert_in_child
from tests.reading import assert_read_ahead, readers, save_tensors
from tests.same import assert_same, assert_same_batches, outcomes
from tests.waiting import wait_until

pytestmark = pytest.mark.native

SIZE = 900


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tensors(tmp_path_factory.mktemp("tensors"), SIZE)


@pytest.fixture
def started(monkeypatch):
    """Have readers at the start of each pass, though nothing blocks."""
    real = _native.Pool

    def pool(*arguments):
        made = real(*arguments)
        made.start_readers()
        return made

    monkeypatch.setattr(_native, "Pool", pool)


def tensors(folder, **options):
    return penstock.TensorFolder(str(folder), **options)


def loader(folder, **options):
    return penstock.DataLoader(tensors(folder), **{"batch_size": 8, "num_workers": 2, **options})


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_torchs_loader(slow, folder, batch_size, shuffle):
    options = {"batch_size": batch_size, "shuffle": shuffle}
    torch.manual_seed(3)
    theirs = list(tud.DataLoader(tensors(folder), **options))
    torch.manual_seed(3)
    ours = loader(folder, **options)
    assert_same(list(ours), theirs)
    assert_read_ahead(ours)
    first = batch_size  # of unknown shape: the first batch is filled twice
    assert sorted(slow[-1].opened())[: SIZE - first] == [1] * (SIZE - first)


@pytest.mark.parametrize("kind", [torchvision.datasets.ImageFolder, penstock.ImageFolder])
def test_photos_are_those_of_torchs_loader(started, photos, kind):
    dataset = kind(str(photos), v1.Compose([v1.Resize((16, 16)), v1.ToTensor()]))
    ours = penstock.DataLoader(dataset, batch_size=4, num_workers=2)
    assert_same_batches(ours, tud.DataLoader(dataset, batch_size=4))
    reading = ours.stats().reading
    assert reading.ahead + reading.awaited > 0, reading
    assert sum(ours.stats().read_by_python.values()) == 12


def test_there_are_no_readers_where_nothing_blocks_or_no_worker_is(folder, slow):
    alone = loader(folder, num_workers=0)
    assert len(list(alone)) == len(alone)
    rows = penstock.Arrays(np.zeros((5_000, 10), np.float32))
    memory = penstock.DataLoader(rows, batch_size=8, num_workers=2)
    assert len(list(memory)) == len(memory)
    assert alone.stats().reading.deepest == memory.stats().reading.deepest == 0
    assert "reading" not in alone.explain() + memory.explain()


def test_stats_and_explain_tell_what_readers_brought(slow, folder):
    ours = loader(folder)
    list(ours)
    reading = assert_read_ahead(ours)
    assert reading.depth == 0
    assert (
        0.9 * reading.seen <= reading.blocked <= reading.seen
    )  # a busy machine may wake a thread before it is seen to sleep
    assert reading.bytes > 0 < reading.most_held
    stages = ours.stats().stages
    assert stages["read_ahead"].samples == reading.ahead + reading.awaited == stages["wait"].samples
    assert "reading  up to " in ours.explain()


def test_readers_record_each_file(slow, folder):
    spans = []
    ours = loader(folder)
    stop = ours.record_spans(lambda *piece: spans.append(piece))
    began = time.perf_counter()
    for _ in ours:
        pass
    stop()
    read = [piece for piece in spans if piece[0] == "read_ahead"]
    stats = ours.stats()
    assert len(read) == stats.stages["read_ahead"].samples > 0
    assert {thread.rpartition("-")[0] for *_, thread in read} == {"penstock-read"}
    assert len({thread for *_, thread in read}) <= stats.reading.deepest
    for _, seconds, samples, ended, _ in read:
        assert samples == 1 and began <= ended - seconds <= ended <= time.perf_counter()


def test_readers_cease_where_reads_cease_to_block(slow, folder):
    ours = loader(folder, batch_size=2)
    depths = []
    for i, _ in enumerate(ours):
        if i == 60:
            assert ours.stats().reading.depth > 0
            slow[-1].set_delay(0)
        depths.append(ours.stats().reading.depth)
    assert depths[-1] in (0, max(depths))  # a busy machine's threads may sleep for another reason
    assert_read_ahead(ours)


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.fixture
def broken_or_fifo(broken):
    root, ids = broken
    (root / "085.pt").unlink()
    os.mkfifo(root / "085.pt")
    return root, ids


def results(root, ids, **options):
    return outcomes(penstock.DataLoader(tensors(root, ids=ids), batch_size=4, num_workers=2, **options))


def test_errors_are_those_without_readers(broken_or_fifo, request):
    root, ids = broken_or_fifo
    expected = results(root, ids)
    slow = request.getfixturevalue("slow")
    assert_same(results(root, ids), expected)
    assert sum(isinstance(one, tuple) for one in expected) == 7
    assert slow[-1].deepest() > 2


def test_bad_samples_are_replaced_as_without_readers(broken_or_fifo, request):
    root, ids = broken_or_fifo
    expected = results(root, ids, on_error=penstock.Replace(), seed=1)
    slow = request.getfixturevalue("slow")
    assert_same(results(root, ids, on_error=penstock.Replace(), seed=1), expected)
    assert slow[-1].deepest() > 2


def test_a_file_that_is_replaced_meanwhile_is_one_of_the_two(slow, tmp_path):
    for i in range(900):
        torch.save(torch.full((100,), 1.0), tmp_path / f"{i:03}.pt")
    ours = loader(tmp_path, batch_size=2)
    seen = set()
    for number, batch in enumerate(ours):
        if number == 50:
            for i in range(900):
                torch.save(torch.full((100,), 2.0), tmp_path / "new")
                os.replace(tmp_path / "new", tmp_path / f"{i:03}.pt")
        for sample in batch:
            assert len(sample.unique()) == 1
            seen.add(float(sample[0]))
    assert seen == {1.0, 2.0}
    assert_read_ahead(ours)


# --- bounds -------------------------------------------------------------------------------------------------------


def test_bytes_held_ahead_are_bounded_and_a_larger_file_is_read(slow, tmp_path, monkeypatch):
    for i in range(150):
        torch.save(torch.full((100_000 if i % 50 == 49 else 1_000,), float(i)), tmp_path / f"{i:03}.pt")
    monkeypatch.setattr(crew, "READ_AHEAD_BYTES", 60_000)
    ours = loader(tmp_path, batch_size=1)
    assert_same(list(ours), list(tud.DataLoader(tensors(tmp_path), batch_size=1)))
    assert assert_read_ahead(ours).most_held <= 60_000


def test_a_sampler_of_the_users_is_asked_no_further_ahead(slow, folder):
    class Own(tud.Sampler):
        given = 0

        def __iter__(self):
            for i in range(SIZE):
                self.given = i + 1
                yield i

        def __len__(self):
            return SIZE

    sampler = Own()
    ours = loader(folder, batch_size=2, sampler=sampler, prefetch_factor=2)
    for number, _ in enumerate(ours, 1):
        assert sampler.given <= 2 * (number + 2 * 2 + 1)
    assert_read_ahead(ours)


# --- ends ---------------------------------------------------------------------------------------------------------


def test_readers_end_with_a_pass_that_is_left(slow, folder):
    gc.collect()
    before = readers()
    ours = loader(folder)
    for _ in range(3):
        batches = iter(ours)
        for _ in range(15):
            next(batches)
        assert readers() > before
        del batches
        gc.collect()
        wait_until(lambda: readers() == before)


def test_a_blocked_read_holds_nobody_up(slow, folder):
    gc.collect()
    before = readers()
    batches = iter(loader(folder))
    for _ in range(15):
        next(batches)
    table = slow[-1]
    table.shut()
    for _ in range(3):  # they have been brought; readers go on to those behind what they knew
        next(batches)
    wait_until(lambda: table.waiting() > 0)
    closing = threading.Thread(target=batches.close)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    slow.clear()
    del batches
    gc.collect()
    assert readers() > before  # at their read still
    assert table.waiting() > 0
    table.release()
    wait_until(lambda: readers() == before)
    again = loader(folder)  # takes what was left behind away
    assert len(list(again)) == len(again)


def test_a_shut_store_is_a_timeout_and_goes_on(slow, folder):
    batches = iter(loader(folder, timeout=1))
    found = [next(batches) for _ in range(10)]
    slow[-1].shut()
    with pytest.raises(WorkerStuck, match="is being read natively"):
        found.extend(batch for batch in iter(lambda: next(batches), None))
    slow[-1].release()
    found.extend(batches)
    assert_same(found, list(tud.DataLoader(tensors(folder), batch_size=8)))


def test_a_fork_while_readers_work(slow, folder):
    batches = iter(loader(folder))
    expected = list(tud.DataLoader(tensors(folder), batch_size=8))
    found = [next(batches) for _ in range(10)]

    def check():
        assert_same(list(loader(folder)), expected)
        with pytest.raises(RuntimeError, match="another process"):
            next(batches)

    assert_in_child(check)
    assert_same([*found, *batches], expected)


def test_a_pass_goes_on_behind_its_state(slow, folder):
    options = {"batch_size": 4, "shuffle": True, "seed": 5}
    expected = list(loader(folder, **options))
    ours = loader(folder, **options)
    batches = iter(ours)
    found = [next(batches) for _ in range(30)]
    state = ours.state_dict()
    del batches
    resumed = loader(folder, **options)
    resumed.load_state_dict(state)
    assert_same([*found, *resumed], expected)
    assert_read_ahead(ours)
    assert_read_ahead(resumed)


def test_ranks_read_their_parts(slow, folder):
    def part(rank):
        sampler: tud.DistributedSampler[int] = tud.DistributedSampler(tensors(folder), 2, rank, shuffle=True, seed=4)
        ours = loader(folder, batch_size=3, sampler=sampler)
        theirs = tud.DataLoader(tensors(folder), batch_size=3, sampler=sampler)
        assert_same_batches(ours, theirs)
        assert_read_ahead(ours)

    part(0)
    part(1)
