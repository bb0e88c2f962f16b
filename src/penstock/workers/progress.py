"""What each worker process is doing, written by it where its parent can still read it, and told when one is lost.

A `Board` is memory that the parent shares with its worker processes: one record a worker, overwritten before every
sample without a lock or a system call. Beside it each worker has a file in memory into which faulthandler writes its
Python stacks: when it crashes, and when the parent asks by a signal. Nothing of it has a name in any file system.

Processes: the parent makes and closes a board; `report` runs in the worker, everything else in the parent. The
descriptors are inherited by a forked worker and sent to a spawned one. `reap` and `end` see to the processes
themselves; `why_died` and `why_stuck` make the messages.
"""

from __future__ import annotations

import contextlib
import enum
import faulthandler
import fcntl
import mmap
import multiprocessing.process
import multiprocessing.reduction
import multiprocessing.util
import operator
import os
import reprlib
import shutil
import signal
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data._utils import signal_handling

from penstock.cgroup import memory

Identify = Callable[[Any], tuple[str, str | None]]


class Stage(enum.StrEnum):
    """What a worker process is at; by the words that Fetch.note is called with, where it is Fetch that does it."""

    STARTING = "starting"
    INIT = "init"
    ITERATING = "iterating"  # over an iterable dataset, which has no indices to name
    GETITEM = "getitem"
    COLLATE = "collate"
    DONE = ""  # with what it was given: its feeder thread sends the batch, or it waits for work


@dataclass(frozen=True, slots=True)
class Progress:
    """One worker's record."""

    stage: Stage
    index: int | str | None
    """Of the sample in work; as text where it is no integer, None where there is none or it was just being written."""
    exact: bool
    """Whether a text is the index itself: a str, and not too long."""
    seconds: float
    """Since the stage began."""


# times written, stage, kind of index, index, when the stage began (ns, CLOCK_MONOTONIC), times written again
_RECORD = struct.Struct("=qqqqqq")
_NOTHING, _NUMBER, _WORDS, _EXCERPT = range(4)
_STAGES = list(Stage)
_SIGNAL = struct.Struct("=q")  # that makes the worker write its stacks; 0: none yet
_LENGTH = struct.Struct("=q")
_TEXT_AT = _RECORD.size + _SIGNAL.size + _LENGTH.size
_FOLDER_AT = 512  # the name of multiprocessing's temporary folder, between the text of an index and the end
_TEXT_MAX = _FOLDER_AT - _LENGTH.size - _TEXT_AT
_REGION = 1024  # bytes a worker

_SHARED_MEMORY = "/dev/shm"
_ANSWER_SECONDS = 1.0  # for a stuck worker to write its stacks
_QUIET_SECONDS = 0.02  # without growth, after which a dump is complete


class Board:
    """The records and stacks of some worker processes."""

    def __init__(self, workers: int) -> None:
        self._fds: list[int] = []
        self._memory: mmap.mmap | None = None
        try:
            self._fds.append(os.memfd_create("penstock-progress", os.MFD_CLOEXEC))
            os.ftruncate(self._fds[0], workers * _REGION)
            for _ in range(workers):
                self._fds.append(os.memfd_create("penstock-stacks", os.MFD_CLOEXEC))
            self._memory = mmap.mmap(self._fds[0], workers * _REGION)
        except BaseException:
            self.close()
            raise
        now = time.monotonic_ns()
        for worker in range(workers):
            _RECORD.pack_into(self._memory, worker * _REGION, 0, _STAGES.index(Stage.STARTING), _NOTHING, 0, now, 0)

    def __getstate__(self) -> list[Any]:
        return [multiprocessing.reduction.DupFd(fd) for fd in self._fds]

    def __setstate__(self, handles: list[Any]) -> None:
        self._fds = [handle.detach() for handle in handles]
        self._memory = mmap.mmap(self._fds[0], (len(handles) - 1) * _REGION)

    def report(self, worker: int) -> Callable[[str, Any], None]:
        """Make the calling process that worker: return what it calls when a stage begins, with the sample's index."""
        self._leave_stacks(worker)
        self._leave_folder(worker)
        assert self._memory is not None
        region, offset = self._memory, worker * _REGION
        pack, now = _RECORD.pack_into, time.monotonic_ns
        codes = {str(stage): code for code, stage in enumerate(_STAGES)}
        times = 0

        def begin(name: str, index: Any) -> None:
            nonlocal times
            times += 1
            stage = codes[name]
            if type(index) is int and -(1 << 63) <= index < 1 << 63:
                pack(region, offset, times, stage, _NUMBER, index, now(), times)
            elif index is None:
                pack(region, offset, times, stage, _NOTHING, 0, now(), times)
            else:
                kind, number, text = _described(index)
                pack(region, offset, times, stage, _NOTHING, 0, now(), times)
                _write_text(region, offset + _TEXT_AT, text)
                pack(region, offset, times, stage, kind, number, now(), times)

        return begin

    def _leave_stacks(self, worker: int) -> None:
        """Have faulthandler write this process's stacks on a fatal signal, before torch's handler, and when asked."""
        assert self._memory is not None
        file = self._fds[1 + worker]
        if faulthandler.is_enabled():
            # Inherited: torch's handlers lie over it, and enabling it again would not put it over them.
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
            if len(name) <= _REGION - _FOLDER_AT:
                _write_text(self._memory, worker * _REGION + _FOLDER_AT, name)

    def folder(self, worker: int) -> str:
        """Return the temporary folder of a worker's own, or an empty string."""
        assert self._memory is not None
        return _read_text(self._memory, worker * _REGION + _FOLDER_AT)

    def progress(self, worker: int) -> Progress:
        """Return what a worker has last begun."""
        assert self._memory is not None
        region = self._memory[worker * _REGION : (worker + 1) * _REGION]
        for _ in range(3):  # it may be writing
            before, region = region, self._memory[worker * _REGION : (worker + 1) * _REGION]
            if before == region:
                break
        times, stage, kind, number, since, again = _RECORD.unpack_from(region)
        index: int | str | None = None
        if times == again and kind == _NUMBER:
            index = number
        elif times == again and kind in (_WORDS, _EXCERPT):
            index = _read_text(region, _TEXT_AT)
        seconds = max(0, time.monotonic_ns() - since) / 1e9
        return Progress(_STAGES[stage], index, kind == _WORDS, seconds)

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


@dataclass(frozen=True, slots=True)
class Death:
    """A worker process that has ended before its time."""

    pid: int
    code: int | None
    """Its exit code, minus the number of the signal that killed it, or None where somebody else has waited for it."""
    peak: int | None
    """The most memory that it had resident, in bytes, what it shared with its parent included."""

    def as_torch_says(self) -> str:
        """Return the sentence by which torch's loader reports it, which programs look for."""
        if not self.code:
            return f"DataLoader worker (pid(s) {self.pid}) exited unexpectedly."
        if self.code > 0:
            return (
                f"DataLoader worker (pid {self.pid}) exited unexpectedly with exit code {self.code}. Details are lost "
                "due to multiprocessing. Rerunning with num_workers=0 may give better error trace."
            )
        text = f"DataLoader worker (pid {self.pid}) is killed by signal: {signal.strsignal(-self.code)}."
        if -self.code == signal.SIGBUS:
            text += (
                " It is possible that dataloader's workers are out of shared memory. "
                "Please try to raise your shared memory limit."
            )
        return text


def reap(process: Any) -> Death | None:
    """Return how a process has ended whose sentinel is ready, or None if it lives: it may have closed it."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        try:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        except ChildProcessError:  # a fork server's child, or somebody has waited for it
            return None if process.is_alive() and _exists(process.pid) else Death(process.pid, process.exitcode, None)
        if pid:
            process._popen.returncode = code = os.waitstatus_to_exitcode(status)
            return Death(pid, code, usage.ru_maxrss << 10)
        time.sleep(0.001)
    return None


def end(processes: Iterable[Any]) -> None:
    """End those processes that live: by SIGTERM, and a second later by SIGKILL."""
    alive = [process for process in processes if process.is_alive()]
    for send, seconds in (("terminate", 1.0), ("kill", 5.0)):
        for process in alive:
            getattr(process, send)()
        deadline = time.monotonic() + seconds
        while (alive := [process for process in alive if process.is_alive()]) and time.monotonic() < deadline:
            time.sleep(0.002)


def clear_away(board: Board, pids: list[int]) -> None:
    """Remove what workers that were killed could not: torch's shared memory without a user, and sockets' folders."""
    for worker in range(len(pids)):
        folder = board.folder(worker)
        if os.path.basename(folder).startswith("pymp-"):
            shutil.rmtree(folder, ignore_errors=True)
    own = tuple(f"torch_{pid}_" for pid in pids)
    with contextlib.suppress(OSError):
        for name in os.listdir(_SHARED_MEMORY):
            if name.startswith(own):
                _remove_unused(os.path.join(_SHARED_MEMORY, name))


def _remove_unused(path: str) -> None:
    """Remove a file that no process has open or mapped: only of such a file the kernel grants a lease for writing.

    A process of the same number in another container may use the same shared memory.
    """
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # ignored; the default, were it opened now, ends us
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            os.unlink(path)
        finally:
            os.close(file)


def why_died(deaths: dict[int, Death], board: Board, identify: Identify, kills_before: int | None) -> str:
    """Return the message for workers that have died: what torch says, where they were, memory, stacks, what to do."""
    now = memory()
    first = next(iter(deaths.values()))
    killed = None if now.oom_kills is None or kills_before is None else now.oom_kills - kills_before
    lines = [first.as_torch_says()]
    for worker, death in deaths.items():
        code = death.code
        how = f"by {_signal_name(-code)}" if code is not None and code < 0 else f"with exit code {code}"
        peak = "" if death.peak is None else f", with at most {_size(death.peak)} of memory in use,"
        lines.append(
            f"Worker {worker} (pid {death.pid}) ended {how}{peak} {_doing(board.progress(worker), identify)} ago."
        )
        lines += _stack_lines(board.stacks(worker))
    if now.in_use is not None:
        limit = "no limit" if now.limit is None else f"a limit of {_size(now.limit)}"
        counted = (
            ""
            if killed is None
            else f"; the kernel has killed {killed} of its processes for lack of memory since this iterator began"
        )
        lines.append(f"The cgroup has {_size(now.in_use)} of memory in use and {limit}{counted}.")
    lines.append(_advice(first, killed))
    return "\n".join(lines)


def why_stuck(timeout: float, owing: dict[int, int], board: Board, identify: Identify) -> str:
    """Return the message for a batch that did not come in time from workers, given with their pids."""
    lines = [f"DataLoader timed out after {timeout} seconds."]
    for number, (worker, pid) in enumerate(owing.items()):
        held = _resident(pid)
        size = "" if held is None else f", {_size(held)} of memory in use"
        lines.append(f"Worker {worker} (pid {pid}{size}) is {_doing(board.progress(worker), identify)} ago.")
        if number < _STACKS_TOLD:
            lines += _stack_lines(board.ask_stacks(worker, pid)) or ["  (its Python stack could not be had)"]
    lines.append("Look at that sample or function, or raise timeout= if it is only slow.")
    return "\n".join(lines)


_STACKS_TOLD = 4  # of stuck workers; each may take a second to answer
_FRAMES_TOLD = 20
# Of a stack, most recent call first, what comes after is the way to the user's code.
_MACHINERY = (
    os.path.join("penstock", "fetch.py"),
    os.path.join("penstock", "processes.py"),
    os.path.join("data", "_utils", "fetch.py"),
    os.path.join("data", "_utils", "worker.py"),
)
# Threads of every worker, in which nothing of the user's runs.
_HELPERS = ("in _feed\n", "in _serve\n")


def _doing(progress: Progress, identify: Identify) -> str:
    """Return what a worker is or was doing and for how long, as the end of a sentence."""
    what = {
        Stage.STARTING: "starting (what it printed to stderr may tell more)",
        Stage.INIT: "in worker_init_fn",
        Stage.ITERATING: "iterating over its copy of the dataset",
        Stage.COLLATE: "in collate_fn",
        Stage.DONE: "sending a batch or waiting for work",
    }.get(progress.stage) or f"in __getitem__ of {_named(progress, identify)}"
    return f"{what}, begun {progress.seconds:.2f} s"


def _named(progress: Progress, identify: Identify) -> str:
    index = progress.index
    if index is None:
        return "a sample that it had only begun"
    if isinstance(index, str) and not progress.exact:
        return f"{'samples' if index.startswith('[') else 'sample'} {index}"
    try:
        name, path = identify(index)
    except Exception:  # it asks the user's dataset
        name, path = str(index), None
    return f"sample {name!r}" + (f" ({path})" if path and path != name else "")


def _stack_lines(dump: str) -> list[str]:
    """Return the lines of faulthandler's dump that tell about the user's code."""
    lines = []
    for thread in dump.split("\n\n"):
        head, *frames = thread.strip("\n").split("\n")
        if not head.endswith("(most recent call first):") or any(helper in thread + "\n" for helper in _HELPERS):
            continue
        way = (number for number, frame in enumerate(frames) if number and any(part in frame for part in _MACHINERY))
        lines += [f"  {head}", *(f"  {frame}" for frame in frames[: min(next(way, _FRAMES_TOLD), _FRAMES_TOLD)])]
    return lines


def _advice(death: Death, killed: int | None) -> str:
    number = -(death.code or 0)
    if number == signal.SIGKILL and killed:
        return "Lower num_workers=, batch_size= or prefetch_factor=, or raise the memory limit."
    if number == signal.SIGKILL:
        return "Who sent the signal is to be found outside: the job scheduler, a user, or the host's kernel (dmesg)."
    if number == signal.SIGBUS:
        return "Give /dev/shm more space, or lower num_workers=, batch_size= or prefetch_factor=."
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return "Who sent the signal is to be found outside: the job scheduler or a user."
    if number > 0:
        return "The crash is in native code: read that sample alone, with num_workers=0, to repeat it."
    return (
        "Something in the worker ended the process: look for exit() in the dataset, or for what it printed to stderr."
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _size(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def _resident(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
