"""Images in one folder a class: torchvision's ImageFolder with a fast start.

The scan of a folder is kept in the user's cache folder between starts. One file a tree: an uncompressed .npz with the
names and with a stamp (mtime, ctime, inode, device) of each folder. A later start uses it while every folder has its
stamp, which takes one stat() a folder and no listing.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

import penstock._native as _native
from penstock.showing import shown
from penstock.sources.labels import LazySequence
from penstock.sources.reading import open_sample, read_image
from penstock.system import cache_folder
from penstock.system.words import there_are

# torchvision.datasets.folder.IMG_EXTENSIONS
IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


# A folder that was changed this shortly before the scan, or since, could change once more without a new mtime: time
# stamps have a granularity, 2 s at most (FAT; 1 s on ext3, a timer tick on ext4 and XFS). Such a scan is not kept, as
# git does not trust an index entry as young as the index ("racy git").
RACY_NS = 2_000_000_000

#: The folder of scans below the cache folder.
KIND = "scans"

_VERSION = "2"  # of the entries
#: Listing waits for the disk or the network more than for the CPU.
_THREADS = min(32, (os.cpu_count() or 1) + 4)


class Samples(LazySequence[tuple[str, int]]):
    """The (path, class index) pairs of an image folder, made when they are taken; equal to a list of them."""

    def __init__(self, paths: _native.PathTable, labels: NDArray[np.int64]) -> None:
        self._paths = paths
        self._labels = labels

    def __len__(self) -> int:
        return len(self._paths)

    def _at(self, position: int) -> tuple[str, int]:
        return os.fsdecode(self._paths.path(position)), int(self._labels[position])


class ImageTable(Dataset[Any]):
    """Images whose files are in a table: `Images` and `ImageFolder`."""

    paths: _native.PathTable
    transform: Callable[[Any], Any] | None
    target_transform: Callable[[Any], Any] | None
    labels: Any
    """An array, by position; None without."""

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        try:
            position = range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"sample index {index} is out of range: {there_are(len(self), 'sample')}") from None
        image: Any = self.read(position)
        return self.labelled(position, image if self.transform is None else self.transform(image))

    def labelled(self, position: int, image: Any) -> Any:
        """Return the sample at a position, whose image has been transformed."""
        if self.labels is None:
            return image
        (label,) = self.labels[position : position + 1].tolist()
        return image, label if self.target_transform is None else self.target_transform(label)

    def path(self, position: int) -> str:
        """Return the file of the sample at a position."""
        return os.fsdecode(self.paths.path(position))

    def read(self, position: int) -> Image.Image:
        """Return the image at a position, decoded by Pillow to mode RGB. Raises SampleError."""
        path = self.path(position)
        return read_image(open_sample(self.paths, position, path), path)


class ImageFolder(ImageTable):
    """A folder that holds each class of images as one folder, ``root/class/.../name.jpg``.

    Finds the files that ``torchvision.datasets.ImageFolder`` finds, in the same order, and gives the same samples. The
    tree is listed by several threads, and the result kept in the user's cache folder: while no folder of the
    tree changes, the next start reads that one file. Two differences: a folder that cannot be read is an error, and a
    symbolic link back to a folder above itself is not followed.

    Args:
        root: the folder.
        transform: called with the image, a PIL image in mode RGB.
        target_transform: called with the class index.

    Attributes:
        root: the folder, with ``~`` expanded.
        classes: names of the class folders, sorted.
        class_to_idx: class index by class name.
        samples, imgs: (path, class index) of each sample; a sequence that makes the pairs when they are taken.
        targets: class index of each sample, a list made at its first use.
        paths: the files, a compact table.
        labels: class index of each sample, int64, shape (samples,), read-only.

    Raises:
        FileNotFoundError: root does not exist, it holds no folder, or a class folder holds no image.
        NotADirectoryError: root is a file.
        OSError: a folder of the tree cannot be read.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.root = os.path.expanduser(root) if isinstance(root, str) else root
        self.transform = transform
        self.target_transform = target_transform
        folder = os.path.expanduser(os.fspath(root))
        if not isinstance(folder, str):
            raise TypeError(f"root must be a str or a Path, not {type(root).__name__}")
        try:
            found = scan(folder, IMG_EXTENSIONS)
        except (FileNotFoundError, NotADirectoryError) as error:
            if error.filename != folder:
                raise
            said = f"{error.strerror}; root must be a folder with one folder for each class in it, as root/dog/1.jpg"
            raise type(error)(error.errno, said, folder) from None
        _check(found, folder)
        self._hold(found.paths, found.classes, found.counts)

    def _hold(self, paths: _native.PathTable, classes: list[str], counts: NDArray[np.int64]) -> None:
        self.paths = paths
        self.classes = classes
        self.class_to_idx = {name: label for label, name in enumerate(classes)}
        self.labels: NDArray[np.int64] = np.repeat(np.arange(len(counts)), counts)
        self.labels.flags.writeable = False

    @property
    def samples(self) -> Samples:
        return Samples(self.paths, self.labels)

    @property
    def imgs(self) -> Samples:
        return self.samples

    @cached_property
    def targets(self) -> list[int]:
        targets: list[int] = self.labels.tolist()
        return targets

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for derived in ("class_to_idx", "targets"):
            state.pop(derived, None)
        state["labels"] = np.bincount(self.labels, minlength=len(self.classes))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hold(state["paths"], state["classes"], state["labels"])

    def __repr__(self) -> str:
        lines = [f"Dataset {type(self).__name__}"]
        lines += [f"    Number of datapoints: {len(self)}", f"    Root location: {shown(str(self.root))}"]
        if self.transform is not None or self.target_transform is not None:
            lines.append("    StandardTransform")
        for head, transform in (("Transform: ", self.transform), ("Target transform: ", self.target_transform)):
            if transform is not None:
                lines.append(head + repr(transform).replace("\n", "\n" + " " * len(head)))
        return "\n".join(lines)


def _check(found: Scan, folder: str) -> None:
    """Raise torchvision's errors for a tree without classes or with an empty one, and say what to do."""
    if not found.classes:
        raise FileNotFoundError(
            f"Couldn't find any class folder in {shown(folder)}. "
            "ImageFolder needs one folder a class in it, as in root/dog/1.jpg and root/cat/2.jpg."
        )
    empty = [name for name, count in zip(found.classes, found.counts, strict=True) if count == 0]
    if empty:
        raise FileNotFoundError(
            f"Found no valid file for the classes {shown(', '.join(empty))}. "
            f"Supported extensions are: {', '.join(IMG_EXTENSIONS)}. "
            f"Put images into these folders of {shown(folder)}, or move the folders out of it."
        )


# --- the scan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scan:
    """The files of an image folder, in torchvision's order."""

    paths: _native.PathTable
    """The files, relative to the root folder."""
    classes: list[str]
    """Names of the class folders, sorted."""
    counts: NDArray[np.int64]
    """Files of each class, shape (classes,): the files are in the order of the classes."""


def scan(root: str, extensions: tuple[str, ...]) -> Scan:
    """Return the files of an image folder: from the cache where nothing changed, else by listing the tree.

    Extensions are lower case with the dot. Raises OSError with the folder that cannot be read. A cache that is
    damaged or cannot be written is as good as none.
    """
    raw_root = os.fsencode(root)
    entry = cache_folder.entry(KIND, b"\0".join(map(os.fsencode, (_VERSION, os.path.realpath(root), *extensions))))
    if entry is None:
        return _listed(raw_root, extensions, None)
    if (known := _load(entry, raw_root)) is not None:
        return known
    with cache_folder.alone(entry):  # of the ranks of a node one lists the tree, and the others read what it found
        return _load(entry, raw_root) or _listed(raw_root, extensions, entry)


def _listed(raw_root: bytes, extensions: tuple[str, ...], entry: Path | None) -> Scan:
    """Return the files of a tree by listing it, and keep them in an entry."""
    paths, classes, counts, folders, stamps, started_ns = _native.scan_image_folder(
        raw_root, list(extensions), _THREADS
    )
    arrays: dict[str, NDArray[Any]] = {
        "classes": np.frombuffer(classes, np.uint8),
        "counts": np.frombuffer(counts, np.int64),
        "folders": np.frombuffer(folders, np.uint8),
        "stamps": np.frombuffer(stamps, np.int64).reshape(-1, 4),
    }
    if entry is not None and int(arrays["stamps"][:, 0].max()) < started_ns - RACY_NS:
        arrays["names"] = np.frombuffer(paths.names(), np.uint8)
        cache_folder.store(entry, arrays)
    return Scan(paths, _split(classes), np.frombuffer(counts, np.int64))


def _split(names: bytes) -> list[str]:
    return [os.fsdecode(name) for name in names.split(b"\0")[:-1]]


def _load(entry: Path, root: bytes) -> Scan | None:
    """Return the kept scan, or None when there is none, it is damaged, or a folder changed."""
    arrays = cache_folder.load(entry)
    if arrays is None or not _is_well_formed(arrays):
        return None
    classes = _split(arrays["classes"].tobytes())
    counts: NDArray[np.int64] = arrays["counts"]
    names = arrays["names"]
    if len(counts) != len(classes) or (counts < 0).any() or int(counts.sum()) != np.count_nonzero(names == 0):
        return None
    if not _native.folders_unchanged(root, arrays["folders"], arrays["stamps"], _THREADS):
        return None
    cache_folder.used(entry)
    return Scan(_native.PathTable(root, names), classes, counts)


#: By name: the dtype and the number of dimensions of each array of an entry.
_ARRAYS = dict.fromkeys(("names", "classes", "folders"), ("uint8", 1)) | {
    "counts": ("int64", 1),
    "stamps": ("int64", 2),
}


def _is_well_formed(arrays: dict[str, NDArray[Any]]) -> bool:
    return bool(
        {name: (array.dtype.name, array.ndim) for name, array in arrays.items()} == _ARRAYS
        and arrays["names"][-1:].tolist() in ([], [0])  # a NUL after the last name
        and arrays["stamps"].shape[1] == 4
        and arrays["stamps"].flags.c_contiguous
    )
