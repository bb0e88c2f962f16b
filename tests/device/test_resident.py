"""Datasets that live on a device: their batches are the host's, bit for bit. The device is the CPU here."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
import penstock._native as _native
from penstock.device import resident, stores
from penstock.device.arithmetic import Arithmetic
from penstock.device.feed import Feed
from penstock.device.gathering import ResidentFiller
from penstock.device.moving import finish
from penstock.device.resident import Resident, ResidentPlan, Watch
from penstock.executors.buffers import Buffers
from penstock.executors.filler import PassInput, PassResources
from penstock.executors.iterator import Pass
from penstock.order.batches import as_indices, with_sample_numbers
from penstock.order.permutations import InSequence, KeyedShuffle
from penstock.order.schedule import Schedule, cut
from penstock.plan import NativePlan, plan
from penstock.recipe.reader import read
from penstock.recipe.steps import Recipe, Refusal
from tests.photos import in_memory
from tests.same import assert_same, outcomes
from tests.sample_datasets import tensor_files

pytestmark = pytest.mark.native

CPU = torch.device("cpu")
CIFAR = ((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))
MNIST = ((0.13,), (0.31,))
DATASETS = torchvision.datasets


def native_plan(dataset: Any, *, raw: bool = False) -> NativePlan:
    made = plan(dataset, batched=True, collate_fn=None, worker_init_fn=None, raw=raw)
    assert isinstance(made, NativePlan), made
    return made


def hold(dataset: Any, *, raw: bool = False) -> ResidentPlan:
    held = Resident(CPU).hold(native_plan(dataset, raw=raw))
    assert isinstance(held, ResidentPlan), held
    return held


def refusal(dataset: Any) -> str:
    """Return why a dataset stays on the host."""
    kept, made = Resident(CPU), native_plan(dataset)
    refused = kept.hold(made)
    assert isinstance(refused, Refusal)
    assert kept.refusal(made) == refused
    assert refused.why in kept.explain(made)
    return refused.why


def gathering(held: ResidentPlan, batches: Iterator[Any], *, seed: int = 7, epoch: int = 0, workers: int = 2) -> Pass:
    resources = PassResources(workers, None, Buffers(pinned=False, keep=1))
    return Pass(
        ResidentFiller(held, resources),
        PassInput(with_sample_numbers(batches, 0, batched=True), None, seed, epoch),
    )


def gathered(dataset: Any, batches: Iterator[Any], *, raw: bool = False, **key: Any) -> list[Any]:
    """Return the batches that a device makes, with what its Feed does last."""
    held = hold(dataset, raw=raw)
    table = held.plan.table
    assert (table is not None) == raw
    made = list(gathering(held, batches, **key))
    return made if table is None else [finish(Arithmetic(table), batch, Feed("cpu")) for batch in made]


def in_order(dataset: Any, size: int = 16, *, epoch: int = 0, shuffle: bool = True, drop_last: bool = False) -> Any:
    number = len(dataset)
    order = KeyedShuffle(number, 7, epoch) if shuffle else InSequence()
    return (indices for indices, _ in cut(lambda: order, Schedule(number, size, drop_last)))


def assert_equal(dataset: Any, *, raw: bool = False, size: int = 16, epochs: int = 2, **how: Any) -> None:
    """Assert that all batches of some epochs are those of the loader on the host."""
    loader = penstock.DataLoader(dataset, batch_size=size, num_workers=1, seed=7, **{"shuffle": True, **how})
    for epoch in range(epochs):
        wanted = list(loader)
        assert_same(gathered(dataset, in_order(dataset, size, epoch=epoch, **how), raw=raw, epoch=epoch), wanted)


def images(name: str, *steps: Any, t: Any = v1, planar: bool = True, samples: int = 50) -> Any:
    return in_memory(name, t.Compose(steps), samples, planar=planar)


def to_float(t: Any, statistics: Any = CIFAR) -> list[Any]:
    scaled = [t.ToTensor()] if t is v1 else [t.ToImage(), t.ToDtype(torch.float32, scale=True)]
    return [*scaled, t.Normalize(*statistics)]


# --- images ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_crops_in_every_padding_mode(t: Any, mode: str) -> None:
    steps = [t.RandomCrop(32, padding=4, padding_mode=mode), t.RandomHorizontalFlip(), *to_float(t)]
    for raw in (False, True):
        for planar in (False, True):
            assert_equal(images("CIFAR10", *steps, t=t, planar=planar), raw=raw)


PIPELINES: dict[str, list[Any]] = {
    "nothing": [],
    "both flips": [v1.RandomHorizontalFlip(0.4), v1.RandomVerticalFlip(0.6)],
    "uneven pad": [v1.Pad((1, 2, 3, 4), fill=(9, 80, 200))],
    "two fills": [v1.Pad((3, 0, 1, 5), fill=200), v1.RandomCrop(44, padding=(6, 4), fill=(1, 2, 3))],
    "fill, then edge": [v1.Pad(2, fill=90), v1.RandomCrop(36, padding=3, padding_mode="edge")],
    "reflected fill": [v1.RandomVerticalFlip(), v1.Pad(2, fill=90), v1.Pad(4, padding_mode="reflect")],
    "centre, larger": [v1.RandomHorizontalFlip(), v1.CenterCrop((41, 50))],
    "centre, smaller": [v1.CenterCrop((20, 7)), v1.RandomHorizontalFlip()],
    "only where needed": [v1.RandomCrop((40, 20), pad_if_needed=True, fill=77)],
    "resized to its size": [v1.Resize(32), v1.RandomCrop(32, padding=4)],
}


@pytest.mark.parametrize("steps", PIPELINES.values(), ids=PIPELINES.keys())
def test_what_moves_pixels(steps: list[Any]) -> None:
    assert_equal(images("CIFAR10", *steps, v1.PILToTensor()), epochs=1)
    for raw in (False, True):
        assert_equal(images("CIFAR100", *steps, *to_float(v1), planar=False), raw=raw)


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
@pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])
def test_grey_images(name: str, t: Any) -> None:
    moves = [t.RandomCrop(28, padding=3, fill=50), t.RandomHorizontalFlip(), t.Pad(2, fill=7), t.CenterCrop(34)]
    for raw in (False, True):
        assert_equal(images(name, *moves, *to_float(t, MNIST), t=t), raw=raw)
    assert_equal(images(name, *moves, t.PILToTensor(), t=t))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8], ids=str)
def test_dtypes_that_a_table_gives(dtype: torch.dtype) -> None:
    crop = v2.RandomCrop(32, padding=4, fill=31)
    assert_equal(images("CIFAR10", crop, v2.ToImage(), v2.ToDtype(dtype, scale=True), t=v2))


def test_padding_after_the_conversion() -> None:
    moves = [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip()]  # zeros, which no pixel becomes
    dataset = images("CIFAR10", *to_float(v1), *moves)
    assert native_plan(dataset, raw=True).table is None
    assert_equal(dataset)


def test_axis_maps_are_those_of_the_draws() -> None:
    recipe = read(v1.Compose([v1.RandomCrop(8, padding=2), v1.RandomVerticalFlip(), v1.ToTensor()]), mode="L")
    assert isinstance(recipe, Recipe)
    samples = np.array([3, 900, -1], dtype=np.int64)
    maps = np.empty((3, 16), dtype=np.int32)
    positions = np.array([0, 2**40, 7], dtype=np.int64)
    _native.axis_maps(recipe.native, 5, 2, samples, positions, 9, 10, maps)
    for sample, position, row in zip(samples.tolist(), positions.tolist(), maps, strict=True):
        (top, left, *_), flipped = _native.draw(recipe.native, 5, 2, sample & 0xFFFFFFFFFFFFFFFF, position, 9, 10)
        across = [x if 0 <= x < 9 else -1 for x in range(left - 2, left + 6)]
        down = [y if 0 <= y < 10 else -1 for y in range(top - 2, top + 6)]
        assert row.tolist() == [*(down[::-1] if flipped else down), *across]


def test_axis_maps_refuse_what_does_not_fit() -> None:
    recipe, resizing = (
        read(v1.Compose([*steps, v1.ToTensor()]), mode="L") for steps in ([v1.Pad(1)], [v1.Pad(1), v1.Resize(4)])
    )
    assert isinstance(recipe, Recipe) and isinstance(resizing, Recipe)
    samples = np.arange(2, dtype=np.int64)
    assert _native.map_size(recipe.native, 4, 3) == (5, 6)
    assert _native.map_size(resizing.native, 4, 3) is None
    for native, shape, size in (
        (recipe.native, (2, 10), (4, 3)),
        (recipe.native, (3, 11), (4, 3)),
        (recipe.native, (2, 2), (0, 0)),
        (resizing.native, (2, 11), (4, 3)),
    ):
        with pytest.raises(ValueError):
            _native.axis_maps(native, 0, 0, samples, samples, *size, np.empty(shape, dtype=np.int32))
    with pytest.raises(ValueError):
        _native.axis_maps(recipe.native, 0, 0, samples, samples[:1], 4, 3, np.empty((2, 11), dtype=np.int32))


# --- rows ------------------------------------------------------------------------------------------------------------


def columns(samples: int = 53) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    numbers = torch.randint(0, 200, (samples, 3, 5), generator=generator)
    kinds = (torch.float32, torch.uint8, torch.int64, torch.bfloat16, torch.bool, torch.complex128, torch.int16)
    rows = [numbers.to(kind) for kind in kinds]
    wide = numbers.float()[:, :, :4]  # rows with gaps between them
    single = [torch.arange(samples), torch.arange(samples) % 2 == 0, torch.arange(samples).to(torch.complex128)]
    return [*rows, wide[:, 0], *single, numbers[:, :, :0].contiguous()]


def test_rows_of_every_kind() -> None:
    assert_equal(TensorDataset(*columns()), epochs=1)
    assert_equal(penstock.Arrays(*columns()), epochs=1)
    assert_equal(TensorDataset(columns()[0]), epochs=1)


def test_pieces_of_memory_mapped_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_PIECE", 1000)
    rng = np.random.default_rng(1)
    for name, array in (("x", rng.normal(size=(300, 11))), ("y", rng.integers(0, 9, 300))):
        np.save(tmp_path / f"{name}.npy", array)
    assert_equal(penstock.Arrays(tmp_path / "x.npy", tmp_path / "y.npy"), epochs=1)
    assert_equal(images("CIFAR10", *to_float(v1)), epochs=1)


# --- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("size", [1, 7, 25, 60])
def test_batches_of_any_size(size: int, shuffle: bool, drop_last: bool) -> None:
    crop = images("CIFAR10", v1.RandomCrop(32, padding=4), *to_float(v1))
    assert_equal(crop, raw=True, size=size, shuffle=shuffle, drop_last=drop_last)


def test_workers_make_no_difference() -> None:
    dataset = images("CIFAR10", v1.RandomCrop(32, padding=4), v1.PILToTensor())
    few = gathered(dataset, in_order(dataset, 3), workers=0)
    assert_same(few, gathered(dataset, in_order(dataset, 3), workers=4))


def test_a_sampler_of_the_users() -> None:
    dataset = images("CIFAR10", v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), *to_float(v1))
    sampler: Any = [[4, 4, -1], [torch.tensor(3)], [np.int64(9), 0, -50], list(range(40))]
    wanted = list(penstock.DataLoader(dataset, batch_sampler=sampler, seed=7, num_workers=1))
    assert_same(gathered(dataset, map(as_indices, sampler), raw=True), wanted)


def test_what_is_no_index_goes_to_the_dataset() -> None:
    dataset = TensorDataset(torch.arange(10), torch.arange(10) * 2)
    sampler: Any = [[1, 2], [slice(0, 3), slice(3, 6)], [5]]
    wanted = list(penstock.DataLoader(dataset, batch_sampler=sampler, num_workers=1))
    assert_same(gathered(dataset, map(as_indices, sampler)), wanted)


def test_errors_are_raised_at_their_batch() -> None:
    dataset = images("CIFAR10", *to_float(v1))
    good = np.arange(4, dtype=np.int64)
    batches = [good, good, good + 48, good, np.array([-51]), good]
    found = outcomes(gathering(hold(dataset, raw=True), iter(batches)))
    told = "index {} is out of range for a dataset of 50 samples".format
    said = [one[1] if isinstance(one, tuple) else len(one[1]) for one in found]
    assert said == [4, 4, told(50), 4, told(-51), 4]


def test_an_error_of_the_sampler() -> None:
    def sampler() -> Iterator[Any]:
        for number in range(5):
            yield np.array([number])
        raise KeyError("no more")

    made = gathering(hold(TensorDataset(torch.arange(10))), sampler())
    assert [int(next(made)[0]) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="no more"):
        next(made)
    assert list(made) == []


# --- labels ----------------------------------------------------------------------------------------------------------


def test_labels_of_every_kind() -> None:
    targets: list[Any] = [
        [0.5 * i for i in range(50)],
        [f"class {i}" for i in range(50)],
        [(i, str(i)) for i in range(50)],
    ]
    for labels in targets:
        dataset = images("CIFAR10", v1.ToTensor())
        dataset.targets = labels
        assert_equal(dataset, epochs=1)


def test_labels_by_a_function() -> None:
    dataset = images("CIFAR10", v1.ToTensor())
    asked: list[int] = []

    def double(label: int) -> int:
        asked.append(label)
        return 2 * label

    dataset.target_transform = double
    assert_equal(dataset, epochs=1)
    assert len(asked) == 100  # once a sample, by either way


def test_labels_follow_the_dataset() -> None:
    dataset = images("CIFAR10", v1.ToTensor())
    kept = Resident(CPU)
    for change in (0, 1, 2):
        dataset.targets[3] = 70 + change
        held = kept.hold(native_plan(dataset))
        assert isinstance(held, ResidentPlan)
        [batch] = gathering(held, iter([np.arange(5, dtype=np.int64)]))
        assert int(batch[1][3]) == 70 + change


# --- Subset and ConcatDataset ----------------------------------------------------------------------------------------


def test_parts_and_joins() -> None:
    crop = v1.RandomCrop(32, padding=4, fill=(1, 2, 3))
    train = images("CIFAR10", v1.Pad(1, fill=9), crop, v1.RandomHorizontalFlip(), *to_float(v1), samples=30)
    other = images("CIFAR10", v1.RandomCrop(32, padding=2, fill=200), *to_float(v1), planar=False, samples=20)
    plain = images("CIFAR100", *to_float(v1), samples=20)
    joined: Any = ConcatDataset([Subset(train, [5, 3, 3, 28]), other, plain, Subset(train, range(10, 20))])
    for raw in (False, True):
        assert_equal(Subset(train, [5, 3, 3, 28]), raw=raw, size=3)
        assert_equal(joined, raw=raw, size=9)
        assert_equal(Subset(joined, list(range(0, 50, 3))), raw=raw, size=4)


def test_joined_rows_and_labels() -> None:
    few, many = TensorDataset(*columns(5)), penstock.Arrays(*columns(40))
    assert_equal(ConcatDataset([few, many, few]), epochs=1)
    floats = images("CIFAR10", v1.ToTensor())
    floats.targets = [0.25] * 50
    assert_equal(ConcatDataset([floats, images("CIFAR10", v1.ToTensor())]), size=40)


# --- what stays on the host ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        [v1.Resize(40)],
        [v1.RandomResizedCrop(32)],
        [v1.Grayscale(3)],
        [v1.RandomCrop(50)],
        [v1.Pad(20, padding_mode="reflect"), v1.Resize(16)],
    ],
    ids=str,
)
def test_other_recipes_stay_on_the_host(steps: list[Any]) -> None:
    assert "resized" in refusal(images("CIFAR10", *steps, v1.ToTensor()))


def test_files_stay_on_the_host(tmp_path: Path) -> None:
    files = penstock.TensorFolder(tensor_files(tmp_path, 3, (4,), "{}"))
    assert "files *.pt" in refusal(files)
    arrays: Any = ConcatDataset([TensorDataset(torch.zeros(3, 4)), TensorDataset(torch.zeros(2, 4))])
    hold(arrays)
    labelled = penstock.TensorFolder(tmp_path, labels={str(number): number for number in range(3)})
    mixed: Any = ConcatDataset([images("MNIST", v1.ToTensor()), labelled])
    assert "not in memory" in refusal(mixed)


def test_datasets_that_differ_stay_on_the_host() -> None:
    bytes_, floats = (images("CIFAR10", step) for step in (v1.PILToTensor(), v1.ToTensor()))
    assert "differently" in refusal(ConcatDataset([floats, images("CIFAR10", *to_float(v1))]))
    assert "different shapes" in refusal(ConcatDataset([bytes_, images("CIFAR10", v1.CenterCrop(8), v1.PILToTensor())]))
    small = images("CIFAR10", v1.CenterCrop(16), v1.PILToTensor())
    small.data = np.ascontiguousarray(small.data[:, :20, :20])
    assert "sizes" in refusal(ConcatDataset([images("CIFAR10", v1.CenterCrop(16), v1.PILToTensor()), small]))


def test_what_does_not_fit_stays_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = TensorDataset(torch.zeros(1000, 250))  # 1 MB
    monkeypatch.setattr(resident, "available", lambda device: 1_300_000)
    assert "1.0 MB of arrays do not fit on cpu, which has 1.3 MB left" in refusal(dataset)
    monkeypatch.setattr(resident, "available", lambda device: 1_400_000)
    kept, made = Resident(CPU), native_plan(dataset)
    assert "1.0 MB of arrays on cpu" in kept.explain(made)
    assert isinstance(kept.hold(made), ResidentPlan)
    monkeypatch.setattr(resident, "available", lambda device: 0)  # nothing more is needed
    assert isinstance(kept.hold(native_plan(dataset)), ResidentPlan)
    assert isinstance(kept.hold(native_plan(TensorDataset(torch.zeros(9)))), Refusal)


def test_an_allocation_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def rows(parts: Any, device: torch.device) -> Any:
        tries.append(len(parts[0]))
        if len(parts[0]) == 10:
            raise torch.OutOfMemoryError("no room")
        return stores.Rows(parts, device)

    monkeypatch.setattr(resident, "Rows", rows)
    kept, large, small = Resident(CPU), TensorDataset(torch.zeros(10)), TensorDataset(torch.zeros(9))
    for _ in range(2):
        refused = kept.hold(native_plan(large))
        assert isinstance(refused, Refusal) and "no room" in refused.why
    assert isinstance(kept.hold(native_plan(small)), ResidentPlan)
    assert tries == [10, 9]


# --- from pass to pass -----------------------------------------------------------------------------------------------


def test_arrays_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = images("CIFAR10", v1.ToTensor())
    kept = Resident(CPU)
    first = kept.hold(native_plan(dataset))
    dataset.transform = v1.Compose([v1.RandomCrop(32, padding=4, fill=3), v1.ToTensor()])
    second = kept.hold(native_plan(dataset))
    assert isinstance(first, ResidentPlan) and isinstance(second, ResidentPlan)
    assert second.stores[0] is first.stores[0]
    [batch] = gathering(second, iter([np.arange(50)]))
    [wanted] = penstock.DataLoader(dataset, batch_size=50, seed=7, num_workers=1)
    assert_same(batch, wanted)


def test_arrays_that_changed_are_copied_anew() -> None:
    pixels, tensor = images("CIFAR10", v1.PILToTensor()), images("MNIST", v1.PILToTensor())
    array = np.arange(3000).reshape(100, 30)
    rows = penstock.Arrays(array)

    def replace(dataset: Any) -> None:
        dataset.data = dataset.data.copy() if isinstance(dataset.data, np.ndarray) else dataset.data.clone()

    def one_pixel(dataset: Any) -> None:
        dataset.data[49, 27, 27] += 1

    def swap(dataset: Any) -> None:
        dataset.data[[0, 40]] = dataset.data[[40, 0]]

    def one_number(dataset: Any) -> None:
        array[99, 29] += 1

    def order(dataset: Any) -> None:
        array[0] = array[0, ::-1].copy()

    kept = Resident(CPU)
    cases: list[tuple[Any, Any]] = [(pixels, replace), (pixels, one_pixel), (pixels, swap)]
    for dataset, change in [*cases, (tensor, replace), (tensor, one_pixel), (rows, one_number), (rows, order)]:
        before = kept.hold(native_plan(dataset))
        assert isinstance(before, ResidentPlan)
        assert kept._stores[0] is before.stores[0]
        change(dataset)
        after = kept.hold(native_plan(dataset))
        assert isinstance(after, ResidentPlan)
        assert after.stores[0] is not before.stores[0]
        [batch] = gathering(after, iter([np.arange(50)]))
        [wanted] = penstock.DataLoader(Subset(dataset, range(50)), batch_size=50, num_workers=1)
        assert_same(batch, wanted)


def test_one_byte_of_a_large_array_is_noticed() -> None:
    array = np.zeros(1 << 23, dtype=np.uint8)
    tensor = torch.from_numpy(array)
    watch = Watch(tensor)
    assert all(watch.same(tensor) for _ in range(3))
    array[5000] = 1
    assert not watch.same(tensor)
    array[5000] = 0
    assert watch.same(tensor)


def test_gaps_between_rows_are_not_watched() -> None:
    wide = torch.zeros(10, 8)
    watch = Watch(wide[:, :4])
    assert watch.same(wide[:, :4])
    assert not watch.same(wide[:, :5])
    wide += 1
    assert not watch.same(wide[:, :4])  # torch has counted it


def test_a_batch_has_memory_of_its_own() -> None:
    dataset = images("MNIST", v1.PILToTensor())
    batches = list(in_order(dataset, 4))
    wanted = gathered(dataset, iter(batches))
    kept = []
    for batch in gathering(hold(dataset), iter(batches)):
        kept.append([field.clone() for field in batch])
        for field in batch:
            assert field.untyped_storage().nbytes() == field.nbytes
            field.zero_()
    assert_same(kept, wanted)
    assert_same(gathered(dataset, iter(batches)), wanted)


def test_a_pass_can_be_closed_and_begun_again() -> None:
    held = hold(TensorDataset(torch.arange(20)))
    made = gathering(held, iter(np.arange(20).reshape(10, 2)))
    next(made)
    made.close()
    assert list(made) == []
    again = ResidentFiller(held, PassResources(2, None, Buffers(pinned=False, keep=1)))
    made.begin(PassInput(iter([(np.arange(3), range(3))]), 1, 0, 0), again)
    assert [batch[0].tolist() for batch in made] == [[0, 1, 2]]


def test_nothing_outlives_its_owner() -> None:
    kept = Resident(CPU)
    held = kept.hold(native_plan(TensorDataset(torch.arange(20))))
    assert isinstance(held, ResidentPlan)
    store = weakref.ref(held.stores[0])
    made = gathering(held, iter(np.arange(20).reshape(10, 2)))
    next(made)
    del held, made, kept
    gc.collect()
    assert store() is None
