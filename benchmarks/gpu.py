"""`python -m benchmarks.gpu [--quick] [--seconds S] [--photos FOLDER] [--out FILE.json]`: what feeding a GPU costs.

One command for a machine with a GPU and no network: it needs torch, numpy and Penstock, and takes torchvision where it
is there. `--cpu` measures the part that needs no GPU. All contestants live in this process, since they share the GPU;
one loader is at work at a time. Without a CUDA device the command says so and ends with status 2.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks import gpu_cores, gpu_cpu, gpu_small, gpu_training, harness
from benchmarks.process import say
from benchmarks.question import Facts, Host, Options, Question, Setup, Table

PARTS: dict[str, Callable[[Setup], list[Table]]] = {
    "bandwidth": gpu_small.bandwidth,
    "overhead": gpu_small.overhead,
    "training": gpu_training.tables,
    "cache": gpu_small.cached,
    "cores": partial(gpu_cores.tables, network="ResNet-50"),
    "cores-small": partial(gpu_cores.tables, network="small"),
    "cpu": gpu_cpu.tables,
}


def main() -> int:
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
    given = parser.parse_args()
    parts = ["cpu"] if given.cpu else [part for part in PARTS if not given.only or part in given.only]
    if parts != ["cpu"] and not has_cuda():
        say(
            "benchmarks.gpu: torch finds no CUDA device here, so that nothing about a GPU can be measured. "
            "Give --cpu for the part that needs none."
        )
        return 2
    setup = Setup(
        str(given.photos or ""),
        samples=0,
        batch=given.batch or (32 if given.quick else 256),
        workers=given.workers or min(16, len(os.sched_getaffinity(0))),
        facts={"seconds": given.seconds or (0.2 if given.quick else 1.0), "quick": given.quick},
    )
    if given.photos is None and any(part.startswith("cores") for part in parts):
        say("benchmarks.gpu: the parts about cores read photos: give --photos a folder of them, in folders.")
        parts = [part for part in parts if not part.startswith("cores")]
    tables = [dataclasses.replace(table, host=Host.HERE) for part in parts for table in PARTS[part](setup)]
    question = Question("gpu", "Feeding a GPU", tuple(tables), lambda options: setup, device)
    options = Options(given.rounds or (2 if given.quick else 5), given.quick)
    harness.answer(question, options, given.out or harness.results(given.quick) / "gpu.json")
    return 0


def has_cuda() -> bool:
    with warnings.catch_warnings():  # torch warns of a driver that does not answer
        warnings.simplefilter("ignore")
        return torch.cuda.is_available()


def device() -> Facts:
    """The GPU and its drivers."""
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
    """The version that the kernel's driver reports."""
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return "does not say"


if __name__ == "__main__":
    raise SystemExit(main())
