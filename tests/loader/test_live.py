"""A dataset that is changed in the middle of a pass: without workers the next batch is what torch's loader gives then.

The loader is asked without num_workers (torch's default) and with num_workers=0. With workers, torch's have a copy of
the moment of iter(), and each value may be from before the change or from after it.
"""

from __future__ import annotations

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
from tests.same import assert_same

pytestmark = pytest.mark.native

SAMPLES, BATCH = 48, 6
Change = Callable[[Any], Any]
#: What is asked of the loader where torch's has num_workers=0: nothing, or that too.
LIVE: list[dict[str, Any]] = [{}, {"num_workers": 0}]


def outcomes(loader: Any, change: Change, dataset: Any, *, at: int = 2, every: bool = False) -> list[Any]:
    """Return each batch, or the type of the error in its place; `change` is called when `at` were handed out."""
    found: list[Any] = []
    batches = iter(loader)
    for number in range(SAMPLES // BATCH + 1):
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
    """Assert that a change is seen as torch's loader without workers sees it, and does no harm with workers."""
    options = {"batch_size": BATCH, **options}
    dataset = make()
    torch.manual_seed(0)
    wanted = outcomes(torch.utils.data.DataLoader(dataset, **options), change, dataset, every=every)
    for given in LIVE:
        dataset = make()
        torch.manual_seed(0)
        found = outcomes(penstock.DataLoader(dataset, **options, **given), change, dataset, every=every)
        assert len(found) == len(wanted)
        for ours, theirs in zip(found, wanted, strict=True):
            if isinstance(theirs, type):
                assert isinstance(ours, type) and issubclass(ours, theirs), ours
            else:
                assert_same(ours, theirs)
    dataset = make()
    for _ in outcomes(penstock.DataLoader(dataset, **options, num_workers=2), change, dataset, every=every):
        pass


# --- tensors ----------------------------------------------------------------------------------------------------------


def rows() -> torch.Tensor:
    return torch.arange(SAMPLES * 4, dtype=torch.float32).view(SAMPLES, 4)


def tensors() -> TensorDataset:
    return TensorDataset(rows(), torch.arange(SAMPLES))


def other(dataset: Any) -> None:
    dataset.tensors = (rows() + 1000, torch.arange(SAMPLES) + 100)


def of_other_shape(dataset: Any) -> None:
    dataset.tensors = (torch.ones(SAMPLES, 2, 3, dtype=torch.float64), torch.arange(SAMPLES))


def of_other_length(dataset: Any) -> None:
    dataset.tensors = (rows()[:20], torch.arange(20))


def exchange_storage(dataset: Any) -> None:
    dataset.tensors[0].data = rows() - 5


def set_storage(dataset: Any) -> None:
    dataset.tensors[0].set_(rows() - 7)


def add_in_place(dataset: Any) -> None:
    dataset.tensors[0].add_(1)


def by_numpy(dataset: Any) -> None:
    dataset.tensors[0].numpy()[:] = -1


def grow(dataset: Any) -> None:
    dataset.tensors[0].resize_(2 * SAMPLES, 4)[SAMPLES:] = 3


def shrink(dataset: Any) -> None:
    dataset.tensors[0].resize_(20, 4)


def reshape(dataset: Any) -> None:
    dataset.tensors[0].resize_(SAMPLES, 2, 2)


def empty_storage(dataset: Any) -> None:
    dataset.tensors[0].untyped_storage().resize_(0)


def halve_storage(dataset: Any) -> None:
    storage = dataset.tensors[0].untyped_storage()
    storage.resize_(storage.nbytes() // 2)


def share(dataset: Any) -> None:
    dataset.tensors[0].share_memory_()


def share_and_write(dataset: Any) -> None:
    dataset.tensors[0].share_memory_().mul_(-1)


def require_grad(dataset: Any) -> None:
    dataset.tensors[0].requires_grad_()


def transpose(dataset: Any) -> None:
    dataset.tensors[0].t_()


def conjugate(dataset: Any) -> None:
    dataset.tensors = (rows().to(torch.complex64).conj(), dataset.tensors[1])


def by_own_method(dataset: Any) -> None:
    dataset.__dict__["__getitem__"] = None  # which Python's indexing does not look at


def become_another_class(dataset: Any) -> None:
    class Doubling(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            first, *rest = super().__getitem__(index)
            return (first * 2, *rest)

    dataset.__class__ = Doubling


TENSOR_CHANGES = [
    other,
    of_other_shape,
    of_other_length,
    exchange_storage,
    set_storage,
    add_in_place,
    by_numpy,
    grow,
    shrink,
    reshape,
    empty_storage,
    halve_storage,
    share,
    share_and_write,
    require_grad,
    transpose,
    conjugate,
    by_own_method,
    become_another_class,
]


@pytest.mark.parametrize("change", TENSOR_CHANGES)
def test_tensors(change):
    assert_live(tensors, change)


@pytest.mark.parametrize("change", [add_in_place, share_and_write, exchange_storage, other])
def test_tensors_that_are_changed_before_each_batch(change):
    assert_live(tensors, change, every=True)


@pytest.mark.parametrize("change", [other, add_in_place, share_and_write, grow, halve_storage])
@pytest.mark.parametrize("make", [
    lambda: TensorDataset(rows().t().contiguous().t(), torch.arange(SAMPLES)),
    lambda: TensorDataset(rows().repeat(1, 2)[:, 2:6], torch.arange(SAMPLES)),
    lambda: TensorDataset(torch.nn.Parameter(rows(), requires_grad=False), torch.arange(SAMPLES)),
    lambda: penstock.Arrays(rows(), torch.arange(SAMPLES)),
    lambda: penstock.Arrays(rows(), np.arange(SAMPLES)),
], ids=["strided", "sliced", "parameter", "arrays", "with-numpy"])  # fmt: skip
def test_tensors_of_other_kinds(make, change):
    assert_live(make, change)


def test_expanded_tensors():
    assert_live(lambda: TensorDataset(torch.arange(4.0).expand(SAMPLES, 4)), share)


def test_tensors_of_a_list_that_is_changed_in_place():
    def make() -> TensorDataset:
        dataset = tensors()
        dataset.tensors = list(dataset.tensors)  # type: ignore[assignment]
        return dataset

    def change(dataset: Any) -> None:
        dataset.tensors[0] = rows() + 9

    assert_live(make, change)


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


# --- what a dataset is made up of -------------------------------------------------------------------------------------


def subset() -> Subset[Any]:
    return Subset(TensorDataset(torch.arange(1000), torch.arange(1000.0)), list(range(3, 3 + SAMPLES)))


def other_indices(dataset: Any) -> None:
    dataset.indices = list(range(500, 500 + SAMPLES))


def index_in_place(dataset: Any) -> None:
    dataset.indices[:] = range(700, 700 + SAMPLES)


def other_dataset(dataset: Any) -> None:
    dataset.dataset = TensorDataset(torch.arange(1000) * 2, torch.arange(1000.0) * 3)


def masks_in_place(dataset: Any) -> None:
    dataset.indices[30] = True


def fewer_indices(dataset: Any) -> None:
    dataset.indices = dataset.indices[:20]


@pytest.mark.parametrize("change", [other_indices, index_in_place, other_dataset, masks_in_place, fewer_indices])
@pytest.mark.parametrize("kind", [list, torch.tensor, np.array], ids=["list", "tensor", "array"])
def test_subset(kind, change):
    def make() -> Subset[Any]:
        dataset = subset()
        dataset.indices = kind(dataset.indices)
        return dataset

    def changed(dataset: Any) -> None:
        if kind is torch.tensor and change is index_in_place:
            dataset.indices[:] = torch.arange(700, 700 + SAMPLES)
        else:
            change(dataset)

    assert_live(make, changed)


def test_indices_that_move():
    def make() -> Subset[Any]:
        dataset = subset()
        dataset.indices = torch.tensor(dataset.indices)  # type: ignore[assignment]
        return dataset

    assert_live(make, lambda dataset: dataset.indices.share_memory_().add_(1))
    assert_live(make, lambda dataset: dataset.indices.resize_(2 * SAMPLES).fill_(5))


def joined() -> ConcatDataset[Any]:
    return ConcatDataset([TensorDataset(rows()[:20]), TensorDataset(rows()[20:])])


def test_concat():
    def other_part(dataset: Any) -> None:
        dataset.datasets[1] = TensorDataset(rows()[20:] * 10)

    def other_parts(dataset: Any) -> None:
        dataset.datasets = [TensorDataset(rows() * 2), TensorDataset(rows() * 3)]

    def other_sizes(dataset: Any) -> None:
        dataset.cumulative_sizes[0] = 10

    def within(dataset: Any) -> None:
        dataset.datasets[1].tensors[0].share_memory_().mul_(5)

    for change in (other_part, other_parts, other_sizes, within):
        assert_live(joined, change)


def value(index: int) -> list[int]:
    return [index]


@pytest.mark.parametrize(
    "odd", [True, np.bool_(True), torch.tensor(True), torch.tensor([4]), np.int16(7), torch.tensor(7)]
)
def test_a_subset_with_an_odd_index_far_behind(odd):
    indices: list[Any] = [*range(1500), odd, *range(1500, 1502)]
    dataset = Subset(TensorDataset(torch.arange(2000)), indices)

    def batches(loader_class: Any, **options: Any) -> list[Any]:
        found: list[Any] = []
        batches = iter(loader_class(dataset, batch_size=1 if getattr(odd, "ndim", 0) else 3, **options))
        while True:
            try:
                found.append(next(batches))
            except StopIteration:
                return found
            except Exception as error:
                found.append(type(error).__name__)

    wanted = batches(torch.utils.data.DataLoader)
    for options in [*LIVE, {"num_workers": 2}]:
        assert_same(batches(penstock.DataLoader, **options), wanted)


# --- images in memory -------------------------------------------------------------------------------------------------


def pictures(name: str, transform: Any) -> Any:
    kind = getattr(torchvision.datasets, name)
    dataset = kind.__new__(kind)
    shape = (SAMPLES, 20, 24, 3) if name == "CIFAR10" else (SAMPLES, 20, 24)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    dataset.data = pixels if name == "CIFAR10" else torch.from_numpy(pixels).clone()
    dataset.targets = list(range(SAMPLES)) if name == "CIFAR10" else torch.arange(SAMPLES)
    dataset.transform, dataset.target_transform = transform, None
    return dataset


def steps(t: Any) -> Any:
    return t.Compose([t.CenterCrop((16, 16)), t.Pad(1), t.ToTensor() if t is v1 else v2.PILToTensor()])


def other_transform(dataset: Any) -> None:
    dataset.transform = v1.Compose([v1.CenterCrop((8, 8)), v1.ToTensor()])


def other_size(dataset: Any) -> None:
    dataset.transform.transforms[0].size = (12, 12)


def other_step(dataset: Any) -> None:
    dataset.transform.transforms[1] = v1.Pad(3)


def one_step_more(dataset: Any) -> None:
    dataset.transform.transforms.insert(0, v1.Pad(2))


def other_padding(dataset: Any) -> None:
    dataset.transform.transforms[1].padding = 4


def function_of_its_own(dataset: Any) -> None:
    dataset.transform.transforms.append(v1.Lambda(lambda image: image.to(torch.float32) * 2))


def own_callable(dataset: Any) -> None:
    dataset.transform = lambda image: torch.from_numpy(np.array(image)).to(torch.int32)


def no_transform(dataset: Any) -> None:
    dataset.transform = None


def hook(dataset: Any) -> None:
    dataset.transform.transforms[1].register_forward_hook(lambda module, given, result: result.rotate(90))


def label_in_place(dataset: Any) -> None:
    dataset.targets[13], dataset.targets[47] = -3, -4


def other_labels(dataset: Any) -> None:
    dataset.targets = list(range(100, 100 + SAMPLES))


def text_label(dataset: Any) -> None:
    dataset.targets = [str(number) for number in range(SAMPLES)]


def label_transform(dataset: Any) -> None:
    dataset.target_transform = lambda label: label + 1000


def other_data(dataset: Any) -> None:
    dataset.data = 255 - dataset.data


def larger_data(dataset: Any) -> None:
    larger = np.random.default_rng(1).integers(0, 256, (SAMPLES, 40, 40, 3), dtype=np.uint8)
    dataset.data = larger if isinstance(dataset.data, np.ndarray) else torch.from_numpy(larger[..., 0].copy())


def data_in_place(dataset: Any) -> None:
    dataset.data[:] = 255 - dataset.data


def resize_data(dataset: Any) -> None:
    if isinstance(dataset.data, np.ndarray):  # MNIST's own numpy() forbids that a tensor be resized
        dataset.data.resize((2 * SAMPLES, 20, 24, 3), refcheck=False)


IMAGE_CHANGES = [
    other_transform,
    other_size,
    other_step,
    one_step_more,
    other_padding,
    function_of_its_own,
    own_callable,
    no_transform,
    hook,
    label_in_place,
    other_labels,
    text_label,
    label_transform,
    other_data,
    larger_data,
    data_in_place,
    resize_data,
]


@pytest.mark.parametrize("change", IMAGE_CHANGES)
@pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", ["CIFAR10", "MNIST"])
def test_images_in_memory(name, t, change):
    assert_live(lambda: pictures(name, steps(t)), change)


def test_mnist_whose_memory_moves():
    def change(dataset: Any) -> None:
        dataset.data.share_memory_().fill_(77)
        dataset.targets.share_memory_().fill_(7)

    assert_live(lambda: pictures("MNIST", v1.ToTensor()), change)


def test_normalisation_that_is_changed_in_place():
    def make() -> Any:
        return pictures("CIFAR10", v1.Compose([v1.ToTensor(), v1.Normalize([0.5, 0.5, 0.5], [0.2, 0.2, 0.2])]))

    def means(dataset: Any) -> None:
        dataset.transform.transforms[1].mean[0] = 0.1

    assert_live(make, means)


def test_the_default_dtype():
    def change(dataset: Any) -> None:
        torch.set_default_dtype(torch.float64)

    def make() -> Any:
        torch.set_default_dtype(torch.float32)
        return pictures("MNIST", v1.ToTensor())

    try:
        assert_live(make, change)
    finally:
        torch.set_default_dtype(torch.float32)


def test_one_size_a_batch():
    sizes = iter(range(100))

    def make() -> Any:
        nonlocal sizes
        sizes = iter(range(5, 100))
        return pictures("CIFAR10", steps(v1))

    def change(dataset: Any) -> None:
        dataset.transform.transforms[0].size = (next(sizes),) * 2

    assert_live(make, change, every=True)


def test_random_draws_are_those_of_a_pass_with_the_other_transform():
    """The draws of a sample do not depend on how often the plan was made."""

    def make() -> Any:
        return pictures("CIFAR10", v1.Compose([v1.RandomCrop(16), v1.PILToTensor()]))

    def batches(change: Change, **options: Any) -> list[Any]:
        dataset = make()
        loader = penstock.DataLoader(dataset, batch_size=BATCH, seed=3, **options)
        return outcomes(loader, change, dataset)

    def pad(dataset: Any) -> None:
        dataset.transform.transforms.insert(1, v1.Pad(1))

    for options in LIVE:
        as_they_were, padded = batches(lambda dataset: None, **options), batches(pad, **options)
        assert_same(padded[:2], as_they_were[:2])
        for (ours, _), (theirs, _) in zip(padded[2:], as_they_were[2:], strict=True):
            assert_same(ours[:, :, 1:-1, 1:-1].contiguous(), theirs)


# --- image files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    pixels = np.random.default_rng(0).integers(0, 256, (SAMPLES, 20, 24, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        path = folder / "ab"[number % 2] / f"{number:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path, quality=90)
    return folder


def other_samples(dataset: Any) -> None:
    dataset.samples = [(path, 10 + label) for path, label in reversed(dataset.samples)]


def sample_in_place(dataset: Any) -> None:
    dataset.samples[14] = (dataset.samples[20][0], 7)
    dataset.samples[47] = (dataset.samples[20][0], 8)


def three_tuple(dataset: Any) -> None:
    dataset.samples[14] = (*dataset.samples[14], "more")
    dataset.samples[40] = (*dataset.samples[14], "more")


def more_samples(dataset: Any) -> None:
    dataset.samples.append(dataset.samples[0])


def fewer_samples(dataset: Any) -> None:
    del dataset.samples[30:]


def own_loader(dataset: Any) -> None:
    dataset.loader = lambda path: Image.open(path).convert("RGB").rotate(180)


@pytest.mark.parametrize(
    "change",
    [
        other_samples,
        sample_in_place,
        three_tuple,
        more_samples,
        fewer_samples,
        own_loader,
        other_transform,
        other_size,
        other_step,
        function_of_its_own,
        own_callable,
        no_transform,
        hook,
        label_transform,
    ],
)
@pytest.mark.parametrize("own", [False, True], ids=["recognised", "assisted"])
def test_image_files(root, own, change):
    def make() -> Any:
        transform = steps(v1)
        if own:
            transform.transforms.append(v1.Lambda(lambda image: image + 1))
        return torchvision.datasets.ImageFolder(str(root), transform)

    assert_live(make, change)


@pytest.mark.parametrize("change", [other_transform, other_size, function_of_its_own, label_transform, no_transform])
def test_our_image_folder(root, change):
    assert_live(lambda: penstock.ImageFolder(root, steps(v1)), change)


def test_image_files_in_a_subset(root):
    def make() -> Any:
        return Subset(torchvision.datasets.ImageFolder(str(root), steps(v1)), list(range(SAMPLES)))

    def change(dataset: Any) -> None:
        dataset.indices[12:] = dataset.indices[:11:-1]

    assert_live(make, change)


def test_pairs_that_are_none_are_torchvisions_error(root):
    def make() -> Any:
        dataset = torchvision.datasets.ImageFolder(str(root), steps(v1))
        three_tuple(dataset)
        return dataset

    assert_live(make, lambda dataset: None)


def test_tensor_folder(tmp_path):
    for number in range(SAMPLES):
        torch.save(torch.full((2, 3), float(number)), tmp_path / f"{number:03}.pt")
    labels = {f"{number:03}": number for number in range(SAMPLES)}

    def doubled(dataset: Any) -> None:
        dataset.transform = lambda tensor: tensor * 2

    def label(dataset: Any) -> None:
        dataset.target_transform = lambda number: number + 50

    for change in (doubled, label):
        assert_live(lambda: penstock.TensorFolder(tmp_path, labels=labels), change)


# --- passes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 2, "persistent_workers": True}])
def test_the_next_pass_is_native_again(options):
    dataset = pictures("CIFAR10", steps(v1))
    loader = penstock.DataLoader(dataset, batch_size=BATCH, **options)
    before = dataset.transform
    outcomes(loader, own_callable, dataset)
    dataset.transform = before
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=BATCH))
    for _ in range(2):
        assert_same(list(loader), wanted)
    assert "gather" in loader.explain()


def test_bad_samples_are_replaced_after_a_change(tmp_path):
    for number in range(SAMPLES):
        torch.save(torch.full((3,), float(number)), tmp_path / f"{number:03}.pt")
    (tmp_path / "030.pt").write_bytes(b"no tensor")

    def doubled(dataset: Any) -> None:
        dataset.transform = lambda tensor: tensor * 2

    for options in LIVE:
        dataset = penstock.TensorFolder(tmp_path)
        loader = penstock.DataLoader(
            dataset, batch_size=BATCH, seed=0, on_error=penstock.Replace(max_share=0.5), **options
        )
        values: list[float] = []
        for number, batch in enumerate(loader):
            values += batch[:, 0].tolist()
            if number == 1:
                doubled(dataset)
        assert len(values) == SAMPLES
        assert values[:12] == [float(number) for number in range(12)]
        assert [value for number, value in enumerate(values[12:], 12) if number != 30] == [
            2.0 * number for number in range(12, SAMPLES) if number != 30
        ]
        assert values[30] != 60


def test_a_change_between_batches_of_two_iterators():
    for options in LIVE:
        dataset = tensors()
        loader = penstock.DataLoader(dataset, batch_size=BATCH, **options)
        first, second = iter(loader), iter(loader)
        next(first)
        dataset.tensors = (dataset.tensors[0] + 1, dataset.tensors[1])
        assert next(second)[0][0, 0] == 1
        assert next(first)[0][0, 0] == 4 * BATCH + 1
        share(dataset)
        assert len(list(first)) == SAMPLES // BATCH - 2
        assert len(list(second)) == SAMPLES // BATCH - 1


def test_batch_at_sees_the_dataset_as_it_is():
    dataset = tensors()
    loader = penstock.DataLoader(dataset, batch_size=BATCH, seed=1)
    before = loader.batch_at(0, 1)
    share(dataset)
    assert_same(loader.batch_at(0, 1), before)
    dataset.tensors[0].add_(1)
    assert torch.equal(loader.batch_at(0, 1)[0], before[0] + 1)


def test_a_large_number_of_rows_keeps_its_order(tmp_path: Path) -> None:
    """The caller fills beside the threads: each row is its own all the same."""
    x = torch.arange(200_000 * 16, dtype=torch.int64).view(200_000, 16)
    seen = torch.cat([batch for (batch,) in penstock.DataLoader(TensorDataset(x), batch_size=4096)])
    assert torch.equal(seen, x)


def test_labels_stay_with_their_images(tmp_path):
    """The list is shuffled in place while batches are read ahead: each image still comes with its own label."""
    for number in range(SAMPLES):
        path = tmp_path / "class" / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (number, number, number)).save(path)
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
    asked: list[int] = []

    class InOrder(torch.utils.data.Sampler[int]):
        def __len__(self) -> int:
            return SAMPLES

        def __iter__(self):
            for index in range(SAMPLES):
                asked.append(index)
                yield index

    batches = iter(penstock.DataLoader(tensors(), batch_size=BATCH, sampler=InOrder(), **options))
    for number in range(1, 4):
        next(batches)
        assert len(asked) == number * BATCH
