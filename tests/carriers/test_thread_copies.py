"""Threads have copies of the dataset: what a dataset keeps while it reads a sample is one thread's own."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import multiprocessing
import sqlite3
import tarfile
import threading
import warnings
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from penstock.carriers.auto import Choice
from penstock.settings import Method
from penstock.workers.copies import MANY, SCRATCH_BYTES, NotCopied, copied
from tests import python_processes
from tests.data import Made, Opening
from tests.resources import collect
from tests.same import assert_same
from tests.values import flat, listed, taken

THREADS: dict[str, Any] = {"num_workers": 3, "worker_method": "thread"}
NUMBERS = list(range(48))


def in_threads(dataset: Any, batch_size: int = 12, **options: Any) -> Any:
    return penstock.DataLoader(dataset, batch_size, **{**THREADS, **options})


def auto(dataset: Any, **options: Any) -> Any:
    return penstock.DataLoader(dataset, 12, worker_method="auto", **{"num_workers": 2, **options})


class Sized(tud.Dataset[Any]):
    def __len__(self) -> int:
        return 48


class Meeting:
    """Lets two threads each be in the middle of a sample at once, as often as they come in pairs; data of a module."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)

    def __call__(self) -> None:
        try:
            self.barrier.wait(0.02)
        except threading.BrokenBarrierError:
            self.barrier.reset()


meet = Meeting()


def between() -> None:
    meet()  # found by its name: all threads use it


class Randomizable:
    """As MONAI's: randomize() draws into attributes that the call uses."""

    def __init__(self) -> None:
        self.R = np.random.RandomState(0)

    def randomize(self) -> None:
        self._do_transform = bool(self.R.rand() < 0.5)

    def __call__(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.randomize()
        flipped = {}
        for name, value in data.items():
            flipped[name] = value.flip(0) if self._do_transform else value
            between()
        return flipped


class Dicts(Sized):
    def __init__(self) -> None:
        self.flips = Randomizable()
        self.transform = v1.Compose([v1.Lambda(self.flips)])

    def __getitem__(self, index: int) -> Any:
        value = torch.arange(4) + index
        return self.transform({"image": value, "mask": value})


class Scratch(Sized):
    def __init__(self) -> None:
        self.room = np.zeros(8, dtype=np.int64)
        self.tensor = torch.from_numpy(self.room)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.room[:4] = index
        between()
        self.room[4:] = index
        return self.tensor.clone()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_file_that_is_opened_at_the_first_sample_is_each_threads_own(tmp_path: Path) -> None:
    dataset = Opening(tmp_path / "numbers", 48, between)
    assert flat(in_threads(dataset, 6)) == NUMBERS and dataset.file is None


def test_what_a_random_transform_has_drawn_is_each_threads_own() -> None:
    dataset = Dicts()
    before = str(dataset.flips.R.get_state())
    for batch in in_threads(dataset, 6):
        assert torch.equal(batch["image"], batch["mask"])
    assert str(dataset.flips.R.get_state()) == before


def test_memory_that_samples_are_made_in_is_each_threads_own() -> None:
    assert torch.equal(torch.cat(list(in_threads(Scratch(), 6))), torch.arange(48)[:, None].expand(48, 8))


class Holding(Sized):
    def __init__(self, held: Any) -> None:
        self.parts = [{"held": held}]

    def __getitem__(self, index: int) -> int:
        return index


class H5LikeFile:
    """As h5py's and lmdb's objects: neither pickle nor copy takes them."""

    def __reduce__(self) -> Any:
        raise TypeError("h5py objects cannot be pickled")


HANDLES: dict[str, Callable[[Path], Any]] = {
    "file": lambda path: (path / "file").open("wb"),
    "tar": lambda path: tarfile.TarFile(path / "tar", "w"),
    "sqlite": lambda path: sqlite3.connect(path / "db"),
    "hdf5": lambda path: H5LikeFile(),
    "generator": lambda path: (number for number in range(3)),
    "lock": lambda path: threading.Lock(),
    "event": lambda path: threading.Event(),
}


@pytest.mark.filterwarnings("ignore:.* share with each other:UserWarning")
@pytest.mark.parametrize("name", HANDLES)
def test_what_cannot_be_copied_is_said_and_goes_to_processes(name: str, tmp_path: Path) -> None:
    held = HANDLES[name](tmp_path)
    with contextlib.closing(held) if hasattr(held, "close") else contextlib.nullcontext():
        dataset = Holding(held)
        loader = in_threads(dataset)
        with pytest.raises(penstock.InvalidOption, match=r"Holding\.parts\[0\]\['held'\].*share_dataset=True"):
            iter(loader)
        assert "refused  worker_method='thread' gives each thread a copy" in loader.explain()
        assert flat(in_threads(dataset, share_dataset=True)) == flat(trying := auto(dataset)) == NUMBERS
        assert "chosen   processes: Holding.parts[0]['held']" in trying.explain()


@pytest.fixture
def threads_chosen(monkeypatch):
    chosen = Choice(Method.THREAD, "threads: for the test")
    monkeypatch.setattr("penstock.carriers.auto.try_out", lambda *given, **more: chosen)


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr("penstock.carriers.auto.LIMIT_SECONDS", 60.0)  # of a busy machine


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_auto_goes_to_processes_once_the_loop_has_opened_a_file(tmp_path: Path, threads_chosen: None) -> None:
    dataset = Opening(tmp_path / "numbers", 48, between)
    loader = auto(dataset, num_workers=1)
    torch.manual_seed(0)
    assert "Python, " in repr(iter(loader))
    drawn = torch.get_rng_state()
    assert dataset[3] == 3
    torch.manual_seed(0)
    assert flat(loader) == NUMBERS and torch.equal(torch.get_rng_state(), drawn)
    assert "chosen   processes: Opening.file, of type _io.FileIO" in loader.explain()


def test_a_state_that_leaves_out_what_cannot_be_copied_is_enough() -> None:
    class Reopening(Holding):
        def __getstate__(self) -> dict[str, Any]:
            return {**self.__dict__, "parts": None}

    assert len(list(in_threads(Reopening(threading.Lock())))) == 4


class Counted(Sized):
    count = 0

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return self.count


@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_dataset_counts_stays_in_its_copy(persistent: bool) -> None:
    dataset = Counted()
    ours = in_threads(dataset, num_workers=1, persistent_workers=persistent)
    for number in range(2):
        assert max(flat(ours)) == 48 * (1 + persistent * number)  # as torch's
    assert dataset.count == 0
    if persistent:
        ours._iterator._shutdown_workers()


@pytest.mark.parametrize("method", ["thread", "process"])
def test_a_pass_sees_the_dataset_as_it_was_at_its_first_batch(method: str) -> None:
    class Offset(Sized):
        offset = 1000

        def __getitem__(self, index: int) -> int:
            return index + self.offset

    dataset = Offset()
    batches = iter(in_threads(dataset, num_workers=1, worker_method=method))
    dataset.offset = 2000
    first = next(batches)
    dataset.offset = 0
    assert flat([first, *batches]) == list(range(2000, 2048))


def test_worker_init_fn_prepares_the_threads_own_dataset() -> None:
    class Prepared(Sized):
        offset = -1

        def __getitem__(self, index: int) -> tuple[int, bool]:
            info: Any = tud.get_worker_info()
            return self.offset, info.dataset is self and self.offset == 1000 * info.id

    def prepare(number: int) -> None:
        info: Any = tud.get_worker_info()
        info.dataset.offset = 1000 * info.id

    dataset = Prepared()
    assert all(bool(own.all()) for _, own in in_threads(dataset, 10, worker_init_fn=prepare))
    assert dataset.offset == -1
    closure = in_threads(dataset, 10, worker_init_fn=lambda number: setattr(dataset, "offset", 0))
    assert set(flat(closure)) == {0} and dataset.offset == -1


class ItsOwnIterator(tud.IterableDataset[int]):
    def __iter__(self) -> ItsOwnIterator:
        self.left = iter(range(5))
        return self

    def __next__(self) -> int:
        return next(self.left)


@pytest.mark.filterwarnings("ignore:each of the 2 worker processes goes through all:UserWarning")
@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_iterable_dataset_that_is_its_own_iterator_goes_as_with_worker_processes(workers, batch_size) -> None:
    dataset = ItsOwnIterator()
    wanted = list(tud.DataLoader(dataset, batch_size, num_workers=workers))
    for _ in range(2):
        assert_same(list(in_threads(dataset, batch_size, num_workers=workers)), wanted)


def test_functions_that_reach_the_dataset_reach_the_copy() -> None:
    class Reaching(Sized):
        def __init__(self) -> None:
            self.mine = 0
            self.functions: list[Callable[[int], bool]] = [
                lambda index: self.mine == index,
                self.is_mine,
                functools.partial(self.is_mine),
                v1.Lambda(self.is_mine),
                v2.Lambda(lambda index: self.is_mine(index)),
            ]
            self.back = weakref.ref(self)

        def is_mine(self, index: int) -> bool:
            return self.mine == index

        def __getitem__(self, index: int) -> list[bool]:
            self.mine = index
            between()
            return [bool(function(index)) for function in self.functions] + [self.back() is self]

    def collate(samples: list[list[bool]]) -> bool:
        return all(map(all, samples)) and dataset is tud.get_worker_info().dataset  # type: ignore[union-attr]

    dataset = Reaching()
    assert list(in_threads(dataset, 20, collate_fn=collate)) == [True] * 3


def test_a_thread_that_sqlite_knows(tmp_path: Path) -> None:
    """A connection may be used by one thread only."""
    with sqlite3.connect(tmp_path / "db") as made:
        made.execute("create table numbers (number integer)")
        made.executemany("insert into numbers values (?)", [(i,) for i in range(48)])
    made.close()

    class Rows(Sized):
        connection: Any = None

        def __getitem__(self, index: int) -> int:
            if self.connection is None:
                self.connection = sqlite3.connect(tmp_path / "db", check_same_thread=True)
                opened.append(self.connection)
            found = self.connection.execute("select number from numbers where rowid = ?", (index + 1,))
            return int(found.fetchone()[0])

    opened: list[Any] = []
    assert flat(in_threads(Rows(), 4, num_workers=2)) == NUMBERS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of Python 3.13: no other thread may close a connection
        opened.clear()
        collect()


class Writing(Sized):
    """Makes its samples in memory that is too large to be each thread's own."""

    written: Any = None

    def __init__(self, held: Any, begin: int = 0) -> None:
        self.held, self.begin = held, begin

    def __getitem__(self, index: int) -> int:
        memory = self.held
        while not isinstance(memory, (np.ndarray, torch.Tensor)):
            memory = memory["part"] if isinstance(memory, dict) else memory[0]
        part = memory["y"] if isinstance(memory, np.ndarray) and memory.dtype.names else memory
        if index >= self.begin:
            part[:4] = index
        return index


SHARED: dict[str, Callable[[], Any]] = {
    "array": lambda: np.zeros(SCRATCH_BYTES),
    "view": lambda: np.zeros((4, SCRATCH_BYTES))[1:3, ::2].reshape(-1)[8:],
    "structured": lambda: np.zeros(SCRATCH_BYTES, dtype=[("x", "f4"), ("y", "i8")]),
    "in a list": lambda: [np.zeros(8)],
    "nested": lambda: {"part": ({"part": [np.zeros(8)]}, 1)},
    "in many records": lambda: [(np.zeros(8), str(number)) for number in range(MANY)],
    "of a tensor": lambda: torch.zeros(SCRATCH_BYTES).numpy(),
    "tensor": lambda: torch.zeros(SCRATCH_BYTES),
    "tensor of an array": lambda: torch.from_numpy(np.zeros(SCRATCH_BYTES)),
    "tensor in a list": lambda: [torch.zeros(8)],
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_memory_that_a_sample_writes_to_is_an_error_and_goes_to_processes(name: str, patience: None) -> None:
    dataset = Writing(SHARED[name]())
    with pytest.raises(penstock.InvalidOption, match=r"worker_method='thread'.* was written to.*share_dataset=True"):
        list(in_threads(dataset))
    assert flat(in_threads(dataset, share_dataset=True)) == flat(trying := auto(dataset)) == NUMBERS
    assert "chosen   processes: a" in trying.explain() and "that the copies share was written to" in trying.explain()


@pytest.mark.parametrize("name", ["array", "tensor"])
def test_a_write_that_no_trial_has_seen_is_an_error_of_its_batch(name: str, threads_chosen: None) -> None:
    batches = iter(auto(Writing(SHARED[name](), begin=24), num_workers=1, prefetch_factor=1))
    assert flat(taken(batches, 2)) == NUMBERS[:24]
    with pytest.raises(penstock.InvalidOption, match=r"was written to.* use worker_method='process'"):
        next(batches)


def test_a_write_to_shared_memory_makes_no_sample_a_bad_one() -> None:
    with pytest.raises(penstock.InvalidOption, match="was written to"):
        list(in_threads(Writing(np.zeros(SCRATCH_BYTES), 24), on_error="replace", seed=1))


def test_memory_that_processes_share_too_may_be_written_to(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "memory", np.float64, "w+", shape=(48,))
    held: list[Any] = [mapped, torch.zeros(48).share_memory_(), torch.zeros(48).share_memory_().numpy()]
    held.append(np.frombuffer(multiprocessing.RawArray("d", 48)))

    def fill(index: int) -> None:
        for memory in held:
            memory[index] = index

    list(in_threads(Made(fill, 48), collate_fn=list))
    assert all(memory.tolist() == NUMBERS for memory in held)


def test_a_dataset_that_its_loop_changes_between_passes_is_read_on() -> None:
    held = torch.zeros(SCRATCH_BYTES)
    loader = in_threads(Made(lambda index: held[index], 48), persistent_workers=True)
    for number in range(2):
        held.fill_(number)
        assert flat(loader) == [number] * 48
    loader._iterator._shutdown_workers()


def test_torch_warns_of_no_array_that_only_threads_have_read_only() -> None:
    rows = np.arange(48 * 4000, dtype=np.float64).reshape(48, 4000)
    loader = in_threads(Made(lambda index: torch.from_numpy(rows[index]), 48))  # warnings are errors here
    assert torch.equal(torch.cat(list(loader)), torch.from_numpy(rows)) and rows.flags.writeable


class Handle:
    file: Any = None


class ByClass(Sized):
    """Has its file in a class, which no copy of an object copies."""

    def __init__(self, path: Path, kind: Any) -> None:
        self.path, self.reader = path, kind()

    def __getitem__(self, index: int) -> int:
        kind = type(self.reader)
        kind.file = kind.file or self.path.open("rb", buffering=0)
        kind.file.seek(8 * index)
        return int.from_bytes(kind.file.read(8), "little")


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_file_of_a_class_counts_as_the_datasets_own(lazy: bool, tmp_path: Path, patience: None) -> None:
    class Reader(Handle):
        lock = threading.Lock()  # no file: it is made for threads

    (tmp_path / "numbers").write_bytes(np.arange(48, dtype="<i8").tobytes())
    dataset = ByClass(tmp_path / "numbers", Reader)
    try:
        if not lazy:
            Handle.file = (tmp_path / "numbers").open("rb", buffering=0)
            assert "refused  worker_method='thread'" in in_threads(dataset).explain()
        trying = auto(dataset, num_workers=1)
        assert "chosen   processes: " in trying.explain() and ".file, of type _io.FileIO" in trying.explain()
        assert flat(trying) == NUMBERS
        with pytest.raises(penstock.InvalidOption, match=r"\.file, of type _io\.FileIO.*share_dataset=True"):
            list(in_threads(dataset))
    finally:
        for kind in (Handle, Reader):
            if kind.file is not None:
                kind.file.close()
        Handle.file = None


@dataclass
class Record:
    name: str
    box: list[float]


class Thing:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


def copied_thing(**parts: Any) -> tuple[Any, Any]:
    thing: Any = Thing(**parts)
    return copied(thing, "Thing"), thing


DATA = [
    np.zeros(SCRATCH_BYTES), torch.zeros(SCRATCH_BYTES), torch.nn.Parameter(torch.zeros(2)), "text" * 250, b"bytes",
    range(3), Path("here"), torch.float32, torch.zeros(2).share_memory_(), between, Thing, itertools, threading.local(),
]  # fmt: skip


@pytest.mark.parametrize("data", DATA, ids=lambda data: type(data).__name__)
def test_data_is_shared(data: Any) -> None:
    own, thing = copied_thing(data=data)
    assert own is not thing and own.data is data


def test_memory_mapped_arrays_and_those_in_containers_are_shared(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    arrays = [np.zeros(3), torch.zeros(3)]
    own, _ = copied_thing(mapped=mapped, part=mapped[1:], arrays=arrays)
    assert own.mapped is mapped and own.part.base is not None and np.shares_memory(own.part, mapped)
    assert own.arrays is not arrays and own.arrays[0] is arrays[0] and own.arrays[1] is arrays[1]


@pytest.mark.parametrize("order", ["C", "F"])
def test_small_memory_keeps_its_views(order: Any) -> None:
    room, tensor = np.zeros((4, 6), order=order), torch.zeros(4, 6)
    seen, array = torch.from_numpy(room), tensor.numpy()
    own, thing = copied_thing(room=room, part=room[1:3, ::2], seen=seen, tensor=tensor, turned=tensor.t(), array=array)
    own.room[1, 2] = 7
    own.tensor[3, 1] = 5
    assert own.part[0, 1] == own.seen[1, 2] == 7 and own.turned[1, 3] == own.array[3, 1] == 5
    assert own.room.flags.f_contiguous == room.flags.f_contiguous and own.turned.stride() == tensor.t().stride()
    assert not thing.room.any() and not thing.tensor.any()


def test_containers_and_objects_are_copied_with_what_they_share() -> None:
    count, inner = 0, [1]

    def counter() -> int:
        nonlocal count
        count += 1
        return count + len(inner)

    parts: dict[str, Any] = {
        "inner": inner,
        "nested": {"a": [inner, (inner, 2)], "b": OrderedDict(c=inner), "d": deque([inner], maxlen=3)},
        "objects": np.array([inner, None], dtype=object),
        "counter": counter,
        "append": inner.append,
        "stream": io.BytesIO(b"abc"),
        "torchs": torch.Generator(),
        "numpys": np.random.default_rng(0),
        "iterator": iter(inner),
        "images": v2.Compose([v2.Lambda(counter)]),
    }
    parts["stream"].seek(1)
    own, thing = copied_thing(**parts)
    assert own.inner is own.nested["a"][0] is own.nested["a"][1][0] is own.nested["b"]["c"] is own.nested["d"][0]
    assert own.inner is own.objects[0] is not inner and own.nested["d"].maxlen == 3
    own.append(5)
    assert own.inner == [1, 5] and inner == [1]
    assert own.counter() == 3 and own.counter() == 4 and counter() == 2
    assert own.images.transforms[0].lambd is own.counter
    assert own.stream.read() == b"bc" and thing.stream.tell() == 1
    for name in ("torchs", "numpys"):
        assert getattr(own, name) is not parts[name]
    assert torch.rand(1, generator=own.torchs) == torch.rand(1, generator=parts["torchs"])
    assert own.numpys.random() == parts["numpys"].random()
    assert next(own.iterator) == 1 == next(thing.iterator)


LARGE: dict[str, Any] = {
    "paths": list(map(str, range(MANY))),
    "dicts": {i: {"box": [1.0, 2.0]} for i in range(MANY)},
    "defaultdict": defaultdict(list, {i: [i] for i in range(MANY)}),
    "records": [Record("a", [1.0]) for _ in range(MANY)],
}


@pytest.mark.parametrize("large", LARGE.values(), ids=list(LARGE))
def test_containers_of_many_records_are_copied_without_them(large: Any) -> None:
    own, _ = copied_thing(large=large)
    assert own.large is not large and type(own.large) is type(large) and len(own.large) == MANY
    assert own.large[MANY - 1] is large[MANY - 1]


def test_few_records_are_copied() -> None:
    few = [Record("a", [1.0])]
    assert copied(few, "list")[0] is not few[0]
    with pytest.raises(NotCopied):
        copied([threading.Lock() for _ in range(MANY)], "list")


def test_functions_that_find_themselves_and_what_they_share() -> None:
    state = [0]

    def down(number: int) -> int:
        return down(number - 1) + 1 if number else len(state)

    def add() -> None:
        state.append(1)

    def later() -> int:
        return unset

    own, _ = copied_thing(down=down, add=add, later=later)
    own.add()
    assert own.down(3) == 5 and down(3) == 4
    with pytest.raises(NameError):
        own.later()
    unset = 1
    assert later() == 1


def test_objects_that_copy_themselves_do() -> None:
    class Own:
        def __deepcopy__(self, memo: Any) -> str:
            return "its own copy"

    class Slotted:
        __slots__ = ("value",)

    slotted: Any = Slotted()
    slotted.value = [1]
    own, thing = copied_thing(own=Own(), slotted=slotted, kind=Slotted)
    assert own.own == "its own copy" and own.kind is Slotted
    assert own.slotted.value == [1] and own.slotted.value is not thing.slotted.value


def test_explain_says_whose_dataset_it_is() -> None:
    assert "copies   each thread has its own copy of the dataset's Python objects" in in_threads(Counted()).explain()
    assert "shared   all threads use the one dataset" in in_threads(Counted(), share_dataset=True).explain()


class OneTensor(Sized):
    tensor: Any = None

    def __getitem__(self, index: int) -> Any:
        return self.tensor, index


IN_PIECES: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "mkldnn": lambda: torch.eye(3).to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "meta": lambda: torch.ones(2, device="meta"),
}


@pytest.mark.filterwarnings("ignore:.*(Sparse|quantize|nested)")
@pytest.mark.parametrize("held", ["attribute", "list"])
@pytest.mark.parametrize("name", IN_PIECES)
def test_threads_share_tensors_without_memory_of_one_piece(name: str, held: str) -> None:
    tensor = IN_PIECES[name]()
    dataset: Any = OneTensor() if held == "attribute" else [(tensor, i) for i in range(48)]
    if held == "attribute":
        dataset.tensor = tensor
    found = [one for batch in in_threads(dataset, 4, collate_fn=list) for one in batch]
    assert [index for _, index in found] == NUMBERS
    assert all(type(one) is type(tensor) and one.layout == tensor.layout for one, _ in found)


@pytest.mark.filterwarnings("ignore:.*nested")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_processes_send_nested_tensors(layout: torch.layout) -> None:
    dataset: Any = [torch.nested.nested_tensor([torch.ones(2) * i, torch.ones(3)], layout=layout) for i in range(6)]
    sent = in_threads(dataset, 2, collate_fn=list, num_workers=2, worker_method="process")
    arrived = [one for batch in sent for one in batch]
    assert all(one.is_nested and one.layout is layout for one in arrived)
    assert listed(one.unbind() for one in arrived) == listed(one.unbind() for one in dataset)


def test_a_column_that_a_copy_sets_is_its_own() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    frame = pandas.DataFrame({"x": range(8)})
    copy = copied([frame], "dataset")[0]
    copy["y"] = 1
    assert list(frame.columns) == ["x"] and list(copy["x"]) == list(range(8))


def test_a_collection_in_another_thread_finds_nothing_that_a_copy_has_freed() -> None:
    """CPython's Pickler.clear_memo() frees its entries while a collection still finds them: the process crashed."""
    script = """
import gc, threading, time
import penstock

class Slow:
    def __del__(self):
        time.sleep(0.0002)  # lets the other thread collect

    def __reduce__(self):
        return Slow, ()

class Made:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

    def __getstate__(self):
        return {"made": [Slow() for _ in range(20)]}

def read():
    for _ in range(15):
        list(penstock.DataLoader(Made(), 2, num_workers=2, worker_method="thread"))

reading = threading.Thread(target=read)
reading.start()
while reading.is_alive():
    gc.collect()
"""
    done = python_processes.run(script)
    assert (done.returncode, done.stderr) == (0, "")
