"""What programs do with a loader beside looping over it; each case once broke, or might have."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.utils.data as tud
import torchvision
from torchvision import transforms as v1

import penstock
from tests.data import Order, grey_files, in_memory, rows, tensor_files
from tests.same import assert_same, assert_same_batches
from tests.values import flat, listed, loaded
from tests.waiting import run_in_threads

pytestmark = pytest.mark.native


def outcome(kind: Any, dataset: Any, **options: Any) -> Any:
    """Return all batches, or the type of the error."""
    try:
        return list(kind(dataset, **options))
    except Exception as error:
        return type(error)


def assert_as_torch(dataset: Any, **options: Any) -> None:
    """Assert that all batches are torch's, or that the pass raises an error of the type of torch's."""
    ours = outcome(penstock.DataLoader, dataset, **options)
    assert_same(ours, outcome(tud.DataLoader, dataset, **{**options, "num_workers": 0}))


def assert_native(dataset: Any, workers: int | None = None) -> None:
    """Assert that all batches are torch's, and read natively."""
    ours: Any = penstock.DataLoader(dataset, batch_size=2, num_workers=workers)
    assert_same_batches(ours, tud.DataLoader(dataset, batch_size=2))


def parts(*tensors: torch.Tensor) -> Any:
    return tud.ConcatDataset([tud.TensorDataset(tensor) for tensor in tensors])


def of_both(act: Any) -> list[Any]:
    """Return what is done with our class and with torch's, from the same state of torch's generator."""
    results = []
    for kind in (penstock.DataLoader, tud.DataLoader):
        torch.manual_seed(0)
        results.append((act(kind), torch.rand(1).item()))
    return results


@pytest.fixture
def pngs(tmp_path: Path) -> Path:
    return grey_files(tmp_path, 12)


def folder(root: Path, *steps: Any) -> Any:
    return torchvision.datasets.ImageFolder(str(root), v1.Compose([*steps]))


def test_a_row_for_python_may_come_before_its_batch_is_known(pngs: Path) -> None:
    loader: Any = penstock.DataLoader(folder(pngs, v1.ToTensor()), batch_size=2, num_workers=4)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert [len(list(loader)) for _ in range(40)] == [6] * 40
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("workers", [0, 2])
def test_several_threads_share_an_iterator(workers: int) -> None:
    iterator: Any = iter(penstock.DataLoader(rows(2000), batch_size=5, num_workers=workers))
    seen: list[int] = []

    def take(thread: int) -> None:
        for (batch,) in iterator:
            seen.extend(batch.tolist())

    run_in_threads(4, take)
    assert sorted(seen) == list(range(2000))


def test_ctrl_c_in_the_callers_thread_is_no_sample_error(pngs: Path) -> None:
    dataset: Any = penstock.ImageFolder(pngs, v1.ToTensor())
    dataset.read = mock.Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        next(iter(penstock.DataLoader(dataset, num_workers=0)))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
@pytest.mark.parametrize("seed", [None, 3])
def test_loaders_can_be_copied(copied: Any, seed: int | None) -> None:
    loader: Any = penstock.DataLoader(rows(), batch_size=4, shuffle=True, num_workers=2, seed=seed)
    twin = copied(loader)
    torch.manual_seed(0)
    first = flat(loader)
    torch.manual_seed(0)
    assert flat(twin) == first and twin.explain().splitlines()[:3] == loader.explain().splitlines()[:3]


def test_generic() -> None:
    def annotated(loader: penstock.DataLoader[torch.Tensor]) -> None: ...

    assert penstock.DataLoader[torch.Tensor] is not None
    annotated(penstock.DataLoader(rows()))


def test_nothing_in_the_dataset() -> None:
    for dataset in (tud.TensorDataset(torch.empty(0, 4), torch.empty(0)), penstock.Arrays(np.empty((0, 4)))):
        loader: Any = penstock.DataLoader(dataset, batch_size=3)
        assert (len(loader), list(loader)) == (0, [])
    assert_native(parts(torch.empty(0), torch.arange(3.0)))


NATIVE: list[Any] = [
    np.array([3, -1, 0]), np.array([3, 1], dtype=np.uint8), torch.tensor([2, 2]), range(3, 9, 2), [3, 1, 4, 1, 5],
]  # fmt: skip
ODD: list[Any] = [
    np.array([True, False] * 5), [1.0, 2.5], ["1"], [[1, 2], [3, 4]], [True, False], [True, 2], [19, 18.0], [2, 40],
    list(torch.tensor([2, 7])), [-21],
    # far behind indices of the usual kind
    *([*[1, 2, 3] * 500, odd, 4] for odd in (True, np.bool_(True), torch.tensor(True), np.int16(7), torch.tensor(7))),
]  # fmt: skip


@pytest.mark.parametrize("indices", [*NATIVE, *ODD], ids=lambda indices: str(indices)[-20:])
def test_subsets(indices: Any) -> None:
    for inner in (rows(20), penstock.Arrays(np.arange(20)), tud.Subset(rows(40), torch.arange(20))):  # type: ignore[arg-type]
        for workers in (None, 0, 2):
            assert_as_torch(tud.Subset(inner, indices), batch_size=3, num_workers=workers)
    if any(indices is one for one in NATIVE):
        assert_native(tud.Subset(rows(10), indices))


def test_subsets_by_a_dict() -> None:
    subset = tud.Subset(rows(12), {2: 7, 0: 11, 1: 3})  # type: ignore[arg-type]
    assert_native(subset)
    loader: Any = penstock.DataLoader(subset, seed=1)
    next(iter(loader))
    assert loader.ids(0, 0) == ["11"] and flat(loaded(loader, loader.state_dict())) == [3, 7]
    for order in ([2, 0], [-1], [3]):  # a dict counts nothing from its end
        assert_as_torch(subset, sampler=order)
        assert_as_torch(tud.Subset(rows(12), {5: 1, 3: 2}), sampler=order)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}, {}], ids=str)
@pytest.mark.parametrize("dataset", [rows(8), list(range(8))], ids=["native", "Python"])
def test_a_prefetch_factor_of_nothing_is_refused(dataset: Any, options: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, ValueError), match="prefetch_factor"):
        list(penstock.DataLoader(dataset, 4, prefetch_factor=0, **options))


@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
def test_paddings_wider_than_the_image(mode: str, pngs: Path) -> None:
    steps = [v1.Pad(20, padding_mode=mode), v1.PILToTensor()]
    for dataset in (folder(pngs, *steps), in_memory("CIFAR10", v1.Compose([v1.CenterCrop(8), *steps]))):
        assert_native(dataset, 2)


def test_what_the_transform_raises_is_raised(pngs: Path) -> None:
    in_mnist = in_memory("MNIST", v1.Compose([v1.RandomCrop(40), v1.ToTensor()]))
    for dataset in (folder(pngs, v1.RandomCrop(20), v1.ToTensor()), in_mnist):
        with pytest.raises(ValueError, match="Required crop size") as caught:
            next(iter(penstock.DataLoader(dataset, batch_size=5, num_workers=2)))
        assert any("of a batch of 5: sample" in note for note in caught.value.__notes__)


LABELS: dict[str, Any] = {
    "int32": np.arange(50, dtype=np.int32), "float32": np.arange(50, dtype=np.float32), "one-hot": np.eye(50),
    "strings": np.array(list("ab" * 25)), "bools": [True, False] * 25, "big": [2**70] * 50,
    "tensor": torch.arange(50, dtype=torch.int16), "tuples": [(i, str(i)) for i in range(50)],
}  # fmt: skip


@pytest.mark.parametrize("targets", LABELS)
@pytest.mark.parametrize("how", ["plain", "transformed", "concatenated"])
def test_labels_of_every_kind(targets: str, how: str) -> None:
    dataset: Any = in_memory("CIFAR10", v1.ToTensor())
    dataset.targets = LABELS[targets]
    if how == "transformed":
        dataset.target_transform = lambda label: label
    if how == "concatenated":
        dataset = tud.ConcatDataset([dataset, dataset])
    assert_as_torch(dataset, batch_size=16)


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}])
def test_two_loaders_draw_in_torchs_order(options: Any) -> None:
    def drawn(kind: Any) -> Any:
        pair = [kind(rows(), batch_size=9, shuffle=True, **options) for _ in range(2)]
        return [(a[0].tolist(), b[0].tolist()) for a, b in zip(*pair, strict=True)]

    ours, torchs = of_both(drawn)
    assert ours == torchs


@pytest.mark.parametrize("dataset", [rows(), list(range(53))], ids=["native", "torch"])
def test_loaders_are_made_again_from_their_attributes(dataset: Any) -> None:
    """As Lightning does it."""
    loader: Any = penstock.DataLoader(dataset, batch_size=5, shuffle=True, seed=4)
    names = [name for name in inspect.signature(penstock.DataLoader.__init__).parameters if hasattr(loader, name)]
    options = {name: getattr(loader, name) for name in names}
    for replaced in ("batch_sampler", "shuffle"):
        options.pop(replaced, None)
    twin: Any = penstock.DataLoader(**options)
    assert (twin.seed, len(list(twin)), len(list(loader)), loader.generator) == (4, 11, 11, None)


def test_a_seed_reaches_torchs_plan() -> None:
    orders = [list(penstock.DataLoader(list(range(40)), shuffle=True, seed=seed)) for seed in (1, 1, 2)]  # type: ignore[arg-type]
    assert orders[0] == orders[1] != orders[2]
    assert penstock.DataLoader(rows(), seed=np.int64(3)).seed == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: penstock.DataLoader(rows(), seed=2**64), penstock.InvalidOption, "out of range"),
        (lambda: penstock.DataLoader(rows(), seed=-(2**63) - 1), penstock.InvalidOption, "out of range"),
        (lambda: penstock.TensorFolder("/tmp", ["fine", "\ud800"]), penstock.InvalidID, "cannot be the name of a file"),
        (lambda: pickle.dumps(iter(penstock.DataLoader(rows()))), NotImplementedError, "cannot be pickled"),
        (
            lambda: list(penstock.DataLoader(parts(torch.zeros(3, 2), torch.zeros(3, 4)), batch_size=6)),
            penstock.ShapeMismatch,
            r"sample 'number 3' .* as sample 'number 0' does",
        ),
    ],
)
def test_errors(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_attributes_set_later_count() -> None:
    loader: Any = penstock.DataLoader(rows(), batch_size=4)
    loader.num_workers = 0
    assert (len(list(loader)), loader.num_workers) == (14, 0)
    for change in ({"batch_size": 5}, {"drop_last": True}, {"sampler": [3, 4]}):
        both: list[Any] = [kind(rows(), batch_size=4) for kind in (penstock.DataLoader, tud.DataLoader)]
        for each in both:
            for name, value in change.items():
                setattr(each.batch_sampler, name, value)
        assert_same_batches(both[0], both[1])


def test_a_folder_that_was_made_anew(tmp_path: Path) -> None:
    root = tmp_path / "data"
    dataset = penstock.TensorFolder(tensor_files(root, 4, (1,)))
    loader: Any = penstock.DataLoader(dataset, batch_size=4)
    assert listed(loader) == [[[0], [1], [2], [3]]]
    shutil.rmtree(root)
    tensor_files(root, 4, (2,))
    assert dataset[3].tolist() == [3, 3] and listed(loader) == [[[0, 0], [1, 1], [2, 2], [3, 3]]]


def test_relative_roots_stay_where_they_were(pngs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(torch.ones(2), tmp_path / "x.pt")
    monkeypatch.chdir(tmp_path.parent)
    name = tmp_path.name
    folder, images = penstock.TensorFolder(name), penstock.ImageFolder(name, v1.ToTensor())
    pickled = pickle.dumps([folder, images])
    monkeypatch.chdir("/")
    for tensors, pictures in ((folder, images), pickle.loads(pickled)):
        assert next(iter(penstock.DataLoader(tensors))).tolist() == [[1.0, 1.0]]
        assert len(list(penstock.DataLoader(pictures, batch_size=4))) == 3 and pictures[0][0].shape == (3, 9, 9)


def test_errors_leave_nothing_for_the_garbage_collector(tmp_path: Path) -> None:
    tensor_files(tmp_path, 6, name="{}")
    (tmp_path / "3.pt").write_bytes(b"nothing")
    loader: Any = penstock.DataLoader(penstock.TensorFolder(tmp_path), batch_size=2, num_workers=2)
    gc.collect()
    gc.disable()
    try:
        before = threading.active_count()
        for _ in range(5):
            with pytest.raises(penstock.CorruptSample):
                list(loader)
        assert (threading.active_count(), loader.stats().buffers_lent) == (before, 0)
    finally:
        gc.enable()


def test_dtypes_that_torch_promotes() -> None:
    loader: Any = penstock.DataLoader(parts(torch.zeros(3), torch.zeros(3).double()), batch_size=6)
    assert next(iter(loader))[0].dtype == torch.float64 and "different dtypes" in loader.explain()


def test_persistent_workers_keep_the_base_seed_as_torchs_do() -> None:
    def drawn(kind: Any) -> Any:
        loader = kind(rows(), batch_size=9, shuffle=True, num_workers=2, persistent_workers=True)
        return flat(loader), flat(loader)

    ours, torchs = of_both(drawn)
    assert ours == torchs


def test_batches_given_as_generators() -> None:
    batches: Any = Order([(i for i in (1, 2)), (i for i in (True, False))])
    assert next(iter(penstock.DataLoader(rows(), batch_sampler=batches)))[0].tolist() == [1, 2]


def test_a_changed_collate_map_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map  # noqa: PLC0415  private: only here

    loader: Any = penstock.DataLoader(rows(), batch_size=3)
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, lambda batch, *, collate_fn_map: len(batch))
    assert next(iter(loader)) == [3] and "default_collate_fn_map" in loader.explain()


class Steered(tud.Sampler[int]):
    """Goes on by a step that the program changes."""

    step = 1

    def __iter__(self) -> Iterator[int]:
        index = 0
        while index < 30:
            yield index
            index += self.step


@pytest.mark.parametrize("options", [{}, {"worker_method": "thread"}], ids=str)
def test_a_sampler_of_ones_own_is_asked_no_earlier_than_by_torch(options: dict[str, Any]) -> None:
    def seen(kind: Any, **more: Any) -> list[int]:
        sampler, got = Steered(), []
        for (x,) in kind(rows(30), batch_size=2, sampler=sampler, **more):
            got += x.flatten().tolist()
            sampler.step += 1
        return got

    assert seen(penstock.DataLoader, **options) == seen(tud.DataLoader)
    loader = penstock.DataLoader(rows(30), sampler=Steered())
    assert "one batch at a time" in loader.explain()
    assert "one batch at a time" not in penstock.DataLoader(rows(30), sampler=Steered(), num_workers=1).explain()
