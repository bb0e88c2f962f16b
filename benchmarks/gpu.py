"""`python -m benchmarks.gpu [--quick] [--seconds S] [--photos FOLDER] [--out FILE.json]`: what feeding a GPU costs.

One command for a machine with a GPU and no network: it needs torch, numpy and Penstock, and takes torchvision where it
is there. `--cpu` measures the part that needs no GPU. All contestants live in this process, since they share the GPU;
in each round each has its turn, and one loader is at work at a time. Without a CUDA device it says so and ends with
status 2.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks import gpu_cpu, gpu_small, gpu_training, harness, machine
from benchmarks.harness import Contestant, Facts, Options, Question, Running, Setup, Table, say
from benchmarks.process import ROOT, Outcome

PARTS = ("bandwidth", "overhead", "training", "cache", "cpu")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, help="the JSON file (benchmarks/results/gpu.json, or build/quick/gpu.json)")
    parser.add_argument("--quick", action="store_true", help="small and short: shows that all runs, measures nothing")
    parser.add_argument("--seconds", type=float, help="of a contestant's turn in a round (1; 0.2 with --quick)")
    parser.add_argument("--rounds", type=int, help="turns of each contestant (5; 2 with --quick)")
    parser.add_argument("--batch", type=int, help="of the training step (256; 32 with --quick)")
    parser.add_argument("--workers", type=int, help="of every loader (the usable cores, 16 at most)")
    parser.add_argument("--photos", type=Path, help="a folder of JPEG photos in folders, one a class")
    parser.add_argument("--only", action="append", default=[], choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--cpu", action="store_true", help="the part that needs no GPU, alone")
    given = parser.parse_args(arguments)
    parts = ["cpu"] if given.cpu else [part for part in PARTS if not given.only or part in given.only]
    if parts != ["cpu"] and not has_cuda():
        say(
            "benchmarks.gpu: torch finds no CUDA device here, so that nothing about a GPU can be measured. "
            "Give --cpu for the part that needs none."
        )
        return 2
    seconds = given.seconds or (0.2 if given.quick else 1.0)
    setup = Setup(
        str(given.photos or ""),
        samples=0,
        batch=given.batch or (32 if given.quick else 256),
        workers=given.workers or min(16, len(os.sched_getaffinity(0))),
        facts={"seconds": seconds, "quick": given.quick},
    )
    rounds = given.rounds or (2 if given.quick else 5)
    out = given.out or (ROOT / "build" / "quick" if given.quick else ROOT / "benchmarks" / "results") / "gpu.json"
    facts: Facts = {
        "question": "gpu",
        "title": "Feeding a GPU",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": given.quick,
        "machine": {**machine.describe(), **device(), "load_average_before": round(os.getloadavg()[0], 2)},
        "data": {"batch": setup.batch, "workers": setup.workers, **setup.facts},
        "tables": [],
    }
    for part in parts:
        for table in tables(part, setup):
            facts["tables"].append(run_table(table, setup, rounds))
            write(out, facts)  # what was measured is kept if the next part takes the process down
    say(f"gpu: written to {out}")
    missed = sum(target["met"] is False for table in facts["tables"] for target in table["targets"])
    if missed and not given.quick:
        say(f"{missed} target(s) missed")
    return 0


def tables(part: str, setup: Setup) -> list[Table]:
    makers: dict[str, Callable[[Setup], list[Table]]] = {
        "bandwidth": gpu_small.bandwidth,
        "overhead": gpu_small.overhead,
        "training": gpu_training.tables,
        "cache": gpu_small.cache_tables,
        "cpu": gpu_cpu.tables,
    }
    return makers[part](setup)


def has_cuda() -> bool:
    with warnings.catch_warnings():  # torch warns of a driver that does not answer
        warnings.simplefilter("ignore")
        return torch.cuda.is_available()


def device() -> Facts:
    """The GPU and what drives it."""
    facts: Facts = {"torch": torch.__version__, "cuda_of_torch": torch.version.cuda}
    if has_cuda():
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "gpu": properties.name,
            "gpus": torch.cuda.device_count(),
            "gpu_memory_gb": round(properties.total_memory / 1e9, 1),
            "capability": f"{properties.major}.{properties.minor}",
            "cudnn": torch.backends.cudnn.version(),
            "driver": driver(),
        }
    return facts


def driver() -> str:
    """The version of the kernel's driver, as it says itself."""
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return "does not say"


def run_table(table: Table, setup: Setup, rounds: int) -> Facts:
    """Interleaved rounds of one table, reduced to medians, ratios and targets, and printed."""
    outcomes = {one.name: Outcome() for one in table.contestants}
    ready: dict[str, Running] = {}
    for one in table.contestants:
        with turn(one, outcomes[one.name]):
            missing = [name for name in one.packages if machine.version(name) == "not installed"]
            if missing:
                outcomes[one.name].status = f"{', '.join(missing)} is not installed"
                continue
            say(f"gpu {table.name}: {one.name}, warming up")
            ready[one.name] = one.build(dataclasses.replace(setup, variant=table.name))
            ready[one.name].epoch()
    for number in range(rounds):
        say(f"gpu {table.name}: round {number + 1} of {rounds}")
        for one in table.contestants:
            outcome = outcomes[one.name]
            if outcome.status == "measured":
                with turn(one, outcome):
                    numbers = ready[one.name].epoch()
                    assert isinstance(numbers, dict)
                    outcome.rounds.append(numbers)
    for name, running in ready.items():
        if running.explain is not None and outcomes[name].status == "measured":
            outcomes[name].explain = str(running.explain())
    ready.clear()
    free()
    if has_cuda():
        torch.cuda.empty_cache()
    return reduced(table, rounds, outcomes)


def reduced(table: Table, rounds: int, outcomes: dict[str, Outcome]) -> Facts:
    rows = [harness.row(one, outcomes[one.name], table.measures) for one in table.contestants]
    harness.add_ratios(rows, table.measures[0])
    facts: Facts = {
        "name": table.name,
        "title": table.title,
        "rounds": rounds,
        "order": "each contestant once per round, in the order of the rows; one loader at work at a time",
        "contestants": rows,
        "targets": [harness.check(target, rows) for target in table.targets],
    }
    harness.show(Question("gpu", "Feeding a GPU", (table,), no_data), table, facts)
    return facts


def no_data(options: Options) -> Setup:
    raise NotImplementedError("this question makes its data in memory")


@contextmanager
def turn(contestant: Contestant, outcome: Outcome) -> Iterator[None]:
    """What a contestant raises is its status; nothing of its loader is left for the next one."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        outcome.status = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        say(f"gpu: {contestant.name}: {outcome.status}")
    free()


def free() -> None:
    gc.collect()
    if has_cuda():
        torch.cuda.synchronize()


def write(path: Path, facts: Facts) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
