"""Batches that the native core fills for a collate_fn of the user's, against torch's, and what fills them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, default_collate, get_worker_info
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from penstock.passes.job import planned
from penstock.plan import Kept, PythonPlan
from penstock.state.delivery import Task
from penstock.workers.native_batches import NativeBatches
from tests.data import tensor_files
from tests.filled_batches import (
    EVAL,
    LAST,
    METHODS,
    TRAIN,
    batches,
    check,
    handed_on,
    images,
    listed,
    reseeded,
    stacked,
)
from tests.forking import assert_in_child
from tests.same import assert_same
from tests.values import resumed
from tests.waiting import run_in_threads

pytestmark = pytest.mark.native

LOADERS: tuple[Any, ...] = (penstock.DataLoader, torch.utils.data.DataLoader)
MIXUP = v2.MixUp(num_classes=3)


def mixed(batch):
    return MIXUP(*default_collate(batch))


def twice(batch):
    first = default_collate(batch)
    first[0].zero_()
    return first, default_collate(batch)


def shared(batch):
    images, labels = default_collate(batch)
    info = get_worker_info()
    return images, labels, images.is_shared(), images.is_contiguous(), None if info is None else info.id


def described(batch):
    return [
        (image, image.untyped_storage().nbytes(), image.storage_offset(), image._base is None, image.is_shared(), label)
        for image, label in batch
    ]


def writing(batch):
    (first, *_), pictures = batch, stacked(batch)
    first[0].zero_()
    batch[1][0].numpy()[...] = 5
    return pictures, stacked(batch), first


def parts(batch):
    return [{"images": default_collate(batch)[0][2:4], "all": 1}]


@METHODS
@pytest.mark.parametrize("collate", [handed_on, described, twice, stacked, writing, listed])
def test_functions_of_samples_and_of_batches(folder, workers, method, collate):
    check(images(folder), workers=workers, method=method, collate_fn=collate)


@METHODS
@pytest.mark.parametrize("collate", [stacked, listed])
def test_samples_with_the_channels_last(folder, workers, method, collate):
    check(images(folder, LAST), filled=False, workers=workers, method=method, collate_fn=collate)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [mixed, shared, parts])
def test_functions_that_draw_or_tell_where_a_batch_lies(folder, workers, collate):
    check(images(folder), workers=workers, collate_fn=collate)


@pytest.mark.parametrize(
    ("t", "steps"), [(v1, [v1.PILToTensor()]), (v2, [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])]
)
def test_what_samples_are(folder, t, steps):
    dataset = images(folder, t.Compose([t.Resize((24, 28)), *steps]))
    check(dataset, filled=False, collate_fn=listed)
    check(dataset, collate_fn=handed_on)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_kept(folder, workers):
    class Keeping:
        def __init__(self) -> None:
            self.kept: list[Any] = []

        def __call__(self, batch):
            self.kept.append(batch[1][0])
            batch[0][0].zero_()
            return torch.stack([image for image, _ in batch] + self.kept)

    assert_same(*(batches(kind, images(folder), num_workers=workers, collate_fn=Keeping()) for kind in LOADERS))


def test_the_penstock_folder(folder):
    folders = penstock.ImageFolder(folder, EVAL), images(folder)
    found = (batches(*one, num_workers=2, collate_fn=mixed) for one in zip(LOADERS, folders, strict=True))
    assert_same(*found)


def test_subsets_and_concatenations(folder):
    dataset: Any = ConcatDataset([Subset(images(folder), range(3, 20)), images(folder)])
    check(dataset, collate_fn=mixed)


def test_samples_of_several_sizes(folder):
    dataset = images(folder, v1.ToTensor())
    check(dataset, filled=False, collate_fn=listed)
    loader = penstock.DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=handed_on)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(loader)


@pytest.mark.parametrize(("collate", "filled"), [(handed_on, True), (torch.stack, False)])
def test_tensor_files(tmp_path, collate, filled):
    check(penstock.TensorFolder(tensor_files(tmp_path, 20, (3, 4))), filled=filled, collate_fn=collate)


class KeepsTheBatch:
    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, batch):
        images, labels = default_collate(batch)
        before, self.last = self.last, images
        return images, labels, images[:0] if before is None else before.clone()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_keeps_its_batch(folder, workers):
    found = []
    for kind in LOADERS:
        torch.manual_seed(0)
        options = {"num_workers": workers, "persistent_workers": workers > 0}
        loader = kind(images(folder), 4, collate_fn=KeepsTheBatch(), **options)
        found.append([list(loader) for _ in range(3)])
    assert_same(*found)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [mixed, stacked])
def test_batches_are_never_overwritten(folder, workers, collate):
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = penstock.DataLoader(images(folder), 4, collate_fn=collate, **options)
    kept = [batch for _ in range(3) for batch in loader]
    copies = [[tensor.clone() for tensor in batch] for batch in kept]
    for _ in range(2):
        for images_, _ in loader:
            images_.fill_(7)
    for batch, copy in zip(kept, copies, strict=True):
        assert_same([tensor.clone() for tensor in batch], copy)


@METHODS
def test_a_damaged_file(folder, tmp_path, workers, method):
    (tmp_path / "0").mkdir()
    for path in sorted((folder / "0").iterdir()):
        (tmp_path / "0" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "0" / "06.jpg").write_bytes(b"no image")
    dataset, raised, said = images(tmp_path), [], []
    options = {"batch_size": 4, "num_workers": workers, "collate_fn": handed_on}
    for kind, named in zip(LOADERS, ({"worker_method": method}, {}), strict=True):
        with pytest.raises(Exception) as caught:
            list(kind(dataset, **options, **named))
        raised.append(type(caught.value))
        said.append(str(caught.value).partition(" in DataLoader worker")[0].partition("<")[0])
    assert raised[0] is raised[1] and (said[0] == said[1] or method is not None)
    loader = penstock.DataLoader(dataset, worker_method=method, on_error="replace", **options)
    assert sum(len(labels) for _, labels in loader) == len(dataset)


@pytest.mark.parametrize(("name", "words"), [("collate_fn", r"\('mine', 8\)"), ("worker_init_fn", r"\('mine', 0\)")])
def test_a_function_that_raises(folder, name, words):
    def fail(given):
        raise KeyError("mine", given if name == "worker_init_fn" else len(default_collate(given)[1]))

    options: Any = {name: fail}
    loader = penstock.DataLoader(images(folder), batch_size=8, num_workers=2, **options)
    with pytest.raises(KeyError, match=rf"(?s)Caught KeyError in DataLoader worker process 0.*{words}"):
        next(iter(loader))


@METHODS
@pytest.mark.parametrize("named", [{"collate_fn": handed_on}, {"worker_init_fn": reseeded}], ids=["collate", "init"])
def test_a_seed_gives_the_batches_of_the_native_plan(folder, workers, method, named):
    options = ({"num_workers": 2}, {"num_workers": workers, "worker_method": method, **named})
    plain, ours = (batches(penstock.DataLoader, images(folder, TRAIN), seed=9, **one) for one in options)
    assert_same(ours, plain)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_seed_reaches_targets(folder, workers):
    dataset = images(folder, target_transform=lambda label: label + torch.rand(1).item())
    options = {"seed": 9, "collate_fn": handed_on}
    assert_same(*(batches(penstock.DataLoader, dataset, num_workers=number, **options) for number in (2, workers)))


def test_resuming(folder):
    dataset = images(folder, v1.Compose([TRAIN, v1.ConvertImageDtype(torch.float32)]))
    options: Any = {"shuffle": True, "seed": 3, "num_workers": 2, "collate_fn": mixed}
    one, begun, again = (penstock.DataLoader(dataset, 4, **options) for _ in range(3))
    torch.manual_seed(0)
    whole = list(one)
    torch.manual_seed(0)
    first, rest = resumed(begun, again, 3)
    assert_same([*first, *rest], whole)


@pytest.mark.parametrize("collate", [handed_on, stacked])
def test_a_cache(folder, tmp_path, collate):
    dataset, options = images(folder), {"num_workers": 2, "collate_fn": collate}
    theirs = batches(torch.utils.data.DataLoader, dataset, **options)
    for cache in (tmp_path / "cache", "64MiB"):
        torch.manual_seed(5)
        loader = penstock.DataLoader(dataset, 8, shuffle=True, cache=cache, **options)
        assert_same(list(loader), theirs)
        list(loader)
        (tier,) = loader.stats().cache.values()
        assert tier.samples >= 27, "all but those that Pillow reads"


def test_what_a_spawned_worker_gets(folder, tmp_path):
    dataset = images(folder)
    loader = penstock.DataLoader(dataset, batch_size=8, collate_fn=handed_on, cache=tmp_path / "cache")
    chosen = loader._pass_factory.with_kept(planned(loader._settings()))
    assert isinstance(chosen, PythonPlan)
    sent = pickle.loads(pickle.dumps(loader._pass_factory.worker(loader._settings(), chosen)))
    for _ in range(2):
        assert_same(sent.make(Task([3, 7], 0, 0, range(2))), default_collate([dataset[3], dataset[7]]))


SMALL = v1.Compose([v1.Resize(30), v1.CenterCrop(28), v1.ToTensor()])


@pytest.fixture
def dataset(photos):
    return penstock.ImageFolder(photos, SMALL)


def task(*indices: int) -> Task:
    return Task(list(indices), 3, 0, range(len(indices)))


def filled(filling: NativeBatches, given: Task) -> Any:
    found = filling.fill(given, None, given.seed, None)
    assert found is not None
    return found


def samples(dataset, indices):
    return default_collate([dataset[i] for i in indices])


def test_readers_bring_files_where_reads_block(slow, dataset):
    filling = NativeBatches(dataset, Kept())
    for begin in (0, 60, 0, 60):
        indices = range(begin, begin + 60)
        assert_same(filled(filling, task(*indices)).batch(), samples(dataset, indices))
    counts = filling._idle[0].pool.reading()
    assert counts["deepest"] > 1 and counts["ahead"] + counts["awaited"] > 0


def test_threads_that_share_one(dataset):
    filling, found = NativeBatches(dataset, Kept()), {}

    def work(number: int) -> None:
        for turn in range(4):
            indices = range((7 * number + 30 * turn) % 100, (7 * number + 30 * turn) % 100 + 20)
            found[number, turn] = indices, filled(filling, task(*indices)).batch()

    run_in_threads(4, work)
    for indices, batch in found.values():
        assert_same(batch, samples(dataset, indices))
    assert len(filling._idle) <= 4


def test_a_forked_child_goes_on(dataset):
    filling = NativeBatches(dataset, Kept())
    expected = filled(filling, task(1, 2)).batch()

    def check() -> None:
        assert_same(filled(filling, task(1, 2)).batch(), expected)

    assert_in_child(check)
    check()


@pytest.mark.parametrize("given", [[], [0, 500], [0, True], [0, "1"], [1 << 70], range(3), [[0], [1]]])
def test_what_only_the_dataset_makes_sense_of(dataset, given):
    filling = NativeBatches(dataset, Kept())
    assert filling.fill(Task(given, 0, 0, range(3)), None, 0, None) is None
    indices: Any = [np.int64(3), torch.tensor(4), -1]
    assert_same(filled(filling, task(*indices)).batch(), samples(dataset, [3, 4, -1]))


def test_a_dataset_that_changes_for_a_batch(dataset):
    filling = NativeBatches(dataset, Kept())
    for transform in (SMALL, v1.Compose([v1.Resize((9, 9)), v1.ToTensor()])):
        dataset.transform = transform
        assert_same(filled(filling, task(0, 1)).batch(), samples(dataset, [0, 1]))
    dataset.transform = np.asarray
    assert filling.fill(task(0, 1), None, 0, None) is None
    dataset.transform = SMALL
    assert filling.fill(task(0, 1), None, 0, None) is None, "Python reads the rest of the pass"
    assert_same(filled(filling, Task([0, 1], 3, 1, range(2))).batch(), samples(dataset, [0, 1]))


def test_samples_that_are_seen(dataset):
    batch = filled(NativeBatches(dataset, Kept(), unseen=False), task(3, 4))
    seen = batch.samples()
    assert_same(seen, [dataset[3], dataset[4]])
    assert all(image.untyped_storage().nbytes() == image.nbytes for image, _ in seen)
    dataset.transform = v1.Compose([v1.Resize((9, 9)), v1.PILToTensor()])
    assert NativeBatches(dataset, Kept(), unseen=False).fill(task(3), None, 0, None) is None
