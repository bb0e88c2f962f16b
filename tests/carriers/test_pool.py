"""The native pool by itself: its threads at the end of the interpreter, and how many readers work."""

from __future__ import annotations

import pytest

from tests import python_processes
from tests.native_testing import ReadDepth

pytestmark = pytest.mark.native


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


class Store:
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


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, [32, 64, 64, 64, 64]),  # more for as long as the rate rises
        ({"starved": 0.0}, [16] * 5),  # they are early enough
        ({"blocked": 0.02}, [0]),
        *(({"most": most}, [most] * 5) for most in (1, 5, 16)),  # never more than allowed
        ({"most": 40}, [32, 40, 40, 40, 40]),
    ],
)
def test_how_many_readers_are_chosen(options, chosen):
    store = Store(best=1_000, **options)
    assert store.depth.now() == min(16, options.get("most", 16))
    assert [store.span() for _ in chosen] == chosen
    store.depth.start()
    assert store.depth.now() == min(16, options.get("most", 16)), "begun anew"


def test_a_step_that_brings_nothing_is_taken_back_and_tried_later():
    store = Store(best=32)
    chosen = [store.span() for _ in range(30)]
    assert chosen[:4] == [32, 64, 32, 32] and 64 in chosen[4:] and chosen.count(32) > 2 * chosen.count(64)


def test_a_short_span_is_not_judged():
    depth = ReadDepth(64)
    depth.start()
    assert not depth.judge(0.001, 10, 1_000, 1_000, 0, 1_000) and not depth.judge(5.0, 10, 40, 40, 0, 40)
    assert depth.now() == 16
