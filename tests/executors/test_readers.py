"""Readers bring files ahead of the workers where reads block: same batches, same errors, and nothing left behind."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.utils.data as tud
import torchvision
from PIL import Image
from torchvision import transforms as v1

import penstock
import penstock._native as _native
from penstock.errors import WorkerStuck
from penstock.executors.workers import native as crew
from tests.native_testing import SlowTable
from tests.same import assert_same, assert_same_batches
from tests.waiting import wait_until

pytestmark = pytest.mark.native

SIZE = 900
DELAY = 0.004


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("tensors")
    for i in range(SIZE):
        torch.save(torch.full((10, 50), float(i)), root / f"{i:03}.pt")
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for i in range(120):
        (root / f"{i % 3}").mkdir(exist_ok=True)
        kind = "png" if i % 10 == 5 else "jpg"  # which Pillow reads
        Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(root / f"{i % 3}" / f"{i:03}.{kind}")
    return root


@pytest.fixture
def slow(monkeypatch):
    """Make files of loaders that begin from here on take DELAY to open; returns the tables."""
    tables = []

    def slowly(real):
        def make(table, *rest):
            tables.append(SlowTable(table, DELAY))
            return real(tables[-1], *rest)

        return make

    for name in ("TensorFileFiller", "ImageFileFiller"):
        monkeypatch.setattr(_native, name, slowly(getattr(_native, name)))
    return tables


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


def readers():
    """Return how many reader threads this process has."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:  # it has ended meanwhile
            continue
    return names.count("penstock-read")


def assert_read_ahead(loader):
    reading = loader.stats().reading
    assert reading.deepest >= 16, reading
    assert reading.ahead + reading.awaited > reading.direct, reading
    return reading


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
    assert (reading.depth, reading.blocked) == (0, reading.seen)
    assert reading.bytes > 0 < reading.most_held
    stages = ours.stats().stages
    assert stages["read_ahead"].samples == reading.ahead + reading.awaited == stages["wait"].samples
    assert "reading  up to " in ours.explain()


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
def broken(tmp_path):
    """A folder of 100 tensors, of which some are missing, broken, no file at all, or of another shape."""
    for i in range(100):
        torch.save(torch.full((5,), float(i)), tmp_path / f"{i:03}.pt")
    ids = [f"{i:03}" for i in range(100)]
    (tmp_path / "050.pt").unlink()
    (tmp_path / "060.pt").write_bytes(b"no tensor")
    (tmp_path / "070.pt").write_bytes(b"")
    (tmp_path / "080.pt").unlink()
    (tmp_path / "080.pt").mkdir()
    (tmp_path / "085.pt").unlink()
    os.mkfifo(tmp_path / "085.pt")
    torch.save(torch.zeros(6), tmp_path / "090.pt")
    whole = (tmp_path / "095.pt").read_bytes()
    (tmp_path / "095.pt").write_bytes(whole[: len(whole) // 2])
    return tmp_path, ids


def outcomes(dataset, **options):
    """Return each batch of a loader, or the type and text of the error in its place."""
    batches = iter(penstock.DataLoader(dataset, batch_size=4, num_workers=2, **options))
    found = []
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except Exception as error:
            found.append((type(error).__name__, str(error)))


def test_errors_are_those_without_readers(broken, monkeypatch, request):
    root, ids = broken
    expected = outcomes(tensors(root, ids=ids))
    slow = request.getfixturevalue("slow")
    assert_same(outcomes(tensors(root, ids=ids)), expected)
    assert sum(isinstance(one, tuple) for one in expected) == 7
    assert slow[-1].deepest() > 2


def test_bad_samples_are_replaced_as_without_readers(broken, request):
    root, ids = broken
    expected = outcomes(tensors(root, ids=ids), on_error=penstock.Replace(), seed=1)
    slow = request.getfixturevalue("slow")
    assert_same(outcomes(tensors(root, ids=ids), on_error=penstock.Replace(), seed=1), expected)
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
    child = os.fork()
    if child == 0:
        try:
            same = all(map(torch.equal, loader(folder), expected))
            with pytest.raises(RuntimeError, match="another process"):
                next(batches)
            os._exit(0 if same else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
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
