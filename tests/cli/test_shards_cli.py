"""penstock pack, index, info, verify and unpack on the command line."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.cli import main
from penstock.cli.terminal import Bar
from tests.packing.packed import contents, flip_bit, write_photos, write_tensors

Captured = pytest.CaptureFixture[str]


def test_an_image_folder_and_back(tmp_path: Path, capsys: Captured) -> None:
    root = write_photos(tmp_path / "photos")
    out, back = str(tmp_path / "out"), str(tmp_path / "back")
    assert main(["pack", str(root), out, "--shard-size", "8KiB", "--split", "train"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{out}: split 'train', 26 samples in ") and printed.err == ""
    assert main(["pack", str(root), out, "--shard-size", "8KiB", "--split", "train"]) == 0
    assert "finished before" in capsys.readouterr().out
    assert main(["info", out]) == 0
    shown = capsys.readouterr().out
    for words in ("split        train", "kind         images", "samples      26", "int, 2 classes", "fingerprint"):
        assert words in shown
    assert main(["verify", out, "--decode"]) == 0
    assert capsys.readouterr().out == "26 samples decoded and compared: no fault\n"
    assert main(["unpack", out, back, "--split", "train"]) == 0
    assert contents(tmp_path / "back") == contents(root)
    flip_bit(tmp_path / "out" / "train-000001.tar", 600)
    capsys.readouterr()
    assert main(["verify", out]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("2 faults") and lines[0].startswith("CorruptShards: ")
    assert main(["unpack", out, str(tmp_path / "more")]) == 2
    assert "CRC-32C" in capsys.readouterr().err


def test_smaller_images_and_what_they_cost(tmp_path: Path, capsys: Captured) -> None:
    root = write_photos(tmp_path / "photos")
    assert main(["pack", str(root), str(tmp_path / "out"), "--max-side", "30", "--quality", "70"]) == 0
    said = capsys.readouterr().err
    assert "measured on 26 of 26 samples:" in said and "pixels" in said and "bytes" in said


@pytest.mark.parametrize("suffix", [".pt", ".npy"])
def test_folders_of_tensors(tmp_path: Path, capsys: Captured, suffix: str) -> None:
    root = write_tensors(tmp_path / "data", suffix=suffix)
    assert main(["pack", str(root), str(tmp_path / "out"), "--workers", "1"]) == 0
    assert len(penstock.Shards(tmp_path / "out")) == 30
    np.save(root / "x.npy", np.zeros(3))
    np.save(root / "y.pt", np.zeros(3))
    (root / "y.pt.npy").rename(root / "y.pt")
    assert main(["pack", str(root), str(tmp_path / "other")]) == 2
    assert "take each kind from Python" in capsys.readouterr().err


def test_foreign_tar_files(tmp_path: Path, capsys: Captured) -> None:
    penstock.pack(penstock.ImageFolder(write_photos(tmp_path / "photos")), tmp_path / "out", shard_size="8KiB")
    for path in (tmp_path / "out").iterdir():
        if path.suffix != ".tar":
            path.unlink()
    assert main(["index", str(tmp_path / "out"), "--split", "all"]) == 0
    assert "split 'all', 26 samples in" in capsys.readouterr().out
    assert main(["index", str(tmp_path / "out"), "--split", "all"]) == 2
    assert "holds the split 'all' already" in capsys.readouterr().err


def test_what_is_wrong_in_one_line(tmp_path: Path, capsys: Captured) -> None:
    for command in (
        ["pack", str(tmp_path / "none"), str(tmp_path / "out")],
        ["info", str(tmp_path)],
        ["verify", str(tmp_path)],
        ["unpack", str(tmp_path), str(tmp_path / "x")],
        ["index", str(tmp_path)],
    ):
        assert main(command) == 2
        assert capsys.readouterr().err.count("\n") == 1


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


def test_progress_elsewhere_and_on_a_terminal(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("penstock.cli.terminal.time.monotonic", lambda: now[0])
    with Bar("packing") as bar:
        for done in range(1, 101):
            bar.update(done, 100, done * 1000)
            now[0] += 0.25
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "packing: 41 of 100, 4 samples/s, 3.9 KiB/s, about 14 s left",
        "packing: 81 of 100, 4 samples/s, 3.9 KiB/s, about 5 s left",
    ]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((30, 24)))
    with Bar("packing") as bar:
        for done in (1, 2, 100):
            bar.update(done, 100, 1000)
            now[0] += 0.25
    assert terminal.getvalue() == "\r\x1b[Kpacking: 2 of 100, 8 samples/\r\r\x1b[K"
