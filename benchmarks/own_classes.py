"""Datasets that people write themselves, unchanged: files of tensors, arrays, photos and sounds; samples in memory.

Others call a class of transforms, or are pure Python. Worker processes are kept between epochs, torch's as Penstock's.
A class that opens photos with Pillow is measured in python_datasets.py.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import wave
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import photos, tensor_files
from benchmarks.contestants import Samples, epochs_of, penstock_persistent, torch_loader
from benchmarks.python_datasets import arithmetic
from benchmarks.question import Contestant, Options, Question, Role, Setup, Table, Target, made


def prepare(options: Options) -> Setup:
    """The files of `tensor_files` and `photos`; dict/ID.pt and packed/ID.*: two tensors of 24 KB; sounds of noise."""
    setup = tensor_files.prepare(options)
    folder = made(options.cache / f"own_classes-{setup.samples}", partial(write_dicts, samples=setup.samples))
    packed = made(options.cache / f"own_packed-{setup.samples}", partial(write_packed, samples=setup.samples))
    sounds = made(options.cache / "own_sounds", write_sounds)
    facts = {"dicts": str(folder), "packed": str(packed), "sounds": str(sounds), "cheap": setup.samples // 10}
    facts["photos"] = photos.prepare(options).data
    return dataclasses.replace(setup, facts={**setup.facts, **facts})


def write_dicts(folder: Path, samples: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for name in tensor_files.ids(samples):
        image, mask = torch.randn(2, 3, 32, 64, generator=generator).unbind(0)
        torch.save({"image": image.clone(), "mask": mask.clone(), "label": 1}, folder / f"{name}.pt")


def write_packed(folder: Path, samples: int) -> None:
    from safetensors.torch import save_file

    generator = np.random.default_rng(0)
    for name in tensor_files.ids(samples):
        parts = dict(zip("xy", generator.standard_normal((2, 3, 32, 64), np.float32), strict=True))
        np.savez(folder / f"{name}.npz", **parts)
        save_file({key: torch.from_numpy(part) for key, part in parts.items()}, folder / f"{name}.safetensors")
        np.stack([*parts.values()]).tofile(folder / f"{name}.bin")


SOUNDS = 128
"""Files of each length, whatever the number of samples: 10 s of two channels are 1.8 MB."""


def write_sounds(folder: Path) -> None:
    generator = np.random.default_rng(0)
    for seconds, channels, rate in ((10, 2, 44_100), (1, 1, 16_000)):
        for i in range(SOUNDS):
            with wave.open(str(folder / f"{seconds}-{i}.wav"), "wb") as file:
                file.setparams((channels, 2, rate, 0, "NONE", ""))
                noise = generator.normal(0, 3000, seconds * rate * channels)
                file.writeframes(noise.clip(-32768, 32767).astype("<i2").tobytes())


def arrays(setup: Setup) -> Any:
    """numpy.load of one file a sample."""
    names = [str(setup.path("npy", f"{name}.npy")) for name in tensor_files.ids(setup.samples)]
    return Samples(setup.samples, lambda index: (np.load(names[index]), index % 10))


def dicts(setup: Setup) -> Any:
    """torch.load of a dict a sample."""
    names = [f"{setup.facts['dicts']}/{name}.pt" for name in tensor_files.ids(setup.samples)]
    return Samples(setup.samples, lambda index: torch.load(names[index]))


def opencv(setup: Setup) -> Any:
    """cv2.imread, cvtColor, and Albumentations' transforms to normalised float32."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # else it asks the network for a newer release
    import albumentations as A

    cv2: Any = importlib.import_module("cv2")
    names = sorted(str(path) for path in Path(setup.facts["photos"]).rglob("*.jpg"))
    size = (photos.SIZE, photos.SIZE)
    steps = [A.RandomResizedCrop(size), A.HorizontalFlip(), A.Normalize(*photos.CHANNELS), A.ToTensorV2()]
    transform = A.Compose(steps)

    def sample(index: int) -> Any:
        image = cv2.cvtColor(cv2.imread(names[index]), cv2.COLOR_BGR2RGB)
        return transform(image=image)["image"], index % 10

    return Samples(len(names), sample)


def packed(suffix: str, read: Callable[[str], Any], setup: Setup) -> Any:
    """What is read of a file a sample."""
    names = [f"{setup.facts['packed']}/{name}.{suffix}" for name in tensor_files.ids(setup.samples)]
    return Samples(setup.samples, lambda index: (read(names[index]), index % 10))


def both_of_npz(path: str) -> Any:
    with np.load(path) as parts:
        return parts["x"], parts["y"]


def range_of_sound(setup: Setup) -> Any:
    """soundfile.read of 3 s at a random place of 10 s."""
    import soundfile

    def read(index: int) -> Any:
        start = int(torch.randint(7 * 44_100, ()))
        path = f"{setup.facts['sounds']}/10-{index % SOUNDS}.wav"
        return soundfile.read(path, start=start, stop=start + 3 * 44_100, dtype="float32")[0], index % 10

    return Samples(max(setup.samples // 8, 512), read)


def by_torchaudio(setup: Setup) -> Any:
    """torchaudio.load of 1 s."""
    import torchaudio

    names = [f"{setup.facts['sounds']}/1-{i}.wav" for i in range(SOUNDS)]
    torchaudio.load(names[0])  # raises where torchcodec or FFmpeg is missing
    return Samples(max(setup.samples // 4, 512), lambda index: (torchaudio.load(names[index % SOUNDS])[0], index % 10))


def by_safetensors(setup: Setup) -> Any:
    import safetensors.torch

    def both(path: str) -> Any:
        parts = safetensors.torch.load_file(path)
        return parts["x"], parts["y"]

    return packed("safetensors", both, setup)


def decoded(setup: Setup) -> Any:
    """torchvision.io's decode_image(read_file(path)) and version 2's transforms of the tensor."""
    from torchvision.io import decode_image, read_file
    from torchvision.transforms import v2

    names = [str(path) for path in sorted(Path(setup.facts["photos"]).rglob("*.jpg"))]
    steps = [v2.RandomResizedCrop(photos.SIZE, antialias=True), v2.RandomHorizontalFlip()]
    transform = v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(*photos.CHANNELS)])
    return Samples(len(names), lambda index: (transform(decode_image(read_file(names[index]), "RGB")), index % 10))


class Preset:
    """torchvision's references/classification/presets.py: ClassificationPresetTrain as that of ResNet-50 calls it."""

    def __init__(self) -> None:
        from torchvision import transforms

        steps = [transforms.RandomResizedCrop(photos.SIZE, antialias=True), transforms.RandomHorizontalFlip(0.5)]
        conversions = [transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float)]
        self.transforms = transforms.Compose([*steps, *conversions, transforms.Normalize(*photos.CHANNELS)])

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


def preset(setup: Setup) -> Any:
    """torchvision's ImageFolder over a class that holds a Compose."""
    from torchvision.datasets import ImageFolder

    return ImageFolder(setup.facts["photos"], Preset())


def held(kilobytes: int, setup: Setup) -> Any:
    """One tensor in memory, given for each sample."""
    sample = torch.randn(kilobytes * 256)
    return Samples(setup.samples * 48 // kilobytes, lambda index: (sample, index))


DATASETS: dict[str, Callable[[Setup], Any]] = {
    "tutorial": tensor_files.tutorial,
    "dicts": dicts,
    "arrays": arrays,
    "opencv": opencv,
    "fromfile": partial(packed, "bin", lambda path: np.fromfile(path, np.float32)),
    "npz": partial(packed, "npz", both_of_npz),
    "safetensors": by_safetensors,
    "sounds": range_of_sound,
    "torchaudio": by_torchaudio,
    "decode_image": decoded,
    "preset": preset,
    "held_48": partial(held, 48),
    "held_600": partial(held, 600),
    "nothing_known": lambda setup: Samples(setup.facts["cheap"], arithmetic),
}


def dataset(setup: Setup) -> Any:
    """The dataset of the table."""
    return DATASETS[setup.variant](setup)


TORCH = Contestant("torch", Role.TORCH, epochs_of(torch_loader, dataset), "torch.utils.data.DataLoader, unchanged.")
PROCESSES = Contestant(
    "penstock", Role.PENSTOCK, epochs_of(penstock_persistent, dataset), "penstock.DataLoader with the same parameters."
)
THREADS = Contestant(
    "penstock thread",
    Role.PENSTOCK,
    epochs_of(penstock_persistent, dataset, worker_method="thread"),
    'The same with worker_method="thread".',
)


def table(name: str, title: str, processes: float, threads: float | None = None) -> Table:
    targets = [Target("penstock", processes, "torch")]
    if threads is not None:
        targets.append(Target("penstock thread", threads, "torch"))
    return Table(name, f"{title}, batch 64, shuffled, 2 workers", (TORCH, PROCESSES, THREADS), tuple(targets))


TABLES = (
    table("tutorial", "torch.load of ID.pt, 3x64x64 float32", 2.5, 8),
    table("dicts", "torch.load of a dict of two tensors of 24 KB and a number", 2, 5),
    table("arrays", "numpy.load of ID.npy, 3x64x64 float32", 2.5, 8),
    table(
        "opencv", "cv2.imread of a photo, cvtColor, Albumentations' RandomResizedCrop(224), flip, Normalize", 1.5, 1.5
    ),
    table("fromfile", "numpy.fromfile of 48 KB", 3, 4),
    table("npz", "numpy.load of an .npz of two arrays of 24 KB", 3, 4),
    table("safetensors", "safetensors.torch.load_file of two tensors of 24 KB", 3, 4),
    table("sounds", "soundfile.read of 3 s of 10 s of 44.1 kHz stereo, PCM 16, as float32", 2, 6),
    table("torchaudio", "torchaudio.load of 1 s of 16 kHz, PCM 16", 3, 8),
    table(
        "decode_image", "decode_image(read_file(path)), v2 RandomResizedCrop(224), flip, ToDtype, Normalize", 2.2, 2.2
    ),
    table("preset", "ImageFolder with torchvision's ClassificationPresetTrain", 4.5),
    table("held_48", "48 KB samples that cost nothing", 2),
    table("held_600", "600 KB samples that cost nothing", 2.5),
    table("nothing_known", "a millisecond of pure Python a sample", 0.98),
)
QUESTION = Question("own_classes", "Your own Dataset class, unchanged", TABLES, prepare)
