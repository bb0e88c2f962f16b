"""penstock run over programs that train: its report, its live line, --steps, --json and --replace; under torchrun."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock
from penstock.cli import run as verb
from penstock.insight.program_loaders import facts_of
from penstock.insight.recording import Loop
from penstock.insight.run_report import LiveLine
from tests.frameworks.launching import TORCHRUN
from tests.frameworks.launching import run as launched
from tests.insight.penstock_processes import penstock_command, written

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
    r"penstock: The consumer waited \d+ % of the time \([\d.]+ (us|ms) a step\) for DataLoader\(Photos, batch_size=16, "
    r"num_workers=\d\) at train.py:18(: the loader keeps up)?; 8 batches in 2 passes, [\d.]+ batches/s, "
    r"[\d,]+ samples/s(; the first batch of a pass took [\d.]+ (ms|s)(, with the start of the workers)?: \d+ % of all)?"
)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_report_and_unchanged_output(tmp_path: Path, workers: str) -> None:
    written(tmp_path, {"train.py": TRAIN})
    ended = penstock_command("run", "--json", "out.json", "train.py", workers, folder=tmp_path)
    assert ended.code == 0, ended.err
    (line,) = ended.err.splitlines()
    assert SENTENCE.fullmatch(line), line
    figures = json.loads((tmp_path / "out.json").read_text())
    (loop,) = figures["loops"]
    assert figures["seconds"] > loop["waited"] + loop["worked"]
    wanted = {"dataset": "Photos", "workers": int(workers), "place": "train.py:18", "batches": 8, "samples": 128}
    assert {name: loop[name] for name in wanted} == wanted
    shutil.copy(tmp_path / "train.py", tmp_path / "plain.py")
    again = penstock_command("run", "-m", "plain", workers, folder=tmp_path)
    assert again.out == ended.out and ended.out.endswith("torch.utils.data.dataloader\n")


def test_replaced_in_place(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": TRAIN})
    ended = penstock_command("run", "--replace", "--after-only", "train.py", "2", folder=tmp_path)
    assert (ended.code, ended.out.split()[1]) == (0, "penstock.loader"), ended.err
    assert " for penstock.DataLoader(Photos, batch_size=16, num_workers=2) at train.py:18" in ended.err


def test_a_report_of_a_program_that_fails(tmp_path: Path) -> None:
    script = "from torch.utils.data import DataLoader\nfor x in DataLoader([1, 2, 3]):\n    assert x < 2"
    written(tmp_path, {"train.py": script})
    ended = penstock_command("run", "train.py", folder=tmp_path)
    assert ended.code == 1
    assert ended.err.startswith(
        f'Traceback (most recent call last):\n  File "{tmp_path}/train.py", line 3, in <module>'
    )
    assert len(ended.said) == 1 and ended.err.splitlines()[-1] == ended.said[0]  # behind the traceback


def test_an_error_of_a_dataset_has_one_frame_of_ours(tmp_path: Path) -> None:
    script = "from torch.utils.data import DataLoader\nlist(DataLoader([1, 'a', 3], 3))"
    written(tmp_path, {"train.py": script})
    ended = penstock_command("run", "train.py", folder=tmp_path)
    assert ended.code == 1 and "in _next_data" in ended.err
    assert ended.program_err.count(os.path.dirname(penstock.__file__)) == 1


def test_steps(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": TRAIN.replace("range(2)", "range(10**9)")})
    ended = penstock_command("run", "--steps", "6", "train.py", "0", folder=tmp_path)
    assert (ended.code, ended.out) == (0, "") and "; 6 batches in 2 passes" in ended.err


def test_figures_that_cannot_be_written(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": "print(1)"})
    ended = penstock_command("run", "--json", "none/out.json", "train.py", folder=tmp_path)
    assert (ended.code, ended.out) == (0, "1\n")
    assert ended.said[1] == "penstock: none/out.json: No such file or directory"


def test_rank_0_reports(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": "print(1)"})
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    words = ("run", "--json", "{rank}.json", "train.py")
    assert penstock_command(*words, folder=tmp_path, environment=ranks) == (0, "1\n", "")
    assert json.loads((tmp_path / "1.json").read_text())["loops"] == []
    ended = penstock_command("run", "--replace", "train.py", folder=tmp_path, environment=ranks)
    assert ended.code == 2 and "--after-only" in ended.err


@pytest.mark.timeout(300)
def test_replace(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": TRAIN})
    ended = penstock_command("run", "--replace", "--json", "both.json", "train.py", "0", folder=tmp_path)
    assert ended.code == 0, ended.err
    assert [line.split()[1] for line in ended.out.splitlines()] == ["torch.utils.data.dataloader", "penstock.loader"]
    assert "penstock: run 1 of 2, with torch's loader" in ended.said
    assert re.search(r"penstock: the program +[\d.]+ (ms|s) +[\d.]+ (ms|s) +[\d.]+x$", ended.err, re.MULTILINE)
    assert re.search(r"penstock: +samples/s +[\d,]+ +[\d,]+ +[\d.]+x$", ended.err, re.MULTILINE)
    both = json.loads((tmp_path / "both.json").read_text())
    assert [both[run]["loops"][0]["batches"] for run in ("before", "after")] == [8, 8]


def test_a_first_run_that_fails_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, {"fails.py": "import sys; sys.exit(5)", "dies.py": "import os; os.kill(os.getpid(), 9)"})
    written(tmp_path, {"leaves.py": "import os; os._exit(0)"})
    command = (sys.executable, "-c", "import sys; exec(open(sys.argv[-1]).read())")
    monkeypatch.setattr(verb, "COMMAND", command)
    parser = argparse.ArgumentParser()
    verb.add_parser(parser.add_subparsers())
    for name, code, why in (
        ("fails.py", 5, "ended with exit code 5"),
        ("dies.py", 137, "ended with exit code 137"),
        ("leaves.py", 0, "left no figures"),
    ):
        arguments = parser.parse_args(["run", "--replace", str(tmp_path / name)])
        assert arguments.execute(arguments) == code
        said = capfd.readouterr().err.splitlines()
        assert len(said) == 2 and why in said[1]


def test_signals_while_a_child_runs(tmp_path: Path) -> None:
    sends = "import os, signal, time\nfor number in {}:\n    os.kill(os.getppid(), number)\n"
    ended = verb.run_child([sys.executable, "-c", sends.format("[signal.SIGINT]")], str(tmp_path / "none"))
    assert (ended.code, ended.figures) == (0, {})  # the terminal has sent it to the child too
    waits = sends.format("[signal.SIGTERM]") + "time.sleep(60)"
    assert verb.run_child([sys.executable, "-c", waits], str(tmp_path / "none")).code == 143


def test_comparison_of_different_loops() -> None:
    def loop(place: str, **more: Any) -> dict[str, Any]:
        known = {"dataset": "Photos", "batching": "batch_size=4", "batches": 10, "samples": 40, "wait_share": 0.5}
        return {**known, "waited": 1.0, "worked": 1.0, "place": place, **more}

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


# --- the live line ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, Path]]:
    ours, theirs = pty.openpty()
    try:
        yield ours, Path(os.ttyname(theirs))
    finally:
        os.close(ours)
        os.close(theirs)


def test_live_line(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": TRAIN.replace("sleep(0.001)", "sleep(0.1)")})
    with terminal() as (ours, name):
        shown = {"TERM": "xterm", "LOCAL_RANK": "0"}
        ended = penstock_command("run", "train.py", "0", folder=tmp_path, environment=shown, stderr=name)
        text = os.read(ours, 1 << 16).decode()
        assert ended.code == 0
        lines = re.findall(r"\r\x1b\[K(Photos: \d batches, [\d.]+/s, \d+ samples/s, waited \d+ % of the time)\r", text)
        assert lines
        assert SENTENCE.search(text.rpartition("\r\x1b[K")[2])  # the line is gone, and comes no more
        for more in ({"TERM": "dumb"}, {"LOCAL_RANK": "1"}):
            penstock_command("run", "train.py", "0", folder=tmp_path, environment={**shown, **more}, stderr=name)
            assert "\x1b" not in os.read(ours, 1 << 16).decode()
        penstock_command("run", "--quiet", "train.py", "0", folder=tmp_path, environment=shown, stderr=name)
        assert "\x1b" not in os.read(ours, 1 << 16).decode()


def test_a_terminal_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(100))
    monkeypatch.setattr("penstock.insight.run_report.time.monotonic", lambda: float(next(times)))
    loop = Loop(facts_of(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(1)))), 1)
    with terminal() as (ours, name), open(name, "w") as stream:
        live = LiveLine(stream)
        live(loop)
        assert "waited 0 %" in os.read(ours, 1000).decode()
        live.clear()
        live.clear()
        assert os.read(ours, 1000).decode() == "\r\x1b[K"
        stream.close()
        live(loop)
        live.end()
        live(loop)


# --- torchrun -----------------------------------------------------------------------------------------------------

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
        assert (loop["batches"], loop["samples"], loop["place"]) == (2, 8, "train.py:9")
