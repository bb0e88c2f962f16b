"""Readers bring files ahead of native and of Python's threads where reads block: the same batches, the same errors."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

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
from penstock.sources import reading
from tests.forking import assert_in_child
from tests.reading import assert_read_ahead, readers
from tests.same import assert_passes, assert_same, assert_same_batches, outcomes
from tests.sample_datasets import Order, tensor_files
from tests.values import resumed, taken
from tests.waiting import wait_until

pytestmark = pytest.mark.native

SIZE = 500


class Way(NamedTuple):
    """Who has the readers: native threads, or threads that call a transform in Python."""

    transform: Any
    options: dict[str, Any]
    starts: tuple[str, str]  # the class of the native core that has readers, and its method that starts them

    def tensors(self, root, **options):
        return penstock.TensorFolder(str(root), **{"transform": self.transform, **options})

    def loader(self, dataset, **options):
        dataset = self.tensors(dataset) if isinstance(dataset, Path) else dataset
        return penstock.DataLoader(dataset, **{"batch_size": 8, "num_workers": 2, **self.options, **options})

    def theirs(self, root, **options):
        return list(tud.DataLoader(self.tensors(root), **{"batch_size": 8, **options}))


NATIVE = Way(None, {}, ("Pool", "start_readers"))
THREADS = Way(torch.neg, {"worker_method": "thread"}, ("FileReaders", "start"))


@pytest.fixture(params=[NATIVE, THREADS], ids=["native", "threads"])
def way(request):
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tensor_files(tmp_path_factory.mktemp("tensors"), SIZE, (10, 50), "{:03}")


def start_readers(way, monkeypatch):
    """Have readers at the start of each pass, though nothing blocks."""
    name, start = way.starts
    real = getattr(_native, name)

    def started(*arguments):
        made = real(*arguments)
        getattr(made, start)()
        return made

    monkeypatch.setattr(_native, name, started)


def to_array(image):
    return torch.from_numpy(np.asarray(image).copy())


def of_readers(tables):
    """Return the table that readers open files of: several at a time."""
    return max(tables, key=lambda table: table.deepest())


def ahead(loader):
    return loader.stats().reading.ahead + loader.stats().reading.awaited


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_torchs_loader(way, slow, folder, batch_size, shuffle):
    options = {"batch_size": batch_size, "shuffle": shuffle}
    torch.manual_seed(3)
    theirs, ours = way.theirs(folder, **options), way.loader(folder, **options)
    torch.manual_seed(3)
    assert_same(list(ours), theirs)
    counts, stages = assert_read_ahead(ours), ours.stats().stages
    assert stages["read_ahead"].samples >= counts.ahead + counts.awaited == stages["wait"].samples
    assert "reading  up to " in ours.explain()
    if way is NATIVE:
        first = batch_size  # of unknown shape: the first batch is filled twice
        assert sorted(of_readers(slow).opened())[: SIZE - first] == [1] * (SIZE - first)


STEPS = (to_array, v1.Compose([v1.CenterCrop(20), to_array]), v1.Compose([to_array]))
TRANSFORMS = [(NATIVE, v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])), *((THREADS, step) for step in STEPS)]
KINDS = pytest.mark.parametrize("kind", [torchvision.datasets.ImageFolder, penstock.ImageFolder])


@KINDS
@pytest.mark.parametrize(("way", "transform"), TRANSFORMS)
def test_photos_are_those_of_torchs_loader(photos, kind, way, transform, monkeypatch):
    start_readers(way, monkeypatch)
    dataset = kind(str(photos), transform, target_transform=None if way is NATIVE else lambda label: label * 2)
    ours = way.loader(dataset, batch_size=4)
    assert_same_batches(ours, tud.DataLoader(dataset, batch_size=4))
    assert ahead(ours) > 0
    assert sum(ours.stats().read_by_python.values()) == 12 or way is THREADS


def test_there_are_no_readers_where_nothing_blocks_or_no_worker_is(way, folder, slow):
    alone = way.loader(way.tensors(folder, ids=[f"{i:03}" for i in range(120)]), num_workers=0)
    assert len(list(alone)) == len(alone)
    memory = way.loader(penstock.Arrays(np.zeros((5_000, 10), np.float32)))
    assert len(list(memory)) == len(memory)
    assert alone.stats().reading.deepest == memory.stats().reading.deepest == 0
    assert ("reading" if way is NATIVE else "reading  up to") not in alone.explain() + memory.explain()


def test_readers_count_and_record_each_file(slow, folder):
    spans, ours = [], NATIVE.loader(folder)
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
    ours, depths = NATIVE.loader(folder, batch_size=2), []
    for i, _ in enumerate(ours):
        if i == 60:
            assert ours.stats().reading.depth > 0
            slow[-1].set_delay(0)
        depths.append(ours.stats().reading.depth)
    assert depths[-1] in (0, max(depths))  # a busy machine's threads may sleep for another reason
    assert_read_ahead(ours)


@pytest.fixture
def opened(monkeypatch):
    spy = mock.Mock(wraps=reading.open_sample)
    monkeypatch.setattr("penstock.sources.image_folder.open_sample", spy)
    return spy.call_args_list


def test_what_pillow_decodes_is_not_opened_a_second_time(slow, photos, opened):
    ours = THREADS.loader(penstock.ImageFolder(str(photos), to_array), batch_size=4, shuffle=True, seed=1)
    assert sum(len(labels) for _, labels in ours) == 120
    assert_read_ahead(ours)
    assert len(opened) <= 4  # before readers were at work; of 12


def negated(loader):
    return sorted(float(x[0, 0]) for batch in loader for x in batch)


def test_parts_of_several_folders(slow, folder):
    part = tud.Subset(THREADS.tensors(folder), [5, -3, 5, 8] * 50)
    ours = THREADS.loader(tud.ConcatDataset([THREADS.tensors(folder), part]), shuffle=True, seed=4, batch_size=5)
    assert negated(ours) == sorted([-float(i) for i in range(SIZE)] + [-5.0, 3.0 - SIZE, -5.0, -8.0] * 50)
    assert_read_ahead(ours)


def test_samples_that_come_twice(slow, folder):
    ours = THREADS.loader(folder, sampler=[7, 7, 3] * 100)
    assert_same(list(ours), THREADS.theirs(folder, sampler=[7, 7, 3] * 100))
    assert_read_ahead(ours)


@pytest.mark.parametrize("shared", [False, True])
def test_persistent_threads(slow, folder, shared):
    ours = THREADS.loader(folder, persistent_workers=True, share_dataset=shared, seed=2, shuffle=True)
    for _ in range(3):
        assert negated(ours) == sorted(-float(i) for i in range(SIZE))
    assert_read_ahead(ours)
    assert ahead(ours) > 2 * SIZE


@pytest.mark.parametrize("replaced", [False, True])
def test_errors_and_replaced_samples_are_those_without_readers(way, broken, replaced, request):
    root, ids = broken
    if way is NATIVE:
        (root / "085.pt").unlink()
        os.mkfifo(root / "085.pt")
    elif replaced:
        ids.remove("090")
    how = penstock.Replace() if way is NATIVE else penstock.Replace(max_share=0.2)
    options = {"on_error": how, "seed": 1} if replaced else {}
    ours, again = (way.loader(way.tensors(root, ids=ids), batch_size=4, **options) for _ in range(2))
    expected, slow = outcomes(ours), request.getfixturevalue("slow")
    assert_same(outcomes(again), expected)
    assert replaced or sum(isinstance(one, tuple) for one in expected) == (7 if way is NATIVE else 6)
    assert of_readers(slow).deepest() > 2


def test_an_error_of_the_transform_is_that_of_torchs_loader(photos, monkeypatch):
    start_readers(THREADS, monkeypatch)

    def refusing(image):
        if image.getpixel((0, 0))[0] < 128:
            raise KeyError("dark")
        return to_array(image)

    with pytest.raises(KeyError, match="dark"):
        list(THREADS.loader(penstock.ImageFolder(str(photos), refusing)))


def test_a_file_that_is_replaced_meanwhile_is_one_of_the_two(way, slow, tmp_path):
    tensor_files(tmp_path, SIZE, (100,), "{:03}")
    ours, seen = way.loader(tmp_path, batch_size=2), set()
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


def test_bytes_held_ahead_are_bounded_and_a_larger_file_is_read(way, slow, tmp_path, monkeypatch):
    for i in range(150):
        torch.save(torch.full((100_000 if i % 50 == 49 else 1_000,), float(i)), tmp_path / f"{i:03}.pt")
    monkeypatch.setattr(crew, "READ_AHEAD_BYTES", 60_000)
    ours = way.loader(tmp_path, batch_size=1)
    assert_same(list(ours), way.theirs(tmp_path, batch_size=1))
    assert assert_read_ahead(ours).most_held <= 60_000


def test_a_sampler_of_the_users_is_asked_no_further_ahead(way, slow, folder):
    sampler = Order(range(SIZE))
    ours = way.loader(folder, batch_size=2, sampler=sampler, prefetch_factor=2)
    assert all(sampler.asked <= 2 * (number + 2 * 2 + 1) for number, _ in enumerate(ours, 1))
    if way is NATIVE:
        assert_read_ahead(ours)


def test_readers_end_with_a_pass(way, slow, folder):
    gc.collect()
    before, ours = readers(), way.loader(folder)
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


def test_a_blocked_read_holds_nobody_up(way, slow, folder):
    gc.collect()
    before, batches = readers(), iter(way.loader(folder))
    taken(batches, 15)
    ahead = min(3, len(batches._queue))
    if way is THREADS:
        wait_until(lambda: all(batch.done for batch in list(batches._queue)[:ahead]))
    table = of_readers(slow)
    table.shut()
    taken(batches, ahead)  # they have been brought; readers go on to those behind what they knew
    wait_until(lambda: table.waiting() > 0)
    closing = threading.Thread(target=batches.close)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    tables = list(slow)
    if way is NATIVE:
        slow.clear()
        del batches
        gc.collect()
        assert readers() > before and table.waiting() > 0  # at their read still
    for one in tables:
        one.release()
    batches = None
    gc.collect()
    wait_until(lambda: readers() == before)
    again = way.loader(folder)  # takes what was left behind away
    assert len(list(again)) == len(again)


def test_a_shut_store_is_a_timeout_and_goes_on(slow, folder):
    batches = iter(NATIVE.loader(folder, timeout=1))
    found = taken(batches, 10)
    slow[-1].shut()
    named = rf"sample '\d{{3}}' \({folder}/\d{{3}}\.pt\) is being read natively since \d+\.\d s"
    with pytest.raises(WorkerStuck, match=named):
        found.extend(batch for batch in iter(lambda: next(batches), None))
    slow[-1].release()
    found.extend(batches)
    assert_same(found, NATIVE.theirs(folder))


def test_a_fork_while_readers_work(way, slow, folder):
    batches = iter(way.loader(folder))
    expected, found = way.theirs(folder), taken(batches, 10)

    def check():
        assert_same(list(way.loader(folder)), expected)
        with pytest.raises(RuntimeError, match="another process" if way is NATIVE else "of this fork"):
            next(batches)

    assert_in_child(check)
    assert_same([*found, *batches], expected)


def test_a_pass_goes_on_behind_its_state(way, slow, folder):
    options = {"batch_size": 4, "shuffle": True, "seed": 5}
    whole, ours, again = (way.loader(folder, **options) for _ in range(3))
    first, rest = resumed(ours, again, 30)
    assert_same([*first, *rest], list(whole))
    assert_read_ahead(rest)
    if way is NATIVE:
        assert_read_ahead(ours)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_read_their_parts(slow, folder, rank):
    sampler: Any = tud.DistributedSampler(NATIVE.tensors(folder), 2, rank, shuffle=True, seed=4)
    ours = NATIVE.loader(folder, batch_size=3, sampler=sampler)
    assert_same(list(ours), NATIVE.theirs(folder, batch_size=3, sampler=sampler))
    assert_read_ahead(ours)


@KINDS
def test_a_cache_serves_what_pillow_decodes(photos, kind, opened):
    dataset = kind(str(photos), to_array)
    ours = THREADS.loader(dataset, cache="64MiB", batch_size=4)
    expected = list(tud.DataLoader(dataset, batch_size=4))
    opened.clear()
    assert_passes(ours, expected)
    assert not opened and ours.stats().cache["memory"].samples == 120
    assert ours.stats().cache["memory"].hits >= 120


def test_a_cache_is_filled_by_readers(slow, folder):
    ours = THREADS.loader(folder, cache="64MiB")
    assert_passes(ours, THREADS.theirs(folder))
    assert_read_ahead(ours)
    assert ours.stats().cache["memory"].samples == SIZE


def test_samples_of_shards(folder, tmp_path, monkeypatch):
    start_readers(THREADS, monkeypatch)
    penstock.pack(penstock.TensorFolder(str(folder)), tmp_path / "packed", shard_size="200KiB")
    ours = THREADS.loader(penstock.Shards(tmp_path / "packed", transform=torch.neg), shuffle=True, seed=3)
    assert negated(ours) == sorted(-float(i) for i in range(SIZE)) and ahead(ours) > 0
