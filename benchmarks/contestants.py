"""What the contestants of several questions share: loaders, datasets, and how epochs of a peer are run."""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch.utils.data

from benchmarks.question import Build, Numbers, Running, Setup


def over(batches: Iterable[Any] | Callable[[], Iterable[Any]]) -> Running:
    """Epochs of a loader, or of the batches that a function returns: one element of each batch is read, and its samples
    are counted. A batch is a tensor or an array, or a sequence or dictionary that begins with one, or with such a list.
    """

    def epoch() -> int:
        count = 0
        for batch in batches() if callable(batches) else batches:
            parts = list(batch.values()) if isinstance(batch, dict) else batch
            x = parts
            while isinstance(x, (list, tuple)):  # several views of each sample are a list in the list
                x = x[0]
            x[(0,) * x.ndim].item()
            count += len(x)
        return count

    return Running(epoch, getattr(batches, "explain", None))


# --- datasets ---------------------------------------------------------------------------------------------------------


class Samples(torch.utils.data.Dataset[Any]):
    """A map-style dataset that gives `sample(index)`."""

    def __init__(self, size: int, sample: Callable[[int], Any]) -> None:
        self.size = size
        self.sample = sample

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


class Tutorial(torch.utils.data.Dataset[Any]):
    """The Dataset of the tutorial: torch.load of folder/ID.pt, and a dict of labels."""

    def __init__(self, folder: Any, list_ids: list[str], labels: dict[str, int]) -> None:
        self.prefix = f"{folder}/"
        self.labels = labels
        self.list_ids = list_ids

    def __len__(self) -> int:
        return len(self.list_ids)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        name = self.list_ids[index]
        return torch.load(self.prefix + name + ".pt"), self.labels[name]


class Channels(NamedTuple):
    """Mean and standard deviation of an image's channels, and the last steps of a recipe as each library has them: to
    uint8, or to normalised float32."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def in_bytes(self) -> tuple[list[float], list[float]]:
        """Both for values of 0 to 255."""
        return [255 * m for m in self.mean], [255 * s for s in self.std]

    def torchvision(self, kind: str) -> list[Any]:
        from torchvision import transforms

        if kind == "uint8":
            return [transforms.PILToTensor()]
        return [transforms.ToTensor(), transforms.Normalize(self.mean, self.std)]

    def ffcv(self, kind: str) -> list[Any]:
        from ffcv.transforms import NormalizeImage, ToTensor, ToTorchImage

        mean, std = (np.array(values) for values in self.in_bytes())
        return [*([] if kind == "uint8" else [NormalizeImage(mean, std, np.float32)]), ToTensor(), ToTorchImage()]

    def dali(self, kind: str) -> dict[str, Any]:
        """Arguments of crop_mirror_normalize."""
        from nvidia.dali import types

        mean, std = self.in_bytes()
        return {"dtype": types.UINT8} if kind == "uint8" else {"dtype": types.FLOAT, "mean": mean, "std": std}


# --- loaders ----------------------------------------------------------------------------------------------------------

Make = Callable[..., Any]
"""make(setup, dataset, **options): a loader, with options in the place of what every contestant is given."""


def loader(kind: Make, setup: Setup, dataset: Any, **options: Any) -> Any:
    """A loader of the class `kind` with what every contestant is given, unless `options` say otherwise; worker
    processes are kept between epochs."""
    given = {"batch_size": setup.batch, "shuffle": True, "num_workers": setup.workers, **options}
    return kind(dataset, **{"persistent_workers": given["num_workers"] > 0, **given})


def torch_loader(setup: Setup, dataset: Any, **options: Any) -> Any:
    return loader(torch.utils.data.DataLoader, setup, dataset, **options)


def penstock_persistent(setup: Setup, dataset: Any, **options: Any) -> Any:
    import penstock

    return loader(penstock.DataLoader, setup, dataset, **options)


def penstock_loader(setup: Setup, dataset: Any, **options: Any) -> Any:
    """penstock.DataLoader without persistent_workers, which concerns worker processes only."""
    return penstock_persistent(setup, dataset, **{"persistent_workers": False, **options})


def torchdata_loader(setup: Setup, dataset: Any, **options: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    warnings.filterwarnings("ignore", message=".*deprecated")
    logging.disable(logging.WARNING)
    return loader(StatefulDataLoader, setup, dataset, **options)


def epochs_of(make: Make, dataset: Callable[[Setup], Any], **options: Any) -> Build:
    """The `build` of a contestant: epochs of the loader that `make` returns for `dataset(setup)`."""
    return lambda setup: over(make(setup, dataset(setup), **options))


def first_epochs(dataset: Callable[[Setup], Any], **options: Any) -> Build:
    """Epochs of new Penstock loaders, each with an empty cache folder of the user: nothing is known of the files."""

    def build(setup: Setup) -> Running:
        data, loaders = dataset(setup), list[Any]()

        def epoch() -> int | Numbers:
            with tempfile.TemporaryDirectory(prefix="penstock-benchmark-") as folder:
                os.environ["XDG_CACHE_HOME"] = folder
                loaders[:] = [penstock_loader(setup, data, **options)]
                return over(loaders[0]).epoch()

        return Running(epoch, lambda: loaders[0].explain())

    return build


def later_epochs(dataset: Callable[[Setup], Any], before: int = 3, **options: Any) -> Build:
    """Epochs of one Penstock loader with a cache folder of its own, after some epochs before the clock."""

    def build(setup: Setup) -> Running:
        folder = tempfile.TemporaryDirectory(prefix="penstock-benchmark-")
        os.environ["XDG_CACHE_HOME"] = folder.name
        running = over(penstock_loader(setup, dataset(setup), **options))
        for _ in range(before):
            running.epoch()
        folder.cleanup()  # what the loader has opened stays open, and a process that is killed leaves nothing
        return running

    return build


def private(name: str, *modules: str) -> Any:
    """A private name of Penstock, from the first of the modules that exists: builds (`--before`) have it elsewhere."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"no {name} in {', '.join(modules)}")


# --- peers ------------------------------------------------------------------------------------------------------------


def shuffled(setup: Setup) -> Iterator[Any]:
    """The row numbers of each batch, in a new shuffled order for each epoch, without end."""
    while True:
        order = np.random.permutation(setup.samples)
        yield from (order[i * setup.batch : (i + 1) * setup.batch] for i in range(setup.batches))


def dali_epochs(setup: Setup, outputs: Callable[[], Any]) -> Running:
    """Epochs of a DALI pipeline on the CPU, with its default prefetching; `outputs` is called within the pipeline.

    Batches are looked at where DALI has them, without a copy to torch.
    """
    from nvidia.dali import Pipeline

    pipeline = Pipeline(batch_size=setup.batch, num_threads=setup.workers, device_id=None)
    with pipeline:
        pipeline.set_outputs(*outputs())
    pipeline.build()
    return over(lambda: (np.asarray(pipeline.run()[0].as_tensor()) for _ in range(setup.batches)))


def spdl_epochs(setup: Setup, load: Callable[[Any], Any]) -> Running:
    """Epochs of SPDL's Pipeline, in which a task loads the rows of one batch, as many tasks at once as threads."""
    from spdl.pipeline import PipelineBuilder

    tasks = PipelineBuilder().add_source(shuffled(setup)).pipe(load, concurrency=setup.workers)
    pipeline = tasks.add_sink(4).build(num_threads=setup.workers)
    pipeline.start()
    return over(lambda: (pipeline.get_item() for _ in range(setup.batches)))


def ffcv_epochs(setup: Setup, name: str, field: Any, sample: Callable[[int], Any], pipeline: list[Any]) -> Running:
    """Epochs of FFCV's Loader on a packed file of that field and a label, which is written once."""
    from ffcv.fields import IntField
    from ffcv.fields.decoders import IntDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor
    from ffcv.writer import DatasetWriter

    packed = setup.path().parent / f"{name}.beton"
    if not packed.exists():
        unfinished = f"{packed}.{os.getpid()}"
        writer = DatasetWriter(unfinished, {"x": field, "y": IntField()}, num_workers=2)
        writer.from_indexed_dataset(Samples(setup.samples, sample))
        os.rename(unfinished, packed)
    pipelines = {"x": pipeline, "y": [IntDecoder(), ToTensor()]}
    given = {"batch_size": setup.batch, "num_workers": setup.workers, "order": OrderOption.RANDOM}
    return over(Loader(str(packed), os_cache=True, drop_last=False, pipelines=pipelines, **given))
