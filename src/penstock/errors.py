"""Every exception that Penstock defines.

Each derives from PenstockError and from a built-in exception too, so that code written for the plain Python dataset
keeps catching what it caught.

An error of a sample's file is, beyond that, an instance of what Pillow, torch.load, numpy or open() raised, or would
have raised, for that file (`like`): a truncated JPEG is a CorruptSample and an OSError, a folder in a file's place an
UnreadableSample and an IsADirectoryError. What is raised is of a class made for that pair, which bears the name of
ours; errno, strerror and filename are those of the system's error.
"""

from __future__ import annotations

import copyreg
import errno
import inspect
from functools import partial
from typing import Any, TypeVar

from penstock.showing import shown, shown_lines

#: The exceptions; `import penstock` has them by the same names.
__all__ = [
    "AccessRefused",
    "ChangedObject",
    "ChecksumMismatch",
    "ClusterError",
    "ClusterUnreachable",
    "CorruptDownload",
    "CorruptSample",
    "CorruptShards",
    "DatasetChanged",
    "ImageTooLarge",
    "InvalidID",
    "InvalidOption",
    "MissingBucket",
    "MissingCredentials",
    "MissingLabel",
    "MissingObject",
    "MissingSample",
    "OutOfMemory",
    "OutOfSpace",
    "OutsideRoot",
    "PenstockError",
    "SampleError",
    "ShapeMismatch",
    "StorageError",
    "StoreFull",
    "StoreUnreachable",
    "TooManyBadSamples",
    "UnreadableSample",
    "UnsafeCache",
    "WorkerDied",
    "WorkerStuck",
]


class PenstockError(Exception):
    """Base of every exception class of Penstock.

    Whatever names and URLs a message holds, it has no control characters, and no user, password or query of a URL.
    """

    def __init__(self, *arguments: Any) -> None:
        # From Python 3.14 on RuntimeError passes on to UnicodeDecodeError, which wants five arguments.
        begin = partial(Exception.__init__, self) if isinstance(self, UnicodeError) else super().__init__
        begin(*(shown_lines(one) if isinstance(one, str) else one for one in arguments))

    def __str__(self) -> str:
        # KeyError and OSError print their arguments in other ways; the message is one sentence here.
        return str(self.args[0]) if self.args else ""


class InvalidID(PenstockError, ValueError):
    """An ID is not a relative name inside its root folder."""


class InvalidOption(PenstockError, ValueError):
    """Two arguments exclude each other, or a value is out of its range."""


class DatasetChanged(PenstockError, ValueError):
    """A dataset has changed since a loader's state was taken."""


class CorruptShards(PenstockError, RuntimeError):
    """Packed shards, their index or their dataset.json are damaged, or do not belong together."""


class OutOfSpace(PenstockError, OSError):
    """A disk is full.

    Attributes:
        missing: how many bytes more are needed, at least.
    """

    def __init__(self, message: str, *, missing: int = 0) -> None:
        super().__init__(message)
        self.errno = errno.ENOSPC
        self.missing = missing


class OutOfMemory(PenstockError, MemoryError):
    """Not even a batch of one sample fits into memory."""


class TooManyBadSamples(PenstockError, RuntimeError):
    """More samples are bad than on_error=Replace(max_share=) allows."""


class StorageError(PenstockError, OSError):
    """An object store, or the local cache of its shards, failed.

    Attributes:
        url: of the object, or the path of the cache folder.
    """

    def __init__(self, message: str, *, url: str = "") -> None:
        super().__init__(message)
        self.url = url


class MissingBucket(StorageError, FileNotFoundError):
    """The bucket or container of a URL does not exist."""


class MissingObject(StorageError, FileNotFoundError):
    """An object does not exist."""


class MissingCredentials(StorageError, PermissionError):
    """No credentials are configured, and the store needs them."""


class AccessRefused(StorageError, PermissionError):
    """The store refuses the credentials, or access without credentials."""


class StoreFull(StorageError, OutOfSpace):
    """The store has no space, or no quota, for another object."""


class StoreUnreachable(StorageError, ConnectionError):
    """The store does not answer, or not in full, after all retries."""


class ChangedObject(StorageError):
    """An object has changed since the dataset was opened."""


class CorruptDownload(StorageError):
    """The bytes of a downloaded object do not match its checksum."""


class UnsafeCache(StorageError, PermissionError):
    """Others could write into a cache folder, or it holds what Penstock did not write."""


class ClusterError(PenstockError, RuntimeError):
    """A Ray cluster, or a node of it, cannot do its work."""


class ClusterUnreachable(ClusterError, ConnectionError):
    """There is no Ray cluster, or it does not answer."""


class WorkerDied(PenstockError, RuntimeError):
    """A worker process was killed, crashed or exited before its work was done."""


class WorkerStuck(PenstockError, RuntimeError):
    """No batch came within timeout= seconds."""


class SampleError(PenstockError):
    """One sample could not become a row of its batch.

    Attributes:
        sample_id: the ID, or the path or index where the dataset has no IDs.
        path: the file, or None when the sample lies in memory.
    """

    def __init__(self, message: str, *, sample_id: str = "", path: str | None = None) -> None:
        super().__init__(shown(message))
        self.sample_id = sample_id
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        fields = {name: getattr(self, name, None) for name in _fields(type(self))}
        state = {**vars(self), **{name: value for name, value in fields.items() if value is not None}}
        return partial(type(self), sample_id=self.sample_id, path=self.path), (str(self),), state


P = TypeVar("P", bound=PenstockError)
E = TypeVar("E", bound=SampleError)


class _Pair(type):
    """The type of the classes that `pair` makes: they are pickled as the pair that they were made of."""

    of: tuple[type[PenstockError], type[BaseException]]


copyreg.pickle(_Pair, lambda made: (pair, made.of))  # type: ignore[arg-type, return-value]
_PAIRS: dict[tuple[Any, Any], Any] = {}


def pair(kind: type[P], other: type[BaseException]) -> type[P]:
    """Return the class of errors that are instances of both; of `kind` and a base of `other` where no class can be."""
    if issubclass(kind, other):
        return kind
    known: type[P] | None = _PAIRS.get((kind, other))
    if known is not None:
        return known
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    made: Any
    try:
        made = _Pair(kind.__name__, (kind, other), {**names, "of": (kind, other)})
    except TypeError:  # their objects differ in memory, or the order of their bases does
        assert other.__base__ is not None
        made = pair(kind, other.__base__)
    return _PAIRS.setdefault((kind, other), made)  # type: ignore[no-any-return]


def like(error: BaseException, kind: type[E], message: str, *, sample_id: str, path: str | None) -> E:
    """Return an error of ours that is also an instance of another one's class, and has its errno and the like."""
    ours = pair(kind, type(error))(message, sample_id=sample_id, path=path)
    for name in _fields(type(ours)):
        try:
            setattr(ours, name, str(ours) if name == "msg" else getattr(error, name))
        except (AttributeError, TypeError):  # not set there, or not for setting
            continue
    return ours


def _fields(kind: type[BaseException]) -> tuple[str, ...]:
    """Return what the built-in bases of an error hold beside its arguments, such as errno."""
    bases = [b for b in kind.__mro__ if b.__module__ == "builtins" and b not in (BaseException, object)]
    found = (name for base in bases for name, value in vars(base).items() if inspect.isdatadescriptor(value))
    return tuple(name for name in found if not name.startswith("__") and name != "path")


class MissingSample(SampleError, FileNotFoundError):
    """A sample's file does not exist."""


class UnreadableSample(SampleError, OSError):
    """The system refused to open or to read a sample's file."""


class CorruptSample(SampleError, RuntimeError):
    """A sample's file is empty, truncated, not in its format, or not what its checksum says."""


class ChecksumMismatch(CorruptSample):
    """The CRC-32C of a sample in a shard is not the one that was computed when it was packed."""


class ImageTooLarge(CorruptSample):
    """An image has more pixels than Pillow's limit for decompression bombs."""


class ShapeMismatch(SampleError, RuntimeError):
    """A sample's shape or dtype is not that of its batch."""


class MissingLabel(SampleError, KeyError):
    """The labels have no entry for a sample's ID."""


class OutsideRoot(SampleError, PermissionError):
    """A sample's name leads out of its root folder."""
