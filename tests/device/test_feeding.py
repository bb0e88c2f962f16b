"""Batches on their way to a device, with a device whose copies are done as late as they may be."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from collections import namedtuple
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.data import DataLoader as TorchDataLoader, TensorDataset

import penstock
from penstock.device import feeding as feeding_module
from penstock.device.feed import Feed
from penstock.device.feeding import Feeding, prefetch
from penstock.device.moving import tensors_in
from penstock.stats import Counters
from tests.accelerator import DEVICE, LateStream, PromptStream, replaced_by_late_streams
from tests.data import Made, Numbers
from tests.forking import assert_in_child
from tests.resources import collect
from tests.same import assert_same
from tests.values import taken
from tests.waiting import wait_until


def feed_through(source: Iterable[Any], stream: Any = None, **options: Any) -> Feeding[Any]:
    iterator = iter(source)
    end = getattr(iterator, "close", None)
    return Feeding(iterator, Feed("cuda", **options), DEVICE, stream or LateStream(), end_source=end)


def test_copies_are_a_stage_of_the_loader_and_slices_of_a_trace() -> None:
    counters, seen = Counters(), []
    counters.meter.add_sink(lambda stage, seconds, samples, ended, thread="": seen.append((stage, seconds, samples)))
    batches = [torch.zeros(4, 2), {"x": torch.zeros(3, 2)}]
    ours = Feeding(iter(batches), Feed("cuda"), DEVICE, LateStream(), counters=counters)
    assert_same(list(ours), batches)
    assert [(stage, samples) for stage, _, samples in seen] == [("copy", 4), ("copy", 3)]
    stage = counters.meter.stages()["copy"]
    assert stage.samples == 7 and 0 < stage.seconds == pytest.approx(sum(seconds for _, seconds, _ in seen))


def feeds() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-feed"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    wait_until(lambda: not feeds())


Pair = namedtuple("Pair", "image label")


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str


class Mine:
    """A type with a .to() of its own, as users' batch types have."""

    def __init__(self, data: torch.Tensor, moved: tuple[Any, ...] = ()) -> None:
        self.data = data
        self.moved = moved

    def to(self, device: Any, *, non_blocking: bool = False) -> Mine:
        return Mine(self.data.clone(), (device, non_blocking))


class Hidden:
    """One that hides its tensors."""

    __slots__ = ("get",)

    def __init__(self, data: torch.Tensor) -> None:
        self.get = lambda: data

    def to(self, device: Any) -> Hidden:
        return Hidden(self.get() + 1000)


def nested(number: int) -> Any:
    x = torch.full((4, 3), float(number))
    return {
        "pair": Pair(x, torch.arange(4) + number), "list": [x.half(), (x > 0), None, "text"],
        "sample": Sample(x.double(), "a name"), "array": np.arange(3), "number": number,
    }  # fmt: skip


def test_any_structure_arrives_whole() -> None:
    stream = LateStream()
    found = list(feed_through([nested(number) for number in range(20)], stream))
    for number, batch in enumerate(found):
        wanted = nested(number)
        ours, theirs = batch.pop("sample"), wanted.pop("sample")
        assert_same(batch, wanted)
        assert type(ours) is Sample and torch.equal(ours.image, theirs.image) and ours.name == "a name"
    assert all(len(tensors) == 5 for tensors in stream.handed_over)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_than_depth_batches_are_sent_ahead(depth: int) -> None:
    taken: list[int] = []

    def source() -> Iterator[torch.Tensor]:
        for number in range(40):
            taken.append(number)
            yield torch.tensor([number])

    def ahead(number: int) -> bool:
        return len(stream.waiting) == len(taken) == number

    stream = LateStream()
    feeding = feed_through(source(), stream, depth=depth)
    for number in range(10):
        assert next(feeding).item() == number
        wait_until(partial(ahead, number + 1 + depth))
    assert len(stream.waiting) == 10 + depth
    feeding.close()


class Failing:
    """Gives tensors of 0 to 7, and an error in the place of 2."""

    def __init__(self) -> None:
        self.numbers = iter(range(8))

    def __iter__(self) -> Failing:
        return self

    def __next__(self) -> torch.Tensor:
        number = next(self.numbers)
        if number == 2:
            raise KeyError("of the source")
        return torch.tensor([number])


def test_errors_are_raised_at_their_batch_and_the_pass_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = PromptStream()
    copy = stream.copy

    def full(tensor: torch.Tensor) -> torch.Tensor:
        if tensor[0] == 1:
            raise torch.OutOfMemoryError("no memory left")
        return copy(tensor)

    def transform(batch: torch.Tensor) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        if batch.item() == 5:
            raise ValueError("of the transform")
        return batch * 10

    monkeypatch.setattr(stream, "copy", full)
    feeding = feed_through(Failing(), stream, transform=transform)
    found: list[Any] = []
    while True:
        try:
            found.append(next(feeding).item())
        except StopIteration:
            break
        except Exception as error:
            found.append((type(error), error.args[0], getattr(error, "__notes__", [])))
    note = "while batch {} of this pass went to its device".format
    assert found == [
        0, (torch.OutOfMemoryError, "no memory left", [note(1)]), (KeyError, "of the source", []), *(30, 40),
        (ValueError, "of the transform", [note(5)]), *(60, 70),
    ]  # fmt: skip
    assert list(feeding) == []


def test_a_device_that_cannot_be_used_is_an_error_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = LateStream()
    monkeypatch.setattr(stream, "current", mock.Mock(side_effect=RuntimeError("the device is lost")))
    feeding = feed_through([torch.zeros(1)], stream)
    with pytest.raises(RuntimeError, match="the device is lost"):
        next(feeding)
    assert list(feeding) == []


def test_leaving_early_ends_thread_and_source() -> None:
    ended = threading.Event()

    def source() -> Iterator[torch.Tensor]:
        try:
            while True:
                yield torch.zeros(1)
        finally:
            ended.set()

    for batch in feed_through(source()):
        assert batch is not None
        break
    gc.collect()
    assert ended.wait(10)
    wait_until(lambda: not feeds())


def test_a_source_that_gives_nothing_does_not_keep_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, release = threading.Event(), threading.Event()

    def wait_here() -> bool:
        asked.set()
        return release.wait(30)

    feeding = feed_through(iter(wait_here, True))
    threading.Thread(target=next, args=(feeding, None), daemon=True).start()
    assert asked.wait(10)
    with monkeypatch.context() as patch:
        patch.setattr(feeding_module, "JOIN_SECONDS", 0.05)
        feeding.close()
    assert list(feeding) == []
    release.set()


def test_types_that_move_themselves() -> None:
    mine, plain = next(feed_through([(Mine(torch.ones(3)), torch.zeros(2))], PromptStream()))
    assert type(mine) is Mine and mine.moved == (DEVICE, True) and (plain == 0).all()
    packed = pack_padded_sequence(torch.arange(6.0).view(3, 2), torch.tensor([3, 2]))
    assert len(list(tensors_in(packed))) == 2
    (sequence,) = prefetch([packed], "cpu", dtype=torch.float64)
    assert type(sequence) is PackedSequence


def test_types_that_hide_their_tensors_move_when_they_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = PromptStream()
    threads: Any = []
    monkeypatch.setattr(Hidden, "to", lambda hidden, device: threads.append(threading.get_ident()) or hidden)
    hidden = next(feed_through([Hidden(torch.ones(2))], stream))
    assert (hidden.get() == 1).all() and stream.handed_over == []
    assert threads == [threading.get_ident()]


def test_sparse_tensors_move_when_they_are_handed_over() -> None:
    stream, sparse = PromptStream(), torch.eye(3).to_sparse()
    for batch in ([sparse], Mine(sparse)):
        next(Feeding(iter([batch]), Feed("cpu"), torch.device("cpu"), stream))
    assert stream.handed_over == []


def test_tensors_in_objects() -> None:
    one, two, three = torch.zeros(1), torch.ones(1), torch.full((1,), 2.0)
    loop: list[Any] = [one, {"a": Mine(two)}, (three, one), "text", 5, None]
    loop.append(loop)
    assert {id(tensor) for tensor in tensors_in(loop)} == {id(one), id(two), id(three)}
    assert list(tensors_in(Hidden(one))) == []


def test_what_the_feed_asks_is_done_on_the_device() -> None:
    image, label = torch.rand(2, 3, 4, 5), torch.arange(2)
    (out, labels) = next(feed_through([(image, label)], PromptStream(), dtype=torch.bfloat16, channels_last=True))
    assert out.dtype == torch.bfloat16 and out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(out, image.bfloat16()) and torch.equal(labels, label)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[LateStream]:
    """Make cuda:0 a LateStream; returns those that were made."""
    return replaced_by_late_streams(monkeypatch)


DATA = TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_prefetch_around_torchs_loader(late: list[LateStream], workers: int, persistent: bool) -> None:
    loader = TorchDataLoader(DATA, batch_size=4, num_workers=workers, persistent_workers=persistent)
    batches = prefetch(loader, "cuda")
    assert len(batches) == 5 and batches.sampler is loader.sampler
    for _ in range(2):
        assert_same(list(batches), list(TorchDataLoader(DATA, batch_size=4)))
    first = iter(batches)
    assert_same(next(first), next(iter(TorchDataLoader(DATA, batch_size=4))))
    assert_same(list(batches), list(TorchDataLoader(DATA, batch_size=4)))  # while the first one is held
    if persistent:
        assert list(first) == []
    del first
    assert len(feeds()) == 0


def test_prefetch_reads_loaders_without_workers_in_the_callers_thread(late: list[LateStream]) -> None:
    threads = list(prefetch(TorchDataLoader(Made(lambda index: threading.get_ident(), 20), batch_size=4), "cuda"))
    assert torch.stack(threads).unique().tolist() == [threading.get_ident()] and len(threads) == 5


def test_prefetch_on_the_cpu_changes_nothing() -> None:
    source = [nested(number) for number in range(3)]
    for found, given in zip(prefetch(source, "cpu"), source, strict=True):
        assert found is given
    assert not feeds()
    doubled = prefetch((torch.ones(1, 3, 2, 2) for _ in range(2)), "cpu", transform=lambda x: 2 * x, channels_last=True)
    for batch in doubled:
        assert (batch == 2).all() and batch.is_contiguous(memory_format=torch.channels_last)


def test_what_prefetch_is_given_replaces_what_a_feed_says() -> None:
    feed = Feed("cpu", depth=3, dtype=torch.float16, decode="auto")
    given: tuple[dict[str, Any], ...] = {}, {"depth": 9}, {"depth": 2, "channels_last": True}
    for options in given:
        assert prefetch([], feed, **options).feed == dataclasses.replace(feed, **options)
    assert prefetch([], "cpu").feed == Feed("cpu", depth=2)
    with pytest.raises(penstock.InvalidOption, match="depth=0"):
        prefetch([], feed, depth=0)


@pytest.mark.parametrize(("rank", "index"), [(None, 1), ("3", 3), ("9", 1), ("x", 1)])
def test_cuda_is_the_ranks_own(monkeypatch: pytest.MonkeyPatch, rank: str | None, index: int) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert Feed("cuda").resolve() == torch.device("cuda", index)
    assert Feed("cuda:2").resolve() == torch.device("cuda", 2)
    with pytest.raises(penstock.InvalidOption, match=r"cuda:7.*sees 4 of them, cuda:0 to cuda:3"):
        Feed("cuda:7").resolve()


ANY_FEED: Any = Feed


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Feed("gpu"), "device='gpu'"),
        (lambda: Feed("meta"), "batches can be fed to cpu, cuda"),
        (lambda: Feed("foo"), "device='foo': batches can be fed to cpu, cuda, xpu, mps, mtia, [a-z]+$"),
        (lambda: Feed(torch.device("meta")), "device='meta': batches can be fed to cpu, cuda"),
        (lambda: Feed("cuda:x"), "device='cuda:x': Invalid device string"),
        (lambda: Feed(True), "a name such as 'cuda'"),
        (lambda: ANY_FEED(None), "a name such as 'cuda'"),
        (lambda: Feed("cpu", depth=0), "depth=0"),
        (lambda: ANY_FEED("cpu", depth=1.5), "depth=1.5"),
        (lambda: Feed("cpu", dtype=torch.int8), "a floating-point dtype"),
        (lambda: ANY_FEED("cpu", dtype="half"), "a floating-point dtype"),
        (lambda: ANY_FEED("cpu", transform=3), "transform=3"),
        (lambda: ANY_FEED("cpu", decode="fpga"), "decode='fpga'"),
        (lambda: ANY_FEED("cpu", cache="host"), "cache='host'"),
        (lambda: penstock.DataLoader(DATA, device="gpu"), "device='gpu'"),
        (lambda: prefetch([], "gpu"), "device='gpu'"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(penstock.InvalidOption, match=message):
        make()
    not_iterable: Any = 3
    with pytest.raises(TypeError, match="an iterable of batches, not int"):
        prefetch(not_iterable, "cpu")


WORKERS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 2},
    {},
    {"num_workers": 2, "persistent_workers": True},
)


@pytest.mark.parametrize("dataset", [DATA, Made(lambda index: torch.full((2,), index), 12)], ids=["native", "python"])
@pytest.mark.parametrize("options", WORKERS, ids=["0", "2", "default", "persistent"])
@pytest.mark.parametrize("method", [None, "thread"])
def test_loaders_bring_batches_to_their_device(late: list[LateStream], dataset: Any, options: Any, method: Any) -> None:
    arguments = {"batch_size": 4, "shuffle": True, "seed": 3, **options}
    loader = penstock.DataLoader(dataset, device="cuda", worker_method=method, **arguments)
    plain = penstock.DataLoader(dataset, worker_method=method, **arguments)
    for _ in range(2):
        assert_same(list(loader), list(plain))
    iterator = iter(loader)
    assert_same(next(iterator), next(iter(plain)))
    assert len(iterator) == len(plain)
    assert_same(list(loader), list(plain))
    if options.get("persistent_workers"):
        assert list(iterator) == []  # the next pass has taken its workers over
    assert len(late) == 4
    del iterator


class Gate(torch.utils.data.Dataset[Any]):
    """Samples from the fifth on come when a file is there, whichever process or thread asks for them."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        wait_until(lambda: index < 4 or self.file.exists())
        return torch.tensor([index])


@pytest.mark.parametrize("method", ["thread", "process"])
def test_the_callers_thread_sends_what_is_at_hand(late: list[LateStream], tmp_path: Path, method: Any) -> None:
    loader = penstock.DataLoader(Gate(tmp_path / "open"), 2, num_workers=2, worker_method=method, device=Feed("cuda"))
    batches = iter(loader)
    found = [next(batches), next(batches)]  # the third is not waited for
    assert not feeds() and len(late[0].waiting) == 2
    (tmp_path / "open").touch()
    found.append(next(batches))
    wait_until(batches.sender._source.at_hand)
    assert len(late[0].waiting) <= 5
    assert torch.cat([*found, *batches]).flatten().tolist() == [*range(12)]
    assert not feeds()


@pytest.mark.parametrize("depth", [1, 3])
def test_batches_of_native_threads_are_sent_depth_ahead(late: list[LateStream], depth: int) -> None:
    loader = penstock.DataLoader(DATA, 2, num_workers=2, device=Feed("cuda", depth=depth))
    batches = iter(loader)
    for number in range(1, 6):
        assert next(batches)[1].tolist() == [2 * number - 2, 2 * number - 1]
        wait_until(batches.sender._source.at_hand)
        assert batches.sender.ahead() <= depth
    assert len(list(batches)) == 5 and not feeds()


def test_a_pass_whose_error_waits_can_be_collected(late: list[LateStream]) -> None:
    """The error of a batch that was sent ahead holds the frames of the pass."""
    loader = penstock.DataLoader(Numbers({13}), batch_size=4, num_workers=2, worker_method="thread", device="cuda")
    batches: Any = iter(loader)
    assert len(taken(batches, 3)) == 3
    batches = weakref.ref(batches)
    collect()
    assert batches() is None


def test_a_forked_child_is_told(late: list[LateStream]) -> None:
    feeding = iter(penstock.DataLoader(DATA, batch_size=4, num_workers=1, device="cuda"))
    next(feeding)

    def check() -> None:
        with pytest.raises(RuntimeError, match="parent process of this fork"):
            next(feeding)

    assert_in_child(check)
    feeding.close()


def test_lightning_and_accelerate_find_the_device_among_the_arguments() -> None:
    feed = Feed("cpu", depth=3)
    again: Any = penstock.DataLoader(DATA, batch_size=4, device=feed).with_samples(DATA, batch_size=2)
    assert again.device == feed
