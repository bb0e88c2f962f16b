"""``penstock plan-capacity``: the cores, bandwidths and cache that a job of many GPUs needs, and what is scarcest.

Each need is a product of a few numbers, which its formula names: nothing here is measured, and no number is assumed but
the share of CPUs that work gets in practice (loop_model.SATURATED).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.cli.arguments import add_verb, number, positive
from penstock.cli.terminal import table, write_lines
from penstock.errors import InvalidOption
from penstock.loop_model import SATURATED
from penstock.system.words import bytes_in, compact, size_of

_DESCRIPTION = (
    "Computes what a job needs of its nodes from measured rates, and prints each need with its formula, what there is, "
    "and the weakest link. The costs of a sample are those that `penstock doctor DATASET --json` measured, or given. "
    "Exit code 1: something is not enough."
)
CORES = "CPU cores"


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    words = "compute what a job of many GPUs needs of its machines"
    plan = add_verb(verbs, "plan-capacity", _run, words, _DESCRIPTION)
    plan.add_argument("--gpus", type=positive, required=True, metavar="N", help="of the whole job")
    plan.add_argument("--rate", type=number, required=True, metavar="R", help="samples a second that a GPU takes")
    plan.add_argument("--measured", metavar="FILE", help="what `penstock doctor DATASET --json` printed")
    plan.add_argument("--cpu-ms", type=number, metavar="MS", help="CPU time of a sample, in place of the measured one")
    plan.add_argument("--stored", type=_size, metavar="SIZE", help="of a sample in its file (measured)")
    plan.add_argument("--batched", type=_size, metavar="SIZE", help="of a sample in its batch, such as 600KB")
    plan.add_argument("--dataset", type=_size, metavar="SIZE", help="of all files")
    there = plan.add_argument_group("what there is")
    there.add_argument("--nodes", type=positive, default=1, metavar="N", help="of the job (1)")
    there.add_argument("--cores", type=number, metavar="N", help="of a node, for data")
    there.add_argument("--storage", type=_size, metavar="SIZE", help="that a node reads in a second, such as 2GB")
    there.add_argument("--network", type=_size, metavar="SIZE", help="that a node receives in a second")
    there.add_argument("--cache", type=_size, metavar="SIZE", help="of a node, for cache=")
    plan.add_argument("--json", action="store_true", help="print a JSON object instead of a table")


def _size(text: str) -> float:
    try:
        return float(bytes_in(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _run(arguments: argparse.Namespace) -> int:
    cpu, stored = None, None
    if arguments.measured is not None:
        cpu, stored = measured_costs(Path(arguments.measured).read_text(encoding="utf-8"))
    cpu = cpu if arguments.cpu_ms is None else arguments.cpu_ms / 1e3
    if cpu is None:
        raise InvalidOption("nothing says what a sample costs: give --measured or --cpu-ms")
    given = {name: getattr(arguments, name) for name in Job.__dataclass_fields__ if name in arguments}
    job = Job(**{**given, "cpu_seconds": cpu, "stored": given["stored"] or stored})
    needs = list(job.needs())
    weakest = min((one for one in needs if one.counts), key=lambda one: one.share or 0.0, default=None)
    reached = None if weakest is None else job.rate * min(1.0, weakest.share or 0.0)
    if arguments.json:
        found = {
            "job": asdict(job),
            "needs": [{**asdict(one), "share": one.share} for one in needs],
            "weakest": weakest and weakest.name,
            "samples_per_second_and_gpu": reached,
        }
        write_lines(json.dumps(found, indent=1).splitlines())
    else:
        rows = [("need", "needed", "there is", "formula")]
        rows += [(one.name, one.words(one.needed), one.words(one.there), one.formula) for one in needs]
        write_lines([*table(rows), "", _sentence(job, weakest)])
    return 1 if weakest is not None and (weakest.share or 0.0) < 1 else 0


@dataclass(frozen=True)
class Need:
    """Something that the job needs of all nodes together."""

    name: str
    formula: str
    needed: float
    there: float | None
    """None: not known."""
    unit: str
    """cores, bytes or bytes/s."""
    optional: bool = False
    """The job reaches its rate without, where the other needs are met."""

    @property
    def share(self) -> float | None:
        """Return how much of the need is there; None: not known."""
        if self.there is None:
            return None
        return math.inf if not self.needed else self.there / self.needed

    @property
    def counts(self) -> bool:
        """Return whether it may be the weakest link."""
        return self.share is not None and not self.optional

    def words(self, amount: float | None) -> str:
        """Return an amount with its unit."""
        if amount is None:
            return "unknown"
        if self.unit == "cores":
            return f"{compact(amount)} cores"
        return f"{size_of(int(amount))}{self.unit.removeprefix('bytes')}"


@dataclass(frozen=True)
class Job:
    """A training job and its nodes. None: not known. Sizes are in bytes, and of a second where they are rates."""

    gpus: int
    rate: float
    """Samples a second that one GPU takes."""
    cpu_seconds: float
    """CPU time that one sample takes until it is in its batch."""
    stored: float | None = None
    """Of a sample in its file."""
    batched: float | None = None
    """Of a sample in its batch."""
    dataset: float | None = None
    """Of all files."""
    nodes: int = 1
    cores: float | None = None
    """Of a node, and so are the next ones."""
    storage: float | None = None
    """That it reads from where the files are: its disk, or its part of a shared store."""
    network: float | None = None
    """That it receives."""
    cache: float | None = None

    def needs(self) -> Iterator[Need]:
        """Yield what the job needs."""
        samples, gpus = self.gpus * self.rate, f"{self.gpus:,} GPUs x {compact(self.rate)} samples/s"

        def of_all(each: float | None) -> float | None:
            return None if each is None else each * self.nodes

        formula = f"{gpus} x {compact(1e3 * self.cpu_seconds)} ms / {SATURATED:.0%} of a core's time"
        cores = Need(CORES, formula, samples * self.cpu_seconds / SATURATED, of_all(self.cores), "cores")
        yield cores
        held = 0.0
        if self.dataset:  # a cache that holds a part of the dataset spares storage that part
            held = min(1.0, (self.cache or 0.0) / self.dataset)
            formula = (
                f"{self.nodes:,} nodes x {size_of(int(self.dataset))}: then storage is read in the first epoch alone, "
                "for each node comes to read each sample"
            )
            yield Need("cache", formula, self.dataset * self.nodes, of_all(self.cache), "bytes", optional=True)
        if self.stored is not None:
            kept = f" x {1 - held:.0%} that caches do not hold" if held > 0 else ""
            formula, needed = f"{gpus} x {size_of(int(self.stored))}{kept}", samples * self.stored * (1 - held)
            yield Need("storage bandwidth", formula, needed, of_all(self.storage), "bytes/s")
        if self.batched is not None:
            known = cores.share is not None
            elsewhere = max(0.0, 1 - (cores.share or 0.0))
            formula = f"{gpus} x {size_of(int(self.batched))} x {elsewhere:.0%} that is filled on other nodes"
            needed, there = samples * self.batched * elsewhere, of_all(self.network)
            yield Need("network for fillers", formula, needed, there, "bytes/s", optional=not known)


def _sentence(job: Job, weakest: Need | None) -> str:
    """Return the weakest link, and what would help."""
    if weakest is None or weakest.there is None or weakest.share is None:
        return "weakest link: unknown, for nothing says what the nodes have (--cores, --storage, --network, --cache)"
    if weakest.share >= 1:
        return f"enough of all; the nearest to its limit is {weakest.name}, of which {1 / weakest.share:.0%} is taken"
    missing = weakest.needed - weakest.there
    said = (
        f"weakest link: {weakest.name}; each GPU gets {compact(job.rate * weakest.share)} of {compact(job.rate)} "
        f"samples/s. {weakest.words(missing)} more are needed"
    )
    if weakest.name == CORES:
        said += f", such as {math.ceil(missing):,} fillers of one core each on other nodes (worker_method='ray')"
    return said


def measured_costs(text: str) -> tuple[float, float | None]:
    """Return (CPU seconds, bytes read) of a sample, as `penstock doctor DATASET --json` has measured them.

    The bytes are None where its loader read no files natively. Raises InvalidOption for another text.
    """
    try:
        stages = [stage for stage in json.loads(text)["loop"]["stages"].values() if stage["samples"]]
        cpu = sum(stage["cpu_seconds"] / stage["samples"] for stage in stages)
        read = max((stage["bytes"] / stage["samples"] for stage in stages), default=0.0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidOption(
            f"this is not what `penstock doctor DATASET --json` prints of a measured loop ({type(error).__name__}: "
            f"{error}): write its output to a file, and give that"
        ) from error
    if not cpu > 0:
        raise InvalidOption("the doctor's loop counted no CPU time: measure for longer, by its --seconds")
    return cpu, read or None
