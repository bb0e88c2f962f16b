"""``penstock plan-capacity``: the cores, bandwidths and cache that a job of many GPUs needs, and what is scarcest.

Each need is a product of a few numbers, which its formula names: nothing here is measured, and no number is assumed but
the share of CPUs that work gets in practice (loop_model.SATURATED).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.cli.terminal import add_verb, number, positive, table, write_lines
from penstock.errors import InvalidOption
from penstock.loop_model import SATURATED
from penstock.system.words import bytes_in, compact, size_of

_DESCRIPTION = (
    "Computes what a job needs of its nodes from measured rates, and prints each need with its formula, the given "
    "amount, and the weakest link. `penstock doctor DATASET --json` measures the costs of a sample, or they are given. "
    "Exit code 1: an amount is too small."
)
CORES = "CPU cores"


def add_parser(verbs: Any) -> None:
    plan = add_verb(verbs, "plan-capacity", _run, description=_DESCRIPTION)
    plan.add_argument("--gpus", type=positive, required=True, metavar="N", help="GPUs of the whole job")
    plan.add_argument("--rate", type=number, required=True, metavar="R", help="samples per second that one GPU takes")
    plan.add_argument("--measured", metavar="FILE", help="a file with the output of `penstock doctor DATASET --json`")
    plan.add_argument("--cpu-ms", type=number, metavar="MS", help="CPU milliseconds per sample (measured)")
    plan.add_argument("--stored", type=_size, metavar="SIZE", help="bytes of a sample in its file (measured)")
    plan.add_argument("--batched", type=_size, metavar="SIZE", help="bytes of a sample in its batch, such as 600KB")
    plan.add_argument("--dataset", type=_size, metavar="SIZE", help="bytes of all files")
    there = plan.add_argument_group("what the nodes have")
    there.add_argument("--nodes", type=positive, default=1, metavar="N", help="nodes of the job (1)")
    there.add_argument("--cores", type=number, metavar="N", help="CPU cores of a node for data loading")
    there.add_argument("--storage", type=_size, metavar="SIZE", help="bytes that a node reads per second, such as 2GB")
    there.add_argument("--network", type=_size, metavar="SIZE", help="bytes that a node receives per second")
    there.add_argument("--cache", type=_size, metavar="SIZE", help="bytes of a node for cache=")
    plan.add_argument("--json", action="store_true", help="print a JSON object instead of a table")


def _size(text: str) -> float:
    try:
        return float(bytes_in(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _run(arguments: argparse.Namespace) -> int:
    given = arguments
    cpu, stored = None, None
    if given.measured is not None:
        cpu, stored = measured_costs(Path(given.measured).read_text("utf-8", "replace"), given.measured)
    cpu = cpu if given.cpu_ms is None else given.cpu_ms / 1e3
    if cpu is None:
        raise InvalidOption("the cost of a sample is unknown: give --measured or --cpu-ms")
    needs = list(_needs(given, cpu, given.stored or stored))
    known = [one for one in needs if one.there is not None and not one.optional]
    weakest = min(known, key=lambda one: one.share, default=None)
    if given.json:
        reached = None if weakest is None else given.rate * min(1.0, weakest.share)
        found = {"needs": [{**one._asdict(), "share": None if one.there is None else one.share} for one in needs]}
        told = {**found, "weakest": weakest and weakest.name, "samples_per_second_and_gpu": reached}
        write_lines(json.dumps(told, indent=1).splitlines())
    else:
        rows = [("need", "needed", "there is", "formula")]
        rows += [(one.name, one.words(one.needed), one.words(one.there), one.formula) for one in needs]
        write_lines([*table(rows), "", _sentence(given.rate, weakest)])
    return 1 if weakest is not None and weakest.share < 1 else 0


class Need(NamedTuple):
    """Something that the job needs of all nodes together."""

    name: str
    formula: str
    needed: float
    there: float | None
    """None: not known."""
    unit: str = "bytes/s"
    """cores, bytes or bytes/s."""
    optional: bool = False
    """The job reaches its rate without, where the other needs are met."""

    @property
    def share(self) -> float:
        """Return how much of the need is there: 0 where that is not known."""
        return (self.there or 0.0) / self.needed if self.needed else math.inf

    def words(self, amount: float | None) -> str:
        if amount is None:
            return "unknown"
        if self.unit == "cores":
            return f"{compact(amount)} cores"
        return f"{size_of(int(amount))}{self.unit.removeprefix('bytes')}"


def _needs(job: argparse.Namespace, cpu_seconds: float, stored: float | None) -> Iterator[Need]:
    """Yield what a job needs, whose samples take so many seconds of a CPU, and so many bytes in their files."""
    samples, gpus = job.gpus * job.rate, f"{job.gpus:,} GPUs x {compact(job.rate)} samples/s"

    def of_all(each: float | None) -> float | None:
        return None if each is None else each * job.nodes

    formula = f"{gpus} x {compact(1e3 * cpu_seconds)} ms / {SATURATED:.0%} of a core's time"
    cores = Need(CORES, formula, samples * cpu_seconds / SATURATED, of_all(job.cores), "cores")
    yield cores
    held = 0.0
    if job.dataset:  # a cache that holds a part of the dataset spares storage that part
        held = min(1.0, (job.cache or 0.0) / job.dataset)
        formula = (
            f"{job.nodes:,} nodes x {size_of(int(job.dataset))}: then storage is read only in the first epoch; "
            "every node reads every sample in time"
        )
        yield Need("cache", formula, job.dataset * job.nodes, of_all(job.cache), "bytes", optional=True)
    if stored is not None:
        kept = f" x {1 - held:.0%} outside of the caches" if held > 0 else ""
        formula = f"{gpus} x {size_of(int(stored))}{kept}"
        yield Need("storage bandwidth", formula, samples * stored * (1 - held), of_all(job.storage))
    if job.batched is not None:
        elsewhere = max(0.0, 1 - cores.share)
        formula = f"{gpus} x {size_of(int(job.batched))} x {elsewhere:.0%} of the batches, filled on other nodes"
        needed = samples * job.batched * elsewhere
        yield Need("network for fillers", formula, needed, of_all(job.network), optional=cores.there is None)


def _sentence(rate: float, weakest: Need | None) -> str:
    """Return the weakest link, and what would help."""
    if weakest is None or weakest.there is None:
        return "weakest link: unknown: give what the nodes have (--cores, --storage, --network, --cache)"
    if weakest.share >= 1:
        return f"nothing is short; the nearest to its limit is {weakest.name}, of which {1 / weakest.share:.0%} is used"
    missing = weakest.needed - weakest.there
    said = (
        f"weakest link: {weakest.name}; each GPU gets {compact(rate * weakest.share)} of {compact(rate)} samples/s. "
        f"{weakest.words(missing)} more are needed"
    )
    if weakest.name == CORES:
        said += f", such as {math.ceil(missing):,} fillers of one core each on other nodes (worker_method='ray')"
    return said


def measured_costs(text: str, file: str) -> tuple[float, float | None]:
    """Return (CPU seconds, bytes read) of a sample, as `penstock doctor DATASET --json` has measured them.

    The bytes are None where its loader read no files natively. Raises InvalidOption for another text.
    """
    try:
        stages = [stage for stage in json.loads(text)["loop"]["stages"].values() if stage["samples"]]
        cpu = sum(stage["cpu_seconds"] / stage["samples"] for stage in stages)
        read = max((stage["bytes"] / stage["samples"] for stage in stages), default=0.0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidOption(
            f"{file} is not the output of `penstock doctor DATASET --json` with a measured loop "
            f"({type(error).__name__}: {error}): write that output to a file, and give the file"
        ) from error
    if not cpu > 0:
        raise InvalidOption("the doctor's loop measured no CPU time: measure for longer, with --seconds")
    return cpu, read or None
