"""Every exception that Penstock raises of its own.

PenstockError
├── InvalidID (ValueError)                    an ID that is no name inside its root
├── InvalidOption (ValueError)                arguments that exclude each other or make no sense
├── DatasetChanged (ValueError)               not the dataset that a state was taken of
├── OutOfMemory (MemoryError)                 not even a batch of one sample fits
├── TooManyBadSamples (RuntimeError)          more of them than on_error=Replace(max_share=) allows
├── WorkerDied (RuntimeError)                 a worker process ended before its work was done
├── WorkerStuck (RuntimeError)                no batch came within timeout= seconds
└── SampleError                               one sample could not become a row; raised at its batch
    ├── MissingSample (FileNotFoundError)     its file is not there
    ├── UnreadableSample (OSError)            the system refused to open or read it
    ├── CorruptSample (RuntimeError)          empty, truncated, or not in the format that it should have
    │   └── ImageTooLarge                     over Pillow's limit for decompression bombs
    ├── ShapeMismatch (RuntimeError)          its shape or dtype is not that of the batch
    ├── MissingLabel (KeyError)               the labels have no entry for its ID
    └── OutsideRoot (PermissionError)         its name or a symbolic link leads out of the root folder

Each also derives from the built-in exception in brackets, so that code written for the plain Python dataset
keeps catching what it caught.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of every exception that Penstock raises of its own."""

    def __str__(self) -> str:
        # KeyError and OSError print their arguments in ways of their own; the message is one sentence here.
        return str(self.args[0]) if self.args else ""


class InvalidID(PenstockError, ValueError):
    """An ID is not a relative name inside its root folder."""


class InvalidOption(PenstockError, ValueError):
    """Two arguments exclude each other, or a value is out of its range."""


class DatasetChanged(PenstockError, ValueError):
    """A dataset is not what it was when a loader's state was taken."""


class OutOfMemory(PenstockError, MemoryError):
    """Not even a batch of one sample fits into memory."""


class TooManyBadSamples(PenstockError, RuntimeError):
    """More samples are bad than on_error=Replace(max_share=) allows."""


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
        super().__init__(message)
        self.sample_id = sample_id
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), self.sample_id, self.path)


def _rebuild(kind: type[SampleError], message: str, sample_id: str, path: str | None) -> SampleError:
    return kind(message, sample_id=sample_id, path=path)


class MissingSample(SampleError, FileNotFoundError):
    """A sample's file does not exist."""


class UnreadableSample(SampleError, OSError):
    """The system refused to open or to read a sample's file."""


class CorruptSample(SampleError, RuntimeError):
    """A sample's file is empty, truncated, or not in its format."""


class ImageTooLarge(CorruptSample):
    """An image has more pixels than Pillow's limit for decompression bombs."""


class ShapeMismatch(SampleError, RuntimeError):
    """A sample's shape or dtype is not that of its batch."""


class MissingLabel(SampleError, KeyError):
    """The labels have no entry for a sample's ID."""


class OutsideRoot(SampleError, PermissionError):
    """A sample's name leads out of its root folder."""
