"""JPEG decoding: whole images and crops of the photos of `photos`, as they are and re-encoded at quality 75 with 4:2:0;
and Resize(256) with CenterCrop(224) by loaders.

Decoders work in one thread on files in memory, and give an array of their own for each image. The boxes of a crop are
those of RandomResizedCrop, the same ones for everybody. Who cannot decode a part of an image decodes all of it.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import bare, photos
from benchmarks.cache import centred
from benchmarks.contestants import dali_epochs, epochs_of, first_epochs, later_epochs, over, torch_loader
from benchmarks.question import Build, Contestant, Options, Question, Role, Running, Setup, Table, Target, made

QUALITY = 75
#: Whole images, and crops; of the photos, and of those that are re-encoded.
WHOLE, CROP, WHOLE_75, CROP_75 = "whole", "crop", f"whole, quality {QUALITY}", f"crop, quality {QUALITY}"

Box = tuple[int, int, int, int]
"""Left, top, width, height."""


class Photos(NamedTuple):
    """Files in memory, and the box of each that is asked for; None: all of it."""

    files: list[bytes]
    boxes: list[Box | None]


def prepare(options: Options) -> Setup:
    """The photos of `photos`, and the different ones of them re-encoded by Pillow in a folder beside them."""
    setup = photos.prepare(options)
    again = made(setup.path().with_name(f"{setup.path().name}-quality-{QUALITY}"), functools.partial(reencode, setup))
    size = sum(path.stat().st_size for path in again.rglob("*.jpg"))
    different = sum(1 for _ in again.rglob("0-*.jpg"))
    mean = round(size / max(1, sum(1 for _ in again.rglob("*.jpg"))) / 1e3, 1)
    facts = {**setup.facts, "reencoded": again.name, "decoded_files": different, f"mean_kb_quality_{QUALITY}": mean}
    return dataclasses.replace(setup, facts=facts)


def reencode(setup: Setup, folder: Path) -> None:
    """folder/CLASS/N-NAME.jpg: each photo of the same name, re-encoded once, linked as often as there."""
    for first in setup.path().rglob("0-*.jpg"):
        kind = folder / first.parent.name
        kind.mkdir(exist_ok=True)
        photos.opened(setup, str(first.relative_to(setup.data))).save(
            kind / first.name, "JPEG", quality=QUALITY, subsampling="4:2:0"
        )
        for again in first.parent.glob(f"*-{first.name.removeprefix('0-')}"):
            if again != first:
                (kind / again.name).hardlink_to(kind / first.name)


def folder_of(setup: Setup) -> Path:
    """The folder of a table's photos."""
    return setup.path().with_name(setup.facts["reencoded"]) if str(QUALITY) in setup.variant else setup.path()


def photos_of(setup: Setup) -> Photos:
    """The different photos of a table, and their boxes."""
    from PIL import Image

    files = [path.read_bytes() for path in sorted(folder_of(setup).rglob("0-*.jpg"))]
    if setup.variant.startswith("whole"):
        return Photos(files, [None] * len(files))
    random.seed(0)
    return Photos(files, [photos.crop_box(*Image.open(io.BytesIO(file)).size) for file in files])


def decoding(setup: Setup, decode: Callable[[Any, Box | None], Any], form: Callable[[bytes], Any] = bytes) -> Running:
    """Epochs of decode(file, box) over the photos, in the calling thread; form: what a file is given as."""
    found = photos_of(setup)
    given = [(form(file), box) for file, box in zip(found.files, found.boxes, strict=True)]
    for file, box in given[:3]:
        shape = tuple(decode(file, box).shape)
        if box is not None and (box[3], box[2]) not in (shape[:2], shape[1:]):
            raise RuntimeError(f"it gave an array {shape} for the box {box}")

    def epoch() -> int:
        for file, box in given:
            decode(file, box)
        return len(given)

    return Running(epoch)


def cut(pixels: Any, box: Box | None) -> Any:
    """A box of an image, (height, width, channels)."""
    if box is None:
        return pixels
    left, top, width, height = box
    return pixels[top : top + height, left : left + width]


# --- decoders ---------------------------------------------------------------------------------------------------------


def ours(setup: Setup) -> Running:
    """penstock._native.decode_jpeg, which reads no file and gives an array: the box alone is decoded."""
    from penstock._native import decode_jpeg

    def decode(file: bytes, box: Box | None) -> Any:
        if box is None:
            return decode_jpeg(file)
        left, top, width, height = box
        return decode_jpeg(file, (left, top, left + width, top + height))

    return decoding(setup, decode)


def bare_decode(setup: Setup) -> Running:
    """C++: the system's libjpeg-turbo (ISLOW, fancy upsampling) decodes the box into memory that is used again."""
    found = photos_of(setup)
    begins = np.cumsum([0, *map(len, found.files)])
    boxes = np.array([(0, 0, 0, 0) if box is None else box for box in found.boxes], np.int64)
    data = np.frombuffer(b"".join(found.files), np.uint8)
    alone = dataclasses.replace(setup, samples=len(found.files), workers=1)
    return bare.loop(alone, "jpeg.cc", "jpeg", data, begins, boxes, libraries=("jpeg",))


def pillow(setup: Setup) -> Running:
    """Pillow: Image.open of bytes in memory, crop where a part is asked for, and numpy.asarray."""
    from PIL import Image

    def decode(file: bytes, box: Box | None) -> Any:
        image = Image.open(io.BytesIO(file)).convert("RGB")
        if box is not None:
            left, top, width, height = box
            image = image.crop((left, top, left + width, top + height))
        return np.asarray(image)

    return decoding(setup, decode)


def torchvision_decode(setup: Setup) -> Running:
    """torchvision.io.decode_jpeg of a tensor of bytes, mode RGB; a box is a slice of the result."""
    from torchvision.io import ImageReadMode, decode_jpeg

    torch.set_num_threads(1)

    def decode(file: Any, box: Box | None) -> Any:
        pixels = decode_jpeg(file, mode=ImageReadMode.RGB)
        return pixels if box is None else cut(pixels.permute(1, 2, 0), box)

    return decoding(setup, decode, lambda file: torch.frombuffer(bytearray(file), dtype=torch.uint8))


def opencv(setup: Setup) -> Running:
    """cv2.imdecode to BGR; a box is a slice of the result."""
    import cv2

    cv2.setNumThreads(1)
    form = functools.partial(np.frombuffer, dtype=np.uint8)
    return decoding(setup, lambda file, box: cut(cv2.imdecode(file, cv2.IMREAD_COLOR), box), form)


def simplejpeg(setup: Setup) -> Running:
    """simplejpeg.decode_jpeg to RGB; a box is a slice of the result."""
    from simplejpeg import decode_jpeg

    return decoding(setup, lambda file, box: cut(decode_jpeg(file), box))


def turbojpeg(setup: Setup) -> Running:
    """PyTurboJPEG's decode to RGB; a box is a slice of the result."""
    from turbojpeg import TJPF_RGB, TurboJPEG

    decoder = TurboJPEG()
    return decoding(setup, lambda file, box: cut(decoder.decode(file, pixel_format=TJPF_RGB), box))


def dali(setup: Setup) -> Running:
    """DALI on the CPU, one thread: files in memory by external_source, decoders.image, or decoders.image_slice of the
    box; images are looked at where DALI has them."""
    from nvidia.dali import Pipeline, fn

    found = photos_of(setup)
    size = min(setup.batch, len(found.files))
    files = [np.frombuffer(file, np.uint8) for file in found.files]
    boxes = np.array([(0, 0, 0, 0) if box is None else box for box in found.boxes], np.int32)
    serial = {"prefetch_queue_depth": 1, "exec_pipelined": False, "exec_async": False}  # it is fed batch by batch
    pipeline = Pipeline(batch_size=size, num_threads=1, device_id=None, **serial)
    with pipeline:
        encoded = fn.external_source(name="files")
        if found.boxes[0] is None:
            images = fn.decoders.image(encoded, device="cpu")
        else:
            begin, shape = fn.external_source(name="begin"), fn.external_source(name="shape")
            images = fn.decoders.image_slice(encoded, start=begin, shape=shape, axes=(0, 1), device="cpu")
        pipeline.set_outputs(images)
    pipeline.build()

    def epoch() -> int:
        for at in range(0, len(files), size):
            part = slice(at, at + size)
            pipeline.feed_input("files", files[part])
            if found.boxes[0] is not None:
                pipeline.feed_input("begin", [box[[1, 0]] for box in boxes[part]])
                pipeline.feed_input("shape", [box[[3, 2]] for box in boxes[part]])
            np.asarray(pipeline.run()[0].at(0))[0, 0, 0].item()
        return len(files)

    return Running(epoch)


# --- loaders ----------------------------------------------------------------------------------------------------------


def of_the_reencoded(build: Build) -> Build:
    """Another build over the photos of the table."""
    return lambda setup: build(dataclasses.replace(setup, data=str(folder_of(setup)), variant="uint8"))


def dali_centred(setup: Setup) -> Running:
    """DALI on the CPU: readers.file (shuffled), decoders.image, resize of the shorter edge to 256, and
    crop_mirror_normalize to 224x224 CHW float32."""
    from nvidia.dali import fn, types

    def outputs() -> list[Any]:
        encoded, labels = fn.readers.file(file_root=setup.data, shuffle_after_epoch=True)
        images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        images = fn.resize(images, resize_shorter=256, interp_type=types.INTERP_LINEAR, antialias=True)
        options = {"crop": (photos.SIZE, photos.SIZE), "output_layout": "CHW", **photos.CHANNELS.dali("float32")}
        return [fn.crop_mirror_normalize(images, **options), labels]

    return dali_epochs(setup, outputs)


def centred_by_torchvision(setup: Setup) -> Running:
    """torch's loader with torchvision.io.decode_image to tensors and v2 transforms."""
    from torchvision.datasets import ImageFolder
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    steps = [v2.Resize(256, antialias=True), v2.CenterCrop(photos.SIZE), v2.ToDtype(torch.float32, scale=True)]
    recipe = v2.Compose([*steps, v2.Normalize(*photos.CHANNELS)])
    dataset = ImageFolder(setup.data, recipe, loader=lambda path: decode_image(path, mode=ImageReadMode.RGB))
    return over(torch_loader(setup, dataset))


DECODERS = (
    Contestant("penstock", Role.PENSTOCK, ours),
    Contestant("libjpeg-turbo", Role.BARE, bare_decode),
    Contestant("Pillow", Role.PEER, pillow, packages=("pillow",)),
    Contestant("torchvision", Role.PEER, torchvision_decode, packages=photos.VISION),
    Contestant("OpenCV", Role.PEER, opencv, peers=("opencv-python-headless",)),
    Contestant("simplejpeg", Role.PEER, simplejpeg, peers=("simplejpeg",)),
    Contestant("PyTurboJPEG", Role.PEER, turbojpeg, peers=("PyTurboJPEG",)),
    Contestant("DALI", Role.PEER, dali, peers=("nvidia-dali-cuda130",)),
)
FIRST = "penstock.DataLoader with an empty cache folder for each epoch, which makes the index of decoder states."
LATER = "The same loader in later epochs, by the index that three epochs before the clock have made."
LOADERS = (
    Contestant("torch", Role.TORCH, epochs_of(torch_loader, centred), photos.TORCH, (*photos.VISION, "pillow")),
    Contestant("torch, decode_image", Role.PEER, centred_by_torchvision, packages=photos.VISION),
    Contestant("penstock", Role.PENSTOCK, first_epochs(centred, seed=0), FIRST),
    Contestant("penstock, index", Role.PENSTOCK, later_epochs(centred, seed=0), LATER),
    Contestant("DALI", Role.PEER, dali_centred, peers=("nvidia-dali-cuda130",)),
)
REENCODED = (
    Contestant(
        "torch", Role.TORCH, of_the_reencoded(epochs_of(torch_loader, photos.dataset)), photos.TORCH, photos.VISION
    ),
    Contestant("penstock", Role.PENSTOCK, of_the_reencoded(first_epochs(photos.dataset, seed=0)), FIRST),
    Contestant("penstock, index", Role.PENSTOCK, of_the_reencoded(later_epochs(photos.dataset, seed=0)), LATER),
)
OF_PHOTOS, OF_REENCODED = "of the photos, one thread", f"re-encoded at quality {QUALITY} with 4:2:0, one thread"
FASTEST = (Target("penstock", 1, "best peer"),)
TABLES = (
    Table(WHOLE, f"whole images {OF_PHOTOS}", DECODERS, FASTEST),
    Table(CROP, f"RandomResizedCrop boxes {OF_PHOTOS}", DECODERS, FASTEST),
    Table(WHOLE_75, f"whole images {OF_REENCODED}", DECODERS, FASTEST),
    Table(CROP_75, f"RandomResizedCrop boxes {OF_REENCODED}", DECODERS, FASTEST),
    Table(
        "centre crop",
        "Resize(256) and CenterCrop(224) to normalised float32, batch 64, shuffled, 2 workers or threads",
        LOADERS,
        FASTEST,
    ),
    Table(
        f"loaders, quality {QUALITY}",
        f"photos re-encoded at quality {QUALITY} with 4:2:0, RandomResizedCrop(224) and flip to uint8, batch 64, "
        "shuffled, 2 workers or threads",
        REENCODED,
    ),
)
QUESTION = Question("jpeg", "JPEG decoding, beside the decoders that install", TABLES, prepare)
