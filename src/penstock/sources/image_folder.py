"""Images by a list of their files, and images in one folder a class: torchvision's ImageFolder with a fast start.

The scan of a folder is kept in the user's cache folder between starts. One file a tree: an uncompressed .npz with the
names and with a stamp (mtime, ctime, inode, device) of each folder. A later start uses it while every folder has its
stamp, which takes one stat() a folder and no listing.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

import penstock._native as _native
from penstock.errors import InvalidID, InvalidOption
from penstock.showing import shown
from penstock.sources.labels import LazySequence, array_of
from penstock.sources.reading import open_sample, read_image
from penstock.system import cache_folder
from penstock.system.words import counted, there_are

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

    def _set_transforms(self, transform: Any, target_transform: Any) -> None:
        for name, value in (("transform", transform), ("target_transform", target_transform)):
            if value is not None and not callable(value):
                raise TypeError(f"{name}={value!r} is not callable; torchvision.transforms.Resize(224) is, for example")
        self.transform, self.target_transform = transform, target_transform

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
        return os.fsdecode(self.paths.path(position))

    def read(self, position: int, file: BinaryIO | None = None) -> Image.Image:
        """Return the image at a position, decoded by Pillow to mode RGB. Raises SampleError. file: it, open."""
        name = os.fsdecode(self.paths.name(position))
        return read_image(file or open_sample(self.paths, position, name), self.path(position), name)


class Images(ImageTable):
    """Images that a list of files names, with their labels: ``Images(table["file"], table["label"], transform)``.

    A sample is the image, a PIL image in mode RGB before the transform, or the pair (image, label) when labels are
    given.

    Args:
        paths: the files: a list, a column of a DataFrame or an array, of strings or path objects. A relative one is
            below root.
        labels: a label for each file, in the same order: a list, a column or an array. Numbers become Python's int
            (int64 in a batch) and float (float64); of an array of several dimensions each row is a label.
        transform: called with the image.
        target_transform: called with the label.
        root: the folder of relative paths; None: the folder that the program runs in now.

    Attributes:
        paths: the files, a compact table.
        labels: the labels by position, None without.

    Raises:
        InvalidID: a path is empty or contains a NUL character.
        InvalidOption: there are not as many labels as paths.
        TypeError: a path is not a string.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        labels: Iterable[Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        *,
        target_transform: Callable[[Any], Any] | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        names = [_name(path) for path in _listed(paths)]
        if not names:
            raise InvalidOption("Images([]) has no sample: the list of paths is empty")
        self.root = os.getcwd() if root is None else os.path.abspath(os.fspath(root))
        self._set_transforms(transform, target_transform)
        if root is None or any(map(os.path.isabs, names)):
            folder, names = b"", [os.path.join(self.root, name) for name in names]
        else:
            folder = os.fsencode(self.root)
        self.paths = _native.PathTable(folder, b"".join(os.fsencode(name) + b"\0" for name in names))
        self.labels = None if labels is None else array_of(_listed(labels))
        if self.labels is not None and len(self.labels) != len(self.paths):
            raise InvalidOption(
                f"labels= has {len(self.labels):,} labels for {counted(len(self.paths), 'path')}: give one for each"
            )

    def __repr__(self) -> str:
        labelled = "" if self.labels is None else ", labelled"
        return f"Images({counted(len(self), 'file')}{labelled})"


def _listed(values: Any) -> list[Any]:
    """Return the items of a list, a column or an array; those of an array of one dimension as Python's objects."""
    if isinstance(values, str | bytes | os.PathLike):
        raise TypeError(f"paths and labels are lists, not one {type(values).__name__}")
    if isinstance(values, Mapping) or hasattr(values, "columns"):
        raise TypeError(f"paths and labels are columns of a {type(values).__name__}: Images(t['file'], t['label'])")
    for method in ("tolist", "to_pylist"):  # NumPy, torch and pandas; Arrow
        if getattr(values, "ndim", 1) == 1 and callable(listed := getattr(values, method, None)):
            return list(listed())
    return list(values)


def _name(path: Any) -> str:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"a path is a string or a path object; got {path!r}")
    name = os.fspath(path)
    if not isinstance(name, str):
        raise TypeError(f"a path is a string or a path object; got {path!r}")
    if not name or "\0" in name:
        raise InvalidID(f"path {name!r} {'contains a NUL character' if name else 'is empty'}: no file has that name")
    return name


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
        self._set_transforms(transform, target_transform)
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
        check_scan(found, folder, "ImageFolder", IMG_EXTENSIONS)
        self.paths, self.classes = found.paths, found.classes
        self.class_to_idx = {name: label for label, name in enumerate(found.classes)}
        self.labels: NDArray[np.int64] = np.repeat(np.arange(len(found.counts)), found.counts)
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

    def __repr__(self) -> str:
        held = f"{counted(len(self), 'file')} in {counted(len(self.classes), 'class', 'classes')}"
        return f"ImageFolder({shown(str(self.root))!r}: {held})"


def check_scan(found: Scan, folder: str, kind: str, extensions: tuple[str, ...]) -> None:
    """Raise torchvision's errors for a tree without classes or with an empty one, and say what to do."""
    if not found.classes:
        raise FileNotFoundError(
            f"Couldn't find any class folder in {shown(folder)}. "
            f"{kind} needs one folder a class in it, as in root/dog/1{extensions[0]} and root/cat/2{extensions[0]}."
        )
    empty = [name for name, count in zip(found.classes, found.counts, strict=True) if count == 0]
    if empty:
        raise FileNotFoundError(
            f"Found no valid file for the classes {shown(', '.join(empty))}. "
            f"Supported extensions are: {', '.join(extensions)}. "
            f"Put such files into these folders of {shown(folder)}, or move the folders out of it."
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
        return _list_tree(raw_root, extensions, None)
    if (known := _load(entry, raw_root)) is not None:
        return known
    with cache_folder.alone(entry):  # of the ranks of a node one lists the tree, and the others read what it found
        return _load(entry, raw_root) or _list_tree(raw_root, extensions, entry)


def _list_tree(raw_root: bytes, extensions: tuple[str, ...], entry: Path | None) -> Scan:
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
    with suppress(OSError):
        os.utime(entry)  # of the cache's entries the newest used is the last to go
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
