"""Reports: pytorch/vision#9010, PyAV-Org/PyAV#1849, PyAV-Org/PyAV#1861, dmlc/decord#294.

A dataset is left in the middle of its video: the threads of the decoding library never end, and the program waits for
its workers at the end of the loop.

Workers are asked to end, and those that live five seconds later are killed: a pass ends within six seconds, however
many workers there are (torch waits five seconds for each), whatever the threads of a library do in them.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.data import Made
from tests.reports.report import Found


def frame(index: int) -> int:
    """Return a frame of a video; the library's thread waits for more, which nobody takes."""
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return index


def trouble(loader: Any, *, short: bool) -> Found:
    batches = iter(loader(Made(frame, 1_000), batch_size=2, num_workers=4))
    next(batches)
    begun = time.monotonic()
    del batches
    seconds = int(time.monotonic() - begun)
    return Found(seconds, seconds, "seconds that the end of the loop takes")


def answered(found: Found) -> bool:
    return found.bad < 10
