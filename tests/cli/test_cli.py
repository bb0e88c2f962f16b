"""The command line: what it prints, its exit codes, and one line on stderr for each mistake."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import re
import subprocess
import sys
import wave
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import penstock
from penstock.cli import main
from tests.commands import BadSample, bad_samples, fails, ran

WHEN = "2025-11-20T13:03:00Z"
ODD = os.fsdecode(b'a "\xff"\n\x1b[31m,b')


def write(path: Path, *entries: BadSample) -> str:
    path.write_bytes(b"".join(entry.line() for entry in entries))
    return str(path)


def printed(*arguments: object, code: int = 0) -> str:
    """Run `penstock quarantine`, which ends with this code and says nothing on stderr; return its output."""
    out, err = ran("quarantine", *arguments, code=code)
    assert err == ""
    return out


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    return write(
        tmp_path / "bad.jsonl",
        BadSample("id-1", "/data/id-1.pt", "CorruptSample: torn", 12_345, WHEN, 1),
        BadSample("id-22", None, "ValueError: no", None, WHEN),
        BadSample("/data/x.jpg", "/data/x.jpg", "CorruptSample: é", 0, WHEN, 3),
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--help", "quarantine"),
        ("quarantine --help", "retry"),
        ("quarantine list --help", "--json"),
        ("quarantine retry --help", "--dry-run"),
        ("quarantine export --help", "--null"),
        ("ledger --help", "diverged"),
        ("ledger diff --help", "Exit code 0"),
        ("ledger show --help", "--epoch"),
        ("view --help", "DATASET --output --batch-size --shuffle --seed --max --mean --std --as-is"),
        ("doctor --help", "module:object --json"),
        ("--version", str(penstock.__version__)),
    ],
)
def test_help_and_version(arguments: str, words: str) -> None:
    out, err = ran(*arguments.split())
    assert err == "" and all(word in out for word in words.split())
    assert arguments != "--version" or out == f"penstock {words}\n"
    assert "doctor" not in arguments or "Exit code 1" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a verb: ledger, quarantine, run, pack, index,"),
        (["sort"], "argument VERB: 'sort' is not one of ledger, quarantine, run, pack,"),
        (["ledgr", "show", "x"], "; do you mean 'ledger'?"),
        (["--versoin"], "there is no option --versoin; do you mean '--version'?"),
        (["ledger", "shw", "x"], "'shw' is not one of diff, seen, show; do you mean 'show'?"),
        (["pack", "photos", "out", "--workers", "x"], "argument --workers: 'x' is not a whole number of 0 or more"),
        (["pack", "photos", "out", "--splt=a"], "penstock pack: there is no option --splt; do you mean '--split'?"),
        (["run"], "are required: SCRIPT (see penstock run"),
        (["watch", "1", "2"], "penstock watch: '2' is one argument too many (see penstock watch --help)"),
        (["doctor", "--seconds", "3"], "--seconds needs a DATASET"),
        (["quarantine"], "required: ACTION"),
        (["quarantine", "list"], "required: MANIFEST"),
        (["quarantine", "list", "m", "--jso"], "there is no option --jso; do you mean '--json'?"),
        (["quarantine", "export", "m", "--format", "xml"], "'xml' is not one of csv, json, ids, paths (see"),
        (["quarantine", "export", "m", "a\nb"], r"'a\nb' is one argument too many"),
        (["quarantine", "export", "m", "--null"], "--null ends each of ids or paths; --format csv has none"),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str) -> None:
    line = fails(*arguments)
    assert line.startswith("penstock") and words in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("ledger show {folder}/le.txt", "No such file or directory; do you mean '{folder}/led.txt'?"),
        ("ledger show {folder}/other/x", "No such file or directory; give a path that exists"),
        ("run {folder}/train.py", "cannot be read: No such file or directory; do you mean '{folder}/trained.py'?"),
        ("run --compare {folder}/train.py", "do you mean '{folder}/trained.py'?"),
        ("run --compare -1 {folder}/trained.py", "there is no option -1"),
        ("info {folder}/led.txt", "Not a directory; give a folder"),
        ("pack {folder}/tensors {folder}/led.txt", "File exists; give another name"),
        ("doctor {folder}x", "there is no such folder; do you mean '{folder}'?"),
        ("doctor tests.data:Numbrs", "tests.data has no 'Numbrs'; do you mean 'Numbers'?"),
        (
            "plan-capacity --gpus 1 --rate 1 --measured {folder}/led.txt",
            "{folder}/led.txt is not the output of `penstock",
        ),
    ],
)
def test_a_path_or_an_object_that_is_not_there(arguments: str, words: str, tmp_path: Path) -> None:
    for name in ("led.txt", "trained.py"):
        (tmp_path / name).touch()
    (tmp_path / "tensors").mkdir()
    torch.save(torch.zeros(3), tmp_path / "tensors" / "0.pt")
    given = [word.format(folder=tmp_path) for word in arguments.split()]
    assert words.format(folder=tmp_path) in fails(*given)


@pytest.mark.parametrize("action", ["list", "retry", "export"])
def test_no_manifest(action: str, tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "half.jsonl").write_text('{"id": "a", "pa')
    os.mkfifo(tmp_path / "pipe")
    for name, words in {
        "none.jsonl": "No such file or directory",
        "": "not a regular file",
        "a.png": "is not a manifest of bad samples",
        "pipe": "not a regular file",
        "half.jsonl": "holds no bad sample that can be read: .* line 1 ",
        "a.png/bad.jsonl": "Not a directory",
        "n" * 300: "File name too long",
        "a\nb": r"a\\nb: No such file",
    }.items():
        line = fails("quarantine", action, str(tmp_path / name))
        assert re.search(words, line) and str(tmp_path) in line, line
    assert sorted(os.listdir(tmp_path)) == ["a.png", "half.jsonl", "pipe"]


def test_no_permission(manifest: str) -> None:
    os.chmod(manifest, 0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        assert fails("quarantine", "list", manifest) == f"penstock: {manifest}: Permission denied"
    finally:
        os.seteuid(before)


def test_list(manifest: str) -> None:
    assert printed("list", manifest).splitlines() == [
        "ID             SIZE  TIME                  PATH           ERROR",
        "id-1         12,345  2025-11-20T13:03:00Z  /data/id-1.pt  CorruptSample: torn",
        "id-22             -  2025-11-20T13:03:00Z  -              ValueError: no",
        "/data/x.jpg       0  2025-11-20T13:03:00Z                 CorruptSample: é",
        "",
        f"3 bad samples in {manifest}",
    ]
    for arguments in (["list", manifest, "--json"], ["export", manifest, "--format", "json"]):
        assert json.loads(printed(*arguments)) == [asdict(entry) for entry in bad_samples(manifest)]


def test_list_empty_and_odd_names(tmp_path: Path) -> None:
    path = write(tmp_path / "m")
    assert printed("list", path) == f"no bad samples in {path}\n"
    assert json.loads(printed("list", path, "--json")) == []
    path = write(tmp_path / "m", BadSample(ODD, None, f"E: {ODD}", 1, WHEN))
    _, line, *rest = printed("list", path).splitlines()
    escaped = r'a "\udcff"\n\x1b[31m,b'
    assert line.startswith(escaped + "  ") and line.endswith("E: " + escaped)
    assert rest == ["", f"1 bad sample in {path}"]


def test_damaged_line_is_a_warning(manifest: str) -> None:
    before = Path(manifest).read_bytes() + b"torn\n"
    Path(manifest).write_bytes(before)
    for action, extra in (("list", []), ("export", []), ("retry", ["--dry-run"])):
        out, err = ran("quarantine", action, manifest, *extra, code=int(action == "retry"))
        assert "id-22" in out
        assert err.startswith(f"penstock: warning: the manifest '{manifest}'") and "line 4 (no JSON)" in err
        assert err.count("\n") == 1
    assert Path(manifest).read_bytes() == before


class Unbuffered(io.StringIO):
    taken = b""

    @property
    def buffer(self) -> Any:
        return self

    def write(self, data: Any) -> int:
        self.taken += bytes(data[:7])
        return len(data[:7])


def test_stdout_of_every_kind(
    manifest: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of ASCII alone, one that takes a few bytes at once, one that is no file, and none."""
    buffer, unbuffered, text = io.BytesIO(), Unbuffered(), io.StringIO()
    for stdout, arguments, code in (
        (io.TextIOWrapper(buffer, encoding="ascii"), ["list"], 0),
        (unbuffered, ["export", "--format", "ids"], 0),
        (text, ["list"], 0),
        (None, ["list"], 2),
    ):
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["quarantine", *arguments, manifest]) == code
    assert rb"CorruptSample: \xe9" in buffer.getvalue() and "3 bad samples in" in text.getvalue()
    assert unbuffered.taken == b"id-1\nid-22\n/data/x.jpg\n"
    assert capsys.readouterr().err == "penstock: stdout is closed\n"


def samples(folder: Path) -> dict[str, str | None]:
    """Make files, good and bad; return the path of each by ID."""
    folder.mkdir()
    for name in ("good.pt", "old.pth", "other.tensor", "no-image.jpg"):
        torch.save(torch.zeros(3), folder / name, _use_new_zipfile_serialization=name != "old.pth")
    for name in ("good.npy", "good.column"):
        with open(folder / name, "wb") as file:
            np.save(file, np.zeros(3))
    for name, mode in (("good.jpg", "RGB"), ("palette.PNG", "P"), ("unnamed", "L")):
        Image.new(mode, (9, 9)).save(folder / name, "jpeg" if mode == "RGB" else "png")
    (folder / "empty.pt").write_bytes(b"")
    (folder / "torn.jpg").write_bytes((folder / "good.jpg").read_bytes()[:-40])
    (folder / "code.pt").write_bytes(pickle.dumps(os.getcwd, protocol=2))
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (folder / "words.txt").write_text("words")
    np.savez(folder / "named.npz", np.zeros(3))
    with wave.open(str(folder / "good.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(16))
    (folder / "torn.wav").write_bytes((folder / "good.wav").read_bytes()[:20])
    (folder / "folder.jpg").mkdir()
    os.mkfifo(folder / "pipe.pt")
    paths: dict[str, str | None] = {name: str(folder / name) for name in sorted(os.listdir(folder))}
    return paths | {"gone.pt": str(folder / "gone.pt"), "nul": "a\0b", "nowhere": None}


GOOD = {"good.pt", "old.pth", "other.tensor", "good.npy", "good.column", "good.jpg", "palette.PNG", "unnamed"} | {
    "named.npz",
    "good.wav",
}


def test_retry(tmp_path: Path) -> None:
    paths = samples(tmp_path / "data")
    bad = [BadSample(id, path, "CorruptSample: once", 1, WHEN) for id, path in paths.items()]
    bad.append(BadSample("outside", paths["good.pt"], "OutsideRoot: it leads out", 1, WHEN))
    manifest = write(tmp_path / "bad.jsonl", *bad)
    before = Path(manifest).read_bytes()
    *dry, dry_counts = printed("retry", "--dry-run", manifest, code=1).splitlines()
    assert Path(manifest).read_bytes() == before
    *lines, counts = printed("retry", manifest, code=1).splitlines()
    assert lines == dry
    said = {line[12:].split(": ")[0]: line for line in lines}
    assert {id for id, line in said.items() if line.startswith("good again  ")} == GOOD
    assert said["good.pt"].endswith(": was CorruptSample: once")
    for id, words in {
        "no-image.jpg": "CorruptSample: image .* is not an image of a format",
        "empty.pt": "CorruptSample: sample 'empty.pt' .* is an empty file",
        "torn.jpg": "CorruptSample: image .* cannot be decoded: .*[Tt]runcated",
        "code.pt": "CorruptSample: .* cannot be read as a tensor",
        "objects.npy": "CorruptSample: .* cannot be read as a tensor",
        "folder.jpg": "UnreadableSample: .* is not a regular file",
        "pipe.pt": "UnreadableSample: .* is not a regular file",
        "torn.wav": "CorruptSample: ",
        "gone.pt": "MissingSample: .* No such file",
        "nul": "ValueError: ",
    }.items():
        assert re.match(f"still bad   {id}: {words}", said[id]), said[id]
    assert said["words.txt"].startswith("left        words.txt: its file is not an image, a tensor or a sound")
    assert said["nowhere"] == "left        nowhere: its file is not known"
    assert said["outside"].startswith("left        outside: its file lay outside of its root")
    wanted = f"{len(GOOD)} good again ({{}}), {len(bad) - len(GOOD) - 3} still bad, 3 left without a try, in {manifest}"
    assert counts == wanted.format(f"{len(GOOD)} taken out")
    assert dry_counts == wanted.format("not taken out: a dry run")
    assert bad_samples(manifest) == [entry for entry in bad if entry.id not in GOOD]  # what stays has its old error


def test_retry_when_all_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "a.pt", tmp_path / "b.png"]
    torch.save(torch.zeros(3), files[0])
    Image.new("RGB", (40, 40)).save(files[1])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # of which Pillow warns
    manifest = write(tmp_path / "m", *(BadSample(file.stem, str(file), "CorruptSample: torn", 1) for file in files))
    first, _, counts = printed("retry", manifest).splitlines()
    assert first == "good again  a: was CorruptSample: torn" and counts.startswith("2 good again (2 taken out), 0 ")
    assert Path(manifest).read_bytes() == b""
    printed("retry", manifest)


def test_export_csv_and_odd_names(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    entries = [BadSample(ODD, "/d/" + ODD, "E: x", 1, WHEN, 5), BadSample("b", None, "E", None, WHEN)]
    assert main(["quarantine", "export", write(tmp_path / "m", *entries)]) == 0
    out = capsysbinary.readouterr().out
    assert list(csv.reader(io.StringIO(out.decode("utf-8", "surrogateescape"), newline=""))) == [
        ["id", "path", "error", "size", "time", "index"],
        [ODD, "/d/" + ODD, "E: x", "1", WHEN, "5"],
        ["b", "", "E", "", WHEN, ""],
    ]
    assert b'"a ""\xff""\n' in out  # the bytes of the name as they are on the disk
    manifest = write(tmp_path / "m", BadSample(ODD, None, "E", 1, WHEN), BadSample("\ud800", None, "E", 1, WHEN))
    assert main(["quarantine", "export", manifest, "--format", "ids", "--null"]) == 0
    assert capsysbinary.readouterr().out == os.fsencode(ODD) + b"\0\xed\xa0\x80\0"


def test_export_names(manifest: str) -> None:
    assert printed("export", manifest, "--format", "ids") == "id-1\nid-22\n/data/x.jpg\n"
    out, err = ran("quarantine", "export", manifest, "--format", "paths", "--null")
    assert out == "/data/id-1.pt\0/data/x.jpg\0"
    assert err == "penstock: note: 1 of 3 bad samples have no path and are left out\n"


def test_export_names_that_cannot_be_told_apart(tmp_path: Path) -> None:
    manifest = write(tmp_path / "m", BadSample("a\nb", None, "E", 1, WHEN), BadSample("a\0b", None, "E", 1, WHEN))
    for name, more, instead in ((r"a\nb", [], "--null"), (r"a\x00b", ["--null"], "--format json")):
        line = fails("quarantine", "export", manifest, "--format", "ids", *more)
        assert f"'{name}' holds the character that ends each name; use {instead}" in line


def test_export_to_a_file(manifest: str, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    command = ["quarantine", "export", manifest, "--format", "ids", "--output"]
    ran(*command, output)
    assert output.read_text() == "id-1\nid-22\n/data/x.jpg\n"
    write(Path(manifest), *bad_samples(manifest)[1:])
    assert f"{output} exists; give --force to overwrite it" in fails(*command, str(output))
    assert output.read_text().startswith("id-1")
    for path in (output, "/dev/null"):
        ran(*command, path, "--force")
    assert output.read_text() == "id-22\n/data/x.jpg\n"
    before = Path(manifest).read_bytes()
    wrong = {manifest: "is the manifest itself", str(tmp_path): "Is a directory", f"{tmp_path}/none/x": "No such file"}
    for path, words in wrong.items():
        assert words in fails(*command, path, "--force")
    assert Path(manifest).read_bytes() == before


def program(*arguments: str, stdout: Any = subprocess.PIPE) -> tuple[int, Any, bytes]:
    command = [sys.executable, "-m", "penstock", *arguments]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_program(manifest: str) -> None:
    ids = program("quarantine", "export", manifest, "--format", "ids")
    assert ids == (0, b"id-1\nid-22\n/data/x.jpg\n", b"")
    missing = f"penstock: {manifest}-not: No such file or directory; do you mean {manifest!r}?\n"
    assert program("quarantine", "list", manifest + "-not") == (2, b"", missing.encode())
    with open("/dev/full", "wb") as full:
        done = program("quarantine", "list", manifest, stdout=full)
    assert done == (2, None, b"penstock: No space left on device\n")


def test_output_that_nobody_reads(manifest: str) -> None:
    for arguments in (["quarantine", "list", manifest], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        code, _, err = program(*arguments, stdout=writer)
        os.close(writer)
        # Where Python does not buffer (PYTHONUNBUFFERED), argparse itself passes over it.
        assert code in ((1,) if arguments[-1] == manifest else (0, 1)) and err == b""
