"""What a command is given as DATASET: a path, or an object of a Python module."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import InvalidOption
from penstock.showing import said
from penstock.sources.image_folder import IMG_EXTENSIONS, ImageFolder, Images, ImageTable
from penstock.sources.shards import Shards
from penstock.sources.tensor_folder import TensorFolder
from penstock.storage import description
from penstock.system.urls import is_url
from penstock.system.words import near, near_path

#: What DATASET may be, for --help.
DATASET = (
    "a folder of images (class/name.jpg or name.jpg), of .pt or .npy files or of packed shards, or module:object: a "
    "dataset, a loader, or a function without arguments that returns one; modules are looked for in the current folder "
    "too"
)
_TENSORS = (".pt", ".pth", ".npy")
_OBJECT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def target(text: str, split: str | None = None) -> Any:
    """Return the dataset or loader that a command's DATASET names.

    A path that exists is a folder of packed shards, of .pt, .pth or .npy files, or of images, in one folder a class or
    all in it, which get the transform of `default_transform`; a URL is one of packed shards. `module:object` is an
    object of a module, which is imported with the current folder on Python's path: a dataset or loader, or a function
    or class that returns one when called without arguments.

    split: of packed shards with several splits. Raises InvalidOption where the text names no dataset, and OSError.
    """
    there = os.path.lexists(text)
    if is_url(text) or (there and os.path.exists(os.path.join(text, description.FILE))):
        return Shards(text, split=split)
    if not there and not _OBJECT.fullmatch(text):
        why = near_path(text) or ", and it is not a module:object, such as train:dataset"
        raise InvalidOption(f"{text}: there is no such folder{why}")
    if os.path.isfile(text):
        how = f", or {os.path.basename(text)[:-3]}:NAME, a dataset or loader in it," * text.endswith(".py")
        raise InvalidOption(f"{text} is a file: give the folder of a dataset{how} instead")
    if split is not None:
        why = f"{text} has no {description.FILE}" if there else f"{text} is an object of a Python module"
        raise InvalidOption(f"--split is of a folder of packed shards; {why}")
    return _with_transform(text) if there else _object(text)


def default_transform(text: str, dataset: Any) -> str:
    """Return what is said of the transform of a folder's images, where DATASET is one; empty: it is not."""
    if not os.path.isdir(text) or not isinstance(dataset, ImageTable) or dataset.transform is None:
        return ""
    said = "Resize(256), CenterCrop(224), ToTensor(), the default transform for a folder of images"
    return f"{said}; name a dataset as module:object to have its own"


def _with_transform(path: str) -> Any:
    """Return the dataset of a folder, whose images become tensors of one size."""
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    images = [name for name in names if name.lower().endswith(IMG_EXTENSIONS)]
    flat = images and not any(os.path.isdir(os.path.join(path, name)) for name in names)
    found = Images(images, root=path) if flat else folder_dataset(path)
    if isinstance(found, ImageTable):
        with contextlib.suppress(ImportError):  # without torchvision the samples are PIL images
            from torchvision.transforms import CenterCrop, Compose, Resize, ToTensor  # noqa: PLC0415  optional

            found.transform = Compose([Resize(256), CenterCrop(224), ToTensor()])
    return found


def folder_dataset(path: str) -> Any:
    """Return the dataset that a folder is: of tensors where such files lie in it, else of images.

    Raises:
        InvalidOption: tensors of several kinds of file lie in it.
        OSError: it cannot be read, or holds no samples.
    """
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            suffixes = {os.path.splitext(entry.name)[1] for entry in entries if not entry.is_dir()}
        found = sorted(suffixes.intersection(_TENSORS))
        if len(found) > 1:
            raise InvalidOption(
                f"{path} holds files {' and '.join(found)}: take each kind from Python, as in "
                f"penstock.TensorFolder({path!r}, suffix={found[0]!r})"
            )
        if found:
            return TensorFolder(path, suffix=found[0])
    return ImageFolder(path)


def _object(text: str) -> Any:
    """Return the dataset or loader that an object is, or that it returns."""
    found = _named(text)
    if callable(found) and (isinstance(found, type) or not _gives_samples(found)):
        try:
            found = found()
        except (Exception, SystemExit) as error:  # of a user's code, which may raise anything
            raise InvalidOption(
                f"{text} cannot be called without arguments: {_what(error)}. Name an object, or a function without "
                "arguments that returns it"
            ) from error
    if not _gives_samples(found):
        raise InvalidOption(f"{text} is, or returns, an object of type {type(found).__name__}: no dataset, no loader")
    return found


def function(text: str) -> Callable[..., Any]:
    """Return the function that `module:function` names. Raises InvalidOption."""
    if not _OBJECT.fullmatch(text):
        raise InvalidOption(f"{text}: a function is named by its module, as in train:step")
    called: Callable[..., Any] = _named(text)
    if not callable(called):
        raise InvalidOption(f"{text} cannot be called: it is an object of type {type(called).__name__}")
    return called


def _named(text: str) -> Any:
    """Return what a module, which may lie in the current folder, has under a name with parts. Raises InvalidOption."""
    module, name = text.split(":")
    if module.endswith(".py"):
        raise InvalidOption(f"{text}: an object is named by its module, as in {module.removesuffix('.py')}:{name}")
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # of a user's code, which may raise anything
        raise InvalidOption(f"the module {module} cannot be imported: {_what(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidOption(f"{text}: {module} has no {part!r}{near(part, dir(found))}")
        found = getattr(found, part)
    return found


def _gives_samples(value: Any) -> bool:
    """Return whether a value is a dataset or a loader, as far as its methods show."""
    if isinstance(value, str | bytes | Mapping | type):
        return False
    return hasattr(value, "__iter__") or (hasattr(value, "__getitem__") and hasattr(value, "__len__"))


def _what(error: BaseException) -> str:
    return f"{type(error).__name__}: {message}" if (message := said(error)) else type(error).__name__
