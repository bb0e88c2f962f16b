"""Quarantine: what Replace allows, a manifest that many may write at once, and the count of one loader."""

from __future__ import annotations

import contextlib
import copy
import errno
import fcntl
import json
import multiprocessing
import os
import pickle
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from penstock.errors import InvalidOption, TooManyBadSamples
from penstock.state.manifest import BadSample, Manifest
from penstock.state.substitutes import Quarantine, Replace
from tests.waiting import wait_until


def bad(id: str, path: str | None = None, index: int | None = None) -> BadSample:
    return BadSample.of(id, path, ValueError("it is bad"), index)


def lines(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_bytes().splitlines()]


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(
            ({"max_share": share}, re.escape(repr(share)) + ".* is not a share: give a number from 0 to 1")
            for share in (-0.1, 1.1, float("nan"), float("inf"), True, "0.1", None, 1j)
        )
    ],
)
def test_wrong_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        Replace(**options)


def test_wrong_manifest(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none" / "bad.jsonl", ""):
        with pytest.raises(InvalidOption, match=r"the manifest .* cannot be written: .*; name a file"):
            Quarantine(Replace(manifest=place), 10)


def test_entry_says_what_was_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.pt"
    file.write_bytes(b"12345")
    monkeypatch.chdir(tmp_path)
    before = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")  # time.gmtime() lags a tick
    for path in (file, "a.pt"):
        entry = BadSample.of("a", path, RuntimeError("first line\nsecond"), 7)
        after = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        assert before <= entry.time <= after
        assert list(json.loads(entry.line()).items()) == list(asdict(entry).items()) == [
            ("id", "a"), ("path", str(file)), ("error", "RuntimeError: first line"), ("size", 5),
            ("time", entry.time), ("index", 7),
        ]  # fmt: skip
    assert BadSample.of("a", tmp_path / "none", KeyError("x")).size is None


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_errors_of_odd_words() -> None:
    errors = {
        Unspeakable(): "Unspeakable",
        KeyboardInterrupt(): "KeyboardInterrupt",
        ValueError("\n \nlater"): "ValueError: later",
    }
    assert [BadSample.of("a", None, error).error for error in errors] == list(errors.values())
    long = BadSample.of("id-1", "/data/" + "p" * 1000, ValueError("é" * 100_000)).error
    assert len(long) < 1100 and long.startswith("ValueError: é") and long.endswith("…")


@pytest.mark.parametrize(
    "name",
    [
        "a\nb\r\nc", "say \"a\" 'b' \\ back", os.fsdecode(b"\xff\xfe\x80-caf\xc3\xa9"), "n" * 300,
        "a\u2028b\u0085c\x1b[31m", "🦊/é", "", "a\0b",
    ],
)  # fmt: skip
def test_odd_names(name: str, path: Path) -> None:
    manifest = Manifest(path)
    entry = BadSample(name, f"/data/{name}", f"ValueError: {name}", None, "2025-01-01T00:00:00Z")
    manifest.add(entry)
    assert manifest.read() == {name: entry} and path.read_text("utf-8", "strict").count("\n") == 1
    assert manifest.remove([name]) == 1 and path.read_bytes() == b""


NAMES = st.binary(max_size=40).map(os.fsdecode)


@given(name=NAMES, place=st.none() | NAMES, error=st.text(max_size=40), size=st.none() | st.integers(0, 1 << 70))
@settings(deadline=None)
def test_every_entry_comes_back(name: str, place: str | None, error: str, size: int | None) -> None:
    entry = BadSample(name, place, error, size, "2025-01-01T00:00:00Z", size)
    with tempfile.TemporaryDirectory() as folder:
        manifest = Manifest(os.path.join(folder, "bad.jsonl"))
        manifest.add(entry)
        assert list(manifest.read().values()) == [entry]


def test_no_file_is_an_empty_manifest(path: Path) -> None:
    manifest = Manifest(path)
    assert (manifest.read(), manifest.remove(["a"]), path.exists()) == ({}, 0, False)
    manifest.check()
    assert path.read_bytes() == b"" and manifest.read() == {}


def test_add_read_remove(path: Path) -> None:
    manifest = Manifest(path)
    for id in "abc":
        manifest.add(bad(id))
    assert lines(path) == ["a", "b", "c"]
    path.chmod(0o640)
    assert (manifest.remove(["b", "x"]), path.stat().st_mode & 0o777) == (1, 0o640)
    inode = path.stat().st_ino
    assert (manifest.remove(["x"]), path.stat().st_ino, list(manifest.read())) == (0, inode, ["a", "c"])
    manifest.add(bad("b"))
    assert (list(manifest.read()), os.listdir(path.parent)) == (["a", "c", "b"], [path.name])


def test_later_of_two_entries(path: Path) -> None:
    first, second = bad("a", index=1), bad("a", index=2)
    path.write_bytes(first.line() + bad("b").line() + second.line())
    assert Manifest(path).read()["a"] == second
    assert Manifest(path).remove(["a"]) == 1
    assert lines(path) == ["b"]


def test_link_stays_a_link(tmp_path: Path, path: Path) -> None:
    (tmp_path / "deep").mkdir()
    real = tmp_path / "deep" / "real.jsonl"
    path.symlink_to(real)
    manifest = Manifest(path)
    for id in "ab":
        manifest.add(bad(id))
    manifest.remove(["a"])
    assert path.is_symlink() and lines(real) == ["b"] and os.listdir(real.parent) == [real.name]


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
def test_damaged_line(line: bytes, why: str, path: Path) -> None:
    first, last = bad("first").line(), bad("last").line()
    path.write_bytes(first + b"\n" + line + b"\n" + last)
    manifest = Manifest(path)
    words = rf"{path.name}' has damaged lines, which are skipped and stay: line 3 \({why}\); mend them"
    with pytest.warns(RuntimeWarning, match=words):
        assert list(manifest.read()) == ["first", "last"]
    manifest.add(bad("new"))
    assert manifest.remove(["first", "new"]) == 2
    assert path.read_bytes() == b"\n" + line + b"\n" + last


def test_many_damaged_lines_are_one_warning(path: Path) -> None:
    path.write_bytes(bad("a").line() + b"?\n" * 20)
    with pytest.warns(RuntimeWarning) as caught:
        Manifest(path).read()
    assert len(caught) == 1
    assert "line 2 (no JSON), line 3" in str(caught[0].message) and "and 15 more" in str(caught[0].message)


def test_whole_last_line_without_newline(path: Path) -> None:
    path.write_bytes(bad("a").line()[:-1])
    Manifest(path).add(bad("b"))
    assert lines(path) == ["a", "b"]


def test_other_tools_wrote_it(path: Path) -> None:
    """A byte order mark, CRLF, other order of keys, more keys, no index: all are read, and kept."""
    line = b'{"time": "t", "note": [1], "size": null, "error": "e", "path": null, "id": "a"}'
    path.write_bytes(b"\xef\xbb\xbf" + line + b"\r\n" + bad("b").line())
    assert Manifest(path).read()["a"] == BadSample("a", None, "e", None, "t", None)
    Manifest(path).remove(["b"])
    assert path.read_bytes() == b"\xef\xbb\xbf" + line + b"\r\n"


@given(st.lists(st.binary(max_size=30) | st.sampled_from(list(DAMAGED)[:6]), max_size=6))
@settings(deadline=None)
def test_any_bytes_behind_the_first_line(pieces: list[bytes]) -> None:
    before = bad("first").line() + b"\n".join(pieces)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "bad.jsonl")
        path.write_bytes(before)
        manifest = Manifest(path)
        manifest.add(bad("new"))
        assert list(manifest.read()) == ["first", "new"]
        manifest.remove(["new"])
        assert path.read_bytes() == (before if before.endswith(b"\n") else before + b"\n")


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n" + bytes(range(256)), b"PK\x03\x04", b"a,b,c\n1,2,3\n", b"[]"])
def test_other_kind_of_file(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    for act in (Manifest(path).check, Manifest(path).read, lambda: Quarantine(Replace(manifest=path), 10)):
        with pytest.raises(InvalidOption, match="is not a manifest of bad samples"):
            act()
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"i', b'{"id": "a', b"\0" * 100])
def test_beginnings_of_a_manifest(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        manifest = Manifest(path)
        manifest.check()
        assert manifest.read() == {}
        manifest.add(bad("a"))
        assert list(manifest.read()) == ["a"]


def test_no_place_for_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(place: str, words: str) -> None:
        with pytest.raises(InvalidOption, match=words):
            Manifest(tmp_path / place).check()

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "closed").mkdir(0o555)
    check("", "cannot be written: Is a directory")
    check("none/bad.jsonl", "cannot be written: No such file")
    check("n" * 300, "cannot be written: File name too long")
    check("/proc/self/bad.jsonl", "cannot be written: No such file")
    check("/dev/null", "not a regular file")
    check("pipe", "not a regular file")
    with unprivileged():
        check("closed/bad.jsonl", "cannot be written: Permission denied; name a file that")
    monkeypatch.setattr(os, "open", raising(errno.EROFS))
    with pytest.raises(InvalidOption, match="cannot be written: Read-only file system"):
        Quarantine(Replace(manifest=tmp_path / "bad.jsonl"), 10)


def test_no_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Manifest(path).add(bad("a"))
    monkeypatch.setattr(fcntl, "flock", raising(errno.ENOLCK))
    with pytest.raises(InvalidOption, match="its file system has no file locks"):
        Manifest(path).check()
    assert list(Manifest(path).read()) == ["a"]


def test_full_disk_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest(path)
    manifest.add(bad("a"))
    before, write, full = path.read_bytes(), os.write, raising(errno.ENOSPC)
    calls = iter([lambda descriptor, data: write(descriptor, data[:10]), full])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *given: next(calls)(*given))
        with pytest.raises(OSError, match="No space left"):
            manifest.add(bad("b"))
    assert path.read_bytes() == before and next(calls, None) is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
        manifest.add(bad("b"))
    assert lines(path) == ["a", "b"]


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
        (lambda manifest: manifest.add(bad("new")), None, ["kept", "new"]),
        (lambda manifest: manifest.remove(["kept"]), 1, []),
        (lambda manifest: list(manifest.read()), ["kept"], ["kept"]),
    ],
    ids=["add", "remove", "read"],
)
def test_replaced_between_open_and_lock(act: Any, found: Any, left: list[str], path: Path, tmp_path: Path) -> None:
    """Who waited for the lock of a file that was replaced meanwhile acts on the new one."""
    Manifest(path).add(bad("old"))
    with path.open("rb") as old, ThreadPoolExecutor(1) as pool:
        fcntl.flock(old, fcntl.LOCK_EX)
        inode = os.fstat(old.fileno()).st_ino
        acting = pool.submit(act, Manifest(path))
        wait_until(lambda: open_here(inode) == 2)
        (tmp_path / "next").write_bytes(bad("kept").line())
        os.replace(tmp_path / "next", path)
        fcntl.flock(old, fcntl.LOCK_UN)
        assert (acting.result(30), lines(path)) == (found, left)
        assert len(old.read().splitlines()) == 1


def test_lock_that_is_never_given_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.state.manifest.LOCK_SECONDS", 0.0)
    kept = Quarantine(Replace(1, path), 10)
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="another process has held its lock for"):
            Manifest(path).add(bad("a"))
        with pytest.warns(RuntimeWarning, match="'a' could not be written to the manifest .* a later run finds it"):
            kept.report(bad("a"))
    assert kept.known == {"a"} and lines(path) == []
    kept.report(bad("b"))
    assert lines(path) == ["b"]


def test_descriptor_that_a_fork_copied_holds_no_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.state.manifest.LOCK_SECONDS", 0.0)
    copies, flock = [], fcntl.flock

    def copying(descriptor: int, how: int) -> None:
        flock(descriptor, how)
        if how != fcntl.LOCK_UN:
            copies.append(os.dup(descriptor))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", copying)
        Manifest(path).add(bad("a"))
    assert len(copies) == 1
    Manifest(path).add(bad("b"))
    os.close(copies[0])


def adds(path: str, number: int, start: Any, results: Any) -> None:
    """Add 24 IDs that no other process adds."""
    start.wait()
    for i in range(number, 120, 5):
        Manifest(path).add(bad(f"id-{i}", index=number))
    results.put(24)


def takes_out(path: str, start: Any, results: Any) -> None:
    manifest = Manifest(path)
    start.wait()
    results.put(-sum(manifest.remove([f"gone-{i}", f"gone-{i + 1}"]) for i in range(0, 40, 2)))


def test_processes_add_while_one_takes_out(path: Path) -> None:
    path.write_bytes(b"".join(bad(f"gone-{i}").line() for i in range(40)) + b"?\n")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    start, results = context.Barrier(6), context.Queue()
    work: list[tuple[Any, tuple[Any, ...]]] = [
        *((adds, (str(path), number)) for number in range(5)),
        (takes_out, (str(path),)),
    ]
    processes = [context.Process(target=target, args=(*args, start, results)) for target, args in work]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for process in processes:
            process.start()
        assert sum(results.get(timeout=60) for _ in processes) == 120 - 40
        for process in processes:
            process.join(30)
    assert [process.exitcode for process in processes] == [0] * 6
    content = path.read_bytes().splitlines()
    content.remove(b"?")
    assert sorted(json.loads(line)["id"] for line in content) == sorted(f"id-{i}" for i in range(120))


@pytest.mark.parametrize(
    ("share", "size", "allowed"),
    [
        (0.001, 999, 1), (0.001, 1, 1), (0.001, 1000, 1), (0.001, 1999, 1), (0.29, 100, 29), (0.1, 30, 3),
        (0.07, 100, 7), (1e-05, 300_000, 3), (0, 100, 0), (1, 7, 7), (0.5, 0, 0), (1 / 3, 3, 1), (0, 3, 0),
    ],
)  # fmt: skip
def test_limit_is_exact(share: float, size: int, allowed: int) -> None:
    kept = Quarantine(Replace(share), size)
    assert kept.limit == allowed
    for i in range(2 * allowed):  # the same one counts once
        kept.report(bad(f"id-{i // 2}"))
    words = f"^{allowed + 1} of {size:,} sample{'s' * (size != 1)} {'are' if allowed else 'is'} bad"
    with pytest.raises(TooManyBadSamples, match=words):
        kept.report(bad("one-more"))
    assert len(kept.known) == allowed + 1


def test_message_lists_what_is_bad(path: Path) -> None:
    kept = Quarantine(Replace(0.022, path), 1000)
    for i in range(22):
        kept.report(BadSample(f"id-{i}", f"/data/{i}.pt", "CorruptSample: torn", 3, "t"))
    with pytest.raises(TooManyBadSamples) as caught:
        kept.report(BadSample("last", None, "ValueError: no", None, "t"))
    *listed, remedy = str(caught.value).split("\n")
    assert listed == [
        "23 of 1,000 samples are bad (2.300%), and on_error=Replace(max_share=0.022) allows 22:",
        *(f"  'id-{i}' (/data/{i}.pt): CorruptSample: torn" for i in range(20)),
        "  and 3 more",
    ]
    assert remedy.startswith(f"The list stands in {path}. Repair the files and run `penstock quarantine retry`")
    assert "raise max_share" in remedy
    assert lines(path)[-1] == "last"  # it was written before the error
    words = r"\n  'x': KeyError: /p/x is bad\nRepair .* or raise max_share; manifest="
    with pytest.raises(TooManyBadSamples, match=words):
        Quarantine(Replace(0), 10).report(BadSample("x", "/p/x", "KeyError: /p/x is bad", None, "t"))


def test_copies_are_their_own(path: Path) -> None:
    kept = Quarantine(Replace(1, path), 10)
    kept.report(bad("a"))
    for id, other in {"b": pickle.loads(pickle.dumps(kept)), "c": copy.deepcopy(kept)}.items():
        other.report(bad(id))
        assert kept.known == {"a"} and other.known == {"a", id}
    assert lines(path) == ["a", "b", "c"]
