"""Readers bring the files of Python threads where reads block: same batches, same errors, and nothing left behind."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest
import torch
import torch.utils.data as tud
import torchvision
from torchvision import transforms as v1

import penstock
import penstock._native as _native
from penstock.executors.workers import native as crew
from penstock.sources import reading
from tests.forking import assert_in_child
from tests.reading import assert_read_ahead, readers, save_tensors
from tests.same import assert_same, assert_same_batches, outcomes
from tests.waiting import wait_until

pytestmark = pytest.mark.native

SIZE = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tensors(tmp_path_factory.mktemp("tensors"), SIZE)


@pytest.fixture
def started(monkeypatch):
    """Have readers at the start of each pass, though nothing blocks."""
    real = _native.FileReaders

    def readers(*arguments):
        made = real(*arguments)
        made.start()
        return made

    monkeypatch.setattr(_native, "FileReaders", readers)


def negative(tensor):
    return -tensor


def to_array(image):
    return torch.from_numpy(np.asarray(image).copy())


def tensors(folder, **options):
    return penstock.TensorFolder(str(folder), **{"transform": negative, **options})


def in_threads(dataset, **options):
    return penstock.DataLoader(dataset, **{"batch_size": 8, "num_workers": 2, "worker_method": "thread", **options})


def of_readers(tables):
    """Return the table that readers open files of: several at a time."""
    return max(tables, key=lambda table: table.deepest())


def opened_by_python(monkeypatch):
    """Return a list that grows by each file of a penstock.ImageFolder that Python opens for Pillow."""
    opened = []

    def open_sample(*given):
        opened.append(given)
        return reading.open_sample(*given)

    monkeypatch.setattr("penstock.sources.image_folder.open_sample", open_sample)
    return opened


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_torchs_loader(slow, folder, batch_size, shuffle):
    options = {"batch_size": batch_size, "shuffle": shuffle}
    torch.manual_seed(3)
    theirs = list(tud.DataLoader(tensors(folder), **options))
    torch.manual_seed(3)
    ours = in_threads(tensors(folder), **options)
    assert_same(list(ours), theirs)
    counts = assert_read_ahead(ours)
    stages = ours.stats().stages
    assert stages["read_ahead"].samples >= counts.ahead + counts.awaited == stages["wait"].samples
    assert "reading  up to " in ours.explain()


@pytest.mark.parametrize("kind", [torchvision.datasets.ImageFolder, penstock.ImageFolder])
@pytest.mark.parametrize("transform", [to_array, v1.Compose([v1.CenterCrop(20), to_array]), v1.Compose([to_array])])
def test_photos_are_those_of_torchs_loader(started, photos, kind, transform):
    dataset = kind(str(photos), transform, target_transform=lambda label: label * 2)
    ours = in_threads(dataset, batch_size=4)
    assert_same_batches(ours, tud.DataLoader(dataset, batch_size=4))
    reading = ours.stats().reading
    assert reading.ahead + reading.awaited > 0, reading


def test_what_pillow_decodes_is_not_opened_a_second_time(slow, photos, monkeypatch):
    opened = opened_by_python(monkeypatch)
    dataset = penstock.ImageFolder(str(photos), to_array)
    ours = in_threads(dataset, batch_size=4, shuffle=True, seed=1)
    assert sum(len(labels) for _, labels in ours) == 120
    assert_read_ahead(ours)
    assert len(opened) <= 4  # before readers were at work; of 12


def test_parts_of_several_folders(slow, folder):
    both: tud.Dataset = tud.ConcatDataset([tensors(folder), tud.Subset(tensors(folder), [5, -3, 5, 8] * 50)])
    ours = in_threads(both, shuffle=True, seed=4, batch_size=5)
    found = sorted(float(x[0, 0]) for batch in ours for x in batch)
    assert found == sorted([-float(i) for i in range(SIZE)] + [-5.0, -397.0, -5.0, -8.0] * 50)
    assert_read_ahead(ours)


def test_samples_that_come_twice(slow, folder):
    indices = [7, 7, 3] * 100
    ours = in_threads(tensors(folder), sampler=indices)
    assert_same_batches(ours, tud.DataLoader(tensors(folder), sampler=indices, batch_size=8))
    assert_read_ahead(ours)


def test_there_are_no_readers_where_nothing_blocks_or_no_thread_is(folder, slow):
    for table in slow:
        table.set_delay(0)
    alone = in_threads(tensors(folder), num_workers=0)
    assert len(list(alone)) == len(alone)
    assert alone.stats().reading.deepest == 0
    assert "reading  up to" not in alone.explain()


@pytest.mark.parametrize("shared", [False, True])
def test_persistent_threads(slow, folder, shared):
    ours = in_threads(tensors(folder), persistent_workers=True, share_dataset=shared, seed=2, shuffle=True)
    for _ in range(3):
        found = sorted(float(x[0, 0]) for batch in ours for x in batch)
        assert found == sorted(-float(i) for i in range(SIZE))
    reading = assert_read_ahead(ours)
    assert reading.ahead + reading.awaited > 2 * SIZE


# --- errors -------------------------------------------------------------------------------------------------------


def results(root, ids, **options):
    return outcomes(in_threads(tensors(root, ids=ids), batch_size=4, **options))


def test_errors_are_those_without_readers(broken, request):
    root, ids = broken
    expected = results(root, ids)
    slow = request.getfixturevalue("slow")
    assert_same(results(root, ids), expected)
    assert sum(isinstance(one, tuple) for one in expected) == 6
    assert of_readers(slow).deepest() > 2


def test_bad_samples_are_replaced_as_without_readers(broken, request):
    root, ids = broken
    whole = [ID for ID in ids if ID != "090"]
    expected = results(root, whole, on_error=penstock.Replace(max_share=0.2), seed=1)
    slow = request.getfixturevalue("slow")
    assert_same(results(root, whole, on_error=penstock.Replace(max_share=0.2), seed=1), expected)
    assert of_readers(slow).deepest() > 2


def test_an_error_of_the_transform_is_that_of_torchs_loader(started, photos):
    def refusing(image):
        if image.getpixel((0, 0))[0] < 128:
            raise KeyError("dark")
        return to_array(image)

    dataset = penstock.ImageFolder(str(photos), refusing)
    with pytest.raises(KeyError, match="dark"):
        list(in_threads(dataset))


def test_a_file_that_is_replaced_meanwhile_is_one_of_the_two(slow, tmp_path):
    for i in range(SIZE):
        torch.save(torch.full((100,), 1.0), tmp_path / f"{i:03}.pt")
    ours = in_threads(tensors(tmp_path), batch_size=2)
    seen = set()
    for number, batch in enumerate(ours):
        if number == 30:
            for i in range(SIZE):
                torch.save(torch.full((100,), 2.0), tmp_path / "new")
                os.replace(tmp_path / "new", tmp_path / f"{i:03}.pt")
        for sample in batch:
            assert len(sample.unique()) == 1
            seen.add(float(sample[0]))
    assert seen == {-1.0, -2.0}
    assert_read_ahead(ours)


# --- bounds -------------------------------------------------------------------------------------------------------


def test_bytes_held_ahead_are_bounded_and_a_larger_file_is_read(slow, tmp_path, monkeypatch):
    for i in range(150):
        torch.save(torch.full((100_000 if i % 50 == 49 else 1_000,), float(i)), tmp_path / f"{i:03}.pt")
    monkeypatch.setattr(crew, "READ_AHEAD_BYTES", 60_000)
    ours = in_threads(tensors(tmp_path), batch_size=1)
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
    ours = in_threads(tensors(folder), batch_size=2, sampler=sampler, prefetch_factor=2)
    for number, _ in enumerate(ours, 1):
        assert sampler.given <= 2 * (number + 2 * 2 + 1)


# --- ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["closed", "dropped", "gone through"])
def test_readers_end_with_a_pass(slow, folder, way):
    gc.collect()
    before = readers()
    ours = in_threads(tensors(folder))
    batches = iter(ours)
    for _ in range(15):
        next(batches)
    assert readers() > before
    if way == "closed":
        batches.close()
    elif way == "gone through":
        assert len(list(batches)) == SIZE // 8 - 15
    del batches
    wait_until(lambda: readers() == before)


def test_a_blocked_read_holds_nobody_up(slow, folder):
    gc.collect()
    before = readers()
    batches = iter(in_threads(tensors(folder)))
    for _ in range(15):
        next(batches)
    table = of_readers(slow)
    table.shut()
    for _ in range(3):  # they have been brought; readers go on to those behind what they knew
        next(batches)
    wait_until(lambda: table.waiting() > 0)
    closing = threading.Thread(target=batches.close)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    for one in slow:
        one.release()
    del batches
    gc.collect()
    wait_until(lambda: readers() == before)


def test_a_fork_while_readers_work(slow, folder):
    batches = iter(in_threads(tensors(folder)))
    expected = list(tud.DataLoader(tensors(folder), batch_size=8))
    found = [next(batches) for _ in range(10)]

    def check():
        assert_same(list(in_threads(tensors(folder))), expected)
        with pytest.raises(RuntimeError, match="forked"):
            next(batches)

    assert_in_child(check)
    assert_same([*found, *batches], expected)


def test_a_pass_goes_on_behind_its_state(slow, folder):
    options = {"batch_size": 4, "shuffle": True, "seed": 5}
    expected = list(in_threads(tensors(folder), **options))
    ours = in_threads(tensors(folder), **options)
    batches = iter(ours)
    found = [next(batches) for _ in range(30)]
    state = ours.state_dict()
    del batches
    resumed = in_threads(tensors(folder), **options)
    resumed.load_state_dict(state)
    assert_same([*found, *resumed], expected)
    assert_read_ahead(resumed)


# --- caches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torchvision.datasets.ImageFolder, penstock.ImageFolder])
def test_a_cache_serves_what_pillow_decodes(photos, kind, monkeypatch):
    opened = opened_by_python(monkeypatch)
    dataset = kind(str(photos), to_array)
    ours = in_threads(dataset, cache="64MiB", batch_size=4)
    expected = list(tud.DataLoader(dataset, batch_size=4))
    opened.clear()
    for _ in range(2):
        assert_same(list(ours), expected)
    assert not opened
    assert ours.stats().cache["memory"].samples == 120
    assert ours.stats().cache["memory"].hits >= 120


def test_a_cache_is_filled_by_readers(slow, folder):
    ours = in_threads(tensors(folder), cache="64MiB")
    expected = list(tud.DataLoader(tensors(folder), batch_size=8))
    for _ in range(2):
        assert_same(list(ours), expected)
    assert_read_ahead(ours)
    assert ours.stats().cache["memory"].samples == SIZE


# --- shards -------------------------------------------------------------------------------------------------------


def test_samples_of_shards(started, folder, tmp_path):
    penstock.pack(penstock.TensorFolder(str(folder)), tmp_path / "packed", shard_size="200KiB")
    packed = penstock.Shards(tmp_path / "packed", transform=negative)
    ours = in_threads(packed, shuffle=True, seed=3)
    assert sorted(float(x[0, 0]) for batch in ours for x in batch) == sorted(-float(i) for i in range(SIZE))
    counts = ours.stats().reading
    assert counts.ahead + counts.awaited > 0, counts
