"""A carrier of this project's tests: workers are programs of their own, which are told of tasks over their pipes.

It is what CONTRIBUTING.md calls a new carrier: this file, and one row in the tuple of penstock/carriers/choice.py.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data._utils import worker as torch_worker

from penstock.call_counts import CallMeter
from penstock.errors import WorkerDied
from penstock.observe import Delivery
from penstock.passes.carrier import Carrier
from penstock.passes.iterator import Pass, open_pass
from penstock.passes.job import Job
from penstock.passes.values import PassInput, PassResources
from penstock.recipe.patches import working
from penstock.state.delivery import Task
from penstock.stats import samples_given
from penstock.workers.batch import Batch
from penstock.workers.worker import Worker


@dataclass(slots=True, eq=False)
class ProgramBatch(Batch):
    """A batch that a program makes."""

    program: int = -1
    value: Any = None


class ProgramCarrier(Carrier):
    """Has programs make batches with a worker that is sent to each: in turn, one answer a task, in order."""

    def __init__(self, worker: Worker, resources: PassResources) -> None:
        super().__init__(resources)
        self._worker, self._programs, self._tasks = worker, [], 0  # type: ignore[var-annotated]
        self._answers: dict[int, deque[ProgramBatch]] = {}

    def start(self) -> None:
        for number in range(self.workers):
            command = [sys.executable, "-m", "tests.subprocess_carrier"]
            program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._programs.append(program)
            self._answers[number] = deque()
            self._send(number, (number, self.workers, self._worker))

    def open(self, pass_input: PassInput) -> None:
        super().open(pass_input)
        for number, owed in self._answers.items():  # of the pass before
            while owed:
                self._receive(number)

    def rest(self) -> bool:
        return True

    @property
    def reusable(self) -> bool:
        return os.getpid() == self.pid and all(program.poll() is None for program in self._programs)

    def close(self) -> None:
        for program in self._programs:
            program.kill()
            program.communicate()

    def new_batch(self) -> ProgramBatch:
        return ProgramBatch()

    def depth(self, queue: deque[Any]) -> int:
        return 2 * self.workers if self.reads_ahead else 1

    def begin(self, batch: ProgramBatch) -> None:
        assert batch.given is not None
        given, positions = batch.given
        batch.program, self._tasks = self._tasks % self.workers, self._tasks + 1
        self._send(batch.program, Task(given, self._input.seed, self._input.epoch, positions))
        self._answers[batch.program].append(batch)

    def ready(self, queue: deque[ProgramBatch]) -> ProgramBatch:
        batch = queue[0]
        while batch in self._answers.get(batch.program, ()):
            self._receive(batch.program)
        return batch

    def delivery(self, batch: ProgramBatch) -> Delivery:
        assert batch.given is not None
        return Delivery(batch.value, samples_given(batch.given[0]) if self._worker.batched else 1)

    def _send(self, number: int, value: Any) -> None:
        pickle.dump(value, self._programs[number].stdin)
        self._programs[number].stdin.flush()

    def _receive(self, number: int) -> None:
        try:
            batch_value, error = pickle.load(self._programs[number].stdout)
        except EOFError:
            raise WorkerDied(f"program {number} has ended") from None
        batch = self._answers[number].popleft()
        batch.value, batch.error = batch_value, error


def make(job: Job, held: Carrier | None, drawn: Callable[[], PassInput]) -> Carrier:
    return held or ProgramCarrier(job.worker(here=True), job.resources)


def opens(job: Job, held: Pass | None) -> Pass:
    return open_pass(make, job, held)


def serve(commands: Any, answers: Any) -> None:
    """Be one of the programs."""
    number, workers, worker = pickle.load(commands)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=workers, seed=number, dataset=worker.dataset
    )
    with worker.lease(), working(CallMeter()):
        while True:
            try:
                task = pickle.load(commands)
            except EOFError:
                return
            try:
                answer: Any = (worker.make(task), None)
            except Exception as error:
                answer = None, error
            pickle.dump(answer, answers)
            answers.flush()


if __name__ == "__main__":
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's code prints is no answer
    serve(sys.stdin.buffer, stdout)
