"""`python -m benchmarks.diagnosis [--quick] [--only CASE] [--load N] [--out FILE]`: is the first finding right?

Loops that are slow for a known cause, each in a process of its own, without and beside N busy processes (8): what
penstock.insight.diagnosis finds first, what it predicts of its change, and what the change gives, both ways in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.process import say

SECONDS, QUICK_SECONDS = 4.0, 1.5
LOAD = 8
#: A busy process, which ends with the one that began it.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"


@dataclasses.dataclass(frozen=True)
class Case:
    """A loop with a known cause."""

    cause: str
    build: Callable[[Path], tuple[Any, Callable[[Any], object] | None]]
    """Writes its data into a folder, and returns what makes its loader, and its step."""
    cpus: int | None = None
    """CPUs that the process is given, as a cgroup's quota would; None: all."""


def busy(seconds: float) -> None:
    """Work in Python, under its lock, for so much of the calling thread's CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Samples:
    """A dataset of a user's own."""

    def __init__(self, make: Callable[[int], Any], size: int = 100_000) -> None:
        self.make, self.size = make, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def loop(dataset: Any, step: float = 0.0, **options: Any) -> tuple[Any, Callable[[Any], object] | None]:
    """Return what makes the loader of a dataset, and a step that leaves its CPU alone for so many seconds."""
    import penstock

    def make(**changed: Any) -> Any:
        return penstock.DataLoader(dataset, **{"batch_size": 16, "num_workers": 2, **options, **changed})

    return make, (lambda batch: time.sleep(step)) if step else None


def sample(index: int, run: float = 0.0, sleep: float = 0.0) -> Any:
    import torch

    busy(run)
    time.sleep(sleep)
    return torch.zeros(64)


def slow_disk(folder: Path) -> Any:
    for number in range(64):
        (folder / str(number)).write_bytes(os.urandom(4096))
    os.sync()

    def read(index: int) -> Any:
        with open(folder / str(index % 64), "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.read()
        return sample(index, sleep=0.004)  # as a disk that is slow to answer

    return loop(Samples(read), step=0.005)


def slow_decoding(folder: Path) -> Any:
    from PIL import Image
    from torchvision import transforms

    import penstock

    random = np.random.default_rng(0)
    (folder / "a").mkdir()
    small = random.integers(0, 255, (60, 80, 3), dtype=np.uint8)
    for number in range(200):
        Image.fromarray(small).resize((1280, 960)).save(folder / "a" / f"{number:03}.jpg", quality=92)
    transform = transforms.Compose([transforms.Resize(224), transforms.CenterCrop(224), transforms.ToTensor()])
    return loop(penstock.ImageFolder(str(folder), transform), step=0.01, num_workers=1)


def slow_python(folder: Path) -> Any:
    return loop(Samples(lambda index: sample(index, run=0.003)), step=0.005, num_workers=1)


def locked(folder: Path) -> Any:
    return loop(Samples(lambda index: sample(index, run=0.003)), step=0.005, worker_method="thread", share_dataset=True)


def tiny_batches(folder: Path) -> Any:
    import penstock

    return loop(penstock.Arrays(np.zeros((200_000, 16), np.float32)), batch_size=1)


def few_cpus(folder: Path) -> Any:
    return loop(Samples(lambda index: sample(index, run=0.003)), step=0.005)


def copies(folder: Path) -> Any:
    import penstock

    return loop(penstock.Arrays(np.zeros((2_000, 3, 224, 224), np.float32)), num_workers=1)


def compute(folder: Path) -> Any:
    return loop(Samples(lambda index: sample(index)), step=0.03)


def outliers(folder: Path) -> Any:
    return loop(Samples(lambda index: sample(index, sleep=0.3 if index % 1600 == 799 else 0)), step=0.004)


def sleeping(folder: Path) -> Any:
    return loop(Samples(lambda index: sample(index, sleep=0.01)), num_workers=0)


CASES = {
    "slow disk": Case("read", slow_disk),
    "slow decoding": Case("decode", slow_decoding),
    "slow Python": Case("python", slow_python),
    "Python's lock": Case("lock", locked),
    "tiny batches": Case("overhead", tiny_batches),
    "too few CPUs": Case("a free CPU", few_cpus, cpus=1),
    "copies": Case("copy", copies),
    "compute": Case("compute", compute),
    "a straggling sample": Case("outliers", outliers),
    "no workers": Case("blocked", sleeping),
}


def run(name: str, seconds: float) -> dict[str, Any]:
    """Diagnose a case in this process."""
    from penstock.carriers import choice as selection
    from penstock.insight.diagnosis import _gain, _run, diagnose
    from penstock.verdict import findings, verdict

    case = CASES[name]
    every = os.sched_getaffinity(0)
    if case.cpus is not None:
        os.sched_setaffinity(0, sorted(every)[: case.cpus])
        vars(selection).update(host_cpus=lambda: len(every), cpu_quota=lambda: float(case.cpus))
    build = Path(__file__).parents[1] / "build"  # on a disk, as /tmp need not be
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as folder:
        make, step = case.build(Path(folder))
        found = diagnose(make, step, seconds=seconds)
        first = found.findings[0]
        gain = _gain(make, first, step, seconds) if first.options else None
        if case.cpus is not None:
            limited = _run(make(), step, seconds)[0]
            os.sched_setaffinity(0, every)
            gain = _run(make(num_workers=len(every)), step, seconds)[0] / limited
        if not first.change:
            gain = 1.0
    return {
        "case": name,
        "cause": case.cause,
        "found": [f"{one.cause}: {one.change or 'nothing'}: {one.gain:.2f}" for one in findings(found.measured)],
        "right": first.cause == case.cause,
        "predicted": round(first.gain, 2),
        "measured": None if gain is None else round(gain, 2),
        "verdict": verdict(found.measured),
    }


@contextlib.contextmanager
def beside(load: int) -> Iterator[None]:
    """Keep so many processes busy."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(load)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(name: str, load: int, *, quick: bool) -> dict[str, Any]:
    """Diagnose a case in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.diagnosis", "--case", name, *(["--quick"] if quick else [])]
    before = os.getloadavg()[0]
    with beside(load):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return {**json.loads(done.stdout.splitlines()[-1]), "busy_processes": load, "load_average_before": round(before, 2)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short: shows that all runs, measures little")
    parser.add_argument("--only", action="append", default=[], choices=CASES, help="only this case; may be repeated")
    parser.add_argument("--load", type=int, help=f"only beside so many busy processes (0 and {LOAD})")
    parser.add_argument("--out", type=Path, help="the JSON file (benchmarks/results/diagnosis.json)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    seconds = QUICK_SECONDS if given.quick else SECONDS
    if given.case:
        print(json.dumps(run(given.case, seconds)))
        return 0
    results = []
    for load in (0, LOAD) if given.load is None else (given.load,):
        for name in given.only or CASES:
            say(f"diagnosis: {name}, beside {load} busy processes")
            result = measure(name, load, quick=given.quick)
            results.append(result)
            right = "right" if result["right"] else "WRONG"
            numbers = f"predicted {result['predicted']}  measured {result['measured']}"
            print(f"{name:20} load {load}  {result['cause']:9} {right}  {numbers}", flush=True)
            print(f"{'':20} {'; '.join(result['found'])}\n{'':20} {result['verdict']}", flush=True)
        own = [result["right"] for result in results if result["busy_processes"] == load]
        print(f"beside {load} busy processes: {sum(own)} of {len(own)} right")
    default = Path("build/quick" if given.quick else Path(__file__).parent / "results") / "diagnosis.json"
    out = given.out or default
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine.describe(), "seconds": seconds, "cases": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
