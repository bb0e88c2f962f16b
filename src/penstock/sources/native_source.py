"""How the native core reads a dataset, as it was when a plan was made: values, and functions of the dataset's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import penstock._native as _native
from penstock.order.permutations import Indices
from penstock.recipe.steps import Recipe, Step
from penstock.sources.labels import LabelColumn
from penstock.sources.unchanged import Unchanged, always
from penstock.storage.remote_shards import Range
from penstock.storage.stage import Stageable

ReadInPython = NDArray[np.uint8] | torch.Tensor


class Field(NamedTuple):
    """A tensor field of each sample."""

    filler: _native.Filler
    """Writes its rows."""
    spec: _native.Spec | None
    """Shape and dtype of a row; None where only the samples tell."""


@dataclass(frozen=True)
class Form:
    """How a sample holds its fields, and its label."""

    pair: bool = True
    """True: a sample is a tuple of its fields (and label). False: it is its only field."""
    keys: tuple[str, ...] | None = None
    """The names of the fields, where a sample is a dictionary of them; None: it is not."""
    views: int = 0
    """How many of the first fields are views of one image, a list in the sample."""

    def first_field(self, sample: Any) -> Any:
        """Return the first field of a sample."""
        if self.keys is not None:
            return sample[self.keys[0]]
        return sample[0] if self.pair else sample

    def batch(self, fields: list[Any]) -> Any:
        """Return a batch of these fields (and labels), as torch's default_collate gives it."""
        if self.views:
            views, labels = fields[: self.views], fields[self.views :]
            return [views, *labels] if self.pair else views
        if self.keys is not None:
            return dict(zip(self.keys, fields, strict=True))
        return fields if self.pair else fields[0]

    def samples(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Return samples of these fields (and labels), each a value a sample."""
        if self.views:
            views = list(map(list, zip(*columns[: self.views], strict=True)))
            columns = [views, *columns[self.views :]]
        if self.keys is not None:
            return [dict(zip(self.keys, values, strict=True)) for values in zip(*columns, strict=True)]
        return list(zip(*columns, strict=True)) if self.pair else list(columns[0])


class ImageSteps(NamedTuple):
    """What is done to the image that a sample is made of."""

    recipes: tuple[Recipe, ...]
    """Of each view; of the first field where there are no views."""
    as_samples: Callable[[], bool] | None = None
    """Returns whether the rows lie as the tensors of the dataset's samples do; None: that is not known."""
    encoded: bool = False
    """Each is made of the sample's own image file, which `identify` names."""
    packed_bytes: float | None = None
    """Of an image file that is a part of a shard; None: each is one file, or there are none."""
    jpeg_index: _native.JpegIndex | None = None
    """The decoder states that the dataset brings with its images; None: it brings none."""


class SampleFiles(NamedTuple):
    """Samples that are files, whose bytes a cache may keep."""

    name: Callable[[int], bytes]
    """Returns a file's name, as the native core knows it."""
    listed: bool = False
    """The filler has no table of them: each batch names its files."""


class Memory(NamedTuple):
    """Samples in memory of the user's, or in mapped files."""

    reads_ahead: bool = False
    """Whether threads may work ahead on samples: nobody can move them, or they are copied when submitted."""
    held: tuple[torch.Tensor, ...] | None = None
    """An array a field, for a device: samples along dimension 0, sharing the dataset's memory. Images are uint8 of
    shape (samples, height, width, channels), in memory in this order or with the channels apart."""


@dataclass(frozen=True)
class RemoteSamples:
    """Where the samples of a dataset lie that comes here shard by shard: out of an object store, or decoded."""

    shards: Stageable
    shard_of: Callable[[Indices], Indices]
    """Returns the shard of each of these samples."""
    ranges_of: Callable[[Indices], list[Range]] | None
    """Returns the shard of each of these samples, and where its bytes begin and end in it; None: only whole shards are
    read."""
    by_client: bool = True
    """The client of object stores brings them, which does not work in a forked process."""


def _unknown(position: int) -> Any:
    raise NotImplementedError(position)


@dataclass(frozen=True)
class NativeSource:
    """How the native core reads a dataset, as it was when a plan was made.

    `native_of` adds what is the same for all adapters: `size`, `identify`, `sample_in_python`, `same_dataset`,
    `same_memory`, a last step.
    """

    fields: tuple[Field, ...]
    """The fields of a sample, in order; at least one."""
    steps: tuple[Step, ...]
    """The steps that explain() shows, but for that of the labels, which `native_of` adds."""
    read_in_python: Callable[..., ReadInPython] = _unknown
    """Reads the first field of one sample in Python: the decoded pixels of an image, else the tensor itself. Called
    with the position; of `files` also with the sample's file, open over bytes from a cache, which it closes. Rows of
    columns never need it: all have the shape that the plan has seen."""
    size: int = 0
    identify: Callable[[int], tuple[str, str | None]] = _unknown
    """Returns (ID, file) of a sample, for messages."""
    sample_in_python: Callable[[int], Any] = _unknown
    """Returns the first field of one sample from the dataset's own __getitem__, transform and all."""
    same_dataset: Unchanged = always
    """Whether the dataset is what it was when this was made, but for the elements of its arrays and lists."""
    same_memory: Unchanged = always
    """Whether the memory of the user's that the fillers read is where it was, and as long."""
    form: Form = Form()
    labels: Callable[[Indices], LabelColumn] | None = None
    """Returns the labels of these samples as they are now; None: samples have no labels."""
    rows: Callable[[Indices], Indices] | None = None
    """Returns the numbers by which the fillers know these samples; None: the indices of the samples."""
    images: ImageSteps | None = None
    """None: the first field is not an image."""
    files: SampleFiles | None = None
    """None: samples are not made of files."""
    memory: Memory | None = None
    """None: samples are not in memory."""
    reusable: Unchanged | None = None
    """Whether a plan may serve the next pass too, beside `same_dataset` and `same_memory`; None: it may not."""
    remote: RemoteSamples | None = None
    """The shards in an object store that the fillers read once they are here; None: the files are local."""

    @property
    def recipe(self) -> Recipe | None:
        """What is done to each image; None: the first field is not an image, or there are several views of it."""
        return None if self.images is None or self.form.views else self.images.recipes[0]

    @property
    def table(self) -> torch.Tensor | None:
        """What each pixel value of the first field is yet to become: (channels, 256); None: the values are final."""
        return None if self.recipe is None else self.recipe.table

    @property
    def calls_python(self) -> bool:
        """Whether a function of the user's makes the labels."""
        return any(step.who == "Python" for step in self.steps)
