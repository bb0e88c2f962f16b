"""``penstock plan-capacity``: the cores, bandwidths and cache that a job of many GPUs needs, and what is scarcest."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from penstock.cli.numbers import positive
from penstock.cli.terminal import write_lines
from penstock.errors import InvalidOption
from penstock.insight.capacity import Capacity, Job, Machines, capacity, measured_costs
from penstock.system.words import bytes_in

_DESCRIPTION = (
    "Computes what a job needs of its nodes from measured rates, and prints each need with its formula, what there is, "
    "and the weakest link. The costs of a sample are those that `penstock doctor DATASET --json` measured, or given. "
    "Exit code 1: something is not enough."
)


def _size(text: str) -> float:
    try:
        return float(bytes_in(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return found


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    words = "compute what a job of many GPUs needs of its machines"
    plan = verbs.add_parser("plan-capacity", help=words, description=_DESCRIPTION, allow_abbrev=False)
    plan.add_argument("--gpus", type=positive, required=True, metavar="N", help="of the whole job")
    plan.add_argument("--rate", type=_number, required=True, metavar="R", help="samples a second that a GPU takes")
    plan.add_argument("--measured", metavar="FILE", help="what `penstock doctor DATASET --json` printed")
    plan.add_argument("--cpu-ms", type=_number, metavar="MS", help="CPU time of a sample, in place of the measured one")
    plan.add_argument("--stored", type=_size, metavar="SIZE", help="of a sample in its file (measured)")
    plan.add_argument("--batched", type=_size, metavar="SIZE", help="of a sample in its batch, such as 600KB")
    plan.add_argument("--dataset", type=_size, metavar="SIZE", help="of all files")
    there = plan.add_argument_group("what there is")
    there.add_argument("--nodes", type=positive, default=1, metavar="N", help="of the job (1)")
    there.add_argument("--cores", type=_number, metavar="N", help="of a node, for data")
    there.add_argument("--storage", type=_size, metavar="SIZE", help="that a node reads in a second, such as 2GB")
    there.add_argument("--network", type=_size, metavar="SIZE", help="that a node receives in a second")
    there.add_argument("--cache", type=_size, metavar="SIZE", help="of a node, for cache=")
    plan.add_argument("--json", action="store_true", help="print a JSON object instead of a table")
    plan.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    given = arguments
    cpu, stored = None, None
    if given.measured is not None:
        cpu, stored = measured_costs(Path(given.measured).read_text(encoding="utf-8"))
    cpu = cpu if given.cpu_ms is None else given.cpu_ms / 1e3
    if cpu is None:
        raise InvalidOption("nothing says what a sample costs: give --measured or --cpu-ms")
    job = Job(given.gpus, given.rate, cpu, given.stored or stored, given.batched, given.dataset)
    found = capacity(job, Machines(given.nodes, given.cores, given.storage, given.network, given.cache))
    write_lines(json.dumps(found.as_dict(), indent=1).splitlines() if given.json else _table(found))
    weakest = found.weakest
    return 1 if weakest is not None and (weakest.share or 0.0) < 1 else 0


def _table(found: Capacity) -> list[str]:
    """Return a row for each need, and the weakest link."""
    rows = [("need", "needed", "there is", "formula")]
    for need in found.needs:
        there = "unknown" if need.there is None else need.words(need.there)
        rows.append((need.name, need.words(need.needed), there, need.formula))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*(cell.ljust(size) for cell, size in zip(row, widths, strict=False)), row[3]]) for row in rows]
    return [*lines, "", found.sentence()]
