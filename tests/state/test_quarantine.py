"""Bad samples that are counted and written down: what Replace allows, and a manifest that many may write at once.

tests/faults has full disks, hostile names and fuzzed lines.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import fcntl
import json
import os
import pickle
import re
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

import penstock
from penstock import Replace
from penstock.errors import InvalidOption, TooManyBadSamples
from tests.commands import BadSample, bad_samples, command, fails
from tests.data import Numbers
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:the manifest .* seems to belong to another dataset:UserWarning")


def loader(
    manifest: Any,
    bad: Collection[int] = (),
    *,
    ids: Sequence[str] = (),
    size: int = 40,
    share: float = 1,
    error: Callable[[str], Exception] = ValueError,
) -> Any:
    """Return a loader over numbers some of which are bad. ids: names of the first ones; there are more then."""
    dataset: Any = Numbers(bad, 2 * len(ids) + 1 if ids else size, error)
    if ids:
        dataset.ids = [*ids, *(f"good\n{number}" for number in range(len(ids) + 1))]
    return penstock.DataLoader(dataset, 1000, on_error=Replace(share, manifest), num_workers=0)


def add(manifest: Path, *ids: str) -> None:
    """Have samples of these names found bad by a run."""
    list(loader(manifest, range(len(ids)), ids=ids))


def listed(manifest: Path) -> list[str]:
    """Return the IDs that a manifest holds, as Penstock reads it."""
    return [entry["id"] for entry in json.loads(command("quarantine", "list", "--json", manifest))]


def good_again(folder: Path, id: str) -> bytes:
    """Return the line of a sample whose file is good: `penstock quarantine retry` takes it out."""
    torch.save(torch.zeros(1), folder / "good.pt")
    return BadSample(id, str(folder / "good.pt"), "ValueError: it is bad", None).line()


def bad(id: str) -> bytes:
    return BadSample(id, None, "ValueError: it is bad", None).line()


def lines(path: Path) -> list[str]:
    return [entry.id for entry in bad_samples(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bad.jsonl"


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Let the permissions of files count, for root too."""
    before = os.geteuid()
    os.seteuid(before or 65534)
    try:
        yield
    finally:
        os.seteuid(before)


def raising(number: int) -> Callable[..., Any]:
    """Return a function that fails as a system call does."""

    def fail(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def test_replace_keeps_what_it_is_given(path: Path) -> None:
    assert Replace() == Replace(0.001, None)
    assert Replace(0).max_share == 0.0 and Replace(1).max_share == 1.0
    given = Replace(0.5, path)
    assert pickle.loads(pickle.dumps(given)) == given
    with pytest.raises(AttributeError):
        given.max_share = 1  # type: ignore[misc]
    for share in (-0.1, 1.1, float("nan"), float("inf"), True, "0.1", None, 1j):
        with pytest.raises(InvalidOption, match=re.escape(repr(share)) + ".* is not a share: give a number from 0 to"):
            Replace(share)  # type: ignore[arg-type]


# --- lines ------------------------------------------------------------------------------------------------------------


class Torn(Exception):
    """An error that knows its file, and has no words."""

    def __init__(self, filename: str) -> None:
        self.filename = filename

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_entry_says_what_was_met(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pt").write_bytes(b"12345")
    monkeypatch.chdir(tmp_path)
    errors = [Torn("a.pt"), ValueError("\n \nlater\nthan"), KeyError(), ValueError("é" * 100_000), Torn("none")]
    before = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")  # time.gmtime() lags a tick
    list(loader(path, range(5), error=lambda said: errors[int(said.split()[1])]))
    after = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = bad_samples(path)
    assert all(before <= entry.time <= after for entry in found)
    assert [(entry.id, entry.index) for entry in found] == [(str(number), number) for number in range(5)]
    assert [(entry.path, entry.size) for entry in found[::4]] == [
        (str(tmp_path / "a.pt"), 5),
        (str(tmp_path / "none"), None),
    ]
    assert [entry.error for entry in found[:3]] == ["Torn", "ValueError: later", "KeyError"]
    assert found[3].error.startswith("ValueError: é") and found[3].error.endswith("é…") and len(found[3].error) < 1100


ODD = (
    "a\nb\r\nc", "say \"a\" 'b' \\ back", os.fsdecode(b"\xff\xfe\x80-caf\xc3\xa9"), "n" * 300,
    "a\u2028b\u0085c\x1b[31m", "🦊/é", "", "a\0b",
)  # fmt: skip


@given(st.binary(max_size=40).map(os.fsdecode) | st.sampled_from(ODD), st.text(max_size=40) | st.sampled_from(ODD))
@settings(deadline=None)
def test_every_name_and_error_comes_back(name: str, said: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bad.jsonl")
        list(loader(path, {0}, ids=[name], error=lambda _: ValueError(said)))
        assert path.read_text("utf-8", "strict").count("\n") == 1
        assert listed(path) == [name]
        known = loader(path, {0}, ids=[name])
        assert "1 bad sample, replaced" in known.explain() and list(known)
        assert path.read_text().count("\n") == 1, "it is not written again"


def test_lines_that_are_added_and_taken_out(path: Path, tmp_path: Path) -> None:
    list(loader(path))
    assert path.read_bytes() == b"", "no bad sample"
    path.write_bytes(good_again(tmp_path, "a"))
    add(path, "b", "c")
    path.chmod(0o640)
    command("quarantine", "retry", path)
    assert (lines(path), path.stat().st_mode & 0o777) == (["b", "c"], 0o640)
    inode = path.stat().st_ino
    command("quarantine", "retry", path)  # none has a file
    add(path, "b", "a")
    assert (path.stat().st_ino, lines(path)) == (inode, ["b", "c", "a"])
    (tmp_path / "deep").mkdir()
    path.rename(real := tmp_path / "deep" / "real.jsonl")
    path.symlink_to(real)
    twice = bad("b") + good_again(tmp_path, "b")  # of two entries with one ID the later counts
    path.write_bytes(twice + bad("c"))
    command("quarantine", "retry", path)
    assert path.is_symlink() and lines(real) == ["c"] and os.listdir(real.parent) == [real.name]


DAMAGED = {
    b"no json at all": "no JSON",
    b'{"id": "half", "path": nu': "no JSON",
    b'\xff\xfe{"id": "x"}': "no JSON",
    b"[" * 30_000: "no JSON",
    b"[1]": "no JSON object",
    b'"id"': "no JSON object",
    b'{"id": "a"}': "no 'path'",
    b'{"id": 1, "path": null, "error": "", "size": null, "time": ""}': "'id' is of type int",
    b'{"id": "a", "path": null, "error": null, "size": null, "time": ""}': "'error' is of type NoneType",
    b'{"id": "a", "path": null, "error": "", "size": true, "time": ""}': "'size' is of type bool",
    b'{"id": "a", "path": null, "error": "", "size": 1.5, "time": ""}': "'size' is of type float",
    b'{"id": "a", "path": null, "error": "", "size": 1, "time": "", "index": "1"}': "'index' is of type str",
    b'{"id": "a", "path": null, "error": "", "size": ' + b"9" * 5000 + b', "time": ""}': "no JSON",
    b"x" * 200_000: "no JSON",
}


@pytest.mark.parametrize(("line", "why"), DAMAGED.items(), ids=range(len(DAMAGED)))
def test_a_damaged_line_is_skipped_and_stays(line: bytes, why: str, path: Path, tmp_path: Path) -> None:
    path.write_bytes(good_again(tmp_path, "first") + b"\n" + line + b"\n" + bad("last")[:-1])
    words = rf"{path.name}' has damaged lines, which are skipped and stay: line 3 \({why}\); mend them"
    with pytest.warns(RuntimeWarning, match=words):
        add(path, "new")
    assert listed(path) == ["first", "last", "new"]
    command("quarantine", "retry", path)
    kept = b"\n" + line + b"\n" + bad("last")
    assert path.read_bytes().startswith(kept) and path.read_bytes().count(b"\n") == kept.count(b"\n") + 1


def test_many_damaged_lines_are_one_warning(path: Path) -> None:
    path.write_bytes(bad("a") + b"?\n" * 20)
    with pytest.warns(RuntimeWarning) as caught:
        loader(path)
    (said,) = [str(one.message) for one in caught if one.category is RuntimeWarning]
    assert "line 2 (no JSON), line 3" in said and "and 15 more" in said


def test_other_tools_wrote_it(path: Path, tmp_path: Path) -> None:
    """A byte order mark, CRLF, other order of keys, more keys, no index: all are read, and kept."""
    line = b'{"time": "t", "note": [1], "size": null, "error": "e", "path": null, "id": "a"}'
    path.write_bytes(b"\xef\xbb\xbf" + line + b"\r\n" + good_again(tmp_path, "b"))
    assert listed(path) == ["a", "b"]
    command("quarantine", "retry", path)
    assert path.read_bytes() == b"\xef\xbb\xbf" + line + b"\r\n"


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n" + bytes(range(256)), b"PK\x03\x04", b"a,b,c\n1,2,3\n", b"[]"])
def test_other_kind_of_file(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidOption, match="is not a manifest of bad samples"):
        loader(path)
    assert "is not a manifest of bad samples" in fails("quarantine", "list", path)
    assert path.read_bytes() == content


@pytest.mark.filterwarnings("ignore:.*damaged lines")
@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"i', b'{"id": "a', b"\0" * 100])
def test_beginnings_of_a_manifest(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    add(path, "a")
    assert listed(path) == ["a"]


def test_no_place_for_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(place: str, words: str) -> None:
        with pytest.raises(InvalidOption, match=words):
            loader(tmp_path / place)

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "closed").mkdir(0o555)
    check("", "the manifest .* cannot be written: Is a directory; name a file")
    check("none/bad.jsonl", "cannot be written: No such file")
    check("n" * 300, "cannot be written: File name too long")
    check("/proc/self/bad.jsonl", "cannot be written: No such file")
    check("/dev/null", "not a regular file")
    check("pipe", "not a regular file")
    with unprivileged():
        check("closed/bad.jsonl", "cannot be written: Permission denied; name a file that")
    monkeypatch.setattr(os, "open", raising(errno.EROFS))
    check("bad.jsonl", "cannot be written: Read-only file system")


def test_no_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(path, "a")
    monkeypatch.setattr(fcntl, "flock", raising(errno.ENOLCK))
    with pytest.raises(InvalidOption, match="its file system has no file locks"):
        loader(path)
    assert listed(path) == ["a"]


# --- several at once --------------------------------------------------------------------------------------------------


def open_here(inode: int) -> int:
    """Return how many descriptors of this process are of a file."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.stat(f"/proc/self/fd/{name}").st_ino == inode
    return found


@pytest.mark.parametrize(
    ("act", "found", "left"),
    [
        (lambda path: add(path, "new"), None, ["kept", "new"]),
        (lambda path: command("quarantine", "retry", path)[:12], "good again  ", []),
        (listed, ["kept"], ["kept"]),
    ],
    ids=["add", "remove", "read"],
)
def test_replaced_between_open_and_lock(act: Any, found: Any, left: list[str], path: Path, tmp_path: Path) -> None:
    """What waited for the lock of a file that was replaced meanwhile acts on the new one."""
    path.write_bytes(bad("old"))
    with path.open("rb") as old, ThreadPoolExecutor(1) as pool:
        fcntl.flock(old, fcntl.LOCK_EX)
        inode = os.fstat(old.fileno()).st_ino
        acting = pool.submit(act, path)
        wait_until(lambda: open_here(inode) == 2)
        (tmp_path / "next").write_bytes(good_again(tmp_path, "kept"))
        os.replace(tmp_path / "next", path)
        fcntl.flock(old, fcntl.LOCK_UN)
        assert (acting.result(30), lines(path)) == (found, left)
        assert len(old.read().splitlines()) == 1


def test_a_lock_that_is_never_given_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.state.manifest.LOCK_SECONDS", 0.0)
    made = loader(path, {0}, ids=["a"])
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InvalidOption, match="cannot be written: Connection timed out"):
            loader(path)
        with pytest.warns(RuntimeWarning, match="'a' could not be written to the manifest .* a later run finds it"):
            list(made)
    assert "1 bad sample, replaced" in made.explain() and lines(path) == []
    add(path, "b")
    assert lines(path) == ["b"]


def test_a_descriptor_that_a_fork_copied_holds_no_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.state.manifest.LOCK_SECONDS", 0.0)
    copies, flock = [], fcntl.flock

    def copying(descriptor: int, how: int) -> None:
        flock(descriptor, how)
        if how != fcntl.LOCK_UN:
            copies.append(os.dup(descriptor))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", copying)
        add(path, "a")
    assert copies
    add(path, "b")
    for one in copies:
        os.close(one)


def test_many_add_while_one_takes_out(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"".join(good_again(tmp_path, f"gone-{i}") for i in range(40)))
    start = threading.Barrier(6)

    def adds(number: int) -> None:
        start.wait()
        add(path, *(f"id-{i}" for i in range(number, 120, 5)))

    with ThreadPoolExecutor(5) as pool:
        running = [pool.submit(adds, number) for number in range(5)]
        start.wait()
        while not all(one.done() for one in running):
            command("quarantine", "retry", path)
        assert [one.result() for one in running] == [None] * 5
    assert sorted(lines(path)) == sorted(f"id-{i}" for i in range(120))


# --- the limit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "size", "allowed"),
    [
        (0.001, 999, 1), (0.001, 2, 1), (0.001, 1000, 1), (0.001, 1999, 1), (0.29, 100, 29), (0.1, 30, 3),
        (0.07, 100, 7), (1e-04, 30_000, 3), (0, 100, 0), (1, 7, 7), (1 / 3, 3, 1), (0, 3, 0),
    ],
)  # fmt: skip
def test_the_limit_is_exact(share: float, size: int, allowed: int) -> None:
    most = min(allowed, size - 1)
    made = loader(None, range(most), size=size, share=share)
    for _ in range(2):  # the same ones count once
        assert sum(map(len, made)) == size
    assert f"more than {allowed:,} end the run" in made.explain()
    if most == allowed and allowed + 1 < size:
        words = f"^{allowed + 1} of {size:,} samples {'are' if allowed else 'is'} bad"
        with pytest.raises(TooManyBadSamples, match=words):
            list(loader(None, range(allowed + 1), size=size, share=share))


class TornFile(Exception):
    """An error whose words do not have its file's name."""

    def __init__(self, said: str) -> None:
        super().__init__("torn")
        self.filename = f"/data/{said.split()[1]}.pt"


def test_the_message_lists_what_is_bad(path: Path) -> None:
    with pytest.raises(TooManyBadSamples) as caught:
        list(loader(path, range(23), size=1000, share=0.022, error=TornFile))
    *listed, remedy = str(caught.value).split("\n")
    first, *found, last = listed
    assert first == "23 of 1,000 samples are bad (2.300%), and on_error=Replace(max_share=0.022) allows 22:"
    assert len(set(found)) == 20 and last == "  and 3 more"
    assert set(found) < {f"  '{number}' (/data/{number}.pt): TornFile: torn" for number in range(23)}
    assert remedy.startswith(f"The list stands in {path}. Repair the files and run `penstock quarantine retry`")
    assert "raise max_share" in remedy
    assert sorted(map(int, lines(path))) == list(range(23)), "they were written before the error"
    words = r"\n  '0': FileNotFoundError: \[Errno 2\] gone: '/p/x'\nRepair .* or raise max_share; manifest="
    with pytest.raises(TooManyBadSamples, match=words):
        list(loader(None, {0}, share=0, error=lambda _: FileNotFoundError(2, "gone", "/p/x")))


def test_copies_count_on_by_themselves(path: Path) -> None:
    made = loader(path, {3})
    list(made)
    for number, other in {5: pickle.loads(pickle.dumps(made)), 7: copy.deepcopy(made)}.items():
        other.dataset.bad = {3, number}
        list(other)
        assert "1 bad sample," in made.explain() and "2 bad samples," in other.explain()
    assert lines(path) == ["3", "5", "7"]
