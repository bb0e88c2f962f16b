"""What a program puts in the place of a function of torch, torchvision, Pillow or NumPy is called, on every route."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, DataLoader as TorchDataLoader, Subset, TensorDataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from tests.data import Made, photo_files, tensor_files
from tests.in_workers import Worker, within
from tests.same import assert_same

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photo_files(tmp_path_factory.mktemp("photos"), 8, (20, 30))


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tensor_files(tmp_path_factory.mktemp("tensors"), 6, name="{}")
    for number in range(6):
        np.save(folder / f"{number}.npy", np.full(3, number, dtype=np.float32))
    return folder


def turned(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that turns what the original returns upside down."""

    @functools.wraps(original)
    def patched(*given: Any, **named: Any) -> Any:
        result = original(*given, **named)
        return PIL.ImageOps.flip(result) if isinstance(result, PIL.Image.Image) else result.flip(-2)

    return patched


def noise() -> PIL.Image.Image:
    return PIL.Image.effect_noise((20, 30), 50).convert("RGB")


SMALL = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
FIRST = [v1.Resize((12, 12)), v1.RandomCrop(12), v1.ToTensor()]
SECOND = [v2.Resize((12, 12)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
PATCHES: dict[str, tuple[Any, str, Any]] = {
    "a method": (v1.Resize, "forward", lambda: turned(v1.Resize.forward)),
    "a method of a base": (torch.nn.Module, "__call__", lambda: turned(torch.nn.Module.__call__)),
    "a method over that of a base": (v1.Resize, "__call__", lambda: turned(torch.nn.Module.__call__)),
    "a static method": (v1.RandomCrop, "get_params", lambda: staticmethod(lambda image, size: (3, 4, 5, 6))),
    "a mock": (v1.RandomCrop, "get_params", lambda: mock.MagicMock(return_value=(1, 2, 5, 6))),
    "an autospec": (
        v1.Resize,
        "forward",
        lambda: mock.create_autospec(v1.Resize.forward, side_effect=lambda self, image: image.resize((12, 12), 0)),
    ),
    "a partial method": (v1.ToTensor, "__call__", lambda: functools.partialmethod(lambda self, image: torch.ones(2))),
    "Compose": (v1.Compose, "__call__", lambda: turned(v1.Compose.__call__)),
    "Compose of version 2": (v2.Compose, "forward", lambda: turned(v2.Compose.forward)),
    "Pillow's open": (PIL.Image, "open", lambda: turned(PIL.Image.open)),
}


def same_as_torch(dataset: Any, **options: Any) -> Any:
    """Assert that our loader gives what torch's gives; return ours."""
    loader: Any = penstock.DataLoader(dataset, batch_size=4, **options)
    torch.manual_seed(3)
    found = list(loader)
    torch.manual_seed(3)
    assert_same(found, list(TorchDataLoader(dataset, batch_size=4, num_workers=options.get("num_workers", 0))))
    return loader


@pytest.fixture
def patched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put a function in another's place, before or after our own hooks were put there."""
    name, before = request.param
    holder, attribute, make = PATCHES[name]
    if not before:
        within(dict)
    monkeypatch.setattr(holder, attribute, make())
    return name


CASES = {f"{name}, {when}": (name, when == "before") for name in PATCHES for when in ("after", "before")}


@pytest.mark.parametrize("patched", CASES.values(), indirect=True, ids=CASES)
@pytest.mark.parametrize("route", ["native", "assisted", "composed", "ours"])
@pytest.mark.filterwarnings("ignore:.*unclosed file:ResourceWarning")
def test_what_was_replaced_is_called(photos: Path, patched: str, route: str) -> None:
    parts, generation = (SECOND, v2) if "version 2" in patched else (FIRST, v1)
    if patched not in ("a static method", "a mock"):
        parts = [part for part in parts if not isinstance(part, v1.RandomCrop)]
    if route == "assisted":
        parts = [*parts[:1], generation.Lambda(lambda image: image), *parts[1:]]
    transform = generation.Compose(parts)
    if route == "composed":
        paths = sorted(photos.glob("*/*.jpg"))

        def opened(index: int) -> Any:
            with PIL.Image.open(paths[index]) as image:
                return transform(image.convert("RGB"))

        same_as_torch(Made(opened, len(paths)))
        worker, image = Worker(), noise()
        assert_same(worker(transform, image), transform(image))
        assert (worker.answered > 0) == (patched == "Pillow's open")  # which the user's own code has called
        return
    made: Any = penstock if route == "ours" else torchvision.datasets
    loader = same_as_torch(made.ImageFolder(str(photos), transform))
    explained = loader.explain()
    assert "replaced by" in explained or route == "assisted", explained


@pytest.mark.parametrize("kind", [torchvision.datasets.ImageFolder, penstock.ImageFolder])
@pytest.mark.parametrize("method", ["__getitem__", "__getattribute__"])
def test_methods_of_folders(photos: Path, kind: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(kind, method)

    def patched(self: Any, given: Any) -> Any:
        found = original(self, given)
        return (found[0], found[1] + 10) if method == "__getitem__" else found

    monkeypatch.setattr(kind, method, patched)
    loader = same_as_torch(kind(str(photos), SMALL))
    assert f"{method}: it was replaced by" in loader.explain()


@pytest.mark.parametrize("name", ["pil_loader", "default_loader"])
def test_loaders_of_torchvisions_folder(photos: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sys.modules["torchvision.datasets.folder"]
    monkeypatch.setattr(folder, name, turned(getattr(folder, name)))
    loader = same_as_torch(torchvision.datasets.ImageFolder(str(photos), SMALL, loader=folder.default_loader))
    assert "replaced by" in loader.explain() or "ImageFolder(loader=)" in loader.explain()


@pytest.mark.parametrize("method", ["__getitem__", "__getitems__"])
def test_methods_of_a_subset(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subset, method, mock.MagicMock(return_value=(torch.ones(2), 3)))
    if method == "__getitems__":
        monkeypatch.setattr(Subset, method, lambda self, chosen: [self.dataset[0] for _ in chosen])
    loader = same_as_torch(Subset(TensorDataset(torch.arange(12.0)), [3, 4, 5, 6]))
    assert f"Subset.{method}: it was replaced by" in loader.explain()


@pytest.mark.parametrize("kind", [ConcatDataset, TensorDataset, penstock.Arrays])
def test_methods_of_datasets_in_memory(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "__getitem__", lambda self, index: torch.tensor(7.0))
    inner: Any = (TensorDataset if kind is ConcatDataset else kind)(torch.arange(12.0))
    loader = same_as_torch(ConcatDataset([inner, inner]))
    assert f"{kind.__name__}.__getitem__: it was replaced by" in loader.explain()


@pytest.mark.parametrize(("holder", "suffix"), [(torch, ".pt"), (np, ".npy")])
@pytest.mark.parametrize("assisted", [False, True])
def test_load(tensors: Path, holder: Any, suffix: str, assisted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    original = holder.load
    monkeypatch.setattr(holder, "load", lambda *given, **named: original(*given, **named) + 5)
    ids = [str(number) for number in range(6)]
    transform = (lambda tensor: tensor * 2) if assisted else None
    loader = same_as_torch(penstock.TensorFolder(tensors, ids, suffix=suffix, transform=transform))
    assert "load: it was replaced by" in loader.explain() or assisted


@pytest.mark.parametrize("name", ["default_collate", "collate"])
def test_collating(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    collate = sys.modules["torch.utils.data._utils.collate"]
    original = getattr(collate, name)
    monkeypatch.setattr(collate, name, lambda *given, **named: [original(*given, **named)])
    for options in ({}, {"num_workers": 2, "worker_method": "thread"}):
        loader = same_as_torch(TensorDataset(torch.arange(12.0)), **options)
        assert "collate" in loader.explain()


def test_a_global_hook_on_native_plans(photos: Path) -> None:
    called: list[str] = []
    hook = torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: called.append(type(m).__name__))
    try:
        loader = same_as_torch(torchvision.datasets.ImageFolder(str(photos), SMALL))
        assert "hooks" in loader.explain()
    finally:
        hook.remove()
    assert called == ["Resize"] * 16
    assert "native" in loader.explain().split("\n")[0]


def test_a_kernel_for_another_type_changes_nothing(photos: Path) -> None:
    class Depth(torchvision.tv_tensors.TVTensor):
        pass

    v2.functional.register_kernel(v2.functional.resize, Depth)(lambda image, *given, **named: image)
    dataset = torchvision.datasets.ImageFolder(str(photos), v2.Compose(SECOND))
    assert "replaced" not in same_as_torch(dataset).explain()


def test_a_reader_of_jpeg_that_a_plugin_has_put_there(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = sys.modules["PIL.JpegImagePlugin"]
    monkeypatch.setitem(PIL.Image.OPEN, "JPEG", (turned(plugin.jpeg_factory), PIL.Image.OPEN["JPEG"][1]))
    explained = same_as_torch(penstock.ImageFolder(str(photos), SMALL)).explain()
    assert "PIL's reader of JPEG: it was replaced" in explained


def test_a_class_in_the_place_of_another(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(v1.Resize):
        def forward(self, image: Any) -> Any:
            return image.rotate(90).resize((8, 8))

    monkeypatch.setattr(sys.modules["torchvision.transforms.transforms"], "Resize", Mine)
    monkeypatch.setattr(v2, "Resize", Mine)
    same_as_torch(torchvision.datasets.ImageFolder(str(photos), v1.Compose([Mine((8, 8)), v1.ToTensor()])))

    class Folder(torchvision.datasets.ImageFolder):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(0)

    monkeypatch.setattr(torchvision.datasets, "ImageFolder", Folder)
    same_as_torch(Folder(str(photos), v1.Compose([v1.CenterCrop(8), v1.ToTensor()])))


def test_patches_that_come_and_go_between_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    transform, image = v1.Compose([v1.Resize((12, 12)), v1.ToTensor()]), noise()
    plain = within(transform, image)
    for _ in range(2):
        for holder, name in ((v1.Resize, "forward"), (v1.Compose, "__call__")):
            with monkeypatch.context() as patch:
                patch.setattr(holder, name, turned(getattr(holder, name)))
                assert torch.equal(within(transform, image), plain.flip(-2))
            assert torch.equal(within(transform, image), plain)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plan_lasts_until_its_folder_is_another(photos: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    dataset = torchvision.datasets.ImageFolder(str(photos), v1.Compose([v1.Resize((12, 12)), v1.ToTensor()]))
    loader: Any = penstock.DataLoader(dataset, batch_size=4, num_workers=workers)

    def same(read_by: str = "native threads") -> Any:
        assert_same(list(loader), list(TorchDataLoader(dataset, batch_size=4)))
        assert loader.read_by == read_by
        return loader._plan

    first = same()
    assert same() is first, "nothing has changed"
    dataset.samples.reverse()
    same()
    dataset.samples.pop()
    shorter = same()
    dataset.transform.transforms.insert(1, v1.Grayscale())
    assert same() is not shorter
    kind = torchvision.datasets.ImageFolder
    get = kind.__getitem__
    replaced: Any = (
        (v1.Resize, "forward", turned(v1.Resize.forward)),
        (kind, "__getitem__", lambda self, index: (get(self, index)[0] + 1, index)),
        (PIL.Image, "open", turned(PIL.Image.open)),
    )
    for holder, name, instead in replaced:
        before = same()
        with monkeypatch.context() as patch:
            patch.setattr(holder, name, instead)
            assert same("Python") is not before


def test_a_method_that_is_replaced_within_a_pass_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    transform, image = v1.Compose([v1.Resize((12, 12)), v1.ToTensor()]), noise()
    original, plain = v1.Compose.__call__, transform(image)

    def replace() -> Any:
        assert torch.equal(transform(image), plain)
        mine = turned(v1.Compose.__call__)
        monkeypatch.setattr(v1.Compose, "__call__", mine)
        assert torch.equal(transform(image), plain.flip(-2))
        return mine

    assert within(replace) is v1.Compose.__call__
    monkeypatch.undo()  # ours is there once more, outside of a pass
    assert torch.equal(transform(image), plain)
    within(dict)
    assert v1.Compose.__call__ is original


def test_a_hook_of_ours_passes_and_a_function_around_it_does_not(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def because() -> str:
        return "\n".join(
            line for line in penstock.DataLoader(dataset).explain().splitlines() if "Compose.__call__" in line
        )

    dataset = torchvision.datasets.ImageFolder(str(photos), SMALL)
    within(dict)
    assert because() == ""
    monkeypatch.setattr(v1.Compose, "__call__", turned(v1.Compose.__call__))
    assert "turned" in because()
