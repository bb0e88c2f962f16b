"""`python -m benchmarks.run_cost [--quick] [--out FILE.json]`: what `penstock run` adds, and what --replace gives.

The script is the well-known tutorial's: a class whose samples are ID.pt files read by torch.load, torch's loader with
two worker processes, a small network. It runs with Python and under `penstock run`, in turns; the times compared are
those of its epochs, which it says itself: what both do before and after, above all the import of torch, is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, tensor_files
from benchmarks.process import progress, say
from benchmarks.question import made

SAMPLES, ROUNDS, EPOCHS = 8_000, 5, 4
QUICK_SAMPLES, QUICK_ROUNDS, QUICK_EPOCHS = 512, 1, 1
PLAIN, RUN = "python", "penstock run"

SCRIPT = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Tutorial(Dataset):
    def __init__(self, folder, ids):
        self.folder, self.ids = folder, ids
    def __len__(self):
        return len(self.ids)
    def __getitem__(self, index):
        return torch.load(os.path.join(self.folder, self.ids[index])), index % 10

if __name__ == "__main__":
    folder, epochs = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    loader = DataLoader(Tutorial(folder, sorted(os.listdir(folder))), batch_size=64, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    began = time.perf_counter()
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    print("epochs took", time.perf_counter() - began)
"""


def epochs_take(command: list[str]) -> float:
    """Run the script once, and return the seconds of its epochs."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, env=environment)
    found = re.search(r"epochs took ([\d.]+)", done.stdout)
    if found is None:
        raise RuntimeError(f"{' '.join(command)} said no time: {done.stderr}")
    return float(found[1])


def measure(folder: Path, rounds: int, epochs: int) -> dict[str, Any]:
    """Return the seconds of each round, their medians and ratios, and what --replace says."""
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "train.py"
        script.write_text(SCRIPT)
        words = [str(script), str(folder), str(epochs)]
        commands = {PLAIN: [sys.executable, *words], RUN: [sys.executable, "-m", "penstock", "run", "--quiet", *words]}
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        with progress("run_cost", 2 * rounds + 1) as done:
            for _ in range(rounds):
                for name, command in commands.items():
                    seconds[name].append(epochs_take(command))
                    done(name)
            report = Path(place) / "replaced.json"
            replace = [*commands[RUN][:-3], "--replace", "--json", str(report), *words]
            subprocess.run(replace, capture_output=True, timeout=600, check=True)
            done("--replace")
        replaced = json.loads(report.read_text())
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratios = [under / plain for plain, under in zip(seconds[PLAIN], seconds[RUN], strict=True)]
    return {"seconds": seconds, "medians": medians, "added": statistics.median(ratios) - 1, "replaced": replaced}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short: shows that all runs, measures little")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "penstock-benchmarks")
    parser.add_argument("--out", type=Path, help="the JSON file (benchmarks/results/run_cost.json)")
    given = parser.parse_args()
    samples = QUICK_SAMPLES if given.quick else SAMPLES
    rounds, epochs = (QUICK_ROUNDS, QUICK_EPOCHS) if given.quick else (ROUNDS, EPOCHS)
    given.cache.mkdir(parents=True, exist_ok=True)
    folder = made(given.cache / f"run-{samples}", partial(tensor_files.write, samples=samples))
    say(f"run_cost: {rounds} rounds of {epochs} epochs of {samples:,} samples")
    found = measure(folder / "pt", rounds, epochs)
    for name, seconds in found["medians"].items():
        print(f"{name:14} {seconds:8.2f} s")
    print(f"penstock run adds {found['added']:.1%}, the median of the rounds")
    out = given.out or Path("build/quick" if given.quick else Path(__file__).parent / "results") / "run_cost.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    described = {"machine": machine.describe(), "torch_threads": torch.get_num_threads()}
    out.write_text(json.dumps({**described, **found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
