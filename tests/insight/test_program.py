"""penstock run: a program runs as Python runs it. Python itself, without Penstock, is the reference."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch.utils.data

from tests.commands import fails
from tests.insight.penstock_processes import Command, penstock_command, python, written
from tests.waiting import wait_until

INIT = torch.utils.data.DataLoader.__init__
SURROUNDINGS = """
import sys
print(__name__, sys.argv, repr(sys.path[0]))
print(__file__, __spec__ and __spec__.name, __package__, __cached__ if __spec__ is None else None, __doc__)
print(type(__loader__).__name__, __builtins__, sys.modules["__main__"].__dict__ is globals(), __annotations__)
print(sorted(globals()))
"""
SPAWN = """
import multiprocessing, sys
class Point:
    def __init__(self, x):
        self.x = x
def twice(point):
    return Point(2 * point.x)
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print([point.x for point in pool.map(twice, [Point(1), Point(2)])], Point.__module__)
else:
    print("imported as", __name__, sys.argv)
"""
CHAINED = """
import atexit
atexit.register(print, "the last word")
def fails():
    try:
        raise KeyError("first")
    except KeyError as error:
        raise ValueError("second") from error
def falls():
    fails()
falls()
"""
OWN_HOOK = """
import sys, traceback
def hook(kind, error, trace):
    print("hook", kind.__name__, error, [entry.name for entry in traceback.extract_tb(trace)])
sys.excepthook = hook
def falls():
    raise OSError(2, "of its own")
falls()
"""
PROGRAMS = {
    "surroundings": SURROUNDINGS,
    "spawn": SPAWN,
    "chained": CHAINED,
    "own_hook": OWN_HOOK,
    "syntax": "x = 1\nprint(2\n",
    "group": "import builtins\nraise getattr(builtins, 'ExceptionGroup', ValueError)('two', [ValueError(1)])",
    "exit_3": "import sys; sys.exit(3)",
    "exit_words": "raise SystemExit('nothing to do')",
    "os_exit": "import os, sys; print(1, flush=True); os._exit(4)",
    "broken_pipe": "raise BrokenPipeError(32, 'Broken pipe')",
    "interrupted": "import atexit; atexit.register(print, 'at the end'); raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "threads": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()",
    "thread_fails": "import threading\ndef f(): raise ValueError(1)\nthreading.Thread(target=f, name='one').start()",
    "fork": "import os\nif os.fork():\n    os.wait(); print('parent')\nelse:\n    print('child')",
    "future": "x: int = 1\nprint(__annotations__)",
    "pickled": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "warning": "import warnings\nwarnings.warn('of the program', RuntimeWarning)",
}


def assert_runs(folder: Path, program: str, *arguments: str, run: Sequence[str] = (), report: bool = True) -> None:
    """Assert that a program does the same under `penstock run`, which prints a report (or cannot)."""
    ours = penstock_command("run", *run, program, *arguments, folder=folder)
    theirs = python(*run, program, *arguments, folder=folder)
    err = "".join(line for line in theirs.err.splitlines(keepends=True) if "<frozen runpy>" not in line)
    here = "/./" if program.startswith("./") else "/"  # of which versions of Python make different things
    found, wanted = ((ended.code, ended.out.replace(here, "/")) for ended in (ours, theirs))
    assert (*found, ours.program_err) == (*wanted, err)
    assert [line.partition(",")[0] for line in ours.said] == [
        "penstock: no loop over a DataLoader was seen"
    ] * report, ours.err


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_runs_as_python_runs_it(tmp_path: Path, name: str) -> None:
    written(tmp_path, {"train.py": PROGRAMS[name]})
    report = name not in ("os_exit", "killed", "terminated")
    assert_runs(tmp_path, "train.py", "--quiet", "-m", "x", "--", "--help", report=report)


@pytest.mark.parametrize("path", ["./train.py", "sub/../train.py", "sub/link.py", "ABSOLUTE", "app", "app.zip"])
def test_a_script_a_folder_and_a_zip_file_by_any_path(tmp_path: Path, path: str) -> None:
    app = {"app/__main__.py": f"import part\n{SURROUNDINGS}", "app/part.py": "print('part')"}
    written(tmp_path, {"train.py": SURROUNDINGS, "sub/other.py": "", **app})
    (tmp_path / "sub/link.py").symlink_to("../train.py")
    shutil.make_archive(str(tmp_path / "app"), "zip", tmp_path / "app")
    assert_runs(tmp_path, str(tmp_path / "train.py") if path == "ABSOLUTE" else path, "a")


MODULES = {
    "single.py": SURROUNDINGS,
    "pack/__init__.py": "import sys; print('package', sys.argv)",
    "pack/module.py": f"from . import other\n{SURROUNDINGS}",
    "pack/other.py": "print(__name__)",
    "pack/__main__.py": SURROUNDINGS,
    "pack/fails.py": "raise ValueError(1)",
    "spawns.py": SPAWN,
}


@pytest.mark.parametrize("name", ["single", "pack.module", "pack", "pack.fails", "spawns"])
def test_a_module_runs_as_python_runs_it(tmp_path: Path, name: str) -> None:
    assert_runs(written(tmp_path, MODULES), name, "-m", "--lr", "0.1", run=["-m"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.py"], "'none.py' cannot be read: No such file or directory"),
        ([""], "'' cannot be read"),
        (["empty"], "there is no __main__.py in 'empty'"),
        (["-m", "no_such_module"], "No module named no_such_module"),
        (["-m", "package.none"], "No module named package.none"),
        (["-m", "none.pack"], "No module named 'none'"),
        (["-m", "package"], "No module named package.__main__; 'package' is a package"),
        (["-m", ".pack"], "Relative module names not supported"),
        (["-m", "_struct"], "No code object available for _struct"),
        (["--after-only", "x.py"], "--after-only needs --replace"),
        (["--steps", "0", "x.py"], "0 is too few: give at least 1"),
        (["--unknown", "x.py"], "there is no option --unknown"),
        ([], "required: SCRIPT"),
    ],
)
def test_what_is_no_program_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(written(tmp_path, {"empty/x": "", "package/__init__.py": ""}))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    main_module = sys.modules["__main__"]
    line = fails("run", *words)
    assert line.startswith("penstock") and said in line
    assert sys.modules["__main__"] is main_module and INIT is torch.utils.data.DataLoader.__init__


def test_a_module_that_a_package_of_the_program_lacks_is_the_programs_error(tmp_path: Path) -> None:
    written(tmp_path, {"pack/__init__.py": "import lacking", "pack/module.py": ""})
    ended = penstock_command("run", "-m", "pack.module", folder=tmp_path)
    assert ended.code == 1
    assert "import lacking\nModuleNotFoundError: No module named 'lacking'\n" in ended.program_err
    assert "penstock/" not in ended.program_err


def test_ctrl_c(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": "import time\n\nopen('begun', 'w').close(); time.sleep(60)\n"})
    command = Command("run", "train.py", folder=tmp_path)
    wait_until((tmp_path / "begun").exists)
    command.interrupt()
    ended = command.end()
    assert ended.code == -signal.SIGINT, ended
    assert ended.program_err.startswith(f'Traceback (most recent call last):\n  File "{tmp_path}/train.py", line 3')
    assert ended.program_err.endswith("KeyboardInterrupt\n") and len(ended.said) == 1, ended


def test_a_closed_stderr(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": "print(1)", "closes.py": "import os, sys; print(2); sys.stderr.close()"})
    assert penstock_command("run", "train.py", folder=tmp_path, no_stderr=True) == (0, "1\n", "")
    assert penstock_command("run", "closes.py", folder=tmp_path) == (0, "2\n", "")


def test_nobody_reads_stderr(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    written(tmp_path, {"train.py": "import os; print(1, flush=True)\nwhile not os.path.exists('go'): pass"})
    command = Command("run", "train.py", folder=tmp_path, stderr=tmp_path / "pipe")
    os.close(reader)
    (tmp_path / "go").touch()
    assert command.end()[:2] == (0, "1\n")
