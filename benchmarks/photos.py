"""Photos in an image folder: RandomResizedCrop(224) and a flip, to uint8 or normalised float32, batches of 64.

Photos: `--photos`, else ../shared/data/photos, else the two that scikit-learn ships; copied once, then hard-linked
until an epoch has about 2,000. Each result says which.
"""

# Each contestant imports its own libraries, which may be missing here.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import functools
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import bare
from benchmarks.contestants import dali_epochs, ffcv_epochs
from benchmarks.harness import Contestant, Options, Question, Role, Running, Setup, Table, Target, made, over

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
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


def recipe(setup: Setup) -> Any:
    """torchvision's v1 transforms, as its tutorials have them."""
    from torchvision import transforms

    if setup.variant == "uint8":
        tail = [transforms.PILToTensor()]
    else:
        tail = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    return transforms.Compose([transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), *tail])


def torch_loader(setup: Setup) -> Running:
    """torch.utils.data.DataLoader over torchvision.datasets.ImageFolder: Pillow decodes, torchvision's v1 transforms;
    worker processes kept between epochs."""
    import torch
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(setup.data, recipe(setup))
    return over(
        torch.utils.data.DataLoader(
            dataset, batch_size=setup.batch, shuffle=True, num_workers=setup.workers, persistent_workers=True
        )
    )


def torchvision_decode(setup: Setup) -> Running:
    """The same loader, but torchvision.io.decode_image to tensors and v2 transforms instead of Pillow."""
    import torch
    from torchvision.datasets import ImageFolder
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    tail = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)] if setup.variant == "float32" else []
    transform = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(), *tail])
    dataset = ImageFolder(setup.data, transform, loader=lambda path: decode_image(path, mode=ImageReadMode.RGB))
    return over(
        torch.utils.data.DataLoader(
            dataset, batch_size=setup.batch, shuffle=True, num_workers=setup.workers, persistent_workers=True
        )
    )


def penstock_loader(setup: Setup) -> Running:
    """penstock.DataLoader over the unmodified torchvision.datasets.ImageFolder and v1 transforms."""
    from torchvision.datasets import ImageFolder

    import penstock

    return over(
        penstock.DataLoader(
            ImageFolder(setup.data, recipe(setup)),
            batch_size=setup.batch,
            shuffle=True,
            num_workers=setup.workers,
            seed=0,
        )
    )


def bare_decode(setup: Setup) -> Running:
    """C++: reads the file and decodes only a RandomResizedCrop box with libjpeg-turbo (ISLOW, fancy upsampling);
    no resize, no flip, no conversion, no labels, no hand-over."""
    import numpy as np

    loop = bare.library("photos.cc", setup.path().parent, "jpeg").photos
    names, stride = bare.names(files(setup))
    seeds = itertools.count()

    def epoch() -> int:
        order = np.random.permutation(setup.samples)
        return bare.call(
            loop,
            setup.data.encode(),
            names,
            stride,
            bare.pointer(order),
            setup.samples,
            setup.batch,
            setup.workers,
            next(seeds),
        )

    return Running(epoch)


def dali(setup: Setup) -> Running:
    """DALI on the CPU: readers.file (shuffled), decoders.image_random_crop, resize, crop_mirror_normalize to CHW;
    its default prefetching; batches are looked at where DALI has them, without a copy to torch."""
    from nvidia.dali import Pipeline, fn, types

    normal: dict[str, Any] = {"dtype": types.UINT8}
    if setup.variant == "float32":
        normal = {"dtype": types.FLOAT, "mean": [255 * m for m in MEAN], "std": [255 * s for s in STD]}

    pipeline = Pipeline(batch_size=setup.batch, num_threads=setup.workers, device_id=None)
    with pipeline:
        encoded, labels = fn.readers.file(file_root=setup.data, shuffle_after_epoch=True)
        images = fn.decoders.image_random_crop(
            encoded, device="cpu", output_type=types.RGB, random_aspect_ratio=[3 / 4, 4 / 3], random_area=[0.08, 1.0]
        )
        images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True)
        images = fn.crop_mirror_normalize(images, mirror=fn.random.coin_flip(), output_layout="CHW", **normal)
        pipeline.set_outputs(images, labels)
    pipeline.build()

    return dali_epochs(pipeline, setup)


def ffcv_jpeg(setup: Setup) -> Running:
    """FFCV on its own file: photos re-encoded once as JPEG (quality 90, longest side at most 500), os_cache,
    OrderOption.RANDOM, RandomResizedCropRGBImageDecoder, flip (and NormalizeImage)."""
    return ffcv(setup, "jpg", {"write_mode": "jpg"})


def ffcv_half_raw(setup: Setup) -> Running:
    """FFCV's ImageNet recipe: as above, but half of the photos stored as decoded pixels, chosen at random. Not a peer
    for the targets: half of its epoch decodes nothing, for several times the storage."""
    return ffcv(setup, "half-raw", {"write_mode": "proportion", "compress_probability": 0.5})


def ffcv(setup: Setup, kind: str, options: dict[str, Any]) -> Running:
    import numpy as np
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import RandomResizedCropRGBImageDecoder
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from PIL import Image

    packed = setup.path().parent / f"{setup.path().name}-{kind}.beton"
    if not packed.exists():
        names = files(setup)

        class Samples:
            def __len__(self) -> int:
                return len(names)

            def __getitem__(self, index: int) -> tuple[Any, int]:
                with Image.open(setup.path(names[index])) as image:
                    return np.asarray(image.convert("RGB")), index % 10

        unfinished = f"{packed}.{os.getpid()}"
        fields = {"x": RGBImageField(max_resolution=500, jpeg_quality=90, **options), "y": IntField()}
        DatasetWriter(unfinished, fields, num_workers=2).from_indexed_dataset(Samples())
        os.rename(unfinished, packed)
    normal = []
    if setup.variant == "float32":
        normal = [NormalizeImage(255 * np.array(MEAN), 255 * np.array(STD), np.float32)]
    images = [
        RandomResizedCropRGBImageDecoder((SIZE, SIZE)),
        RandomHorizontalFlip(),
        *normal,
        ToTensor(),
        ToTorchImage(),
    ]
    return ffcv_epochs(packed, images, setup)


def spdl(setup: Setup) -> Running:
    """SPDL's Pipeline on 2 threads: per batch demux, decode with FFmpeg's crop, bilinear scale and flip filters, and
    convert_frames into one HWC array (and torch operations to normalised CHW)."""
    import numpy as np
    import spdl.io
    import torch
    from spdl.pipeline import PipelineBuilder

    torch.set_num_threads(1)
    paths = [str(setup.path(name)) for name in files(setup)]
    batches = -(-len(paths) // setup.batch)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) * 255 for v in (MEAN, STD))
    draw = crop_boxes()

    def source() -> Iterator[list[str]]:
        while True:
            order = np.random.permutation(len(paths))
            for i in range(batches):
                yield [paths[row] for row in order[i * setup.batch : (i + 1) * setup.batch]]

    def decode(path: str) -> Any:
        packets = spdl.io.demux_image(path)
        left, top, width, height = draw(packets.width, packets.height)
        flip = "hflip," if random.random() < 0.5 else ""
        # exact=1: a crop's place is not rounded to the chroma grid
        filters = (
            f"crop={width}:{height}:{left}:{top}:exact=1,scale={SIZE}:{SIZE}:flags=bilinear,{flip}format=pix_fmts=rgb24"
        )
        return spdl.io.decode_packets(packets, filter_desc=filters)

    def load(batch: list[str]) -> Any:
        images = spdl.io.to_numpy(spdl.io.convert_frames([decode(path) for path in batch]))
        if setup.variant == "uint8":
            return images
        return torch.from_numpy(images).permute(0, 3, 1, 2).to(torch.float32).sub_(mean).div_(std)

    pipeline = (
        PipelineBuilder()
        .add_source(source())
        .pipe(load, concurrency=setup.workers)
        .add_sink(4)
        .build(num_threads=setup.workers)
    )
    pipeline.start()

    def epoch() -> int:
        count = 0
        for _ in range(batches):
            x = pipeline.get_item()
            x[0, 0, 0, 0].item()
            count += len(x)
        return count

    return Running(epoch)


def crop_boxes() -> Callable[[int, int], tuple[int, int, int, int]]:
    """RandomResizedCrop.get_params in plain Python (torch's draws would be a cost of ours, not of the peer's)."""

    def draw(width: int, height: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area, ratio = random.uniform(0.08, 1) * width * height, (4 / 3) ** random.uniform(-1, 1)
            w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if 0 < w <= width and 0 < h <= height:
                return random.randint(0, width - w), random.randint(0, height - h), w, h
        side = min(width, height)
        return (width - side) // 2, (height - side) // 2, side, side

    return draw


CONTESTANTS = (
    Contestant("torch", Role.TORCH, torch_loader, ("torch", "torchvision", "pillow")),
    Contestant("torch, decode_image", Role.PEER, torchvision_decode, ("torch", "torchvision")),
    Contestant("penstock", Role.PENSTOCK, penstock_loader, ("penstock",)),
    Contestant("bare decode", Role.BARE, bare_decode),
    Contestant("DALI", Role.PEER, dali, ("nvidia-dali-cuda130",), peers_venv=True),
    Contestant("FFCV jpeg", Role.PEER, ffcv_jpeg, ("ffcv", "numba"), peers_venv=True),
    Contestant("FFCV half raw", Role.ASIDE, ffcv_half_raw, ("ffcv", "numba"), peers_venv=True),
    Contestant("SPDL", Role.PEER, spdl, ("spdl", "spdl_io"), peers_venv=True),
)

QUESTION = Question(
    "photos",
    "Photos in an image folder, RandomResizedCrop(224) and flip",
    (
        Table(
            "uint8",
            "to uint8, batch 64, shuffled, 2 workers or threads",
            CONTESTANTS,
            (Target("penstock", 2.6, "torch"), Target("penstock", 1.6, "best peer")),
        ),
        Table(
            "float32",
            "to normalised float32, batch 64, shuffled, 2 workers or threads",
            CONTESTANTS,
            (Target("penstock", 3, "torch"),),
        ),
    ),
    prepare,
)
