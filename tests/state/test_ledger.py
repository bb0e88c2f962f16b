"""Ledgers: what is written is read, whatever ends the writer; and two of them tell where their runs diverged."""

from __future__ import annotations

import errno
import fcntl
import gc
import hashlib
import json
import os
import shlex
import signal
import tempfile
import weakref
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import penstock
from penstock.cli import main
from penstock.errors import InvalidOption
from penstock.state import ledger as ledgers
from penstock.state.ledger import Ledger, Record, compare, read
from tests.data import Made
from tests.forking import assert_ended_well, begin_in_child
from tests.python_processes import Program
from tests.waiting import wait_until

Captured = pytest.CaptureFixture[str]
Step = tuple[int, int, tuple[str, ...]]  # epoch, step, IDs

RUN = {"seed": 7, "rank": 0, "world": 2, "batch_size": 4}


def steps(*places: tuple[int, int]) -> list[Step]:
    return [(epoch, step, (f"{epoch}/{step}", str(epoch + step))) for epoch, step in places]


def write(path: Path, given: Iterable[Step], run: dict[str, Any] = RUN) -> str:
    with closing(Ledger(path, run=run)) as ledger:
        for step in given:
            ledger.append(*step)
    return str(path)


def recorded(given: Iterable[Step]) -> list[Record]:
    """Return the records that a ledger of these steps holds, by the definition."""
    return [
        Record(epoch, step, len(ids), hashlib.blake2b(json.dumps(ids).encode(), digest_size=8).hexdigest())
        for epoch, step, ids in given
    ]


TEN = steps(*((epoch, step) for epoch in (0, 1) for step in range(5)))


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with closing(Ledger(path, run=RUN)) as ledger:
        for number, step in enumerate(TEN):
            ledger.append(*step)
            assert list(read(path)) == recorded(TEN)[: number + 1]  # at once, while it is in use
        assert repr(ledger) == f"Ledger('{path}', open)"
    file = read(path)
    assert (dict(file.run), file.resumed, file.torn, path.read_bytes().count(b"\n")) == (RUN, 0, 0, 11)
    assert "closed" in repr(ledger)
    ledger.close()
    with pytest.raises(InvalidOption, match="is closed here"):
        ledger.append(*TEN[0])


NAMES = st.text(st.characters(codec=None), max_size=4) | st.sampled_from(["", "\0", "a\0b", "\ud800", "1", "é", '","'])


@given(st.lists(NAMES, max_size=4), st.lists(NAMES, max_size=4))
@settings(deadline=None)
def test_ids_are_told_apart(one: list[str], two: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = read(write(Path(folder, "a"), [(0, 0, tuple(one)), (0, 1, tuple(two))]))
    assert (first.hash == second.hash) == (one == two)
    assert (first.samples, second.samples) == (len(one), len(two))


EVENT = st.tuples(st.just("append"), st.integers(0, 2), st.integers(0, 3), st.integers(0, 1)) | st.tuples(
    st.sampled_from(["reopen", "tear"]), st.just(0), st.just(0), st.just(0)
)


@given(st.lists(EVENT, max_size=25))
@settings(deadline=None, max_examples=100)
def test_any_history(events: list[tuple[str, int, int, int]]) -> None:
    """Against a list: the steps that are left, and how many were abandoned."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        ledger = Ledger(path, run=RUN)
        line: list[Step] = []
        abandoned = 0
        for what, epoch, step, name in events:
            if what == "append":
                ledger.append(epoch, step, [str(name)])
                kept = [given for given in line if given[:2] < (epoch, step)]
                abandoned, line = abandoned + len(line) - len(kept), [*kept, (epoch, step, (str(name),))]
            else:
                ledger.close()
                if what == "tear":
                    with path.open("ab") as file:
                        file.write(b"0 17 4 ")
                ledger = Ledger(path, run=RUN)
            file_read = read(path)
            assert list(file_read) == recorded(line) and file_read.abandoned == abandoned
        ledger.close()


def test_another_run_is_refused(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a", TEN))
    before = path.read_bytes()
    with pytest.raises(InvalidOption) as caught:
        Ledger(path, run={"seed": 8, "batch_size": 4, "world": 2, "fingerprint": "é\n"})
    assert str(caught.value) == (
        f"'{path}' is the ledger of another run: fingerprint is not said there, and \"\\u00e9\\n\" here; "
        "rank is 0 there, and not said here; seed is 7 there, and 8 here. Name another file"
    )
    assert path.read_bytes() == before
    write(path, steps((2, 0)))  # its lock is given back
    equal = {"sizes": (1, 2), "fingerprint": "é\n"}
    for line in (TEN[:1], ()):
        assert len(read(write(tmp_path / "c", line, equal)).steps) == 1


def test_places_where_no_ledger_can_be(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, opened, words, read_error in (
        ("none/a", FileNotFoundError, "No such file", FileNotFoundError),
        ("", IsADirectoryError, "Is a directory", InvalidOption),
        ("pipe", InvalidOption, "not a regular file, so it cannot be a ledger", InvalidOption),
    ):
        with pytest.raises(opened, match=words) as caught:
            Ledger(tmp_path / name, run=RUN)
        assert str(tmp_path) in str(caught.value)
        with pytest.raises(read_error, match="No such file" if name == "none/a" else "not a regular file"):
            read(tmp_path / name)


def test_two_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "LOCK_SECONDS", 0.0)
    with closing(Ledger(tmp_path / "a", run=RUN)) as ledger:
        with pytest.raises(InvalidOption, match="written by another process, or open in this one; give each rank"):
            Ledger(tmp_path / "a", run=RUN)
        ledger.append(*TEN[0])
    assert len(read(write(tmp_path / "a", TEN[1:])).steps) == 10


def test_no_locks_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert len(read(write(tmp_path / "a", TEN)).steps) == 10


def test_a_forked_child_cannot_write_and_holds_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "a"
    reader, writer = os.pipe()
    with closing(Ledger(path, run=RUN)) as ledger:
        ledger.append(*TEN[0])

        def check() -> None:
            os.close(writer)
            with pytest.raises(InvalidOption, match="only the process that opened it may write it"):
                ledger.append(*TEN[1])
            ledger.close()
            os.read(reader, 1)  # lives until the parent is done

        child = begin_in_child(check)
        ledger.append(*TEN[1])
    write(path, TEN[2:])  # while the child is alive
    for end in (writer, reader):
        os.close(end)
    assert_ended_well(child)
    assert list(read(path)) == recorded(TEN)


def test_a_write_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes half a line; the same step goes into the same place when there is room again."""
    real, takes = os.write, [10]

    def full(descriptor: int, data: bytes) -> int:
        if not takes:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: takes.pop()])

    path = tmp_path / "a"
    with closing(Ledger(path, run=RUN)) as ledger:
        ledger.append(*TEN[0])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(OSError, match=r"No space left on device"):
                ledger.append(*TEN[1])
        assert list(read(path)) == recorded(TEN[:1])
        for step in TEN[1:]:
            ledger.append(*step)
    assert list(read(path)) == recorded(TEN)


@pytest.mark.parametrize("zeros", [0, 4096])
def test_torn_at_every_byte(zeros: int, tmp_path: Path) -> None:
    """Whatever part of the file there is, the next run goes on with it, and the end is as if nothing had been.

    A loss of power leaves zeros behind that part.
    """
    given = TEN[:3]
    whole = Path(write(tmp_path / "whole", given)).read_bytes()
    header = whole.index(b"\n") + 1
    path = tmp_path / "a"
    for size in range(len(whole)):
        path.write_bytes(whole[:size] + bytes(zeros))
        if size < header:
            with pytest.raises(InvalidOption, match="is not a ledger"):
                read(path)
            path.write_bytes(whole[:size])
        else:
            file, end = read(path), whole.rindex(b"\n", 0, size) + 1
            assert list(file) == recorded(given)[: whole[header:size].count(b"\n")]
            assert file.torn == size - end + zeros
        write(path, given[whole[header:size].count(b"\n") :])
        assert path.read_bytes() == whole


def test_files_that_are_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "a"
    step = b"0 0 4 0123456789abcdef\n"
    for content, words in (
        (b"", "is not a ledger: it is empty"),
        (b'{"id": "a"}\n', r"is not a ledger: it begins with b'\{\"id\""),
        (b"penstock-ledger 1 00000000 {}\n", "of format 1, and this Penstock reads format 2; read it with the version"),
        (b"penstock-ledger 2 {\n", "first line of this ledger is damaged"),
        (b"penstock-ledger 2\n", "is not a ledger"),
        (b"penstock-ledger 2 {}\n" + step + b"0 1 4 0123456789abcdeg\n" + step, "damaged: line 3 of 4 is not a step"),
        (b"penstock-ledger 2 {}\n0 -1 4 0123456789abcdef\n", "line 2 of 2 is not a step; remove the line"),
        (b"penstock-ledger 2 {}\n" + bytes(4096) + b"\n", "line 2 of 2 is not a step"),
    ):
        path.write_bytes(content)
        with pytest.raises(InvalidOption, match=words) as caught:
            read(path)
        assert str(path) in str(caught.value)
        if content:
            with pytest.raises(InvalidOption):
                Ledger(path, run=RUN)
        assert path.read_bytes() == content


WRITER = """
import itertools, sys
from penstock.state.ledger import Ledger, read
ledger = Ledger(sys.argv[1], run={"seed": 7})
first = len(read(sys.argv[1]).steps)
print("open", flush=True)
for step in itertools.count(first):
    ledger.append(0, step, [str(step), f"name {step}"])
"""


def test_killed_while_writing(tmp_path: Path) -> None:
    """Killed again and again: the file is readable, and the next run goes on behind the last whole line."""
    path = tmp_path / "a"
    for more in (1, 50, 400):
        with Program(WRITER, path) as process:
            assert process.stdout.readline() == "open\n"
            size = path.stat().st_size + more * 30
            wait_until(lambda size=size: path.stat().st_size > size)  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
        file = read(path)
        assert list(file) == recorded((0, step, (str(step), f"name {step}")) for step in range(len(file.steps)))
        assert len(file.steps) >= more


def parted(one: list[Step], two: list[Step]) -> tuple[int | None, int]:
    """Return what compare() should find, by walking along both."""
    both = enumerate(zip(one, two, strict=False))
    equal = next((number for number, (a, b) in both if a != b), min(len(one), len(two)))
    ends = equal == len(one), equal == len(two)
    return ends.index(True) if sum(ends) == 1 else None, equal


PLACES = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=9).map(lambda places: {(0, 0), *places})
CHANGES = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=2)


@given(PLACES, PLACES, CHANGES, st.booleans())
@settings(deadline=None, max_examples=100)
def test_compare(places: set[Any], others: set[Any], changed: set[Any], same: bool) -> None:
    one = steps(*sorted(places))
    other = one if same else steps(*sorted(others))
    two = [(epoch, step, ("other",) if (epoch, step) in changed else data) for epoch, step, data in other]
    with tempfile.TemporaryDirectory() as folder:
        found = compare(read(write(Path(folder, "one"), one)), read(write(Path(folder, "two"), two)))
    ended, equal = parted(one, two)
    nexts = recorded(one)[equal : equal + 1] + recorded(two)[equal : equal + 1]
    at = min((record[:2] for record in nexts), default=None)
    a, b = ({record[:2]: record for record in recorded(line)}.get(at or (-1, -1)) for line in (one, two))
    assert (found.ended, found.equal, found.since, found.facts) == (ended, equal, None, ())
    assert (found.at, found.a, found.b) == (at, a, b)


def test_compare_looks_at_what_is_left_of_a_resumed_run(tmp_path: Path) -> None:
    one, two = Path(write(tmp_path / "one", TEN)), Path(write(tmp_path / "two", TEN[:4]))
    with closing(Ledger(two, run=RUN)) as ledger:
        ledger.append(0, 4, ["another"])
        ledger.append(1, 0, ["branch"])
        assert compare(read(one), read(two)).at == (0, 4)
        for step in TEN[4:]:
            ledger.append(*step)
    found = compare(read(one), read(two))
    assert (found.at, found.ended, found.equal) == (None, None, 10)


@pytest.mark.parametrize(
    ("line", "facts", "words"),
    [
        (TEN, {**RUN, "rank": 1}, "rank is 0 and 1, so that their steps hold other samples"),
        (TEN, {**RUN, "batch_size": 8}, "batch_size is 4 and 8"),
        (TEN, {"seed": 7, "rank": 0, "batch_size": 4}, "world is 2 and not said"),
        (steps((2, 0)), RUN, "no step in common"),
    ],
)
def test_what_cannot_be_compared(line: Any, facts: Any, words: str, tmp_path: Path) -> None:
    one, other = read(write(tmp_path / "one", TEN)), read(write(tmp_path / "other", line, facts))
    for a, b, said in ((one, other, words), (other, one, "")):
        with pytest.raises(InvalidOption, match=f"cannot be compared: .*{said}"):
            compare(a, b)


def run(capsys: Captured, *arguments: str | Path) -> tuple[int, list[str], str]:
    """Return exit code, lines of stdout, and stderr."""
    try:
        code: Any = main(["ledger", *map(str, arguments)])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    changed = [*TEN[:6], (1, 1, ("x", "y", "z")), *TEN[7:]]
    return write(tmp_path / "a", TEN), write(tmp_path / "b", changed, {**RUN, "seed": 8, "host": "b"})


def test_diff(two: tuple[str, str], tmp_path: Path, capsys: Captured) -> None:
    a, b = two
    last = write(tmp_path / "last", [*TEN[:9], (*TEN[9][:2], ("x",))])
    lines = [
        "diverged at epoch 1 step 1, after 6 steps in which they are equal",
        f"  {a}: 2 samples, hash {recorded(TEN)[6].hash}",
        f"  {b}: 3 samples, hash {read(b).steps[6].hash}",
        f'host: not said in {a}, "b" in {b}',
        f"seed: 7 in {a}, 8 in {b}",
    ]
    assert run(capsys, "diff", a, b) == (1, lines, "")
    assert run(capsys, "diff", a, last)[1][2] == f"  {last}: 1 sample, hash {read(last).steps[9].hash}"


def test_diff_of_equal_ones_and_prefixes(two: tuple[str, str], tmp_path: Path, capsys: Captured) -> None:
    a, nothing = two[0], write(tmp_path / "nothing", [])
    assert run(capsys, "diff", a, a) == (0, ["equal: 10 steps, to epoch 1 step 4"], "")
    assert run(capsys, "diff", nothing, nothing) == (0, ["equal: 0 steps"], "")
    for count, words in ((0, "0 steps"), (1, "1 step")):
        short = write(tmp_path / f"{count}", TEN[:count])
        line = f"equal up to the end of {short}: {words}; {a} continues with epoch 0 step {count}"
        assert run(capsys, "diff", a, short) == run(capsys, "diff", short, a) == (0, [line], "")


@pytest.mark.parametrize("swapped", [False, True])
def test_diff_where_one_begins_later(swapped: bool, two: tuple[str, str], tmp_path: Path, capsys: Captured) -> None:
    """A run that was resumed with a new file."""
    right = f"equal up to the end of {tmp_path / 'right'}: 1 step; {two[0]} continues with epoch 1 step 2"
    wrong = "diverged at epoch 1 step 1, after 0 steps in which they are equal"
    for name, ids, first in (("right", TEN[6][2], right), ("wrong", ("another",), wrong)):
        both = [two[0], write(tmp_path / name, [(1, 1, ids)])]
        code, lines, err = run(capsys, "diff", *(reversed(both) if swapped else both))
        assert (code, err) == (int(name == "wrong"), "") and lines[0].startswith(first)
        assert lines[-1] == "compared from epoch 1 step 1, where one of them begins"


def test_show(tmp_path: Path, capsys: Captured) -> None:
    path = write(tmp_path / "a", TEN)
    write(Path(path), [(1, 3, tuple(map(str, range(2000))))])
    with open(path, "ab") as file:
        file.write(b"torn")
    last = read(path).steps[-1].hash
    lines = [
        f"ledger     {path}",
        "run        batch_size 4, rank 0, seed 7, world 2",
        "epochs     2: 0 to 1",
        "steps      9: epoch 0 step 0 to epoch 1 step 3",
        "samples    2,016",
        f"hash       {last} of the last step",
        "resumed    once, 2 steps abandoned",
        "torn       4 bytes of a line that was not finished",
    ]
    assert run(capsys, "show", path) == (0, lines, "")
    hashes = [f"   {step}        2  {record.hash}" for step, record in enumerate(recorded(TEN)[5:8])]
    lines = ["STEP  SAMPLES  HASH", *hashes, f"   3    2,000  {last}"]
    assert run(capsys, "show", path, "--epoch", "1") == (0, lines, "")


def test_show_little(tmp_path: Path, capsys: Captured) -> None:
    path = write(tmp_path / "a\n", [], {})
    lines = [f"ledger     {path[:-1]}\\n", "run        -", "epochs     0", "steps      0", "samples    0"]
    assert run(capsys, "show", path) == (0, lines, "")
    write(Path(path), steps((4, 0)), {})
    code, lines, err = run(capsys, "show", path)
    lines_wanted = ["epochs     1: 4", "steps      1: epoch 4 step 0 to epoch 4 step 0"]
    assert (code, lines[2:4], err) == (0, lines_wanted, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "required: ACTION"),
        ("sort", "invalid choice: 'sort'"),
        ("diff", "required: A, B"),
        ("diff A", "required: B"),
        ("diff A A A", "unrecognized arguments: {folder}/A"),
        ("diff A none", "{folder}/none: No such file or directory"),
        ("diff A text", "'{folder}/text' is not a ledger: it begins with b'text'"),
        ("diff A other", "cannot be compared: rank is 0 and 5"),
        ("diff '' A", ": No such file or directory"),
        ("show", "required: FILE"),
        ("show A --epo 1", "unrecognized arguments: --epo 1"),
        ("show A --epoch x", "argument --epoch: invalid int value: 'x'"),
        ("show A --epoch 2", "contains no step of epoch 2; it contains epochs 0 to 1"),
        ("show A --epoch -1", "contains no step of epoch -1"),
        ("show nothing --epoch 0", "contains no step of epoch 0; it contains no step at all"),
        ("show folder", "'{folder}/folder' is not a regular file, so it cannot be a ledger"),
        ("show text", "is not a ledger"),
    ],
)
def test_wrong_arguments(arguments: str, words: str, tmp_path: Path, capsys: Captured) -> None:
    write(tmp_path / "A", TEN)
    write(tmp_path / "other", TEN, {**RUN, "rank": 5})
    write(tmp_path / "nothing", [])
    (tmp_path / "text").write_text("text")
    (tmp_path / "folder").mkdir()
    names = ("A", "none", "text", "other", "nothing", "folder")
    given = [str(tmp_path / word) if word in names else word for word in shlex.split(arguments)]
    code, lines, err = run(capsys, *given)
    assert (code, lines, err.count("\n")) == (2, [], 1)
    assert err.startswith("penstock") and words.format(folder=tmp_path) in err


@pytest.mark.parametrize(("action", "words"), [([], "diverged"), (["diff"], "Exit code 0"), (["show"], "--epoch")])
def test_help(action: list[str], words: str, capsys: Captured) -> None:
    code, lines, err = run(capsys, *action, "--help")
    assert (code, err) == (0, "") and words in "\n".join(lines)


def test_a_loader_that_is_gone_holds_neither_its_ledger_nor_its_dataset(tmp_path: Path) -> None:
    """Without the garbage collector: a cycle would keep both."""
    dataset = Made(size=8)
    gone = weakref.ref(dataset)
    gc.disable()
    try:
        for _ in range(2):  # the second one opens the same ledger
            loader: Any = penstock.DataLoader(dataset, 4, seed=1, ledger=tmp_path / "ledger")
            assert len(list(loader)) == 2
            loader.state_dict()
            del loader
        del dataset
        assert gone() is None
    finally:
        gc.enable()
