"""find_batch_size and run_within_memory, by steps that say that memory ran out, and the structures that they cut."""

from __future__ import annotations

import collections
import copy
import dataclasses
import gc
import math
import threading
import types
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch.utils.data import default_collate

import penstock
from penstock.device.memory import find_batch_size, is_out_of_memory, run_within_memory
from penstock.device.moving import leaves, map_leaves
from tests.waiting import run_in_threads


class Pair(NamedTuple):
    images: Any
    labels: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    images: Any
    names: list[str]
    length: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", len(self.names))


@dataclasses.dataclass(slots=True)
class Slotted:
    images: Any


class Wrapper(collections.abc.MutableMapping):
    """A mapping whose shallow copy shares its items."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.items_of_it = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self.items_of_it[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_of_it[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_of_it[key]

    def __iter__(self):
        return iter(self.items_of_it)

    def __len__(self) -> int:
        return len(self.items_of_it)


class Device:
    """A device whose memory holds `limit` samples: a step that counts its tries."""

    def __init__(self, limit: int, error: Callable[[], BaseException] = lambda: torch.OutOfMemoryError("no room")):
        self.limit = limit
        self.error = error
        self.tried: list[int] = []

    def step(self, batch: torch.Tensor) -> list[int]:
        self.tried.append(len(batch))
        if len(batch) > self.limit:
            raise self.error()
        return batch.tolist()


@pytest.fixture(autouse=True, scope="module")
def thaw():
    """Give back to the collector what it was told to pass over: each try collects, and some tests make thousands."""
    yield
    gc.unfreeze()


def need(fits: bool) -> None:
    if not fits:
        raise torch.OutOfMemoryError


@settings(deadline=None, max_examples=100)
@given(
    limit=st.integers(1, 5000),
    samples=st.integers(1, 300),
    start=st.none() | st.integers(1, 6000),
    most=st.none() | st.integers(1, 6000),
)
@example(limit=1, samples=1, start=None, most=None)
@example(limit=1, samples=1, start=6000, most=None)
@example(limit=4096, samples=1, start=1, most=None)
@example(limit=4095, samples=64, start=64, most=4095)
def test_the_size_is_exact_and_found_in_few_tries(
    limit: int, samples: int, start: int | None, most: int | None
) -> None:
    gc.freeze()
    device, top = Device(limit), most or limit
    start = min(start, most) if start and most else start
    found = find_batch_size(device.step, torch.zeros(samples), start=start, most=most)
    assert found == min(limit, top) and found in device.tried
    assert most is None or max(device.tried) <= most
    first = start or min(samples, most or samples)
    # Doubling up, or halving down, then bisecting; one more try of the first that fits.
    away = abs(math.log2(found / first)) + 1
    assert len(device.tried) <= away + math.log2(limit) + 3


def test_every_try_has_a_batch_of_its_size_with_the_samples_repeated() -> None:
    seen = []

    def step(batch: dict[str, Any]) -> None:
        x = batch["x"]
        assert torch.equal(x, torch.arange(3.0).repeat(len(x))[: len(x)])
        assert batch["name"] == [str(i % 3) for i in range(len(x))]
        assert np.array_equal(batch["id"], np.arange(len(x)) % 3)
        assert batch["epoch"] == 7 and batch["scale"].shape == ()
        x.zero_()  # its own memory: the next try sees what the first saw
        seen.append(len(x))
        need(len(x) <= 11)

    batch: dict[str, Any] = {"x": torch.arange(3.0), "name": ["0", "1", "2"], "id": np.arange(3)}
    batch |= {"epoch": 7, "scale": torch.tensor(2.0)}
    assert find_batch_size(step, batch, start=2) == 11
    assert 2 in seen and 12 in seen
    assert torch.equal(batch["x"], torch.arange(3.0))


def test_layout_dtype_and_grad_of_the_example_are_kept() -> None:
    images = torch.rand(3, 4, 5, 6).to(memory_format=torch.channels_last)
    wanted = torch.rand(3, 2, dtype=torch.float64, requires_grad=True)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        assert batch[0].is_contiguous(memory_format=torch.channels_last)
        assert batch[1].dtype == torch.float64 and batch[1].requires_grad and batch[1].is_leaf
        need(len(batch[0]) <= 8)

    assert find_batch_size(step, (images, wanted)) == 8


def test_what_a_failed_try_held_is_free_at_the_next() -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    kept: list[BaseException] = []

    def deepest(batch: torch.Tensor) -> None:
        local = batch * 2
        made.extend([weakref.ref(local), weakref.ref(batch)])
        raise torch.OutOfMemoryError("first")

    def deep(batch: torch.Tensor) -> None:
        if len(batch) > 5:
            try:
                deepest(batch)
            except torch.OutOfMemoryError as error:
                kept.append(error)  # as a logger or a debugger may
                raise RuntimeError("CUDA error: out of memory") from error

    def step(batch: torch.Tensor) -> None:
        cycle: list[Any] = [batch + 1]
        cycle.append(cycle)  # freed by the collector only
        assert [ref for ref in made if ref() is not None] == []
        made.append(weakref.ref(cycle[0]))
        deep(batch)

    assert find_batch_size(step, torch.zeros(2)) == 5
    assert [ref for ref in made if ref() is not None] == []
    held = torch.zeros(1)
    made.append(weakref.ref(held))
    with pytest.raises(AssertionError):  # the step's own check can fail
        step(torch.zeros(1))


def test_what_a_failed_part_held_is_free_at_the_next() -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def step(batch: torch.Tensor) -> None:
        assert [ref for ref in made if ref() is not None] == []
        cycle: list[Any] = [batch + 1]
        made.append(weakref.ref(cycle[0]))
        if len(batch) > 5:
            cycle.append(cycle)
            raise torch.OutOfMemoryError

    assert run_within_memory(step, torch.zeros(16)) == [None] * 4


def test_an_error_that_the_caller_is_handling_keeps_its_frames() -> None:
    def fail() -> None:
        treasure = 1
        raise KeyError(treasure)

    try:
        fail()
    except KeyError as error:
        assert find_batch_size(Device(3).step, torch.zeros(8)) == 3
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        assert error.__traceback__.tb_next.tb_frame.f_locals == {"treasure": 1}


def test_the_memory_that_a_first_run_leaves_behind_counts() -> None:
    """Optimiser states are made by the first step and are in the way of all others."""
    states: list[int] = []

    def step(batch: torch.Tensor) -> None:
        need(len(batch) + sum(states) <= 10)
        states[:] = [4]

    assert find_batch_size(step, torch.zeros(10)) == 6


def test_one_sample_that_does_not_fit() -> None:
    with pytest.raises(penstock.OutOfMemory, match="one sample does not fit into memory: no room") as raised:
        find_batch_size(Device(0).step, torch.zeros(12))
    assert issubclass(penstock.OutOfMemory, MemoryError) and issubclass(penstock.OutOfMemory, penstock.PenstockError)
    assert type(raised.value.__cause__) is torch.OutOfMemoryError
    error = torch.OutOfMemoryError("no room")

    def step(batch: torch.Tensor) -> None:
        if 5 in batch:
            raise error

    with pytest.raises(torch.OutOfMemoryError) as alone:
        run_within_memory(step, torch.arange(8))
    assert alone.value is error
    assert error.__notes__ == ["Sample 5 of a batch of 8 does not fit into memory on its own."]


def test_memory_that_really_runs_out_on_the_cpu() -> None:
    row = 2**56  # bytes a sample: four of them exceed any address space
    makes: tuple[Any, ...] = partial(torch.empty, dtype=torch.uint8), partial(np.empty, dtype=np.uint8)
    for empty in makes:
        assert find_batch_size(lambda x, empty=empty: empty(0 if len(x) < 4 else len(x) * row), torch.ones(1)) == 3


def test_a_batch_beyond_the_memory_of_the_host_is_not_made() -> None:
    tried = []
    wide = torch.zeros(1, 1).expand(1, 2**50)
    with pytest.raises(penstock.OutOfMemory, match="host memory"):
        find_batch_size(lambda batch: tried.append(len(batch)), wide)
    assert tried == []


class Nearly(torch.OutOfMemoryError):
    pass


MESSAGES = [
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9",
    "[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.",
    "CUDA out of memory. Tried to allocate 20.00 GiB",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "CUDA driver error: out of memory",
    "HIP out of memory. Tried to allocate 2.00 GiB",
    "HIP error: out of memory",
    "XPU out of memory. Tried to allocate 2.00 GiB",
    "MPS backend out of memory (MPS allocated: 9 GB)",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
]
KINDS = (Nearly, MemoryError, torch.cuda.OutOfMemoryError, penstock.OutOfMemory)


@pytest.mark.parametrize("error", [*(partial(RuntimeError, message) for message in MESSAGES), *KINDS])
def test_errors_that_say_so(error: Callable[[], BaseException]) -> None:
    assert find_batch_size(Device(7, error).step, torch.zeros(4)) == 7
    assert run_within_memory(Device(2, error).step, torch.arange(3)) == [[0, 1], [2]]
    assert not is_out_of_memory(ValueError(*error().args))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."),
        RuntimeError("the database is out of memory"),
        ValueError("CUDA out of memory."),
        KeyboardInterrupt(),
        StopIteration(),
    ],
)
def test_other_errors_go_through_untouched(error: BaseException) -> None:
    device = Device(0, lambda: error)
    for call in (find_batch_size, run_within_memory):
        device.tried.clear()
        with pytest.raises(type(error)) as raised:
            call(device.step, torch.zeros(4))
        assert raised.value is error and error.__cause__ is None and not hasattr(error, "__notes__")
        assert device.tried == [4]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(0, 3), "no samples"),
        ([], "no samples"),
        ((torch.zeros(4, 3), torch.zeros(5)), r"shapes \(4, 3\), \(5,\)"),
        ({"x": torch.zeros(4), "y": np.zeros(3)}, r"\(4,\), \(3,\)"),
        (({"a": ["x", "y"], "b": ["z"]}), r"lists of \[1, 2\]"),
        (torch.tensor(3.0), "without a tensor"),
        ("text", "without a tensor"),
        (None, "without a tensor"),
        ({}, "without a tensor"),
        (torch.zeros(3, 3).to_sparse(), "layout torch.sparse_coo"),
        (torch.nn.utils.rnn.pack_sequence([torch.zeros(2), torch.zeros(1)]), "PackedSequence"),
        ((torch.zeros(3), types.SimpleNamespace(to=lambda device: None)), "SimpleNamespace holds tensors"),
    ],
)
def test_batches_that_cannot_be_cut(batch: Any, message: str) -> None:
    for call in (find_batch_size, run_within_memory):
        with pytest.raises(ValueError, match=message):
            call(lambda _: pytest.fail("it was called"), batch)


def test_sizes_that_make_no_sense() -> None:
    step, batch = Device(9).step, torch.zeros(4)
    for options in ({"start": 0}, {"start": -1}, {"most": 0}, {"start": 9, "most": 8}):
        with pytest.raises(penstock.InvalidOption, match=r"sample|above"):
            find_batch_size(step, batch, **options)
    with pytest.raises(penstock.InvalidOption, match="start=0"):
        run_within_memory(step, batch, start=0)
    with pytest.raises(TypeError):
        find_batch_size(step, batch, start=1.5)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=100)
@given(
    limits=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=5),
    start=st.none() | st.integers(1, 100),
    undone=st.booleans(),
)
def test_no_sample_is_lost_or_repeated(limits: list[int], sizes: list[int], start: int | None, undone: bool) -> None:
    gc.freeze()
    calls = 0
    done: list[int] = []

    def step(batch: torch.Tensor) -> list[int]:
        nonlocal calls
        calls += 1
        need(len(batch) <= limits[calls % len(limits)])  # memory comes and goes
        done.extend(batch.tolist())
        return batch.tolist()

    undo = done.clear if undone else None
    for size in sizes:
        done.clear()
        results = run_within_memory(step, torch.arange(size), start=start, undo=undo)
        assert [i for result in results for i in result] == list(range(size)) == done
        assert max(map(len, results)) <= (start or size)


def test_only_the_part_that_failed_is_run_again_and_with_undo_the_whole_batch() -> None:
    tried: list[tuple[int, int]] = []
    gradient: list[int] = []

    def step(batch: torch.Tensor) -> int:
        tried.append((int(batch[0]), len(batch)))
        gradient.extend(batch.tolist())  # before it fails, as backward() does for the last layers
        need(len(batch) <= (8 if batch[0] < 8 else 4))
        return len(batch)

    assert run_within_memory(step, torch.arange(16)) == [8, 4, 4]
    assert tried == [(0, 16), (0, 8), (8, 8), (8, 4), (12, 4)]
    gradient.clear()
    assert run_within_memory(step, torch.arange(16), start=16, undo=gradient.clear) == [4, 4, 4, 4]
    assert gradient == list(range(16))


def test_the_whole_batch_is_given_as_it_is_and_parts_are_even_views() -> None:
    batch = (torch.zeros(6), ["a"])
    assert run_within_memory(lambda b: b is batch, batch) == [True]

    def fill(most: int, part: torch.Tensor) -> int:
        need(len(part) <= most)
        part += 1
        return len(part)

    for size, most, parts in ((6, 3, [3, 3]), (100, 99, [50, 50]), (5, 4, [3, 2])):
        whole = torch.zeros(size)
        assert run_within_memory(partial(fill, most), whole) == parts
        assert torch.equal(whole, torch.ones(size))


def test_the_size_that_worked_comes_first_the_next_time() -> None:
    device = Device(10)
    step = device.step

    def tried(size: int, start: int | None = None) -> list[int]:
        device.tried.clear()
        run_within_memory(step, torch.zeros(size), start=start)
        return device.tried

    assert tried(32) == [32, 16, 8, 8, 8, 8]
    assert tried(20) == [8, 8, 4] and tried(5) == [5]
    assert tried(20, start=10) == [10, 10] and tried(20) == [10, 10]
    device.limit = 100
    assert tried(20, start=20) == [20] and tried(20) == [20]
    device.limit = 0
    for _ in range(2):  # a size that has not worked is not remembered
        with pytest.raises(torch.OutOfMemoryError):
            tried(4)
        assert device.tried == [4, 2, 1]


@dataclasses.dataclass(eq=False)
class Owner:
    """A step by itself, and by a method."""

    device: Device

    def __call__(self, batch: torch.Tensor) -> object:
        return self.device.step(batch)

    def other(self, batch: torch.Tensor) -> object:
        return self.device.step(batch)


def _with(device: Device, scale: int, batch: torch.Tensor) -> list[int]:
    return device.step(batch)


STEPS: dict[str, Callable[[Device], Callable[[], Any]]] = {
    "function": lambda device: (lambda step: lambda: step)(lambda batch: device.step(batch)),
    "method": lambda device: lambda: device.step,  # a new method object each time
    "object": lambda device: (lambda step: lambda: step)(Owner(device)),
    "method of an object": lambda device: (lambda owner: lambda: owner.other)(Owner(device)),
    "partial": lambda device: (lambda step: lambda: step)(partial(_with, device, 3)),
}


@pytest.mark.parametrize("kind", STEPS)
def test_steps_are_told_apart_by_identity(kind: str) -> None:
    small, large = Device(4), Device(16)
    of_small, of_large = STEPS[kind](small), STEPS[kind](large)
    for _ in range(2):
        run_within_memory(of_small(), torch.zeros(16))
        run_within_memory(of_large(), torch.zeros(16))
    assert small.tried == [16, 8, 4, 4, 4, 4, 4, 4, 4, 4]
    assert large.tried == [16, 16]
    owner = Owner(small)
    small.tried.clear()
    for step in (owner.other, owner, partial(_with, small, 1), partial(_with, small, 2)):
        run_within_memory(step, torch.zeros(8))
    assert small.tried == [8, 4, 4] * 4


class Slots:
    """A step that cannot be held weakly."""

    __slots__ = ("device",)

    def __init__(self, device: Device) -> None:
        self.device = device

    def __call__(self, batch: torch.Tensor) -> list[int]:
        return self.device.step(batch)


@dataclasses.dataclass
class Equal(Owner):
    """A step without a hash."""


@pytest.mark.parametrize("step", [Slots(Device(4)), Equal(Device(4))], ids=["slots", "unhashable"])
def test_a_step_that_cannot_be_remembered_works(step: Any) -> None:
    for _ in range(2):
        assert [i for part in run_within_memory(step, torch.arange(8)) for i in part] == list(range(8))
    assert step.device.tried == [8, 4, 4] * 2


def test_steps_are_held_weakly_and_forgotten_with_them() -> None:
    gc.freeze()
    from_id: dict[int, int] = {}
    for _ in range(200):  # ids come again
        device = Device(4)
        owner = Owner(device)
        run_within_memory(owner, torch.zeros(8))
        assert device.tried == [8, 4, 4]
        from_id[id(owner)] = from_id.get(id(owner), 0) + 1
        watched = weakref.ref(owner)
        del owner, device
        gc.collect(0)
        assert watched() is None
    assert max(from_id.values()) > 1


def test_threads_share_what_is_remembered() -> None:
    local = threading.local()
    barrier = threading.Barrier(8)

    def step(batch: torch.Tensor) -> list[int]:
        local.calls = getattr(local, "calls", 0) + 1
        need(len(batch) <= 8)
        return batch.tolist()

    def work(thread: int) -> None:
        barrier.wait(30)
        for _ in range(20):
            results = run_within_memory(step, torch.arange(64))
            assert [i for result in results for i in result] == list(range(64))
        assert local.calls <= 20 * 8 + 3

    run_in_threads(8, work)


@pytest.mark.parametrize("limit", [64, 33, 32, 7, 1])
@pytest.mark.parametrize("keyword_only", [False, True])
def test_gradients_of_micro_batches_are_those_of_the_batch(limit: int, keyword_only: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(50, 8, generator=generator), torch.randint(0, 3, (50,), generator=generator)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()
    whole = copy.deepcopy(model)
    expected = torch.nn.functional.cross_entropy(whole(x.double()), y)
    expected.backward()

    def step(batch: tuple[torch.Tensor, torch.Tensor], share: float) -> float:
        loss = torch.nn.functional.cross_entropy(model(batch[0].double()), batch[1]) * share
        if len(batch[0]) > limit:
            loss.backward(inputs=list(model[2].parameters()))  # the last layer's are there when memory runs out
            raise torch.OutOfMemoryError
        loss.backward()
        return loss.item()

    def keyword(batch: Any, /, *, share: float) -> float:
        return step(batch, share)

    optimizer = torch.optim.SGD(model.parameters())
    losses = run_within_memory(keyword if keyword_only else step, (x, y), undo=optimizer.zero_grad)
    assert sum(losses) == pytest.approx(expected.item())
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_share_goes_to_a_parameter_of_that_name_and_to_no_other() -> None:
    batch = torch.zeros(4)
    assert run_within_memory(lambda b, share: share, batch, start=3) == [0.75, 0.25]
    assert run_within_memory(lambda b, other=1: other, batch) == [1]
    assert run_within_memory(lambda b, **options: options, batch) == [{}]
    assert run_within_memory(lambda share: len(share), batch) == [4]  # the batch itself goes by that name
    assert run_within_memory(len, batch) == [4]

    class Module(torch.nn.Module):
        def forward(self, batch: torch.Tensor, share: float) -> float:
            return share

    assert run_within_memory(Module(), batch, start=2) == [0.5, 0.5]
    shares = []
    assert find_batch_size(lambda b, share: shares.append(share), batch, most=4) == 4
    assert set(shares) == {1.0}


def _part(batch: Any, begin: int, end: int) -> Any:
    """What a step sees as samples [begin, end) where memory holds that many."""
    parts: list[Any] = []
    run_within_memory(parts.append, batch, start=end - begin)
    return parts[begin // (end - begin)]


def test_every_structure_is_cut_and_keeps_its_type() -> None:
    x = torch.arange(6)
    frozen = _part(Frozen(x, [*"abcdef"]), 4, 6)
    assert type(frozen) is Frozen and frozen.images.tolist() == [4, 5] and frozen.names == ["e", "f"]
    assert frozen.length == 2
    ordered = _part(collections.OrderedDict(b=x, a=x.numpy()), 0, 3)
    assert type(ordered) is collections.OrderedDict and [*ordered] == ["b", "a"] and ordered["a"].tolist() == [0, 1, 2]
    pair = _part([x, Pair(x, {"y": x})], 0, 2)[1]
    assert type(pair) is Pair and pair.labels["y"].tolist() == [0, 1]
    batch = {"x": torch.zeros(4), "classes": ["cat", "dog"], "size": (224, 224), "epoch": 3, "text": "abcd"}
    part = _part(batch, 0, 2)  # what is no column stays
    assert (part["classes"], part["size"], part["epoch"], part["text"]) == (["cat", "dog"], (224, 224), 3, "abcd")


def test_strings_are_cut_as_default_collate_leaves_them() -> None:
    samples = [(torch.tensor(i), f"s{i}", {"who": f"w{i}", "both": [f"a{i}", f"b{i}"]}) for i in range(4)]
    parts: list[Any] = []
    run_within_memory(parts.append, default_collate(samples), start=2)
    assert [(p[0].tolist(), list(p[1]), p[2]["who"], [list(one) for one in p[2]["both"]]) for p in parts] == [
        ([0, 1], ["s0", "s1"], ["w0", "w1"], [["a0", "a1"], ["b0", "b1"]]),
        ([2, 3], ["s2", "s3"], ["w2", "w3"], [["a2", "a3"], ["b2", "b3"]]),
    ]
    for number in (2, 3):  # pairs of strings without tensors
        batch = default_collate([(f"q{i}", f"a{i}") for i in range(number)])
        pairs = run_within_memory(lambda part: [list(one) for one in part], batch, start=1)
        assert pairs == [[[f"q{i}"], [f"a{i}"]] for i in range(number)]
    assert run_within_memory(list, [*"abc"], start=2) == [["a", "b"], ["c"]]
    words = [["a"], ["b", "c", "d"], []]
    assert run_within_memory(lambda part: part[1], (torch.zeros(3), words), start=2) == [words[:2], words[2:]]


def test_map_leaves_keeps_types_and_leaves_the_batch_alone() -> None:
    class Named(list):
        name = ""

    def batch(number: int) -> list[Any]:
        kinds = (
            Wrapper({"a": 4 * number}),
            collections.UserDict(a=5 * number),
            Pair(6 * number, torch.Size([7 * number])),
        )
        mappings = collections.defaultdict[str, Any](list, a=2 * number), types.MappingProxyType({"a": 3 * number})
        return [Named([number]), *mappings, *kinds, torch.Size([7 * number]), Slotted(8 * number)]

    given, rest = batch(1), (None, "text", b"bytes", {9})
    given[0].name = "kept"
    *doubled, others = map_leaves([*given, rest], lambda leaf: leaf * 2 if isinstance(leaf, int) else leaf)
    assert (doubled, others, given) == (batch(2), rest, batch(1))
    assert [type(one) for one in doubled] == [type(one) for one in given] and type(doubled[5].labels) is torch.Size
    assert doubled[0].name == "kept" and doubled[1]["new"] == []
    assert list(leaves([*given, rest])) == [1, 2, 3, 4, 5, 6, 7, 7, 8, *rest]
    asked: Any = [Pair(1, 2), (3,)]  # what is a leaf is asked first
    assert map_leaves(asked, str, lambda value: isinstance(value, Pair)) == ["Pair(images=1, labels=2)", ("3",)]


def test_an_error_of_the_function_is_not_taken_for_a_mapping_that_cannot_be_built() -> None:
    def fail(leaf: object) -> None:
        raise TypeError("its own")

    with pytest.raises(TypeError, match="its own"):
        map_leaves(collections.OrderedDict(a=1), fail)
