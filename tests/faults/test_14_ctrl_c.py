"""Row 14: Ctrl-C, once and twice: at the start, in a steady loop, in a stalled one, with a hung worker, while closing.

The program gets KeyboardInterrupt within a second; no process, thread or /dev/shm entry is left, also where a notebook
keeps the traceback; and the same loader makes whole passes in the same process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import python_processes
from tests.carriers_under_test import EXECUTORS
from tests.data import tensor_files

# Signals go to the whole process group, as a terminal and Jupyter send them. What a shell runs in the background
# ignores SIGINT, and so the program sets Python's own handler.
PROGRAM = """
import code, contextlib, gc, json, os, random, signal, sys, threading, time
import torch, penstock
from penstock.sample_notes import add_note

options, native, tries, root = json.loads(sys.argv[1])
gate, chance, sent, pids, at_fork, fork = threading.Event(), random.Random(14), [], set(), [], os.fork
signal.signal(signal.SIGINT, signal.default_int_handler)

def noted_fork():
    pid = fork()
    pids.add(str(pid))
    return pid

os.fork = noted_fork
os.register_at_fork(after_in_parent=lambda: at_fork and at_fork.pop()())

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 120
    def __getitem__(self, index):
        time.sleep(0.001)
        if self.hung and index == 40:
            hang()
        return torch.full((3,), float(index))

def hang():
    if torch.utils.data.get_worker_info() is None or threading.current_thread() is not threading.main_thread():
        gate.wait()
    elif chance.random() < 0.5:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(1000)

if native:  # a thread of Python's reads one of the files
    dataset = penstock.TensorFolder(root)
    read = dataset.read
    dataset.read = lambda *given: (dataset.hung and gate.wait(), read(*given))[1]
else:
    dataset = Samples()
dataset.hung = False
loader = penstock.DataLoader(dataset, 4, **options)

def interrupt_after(delay, twice):
    def send():
        time.sleep(delay)
        for _ in range(1 + twice):
            interrupt()
            time.sleep(chance.random() * 0.02)
    threading.Thread(target=send).start()

def interrupt():
    sent.append(time.monotonic())
    os.killpg(0, signal.SIGINT)

def rest():
    for _ in range(500):  # a signal that comes between Python's look for one and its sleep waits until that is over
        time.sleep(0.01)

def start(twice):
    interrupt_after(chance.random() * 0.05, twice)
    go_through()

def go_through():
    for batch in loader:
        pass
    rest()

def forking(twice):  # in Python's own part of a fork, where it drops what is raised
    at_fork.extend([interrupt] * (1 + twice))
    go_through()

def steady(twice, step=0.002):
    for number, batch in enumerate(loader):
        if number == 2:
            interrupt_after(chance.random() * 0.05, twice)
        time.sleep(step)
    rest()

def stalled(twice):
    steady(twice, 0.1)

def hung(twice):
    interrupt_after(0.2, twice)
    go_through()

def closing(twice):
    batches = iter(loader)
    next(batches)
    interrupt_after(chance.random() * 0.01, twice)
    getattr(batches, "close", getattr(batches, "_shutdown_workers", gc.collect))()
    rest()

class Kernel(code.InteractiveInterpreter):  # as a notebook's, it keeps the traceback, and the iterator in its frames
    def write(self, text):
        shown.append(text)

kernel, shown = Kernel(globals()), []

def cell(twice):
    shown.clear()
    interrupt_after(0.2, twice)
    kernel.runcode(compile("go_through()", "cell", "exec"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as between a notebook's cells
    assert any(text.endswith("KeyboardInterrupt\\n") for text in shown), shown
    raise KeyboardInterrupt

def held():
    gc.collect()
    tasks, children = os.listdir("/proc/self/task"), []
    for task in tasks:
        with contextlib.suppress(OSError):  # it has ended
            children += open(f"/proc/self/task/{task}/children").read().split()
    entries = [name for name in os.listdir("/dev/shm") if not pids.isdisjoint(name.split("_"))]
    return len(children), len(tasks), len(entries)

def whole():
    return [int(batch[0, 0]) for batch in loader] == list(range(0, 120, 4))

def attempt(moment, twice):
    global loader
    loader = None
    before, caught, loader = held(), 0, penstock.DataLoader(dataset, 4, **options)
    dataset.hung = moment in (hung, cell)
    sent.clear()
    try:
        try:
            moment(twice)
        except KeyboardInterrupt:
            caught += 1
        back = time.monotonic()
        while len(sent) <= twice:
            time.sleep(0.001)
        time.sleep(0.03)
    except KeyboardInterrupt:
        caught += 1
        back = time.monotonic()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert 1 <= caught <= 1 + twice, caught
    assert back - sent[0] < 1, back - sent[0]
    dataset.hung = False
    gate.set()  # a thread that hangs ends when its sample does
    if loader.persistent_workers:  # they stay for the next pass, unless the Ctrl-C ends them
        time.sleep(0.3)
        assert whole()
        loader = None
    deadline = time.monotonic() + 1
    while any(now > then for now, then in zip(held(), before)):
        assert time.monotonic() < deadline, (before, held())
        time.sleep(0.001)
    gate.clear()
    assert loader is None or whole()

whole()
moments = [start, steady, stalled, hung, closing, cell, *[forking] * bool(pids)]
for number in range(tries):
    for moment in moments:
        for twice in (False, True):
            try:
                attempt(moment, twice)
            except BaseException as error:
                add_note(error, f"{moment.__name__}, {'twice' if twice else 'once'}, number {number}")
                raise
print(2 * len(moments) * tries)
"""
METHODS = ("caller", "native, 2", "threads, 2", "processes, 2", "processes, persistent")
MORE = ("native, persistent", "native, fed", "threads, persistent", "processes, fed")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*METHODS, *MORE])
def test_ctrl_c(name: str, tmp_path: Path, full: bool, only_full: Any, cases: Callable[[int], None]) -> None:
    only_full(name in MORE)
    root = tensor_files(tmp_path, 120, name="{:03}")
    torch.save(torch.full((3,), 40.0), root / "040.pt", _use_new_zipfile_serialization=False)
    executor, tries = EXECUTORS[name], 4 if full else 1
    done = python_processes.run(PROGRAM, json.dumps([executor.options, executor.native, tries, str(root)]))
    assert done.returncode == 0, done.stderr[-9000:]
    cases(int(done.stdout))
