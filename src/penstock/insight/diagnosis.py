"""A loop measured in its parts, and what a change really gives."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.utils.data

from penstock.errors import InvalidOption
from penstock.loader import DataLoader
from penstock.loop_model import LEAST_SECONDS, LEAST_STEPS, Measured
from penstock.observe import StageTime
from penstock.stats import Stats
from penstock.verdict import WORTH, Finding, findings, verdict

#: Arguments that batch_sampler= excludes, and those of worker processes only.
_OF_BATCHES = ("batch_size", "drop_last", "sampler", "shuffle")
_OF_WORKERS = ("prefetch_factor", "persistent_workers")
#: Changes that are tried out at the most, the best one first.
MOST_TRIALS = 3
#: Makes a loader of a diagnosis; its arguments are those to be changed.
MakeLoader = Callable[..., Any]
Step = Callable[[Any], object]


@dataclass(frozen=True)
class Diagnosis:
    """What a loop was found to be, in samples a second and seconds."""

    alone: float
    """Samples a second of the loader, with a loop that does nothing."""
    step: float | None
    """Seconds of the step in the loop; None: none was given."""
    together: float
    """Samples a second of the loop."""
    measured: Measured
    stages: Mapping[str, StageTime]
    findings: tuple[Finding, ...]
    gains: Mapping[Finding, float]
    """Changes that were made, and how many times as fast the loop was with each, measured in turn with the loop as it
    was."""

    @property
    def verdict(self) -> str:
        """The sentence that says how much the loop waits, what for, and what would help."""
        return verdict(self.measured)


def diagnose(
    make: MakeLoader,
    step: Step | None = None,
    *,
    seconds: float,
    apply: bool = False,
    note: Callable[[str], None] = lambda doing: None,
) -> Diagnosis:
    """Measure a loop over the batches of a loader, and return what holds it up and what would help.

    Args:
        make: makes the loader, once for each part of the measurement.
        step: what the loop does with a batch; it is waited for, so it must not leave work behind on an accelerator.
            None: nothing.
        seconds: for each part.
        apply: try the changes that arguments of the loader make, and say what they gave.
        note: called with what is measured now.

    Raises InvalidOption: the loader gives too few batches to tell.
    """
    note("the loader alone")
    alone, loader = _run(make(), None, seconds)
    together = alone
    note("the loop")
    if step is not None:
        together, loader = _run(make(), step, seconds)
    found = loader._pass_factory.measured()
    if found is None:
        raise InvalidOption(
            f"the loader gave too few batches in {seconds:g} s to tell anything: give more seconds, or more samples"
        )
    stats: Stats = loader.stats()
    ranked = findings(found)
    gains: dict[Finding, float] = {}
    for finding in ranked if apply else ():
        if finding.options and finding.gain >= WORTH and len(gains) < MOST_TRIALS:
            note(finding.change)
            gains[finding] = _gain(make, finding, step, seconds)
    took = None if step is None else found.work
    return Diagnosis(alone, took, together, found, stats.stages, tuple(ranked), gains)


def loader_maker(dataset: Any, **options: Any) -> MakeLoader:
    """Return what makes penstock.DataLoaders of a dataset, or with the arguments of a given loader, Penstock's or not.

    options: arguments of the loader, in the place of those.
    """
    given: dict[str, Any] = {"batch_size": 32}
    if isinstance(dataset, torch.utils.data.DataLoader):
        given = _arguments(dataset)
        dataset = dataset.dataset

    def make(**changed: Any) -> DataLoader[Any]:
        arguments = {**given, **options, **changed}
        if "batch_sampler" in arguments:  # which excludes them
            arguments = {name: value for name, value in arguments.items() if name not in _OF_BATCHES}
        if not arguments.get("num_workers", 1):
            arguments = {name: value for name, value in arguments.items() if name not in _OF_WORKERS}
        made: DataLoader[Any] = DataLoader(dataset, **arguments)
        made.silence_verdict()
        return made

    return make


def _arguments(loader: torch.utils.data.DataLoader[Any]) -> dict[str, Any]:
    names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
    found = {name: getattr(loader, name) for name in (*names, "generator", *_OF_WORKERS)}
    if isinstance(loader, DataLoader):
        found |= loader.own_options()
    if loader.batch_size is None and loader.batch_sampler is not None:
        return {**found, "batch_sampler": loader.batch_sampler}
    sampled = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    order = {} if sampled else {"sampler": loader.sampler}
    return {**found, **order, "batch_size": loader.batch_size, "drop_last": loader.drop_last}


def _gain(make: MakeLoader, finding: Finding, step: Step | None, seconds: float) -> float:
    """Return how many times as fast the loop is with a change: both ways in turn, each twice."""
    rates: dict[bool, float] = {False: 0.0, True: 0.0}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than CPUs: as was meant
        for changed in (False, True) * 2:
            loader = make(**finding.options) if changed else make()
            if "cache" in finding.options and changed:
                _run(loader, None, seconds, epochs=1)  # which fills it
            rates[changed] = max(rates[changed], _run(loader, step, seconds / 2)[0])
    return rates[True] / rates[False]


def _run(loader: Any, step: Step | None, seconds: float, *, epochs: int | None = None) -> tuple[float, Any]:
    """Go through a loader, epoch after epoch, for some seconds.

    Return (its samples a second, but for the first batch; the loader).
    """
    samples_before, begin, steps = 0, 0.0, 0
    for _ in itertools.count() if epochs is None else range(epochs):
        given = 0
        for batch in loader:
            given += 1
            if not begin:
                begin, samples_before = time.perf_counter(), loader.stats().samples
            if step is not None:
                step(batch)
            steps += 1
            if steps > LEAST_STEPS and time.perf_counter() - begin > max(seconds, LEAST_SECONDS):
                return (loader.stats().samples - samples_before) / (time.perf_counter() - begin), loader
        if not given:
            raise InvalidOption("the loader gives no batch")
    return (loader.stats().samples - samples_before) / (time.perf_counter() - begin), loader
