"""Files of every format changed at random and given to their parsers: `python -m tests.faults.fuzzing --seconds 60`.

The formats are those of parsers.py. Each input is a function of its parser, the seed and its number; each chunk of
inputs has a process of its own, so that a crash names its input: `--only NAME --first NUMBER --count 1` repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.system import limits
from tests.differential.running import lanes
from tests.faults.parsers import PARSERS, Parser
from tests.forking import begin_in_child, end_of

CHUNK = 200
#: What an input may take: seconds of processors, and bytes beside twice its own (with a sanitizer: by its options).
SECONDS, BYTES = 2, 16 << 20
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")


def run_chunk(parser: Parser, corpus: list[Any], name: str, seed: int, first: int, count: int) -> tuple[int, str]:
    """Read so many inputs in a child of its own; return how many had a result, and how the child failed, if it did."""
    shared = mmap.mmap(-1, 16)
    with tempfile.TemporaryFile("w+") as error, tempfile.TemporaryDirectory() as folder:

        def read_all() -> None:
            os.dup2(error.fileno(), 2)
            os.chdir(folder)
            os.environ["XDG_CACHE_HOME"] = folder
            _read_all(parser, corpus, f"{name} {seed}", range(first, first + count), shared)

        ended = end_of(begin_in_child(read_all, seconds=0))
        number, read = struct.unpack("qq", shared[:16])
        error.seek(0)
        return read, f"{name}: input {number} of seed {seed} ends with {ended}\n{error.read()[-6000:]}" if ended else ""


def _read_all(parser: Parser, corpus: list[Any], key: str, numbers: range, shared: mmap.mmap) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    read = 0
    for number in numbers:
        shared[:16] = struct.pack("qq", number, read)
        draw = random.Random(f"{key} {number}")
        changed = draw.choice(corpus) if number % 100 == 0 else parser.change(draw.choice(corpus), corpus, draw)
        if not SANITIZED:
            _limit_memory(BYTES + 2 * sum(map(len, changed.values() if isinstance(changed, dict) else [changed])))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        read += bool(parser.read(changed))
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    shared[:16] = struct.pack("qq", number, read)


def _limit_memory(more: int) -> None:
    """Have all allocations fail that take more than so many bytes in all."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, resource.RLIM_INFINITY))


def main(arguments: list[str]) -> int:
    arguments_of = argparse.ArgumentParser(prog="python -m tests.faults.fuzzing", description=__doc__)
    arguments_of.add_argument("--seconds", type=float, default=float("inf"), help="read as many inputs as fit")
    arguments_of.add_argument("--count", type=int, default=1 << 40, help="of inputs for each parser")
    arguments_of.add_argument("--first", type=int, default=0, help="the number of the first input")
    arguments_of.add_argument("--seed", type=int, default=1)
    arguments_of.add_argument("--only", choices=PARSERS, nargs="+", default=list(PARSERS))
    arguments_of.add_argument("--jobs", type=int, default=1, help="processes at a time")
    options = arguments_of.parse_args(arguments)
    deadline = time.monotonic() + options.seconds
    corpora = {name: PARSERS[name].corpus() for name in options.only}
    limits._BLOCK = 0  # of memory for batches to come: no file causes it
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, corpus in corpora.items():  # what is imported at the first input is none of it
            list(map(PARSERS[name].read, corpus))
    end = options.first + options.count

    def work(lane: int, tell: Callable[[object], None]) -> None:
        for first in range(options.first + lane * CHUNK, end, options.jobs * CHUNK):
            for name, corpus in corpora.items():
                count = min(CHUNK, end - first)
                if time.monotonic() > deadline:
                    return
                tell((name, count, *run_chunk(PARSERS[name], corpus, name, options.seed, first, count)))

    inputs, results, failures = Counter[str](), Counter[str](), list[str]()
    told: Any
    for told in lanes(options.jobs, work):
        name, count, read, failure = told
        inputs[name] += count
        results[name] += read
        if failure:
            failures.append(failure)
            sys.stdout.write(f"{failure}\n")
    held = {name: (inputs[name], results[name], len(corpus)) for name, corpus in corpora.items()}
    sys.stdout.write(json.dumps(held) + "\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
