"""penstock pack, index, info, verify and unpack on the command line."""

from __future__ import annotations

import io
import itertools
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock.cli import main
from tests.commands import ran
from tests.data import tensor_files, write_photos, write_tensors
from tests.packing.packed import contents, flip_bit


def test_an_image_folder_and_back(tmp_path: Path) -> None:
    root, out, back = write_photos(tmp_path / "photos"), tmp_path / "out", tmp_path / "back"
    pack = ("pack", root, out, "--shard-size", "8KiB", "--split", "train")
    said, err = ran(*pack)
    assert said.startswith(f"{out}: split 'train', 26 samples in ") and err == ""
    assert "finished before" in ran(*pack)[0]
    shown = ran("info", out)[0]
    for words in ("split        train", "kind         images", "samples      26", "int, 2 classes", "fingerprint"):
        assert words in shown
    assert ran("verify", out, "--decode")[0] == "26 samples decoded and compared: no fault\n"
    ran("unpack", out, back, "--split", "train")
    assert contents(back) == contents(root)
    flip_bit(out / "train-000001.tar", 600)
    lines = ran("verify", out, code=1)[0].splitlines()
    assert lines[-1].endswith("2 faults") and lines[0].startswith("CorruptShards: ")
    assert "CRC-32C" in ran("unpack", out, tmp_path / "more", code=2)[1]


def test_smaller_images_and_what_they_cost(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos")
    said = ran("pack", root, tmp_path / "out", "--max-side", "30", "--quality", "70")[1]
    assert "measured on 26 of 26 samples: " in said and " become " in said


@pytest.mark.parametrize("suffix", [".pt", ".npy"])
def test_folders_of_tensors(tmp_path: Path, suffix: str) -> None:
    root = write_tensors(tmp_path / "data", suffix=suffix)
    ran("pack", root, tmp_path / "out", "--workers", "1")
    assert len(penstock.Shards(tmp_path / "out")) == 30
    for name in ("x.npy", "y.pt"):
        (root / name).touch()
    assert "take each kind from Python" in ran("pack", root, tmp_path / "other", code=2)[1]


def test_foreign_tar_files(tmp_path: Path) -> None:
    penstock.pack(penstock.ImageFolder(write_photos(tmp_path / "photos")), tmp_path / "out", shard_size="8KiB")
    for path in (tmp_path / "out").iterdir():
        if path.suffix != ".tar":
            path.unlink()
    assert "split 'all', 26 samples in" in ran("index", tmp_path / "out", "--split", "all")[0]
    assert "holds the split 'all' already" in ran("index", tmp_path / "out", "--split", "all", code=2)[1]


def test_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name, *rest in (("pack/none", out), ("info",), ("verify",), ("unpack", out), ("index",)):
        verb, _, folder = name.partition("/")
        assert ran(verb, tmp_path / folder, *rest, code=2)[1].count("\n") == 1


def test_progress_elsewhere_and_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=itertools.count(100, 0.25).__next__)  # 4 samples a second
    monkeypatch.setattr("penstock.cli.terminal.time", clock)
    out = tmp_path / "out"
    lines = ran("pack", tensor_files(tmp_path / "data", 100, (2,)), out, "--workers", "1")[1].splitlines()
    wanted = r"40 of 100, 4 samples/s, [0-9.]+ KiB/s, about 15 s left", r"80 of 100, 4 samples/s, .*, about 5 s left"
    assert len(lines) == 2 and all(map(re.fullmatch, [f"packing: {words}" for words in wanted], lines)), lines
    lines = [f"verifying: {n} of 100, 4 samples/s, about {left} s left" for n, left in ((40, 15), (80, 5))]
    assert ran("verify", out)[1].splitlines() == lines
    terminal: Any = io.StringIO()
    terminal.isatty, terminal.fileno = lambda: True, lambda: 2
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((30, 24)))
    assert main(["verify", str(out)]) == 0
    shown = [line.strip("\r") for line in terminal.getvalue().split("\r\x1b[K")]
    assert shown[:4] == [
        "",
        "verifying: 1 of 100, 1,000 sa",
        "verifying: 2 of 100, 8 sample",
        "verifying: 3 of 100, 6 sample",
    ]
    assert len(shown) == 101 and shown[-1] == "", "the line is empty in the end"
