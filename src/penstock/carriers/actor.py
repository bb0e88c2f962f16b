"""A filler: an actor of Ray that fills the batches that one trainer asks for, with a pass of this package's own."""

from __future__ import annotations

import os
import pickle
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from penstock.carriers.native import NativeCarrier
from penstock.carriers.threads import ThreadCarrier, worker_seed
from penstock.carriers.worker_thread import WORKER_INFO, ThreadWorkerInfo, set_for_this_thread
from penstock.cluster.connection import Facts, Pieces, here, pieces_of, whole
from penstock.errors import ClusterError
from penstock.memory.buffers import Buffers
from penstock.observe import Delivery, Meter, Observer
from penstock.passes.carrier import Carrier
from penstock.passes.iterator import Pass
from penstock.passes.values import PassInput, PassResources
from penstock.plan import Kept, NativePlan, plan
from penstock.recipe.patches import Lease
from penstock.sample_notes import add_note
from penstock.showing import said
from penstock.state.manifest import BadSample
from penstock.state.substitutes import Substitutes
from penstock.storage.tiers import Caches
from penstock.system.randomness import seed_globals
from penstock.system.tracebacks import shorten
from penstock.workers.batch import BatchRequest
from penstock.workers.worker import Worker


@dataclass(frozen=True)
class ActorJob:
    """What a filler works with, as it is sent to it."""

    dataset: Any
    worker: Callable[..., Worker]
    """Returns what calls the dataset."""
    native: bool
    """The trainer's plan is native."""
    collate_fn: Any
    substitutes: Substitutes | None
    """How bad samples are replaced; None raises their errors."""
    raw: bool
    """Images stay pixels, for the trainer's device to convert."""
    caches: Caches | None
    init: Any
    """The loader's worker_init_fn, for a dataset that Python reads."""
    fillers: int
    threads: int
    """Native ones of each filler."""
    folder: str
    """The trainer's working folder, which relative paths begin at."""


@dataclass(slots=True)
class Filled:
    """The answer to a request."""

    filler: int = -1
    """Its number."""
    batch: Any = None
    samples: int = 0
    read_by_python: Sequence[str] = ()
    """Why Python read a sample of a native plan, one reason a sample."""
    bad: list[BadSample] = field(default_factory=list)
    error: BaseException | None = None
    traceback: str = ""
    """Of the error."""
    stages: list[tuple[Any, ...]] = field(default_factory=list)
    """What the filler has counted since it began, as observe.StageCount has it."""


class _Last(Observer):
    """Keeps the delivery that came last."""

    def __init__(self) -> None:
        self.delivery = Delivery(None, 0)

    def delivered(self, delivery: Delivery) -> None:
        self.delivery = delivery


class BatchActor:
    """The actor. Ray calls its methods one after the other, in the main thread of a process that is its own."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._meter, self._last = Meter(), _Last()
        self._requests: deque[BatchRequest] = deque()
        self._work: _Work | None = None
        self._failed: Exception | None = None
        self._made: Pass | None = None
        self._key: tuple[int, int] | None = None

    def open(self, job: bytes, files: Sequence[tuple[str, int]]) -> Facts:
        """Return what the trainer must know. files: of the dataset, with their sizes as the trainer sees them."""
        facts = here(files)
        self._job, self._name = job, f"filler {self._number} on {facts.place}"
        threading.current_thread().name = self._name  # which errors name
        return facts

    def work(self, key: tuple[int, int], given: Any, positions: Any) -> Pieces:
        """Return a batch, Filled, or its error. key: (seed, epoch); positions: in the order of the epoch."""
        filled = Filled()
        try:
            made = self._pass(key)
            self._requests.append((given, positions))
            filled.batch = next(made)
            last = self._last.delivery
            filled.samples, filled.read_by_python = last.samples, list(last.read_by_python)
        except Exception as error:
            filled = self._failure(error)
        self._last.delivery = Delivery(None, 0)
        if self._work is not None:
            filled.bad = self._work.news()
        filled.filler = self._number
        filled.stages = [(stage, *time) for stage, time in self._meter.stages().items()]
        try:
            return pieces_of(filled)
        except Exception as error:
            add_note(error, f"in {self._name}, which sends its batches as pickles")
            return pieces_of(self._failure(error))

    def _pass(self, key: tuple[int, int]) -> Pass:
        """Return the pass of a key, which asks for no batch ahead. Raises what ended the filler's work."""
        if self._failed is not None:
            raise self._failed
        where = "where the dataset was unpickled or prepared"
        try:
            if self._work is None:
                self._work = _Work(pickle.loads(self._job), self._number, self._meter)
            where = "before its first batch"
            if self._made is None or key != self._key:
                if self._made is not None:
                    self._made.close()
                self._made = self._work.begin(PassInput(self._given(), None, *key, ready=lambda: bool(self._requests)))
                self._made.observers, self._key = (self._last,), key
            return self._made
        except Exception as error:
            add_note(error, f"in {self._name}, {where}")
            self._failed = error
            raise

    def _given(self) -> Iterator[BatchRequest]:
        while True:
            yield self._requests.popleft()

    def _failure(self, error: Exception) -> Filled:
        """Return an error in the place of a batch: itself, or one of the same words, where it cannot be pickled."""
        shorten(error)
        text = "".join(traceback.format_exception(error))
        told: Exception = error
        try:
            pickle.loads(whole(error))
        except Exception:
            told = RuntimeError(f"{type(error).__name__}: {said(error)}")
            for note in getattr(error, "__notes__", []):
                add_note(told, note)
            add_note(told, f"in {self._name}; the error itself, a {type(error).__qualname__}, cannot be pickled")
        return Filled(error=told, traceback=text)


class _Work:
    """What makes batches: a native pass, or one in the thread that calls next().

    Raises ClusterError for a native plan whose pixels are for the trainer's device: they cannot be made here.
    """

    def __init__(self, job: ActorJob, number: int, meter: Meter) -> None:
        with suppress(OSError):  # files were looked at by their absolute paths
            os.chdir(job.folder)
        torch.set_num_threads(job.threads)
        self._job, self._number = job, number
        self._plan = None
        if job.native:
            found = plan(job.dataset, batched=True, collate_fn=job.collate_fn, worker_init_fn=None, raw=job.raw)
            self._plan = found.keeping(Kept(job.caches)) if isinstance(found, NativePlan) else None
            if job.raw and (self._plan is None or self._plan.table is None):
                raise ClusterError(
                    "this node cannot read the dataset natively as the trainer can: install the same packages on it"
                )
        fields = 2 if self._plan is None else self._plan.fields
        self._resources = PassResources(
            workers=0 if self._plan is None else job.threads,
            in_flight=1,
            buffers=Buffers(pinned=False, keep=2 * fields),
            meter=meter,
        )
        self._begun = False

    def begin(self, pass_input: PassInput) -> Pass:
        """Return a pass. Raises what worker_init_fn raises."""
        job = self._job
        made: Carrier
        if self._plan is not None:
            made = NativeCarrier(self._plan, self._resources, substitutes=job.substitutes, worker=job.worker)
        else:
            seed = worker_seed(pass_input.seed, pass_input.epoch) + self._number
            if not self._begun:  # as torch's worker process begins before its first batch
                seed_globals(seed, 0, 0, 0)
                self._lease = Lease(WORKER_INFO)
                set_for_this_thread(ThreadWorkerInfo(self._number, job.fillers, seed, job.dataset, "ray"))
                if job.init is not None:
                    job.init(self._number)
                self._begun = True
            made = ThreadCarrier(job.worker(), self._resources, seed)
        return Pass(made, pass_input)

    def news(self) -> list[BadSample]:
        """Return the samples that were found bad since the last call."""
        return [] if self._job.substitutes is None else self._job.substitutes.take_news()
