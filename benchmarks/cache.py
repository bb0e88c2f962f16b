"""cache=: epochs whose files lie on a store that takes 5 ms for each open and each read, once a tier has them, beside
epochs of files that are in memory. 2,000 `ID.pt` of 3x64x64 float32, batches of 64, shuffled. And later epochs of
photos, whose files or whose pixels a tier keeps.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import cold, photos, tensor_files
from benchmarks.contestants import epochs_of, penstock_loader, torch_loader
from benchmarks.question import Build, Contestant, Options, Question, Role, Running, Setup, Table, Target

PREFIX = "penstock-benchmark-"


def prepare(options: Options) -> Setup:
    """As many files of tensor_files as the slow store gives, and the photos of `photos` in a folder beside them."""
    setup, others = tensor_files.prepare(options), photos.prepare(options)
    facts = {**setup.facts, **others.facts, "photo_folder": others.path().name, "photo_samples": others.samples}
    return dataclasses.replace(setup, samples=min(cold.SLOW_SAMPLES, setup.samples), facts=facts)


def cached(cache: str, *, slow: bool) -> Build:
    """Epochs of a loader with this cache=, which an epoch before the clock has filled; slow: over the slow store."""

    def build(setup: Setup) -> Running:
        kept = cache
        if cache.startswith("/"):
            folder = Path(cache, f"{PREFIX}{os.getpid()}")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            kept = str(folder)
        files = partial(tensor_files.folder_of, "pt")
        running = epochs_of(penstock_loader, files, seed=0, cache=kept)(cold.mounted(setup) if slow else setup)
        running.epoch()
        return running

    return build


def centred(setup: Setup) -> Any:
    """The photos, resized and cut as tutorials do it for evaluation."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps = [transforms.Resize(256), transforms.CenterCrop(photos.SIZE), *photos.CHANNELS.torchvision("float32")]
    return ImageFolder(setup.data, transforms.Compose(steps))


def of_photos(build: Build) -> Build:
    """Another build over the folder of photos, which an epoch before the clock has read."""

    def built(setup: Setup) -> Running:
        folder = str(setup.path().parent / setup.facts["photo_folder"])
        running = build(dataclasses.replace(setup, data=folder, samples=setup.facts["photo_samples"]))
        running.epoch()
        return running

    return built


def photo_epochs(**options: Any) -> Build:
    """Epochs of the photos by penstock.DataLoader with these arguments."""
    return of_photos(epochs_of(penstock_loader, centred, seed=0, **options))


WARM = epochs_of(penstock_loader, partial(tensor_files.folder_of, "pt"), seed=0)
TITLE = f"{cold.SLOW_SAMPLES:,} ID.pt of 3x64x64 float32, batch 64, shuffled, 2 threads; samples/s of a later epoch"
HOW = "on a FUSE store that takes 5 ms for each open and each read, with"
CONTESTANTS = (
    Contestant("warm", Role.PENSTOCK, WARM, "No cache=: the files are in the page cache."),
    Contestant("shm", Role.PENSTOCK, cached("/dev/shm", slow=True), f'{HOW} cache="/dev/shm/...".'),
    Contestant("memory", Role.PENSTOCK, cached("1GiB", slow=True), f'{HOW} cache="1GiB".'),
    Contestant("warm+memory", Role.PENSTOCK, cached("1GiB", slow=False), 'Files in the page cache, with cache="1GiB".'),
    Contestant("slow", Role.PENSTOCK, cold.slow(WARM), "The slow store without cache=: what its readers reach."),
)
PHOTOS = (
    "photos to 224x224 float32, Resize(256) and CenterCrop(224), batch 64, shuffled, 2 workers or threads; later epochs"
)
OF_PHOTOS = (
    Contestant("torch", Role.TORCH, of_photos(epochs_of(torch_loader, centred)), photos.TORCH, photos.VISION),
    Contestant("photos", Role.PENSTOCK, photo_epochs(), "No cache=: the files are in the page cache."),
    Contestant("photos+files", Role.PENSTOCK, photo_epochs(cache="2GiB"), 'cache="2GiB": the files are kept.'),
    Contestant(
        "photos+pixels",
        Role.PENSTOCK,
        photo_epochs(cache="2GiB", cache_decoded=True),
        'cache="2GiB", cache_decoded=True: 224x224 pixels of each photo are kept.',
    ),
)
QUESTION = Question(
    "cache",
    "Later epochs, from the tiers of cache=",
    (
        Table("later epochs", TITLE, CONTESTANTS, (Target("shm", 0.95, "warm"), Target("memory", 0.95, "warm"))),
        Table("photos", PHOTOS, OF_PHOTOS),
    ),
    prepare,
    cold.machine,
)
