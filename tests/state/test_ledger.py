"""Ledgers: what loaders write is read, whatever ends the writer; and two of them tell where their runs diverged."""

from __future__ import annotations

import errno
import fcntl
import gc
import hashlib
import json
import os
import random
import shlex
import signal
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import penstock
from penstock.cli import main
from penstock.errors import InvalidOption
from tests.commands import assert_equal_ledgers, command
from tests.data import Made
from tests.forking import assert_ended_well, begin_in_child
from tests.python_processes import Program
from tests.values import taken
from tests.waiting import wait_until

Captured = pytest.CaptureFixture[str]
Step = tuple[int, int, tuple[str, ...]]  # epoch, step, IDs

RUN = {"seed": 7, "rank": 0, "world": 2, "batch_size": 4}


def hash_of(ids: Iterable[str]) -> str:
    return hashlib.blake2b(json.dumps(list(ids)).encode(), digest_size=8).hexdigest()


def lines_of(given: Iterable[Step]) -> list[str]:
    """Return the lines that a ledger of these steps holds, by the definition."""
    return [f"{epoch} {step} {len(ids)} {hash_of(ids)}" for epoch, step, ids in given]


def steps(*places: tuple[int, int]) -> list[Step]:
    return [(epoch, step, (f"{epoch}/{step}", str(epoch + step))) for epoch, step in places]


def write(path: Path, given: Iterable[Step], run: dict[str, Any] = RUN) -> str:
    """Write steps to a ledger, as a run does that begins it or goes on with it."""
    with path.open("a") as file:
        if not file.tell():
            file.write(f"penstock-ledger 2 {json.dumps(run, sort_keys=True)}\n")
        file.writelines(f"{line}\n" for line in lines_of(given))
    return str(path)


TEN = steps(*((epoch, step) for epoch in (0, 1) for step in range(5)))
IDS = tuple(f"n{number}" for number in range(10))
#: What a loader gives in two epochs.
GIVEN: list[Step] = [(epoch, step, (f"n{2 * step}", f"n{2 * step + 1}")) for epoch in (0, 1) for step in range(5)]


def loader(path: Path, ids: Iterable[str] = IDS, **options: Any) -> Any:
    names = list(ids)
    dataset: Any = Made(size=len(names))
    dataset.ids = names
    return penstock.DataLoader(dataset, **{"batch_size": 2, "seed": 7, "num_workers": 0, "ledger": path, **options})


def epochs(loader: Any) -> Iterator[Any]:
    """Yield the batches of one epoch after the other."""
    while True:
        yield from loader


def written(path: Path) -> list[str]:
    """Return the lines of a ledger behind its first."""
    return path.read_text().splitlines()[1:]


def test_what_is_handed_out_is_written_at_once(tmp_path: Path) -> None:
    made = loader(tmp_path / "a")
    for number, _ in enumerate(islice(epochs(made), 10), 1):
        assert written(tmp_path / "a") == lines_of(GIVEN)[:number]
    header = json.loads((tmp_path / "a").read_text().splitlines()[0].split(" ", 2)[2])
    assert (header["seed"], header["rank"], header["world"], header["batch_size"]) == (7, 0, 1, 2)


NAMES = st.text(st.characters(codec=None), max_size=4) | st.sampled_from(["", "\0", "a\0b", "\ud800", "1", "é", '","'])


@given(st.lists(NAMES, min_size=1, max_size=4))
@settings(deadline=None)
def test_ids_are_told_apart(ids: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        list(loader(Path(folder, "a"), ids, batch_size=4))
        assert written(Path(folder, "a")) == [f"0 0 {len(ids)} {hash_of(ids)}"]


@pytest.mark.parametrize("seed", range(12))
def test_any_history(seed: int, tmp_path: Path) -> None:
    """Runs stop anywhere, go back to a state, and tear the line that they write: the end is that of one run."""
    draw, path, at, abandoned, back = random.Random(seed), tmp_path / "a", 0, 0, 0
    whole = loader(tmp_path / "whole")
    states = [whole.state_dict()]
    for _ in range(2):
        states += [whole.state_dict() for _ in whole]
    while at < 10:
        made, begin = loader(path), draw.randrange(at + 1)
        abandoned, back = abandoned + at - begin, back + (begin < at)
        made.load_state_dict(states[begin])
        at = min(10, begin + draw.randrange(1, 5))
        taken(epochs(made), at - begin)
        del made
        gc.collect()
        if draw.random() < 0.5:
            with path.open("ab") as file:
                file.write(b"0 17 4 ")
            assert "torn       7 bytes" in command("ledger", "show", path)
        shown = command("ledger", "show", path)
        times = "once" if back == 1 else f"{back} times"
        assert ("resumed" in shown) is bool(abandoned)
        assert not abandoned or f"resumed    {times}, {abandoned} step{'s' * (abandoned > 1)} abandoned" in shown
    assert_equal_ledgers(path, tmp_path / "whole")


def test_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    list(loader(path))
    before = path.read_bytes()
    with pytest.raises(InvalidOption) as caught:
        iter(loader(path, seed=8, batch_size=4))
    assert str(caught.value) == (
        f"'{path}' is the ledger of another run: batch_size is 2 there, and 4 here; seed is 7 there, and 8 here. "
        "Name another file"
    )
    assert path.read_bytes() == before
    list(loader(path))  # its lock is given back
    assert written(path) == lines_of(GIVEN[:5]) * 2


def test_places_where_no_ledger_can_be(tmp_path: Path) -> None:
    """tests/state/test_state.py has folders, and files in none."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidOption, match="not a regular file, so it cannot be a ledger"):
        iter(loader(tmp_path / "pipe"))
    assert "not a regular file" in fails("show", tmp_path / "pipe")
    assert "No such file" in fails("show", tmp_path / "none" / "a")


def fails(*arguments: str | Path) -> str:
    """Return the error of a command."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile("w+") as file:
        patch.setattr("sys.stderr", file)
        assert main(["ledger", *map(str, arguments)]) == 2
        file.seek(0)
        return file.read()


def test_two_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.state.ledger.LOCK_SECONDS", 0.0)
    first = loader(tmp_path / "a")
    batches = iter(first)
    next(batches)
    with pytest.raises(InvalidOption, match="written by another process, or open in this one; give each rank"):
        iter(loader(tmp_path / "a"))
    assert len(list(batches)) == 4 and written(tmp_path / "a") == lines_of(GIVEN[:5])


def test_no_locks_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    list(loader(tmp_path / "a"))
    assert written(tmp_path / "a") == lines_of(GIVEN[:5])


def test_a_forked_child_cannot_write_and_holds_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "a"
    reader, writer = os.pipe()
    parents = [loader(path)]
    batches = iter(parents[0])
    next(batches)

    def check() -> None:
        os.close(writer)
        with pytest.raises(InvalidOption, match="only the process that opened it may write it"):
            next(iter(parents[0]))
        os.read(reader, 1)  # lives until the parent is done

    child = begin_in_child(check)
    next(batches)
    del batches, parents[0]
    gc.collect()
    list(loader(path))  # while the child is alive
    for end in (writer, reader):
        os.close(end)
    assert_ended_well(child)
    assert written(path) == lines_of([*GIVEN[:2], *GIVEN[:5]])


@pytest.mark.parametrize("zeros", [0, 4096])
def test_torn_at_every_byte(zeros: int, tmp_path: Path) -> None:
    """Whatever part of the file there is, the next run goes on with it, and the end is as if nothing had been.

    A loss of power leaves zeros behind that part.
    """
    begun = loader(tmp_path / "whole")
    states = [begun.state_dict(), *(begun.state_dict() for _ in begun)]
    whole = (tmp_path / "whole").read_bytes()
    header, path = whole.index(b"\n") + 1, tmp_path / "a"
    for size in [*range(0, header, 16), *range(header, len(whole))]:
        path.write_bytes(whole[:size] + bytes(zeros))
        kept = whole[header:size].count(b"\n")
        if size < header:
            assert "is not a ledger" in fails("show", path)
            path.write_bytes(whole[:size])
        elif torn := size - whole.rindex(b"\n", 0, size) - 1 + zeros:
            assert f"torn       {torn:,} byte" in command("ledger", "show", path)
        again = loader(path)
        again.load_state_dict(states[kept])
        list(again)
        del again
        assert path.read_bytes() == whole


def test_files_that_are_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "a"
    step = b"0 0 4 0123456789abcdef\n"
    for content, words in (
        (b"", "is not a ledger: it is empty"),
        (b'{"id": "a"}\n', 'is not a ledger: it begins with b\'{"id"'),
        (b"penstock-ledger 1 00000000 {}\n", "of format 1, and this Penstock reads format 2; read it with the version"),
        (b"penstock-ledger 2 {\n", "first line of this ledger is damaged"),
        (b"penstock-ledger 2\n", "is not a ledger"),
        (b"penstock-ledger 2 {}\n" + step + b"0 1 4 0123456789abcdeg\n" + step, "damaged: line 3 of 4 is not a step"),
        (b"penstock-ledger 2 {}\n0 -1 4 0123456789abcdef\n", "line 2 of 2 is not a step; remove the line"),
        (b"penstock-ledger 2 {}\n" + bytes(4096) + b"\n", "line 2 of 2 is not a step"),
    ):
        path.write_bytes(content)
        assert words in (said := fails("show", path)) and str(path) in said
        if content:
            with pytest.raises(InvalidOption):
                iter(loader(path))
        assert path.read_bytes() == content


WRITER = """
import sys, penstock
loader = penstock.DataLoader(range(1_000_000), 1, seed=7, num_workers=0, ledger=sys.argv[1])
for epoch in range(100):
    for _ in loader: pass
"""


def test_killed_while_writing(tmp_path: Path) -> None:
    """Killed again and again: the file is readable, and the next run goes on behind the last whole line."""
    path = tmp_path / "a"
    for more in (1, 50, 400):
        with Program(WRITER, path) as process:
            wait_until(lambda: path.exists() and b"\n" in path.read_bytes())
            size = path.stat().st_size + more * 30
            wait_until(lambda size=size: path.stat().st_size > size)  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
        steps = int(command("ledger", "show", path).split("steps      ")[1].split(":")[0].replace(",", ""))
        assert steps >= more
        lines = [line for line in path.read_text().splitlines()[1:] if line.count(" ") == 3 and len(line) > 20]
        for line in lines[-steps:-1]:
            step = int(line.split()[1])
            assert line == f"0 {step} 1 {hash_of([str(step)])}"


def test_compare_looks_at_what_is_left_of_a_resumed_run(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", TEN), write(tmp_path / "two", TEN[:4])
    write(Path(two), [(0, 4, ("another",)), (1, 0, ("branch",))])
    assert command("ledger", "diff", one, two, code=1).startswith("diverged at epoch 0 step 4, after 4 steps")
    write(Path(two), TEN[4:])
    assert command("ledger", "diff", one, two).startswith("equal: 10 steps")


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
    both = write(tmp_path / "one", TEN), write(tmp_path / "other", line, facts)
    assert words in (said := fails("diff", *both)) and "cannot be compared: " in said
    assert "cannot be compared: " in fails("diff", *reversed(both))


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
        f"  {a}: 2 samples, hash {hash_of(TEN[6][2])}",
        f"  {b}: 3 samples, hash {hash_of('xyz')}",
        f'host: not said in {a}, "b" in {b}',
        f"seed: 7 in {a}, 8 in {b}",
    ]
    assert run(capsys, "diff", a, b) == (1, lines, "")
    assert run(capsys, "diff", a, last)[1][2] == f"  {last}: 1 sample, hash {hash_of('x')}"


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
    last = hash_of(map(str, range(2000)))
    lines = [
        f"ledger     {path}", "run        batch_size 4, rank 0, seed 7, world 2", "epochs     2: 0 to 1",
        "steps      9: epoch 0 step 0 to epoch 1 step 3", "samples    2,016", f"hash       {last} of the last step",
        "resumed    once, 2 steps abandoned", "torn       4 bytes of a line that was not finished",
    ]  # fmt: skip
    assert run(capsys, "show", path) == (0, lines, "")
    hashes = [f"   {step}        2  {hash_of(TEN[5 + step][2])}" for step in range(3)]
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
        ("diff", "required: A, B"),
        ("diff A", "required: B"),
        ("diff A none", "{folder}/none: No such file or directory"),
        ("diff A text", "'{folder}/text' is not a ledger: it begins with b'text'"),
        ("diff A other", "cannot be compared: rank is 0 and 5"),
        ("diff '' A", ": No such file or directory"),
        ("show", "required: FILE"),
        ("show A --epoch x", "argument --epoch: 'x' is not a whole number of 0 or more"),
        ("show A --epoch 2", "contains no step of epoch 2; it contains epochs 0 to 1"),
        ("show A --epoch -1", "argument --epoch: '-1' is not a whole number of 0 or more"),
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
