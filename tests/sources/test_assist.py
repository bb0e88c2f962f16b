"""Assisted reading against the datasets' own __getitem__: what the user's code is given, and what comes of it."""

from __future__ import annotations

import pickle
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image, ImageDraw
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock._native as _native
from penstock import Arrays, ImageFolder, TensorFolder
from penstock.recipe import keyed_methods
from penstock.recipe.patches import Lease
from penstock.recipe.reader import read
from penstock.recipe.steps import Recipe, Refusal
from penstock.sources.sample_reader import Assisted
from penstock.sources.tree import assist
from tests.forking import assert_in_child
from tests.same import assert_same, assert_same_outcome
from tests.waiting import run_in_threads

pytestmark = pytest.mark.native

GENERATIONS = pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])
FOLDERS = pytest.mark.parametrize("folder", [ImageFolder, torchvision.datasets.ImageFolder], ids=["penstock", "tv"])
EXIF = Image.Exif()
EXIF[0x0112] = 6  # turned by 90 degrees


def noise(height, width, channels=3):
    smooth = np.random.default_rng([height, width]).integers(0, 256, (9, 12, channels), dtype=np.uint8)
    return Image.fromarray(smooth.squeeze()).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A folder of two classes: JPEGs of several kinds and what only Pillow reads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "images"
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
    noise(60, 90).save(root / "a/0.jpg", quality=90)
    noise(75, 50).save(root / "a/1.jpg", progressive=True, dpi=(72, 72), comment=b"hello")
    noise(64, 80).save(root / "a/2.jpg", exif=EXIF, icc_profile=b"profile" * 20)
    noise(31, 44, 1).save(root / "a/3.jpg")
    noise(70, 70).convert("CMYK").save(root / "a/4.jpg")
    noise(40, 52).save(root / "b/5.png")
    noise(50, 66).save(root / "b/6.jpg", subsampling=0)
    noise(20, 24).save(root / "b/7.jpg", format="MPO", save_all=True, append_images=[noise(20, 24)])
    return root


def assisted_by(dataset: Any) -> Assisted:
    assisted = assist(dataset)
    assert assisted is not None
    return assisted


def check(dataset):
    """Compare every sample, and return the assisted dataset."""
    assisted = assisted_by(dataset)
    for index in range(len(dataset)):
        assert_same(assisted(index, 1, 2), dataset[index])
    return assisted


def outcomes_agree(dataset, *indices):
    """Compare what samples of all indices (or of these) are, or what they raise."""
    assisted = assisted_by(dataset)
    for index in indices or range(len(dataset)):
        assert_same_outcome(partial(assisted, index, 0, 0), partial(dataset.__getitem__, index))


def natively(assisted, monkeypatch, index=0):
    """Return whether a sample is read without the dataset's own __getitem__."""
    kind = type(assisted.dataset)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "__getitem__", lambda self, index: "its own")
        return assisted(index, 0, 0) != "its own"


@pytest.fixture
def keyed():
    """torchvision's transforms draw by the sample, as in our workers."""
    with Lease(keyed_methods.HOOKS):
        yield


def itself(value):
    return value


def sharpened(image):
    """Return arrays in a dict, as albumentations does."""
    return {"image": np.asarray(image).astype(np.float32)[::-1] / 3}


@FOLDERS
@pytest.mark.parametrize("transform", [itself, np.asarray, lambda image: image.getexif().get(0x0112), sharpened])
def test_functions_of_the_users_own(images, folder, transform):
    check(folder(images, transform=transform))
    check(folder(images, transform=transform, target_transform=lambda label: {"label": str(label)}))
    assert_same(assisted_by(folder(images))(0, 0, 0), folder(images)[0])


@GENERATIONS
@FOLDERS
def test_a_prefix_is_native(images, folder, t):
    seen = []

    def look(image):
        seen.append(image)
        return image

    dataset = folder(images, transform=t.Compose([t.Resize(32), t.CenterCrop(30), t.Lambda(look), t.PILToTensor()]))
    assisted = check(dataset)
    assert {image.size for image in seen} == {(30, 30)}
    who = [(step.who, step.what.split()[0]) for step in assisted.steps]
    assert who == [("native", "read"), ("Python", "call")]
    assert "Lambda, PILToTensor" in assisted.steps[-1].what and "Lambda: Penstock has no native form" in assisted.steps[-1].what


PREFIXES: dict[str, Any] = {
    "grey1": lambda t: [t.Grayscale(), t.Resize((20, 30))],
    "grey3": lambda t: [t.Grayscale(3)],
    "padded": lambda t: [t.Pad(3, fill=7), t.CenterCrop(40)],
    "no padding": lambda t: [t.Pad(0)],
    "larger crop": lambda t: [t.CenterCrop(64)],
    "nested": lambda t: [t.Compose([t.Resize((20, 24)), t.Compose([t.RandomVerticalFlip(1.0)])])],
    "unknown first": lambda t: [t.Lambda(itself), t.Resize(20)],
    "unknown resize": lambda t: [t.Resize(20), t.GaussianBlur(3, 1.0)],
}


@GENERATIONS
@pytest.mark.parametrize("name", PREFIXES)
def test_what_a_prefix_hands_on(images, t, name):
    check(torchvision.datasets.ImageFolder(images, t.Compose([*PREFIXES[name](t), t.Lambda(itself)])))


def test_a_compose_that_does_otherwise_is_called_as_a_whole(images):
    hooked = v2.Compose([v2.Resize(20), v2.Lambda(itself)])
    hooked.register_forward_hook(lambda module, inputs, output: output.rotate(90))
    replaced = v2.Compose([v2.Resize(20)])
    replaced.forward = lambda image: image.convert("L")

    class Own(v1.Compose):
        def __call__(self, image):
            return super().__call__(image).crop((0, 0, 5, 5))

    for transform in (hooked, replaced, Own([v1.Resize(20)]), v1.Compose([v2.Compose([v2.Resize(9)]), hooked])):
        check(torchvision.datasets.ImageFolder(images, transform))
        assert isinstance(read(transform, mode="RGB"), Refusal)


@GENERATIONS
def test_random_transforms_draw_as_the_native_plan(images, t, keyed):
    steps = [t.RandomResizedCrop(24), t.RandomHorizontalFlip()]
    recipe = read(t.Compose([*steps, t.PILToTensor()]), mode="RGB")
    assert isinstance(recipe, Recipe)
    dataset = torchvision.datasets.ImageFolder(images, t.Compose([*steps, t.Lambda(itself), t.PILToTensor()]))
    assisted = assisted_by(dataset)
    before = torch.get_rng_state()
    results = set()
    for seed, epoch, index in ((0, 0, 0), (0, 1, 0), (7, 0, 1), (7, 0, 6), (-1, 3, 2), (5, 5, -2)):
        pixels = np.asarray(Image.open(dataset.samples[index][0]).convert("RGB"))
        content, shape = _native.run_recipe(recipe.native, pixels, seed % 2**64, epoch, index % 2**64, 9)
        expected = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(shape)
        image, label = assisted(index, seed, epoch, 9)
        assert torch.equal(image, expected) and label == dataset.samples[index][1]
        results.add(bytes(content))
    assert len(results) == 6
    assert torch.equal(torch.get_rng_state(), before)


@FOLDERS
def test_user_code_may_write_into_the_image(images, folder):
    def draw(image):
        ImageDraw.Draw(image).rectangle((1, 1, 9, 9), fill="red")
        image.putpixel((0, 0), (1, 2, 3))
        pixels = image.load()
        pixels[3, 3] = (9, 8, 7)
        image.paste((4, 4, 4), (10, 10, 12, 12))
        image.info["mine"] = 1
        return image

    def scribble(image):
        image.putpixel((1, 1), 77)
        return image

    check(folder(images, transform=draw))
    check(torchvision.datasets.ImageFolder(images, v1.Compose([v1.Grayscale(), v1.Lambda(scribble)])))


@FOLDERS
def test_bad_files_raise_what_the_dataset_raises(images, folder, monkeypatch):
    dataset = folder(images, transform=itself)
    good = (images / "a/0.jpg").read_bytes()
    (images / "a/1.jpg").write_bytes(good[: len(good) // 2])
    (images / "a/2.jpg").write_bytes(b"")
    (images / "a/3.jpg").write_bytes(b"no image at all")
    (images / "b/6.jpg").unlink()
    outcomes_agree(dataset)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(Exception, match="exceeds limit"):
        assisted_by(dataset)(0, 0, 0)


def test_errors_and_changes_of_the_users_code(images):
    def wrong(image):
        raise KeyError("mine")

    dataset = torchvision.datasets.ImageFolder(images, np.asarray)
    assisted = assisted_by(dataset)
    assert_same(assisted(0, 0, 0), dataset[0])
    dataset.transform = v1.Grayscale()
    dataset.target_transform = str
    assert_same(assisted(0, 0, 0), dataset[0])
    with pytest.raises(KeyError, match="mine"):
        assisted_by(torchvision.datasets.ImageFolder(images, wrong))(0, 0, 0)


def test_no_gain_no_assistance(images, monkeypatch):
    class Own(torchvision.datasets.ImageFolder):
        def __getitem__(self, index):
            return super().__getitem__(index)

    class Named(torchvision.datasets.ImageFolder):
        def __repr__(self):
            return "named"

    folder = torchvision.datasets.ImageFolder(images, itself)
    array, other = Arrays(np.zeros((4, 3)), transform=itself), [1]
    loader = torchvision.datasets.ImageFolder(images, itself, loader=Image.open)
    unassisted: list[Any] = [array, other, Own(images, itself), loader, Subset(array, [1])]
    for dataset in (*unassisted, ConcatDataset(unassisted[:2])):
        assert assist(dataset) is None
    for dataset in (Subset(folder, [0]), Named(images, itself)):
        assert assist(dataset) is not None
    monkeypatch.setattr(torchvision, "_image_backend", "accimage")
    assert assist(folder) is None


@FOLDERS
def test_indices_of_every_kind(images, folder):
    inner = folder(images, transform=np.asarray)
    numbers: list[Any] = [np.array([5, 0, 2]), torch.tensor([1, -1]), [3, -1, True, np.int32(2)]]
    listed: Any = [("no", "image")]
    parts: Any = ConcatDataset([Subset(inner, numbers[0]), listed, Subset(inner, numbers[1])])
    kinds = [np.int64(1), np.uint8(0), torch.tensor(1), torch.tensor(0, dtype=torch.int32), True, "1", None, 0.0]
    for dataset in (inner, Subset(inner, numbers[2]), parts, Subset(parts, range(5, -1, -1))):
        size = len(dataset)
        outcomes_agree(dataset, *range(-size - 2, size + 2), *kinds, 2**70, torch.tensor([1]), [0, 1], slice(2))


def test_steps_of_several_parts(images):
    other: Any = [1, 2]
    parts: Any = ConcatDataset([ImageFolder(images, itself, str), other])
    said = [f"{step.who}: {step.what}" for step in assisted_by(parts).steps]
    assert len(said) == 4
    assert said[0].startswith("native: read    8 image files")
    assert "call    itself, on each PIL image" in said[1] and "call    str, on each label" in said[2]
    assert said[3] == "Python: read    list, by its __getitem__"


@FOLDERS
def test_pickling(images, folder, keyed):
    transform = v1.Compose([v1.RandomResizedCrop(20), v1.Lambda(itself), v1.ToTensor()])
    assisted = assisted_by(Subset(folder(images, transform=transform), [0, 1, 6]))
    again = pickle.loads(pickle.dumps(assisted))
    for index in range(3):
        assert_same(again(index, 3, 4), assisted(index, 3, 4))
    assert again.steps == assisted.steps


@FOLDERS
def test_four_threads_at_once(images, folder, keyed):
    # The CMYK file and the PNG are read by Pillow in between.
    dataset = folder(images, transform=v1.Compose([v1.RandomCrop((20, 22)), np.asarray]))
    assisted = assisted_by(dataset)
    native = [index for index in range(len(dataset)) if index not in (4, 5)]
    expected = {index: assisted(index, 0, index) for index in native}
    start = threading.Barrier(4)

    def work(number):
        start.wait()
        for step in range(40):
            index = (2 * number + step) % len(dataset)
            found = assisted(index, 0, index)
            assert_same(found, expected.get(index, found))
            assert found[0].shape == (20, 22, 3)

    run_in_threads(4, work)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of threads that other tests have left
def test_after_a_fork(images):
    assisted = assisted_by(torchvision.datasets.ImageFolder(images, np.asarray))
    expected = [assisted(index, 0, 0) for index in range(4)]
    assert_in_child(lambda: assert_same([assisted(index, 0, 0) for index in range(4)], expected))


@pytest.fixture
def tensors(tmp_path):
    root = tmp_path / "tensors"
    root.mkdir()
    made = dict(zip("abcdefghi", [
        torch.rand(3, 8, 8), torch.rand(3, 8, 8), torch.rand(5).to(torch.bfloat16), torch.tensor(True),
        torch.rand(6, 4).t(), torch.empty(0, 3), torch.rand(9, 4)[2:5], torch.arange(600_000), torch.rand(1, 3).t(),
    ], strict=True))  # fmt: skip
    for name, tensor in made.items():
        torch.save(tensor, root / f"{name}.pt")
    return root, made


@pytest.mark.parametrize("labelled", [False, True])
def test_tensors(tensors, labelled, monkeypatch):
    root, made = tensors
    labels = {name: ord(name) for name in made} if labelled else None
    seen = []

    def add_one(tensor):
        seen.append(tensor)
        assert not tensor._is_view() and tensor.storage_offset() in (0, 8)
        return tensor.resize_(tensor.shape) if tensor.is_contiguous() else tensor

    dataset = TensorFolder(root, labels=labels, transform=add_one, target_transform=str if labelled else None)
    assisted = check(dataset)
    for first, second in zip(seen[::2], seen[2::2], strict=False):
        assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    assert natively(assisted, monkeypatch)
    assert natively(assisted, monkeypatch, index=4)  # its elements are not in C order: torch.load has the bytes
    assert [step.who for step in assisted.steps] == ["native", "Python", "Python"][: 2 + labelled]


def test_tensors_are_fresh_and_may_grow(tensors):
    root, made = tensors
    assisted = assisted_by(TensorFolder(root, transform=itself))
    first, second = assisted(0, 0, 0), assisted(0, 0, 0)
    first.zero_()
    assert torch.equal(second, made["a"])
    assert second.resize_(10, 10, 10).shape == (10, 10, 10)


def test_npy_and_bad_tensor_files(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(12.0).reshape(3, 4))
    np.save(tmp_path / "b.npy", np.asfortranarray(np.arange(12.0).reshape(3, 4)))
    (tmp_path / "c.npy").write_bytes(b"")
    np.save(tmp_path / "d.npy", np.zeros(3))
    dataset = TensorFolder(tmp_path, suffix=".npy", labels={"a": 1, "b": 2, "c": 3}, transform=itself)
    (tmp_path / "d.npy").unlink()
    outcomes_agree(dataset, *range(5))
    assert assisted_by(dataset)(1, 0, 0)[1] == 2
    np.save(tmp_path / "d.npy", np.zeros(3))
    with pytest.raises(KeyError, match=r"sample 'd' .* has no label"):
        assisted_by(dataset)(3, 0, 0)


def test_read_tensor_checks_its_room(tensors):
    paths = TensorFolder(tensors[0]).paths
    filler = _native.TensorFileFiller(paths)
    spec = _native.Spec("float32", [3, 8, 8])
    with pytest.raises(ValueError, match="do not agree"):
        _native.read_tensor(filler, 0, np.empty(3, dtype=np.uint8), spec)
    out = np.empty(spec.nbytes, dtype=np.uint8)
    assert _native.read_tensor(filler, 0, out, spec) is None
    assert out.tobytes() == tensors[1]["a"].numpy().tobytes()
    other = _native.read_tensor(filler, 2, out, spec)
    assert isinstance(other, _native.Spec) and (other.dtype, other.shape) == ("bfloat16", (5,))
    assert "opened" in str(_native.read_tensor(filler, 99, out, spec))
