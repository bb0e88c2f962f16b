"""Penstock's loader beside torch's on random cases: `python -m tests.differential --minutes 10`."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.multiprocessing
import torchvision.transforms.v2
from PIL import Image

import penstock
from tests.differential.case import Case
from tests.differential.making import case_of, light_case_of, quick_case_of
from tests.differential.running import LIMIT, lanes, verdict_of, verdicts_of

with contextlib.suppress(ImportError):
    importlib.import_module("pandas")
#: Light cases that one process runs.
TOGETHER = 200
#: Forked processes have these from the start.
PRELOADED = (Image, numpy, penstock, torch.multiprocessing, torchvision.transforms.v2)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--minutes", type=float, help="run as many cases as fit")
    parser.add_argument("--cases", type=int, help="run so many cases")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next one's is one more")
    parser.add_argument("--case", type=int, help="print the program of one case, and run it")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that a case may take")
    parser.add_argument("--undefined", action="store_true", help="print, too, where torch's loader varies")
    parser.add_argument("--quick", action="store_true", help="without what takes seconds: spawned workers, trials")
    parser.add_argument("--light", action="store_true", help="cases that start no process, many in one process")
    parser.add_argument("--kind", choices=("indexing",), help="only cases of datasets whose __getitem__ indexes")
    parser.add_argument("--into", type=Path, help="a folder for the programs of failing cases")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what the imports have made is no work for each fork
    if options.case is not None:
        case = _making(options)(options.case)
        print(case.program())
        verdict = verdict_of(case, options.limit)
        print(verdict.word, *verdict.lines, sep="\n")
        return verdict.word == "fault"
    return _soak(options)


def _making(options: argparse.Namespace) -> Callable[[int], Case]:
    making = light_case_of if options.light else quick_case_of if options.quick else case_of
    return partial(making, kind=options.kind)


def _soak(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    count = options.cases if options.cases is not None else sys.maxsize if options.minutes else 300
    deadline = begun + 60 * options.minutes if options.minutes else float("inf")

    def work(lane: int, tell: Callable[[object], None]) -> None:
        seeds = iter(range(options.seed + lane, options.seed + count, options.jobs))
        while (some := list(itertools.islice(seeds, TOGETHER if options.light else 1))) and time.monotonic() < deadline:
            cases = [_making(options)(seed) for seed in some]
            begins = time.monotonic()
            verdicts = verdicts_of(cases, options.limit) if options.light else map(verdict_of, cases, [options.limit])
            for seed, case, verdict in zip(some, cases, verdicts, strict=True):
                tell((seed, case, verdict, time.monotonic() - begins))
                begins = time.monotonic()

    counts, slowest = Counter[str](), list[tuple[float, int]]()
    told: Any
    for told in lanes(options.jobs, work):
        seed, case, verdict, seconds = told
        counts[verdict.word] += 1
        slowest = sorted([*slowest, (round(seconds, 1), seed)])[-5:]
        if verdict.word in ("fault", "broken") or (verdict.word == "undefined" and options.undefined):
            print(f"\n{verdict.word} {seed}: {case}", *verdict.lines, sep="\n", flush=True)
            if options.into:
                options.into.mkdir(exist_ok=True)
                text = "\n".join(f"# {line}" for line in verdict.lines)
                (options.into / f"case_{seed}.py").write_text(f"{text}\n{case.program()}")
    total, seconds = sum(counts.values()), time.monotonic() - begun
    print(f"\n{total:,} cases from seed {options.seed} on in {seconds:.0f} s, {total / seconds:.1f} a second")
    print(", ".join(f"{count:,} {word}" for word, count in counts.most_common()))
    print(f"the slowest (seconds, seed): {slowest}")
    return int(counts["fault"] + counts["broken"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
