"""What each worker process is doing, written by it where its parent can read it even after its death.

A `Board` is memory that the parent shares with its worker processes: one record a worker, overwritten before every
sample without a lock or a system call, and a byte by which the parent says that they are to end. Beside it each worker
has a file in memory into which faulthandler writes its Python stacks: when it crashes, and when the parent asks by a
signal. Nothing of it has a name in any file system.

Processes: the parent makes and closes a board; `report` and `ending` run in the worker, all else in the parent. The
descriptors are inherited by a forked worker and sent to a spawned one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import multiprocessing.process
import multiprocessing.reduction
import multiprocessing.util
import operator
import os
import reprlib
import secrets
import shutil
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data._utils import signal_handling

import penstock._native as _native
from penstock.call_counts import CallRow
from penstock.observe import StageCount
from penstock.system.versions import StrEnum
from penstock.workers.worker import Note


class WorkerStage(StrEnum):
    """What a worker process is at; by the words that Fetch.note is called with, where it is Fetch that does it."""

    STARTING = "starting"
    INIT = "init"
    ITERATING = "iterating"  # over an iterable dataset, which has no indices to name
    GETITEM = "getitem"
    COLLATE = "collate"
    DONE = ""  # with what it was given: its feeder thread sends the batch, or it waits for work


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """One worker's record."""

    stage: WorkerStage
    index: int | str | None
    """Index of the sample in work; a text where it is not an integer, None where the worker has no sample."""
    seconds: float
    """Since the stage began."""


# kind of index, stage, index, when the stage or sample began (ns, CLOCK_MONOTONIC)
_RECORD = struct.Struct("=qqqq")
_STAGE, _SINCE = 1, 3  # which words of it
_LIMIT = 1 << 63  # of its numbers
_NOTHING, _NUMBER, _TEXT = range(3)
_STAGES = list(WorkerStage)
_WORD = struct.Struct("=q")
_ANSWERS_AT = _RECORD.size  # whether the worker writes its stacks when it is asked, and has asked for its number
_WRITES_STACKS, _HAS_ASKED = 1, 2
_LENGTH_AT = _ANSWERS_AT + _WORD.size  # of the text of an index
_TEXT_AT = _LENGTH_AT + _WORD.size
# One a stage: nanoseconds, samples, and of the batches that were looked at the nanoseconds, of these those on a CPU and
# in the run queue, and the bytes from storage.
_SPENT = struct.Struct("=qqqqqq")
_LOOK_EVERY = 20_000_000  # nanoseconds: to read where the time of a batch went takes 20 us
_REGION = 688  # bytes a worker
_SPENT_AT = _REGION - len(_STAGES) * _SPENT.size
_TEXT_MAX = _SPENT_AT - _TEXT_AT
#: The stages of stages(). A worker does not report when it takes the next sample of an iterable dataset.
_COUNTED = WorkerStage.GETITEM, WorkerStage.COLLATE

_SHORT = reprlib.Repr()  # of an index that is not an int
_SHORT.maxstring = _SHORT.maxother = 80
_ASK = signal.SIGRTMAX - 1  # the signal for a worker to write its stacks
_ANSWER_SECONDS = 0.5  # for stuck workers to do so
_QUIET_SECONDS = 0.02  # without growth, after which a dump is complete


class Board:
    """The records and stacks of some worker processes.

    Attributes:
        counted: the calls that each worker has counted, as its last message says.
        folders: how the names of the workers' folders of sockets begin.
    """

    def __init__(self, workers: int) -> None:
        self.counted: dict[int, list[CallRow]] = {}
        self.folders = os.path.join(tempfile.gettempdir(), f"pymp-{secrets.token_urlsafe(5)}")
        self._fds: list[int] = []
        self._memory: mmap.mmap | None = None
        self._spent: list[StageCount] = []
        try:
            self._fds.append(os.memfd_create("penstock-progress", os.MFD_CLOEXEC))
            # As shared_memory does: memory that is not to be had is an error here, not a SIGBUS at a write.
            os.posix_fallocate(self._fds[0], 0, workers * _REGION + 1)
            for _ in range(workers):
                self._fds.append(os.memfd_create("penstock-stacks", os.MFD_CLOEXEC))
            self._memory = mmap.mmap(self._fds[0], workers * _REGION + 1)
        except BaseException:
            self.close()
            raise
        now = time.monotonic_ns()
        for worker in range(workers):
            starting = _STAGES.index(WorkerStage.STARTING)
            _RECORD.pack_into(self._memory, worker * _REGION, _NOTHING, starting, 0, now)

    def __getstate__(self) -> tuple[str, list[Any]]:
        return self.folders, [multiprocessing.reduction.DupFd(fd) for fd in self._fds]

    def __setstate__(self, state: tuple[str, list[Any]]) -> None:
        self.folders, handles = state
        self._fds = [handle.detach() for handle in handles]
        self._memory = mmap.mmap(self._fds[0], (len(handles) - 1) * _REGION + 1)

    def report(self, worker: int) -> tuple[Note, Callable[[Iterable[Any]], Iterator[Any]]]:
        """Make the calling process that worker, and return what it takes note with of what it is doing.

        Of these the first is called when a stage begins, with the index of its sample and the number of its samples.
        The second yields the indices of a batch, noting the sample of each.
        """
        self._leave_stacks(worker)
        _own_folder(f"{self.folders}{worker}")
        assert self._memory is not None
        region, offset = self._memory, worker * _REGION
        record = memoryview(region)[offset : offset + _RECORD.size].cast("q")
        spent = memoryview(region)[offset + _SPENT_AT : offset + _REGION].cast("q")
        pack, now = _RECORD.pack_into, time.monotonic_ns
        codes = {str(stage): code for code, stage in enumerate(_STAGES)}
        stage, samples, since, next_look = 0, 0, now(), 0
        clock: _native.ThreadClock | None = None  # of a batch that is looked at

        def begin(name: str, index: Any, size: int = 1) -> None:
            nonlocal stage, samples, since, next_look, clock
            began, since = since, now()
            taken, word = since - began, stage * (_SPENT.size // _WORD.size)
            spent[word] += taken
            spent[word + 1] += samples
            if clock is not None:
                for looked, number in enumerate((taken, *clock.lap(taken)), word + 2):
                    spent[looked] += number
            if name == WorkerStage.DONE:
                clock = None
            elif name == WorkerStage.GETITEM and since >= next_look:
                clock, next_look = _native.ThreadClock(), since + _LOOK_EVERY
            stage, samples = codes[name], size
            if name == WorkerStage.COLLATE:  # of the batch whose last sample the record names
                record[_STAGE], record[_SINCE] = stage, since
            else:
                name_sample(index, since)

        def name_sample(index: Any, since: int) -> None:
            number = index if type(index) is int else None
            if number is None and index is not None:
                with contextlib.suppress(Exception):
                    number = operator.index(index)  # numpy's integers, tensors without dimensions
            if number is not None and -_LIMIT <= number < _LIMIT:
                pack(region, offset, _NUMBER, stage, number, since)
                return
            pack(region, offset, _NOTHING, stage, 0, since)
            if index is not None:
                text = _SHORT.repr(index).encode(errors="replace")[:_TEXT_MAX]
                _WORD.pack_into(region, offset + _LENGTH_AT, len(text))
                region[offset + _TEXT_AT : offset + _TEXT_AT + len(text)] = text
                pack(region, offset, _TEXT, stage, 0, since)

        def each(indices: Iterable[Any]) -> Iterator[Any]:
            begin(WorkerStage.GETITEM, None, operator.length_hint(indices))
            return _native.NotedIndices(record, indices, lambda index: name_sample(index, now()))

        return begin, each

    def _leave_stacks(self, worker: int) -> None:
        """Have faulthandler write this process's stacks on fatal signals (before torch's handler) and on request."""
        assert self._memory is not None
        if faulthandler.is_enabled():
            # faulthandler is inherited below torch's handlers, and stays below them until it is disabled.
            faulthandler.disable()
            signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
        faulthandler.enable(self._fds[1 + worker])
        if signal.getsignal(_ASK) is signal.SIG_DFL:  # nobody else's
            faulthandler.register(_ASK, self._fds[1 + worker])
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [_ASK])
            self._mark(worker, _WRITES_STACKS)

    def _mark(self, worker: int, bit: int) -> None:
        assert self._memory is not None
        at = worker * _REGION + _ANSWERS_AT
        _WORD.pack_into(self._memory, at, self._marks(worker) | bit)

    def _marks(self, worker: int) -> int:
        assert self._memory is not None
        found: int = _WORD.unpack_from(self._memory, worker * _REGION + _ANSWERS_AT)[0]
        return found

    def note_asked(self, worker: int) -> None:
        """Note that code of the worker has asked which worker it is."""
        self._mark(worker, _HAS_ASKED)

    def has_asked(self, worker: int) -> bool:
        """Return whether code of a worker has asked which worker it is."""
        return bool(self._marks(worker) & _HAS_ASKED)

    def end(self) -> None:
        """Let the workers know that they are to end."""
        assert self._memory is not None
        self._memory[-1] = 1

    def ending(self) -> bool:
        """Return whether the workers are to end: no batch is waited for any more."""
        return self._memory is None or self._memory[-1] != 0

    def progress(self, worker: int) -> WorkerProgress:
        """Return what a worker has last begun."""
        assert self._memory is not None
        region = self._memory[worker * _REGION : (worker + 1) * _REGION]
        kind, stage, number, since = _RECORD.unpack_from(region)
        index: int | str | None = number if kind == _NUMBER else None
        if kind == _TEXT:
            (length,) = _WORD.unpack_from(region, _LENGTH_AT)
            index = region[_TEXT_AT : _TEXT_AT + length].decode(errors="replace")
        seconds = max(0, time.monotonic_ns() - since) / 1e9
        return WorkerProgress(_STAGES[stage], index, seconds)

    def stages(self) -> list[StageCount]:
        """Return the counts of each stage of all workers so far, also after close()."""
        if self._memory is not None:
            found = [
                (stage, *_SPENT.unpack_from(self._memory, worker * _REGION + _SPENT_AT + number * _SPENT.size))
                for worker in range(len(self._fds) - 1)
                for number, stage in enumerate(_STAGES)
                if stage in _COUNTED
            ]
            self._spent = [
                (stage, taken / 1e9, samples, on_cpu * share / 1e9, int(read * share), queued * share / 1e9)
                for stage, taken, samples, looked, on_cpu, queued, read in found
                for share in [taken / looked if looked else 0.0]
            ]
        return self._spent

    def calls(self) -> list[CallRow]:
        """Return the calls that all workers have counted so far."""
        return [row for rows in self.counted.values() for row in rows]

    def stacks(self, worker: int) -> str:
        """Return what faulthandler has written for a worker."""
        file = self._fds[1 + worker]
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def ask_stacks(self, pids: Mapping[int, int]) -> dict[int, str]:
        """Have living workers write their Python stacks, and return by worker what is there after half a second.

        pids: their processes. A worker that is stopped writes nothing.
        """
        asked = [worker for worker in pids if self._marks(worker) & _WRITES_STACKS]
        for worker in asked:
            file = self._fds[1 + worker]
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)  # the worker's position too: it is one open file
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[worker], _ASK)
        deadline, before = time.monotonic() + _ANSWER_SECONDS, dict[int, str]()
        while (written := {worker: self.stacks(worker) for worker in asked}) != before or not all(written.values()):
            if time.monotonic() > deadline:
                break
            before = written
            time.sleep(_QUIET_SECONDS)
        return written

    def remove_folders(self) -> None:
        """Remove the workers' folders of sockets: the end of a worker does, its being killed does not."""
        parent, begin = os.path.split(self.folders)
        with contextlib.suppress(OSError):
            for name in os.listdir(parent):
                if name.startswith(begin):
                    shutil.rmtree(os.path.join(parent, name), ignore_errors=True)

    def close(self) -> None:
        """Give the memory back. Does nothing the second time."""
        if self._memory is not None:
            self.stages()
            self._memory.close()
            self._memory = None
        while self._fds:
            os.close(self._fds.pop())


def _own_folder(folder: str) -> None:
    """Have multiprocessing keep the sockets of this process in this folder, if it has none yet.

    The name is as short as multiprocessing's own: the path of a socket has at most 107 bytes.
    """
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    if config.get("tempdir") is None:
        with contextlib.suppress(OSError):
            os.mkdir(folder, 0o700)
            config["tempdir"] = folder
            multiprocessing.util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-100)
