"""The deaths of worker processes, noticed without a signal handler; what they did then, and what they leave behind.

Processes: all of it runs in the parent.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.carriers.board import Board, WorkerProgress, WorkerStage
from penstock.carriers.pipes import Receivers
from penstock.sample_notes import add_note
from penstock.showing import said
from penstock.system.limits import group_memory
from penstock.system.words import counted, size_of

Identify = Callable[[Any], tuple[str, str | None]]

#: Where batches of worker processes lie that come torch's way: in new files of shared memory.
FOLDER = "/dev/shm"
#: What to do where that space is too small; containers often have 64 MiB of it.
REMEDY = (
    f"Give {FOLDER} more space (docker run --shm-size=..., or --ipc=host), lower num_workers=, prefetch_factor= or "
    "batch_size=, or read with worker_method='thread', which needs none."
)

_REAP_SECONDS = 1.0  # for a process whose sentinel is ready to be gone


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


def note_space(error: Exception) -> None:
    """Add a note to torch's error of a full /dev/shm: its space, and what to do."""
    if isinstance(error, RuntimeError) and "shared memory(shm)" in said(error):
        with contextlib.suppress(OSError):  # there is no such folder
            found = os.statvfs(FOLDER)
            add_note(error, f"{FOLDER} has {size_of(found.f_bavail * found.f_frsize)} free. {REMEDY}")


def reap(process: Any) -> Death | None:
    """Return how a process has ended whose sentinel is ready, or None if it lives: it may have closed it."""
    deadline = time.monotonic() + _REAP_SECONDS
    while time.monotonic() < deadline:
        try:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        except ChildProcessError:  # a fork server's child, or somebody has waited for it
            return None if _is_alive(process) else Death(process.pid, process.exitcode, None)
        if pid:
            process._popen.returncode = code = os.waitstatus_to_exitcode(status)
            return Death(pid, code, usage.ru_maxrss << 10)
        time.sleep(0.001)
    return None


def end(processes: Iterable[Any]) -> None:
    """End those processes that live: by SIGTERM, and half a second later by SIGKILL."""
    alive = list(filter(_is_alive, processes))
    for send, seconds in (("terminate", 0.5), ("kill", 5.0)):
        for process in alive:
            getattr(process, send)()
        deadline = time.monotonic() + seconds
        while (alive := list(filter(_is_alive, alive))) and time.monotonic() < deadline:
            time.sleep(0.002)


def clear_away(board: Board, pids: list[int]) -> None:
    """Remove what workers that were killed could not: torch's shared memory without a user, and sockets' folders."""
    board.remove_folders()
    own = tuple(f"torch_{pid}_" for pid in pids)
    with contextlib.suppress(OSError):
        for name in os.listdir(FOLDER):
            if name.startswith(own):
                _remove_unused(os.path.join(FOLDER, name))


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


_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, "")
_SIGNALS: dict[int, str] = {int(number): number.name for number in signal.Signals}
_STACKS_TOLD = 4  # of stuck workers
_FRAMES_TOLD = 20
# Of a stack, most recent call first, what comes from here on is the way to the user's code.
_MACHINERY = re.compile(
    r"penstock/(passes/|workers/|carriers/|memory/|sample_notes)|torch/utils/data/_utils/|multiprocessing/process"
)


def main_guard(start_method: str) -> str:
    """Return what to do where the import of the main script ends a worker, or the fork server."""
    return (
        f"With the start method {start_method!r} each worker imports the main script: put what the script runs "
        'under `if __name__ == "__main__":`, else the import makes loaders and starts more workers. Where the '
        "script does so already, the worker's output on stderr says which import failed, or why the dataset "
        "could not be unpickled."
    )


class WorkerWatch:
    """Watches the worker processes of an iterator; the iterator's thread uses it.

    Args:
        board: where workers say what they do.
        identify: returns (ID, path) of a sample's index; for messages only.

    Attributes:
        deaths: of workers that ended before their time, by their number.
    """

    def __init__(self, board: Board, identify: Identify) -> None:
        self.deaths: dict[int, Death] = {}
        self._board, self._identify = board, identify
        self._processes: Sequence[Any] = ()
        self._receivers: Receivers | None = None
        self._sentinels = select.poll()
        self._worker_of: dict[int, int] = {}  # by sentinel, of those that are to stay
        self._kills_before = group_memory().oom_kills

    def begin(self, processes: Sequence[Any], receivers: Receivers) -> None:
        """Watch these processes, whose ends `receivers` tells too."""
        self._processes, self._receivers = processes, receivers
        self._worker_of = {process.sentinel: worker for worker, process in enumerate(processes)}
        for sentinel in self._worker_of:
            self._sentinels.register(sentinel, select.POLLIN)

    @property
    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes]

    @property
    def watched(self) -> set[int]:
        return set(self._worker_of.values())

    def release(self, worker: int) -> None:
        """Watch a worker no more, which is to end."""
        self._unwatch(self._processes[worker].sentinel)

    def notice(self, seconds: float = 0.0, *, by_pid: bool = False) -> dict[int, Death]:
        """Return the deaths, after waiting for one up to so many seconds.

        by_pid: look at the processes too. A dead worker's children may hold its sentinel open.
        """
        ended = [sentinel for sentinel, _ in self._sentinels.poll(seconds * 1000)]
        if by_pid and not ended:
            ended = [fd for fd, worker in self._worker_of.items() if not self._processes[worker].is_alive()]
        for sentinel in ended:
            worker = self._worker_of[sentinel]
            self._unwatch(sentinel)
            death = reap(self._processes[worker])
            if death is not None:
                self.deaths[worker] = death
        return self.deaths

    def _unwatch(self, sentinel: int) -> None:
        if self._worker_of.pop(sentinel, None) is not None and self._receivers is not None:
            self._sentinels.unregister(sentinel)
            self._receivers.forget(sentinel)

    def why_died(self, start_method: str | None) -> str:
        """Return the message for the deaths: what torch says, where workers were, memory, stacks, what to do."""
        board, identify, now = self._board, self._identify, group_memory()
        first = next(iter(self.deaths.values()))
        killed = None if now.oom_kills is None or self._kills_before is None else now.oom_kills - self._kills_before
        lines = [first.as_torch_says()]
        for worker, death in self.deaths.items():
            code = death.code
            how = f"by {_SIGNALS.get(-code, -code)}" if code is not None and code < 0 else f"with exit code {code}"
            peak = "" if death.peak is None else f", with at most {size_of(death.peak)} of memory in use,"
            lines.append(
                f"Worker {worker} (pid {death.pid}) ended {how}{peak} {_doing(board.progress(worker), identify)} ago."
            )
            lines += _stack_lines(board.stacks(worker))
        if now.in_use is not None:
            limit = "no limit" if now.limit is None else f"a limit of {size_of(now.limit)}"
            kills = (
                ""
                if killed is None
                else f"; the kernel has killed {killed} of its processes for lack of memory since this iterator began"
            )
            lines.append(f"The cgroup has {size_of(now.in_use)} of memory in use and {limit}{kills}.")
        starting = board.progress(next(iter(self.deaths))).stage == WorkerStage.STARTING
        if starting and first.code == 1 and start_method in ("spawn", "forkserver"):
            lines.append(main_guard(start_method))
        else:
            lines.append(_advice(first, killed))
        return "\n".join(lines)

    def why_stuck(self, timeout: float, workers: set[int]) -> str:
        """Return the message for a batch that did not come in time from one of these workers, or a stopped one."""
        board, identify, pids = self._board, self._identify, self.pids
        stopped = {worker for worker in self.watched if _is_stopped(pids[worker])}  # one may hold the queue's lock
        workers = workers | stopped
        lines = [f"DataLoader timed out after {timeout} seconds."]
        stacks = board.ask_stacks({worker: pids[worker] for worker in sorted(workers)[:_STACKS_TOLD]})
        for number, worker in enumerate(sorted(workers)):
            lines.append(
                f"Worker {worker} (pid {pids[worker]}) is {_doing(board.progress(worker), identify)} ago"
                f"{', and is stopped by a signal' if worker in stopped else ''}."
            )
            if number < _STACKS_TOLD:
                lines += _stack_lines(stacks.get(worker, "")) or ["  (its Python stack could not be read)"]
        lines.append("Look at that sample or function, or raise timeout= if it is only slow.")
        return "\n".join(lines)

    def why_silent(self, workers: set[int]) -> str:
        """Return a warning of forked workers that wait for a lock since they began; empty: there are none.

        workers: those that have not answered their first task.
        """
        board, pids = self._board, self.pids
        waiting = {worker: pids[worker] for worker in sorted(workers) if _waits_for_lock(pids[worker])}
        if not waiting:
            return ""
        stacks = board.ask_stacks(dict(list(waiting.items())[:_STACKS_TOLD]))
        library = next(filter(None, map(_library, stacks.values())), "")
        who = counted(len(waiting), "worker process waits", "worker processes wait")
        lines = [
            f"{who} for a lock since the first task: a library{library and f' ({library})'} whose threads ran when "
            "they were forked, most likely, for a forked process has none of these threads. Give "
            "multiprocessing_context='forkserver' or 'spawn', or worker_method='thread', or use the library in the "
            "workers alone."
        ]
        for worker, pid in waiting.items():
            lines.append(f"Worker {worker} (pid {pid}) is {_doing(board.progress(worker), self._identify)} ago.")
            lines += _stack_lines(stacks.get(worker, ""))
        return "\n".join(lines)


def _waits_for_lock(pid: int) -> bool:
    """Return whether the main thread of a process waits in the system call that locks wait in.

    Where the kernel does not tell, a process that used no CPU for a while is one.
    """
    try:
        with open(f"/proc/{pid}/syscall") as file:
            return file.read().split()[0] == _FUTEX
    except OSError:
        return _cpu_ticks(pid) == _cpu_ticks(pid, after=0.5)


def _cpu_ticks(pid: int, after: float = 0.0) -> list[str]:
    time.sleep(after)
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[11:13]
    return []


def _library(dump: str) -> str:
    """Return the installed library that the innermost frame of a stack lies in, if it is not a loader's."""
    for path in re.findall(r'File "([^"]+)"', dump.rpartition("Current thread ")[2].split("\n\n")[0]):
        if _MACHINERY.search(path):
            break
        _, installed, inside = path.rpartition("-packages/")
        if installed:
            return str(inside.split("/")[0].removesuffix(".py"))
    return ""


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"
    return False


def _doing(progress: WorkerProgress, identify: Identify) -> str:
    """Return what a worker is or was doing and for how long, as the end of a sentence."""
    collates = progress.stage == WorkerStage.COLLATE and progress.index is not None
    what = {
        WorkerStage.STARTING: "starting (what it printed to stderr may tell more)",
        WorkerStage.INIT: "in worker_init_fn",
        WorkerStage.ITERATING: "iterating over its copy of the dataset",
        WorkerStage.COLLATE: "in collate_fn" + (f", behind {_named(progress, identify)}" if collates else ""),
        WorkerStage.DONE: "sending a batch or waiting for work",
    }.get(progress.stage) or f"in __getitem__ of {_named(progress, identify)}"
    return f"{what}, begun {progress.seconds:.2f} s"


def _named(progress: WorkerProgress, identify: Identify) -> str:
    index = progress.index
    if index is None:
        return "a sample that it had only begun"
    if isinstance(index, str):
        return f"{'samples' if index.startswith('[') else 'sample'} {index}"
    try:
        name, path = identify(index)
    except Exception:  # it asks the user's dataset
        name, path = str(index), None
    return f"sample {name!r}" + (f" ({path})" if path and path != name else "")


def _stack_lines(dump: str) -> list[str]:
    """Return the lines of faulthandler's dump that tell about the user's code, in the thread that had the signal."""
    _, found, stack = dump.rpartition("Current thread ")
    head, *frames = (found + stack).split("\n\n")[0].strip("\n").split("\n")
    way = (number for number, frame in enumerate(frames) if number and _MACHINERY.search(frame))
    return [f"  {line}" for line in (head, *frames[: min(next(way, _FRAMES_TOLD), _FRAMES_TOLD)]) if frames]


def _advice(death: Death, killed: int | None) -> str:
    number = -(death.code or 0)
    if number == signal.SIGKILL and killed:
        return "Lower num_workers=, batch_size= or prefetch_factor=, or raise the memory limit."
    if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return "Another program sent the signal: the job scheduler, a user's, or the host's kernel (see dmesg)."
    if number == signal.SIGBUS:
        return REMEDY
    if number > 0:
        return "The crash is in native code: read that sample alone, with num_workers=0, to repeat it."
    return "Something in the worker ended the process: look for exit() in the dataset, and at its output on stderr."


def _is_alive(process: Any) -> bool:
    """Return whether a process lives. multiprocessing takes one for alive whose end a Ctrl-C kept it from noting."""
    return bool(process.is_alive() and _exists(process.pid))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
