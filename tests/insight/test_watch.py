"""`penstock watch`: a plain view, a table of several processes, a live view on a terminal."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from pathlib import Path

import pytest

import penstock
from penstock.cli import main, watch
from penstock.insight import live_files
from penstock.insight.live_files import ProcessName, machine, read_all, this_process
from tests.sample_datasets import Made, rows

Captured = pytest.CaptureFixture[str]


def test_none_is_running(folder: Path, capsys: Captured) -> None:
    assert main(["watch"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "penstock run train.py" in err
    assert main(["watch", str(os.getpid())]) == 1
    assert "has no live recording" in capsys.readouterr().err
    assert main(["watch", str(2**22 + 1)]) == 1
    assert f"there is no process {2**22 + 1}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["watch", "train.py"])
    assert "invalid int value" in capsys.readouterr().err


def test_once(folder: Path, capsys: Captured) -> None:
    loader = penstock.DataLoader(Made(), batch_size=4)
    list(loader)
    list(loader)
    for arguments in (["watch"], ["watch", "--once"], ["watch", str(os.getpid())]):
        assert main(arguments) == 0
        out, err = capsys.readouterr()
        assert err == ""
        for words in (
            f"process {os.getpid()}",
            "loader 1: Made, batches of 4, no workers, read by Python",
            "samples/s",
        ):
            assert words in out
        assert "waiting" in out and "getitem" in out


def test_several(folder: Path, capsys: Captured) -> None:
    list(penstock.DataLoader(rows()))
    ((_, data),) = read_all(folder)
    live_files.write(folder, ProcessName(machine(), os.getppid(), live_files.started_at(os.getppid()) or 0), data)
    assert main(["watch"]) == 0
    out = capsys.readouterr().out
    assert str(os.getpid()) in out and str(os.getppid()) in out and "penstock watch PID" in out
    assert main(["watch", str(os.getppid())]) == 0
    assert f"process {os.getppid()}" in capsys.readouterr().out


def test_names_cannot_disturb_a_terminal(folder: Path, capsys: Captured) -> None:
    list(penstock.DataLoader(Made(), batch_size=4))
    ((name, data),) = read_all(folder)
    said = json.loads(data)
    odd = "\x1b]0;taken\x07\n\x9b31m[bold]\udcff"
    odder = {"program": odd, "host": odd, "rank": odd, "summary": [odd] * 3, "lines": [odd, f"! {odd}"]}
    live_files.write(folder, name, json.dumps({**said, **odder}).encode())
    assert main(["watch"]) == 0
    out = capsys.readouterr().out
    assert not set(out) & {"\x1b", "\x07", "\x9b", "\udcff"}
    assert out.count("taken") == 5 and "[bold]" in out


def test_an_unsafe_folder_is_an_error(folder: Path, capsys: Captured) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert main(["watch"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "other users can write" in err


def test_without_rich(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    list(penstock.DataLoader(rows()))
    monkeypatch.setattr(watch, "Live", None)
    monkeypatch.setattr(watch, "width", lambda: 80)
    assert main(["watch"]) == 2
    assert "pip install 'penstock[cli]'" in capsys.readouterr().err
    assert main(["watch", "--once"]) == 0


def read_until(terminal: int, words: str) -> str:
    """Return what comes from a terminal until these words do, or (empty) to its end."""
    text = ""
    while not words or words not in text:
        try:
            found = os.read(terminal, 65536)
        except OSError as error:
            assert error.errno == errno.EIO and not words, text
            break
        text += found.decode(errors="replace")
    return text


@pytest.mark.parametrize("how", ["interrupt", "end"])
def test_live_view(folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="rich is not installed: pip install 'penstock[cli]'")
    monkeypatch.setenv("TERM", "xterm")
    list(penstock.DataLoader(Made(), batch_size=4))
    watched = os.getpid()
    child, terminal = pty.fork()
    if child == 0:  # what pytest holds must not run here
        code = 99
        try:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.stdout, sys.stderr = (os.fdopen(end, "w", encoding="utf-8") for end in (1, 2))
            code = main(["watch", str(watched)])
            sys.stdout.flush()
        finally:
            os._exit(code)
    text = read_until(terminal, "getitem")
    if how == "interrupt":
        os.kill(child, signal.SIGINT)
    else:
        live_files.remove(folder, this_process())
    text += read_until(terminal, "")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "Traceback" not in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # the cursor is shown again
    assert ("has ended" in text) == (how == "end")
