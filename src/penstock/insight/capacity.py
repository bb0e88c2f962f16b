"""What a job of many GPUs needs of its machines, by measured rates: cores, bandwidths and cache, and what is scarcest.

Each need is a product of a few numbers, which its formula names: nothing here is measured, and no number is assumed but
the share of CPUs that work gets in practice (loop_model.SATURATED).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import InvalidOption
from penstock.loop_model import SATURATED
from penstock.system.words import compact, size_of

CORES = "CPU cores"


@dataclass(frozen=True)
class Job:
    """A training job. None: not known."""

    gpus: int
    rate: float
    """Samples a second that one GPU takes."""
    cpu_seconds: float
    """CPU time that one sample takes until it is in its batch."""
    stored_bytes: float | None = None
    """Of a sample in its file."""
    batch_bytes: float | None = None
    """Of a sample in its batch."""
    dataset_bytes: float | None = None
    """Of all files."""

    @property
    def samples(self) -> float:
        """Samples a second of all GPUs."""
        return self.gpus * self.rate


@dataclass(frozen=True)
class Machines:
    """The nodes of a job, each with so much. None: not known."""

    nodes: int = 1
    cores: float | None = None
    storage: float | None = None
    """Bytes a second that a node reads from where the files are: its disk, or its part of a shared store."""
    network: float | None = None
    """Bytes a second that a node receives."""
    cache: float | None = None
    """Bytes of a node's cache, for cache=."""


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

    def words(self, amount: float) -> str:
        """Return an amount with its unit."""
        if self.unit == "cores":
            return f"{compact(amount)} cores"
        return f"{size_of(int(amount))}{self.unit.removeprefix('bytes')}"


@dataclass(frozen=True)
class Capacity:
    """The needs of a job, and how far what is there goes."""

    job: Job
    machines: Machines
    needs: tuple[Need, ...]

    @property
    def weakest(self) -> Need | None:
        """Return the need of which least is there, None where it is known of none."""
        known = [need for need in self.needs if need.share is not None and not need.optional]
        return min(known, key=lambda need: need.share or 0.0, default=None)

    @property
    def reached(self) -> float | None:
        """Return the samples a second that a GPU gets with what is there; None: it is not known."""
        return None if self.weakest is None else self.job.rate * min(1.0, self.weakest.share or 0.0)

    def sentence(self) -> str:
        """Return the weakest link, and what would help."""
        weakest, job = self.weakest, self.job
        if weakest is None or weakest.there is None or self.reached is None:
            return (
                "weakest link: unknown, for nothing says what the nodes have (--cores, --storage, --network, --cache)"
            )
        if (weakest.share or 0.0) >= 1:
            taken = weakest.needed / weakest.there
            return f"enough of all; the nearest to its limit is {weakest.name}, of which {taken:.0%} is taken"
        said = (
            f"weakest link: {weakest.name}; each GPU gets {compact(self.reached)} of {compact(job.rate)} samples/s. "
            f"{weakest.words(weakest.needed - weakest.there)} more are needed"
        )
        if weakest.name == CORES:
            fillers = math.ceil(weakest.needed - weakest.there)
            said += f", such as {fillers:,} fillers of one core each on other nodes (worker_method='ray')"
        return said

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as values that JSON has."""
        return {
            "job": asdict(self.job),
            "machines": asdict(self.machines),
            "needs": [{**asdict(need), "share": need.share} for need in self.needs],
            "weakest": None if self.weakest is None else self.weakest.name,
            "samples_per_second_and_gpu": self.reached,
        }


def capacity(job: Job, machines: Machines) -> Capacity:
    """Return what a job needs. Raises InvalidOption for numbers out of range."""
    for one in (job, machines):
        for name, value in asdict(one).items():
            if value is not None and not (0 <= value < math.inf):
                raise InvalidOption(f"{name.replace('_', ' ')} is {value!r}: it must be a finite number of 0 or more")
    if job.gpus < 1 or machines.nodes < 1 or not job.rate or not job.cpu_seconds:
        raise InvalidOption("a job has at least one GPU and one node, and its rate and CPU time are above 0")
    gpus = f"{job.gpus:,} GPUs x {compact(job.rate)} samples/s"
    cores = Need(
        CORES,
        f"{gpus} x {compact(1e3 * job.cpu_seconds)} ms / {SATURATED:.0%} of a core's time",
        job.samples * job.cpu_seconds / SATURATED,
        _of_all(machines.cores, machines),
        "cores",
    )
    return Capacity(job, machines, (cores, *_of_storage(job, machines, gpus), *_of_network(job, machines, gpus, cores)))


def _of_storage(job: Job, machines: Machines, gpus: str) -> Iterator[Need]:
    """Yield what storage and caches must give. A cache that holds a part of the dataset spares storage that part."""
    held = 0.0
    if job.dataset_bytes:
        held = min(1.0, (machines.cache or 0.0) / job.dataset_bytes)
        formula = (
            f"{machines.nodes:,} nodes x {size_of(int(job.dataset_bytes))}: then storage is read in the first epoch "
            "alone, for each node comes to read each sample"
        )
        needed, there = job.dataset_bytes * machines.nodes, _of_all(machines.cache, machines)
        yield Need("cache", formula, needed, there, "bytes", optional=True)
    if job.stored_bytes is not None:
        formula = f"{gpus} x {size_of(int(job.stored_bytes))}" + f" x {1 - held:.0%} that caches do not hold" * (
            held > 0
        )
        needed, there = job.samples * job.stored_bytes * (1 - held), _of_all(machines.storage, machines)
        yield Need("storage bandwidth", formula, needed, there, "bytes/s")


def _of_network(job: Job, machines: Machines, gpus: str, cores: Need) -> Iterator[Need]:
    """Yield what the trainers' network must give for batches that are filled on other nodes."""
    if job.batch_bytes is None:
        return
    elsewhere = 1.0 if cores.share is None else max(0.0, 1 - cores.share)
    formula = f"{gpus} x {size_of(int(job.batch_bytes))} x {elsewhere:.0%} that is filled on other nodes"
    needed, there = job.samples * job.batch_bytes * elsewhere, _of_all(machines.network, machines)
    yield Need("network for fillers", formula, needed, there, "bytes/s", optional=cores.share is None)


def _of_all(each: float | None, machines: Machines) -> float | None:
    return None if each is None else each * machines.nodes


def measured_costs(text: str) -> tuple[float, float | None]:
    """Return (CPU seconds, bytes read) of a sample, as `penstock doctor DATASET --json` has measured them.

    The bytes are None where its loader read no files natively. Raises InvalidOption for another text.
    """
    try:
        held: Mapping[str, Any] = json.loads(text)
        stages = held["loop"]["stages"].values()
        cpu = sum(stage["cpu_seconds"] / stage["samples"] for stage in stages if stage["samples"])
        read = max((stage["bytes"] / stage["samples"] for stage in stages if stage["samples"]), default=0.0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidOption(
            f"this is not what `penstock doctor DATASET --json` prints of a measured loop ({type(error).__name__}: "
            f"{error}): write its output to a file, and give that"
        ) from error
    if not cpu > 0:
        raise InvalidOption("the doctor's loop counted no CPU time: measure for longer, by its --seconds")
    return cpu, read or None
