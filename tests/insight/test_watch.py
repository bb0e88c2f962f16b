"""`penstock watch`: a plain view, a table of several processes, a live view on a terminal."""

from __future__ import annotations

import errno
import json
import os
import pty
import signal
import sys
import termios
from pathlib import Path

import pytest

import penstock
from penstock.cli import main
from tests.commands import fails, ran
from tests.data import Made, rows

pytestmark = pytest.mark.usefixtures("folder")


def watched(*arguments: object, code: int = 0) -> str:
    """Run `penstock watch`, which must end with this code, and return its output (its error, one line: above 0)."""
    out, err = ran("watch", *arguments, code=code)
    assert (err if code == 0 else out) == "" and (code == 0 or err.count("\n") == 1)
    return err if code else out


def test_none_is_running() -> None:
    assert "penstock run train.py" in watched(code=1)
    assert "has no live recording" in watched(os.getpid(), code=1)
    assert f"there is no process {2**22 + 1}" in watched(2**22 + 1, code=1)
    assert "'train.py' is not a whole number" in fails("watch", "train.py")


def test_once() -> None:
    loader = penstock.DataLoader(Made(), batch_size=4)
    for _ in range(2):
        list(loader)
    reading = "loader 1: Made, batches of 4, no workers, read by Python"
    for arguments in ([], ["--once"], [str(os.getpid())]):
        out = watched(*arguments)
        assert all(one in out for one in (f"process {os.getpid()}", reading, "samples/s", "waiting", "getitem"))


def test_several(folder: Path) -> None:
    list(penstock.DataLoader(rows()))
    (file,), parent = folder.iterdir(), os.getppid()
    started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]  # field 22: proc(5)
    file.with_name(f"{file.name.partition('-')[0]}-{parent}-{started}.json").write_bytes(file.read_bytes())
    out = watched()
    assert all(one in out for one in (str(os.getpid()), str(os.getppid()), "penstock watch PID"))
    assert f"process {os.getppid()}" in watched(str(os.getppid()))


def test_names_cannot_disturb_a_terminal(folder: Path) -> None:
    list(penstock.DataLoader(Made(), batch_size=4))
    (file,) = folder.iterdir()
    odd = "\x1b]0;taken\x07\n\x9b31m[bold]\udcff"
    odder = {"program": odd, "host": odd, "rank": odd, "summary": [odd] * 3, "lines": [odd, f"! {odd}"]}
    file.write_text(json.dumps({**json.loads(file.read_bytes()), **odder}))
    out = watched()
    assert not set(out) & {"\x1b", "\x07", "\x9b", "\udcff"}
    assert out.count("taken") == 5 and "[bold]" in out


def test_an_unsafe_folder_is_an_error(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert "other users can write" in watched(code=2)


def test_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    list(penstock.DataLoader(rows()))
    monkeypatch.setattr("penstock.cli.watch.Live", None)
    monkeypatch.setattr("penstock.cli.watch.width", lambda: 80)
    assert 'pip install "penstock-loader[cli]"' in watched(code=2)
    assert watched("--once")


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
    pytest.importorskip("rich", reason='rich is not installed: pip install "penstock-loader[cli]"')
    monkeypatch.setenv("TERM", "xterm")
    list(penstock.DataLoader(Made(), batch_size=4))
    watched = os.getpid()
    child, terminal = pty.fork()
    if child == 0:  # what pytest holds must not run here
        code = 99
        try:
            termios.tcsetwinsize(1, (40, 100))
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
        next(folder.iterdir()).unlink()
    text += read_until(terminal, "")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "Traceback" not in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # the cursor is shown again
    assert ("has ended" in text) == (how == "end")
