"""Ledgers: what is written is read, whatever ends the writer; and two of them tell where their runs parted."""

from __future__ import annotations

import copy
import errno
import fcntl
import gc
import hashlib
import os
import pickle
import signal
import struct
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.cli import main
from penstock.errors import InvalidOption
from penstock.state.ledger import Comparison, Ledger, Record, Verdict, compare, ids_bytes, read, records, writing
from tests.python_processes import Program
from tests.sample_datasets import Made
from tests.waiting import wait_until

Captured = pytest.CaptureFixture[str]
Step = tuple[int, int, bytes]  # epoch, step, IDs

RUN = {"seed": 7, "rank": 0, "world": 2, "batch_size": 4}
RECORD = 24


def ids(*names: str | int) -> bytes:
    return ids_bytes(names)


def steps(*places: tuple[int, int]) -> list[Step]:
    return [(epoch, step, ids(f"{epoch}/{step}", epoch + step)) for epoch, step in places]


def write(path: Path, given: Iterable[Step], run: dict[str, Any] = RUN) -> str:
    with Ledger(path, run=run) as ledger:
        for step in given:
            ledger.append(*step)
    return str(path)


def chained(given: Iterable[Step], chain: bytes = bytes(8)) -> list[Record]:
    """Return the records that a ledger of these steps holds, by the definition."""
    found = []
    for epoch, step, data in given:
        link = chain + struct.pack("<II", epoch, step) + data
        chain = hashlib.blake2b(link, digest_size=8, person=b"penstock ledger").digest()
        found.append(Record(epoch, step, int.from_bytes(data[:4], "little"), chain))
    return found


TEN = steps(*((epoch, step) for epoch in (0, 1) for step in range(5)))


# --- IDs as bytes ------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(codec=None), max_size=4) | st.sampled_from(["", "\0", "a\0b", "\ud800", "1", "é"])
IDS = st.lists(NAMES | st.integers(-3, 3) | st.sampled_from([2**63 - 1, 2**63, 2**64, -(2**63)]), max_size=4)


@given(IDS, IDS)
@settings(deadline=None)
def test_ids_are_told_apart(one: list[str | int], two: list[str | int]) -> None:
    assert (ids_bytes(one) == ids_bytes(two)) == (one == two)
    assert ids_bytes(one)[:4] == len(one).to_bytes(4, "little")


def test_ids_that_could_be_taken_for_others() -> None:
    alike: list[Sequence[str | int]] = [
        [], [""], ["", ""], ["\0"], ["\0", ""], ["", "\0"], ["a\0", "b"], ["a", "\0b"], ["a", "b"], ["a\0b"], ["ab"],
        [1], ["1"], [1, "1"], ["1", 1], [1, 2**64], [2**64, 1], [2**63], [12], [1, 2],
    ]  # fmt: skip
    assert len({ids_bytes(names) for names in alike}) == len(alike)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.uint64, ">i4"])
def test_integers_of_any_type_are_equal(kind: Any) -> None:
    numbers = [3, 1, 2]
    array = np.array(numbers, kind)
    assert (
        ids_bytes(array)
        == ids_bytes(numbers)
        == ids_bytes(tuple(array))
        == ids_bytes(range(3, 0, -1))[:5] + (struct.pack("<3q", *numbers))
    )
    large = [2**64 - 1, 1]
    assert ids_bytes(np.array(large, np.uint64)) == ids_bytes(large)


@pytest.mark.parametrize("wrong", [[1.5], [None], ["a", b"b"], [1, "a", 2.0], [[1], [2]], [(1,), (1, 2)], [b"a"]])
def test_what_is_no_id(wrong: list[Any]) -> None:
    with pytest.raises(InvalidOption, match=r"is no ID of a sample: it is of type \w+; give str or int"):
        ids_bytes(wrong)


# --- written and read --------------------------------------------------------------------------------------------


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with Ledger(path, run=RUN) as ledger:
        for number, step in enumerate(TEN):
            ledger.append(*step)
            assert list(read(path)) == chained(TEN)[: number + 1]  # at once, while it is in use
            assert ledger.chain == chained(TEN)[number].chain
        assert repr(ledger) == (
            f"Ledger('{path}', open, at epoch 1 step 4, {path.stat().st_size:,} bytes, chain {ledger.chain.hex()})"
        )
    file = read(path)
    assert (dict(file.run), len(file), file.last, file.marks, file.torn) == (RUN, 10, chained(TEN)[-1], 0, 0)
    assert path.stat().st_size == path.read_bytes().index(b"\n") + 1 + 10 * RECORD
    assert "closed" in repr(ledger)
    ledger.close()


def test_a_ledger_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for step in TEN:
        write(path, [step])
    assert list(read(path)) == chained(TEN)


def test_numpy_integers_and_large_ones(tmp_path: Path) -> None:
    places: list[Any] = [(np.int32(0), np.uint8(1)), (np.int32(1), np.int64(0)), (2**32 - 2, 2**32 - 3)]
    given = [(epoch, step, ids(1)) for epoch, step in places]
    assert list(read(write(tmp_path / "a", given))) == chained(given)


EVENT = (
    st.tuples(st.just("append"), st.integers(0, 2), st.integers(0, 3), st.integers(0, 1))
    | st.tuples(st.just("rewind"), st.integers(0, 2), st.integers(-1, 3), st.just(0))
    | st.tuples(st.sampled_from(["reopen", "tear"]), st.just(0), st.just(0), st.just(0))
)


@given(st.lists(EVENT, max_size=25))
@settings(deadline=None, max_examples=150)
def test_any_history(events: list[tuple[str, int, int, int]]) -> None:
    """Against a list: the surviving line, the chain, and what was abandoned."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        ledger = Ledger(path, run=RUN)
        line: list[Step] = []
        stands, abandoned = (0, -1), 0
        for what, epoch, step, name in events:
            if what == "append" and (epoch, step) > stands:
                line.append((epoch, step, ids(name)))
                ledger.append(*line[-1])
                stands = epoch, step
            elif what == "append":
                with pytest.raises(InvalidOption, match=f"epoch {epoch} step {step} does not follow .*rewind"):
                    ledger.append(epoch, step, ids(name))
            elif what == "rewind" and stands > (epoch, step):
                ledger.rewind(epoch, step)
                kept = [given for given in line if given[:2] <= (epoch, step)]
                stands, abandoned, line = (epoch, step), abandoned + len(line) - len(kept), kept
            elif what == "rewind":
                size = path.stat().st_size
                ledger.rewind(epoch, step)
                assert path.stat().st_size == size
            else:
                ledger.close()
                if what == "tear":
                    with path.open("ab") as file:
                        file.write(b"torn")
                ledger = Ledger(path, run=RUN)
            file_read = read(path)
            assert list(file_read) == chained(line) and len(file_read.abandoned) == abandoned
            assert ledger.chain == (chained(line)[-1].chain if line else bytes(8))
        ledger.close()


def test_the_abandoned_branch_stays_readable(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a", TEN))
    other = [(1, 2, ids("other")), (1, 3, ids("ones"))]
    with Ledger(path, run=RUN) as ledger:
        ledger.rewind(1, 1, chain=chained(TEN)[6].chain)
        for step in other:
            ledger.append(*step)
    file = read(path)
    assert list(file) == chained(TEN[:7] + other)
    assert list(records(file.abandoned)) == chained(TEN)[7:]
    assert (file.marks, file.continued) == (1, False)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a", TEN))
    before = path.read_bytes()
    with Ledger(path, run=RUN) as ledger:
        for epoch, step in ((1, 1), (1, 4)):
            with pytest.raises(InvalidOption, match=f"at epoch {epoch} step {step}, and the checkpoint 7878"):
                ledger.rewind(epoch, step, chain=b"x" * 8)
        for wrong in ((0, -2, None), (-1, 0, None), (0, 2**32 - 1, None), (0, 0, b"short")):
            with pytest.raises(InvalidOption, match="no position of a ledger"):
                ledger.rewind(wrong[0], wrong[1], chain=wrong[2])
    assert path.read_bytes() == before


def test_wrong_steps_change_nothing(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a", TEN))
    before = path.read_bytes()
    with Ledger(path, run=RUN) as ledger:
        for epoch, step, data, words in (
            (1, 4, ids("a"), "does not follow epoch 1 step 4, where .* stands; tell it by rewind"),
            (0, 9, ids("a"), "does not follow epoch 1 step 4"),
            (-1, 0, ids("a"), "counts both from 0"),
            (2**32, 0, ids("a"), "counts both from 0"),
            (2, 2**32 - 1, ids("a"), "counts both from 0"),
            (2, 0, b"", "ids=b'' are no IDs of samples: give what ids_bytes"),
            (2, 0, b"\xff\xff\xff\xffi", "are no IDs"),
        ):
            with pytest.raises(InvalidOption, match=words):
                ledger.append(epoch, step, data)
    assert path.read_bytes() == before
    with Ledger(tmp_path / "b") as ledger, pytest.raises(TypeError):
        ledger.append(0.5, 0, ids("a"))  # type: ignore[arg-type]


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
    for wrong in ({"seed": float("nan")}, {"seed": object()}, {"seed": "x" * 70_000}):
        with pytest.raises(InvalidOption, match="run="):
            Ledger(tmp_path / "b", run=wrong)
    assert not (tmp_path / "b").exists()
    equal = {"sizes": (1, 2), "fingerprint": "é\n"}
    assert len(read(write(tmp_path / "c", TEN[:1], equal))) == len(read(write(tmp_path / "c", (), equal))) == 1


def test_places_where_no_ledger_can_be(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, error, words in (
        ("none/a", FileNotFoundError, "No such file"),
        ("", IsADirectoryError, "Is a directory"),
        ("pipe", InvalidOption, "no regular file, and so no ledger"),
    ):
        with pytest.raises(error, match=words) as caught:
            Ledger(tmp_path / name)
        assert str(tmp_path) in str(caught.value)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")
    for name in ("", "pipe"):
        with pytest.raises(InvalidOption, match="no regular file"):
            read(tmp_path / name)


# --- one writer --------------------------------------------------------------------------------------------------


def test_two_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "LOCK_SECONDS", 0.0)
    with Ledger(tmp_path / "a", run=RUN) as ledger:
        with pytest.raises(InvalidOption, match="written by another process, or open in this one; give each rank"):
            Ledger(tmp_path / "a", run=RUN)
        ledger.append(*TEN[0])
    assert len(read(write(tmp_path / "a", TEN[1:]))) == 10


def test_no_locks_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert len(read(write(tmp_path / "a", TEN))) == 10


def in_child(task: Callable[[], bool]) -> int:
    child = os.fork()
    if child == 0:
        code = 9
        try:
            code = 0 if task() else 1
        finally:
            os._exit(code)
    return child


def test_a_forked_child_cannot_write_and_holds_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "a"
    reader, writer = os.pipe()
    with Ledger(path, run=RUN) as ledger:
        ledger.append(*TEN[0])

        def task() -> bool:
            os.close(writer)
            try:
                ledger.append(*TEN[1])
            except InvalidOption as error:
                refused = "only the process that opened it may write it" in str(error)
            ledger.close()
            os.read(reader, 1)  # lives until the parent is done
            return refused

        child = in_child(task)
        ledger.append(*TEN[1])
    write(path, TEN[2:])  # while the child is alive
    os.close(writer)
    os.close(reader)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(read(path)) == chained(TEN)


def test_copies_are_closed(tmp_path: Path) -> None:
    with Ledger(tmp_path / "a", run=RUN) as ledger:
        ledger.append(*TEN[0])
        for other in (pickle.loads(pickle.dumps(ledger)), copy.copy(ledger), copy.deepcopy(ledger)):
            assert (dict(other.run), other.chain) == (RUN, ledger.chain)
            for call in (lambda other=other: other.append(*TEN[1]), lambda other=other: other.rewind(0, -1)):
                with pytest.raises(InvalidOption, match="is closed here"):
                    call()
            other.close()
        ledger.append(*TEN[1])
    with pytest.raises(InvalidOption, match="is closed here"):
        ledger.append(*TEN[2])
    assert len(read(tmp_path / "a")) == 2


def test_a_write_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes half a record; the same step goes into the same place when there is room again."""
    real, takes = os.pwrite, [10]

    def pwrite(descriptor: int, data: bytes, at: int) -> int:
        if not takes:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: takes.pop()], at)

    path = tmp_path / "a"
    with Ledger(path, run=RUN) as ledger:
        ledger.append(*TEN[0])
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", pwrite)
            with pytest.raises(OSError, match=r"No space left on device: '.*a'"):
                ledger.append(*TEN[1])
        assert read(path).torn == 10 and list(read(path)) == chained(TEN[:1])
        for step in TEN[1:]:
            ledger.append(*step)
    assert list(read(path)) == chained(TEN)


# --- torn and damaged --------------------------------------------------------------------------------------------


def test_torn_at_every_byte(tmp_path: Path) -> None:
    """Whatever part of the file there is, the next run goes on with it, and the end is as if nothing had been."""
    given = TEN[:3]
    whole = Path(write(tmp_path / "whole", given)).read_bytes()
    header = whole.index(b"\n") + 1
    path = tmp_path / "a"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size < header:
            with pytest.raises(InvalidOption, match="it is empty" if size == 0 else "header has no end"):
                read(path)
        else:
            file = read(path)
            assert list(file) == chained(given)[: (size - header) // RECORD]
            assert file.torn == (size - header) % RECORD
        left = max(0, size - header) // RECORD
        write(path, given[left:])
        assert path.read_bytes() == whole


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    whole = Path(write(tmp_path / "whole", TEN[:3])).read_bytes()
    path = tmp_path / "a"
    for at in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[at] ^= flip
            path.write_bytes(damaged)
            with pytest.raises(InvalidOption, match=r"is no ledger|of format \d+|damaged|header has no end"):
                read(path)
            with pytest.raises(InvalidOption):
                Ledger(path, run=RUN)
            assert path.read_bytes() == damaged


def test_records_that_were_lost_doubled_or_moved(tmp_path: Path) -> None:
    whole = Path(write(tmp_path / "whole", TEN)).read_bytes()
    header = whole.index(b"\n") + 1
    parts = [whole[at : at + RECORD] for at in range(header, len(whole), RECORD)]
    for wrong, record in (
        (parts[:3] + parts[4:], 4),
        (parts[:3] + parts[2:], 4),
        ([*parts[:3], parts[4], parts[3], *parts[5:]], 4),
        (parts[1:], 1),
    ):
        (tmp_path / "a").write_bytes(whole[:header] + b"".join(wrong))
        with pytest.raises(InvalidOption) as caught:
            read(tmp_path / "a")
        sound = record - 1
        assert str(caught.value) == (
            f"'{tmp_path / 'a'}' is damaged: record {record} of {len(wrong)} does not fit its checksum; "
            f"the {sound} before it are sound, and end at byte {header + sound * RECORD}: "
            "cut the file there, or name another"
        )


@pytest.mark.parametrize("sound", [0, 3])
@pytest.mark.parametrize("half", [0, 1, 23])
@pytest.mark.parametrize("zeros", [24, 25, 4096])
def test_zeros_after_a_loss_of_power(sound: int, half: int, zeros: int, tmp_path: Path) -> None:
    whole = Path(write(tmp_path / "whole", TEN)).read_bytes()
    end = whole.index(b"\n") + 1 + sound * RECORD
    path = tmp_path / "a"
    path.write_bytes(whole[: end + half] + bytes(zeros + RECORD))
    assert list(read(path)) == chained(TEN)[:sound]
    write(path, TEN[sound:])
    assert path.read_bytes() == whole


def test_steps_that_do_not_go_on(tmp_path: Path) -> None:
    """A file whose checksums fit, of a writer that was wrong."""
    path = Path(write(tmp_path / "a", TEN[:1]))
    data = path.read_bytes()
    body = struct.pack("<III8s", 0, 0, 2, b"x" * 8)
    path.write_bytes(data + body + struct.pack("<I", zlib.crc32(body, int.from_bytes(data[-4:], "little"))))
    with pytest.raises(InvalidOption, match="damaged: record 2 is of epoch 0 step 0, after epoch 0 step 0"):
        read(path)


def test_files_that_are_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for content, words in (
        (b"", "is no ledger: it is empty"),
        (b'{"id": "a"}\n', r"is no ledger: it begins with b'\{\"id\""),
        (b"penstock-ledger 2 00000000 {}\n", "of format 2, and this Penstock reads format 1; read it with the version"),
        (b"penstock-ledger 1 00000000 {}\n", "header of this ledger is damaged"),
        (b"penstock-ledger 1\n", "header of this ledger is damaged"),
        (b"penstock-ledger 1 " + b"x" * (1 << 16) + b"\n", "header of this ledger is damaged"),
        (b"penstock-ledger 1 0000", "its header has no end"),
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
from penstock.state.ledger import Ledger, ids_bytes, read
ledger = Ledger(sys.argv[1], run={"seed": 7})
last = read(sys.argv[1]).last
print("open", flush=True)
for step in itertools.count(0 if last is None else last.step + 1):
    ledger.append(0, step, ids_bytes([step, f"name {step}"]))
"""


def _is_longer(path: Path, size: int) -> bool:
    return path.stat().st_size > size


def test_killed_while_writing(tmp_path: Path) -> None:
    """Killed again and again: the file is readable, and the next run goes on behind the last whole record."""
    path = tmp_path / "a"
    for more in (1, 50, 400):
        with Program(WRITER, path) as process:
            assert process.stdout.readline() == "open\n"
            enough = path.stat().st_size + more * RECORD
            wait_until(partial(_is_longer, path, enough))
            process.send_signal(signal.SIGKILL)
        file = read(path)
        assert list(file) == chained((0, step, ids(step, f"name {step}")) for step in range(len(file)))
        assert len(file) >= more


# --- where two runs parted ---------------------------------------------------------------------------------------


def compared(tmp_path: Path, one: Iterable[Step], two: Iterable[Step], run: dict[str, Any] = RUN) -> Comparison:
    paths = []
    for name, line in (("one", one), ("two", two)):
        (tmp_path / name).unlink(missing_ok=True)
        paths.append(write(tmp_path / name, line, run))
    return compare(read(paths[0]), read(paths[1]))


def parted(one: list[Step], two: list[Step]) -> tuple[Verdict, int]:
    """Return what compare() should find, by walking along both."""
    equal = 0
    while equal < min(len(one), len(two)) and one[equal] == two[equal]:
        equal += 1
    ends = equal == len(one), equal == len(two)
    names = {(True, True): "EQUAL", (True, False): "A_ENDS_FIRST", (False, True): "B_ENDS_FIRST"}
    return Verdict[names.get(ends, "PARTED")], equal


PLACES = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=9).map(lambda places: {(0, 0), *places})
CHANGES = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=2)


@given(PLACES, PLACES, CHANGES, st.booleans())
@settings(deadline=None, max_examples=150)
def test_compare(places: set[Any], others: set[Any], changed: set[Any], same: bool) -> None:
    one = steps(*sorted(places))
    two = [
        (epoch, step, ids("other") if (epoch, step) in changed else data)
        for epoch, step, data in (one if same else steps(*sorted(others)))
    ]
    with tempfile.TemporaryDirectory() as folder:
        found = compared(Path(folder), one, two)
        verdict, equal = parted(one, two)
        assert (found.verdict, found.equal, found.since, found.facts) == (verdict, equal, None, ())
        nexts = chained(one)[equal : equal + 1] + chained(two)[equal : equal + 1]
        assert found.at == min((record[:2] for record in nexts), default=None)
        of_one, of_two = ({record[:2]: record for record in chained(line)} for line in (one, two))
        assert (found.a, found.b) == (
            (None, None) if found.at is None else (of_one.get(found.at), of_two.get(found.at))
        )


def test_compare_looks_at_the_surviving_line(tmp_path: Path) -> None:
    one, two = Path(write(tmp_path / "one", TEN)), Path(write(tmp_path / "two", TEN[:4]))
    with Ledger(two, run=RUN) as ledger:
        ledger.append(0, 4, ids("another"))
        ledger.append(1, 0, ids("branch"))
        assert compare(read(one), read(two)).at == (0, 4)
        ledger.rewind(0, 3)
        for step in TEN[4:]:
            ledger.append(*step)
    found = compare(read(one), read(two))
    assert (found.verdict, found.equal) == (Verdict.EQUAL, 10)


def test_compare_where_the_second_begins_later(tmp_path: Path) -> None:
    """A run that was resumed with a new file, with the chain of the checkpoint."""
    one, chain = write(tmp_path / "one", TEN), chained(TEN)[5].chain
    with Ledger(tmp_path / "two", run=RUN) as ledger:
        ledger.rewind(1, 0, chain=chain)
        for step in TEN[6:]:
            ledger.append(*step)
        ledger.rewind(1, 1)
        ledger.rewind(1, 0)
        ledger.append(*TEN[6])
    assert read(tmp_path / "two").continued
    for a, b, verdict in ((one, tmp_path / "two", Verdict.B_ENDS_FIRST), (tmp_path / "two", one, Verdict.A_ENDS_FIRST)):
        found = compare(read(a), read(b))
        assert (found.verdict, found.equal, found.at, found.since) == (verdict, 1, (1, 2), (1, 1))
        longer, shorter = (found.a, found.b) if a == one else (found.b, found.a)
        assert (longer, shorter) == (chained(TEN)[7], None)
    with Ledger(tmp_path / "three", run=RUN) as ledger:
        ledger.rewind(1, 0, chain=b"another!")
        ledger.append(*TEN[6])
    found = compare(read(one), read(tmp_path / "three"))
    assert (found.verdict, found.equal, found.at, found.since) == (Verdict.PARTED, 0, (1, 1), (1, 1))


def test_steps_that_were_lost_part_nobody(tmp_path: Path) -> None:
    """The chain of a checkpoint leads over steps that a ledger lost; without it they are where the runs part."""
    one = write(tmp_path / "one", TEN)
    for chain, verdict, at in ((chained(TEN)[5].chain, Verdict.EQUAL, None), (None, Verdict.PARTED, (0, 3))):
        two = tmp_path / f"two {at}"
        write(two, TEN[:3])
        with Ledger(two, run=RUN) as ledger:
            ledger.rewind(1, 0, chain=chain)
            for step in TEN[6:]:
                ledger.append(*step)
        found = compare(read(one), read(two))
        assert (found.verdict, found.at) == (verdict, at)


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    one = read(write(tmp_path / "one", TEN))
    for number, (line, facts, words) in enumerate(
        (
            (TEN, {**RUN, "rank": 1}, "rank is 0 and 1, so that their steps hold other samples"),
            (TEN, {**RUN, "batch_size": 8}, "batch_size is 4 and 8"),
            (TEN, {"seed": 7, "rank": 0, "batch_size": 4}, "world is 2 and not said"),
            (TEN[1:], RUN, r"begins at epoch 0 step 1, and its chain does not cover"),
        )
    ):
        other = read(write(tmp_path / str(number), line, facts))
        for a, b in ((one, other), (other, one)):
            with pytest.raises(InvalidOption, match="cannot be compared: "):
                compare(a, b)
        with pytest.raises(InvalidOption, match=words):
            compare(one, other)
    with Ledger(tmp_path / "later", run=RUN) as ledger:
        ledger.rewind(1, 9, chain=b"12345678")
        ledger.append(2, 0, ids("a"))
    with pytest.raises(InvalidOption, match="no step in common"):
        compare(one, read(tmp_path / "later"))


def test_other_facts_are_told(tmp_path: Path) -> None:
    one = read(write(tmp_path / "one", TEN))
    two = read(write(tmp_path / "two", TEN, {**RUN, "seed": 8, "host": "b"}))
    found = compare(one, two)
    assert (found.verdict, found.facts) == (Verdict.EQUAL, (("host", "not said", '"b"'), ("seed", "7", "8")))


def test_nothing_is_a_prefix_of_anything(tmp_path: Path) -> None:
    for one, two, verdict in (
        ([], [], Verdict.EQUAL),
        ([], TEN[2:], Verdict.A_ENDS_FIRST),
        (TEN[2:], [], Verdict.B_ENDS_FIRST),
    ):
        assert compared(tmp_path, one, two).verdict is verdict


def test_two_million_steps(tmp_path: Path) -> None:
    """Checked, and compared to the one step that differs, which is found by its chain."""
    count, at = 2_000_000, 1_234_567
    table = np.zeros(count, [("epoch", "<u4"), ("step", "<u4"), ("samples", "<u4"), ("chain", "<u8"), ("check", "<u4")])
    table["epoch"], table["step"] = np.divmod(np.arange(count), 1000)
    table["samples"], table["chain"] = 64, np.arange(count)
    files = []
    for name, changed in (("one", 0), ("two", 1)):
        table["chain"][at:] += np.uint64(changed << 40)
        path = Path(write(tmp_path / name, []))
        header = path.read_bytes()
        check, checks, body = zlib.crc32(header), [], table.tobytes()
        for begin in range(0, len(body), RECORD):
            check = zlib.crc32(body[begin : begin + RECORD - 4], check)
            checks.append(check)
        table["check"] = checks
        path.write_bytes(header + table.tobytes())
        files.append(read(path))
    found = compare(*files)
    assert (found.verdict, found.equal, found.at) == (Verdict.PARTED, at, (1234, 567))
    assert len(files[0]) == count and int(files[0].steps["chain"][-1]) == count - 1


# --- the command line --------------------------------------------------------------------------------------------


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
    changed = [*TEN[:6], (1, 1, ids("x", "y", "z")), *TEN[7:]]
    return write(tmp_path / "a", TEN), write(tmp_path / "b", changed, {**RUN, "seed": 8})


def test_diff(two: tuple[str, str], capsys: Captured) -> None:
    a, b = two
    code, lines, err = run(capsys, "diff", a, b)
    record, other = chained(TEN)[6].chain.hex(), list(read(b))[6].chain.hex()
    assert (code, err) == (1, "")
    assert lines == [
        "parted at epoch 1 step 1, after 6 steps in which they are equal",
        f"  {a}: 2 samples, chain {record}",
        f"  {b}: 3 samples, chain {other}",
        f"seed: 7 in {a}, 8 in {b}",
    ]


def test_diff_counts_one_sample_as_one(two: tuple[str, str], tmp_path: Path, capsys: Captured) -> None:
    last = write(tmp_path / "last", [*TEN[:9], (*TEN[9][:2], ids("x"))])
    _, lines, _ = run(capsys, "diff", two[0], last)
    assert lines[2] == f"  {last}: 1 sample, chain {list(read(last))[9].chain.hex()}"


def test_diff_of_equal_ones_and_prefixes(two: tuple[str, str], tmp_path: Path, capsys: Captured) -> None:
    a = two[0]
    assert run(capsys, "diff", a, a) == (0, ["equal: 10 steps, to epoch 1 step 4"], "")
    short = write(tmp_path / "short", TEN[:1])
    line = f"equal as far as {short} goes: 1 step; {a} goes on with epoch 0 step 1"
    assert run(capsys, "diff", a, short) == run(capsys, "diff", short, a) == (0, [line], "")
    nothing = write(tmp_path / "nothing", [])
    assert run(capsys, "diff", nothing, nothing) == (0, ["equal: 0 steps"], "")


def test_diff_where_one_begins_later(two: tuple[str, str], tmp_path: Path, capsys: Captured) -> None:
    for name, chain, first in (
        ("right", chained(TEN)[5].chain, f"equal as far as {tmp_path / 'right'} goes: 1 step; {two[0]} goes on with"),
        ("wrong", b"another!", "parted at or before epoch 1 step 1, after 0 steps in which they are equal"),
    ):
        with Ledger(tmp_path / name, run=RUN) as ledger:
            ledger.rewind(1, 0, chain=chain)
            ledger.append(*TEN[6])
        code, lines, err = run(capsys, "diff", two[0], tmp_path / name)
        assert (code, err) == (int(name == "wrong"), "") and lines[0].startswith(first)
        assert lines[-1] == "compared from epoch 1 step 1, where one of them begins, with the chain of what was before"


def test_show(tmp_path: Path, capsys: Captured) -> None:
    path = write(tmp_path / "a", TEN)
    with Ledger(path, run=RUN) as ledger:
        ledger.rewind(1, 2)
        ledger.append(1, 3, ids(*range(2000)))
    with open(path, "ab") as file:
        file.write(b"torn")
    chain = list(read(path))[-1].chain.hex()
    assert run(capsys, "show", path) == (
        0,
        [
            f"ledger     {path}",
            "run        batch_size 4, rank 0, seed 7, world 2",
            "epochs     2: 0 to 1",
            "steps      9: epoch 0 step 0 to epoch 1 step 3",
            "samples    2,016",
            f"chain      {chain}",
            "resumed    once, 2 steps abandoned",
            "torn       4 bytes of a record that was not finished",
        ],
        "",
    )
    chains = [record.chain.hex() for record in chained(TEN)[5:8]]
    assert run(capsys, "show", path, "--epoch", "1") == (
        0,
        [
            "STEP  SAMPLES  CHAIN",
            f"   0        2  {chains[0]}",
            f"   1        2  {chains[1]}",
            f"   2        2  {chains[2]}",
            f"   3    2,000  {chain}",
        ],
        "",
    )


def test_show_little(tmp_path: Path, capsys: Captured) -> None:
    path = write(tmp_path / "a\n", [], {})
    shown = str(path)[:-1] + r"\n"
    assert run(capsys, "show", path) == (
        0,
        [f"ledger     {shown}", "run        -", "epochs     0", "steps      0", "samples    0"],
        "",
    )
    with Ledger(path) as ledger:
        ledger.rewind(3, 9, chain=b"12345678")
        ledger.append(4, 0, ids("a"))
    code, lines, err = run(capsys, "show", path)
    assert (code, err) == (0, "") and "continues  from the chain 3132333435363738 of an earlier ledger" in lines
    assert lines[2:4] == ["epochs     1: 4", "steps      1: epoch 4 step 0 to epoch 4 step 0"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: ACTION"),
        (["sort"], "invalid choice: 'sort'"),
        (["diff"], "required: A, B"),
        (["diff", "A"], "required: B"),
        (["diff", "A", "A", "A"], "unrecognized arguments: {A}"),
        (["diff", "A", "none"], "{folder}/none: No such file or directory"),
        (["diff", "A", "text"], "'{folder}/text' is no ledger: it begins with b'text'"),
        (["diff", "A", "other"], "cannot be compared: rank is 0 and 5"),
        (["diff", "", "A"], ": No such file or directory"),
        (["show"], "required: FILE"),
        (["show", "A", "--epo", "1"], "unrecognized arguments: --epo 1"),
        (["show", "A", "--epoch", "x"], "argument --epoch: invalid int value: 'x'"),
        (["show", "A", "--epoch", "2"], "holds no step of epoch 2; it holds epochs 0 to 1"),
        (["show", "A", "--epoch", "-1"], "holds no step of epoch -1"),
        (["show", "nothing", "--epoch", "0"], "holds no step of epoch 0; it holds no step at all"),
        (["show", "folder"], "'{folder}/folder' is no regular file, and so no ledger"),
        (["show", "text"], "is no ledger"),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str, tmp_path: Path, capsys: Captured) -> None:
    files = {name: str(tmp_path / name) for name in ("A", "none", "text", "other", "nothing", "folder")}
    write(tmp_path / "A", TEN)
    write(tmp_path / "other", TEN, {**RUN, "rank": 5})
    write(tmp_path / "nothing", [])
    (tmp_path / "text").write_text("text")
    (tmp_path / "folder").mkdir()
    code, lines, err = run(capsys, *(files.get(word, word) for word in arguments))
    assert (code, lines, err.count("\n")) == (2, [], 1)
    assert err.startswith("penstock") and words.format(A=files["A"], folder=tmp_path) in err


def test_help(capsys: Captured) -> None:
    for arguments, words in (
        (["--help"], "parted"),
        (["diff", "--help"], "Exit code 0"),
        (["show", "--help"], "--epoch"),
    ):
        code, lines, err = run(capsys, *arguments)
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
