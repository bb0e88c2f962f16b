"""The native pool by itself: what it says about samples that are being read."""

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
