"""The native pool by itself: what it says of samples that are being read, and how many threads and readers work."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

import penstock._native as _native
from tests import python_processes
from tests.native_pool import SECONDS, pool_of, submit
from tests.native_testing import ReadDepth
from tests.recipe.against_torchvision import recipe_of
from tests.waiting import wait_until

pytestmark = pytest.mark.native

PIXELS = _native.Spec("uint8", [3, 8, 8])


def image_filler():
    return _native.ImageFileFiller(None, recipe_of(v2.Compose([v2.CenterCrop(8), v2.PILToTensor()])).native, 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_busy_names_the_sample_that_is_read(tmp_path, threads):
    small, large = tmp_path / "small.jpg", tmp_path / "large.jpg"
    Image.new("RGB", (16, 16)).save(small)
    noise = np.random.default_rng(0).integers(0, 256, (125, 500, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((4000, 3000)).save(large, quality=95, progressive=True)
    pool = pool_of(image_filler(), threads=threads)
    assert pool.busy() == []
    quick = os.fsencode(small) + b"\0"
    first, _ = submit(pool, range(3), PIXELS, quick * 3)
    assert pool.wait(first, SECONDS) == "done"
    wait_until(lambda: pool.busy() == [])  # a worker may not have looked up yet from the last sample
    before = time.monotonic()
    number, _ = submit(pool, range(3), PIXELS, quick + os.fsencode(large) + b"\0" + quick)
    found = wait_until(lambda: [one for one in pool.busy() if one[1] == 1])
    ((batch, position, seconds),) = found
    assert (batch, position) == (number, 1)
    assert 0 <= seconds <= time.monotonic() - before
    assert pool.wait(number, SECONDS) == "done"
    wait_until(lambda: pool.busy() == [])
    pool.close()
    assert pool.busy() == []


def test_busy_while_samples_in_memory_are_gathered():
    rows = np.arange(4096 * 64, dtype=np.uint8).reshape(4096, 64)
    spec = _native.Spec("uint8", [64])
    pool = pool_of(_native.GatherFiller(rows, spec), threads=2)
    seen = set()

    def look():
        batches = [submit(pool, range(4096), spec) for _ in range(20)]  # whose memory is held until they are done
        numbers = [number for number, _ in batches]
        for _ in range(200):
            for batch, position, seconds in pool.busy():
                assert batch <= numbers[-1] and 0 <= position < 4096 and 0 <= seconds < SECONDS
                seen.add(batch)
        for number in numbers:
            assert pool.wait(number, SECONDS) == "done"
            pool.retire(number)
        return seen

    assert wait_until(look)
    pool.close()


def test_busy_without_threads(tmp_path):
    Image.new("RGB", (16, 16)).save(tmp_path / "a.jpg")
    pool = pool_of(image_filler())
    number, _ = submit(pool, [0], PIXELS, os.fsencode(tmp_path / "a.jpg") + b"\0")
    assert pool.busy() == []
    pool.run_here(number)
    assert pool.busy() == [] and pool.wait(number, SECONDS) == "done"


def test_a_daemon_thread_that_waits_for_rows_while_the_interpreter_ends():
    """Before Python 3.14 the end of such a thread unwound a destructor, which ended the process by SIGABRT."""
    script = """
import sys, threading, time
import numpy as np
import penstock._native as _native

spec = _native.Spec("uint8", [4])
rows = np.zeros((8, 4), np.uint8)
pool = _native.Pool(_native.Program([[_native.GatherFiller(rows, spec)]]), 1)
for _ in range(4):
    threading.Thread(target=pool.take_python, args=(True,), daemon=True).start()

class Late:
    def __del__(self):
        pool.close()
        time.sleep(0.2)  # threads of the pool end meanwhile

sys.late = Late()  # freed while the interpreter ends
time.sleep(0.1)  # its threads are at work
"""
    done = python_processes.run(script)
    assert (done.returncode, done.stderr) == (0, "")


# --- how many readers work is chosen by what they bring --------------------------------------------------------------


class Store:
    """A store whose rate rises with the readers up to `best` of them, for one ReadDepth."""

    def __init__(self, best, most=64, blocked=1.0, starved=0.5):
        self.depth, self.best, self.blocked, self.starved = ReadDepth(most), best, blocked, starved
        self.depth.start()

    def span(self):
        readers = self.depth.now()
        rate = 1_000 * min(readers, self.best)  # files a second
        seconds = max(0.05, 4 * readers / rate)
        files = int(rate * seconds)
        served, starved = int(files * (1 - self.starved)), int(files * self.starved)
        assert self.depth.judge(seconds, 1_000 * files, files, int(files * self.blocked), served, starved)
        return self.depth.now()


def test_there_are_more_for_as_long_as_the_rate_rises():
    store = Store(best=1_000)
    assert store.depth.now() == 16
    assert [store.span() for _ in range(4)] == [32, 64, 64, 64]


def test_a_step_that_brings_nothing_is_taken_back_and_tried_later():
    store = Store(best=32)
    chosen = [store.span() for _ in range(30)]
    assert chosen[:3] == [32, 64, 32]
    assert chosen[3] == 32
    assert 64 in chosen[4:]
    assert chosen.count(32) > 2 * chosen.count(64)


def test_readers_that_are_early_enough_stay_as_many_as_they_are():
    store = Store(best=1_000, starved=0.0)
    assert {store.span() for _ in range(5)} == {16}


def test_there_are_none_where_reads_do_not_block():
    store = Store(best=1_000, blocked=0.02)
    assert store.span() == 0
    store.depth.start()
    assert store.depth.now() == 16


@pytest.mark.parametrize("most", [1, 5, 16, 40])
def test_there_are_never_more_than_allowed(most):
    store = Store(best=1_000, most=most)
    assert max(store.span() for _ in range(5)) == most


def test_a_short_span_is_not_judged():
    depth = ReadDepth(64)
    depth.start()
    assert not depth.judge(0.001, 10, 1_000, 1_000, 0, 1_000)
    assert not depth.judge(5.0, 10, 40, 40, 0, 40)
    assert depth.now() == 16
