"""What each worker process is doing, written by it where its parent can read it even after its death.

A `Board` is memory that the parent shares with its worker processes: one record a worker, overwritten before every
sample without a lock or a system call, and a table of the calls that it counts. Beside it each worker has a file in
memory into which faulthandler writes its Python stacks: when it crashes, and when the parent asks by a signal. Nothing
of it has a name in any file system.

Processes: the parent makes and closes a board; `report` runs in the worker, everything else in the parent. The
descriptors are inherited by a forked worker and sent to a spawned one.
"""

from __future__ import annotations

import contextlib
import enum
import faulthandler
import mmap
import multiprocessing.process
import multiprocessing.reduction
import multiprocessing.util
import operator
import os
import reprlib
import signal
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data._utils import signal_handling

import penstock._native as _native
from penstock.call_counts import CallRow, kept_reason, shortened
from penstock.executors.fetch import Note
from penstock.observe import StageCount


class WorkerStage(enum.StrEnum):
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
    """Index of the sample in work; as text where the index is no integer, None where the worker has no sample, or was
    just writing its index."""
    exact: bool
    """Whether a text is the index itself: a str, and not too long."""
    seconds: float
    """Since the stage began."""


# times written, stage, kind of index, index, when the stage began (ns, CLOCK_MONOTONIC), times written again
_RECORD = struct.Struct("=qqqqqq")
_INDEX = 3  # which word of it
_NOTHING, _NUMBER, _WORDS, _EXCERPT = range(4)
_STAGES = list(WorkerStage)
_SIGNAL = struct.Struct("=q")  # that makes the worker write its stacks; 0: none yet
_LENGTH = struct.Struct("=q")
_TEXT_AT = _RECORD.size + _SIGNAL.size + _LENGTH.size
_FOLDER_AT = 512  # the name of multiprocessing's temporary folder, between the text of an index and the end
_TEXT_MAX = _FOLDER_AT - _LENGTH.size - _TEXT_AT
_CALLS_AT = 1024
#: Slots of a worker's calls, and the bytes of one: a number of calls, the length of a text, and the text.
SLOTS, _SLOT, _CALLS = 24, 168, struct.Struct("=q")
TABLE = SLOTS * _SLOT
_REGION = _CALLS_AT + TABLE  # bytes a worker
# One a stage, before the calls: nanoseconds, samples, and of the metered samples nanoseconds, and those on a CPU.
_SPENT = struct.Struct("=qqqq")
_SPENT_AT = _CALLS_AT - len(_STAGES) * _SPENT.size
#: The CPU time is read at all of so many first notes of a worker, then at one in so many: it takes 0.3 us.
_METERED = 16
#: The stages of stages(). A worker does not report when it takes the next sample of an iterable dataset.
_COUNTED = WorkerStage.GETITEM, WorkerStage.COLLATE

_ANSWER_SECONDS = 1.0  # for a stuck worker to write its stacks
_QUIET_SECONDS = 0.02  # without growth, after which a dump is complete


class Noting(NamedTuple):
    """What a worker process takes note with of what it is doing."""

    begin: Note
    """Called when a stage begins, with the stage, the index of its sample and the number of its samples."""
    each: Callable[[Iterable[Any]], Iterator[Any]]
    """Yields the indices of a batch, noting the sample of each; the time of the stage is taken once for all."""


class SlotCalls:
    """Counts the calls of a worker process in its table, so that the parent knows of them even after its death.

    The text of a slot names the function, the reason and an example. A slot is in use once its number is not 0, and its
    text never changes then. What finds no free slot is not counted.
    """

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._memory, self._offset = memory, offset
        self._free = iter(range(SLOTS))
        self._counts = memoryview(memory)[offset : offset + TABLE].cast("q")
        # Where a slot's count is among the 8-byte words of the table; None: it has no slot.
        self._answers: dict[str, int | None] = {}
        self._refusals: dict[tuple[str, str], int | None] = {}  # by function and reason

    def answer(self, function: str) -> None:
        """Count a call that was answered natively."""
        if function not in self._answers:
            self._answers[function] = self._new(function, "", "")
        self._count(self._answers[function])

    def refuse(self, function: str, reason: str, example: str) -> None:
        """Count a call that the original function does."""
        if (function, reason) not in self._refusals:
            _, reason = kept_reason(self._refusals, function, reason)
            if (function, reason) not in self._refusals:
                self._refusals[function, reason] = self._new(function, reason, shortened(example))
        self._count(self._refusals[function, reason])

    def _count(self, at: int | None) -> None:
        if at is not None:
            self._counts[at] += 1

    def _new(self, *words: str) -> int | None:
        """Write the text of the next slot, and return where its count is."""
        number = next(self._free, None)  # in one step of the interpreter: the user's code may have started threads
        if number is None:
            return None
        text_at = number * _SLOT + _CALLS.size + _LENGTH.size
        text = "\0".join(words).encode(errors="replace")[: (number + 1) * _SLOT - text_at]
        _write_text(self._memory, self._offset + text_at, text)
        return number * _SLOT // _CALLS.size


def read_slots(memory: mmap.mmap, offset: int) -> list[CallRow]:
    """Return what a worker has counted in the table at an offset."""
    found = []
    for at in range(offset, offset + TABLE, _SLOT):
        (calls,) = _CALLS.unpack_from(memory, at)
        if calls:
            text = _read_text(memory, at + _CALLS.size + _LENGTH.size)
            function, reason, example = [*text.split("\0"), "", ""][:3]
            found.append(CallRow(function, reason, calls, example))
    return found


class Board:
    """The records and stacks of some worker processes."""

    def __init__(self, workers: int) -> None:
        self._fds: list[int] = []
        self._memory: mmap.mmap | None = None
        self._spent: list[StageCount] = []
        self._called: list[CallRow] = []
        try:
            self._fds.append(os.memfd_create("penstock-progress", os.MFD_CLOEXEC))
            # As shared_memory does: memory that is not to be had is an error here, not a SIGBUS at a write.
            os.posix_fallocate(self._fds[0], 0, workers * _REGION)
            for _ in range(workers):
                self._fds.append(os.memfd_create("penstock-stacks", os.MFD_CLOEXEC))
            self._memory = mmap.mmap(self._fds[0], workers * _REGION)
        except BaseException:
            self.close()
            raise
        now = time.monotonic_ns()
        for worker in range(workers):
            starting = _STAGES.index(WorkerStage.STARTING)
            _RECORD.pack_into(self._memory, worker * _REGION, 0, starting, _NOTHING, 0, now, 0)

    def __getstate__(self) -> list[Any]:
        return [multiprocessing.reduction.DupFd(fd) for fd in self._fds]

    def __setstate__(self, handles: list[Any]) -> None:
        self._fds = [handle.detach() for handle in handles]
        self._memory = mmap.mmap(self._fds[0], (len(handles) - 1) * _REGION)
        self._spent, self._called = [], []

    def report(self, worker: int) -> Noting:
        """Make the calling process that worker: return what it takes note with."""
        self._leave_stacks(worker)
        self._leave_folder(worker)
        assert self._memory is not None
        region, offset = self._memory, worker * _REGION
        spent_at = offset + _SPENT_AT
        record = memoryview(region)[offset : offset + _RECORD.size].cast("q")
        pack, now, running = _RECORD.pack_into, time.monotonic_ns, time.thread_time_ns
        codes = {str(stage): code for code, stage in enumerate(_STAGES)}
        times, stage, samples, since, ran = 0, 0, 0, now(), -1
        spent = [(0, 0, 0, 0)] * len(codes)

        def begin(name: str, index: Any, size: int = 1) -> None:
            nonlocal times, stage, samples, since, ran
            times += 1
            began, since = since, now()
            taken, count, metered, on_cpu = spent[stage]
            if ran >= 0:
                metered, on_cpu = metered + since - began, on_cpu + running() - ran
            spent[stage] = of_stage = (taken + since - began, count + samples, metered, on_cpu)
            _SPENT.pack_into(region, spent_at + stage * _SPENT.size, *of_stage)
            ran = running() if times <= _METERED or times % _METERED == 0 else -1
            stage, samples = codes[name], size
            name_sample(index, since)

        def name_sample(index: Any, since: int) -> None:
            if type(index) is int and -(1 << 63) <= index < 1 << 63:
                pack(region, offset, times, stage, _NUMBER, index, since, times)
            elif index is None:
                pack(region, offset, times, stage, _NOTHING, 0, since, times)
            else:
                kind, number, text = _described(index)
                pack(region, offset, times, stage, _NOTHING, 0, since, times)
                _write_text(region, offset + _TEXT_AT, text)
                pack(region, offset, times, stage, kind, number, since, times)

        def each(indices: Iterable[Any]) -> Iterator[Any]:
            begin(WorkerStage.GETITEM, None, operator.length_hint(indices))
            return _native.NotedIndices(record, _INDEX, lambda index: name_sample(index, now()), indices)

        return Noting(begin, each)

    def _leave_stacks(self, worker: int) -> None:
        """Have faulthandler write this process's stacks on fatal signals (before torch's handler) and on request."""
        assert self._memory is not None
        file = self._fds[1 + worker]
        if faulthandler.is_enabled():
            # faulthandler is inherited below torch's handlers, and stays below them until it is disabled.
            faulthandler.disable()
            signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
        faulthandler.enable(file)
        for number in range(signal.SIGRTMAX, signal.SIGRTMIN - 1, -1):
            if signal.getsignal(number) is signal.SIG_DFL:  # nobody else's
                faulthandler.register(number, file)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
                _SIGNAL.pack_into(self._memory, worker * _REGION + _RECORD.size, number)
                break

    def _leave_folder(self, worker: int) -> None:
        """Write down where this process keeps its sockets, if the folder is its own: its end removes it, a kill not."""
        assert self._memory is not None
        if multiprocessing.process.current_process()._config.get("tempdir") is not None:  # type: ignore[attr-defined]
            return
        with contextlib.suppress(OSError):
            name = multiprocessing.util.get_temp_dir().encode()
            if len(name) <= _SPENT_AT - _FOLDER_AT:
                _write_text(self._memory, worker * _REGION + _FOLDER_AT, name)

    def folder(self, worker: int) -> str:
        """Return the temporary folder of a worker's own, or an empty string."""
        assert self._memory is not None
        return _read_text(self._memory, worker * _REGION + _FOLDER_AT)

    def progress(self, worker: int) -> WorkerProgress:
        """Return what a worker has last begun."""
        assert self._memory is not None
        begin, end = worker * _REGION, worker * _REGION + _CALLS_AT
        region = self._memory[begin:end]
        for _ in range(3):  # it may be writing
            before, region = region, self._memory[begin:end]
            if before == region:
                break
        times, stage, kind, number, since, times_after = _RECORD.unpack_from(region)
        index: int | str | None = None
        if times == times_after and kind == _NUMBER:
            index = number
        elif times == times_after and kind in (_WORDS, _EXCERPT):
            index = _read_text(region, _TEXT_AT)
        seconds = max(0, time.monotonic_ns() - since) / 1e9
        return WorkerProgress(_STAGES[stage], index, kind == _WORDS, seconds)

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
                (stage, taken / 1e9, samples, taken / 1e9 * min(1.0, on_cpu / metered) if metered else 0.0)
                for stage, taken, samples, metered, on_cpu in found
            ]
        return self._spent

    def count_calls(self, worker: int) -> SlotCalls:
        """Return what counts the calls of the calling process, which is that worker."""
        assert self._memory is not None
        return SlotCalls(self._memory, worker * _REGION + _CALLS_AT)

    def calls(self) -> list[CallRow]:
        """Return the calls that all workers have counted so far, also after close()."""
        if self._memory is not None:
            offsets = range(_CALLS_AT, len(self._memory), _REGION)
            self._called = [row for offset in offsets for row in read_slots(self._memory, offset)]
        return self._called

    def stacks(self, worker: int) -> str:
        """Return what faulthandler has written for a worker."""
        file = self._fds[1 + worker]
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def ask_stacks(self, worker: int, pid: int) -> str:
        """Have a living worker write its Python stacks and return them, empty if it does not within a second."""
        assert self._memory is not None
        (number,) = _SIGNAL.unpack_from(self._memory, worker * _REGION + _RECORD.size)
        if not number:
            return ""
        file = self._fds[1 + worker]
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)  # the worker's position too: it is one open file
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return ""
        deadline = time.monotonic() + _ANSWER_SECONDS
        size, since = 0, time.monotonic()
        while time.monotonic() < deadline and (not size or time.monotonic() - since < _QUIET_SECONDS):
            time.sleep(_QUIET_SECONDS / 10)
            now = os.fstat(file).st_size
            if now != size:
                size, since = now, time.monotonic()
        return self.stacks(worker)

    def close(self) -> None:
        """Give the memory back. Does nothing the second time."""
        if self._memory is not None:
            self.stages()
            self.calls()
            self._memory.close()
            self._memory = None
        while self._fds:
            os.close(self._fds.pop())


def _write_text(memory: mmap.mmap, at: int, text: bytes) -> None:
    """Write a text, and its length before it."""
    _LENGTH.pack_into(memory, at - _LENGTH.size, len(text))
    memory[at : at + len(text)] = text


def _read_text(memory: mmap.mmap | bytes, at: int) -> str:
    (length,) = _LENGTH.unpack_from(memory, at - _LENGTH.size)
    return memory[at : at + length].decode(errors="replace")


def _described(index: Any) -> tuple[int, int, bytes]:
    """Return (kind, number, text) of an index that is no int."""
    if isinstance(index, str):
        text = index.encode(errors="replace")
        return (_WORDS if len(text) <= _TEXT_MAX else _EXCERPT), 0, text[:_TEXT_MAX]
    with contextlib.suppress(Exception):
        number = operator.index(index)  # numpy's integers, tensors without dimensions
        if -(1 << 63) <= number < 1 << 63:
            return _NUMBER, number, b""
    try:
        text = (
            f"tensor{tuple(index.shape)}".encode() if isinstance(index, torch.Tensor) else _SHORT.repr(index).encode()
        )
    except Exception:  # a repr of the user's: it never hurts the sample
        text = f"<{type(index).__name__}>".encode()
    return _EXCERPT, 0, text[:_TEXT_MAX]


_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = 8
_SHORT.maxstring = _SHORT.maxother = 80
