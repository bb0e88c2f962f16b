"""Photos in an image folder: RandomResizedCrop(224) and a flip, to uint8 or normalised float32, batches of 64.

Photos: `--photos`, else ../shared/data/photos, else the two that scikit-learn ships; copied once, then hard-linked
until an epoch has about 2,000. Each result says which.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import bare
from benchmarks.contestants import (
    Channels,
    dali_epochs,
    epochs_of,
    ffcv_epochs,
    first_epochs,
    later_epochs,
    spdl_epochs,
    torch_loader,
)
from benchmarks.question import Contestant, Options, Question, Role, Running, Setup, Table, Target, made

CHANNELS = Channels((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SIZE = 224
SUFFIXES = (".jpg", ".jpeg")


def prepare(options: Options) -> Setup:
    """folder/CLASS/N-NAME.jpg: the photos, linked as often as an epoch needs."""
    wanted = 128 if options.quick else 2_000
    if options.photos is not None:
        origin, name = options.photos, options.photos.name
        said = "the image folder given" if options.photos.name != "photos" else "the project's test photos"
    else:
        origin, name, said = shipped(), "shipped", "the two photos that scikit-learn ships"
    found = sorted(path for path in origin.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise FileNotFoundError(f"no JPEG below {origin}: give --photos an image folder")
    chosen = found[:wanted]
    folder = made(options.cache / f"photos-{name}-{wanted}", functools.partial(copy, origin, chosen, wanted))
    samples = sum(1 for _ in folder.rglob("*.jpg"))
    size = sum(path.stat().st_size for path in chosen)
    facts = {"photos": said, "different_photos": len(chosen), "mean_kb": round(size / len(chosen) / 1e3, 1)}
    return Setup(str(folder), samples, facts=facts)


def shipped() -> Path:
    import sklearn.datasets

    return Path(sklearn.datasets.__file__).parent / "images"


def copy(origin: Path, chosen: list[Path], wanted: int, folder: Path) -> None:
    for i, path in enumerate(chosen):
        kind = folder / (path.parent.name if path.parent != origin else "all")
        kind.mkdir(exist_ok=True)
        first = kind / f"0-{i}.jpg"
        shutil.copyfile(path, first)
        for again in range(1, max(1, round(wanted / len(chosen)))):
            os.link(first, kind / f"{again}-{i}.jpg")


def files(setup: Setup) -> list[str]:
    """The photos' paths below the folder, sorted."""
    return sorted(str(path.relative_to(setup.data)) for path in setup.path().rglob("*.jpg"))


def recipe(kind: str) -> Any:
    """torchvision's v1 transforms, as its tutorials have them."""
    from torchvision import transforms

    steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()]
    return transforms.Compose([*steps, *CHANNELS.torchvision(kind)])


def image_folder(folder: str, kind: str = "float32") -> Any:
    from torchvision.datasets import ImageFolder

    return ImageFolder(folder, recipe(kind))


def dataset(setup: Setup) -> Any:
    return image_folder(setup.data, setup.variant)


def decoded_by_torchvision(setup: Setup) -> Any:
    from torchvision.datasets import ImageFolder
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    steps: list[Any] = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]
    if setup.variant == "float32":
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(*CHANNELS)]
    return ImageFolder(setup.data, v2.Compose(steps), loader=lambda path: decode_image(path, mode=ImageReadMode.RGB))


def bare_decode(setup: Setup) -> Running:
    """C++: reads the file and decodes only a RandomResizedCrop box with libjpeg-turbo (ISLOW, fancy upsampling);
    no resize, no flip, no conversion, no labels, no hand-over."""
    names = bare.names(files(setup))
    return bare.loop(setup, "photos.cc", "photos", setup.data.encode(), *names, libraries=("jpeg",))


def dali(setup: Setup) -> Running:
    """DALI on the CPU: readers.file (shuffled), decoders.image_random_crop, resize, crop_mirror_normalize to CHW;
    its default prefetching; batches are looked at where DALI has them, without a copy to torch."""
    from nvidia.dali import fn, types

    box = {"random_aspect_ratio": [3 / 4, 4 / 3], "random_area": [0.08, 1.0]}

    def outputs() -> list[Any]:
        encoded, labels = fn.readers.file(file_root=setup.data, shuffle_after_epoch=True)
        images = fn.decoders.image_random_crop(encoded, device="cpu", output_type=types.RGB, **box)
        images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True)
        options = {"mirror": fn.random.coin_flip(), "output_layout": "CHW", **CHANNELS.dali(setup.variant)}
        return [fn.crop_mirror_normalize(images, **options), labels]

    return dali_epochs(setup, outputs)


def ffcv_jpeg(setup: Setup) -> Running:
    """FFCV on its own file: photos re-encoded once as JPEG (quality 90, longest side at most 500), os_cache,
    OrderOption.RANDOM, RandomResizedCropRGBImageDecoder, flip (and NormalizeImage)."""
    return ffcv(setup, "jpg", write_mode="jpg")


def ffcv_half_raw(setup: Setup) -> Running:
    """FFCV's ImageNet recipe: as above, but half of the photos stored as decoded pixels, chosen at random. Not a peer
    for the targets: half of its epoch decodes nothing, for several times the storage."""
    return ffcv(setup, "half-raw", write_mode="proportion", compress_probability=0.5)


def ffcv(setup: Setup, kind: str, **options: Any) -> Running:
    from ffcv.fields import RGBImageField
    from ffcv.fields.decoders import RandomResizedCropRGBImageDecoder
    from ffcv.transforms import RandomHorizontalFlip

    names = files(setup)
    field = RGBImageField(max_resolution=500, jpeg_quality=90, **options)
    steps = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip(), *CHANNELS.ffcv(setup.variant)]
    name = f"{setup.path().name}-{kind}"
    return ffcv_epochs(setup, name, field, lambda i: (np.asarray(opened(setup, names[i])), i % 10), steps)


def opened(setup: Setup, name: str) -> Any:
    """The photo of that name, decoded by Pillow."""
    from PIL import Image

    with Image.open(setup.path(name)) as image:
        return image.convert("RGB")


def spdl(setup: Setup) -> Running:
    """SPDL's Pipeline on 2 threads: per batch demux, decode with FFmpeg's crop, bilinear scale and flip filters, and
    convert_frames into one HWC array (and torch operations to normalised CHW)."""
    import spdl.io

    torch.set_num_threads(1)
    paths = [str(setup.path(name)) for name in files(setup)]
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in CHANNELS.in_bytes())

    def decode(path: str) -> Any:
        packets = spdl.io.demux_image(path)
        left, top, width, height = crop_box(packets.width, packets.height)
        flip = "hflip," if random.random() < 0.5 else ""
        # exact=1: a crop's place is not rounded to the chroma grid
        filters = (
            f"crop={width}:{height}:{left}:{top}:exact=1,scale={SIZE}:{SIZE}:flags=bilinear,{flip}format=pix_fmts=rgb24"
        )
        return spdl.io.decode_packets(packets, filter_desc=filters)

    decode(paths[0])  # raises where FFmpeg is missing; a pipeline would try the next batch without end

    def load(rows: Any) -> Any:
        images = spdl.io.to_numpy(spdl.io.convert_frames([decode(paths[row]) for row in rows]))
        if setup.variant == "uint8":
            return images
        return torch.from_numpy(images).permute(0, 3, 1, 2).to(torch.float32).sub_(mean).div_(std)

    return spdl_epochs(setup, load)


def crop_box(width: int, height: int) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params in plain Python (torch's draws would be a cost of ours, not of the peer's)."""
    for _ in range(10):
        area, ratio = random.uniform(0.08, 1) * width * height, (4 / 3) ** random.uniform(-1, 1)
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


TORCH = """torch.utils.data.DataLoader over torchvision.datasets.ImageFolder: Pillow decodes, torchvision's v1
    transforms; worker processes kept between epochs."""
DECODE_IMAGE = "The same loader, but torchvision.io.decode_image to tensors and v2 transforms instead of Pillow."
PENSTOCK = """penstock.DataLoader over the unmodified torchvision.datasets.ImageFolder and v1 transforms: a new loader
    for each epoch, with an empty cache folder, so that each is a first epoch, which makes the index of states."""
LATER = "The same with one loader, in later epochs: by the index that three epochs before the clock have made."
VISION = ("torch", "torchvision")
CONTESTANTS = (
    Contestant("torch", Role.TORCH, epochs_of(torch_loader, dataset), TORCH, (*VISION, "pillow")),
    Contestant("torch, decode_image", Role.PEER, epochs_of(torch_loader, decoded_by_torchvision), DECODE_IMAGE, VISION),
    Contestant("penstock", Role.PENSTOCK, first_epochs(dataset, seed=0), PENSTOCK),
    Contestant("penstock, index", Role.PENSTOCK, later_epochs(dataset, seed=0), LATER),
    Contestant("bare decode", Role.BARE, bare_decode),
    Contestant("DALI", Role.PEER, dali, peers=("nvidia-dali-cuda130",)),
    Contestant("FFCV jpeg", Role.PEER, ffcv_jpeg, peers=("ffcv", "numba")),
    Contestant("FFCV half raw", Role.ASIDE, ffcv_half_raw, peers=("ffcv", "numba")),
    Contestant("SPDL", Role.PEER, spdl, peers=("spdl", "spdl_io")),
)
TABLES = (
    Table(
        "uint8",
        "to uint8, batch 64, shuffled, 2 workers or threads",
        CONTESTANTS,
        (
            Target("penstock", 4.2, "torch"),
            Target("penstock", 2, "best peer"),
            Target("penstock, index", 5, "torch"),
            Target("penstock, index", 2.5, "best peer"),
        ),
    ),
    Table(
        "float32",
        "to normalised float32, batch 64, shuffled, 2 workers or threads",
        CONTESTANTS,
        (Target("penstock", 5, "torch"), Target("penstock, index", 6, "torch")),
    ),
)
QUESTION = Question("photos", "Photos in an image folder, RandomResizedCrop(224) and flip", TABLES, prepare)
