"""penstock run over programs that train: its report, its live line, --steps, --json and --replace; under torchrun."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import penstock
from penstock.cli import run as verb
from tests.frameworks.launching import TORCHRUN, run as launched
from tests.insight.html_pages import Page
from tests.insight.penstock_processes import Command, Ended, penstock_command, written

TRAIN = """
import hashlib, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset
class Photos(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.0002)  # a sample that takes a while
        return torch.full((3,), float(index)) + torch.rand(3)
torch.manual_seed(0)
digest = hashlib.sha256()
for epoch in range(2):
    for x in DataLoader(Photos(), 16, shuffle=True, num_workers=int(sys.argv[1])):
        digest.update(x.numpy().tobytes())
        time.sleep(0.001)  # a step of training
print(digest.hexdigest(), type(DataLoader([1])).__module__)
"""
SENTENCE = re.compile(
    r"penstock: Your loop waited \d+ % of the time \([\d.]+ (us|ms) a step\) for DataLoader\(Photos, batch_size=16, "
    r"num_workers=\d\) at train.py:15(: the loader keeps up)?; 8 batches in 2 passes, [\d.]+ batches/s, "
    r"[\d,]+ samples/s(; the first batch of a pass took [\d.]+ (ms|s)(, with the start of the workers)?: \d+ % of all)?"
)
REPLACED = " for penstock.DataLoader(Photos, batch_size=16, num_workers=2) at train.py:15"


@pytest.fixture
def penstock_run(tmp_path: Path) -> Callable[..., Ended]:
    """Return what runs this text, in a file train.py, by `penstock run` with these arguments."""

    def run(text: str, *arguments: str, **given: Any) -> Ended:
        return penstock_command("run", *arguments, folder=written(tmp_path, {"train.py": text}), **given)

    return run


@pytest.mark.parametrize("workers", ["0", "2"])
def test_report_and_unchanged_output(tmp_path: Path, penstock_run: Any, workers: str) -> None:
    ended = penstock_run(TRAIN, "--json", "out.json", "train.py", workers)
    assert ended.code == 0, ended.err
    (line,) = ended.err.splitlines()
    assert SENTENCE.fullmatch(line), line
    figures = json.loads((tmp_path / "out.json").read_text())
    (loop,) = figures["loops"]
    assert figures["seconds"] > loop["waited"] + loop["worked"]
    wanted = {"dataset": "Photos", "workers": int(workers), "place": "train.py:15", "batches": 8, "samples": 128}
    assert {name: loop[name] for name in wanted} == wanted
    again = penstock_run(TRAIN, "-m", "train", workers)
    assert again.out == ended.out and ended.out.endswith("torch.utils.data.dataloader\n")


@pytest.mark.parametrize(
    ("text", "arguments", "out", "err"),
    [
        (TRAIN, "--replace --after-only train.py 2", r"\w+ penstock\.loader\n", REPLACED),
        (TRAIN.replace("range(2)", "range(10**9)"), "--steps 6 train.py 0", "", "; 6 batches in 2 passes"),
        (TRAIN.replace("range(2)", "range(10**9)"), "--seconds 0.2 train.py 0", "", " batches/s"),
    ],
    ids=["replaced in place", "steps", "seconds"],
)
def test_options(penstock_run: Any, text: str, arguments: str, out: str, err: str) -> None:
    ended = penstock_run(text, *arguments.split())
    assert ended.code == 0 and re.fullmatch(out, ended.out) and err in ended.err, ended


@pytest.mark.parametrize("option", ["--json", "--trace", "--report"])
@pytest.mark.parametrize("more", [[], ["--compare"]])
def test_files_are_checked_before_the_program_runs(penstock_run: Any, option: str, more: list[str]) -> None:
    ended = penstock_run("print(1)", *more, option, "none/file", "train.py")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert f"{option[2:]}='none/file': there is no folder " in ended.err


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print(1)", 1),
        ("import sys; sys.exit(0)", 1),
        ("import sys; sys.exit(5)", 5),
        ("import torch.utils.data as data; list(data.DataLoader([1]))", 0),
        (
            "import threading, torch.utils.data as data\n"
            "main = threading.main_thread()\n"
            "threading.Thread(target=lambda: main.join() or list(data.DataLoader([1]))).start()",
            0,
        ),
    ],
    ids=["nothing", "exits", "fails", "a loop", "a loop of a thread that is left"],
)
def test_a_recording_of_no_loop_is_a_failure(text: str, code: int, tmp_path: Path, penstock_run: Any) -> None:
    ended = penstock_run(text, "--report", "report.html", "--trace", "trace.json", "train.py")
    assert ended.code == code, ended.err
    assert ("no loop over a DataLoader was seen" in ended.err) is bool(code)
    assert ("the report is in report.html, and shows nothing" in ended.err) is bool(code)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert bool(events) is (not code) and (tmp_path / "report.html").stat().st_size > 1000
    if not code:
        assert "DataLoader(list, batch_size=1, num_workers=0)" in (tmp_path / "report.html").read_text()
        assert {"wait", "loop"} <= {one["name"] for one in events} | {one["args"].get("name") for one in events}


def test_a_report_of_a_program_that_fails(tmp_path: Path, penstock_run: Any) -> None:
    import_ = "from torch.utils.data import DataLoader\n"
    ended = penstock_run(import_ + "for x in DataLoader([1, 2, 3]):\n    assert x < 2", "train.py")
    begin = f'Traceback (most recent call last):\n  File "{tmp_path}/train.py", line 3, in <module>'
    assert ended.code == 1 and ended.err.startswith(begin)
    assert ended.said == [ended.err.splitlines()[-1]]  # behind the traceback
    ended = penstock_run(import_ + "list(DataLoader([1, 'a', 3], 3))", "train.py")  # an error of a dataset
    assert ended.code == 1 and "in _next_data" in ended.err
    assert ended.program_err.count(os.path.dirname(penstock.__file__)) == 1  # one frame of ours


def test_rank_0_reports(tmp_path: Path, penstock_run: Any) -> None:
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    assert penstock_run("print(1)", "--json", "{rank}.json", "train.py", environment=ranks) == (0, "1\n", "")
    assert json.loads((tmp_path / "1.json").read_text())["loops"] == []
    ended = penstock_run("print(1)", "--replace", "train.py", environment=ranks)
    assert ended.code == 2 and "--after-only" in ended.err


def gained_of(ended: Ended) -> str:
    """Return the sentence that compares both runs; behind it may stand how much they read from disks."""
    return next(one for one in ended.said if "times the samples/s" in one).removeprefix("penstock: ")


@pytest.mark.timeout(300)
def test_replace(tmp_path: Path, penstock_run: Any) -> None:
    ended = penstock_run(TRAIN, "--replace", "--json", "both.json", "--report", "report.html", "train.py", "0")
    assert ended.code == 0, ended.err
    page = Page((tmp_path / "report.html").read_text()).text
    before, runs = page.partition("What to do")[0].partition("Both runs")[::2]
    assert "began" in before and re.search(r"^  samples/s +[\d,]+ +[\d,]+ +[\d.]+x$", runs, re.MULTILINE)
    assert gained_of(ended) in runs and "Photos, batch_size=16 at train.py:15" in runs
    assert [line.split()[1] for line in ended.out.splitlines()] == ["torch.utils.data.dataloader", "penstock.loader"]
    assert "penstock: run 1 of 2, with torch's loader" in ended.said
    assert re.search(r"penstock: the program +[\d.]+ (ms|s) +[\d.]+ (ms|s) +[\d.]+x$", ended.err, re.MULTILINE)
    assert re.search(r"penstock: +samples/s +[\d,]+ +[\d,]+ +[\d.]+x$", ended.err, re.MULTILINE)
    both = json.loads((tmp_path / "both.json").read_text())
    assert [both[run]["loops"][0]["batches"] for run in ("before", "after")] == [8, 8]


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("import sys; sys.exit(5)", 5, "ended with exit code 5"),
        ("import os; os.kill(os.getpid(), 9)", 137, "ended with exit code 137"),
        ("import os; os._exit(0)", 1, "without figures"),
    ],
)
def test_a_first_run_that_fails_is_the_last(text: str, code: int, why: str, penstock_run: Any) -> None:
    ended = penstock_run(text, "--replace", "train.py")
    assert ended.code == code and why in ended.said[-1] and "run 2 of 2" not in ended.err


def test_signals_while_a_child_runs(tmp_path: Path) -> None:
    sends = "import os, signal, time\nfor number in {}:\n    os.kill(os.getppid(), number)\n"
    ended = verb.run_child([sys.executable, "-c", sends.format("[signal.SIGINT]")], str(tmp_path / "none"))
    assert (ended.code, ended.figures) == (0, {})  # the terminal has sent it to the child too
    waits = sends.format("[signal.SIGTERM]") + "time.sleep(60)"
    assert verb.run_child([sys.executable, "-c", waits], str(tmp_path / "none")).code == 143


@pytest.mark.timeout(300)
def test_compare(tmp_path: Path, penstock_run: Any) -> None:
    endless = TRAIN.replace("range(2)", "range(10**9)")
    ended = penstock_run(endless, "--compare", "6", "--json", "both.json", "train.py", "0")
    assert ended.code == 0 and ended.out == "", ended.err
    both = json.loads((tmp_path / "both.json").read_text())
    loops = [both[run]["loops"][0] for run in ("before", "after")]
    assert [(loop["batches"], loop["penstock"]) for loop in loops] == [(6, False), (6, True)]
    assert re.match(r"Penstock: [\d.]+ times the samples/s \([\d,]+ -> [\d,]+\) of the loop ", gained_of(ended))
    fails = "import sys, torch.utils.data as data\nassert type(data.DataLoader([1])).__module__[0] == 't'\n"
    ended = penstock_run(fails, "--compare", "train.py")
    assert ended.code == 1 and "AssertionError" in ended.program_err
    why = "because the run with Penstock's in its place ended with exit code 1, and the run before it did not"
    assert ended.said[-1] == f"penstock: nothing is compared, {why}"
    assert "at least 1" in penstock_run("", "--compare", "0", "train.py").err
    assert "--compare and --replace exclude each other" in penstock_run("", "--compare", "--replace", "train.py").err


@pytest.mark.timeout(300)
def test_compare_of_a_program_that_imports_penstock(tmp_path: Path, penstock_run: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "run.md").read_text()
    (text,) = re.findall(r"`train\.py`:\n\n```python\n(.*?)```", page, re.DOTALL)
    text = text.replace(", num_workers=2)", ", seed=3, cache='1MiB', device='cpu', ledger='never')")
    text += "class Own(DataLoader): pass\n"
    text += "print(len(list(Own(data, 5000))))"
    ended = penstock_run(text, "--compare", "--json", "both.json", "train.py")
    assert ended.code == 0 and re.fullmatch("(plan .*\n2\n){2}", ended.out), ended
    both = json.loads((tmp_path / "both.json").read_text())
    loops = [sorted((one["name"], one["penstock"]) for one in both[run]["loops"]) for run in ("before", "after")]
    assert loops == [[("Own", ours), ("penstock.DataLoader", ours)] for ours in (False, True)]
    first, second = ended.err.split("run 2 of 2")
    assert "this run ignored cache, device, ledger, seed: torch's loader has no such arguments" in first
    assert "ignored" not in second and "samples/s (" in ended.said[-1]
    ended = penstock_run(text.replace("'cpu'", "'cuda'"), "--compare", "train.py")
    assert ended.code == 1 and "leave it out for the comparison" in ended.program_err


@pytest.mark.parametrize(
    ("more", "end"),
    [
        ({"steady_waited": 0.1}, '. Write "from penstock import DataLoader" instead of torch\'s'),
        ({"steady_waited": 3.0}, ". Keep torch's loader here"),
        ({"worked": 1.05}, ". Changing the import line gives nothing here"),
        (
            {"worked": 3.0, "steady_waited": 0.5},
            "The work changed, not the wait: compare once more while nothing else runs",
        ),
        ({"steady_waited": 0.1, "name": "DataLoader"}, ". Keep Penstock's loader here"),
        ({"steady_waited": 3.0, "name": "DataLoader"}, ". Write torch's loader here"),
        (
            {"penstock": False},
            "had the same loader in both runs: DataLoader is a derived class that makes its batches itself",
        ),
        ({"place": "a.py:7"}, "there is nothing to compare"),
    ],
)
def test_what_the_import_line_gives(more: dict[str, Any], end: str) -> None:
    loop = {**LOOP, "place": "a.py:1", "steady_waited": 1.0, "waits": [4, 5], "name": "DataLoader", "penstock": True}
    short = {**loop, "place": "a.py:9", "worked": 0.1, "waited": 0.1}
    after = {**loop, "name": "penstock.DataLoader", **more}
    said = verb.gained({"loops": [short, loop]}, {"loops": [after, short][: 1 + ("place" not in more)]})
    assert said.endswith(end) and ("a.py:1" in said or "place" in more)


def test_limits_of_a_comparison(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = iter([0, 1 << 20, 1 << 20, 1 << 20])
    monkeypatch.setattr("resource.getrusage", lambda _: SimpleNamespace(ru_inblock=next(read)))
    monkeypatch.setattr(verb, "COMMAND", (sys.executable, "-c", WRITES))
    parser = argparse.ArgumentParser()
    verb.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["run", "--compare", __file__])
    assert arguments.execute(arguments) == 1
    said = capsys.readouterr().err
    assert "the first run read 512 MiB from disks, the second 0.0 KiB" in said and "compare once more" in said


WRITES = """
import sys, json
json.dump({"seconds": 1.0, "loops": []}, open(sys.argv[sys.argv.index("--json") + 1], "w"))
assert sys.argv[1:5] == ["--steps", "200", "--seconds", "30"]
"""
LOOP = {"dataset": "Photos", "batching": "batch_size=4", "batches": 10, "samples": 40, "wait_share": 0.5}
LOOP |= {"waited": 1.0, "worked": 1.0, "steady_waited": 0.0, "waits": [0]}


def test_comparison_of_different_loops() -> None:
    def loop(place: str, **more: Any) -> dict[str, Any]:
        return {**LOOP, "place": place, **more}

    before = {"seconds": 4.0, "loops": [loop("a.py:1"), loop("a.py:2"), loop("a.py:1", samples=0)]}
    after = {"seconds": 2.0, "loops": [loop("a.py:1", waited=0.0, batches=20, wait_share=0.0), loop("a.py:3")]}
    lines = verb.compared(before, after)
    assert [re.sub(r"  +", " | ", line) for line in lines] == [
        " | torch's loader | Penstock's",
        "the program | 4.0 s | 2.0 s | 2.00x",
        "Photos, batch_size=4 at a.py:1",
        " | batches | 10 | 20",
        " | the loop | 2.0 s | 1.0 s | 2.00x",
        " | waited | 50 % | 0 %",
        " | batches/s | 5.0 | 20.0 | 4.00x",
        " | samples/s | 20 | 40 | 2.00x",
        "Photos, batch_size=4 at a.py:2",
        " | batches | 10 | -",
        "Photos, batch_size=4 at a.py:1",
        " | batches | 10 | -",
        "Photos, batch_size=4 at a.py:3",
        " | batches | - | 10",
    ]


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, Path]]:
    ours, theirs = pty.openpty()
    try:
        yield ours, Path(os.ttyname(theirs))
    finally:
        os.close(ours)
        os.close(theirs)


def test_live_line(penstock_run: Any) -> None:
    program, shown = TRAIN.replace("sleep(0.001)", "sleep(0.1)"), {"TERM": "xterm", "LOCAL_RANK": "0"}
    with terminal() as (ours, name):
        assert penstock_run(program, "train.py", "0", environment=shown, stderr=name).code == 0
        text = os.read(ours, 1 << 16).decode()
        line = r"\r\x1b\[K(Photos: \d batches, [\d.]+/s, \d+ samples/s, waited \d+ % of the time)\r"
        assert re.findall(line, text)
        assert SENTENCE.search(text.rpartition("\r\x1b[K")[2])  # the line is gone, and comes no more
        for more, quiet in (({"TERM": "dumb"}, []), ({"LOCAL_RANK": "1"}, []), ({}, ["--quiet"])):
            penstock_run(program, *quiet, "train.py", "0", environment={**shown, **more}, stderr=name)
            assert "\x1b" not in os.read(ours, 1 << 16).decode()


def test_a_terminal_that_is_gone(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": TRAIN.replace("sleep(0.001)", "sleep(0.1)")})
    shown = {"TERM": "xterm", "LOCAL_RANK": "0"}
    with terminal() as (ours, name):
        given = ("--json", "out.json", "train.py", "0")
        command = Command("run", *given, folder=tmp_path, environment=shown, stderr=name)
        assert os.read(ours, 100)
    assert command.end().code == 0
    assert json.loads((tmp_path / "out.json").read_text())["loops"][0]["batches"] == 8


RANKS = """
import os, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
dataset = TensorDataset(torch.arange(16))
total = sum(x.sum() for (x,) in DataLoader(dataset, 4, sampler=DistributedSampler(dataset)))
dist.all_reduce(total)
os.write(1, f"rank {dist.get_rank()} total {int(total)} {__name__}\\n".encode())  # both write to one pipe
dist.destroy_process_group()
"""


@pytest.mark.timeout(600)  # see launching.run
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch was built without gloo")
def test_torchrun(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": RANKS})
    words = ("-m", "penstock", "run", "--json", str(tmp_path / "{rank}.json"), "train.py")
    said = launched(*TORCHRUN, *words, cwd=tmp_path)
    assert sorted(said.splitlines()) == [f"rank {rank} total 120 __main__" for rank in (0, 1)]
    for rank in (0, 1):
        (loop,) = json.loads((tmp_path / f"{rank}.json").read_text())["loops"]
        assert (loop["batches"], loop["samples"], loop["place"]) == (2, 8, "train.py:8")
