"""`python -m benchmarks [question ...] [--quick] [--photos FOLDER]`: measures and writes benchmarks/results/*.json."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

from benchmarks import harness
from benchmarks.process import ROOT
from benchmarks.question import Options

QUESTIONS = (
    "tensor_files", "cold", "cache", "shards", "pack", "remote", "arrays", "arrow", "photos", "jpeg", "augmentations",
    "cifar", "always_on", "no_regret", "index", "startup", "python_datasets", "own_classes", "recipes", "scenes",
    "state", "tuning", "ray", "sounds", "rows",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("questions", nargs="*", metavar="question", help=f"some of: {', '.join(QUESTIONS)} (all)")
    parser.add_argument("--quick", action="store_true", help="small data, 2 rounds: shows that all runs")
    parser.add_argument("--rounds", type=int, help="measured epochs per contestant (5; 2 with --quick)")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="only contestants named so")
    parser.add_argument("--case", action="append", default=[], metavar="WORD", help="only tables named so")
    parser.add_argument("--photos", type=Path, help="an image folder (../shared/data/photos when there)")
    parser.add_argument("--ids", type=int, help="files of the startup question (1,000,000; 20,000 with --quick)")
    parser.add_argument("--cache", type=Path, help="where data is made once (in the temporary folder)")
    parser.add_argument("--results", type=Path, help="where the JSON goes (benchmarks/results, or build/quick)")
    parser.add_argument("--peers", type=Path, help="the peers' Python (build/peers/bin/python when there)")
    parser.add_argument("--before", type=Path, help="the Python of an environment with another build of Penstock")
    given = parser.parse_args()
    unknown = [name for name in given.questions if name not in QUESTIONS]
    if unknown:
        parser.error(f"no such question: {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    photos = ROOT.parent / "shared" / "data" / "photos"
    peers = given.peers or ROOT / "build" / "peers" / "bin" / "python"
    options = Options(
        cache=(given.cache or Path(tempfile.gettempdir()) / f"penstock-bench-{os.getuid()}").resolve(),
        rounds=given.rounds or (2 if given.quick else 5),
        quick=given.quick,
        photos=given.photos or (photos if photos.is_dir() else None),
        ids=given.ids,
        peers_python=str(peers.absolute()) if peers.exists() else sys.executable,
        only=tuple(given.only),
        cases=tuple(given.case),
        before=None if given.before is None else str(given.before.absolute()),
    )
    options.cache.mkdir(parents=True, exist_ok=True)
    results = given.results or harness.results(given.quick)
    for name in given.questions or QUESTIONS:
        question = importlib.import_module(f"benchmarks.{name}").QUESTION
        harness.answer(question, options, results / f"{name}.json")


if __name__ == "__main__":
    main()
