"""A dataset that is changed in the middle of a pass: without workers the next batch is what torch's loader gives then.

The loader is asked without num_workers (torch's default) and with num_workers=0. With workers, torch's have a copy of
the moment of iter(), and each value may be from before the change or from after it.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from tests.data import Doubling, Order, grey_files, in_memory, photo_files, tensor_files
from tests.same import assert_passes, assert_same

pytestmark = pytest.mark.native

SAMPLES, BATCH = 48, 6
Change = Callable[[Any], Any]
#: What is asked of the loader where torch's has num_workers=0: nothing, or that too.
LIVE: list[dict[str, Any]] = [{}, {"num_workers": 0}]


def outcomes(loader: Any, change: Change, dataset: Any, *, at: int = 2, every: bool = False) -> list[Any]:
    """Return each batch, or the type of the error in its place; `change` is called when `at` were handed out."""
    found: list[Any] = []
    batches = iter(loader)
    for number in range(2 * SAMPLES // BATCH + 1):
        if number == at or (every and number > at):
            change(dataset)
        try:
            batch = next(batches)
        except StopIteration:
            return found
        except Exception as error:
            found.append(type(error))
        else:
            found.append([torch.clone(part) if isinstance(part, torch.Tensor) else part for part in batch])
    raise AssertionError("the pass did not end")


def assert_live(make: Callable[[], Any], change: Change, *, every: bool = False, **options: Any) -> None:
    """Assert that a change is seen as torch's loader without workers sees it, in its pass and in the next one.

    With workers it must do no harm.
    """
    options = {"batch_size": BATCH, **options}

    def passes(kind: Any, **given: Any) -> list[Any]:
        dataset = make()
        loader = kind(dataset, **options, **given)
        torch.manual_seed(0)
        changed = outcomes(loader, change, dataset, every=every)
        return [*changed, *outcomes(loader, lambda dataset: None, dataset)]

    wanted = passes(torch.utils.data.DataLoader)
    for given in LIVE:
        for ours, theirs in zip(passes(penstock.DataLoader, **given), wanted, strict=True):
            if isinstance(theirs, type):
                assert isinstance(ours, type) and issubclass(ours, theirs), ours
            else:
                assert_same(ours, theirs)
    passes(penstock.DataLoader, num_workers=2)


def rows() -> torch.Tensor:
    return torch.arange(SAMPLES * 4, dtype=torch.float32).view(SAMPLES, 4)


def tensors() -> TensorDataset:
    return TensorDataset(rows(), torch.arange(SAMPLES))


def put(owner: Any, **attributes: Any) -> Any:
    """Assign attributes."""
    for name, value in attributes.items():
        setattr(owner, name, value)
    return owner


TENSOR_CHANGES: dict[str, Change] = {
    "other": lambda d: put(d, tensors=(rows() + 1000, torch.arange(SAMPLES) + 100)),
    "other shape": lambda d: put(d, tensors=(torch.ones(SAMPLES, 2, 3).double(), torch.arange(SAMPLES))),
    "other length": lambda d: put(d, tensors=(rows()[:20], torch.arange(20))),
    "exchange storage": lambda d: put(d.tensors[0], data=rows() - 5),
    "set storage": lambda d: d.tensors[0].set_(rows() - 7),
    "add in place": lambda d: d.tensors[0].add_(1),
    "by numpy": lambda d: d.tensors[0].numpy().fill(-1),
    "grow": lambda d: d.tensors[0].resize_(2 * SAMPLES, 4)[SAMPLES:].fill_(3),
    "shrink": lambda d: d.tensors[0].resize_(20, 4),
    "reshape": lambda d: d.tensors[0].resize_(SAMPLES, 2, 2),
    "empty storage": lambda d: d.tensors[0].untyped_storage().resize_(0),
    "halve storage": lambda d: d.tensors[0].untyped_storage().resize_(d.tensors[0].untyped_storage().nbytes() // 2),
    "share": lambda d: d.tensors[0].share_memory_(),
    "share and write": lambda d: d.tensors[0].share_memory_().mul_(-1),
    "require grad": lambda d: d.tensors[0].requires_grad_(),
    "transpose": lambda d: d.tensors[0].t_(),
    "conjugate": lambda d: put(d, tensors=(rows().to(torch.complex64).conj(), d.tensors[1])),
    "own method": lambda d: d.__dict__.update(__getitem__=None),  # which Python's indexing does not look at
    "another class": lambda d: put(d, __class__=Doubling),
}
share = TENSOR_CHANGES["share"]
#: Of tensors of other kinds.
FEW = {name: TENSOR_CHANGES[name] for name in ("other", "add in place", "share and write", "grow", "halve storage")}


@pytest.mark.parametrize("change", ["add in place", "share and write", "exchange storage", "other"])
def test_tensors_that_are_changed_before_each_batch(change):
    assert_live(tensors, TENSOR_CHANGES[change], every=True)


def test_the_loop_writes_into_what_it_reads():
    def sums(loader_class: Any, **options: Any) -> list[float]:
        x = torch.zeros(64)
        loader = loader_class(TensorDataset(x, torch.arange(64)), batch_size=8, **options)
        return [(value.sum().item(), x.add_(1))[0] for value, _ in loader]

    wanted = sums(torch.utils.data.DataLoader)
    assert wanted == [8.0 * number for number in range(8)]
    for given in LIVE:
        assert sums(penstock.DataLoader, **given) == wanted


def test_a_tensor_may_grow_during_and_after_a_pass():
    for options in [*LIVE, {"num_workers": 2}]:
        x = torch.zeros(10, 3)
        batches = iter(penstock.DataLoader(TensorDataset(x), batch_size=5, **options))
        next(batches)
        x.resize_(20, 3)
        list(batches)
        x.resize_(4000, 3)
        x.untyped_storage().resize_(0)


def subset(kind: Any) -> Any:
    return Subset(TensorDataset(torch.arange(1000), torch.arange(1000.0)), kind(list(range(3, 3 + SAMPLES))))


SUBSET_CHANGES: dict[str, Change] = {
    "other indices": lambda d: put(d, indices=list(range(500, 500 + SAMPLES))),
    "indices in place": lambda d: operator.setitem(
        d.indices,
        slice(None),
        torch.arange(700, 700 + SAMPLES) if isinstance(d.indices, torch.Tensor) else range(700, 700 + SAMPLES),
    ),
    "other dataset": lambda d: put(d, dataset=TensorDataset(torch.arange(1000) * 2, torch.arange(1000.0) * 3)),
    "a mask in place": lambda d: operator.setitem(d.indices, 30, True),
    "fewer indices": lambda d: put(d, indices=d.indices[:20]),
}


MOVING_INDICES: dict[str, Change] = {
    "shared indices": lambda d: d.indices.share_memory_().add_(1),
    "resized indices": lambda d: d.indices.resize_(2 * SAMPLES).fill_(5),
}


CONCAT_CHANGES: dict[str, Change] = {
    "other part": lambda d: operator.setitem(d.datasets, 1, TensorDataset(rows()[20:] * 10)),
    "other parts": lambda d: put(d, datasets=[TensorDataset(rows() * 2), TensorDataset(rows() * 3)]),
    "other sizes": lambda d: operator.setitem(d.cumulative_sizes, 0, 10),
    "within": lambda d: d.datasets[1].tensors[0].share_memory_().mul_(5),
}


def concatenated() -> Any:
    return ConcatDataset([TensorDataset(part.clone()) for part in rows().split([20, SAMPLES - 20])])


def pictures(name: str, transform: Any) -> Any:
    return in_memory(name, transform, SAMPLES, planar=False)


def steps(t: Any) -> Any:
    return t.Compose([t.CenterCrop((16, 16)), t.Pad(1), t.ToTensor() if t is v1 else v2.PILToTensor()])


def larger_data(dataset: Any) -> None:
    larger = np.random.default_rng(1).integers(0, 256, (SAMPLES, 40, 40, 3), dtype=np.uint8)
    dataset.data = larger if isinstance(dataset.data, np.ndarray) else torch.from_numpy(larger[..., 0].copy())


def resize_data(dataset: Any) -> None:
    if isinstance(dataset.data, np.ndarray):  # MNIST's own numpy() forbids that a tensor be resized
        dataset.data.resize((2 * SAMPLES, 32, 32, 3), refcheck=False)


def own_callable(dataset: Any) -> None:
    dataset.transform = lambda image: torch.from_numpy(np.array(image)).to(torch.int32)


#: Of the transform, and of the transform of labels.
STEP_CHANGES: dict[str, Change] = {
    "other transform": lambda d: put(d, transform=v1.Compose([v1.CenterCrop((8, 8)), v1.ToTensor()])),
    "other size": lambda d: put(d.transform.transforms[0], size=(12, 12)),
    "other step": lambda d: operator.setitem(d.transform.transforms, 1, v1.Pad(3)),
    "own function": lambda d: d.transform.transforms.append(v1.Lambda(lambda image: image.to(torch.float32) * 2)),
    "own callable": own_callable,
    "no transform": lambda d: put(d, transform=None),
    "hook": lambda d: d.transform.transforms[1].register_forward_hook(lambda module, given, made: made.rotate(90)),
    "label transform": lambda d: put(d, target_transform=lambda label: label + 1000),
}
IMAGE_CHANGES: dict[str, Change] = {
    **STEP_CHANGES,
    "one step more": lambda d: d.transform.transforms.insert(0, v1.Pad(2)),
    "other padding": lambda d: put(d.transform.transforms[1], padding=4),
    "labels in place": lambda d: [operator.setitem(d.targets, at, label) for at, label in ((13, -3), (47, -4))],
    "other labels": lambda d: put(d, targets=list(range(100, 100 + SAMPLES))),
    "labels of text": lambda d: put(d, targets=[str(number) for number in range(SAMPLES)]),
    "other data": lambda d: put(d, data=255 - d.data),
    "larger data": larger_data,
    "data in place": lambda d: operator.setitem(d.data, slice(None), 255 - d.data),
    "resized data": resize_data,
}


def means(dataset: Any) -> None:
    dataset.transform.transforms[1].mean[0] = 0.1


NORMALISED = v1.Normalize([0.5, 0.5, 0.5], [0.2, 0.2, 0.2])
IN_MEMORY: dict[str, tuple[Callable[..., Any], dict[str, Change]]] = {
    "tensors": (tensors, TENSOR_CHANGES),
    "strided": (lambda: TensorDataset(rows().t().contiguous().t(), torch.arange(SAMPLES)), FEW),
    "sliced": (lambda: TensorDataset(rows().repeat(1, 2)[:, 2:6], torch.arange(SAMPLES)), FEW),
    "parameter": (lambda: TensorDataset(torch.nn.Parameter(rows(), requires_grad=False), torch.arange(SAMPLES)), FEW),
    "arrays": (lambda: penstock.Arrays(rows(), torch.arange(SAMPLES)), FEW),
    "arrays with numpy": (lambda: penstock.Arrays(rows(), np.arange(SAMPLES)), FEW),
    "expanded": (lambda: TensorDataset(torch.arange(4.0).expand(SAMPLES, 4)), {"share": share}),
    "list of tensors": (
        lambda: put(tensors(), tensors=list(tensors().tensors)),
        {"in place": lambda d: operator.setitem(d.tensors, 0, rows() + 9)},
    ),
    "subset by list": (lambda: subset(list), SUBSET_CHANGES),
    "subset by tensor": (lambda: subset(torch.tensor), {**SUBSET_CHANGES, **MOVING_INDICES}),
    "subset by array": (lambda: subset(np.array), SUBSET_CHANGES),
    "concatenated": (concatenated, CONCAT_CHANGES),
    **{
        f"{name} {t.__name__}": (lambda name=name, t=t: pictures(name, steps(t)), IMAGE_CHANGES)
        for name in ("CIFAR10", "MNIST")
        for t in (v1, v2)
    },
    "MNIST": (
        lambda: pictures("MNIST", v1.ToTensor()),
        {"moves": lambda d: (d.data.share_memory_().fill_(77), d.targets.share_memory_().fill_(7))},
    ),
    "normalised": (
        lambda: pictures("CIFAR10", v1.Compose([v1.ToTensor(), copy.deepcopy(NORMALISED)])),
        {"means in place": means},
    ),
}


def each_change(table: dict[str, tuple[Callable[..., Any], dict[str, Change]]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("make", "change"),
        [
            pytest.param(make, change, id=f"{name}-{what}")
            for name, (make, changes) in table.items()
            for what, change in changes.items()
        ],
    )


@each_change(IN_MEMORY)
def test_changes_in_memory(make, change):
    assert_live(make, change)


def test_the_default_dtype():
    def make() -> Any:
        torch.set_default_dtype(torch.float32)
        return pictures("MNIST", v1.ToTensor())

    try:
        assert_live(make, lambda dataset: torch.set_default_dtype(torch.float64))
    finally:
        torch.set_default_dtype(torch.float32)


def test_one_size_a_batch():
    def make() -> Any:
        return put(pictures("CIFAR10", steps(v1)), sizes=iter(range(5, 100)))

    assert_live(make, lambda d: put(d.transform.transforms[0], size=(next(d.sizes),) * 2), every=True)


def test_random_draws_are_those_of_a_pass_with_the_other_transform():
    """The draws of a sample do not depend on how often the plan was made."""

    def batches(change: Change, **options: Any) -> list[Any]:
        dataset = pictures("CIFAR10", v1.Compose([v1.RandomCrop(16), v1.PILToTensor()]))
        return outcomes(penstock.DataLoader(dataset, batch_size=BATCH, seed=3, **options), change, dataset)

    for options in LIVE:
        as_they_were = batches(lambda dataset: None, **options)
        padded = batches(lambda dataset: dataset.transform.transforms.insert(1, v1.Pad(1)), **options)
        assert_same(padded[:2], as_they_were[:2])
        for (ours, _), (theirs, _) in zip(padded[2:], as_they_were[2:], strict=True):
            assert_same(ours[:, :, 1:-1, 1:-1].contiguous(), theirs)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return photo_files(tmp_path_factory.mktemp("images"), SAMPLES, (20, 25))


def three_tuple(dataset: Any) -> Any:
    for at in (14, 40):
        dataset.samples[at] = (*dataset.samples[14], "more")
    return dataset


def other_file(dataset: Any, *changes: tuple[int, int]) -> None:
    for at, label in changes:
        dataset.samples[at] = (dataset.samples[20][0], label)


FILE_CHANGES: dict[str, Change] = {
    **STEP_CHANGES,
    "other samples": lambda d: put(d, samples=[(path, 10 + label) for path, label in reversed(d.samples)]),
    "samples in place": lambda d: other_file(d, (14, 7), (47, 8)),
    "three in a tuple": three_tuple,
    "more samples": lambda d: d.samples.append(d.samples[0]),
    "fewer samples": lambda d: operator.delitem(d.samples, slice(30, None)),
    "own loader": lambda d: put(d, loader=lambda path: Image.open(path).convert("RGB").rotate(180)),
}


def reverse_indices(dataset: Any) -> None:
    dataset.indices[12:] = dataset.indices[:11:-1]


def photos(root: Path, *more: Any) -> Any:
    return torchvision.datasets.ImageFolder(str(root), v1.Compose([*steps(v1).transforms, *more]))


OURS = ("other transform", "other size", "own function", "label transform", "no transform")
FILES: dict[str, tuple[Callable[..., Any], dict[str, Change]]] = {
    "recognised": (photos, FILE_CHANGES),
    "assisted": (lambda root: photos(root, v1.Lambda(lambda image: image + 1)), FILE_CHANGES),
    "our folder": (lambda root: penstock.ImageFolder(root, steps(v1)), {name: STEP_CHANGES[name] for name in OURS}),
    "subset": (lambda root: Subset(photos(root), list(range(SAMPLES))), {"indices": reverse_indices}),
    "no pairs": (lambda root: three_tuple(photos(root)), {"none": lambda dataset: None}),  # torchvision's error
}


@each_change(FILES)
def test_image_files(root, make, change):
    assert_live(lambda: make(root), change)


def test_tensor_folder(tmp_path):
    tensor_files(tmp_path, SAMPLES, (2, 3), "{:03}")
    labels = {f"{number:03}": number for number in range(SAMPLES)}
    for change in ({"transform": lambda tensor: tensor * 2}, {"target_transform": lambda number: number + 50}):
        make = functools.partial(penstock.TensorFolder, tmp_path, labels=labels)
        assert_live(make, lambda dataset, change=change: put(dataset, **change))  # type: ignore[misc]


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 2, "persistent_workers": True}])
def test_the_next_pass_is_native_again(options):
    dataset = pictures("CIFAR10", steps(v1))
    loader = penstock.DataLoader(dataset, batch_size=BATCH, **options)
    before = dataset.transform
    outcomes(loader, own_callable, dataset)
    dataset.transform = before
    assert_passes(loader, list(torch.utils.data.DataLoader(dataset, batch_size=BATCH)))
    assert "gather" in loader.explain()


def test_bad_samples_are_replaced_after_a_change(tmp_path):
    tensor_files(tmp_path, SAMPLES, (3,), "{:03}")
    (tmp_path / "030.pt").write_bytes(b"no tensor")
    how: dict[str, Any] = {"seed": 0, "on_error": penstock.Replace(max_share=0.5)}
    for options in LIVE:
        dataset = penstock.TensorFolder(tmp_path)
        values: list[float] = []
        for number, batch in enumerate(penstock.DataLoader(dataset, batch_size=BATCH, **how, **options)):
            values += batch[:, 0].tolist()
            if number == 1:
                dataset.transform = lambda tensor: tensor * 2
        assert values.pop(30) != 60
        assert values == [number * (1.0 if number < 12 else 2.0) for number in range(SAMPLES) if number != 30]


def test_a_change_between_batches_of_two_iterators():
    for options in LIVE:
        dataset = tensors()
        loader = penstock.DataLoader(dataset, batch_size=BATCH, **options)
        first, second = iter(loader), iter(loader)
        next(first)
        dataset.tensors = (dataset.tensors[0] + 1, dataset.tensors[1])
        assert next(second)[0][0, 0] == 1 and next(first)[0][0, 0] == 4 * BATCH + 1
        share(dataset)
        assert len(list(first)) == SAMPLES // BATCH - 2 and len(list(second)) == SAMPLES // BATCH - 1


def test_batch_at_sees_the_dataset_as_it_is():
    dataset = tensors()
    loader = penstock.DataLoader(dataset, batch_size=BATCH, seed=1)
    before = loader.batch_at(0, 1)
    share(dataset)
    assert_same(loader.batch_at(0, 1), before)
    dataset.tensors[0].add_(1)
    assert_same(loader.batch_at(0, 1)[0], before[0] + 1)


def test_a_large_number_of_rows_keeps_its_order() -> None:
    """The caller fills beside the threads: each row is its own all the same."""
    x = torch.arange(200_000 * 16, dtype=torch.int64).view(200_000, 16)
    assert torch.equal(torch.cat([batch for (batch,) in penstock.DataLoader(TensorDataset(x), batch_size=4096)]), x)


def test_labels_stay_with_their_images(tmp_path):
    """The list is shuffled in place while batches are read ahead: each image still comes with its own label."""
    grey_files(tmp_path, SAMPLES, 8)
    rng = np.random.default_rng(0)
    for options in [*LIVE, {"num_workers": 2}]:
        dataset = torchvision.datasets.ImageFolder(str(tmp_path), v1.Compose([v1.CenterCrop(8), v1.PILToTensor()]))
        dataset.samples = [(path, number) for number, (path, _) in enumerate(dataset.samples)]
        for images, labels in penstock.DataLoader(dataset, batch_size=BATCH, **options):
            assert torch.equal(images[:, 0, 0, 0].long(), labels)
            rng.shuffle(dataset.samples)


@pytest.mark.parametrize("options", LIVE)
def test_memory_is_not_read_ahead_and_files_are(tmp_path, options):
    """What a sampler was asked for shows how far a pass is ahead."""
    sampler = Order(range(SAMPLES))
    batches = iter(penstock.DataLoader(tensors(), batch_size=BATCH, sampler=sampler, **options))
    assert sampler.asked == 0
    for number in range(1, 4):
        next(batches)
        assert sampler.asked == number * BATCH
