"""Sounds in one folder a class, or by a list of files: waveforms of one length, cut at a place drawn by sample."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import penstock._native as _native
from penstock.errors import CorruptSample, InvalidOption, MissingSample
from penstock.recipe import drawing
from penstock.sources.image_folder import check_scan, scan
from penstock.system.words import counted, there_are

AUDIO_EXTENSIONS = (".wav", ".flac", ".ogg", ".mp3", ".aif", ".aiff", ".opus")
_ALL_CODES = 31
_wav = _native.WavLoader(
    np.empty,
    [np.dtype(name) for name in ("float64", "float32", "int32", "int16")],
    partial(torch.empty, dtype=torch.float32, device="cpu"),
    str,
)


class AudioFolder(Dataset[Any]):
    """Sounds as waveforms of float32, shape (channels, frames). Integers are divided by their largest magnitude.

    The native core reads WAV files (integers of 8, 16, 24 and 32 bits, floats of 32), and of a cut only its range.
    soundfile reads all other files. A sample is (waveform, label), or the waveform where there are no labels.

    Args:
        root: a folder that holds each class as one folder, ``root/class/.../name.wav``; or a list of files.
        labels: a label for each file of a list.
        seconds: the length of each waveform. A longer sound is cut at a random place, which with the loader's seed= is
            a function of (seed, epoch, sample, position). Zeros follow a shorter one. None: all of each sound.
        sampling_rate: frames a second that each file must have; None: those of the first file.
        transform: called with the waveform.
        target_transform: called with the label.

    Attributes:
        paths: the files.
        labels: class index of each file, or the labels given; None without.
        classes: names of the class folders, sorted; empty for a list of files.
        class_to_idx: class index by class name.
        sampling_rate: frames a second.

    Raises:
        FileNotFoundError: root does not exist, it holds no folder, or a class folder holds no sound.
        InvalidOption: there are not as many labels as files, there is no file, or seconds is not above zero.
        CorruptSample: the first file cannot be read.
    """

    _read_by_python = "its files are read natively, one by one, by Python's call"

    def __init__(
        self,
        root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        labels: Iterable[Any] | None = None,
        *,
        seconds: float | None = None,
        sampling_rate: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.transform, self.target_transform = transform, target_transform
        self.classes: list[str] = []
        self.labels: list[Any] | None
        if isinstance(root, str | os.PathLike):
            folder = os.path.expanduser(os.fspath(root))
            found = scan(folder, AUDIO_EXTENSIONS)
            check_scan(found, folder, "AudioFolder", AUDIO_EXTENSIONS)
            self.paths = [os.fsdecode(found.paths.path(position)) for position in range(len(found.paths))]
            self.classes = found.classes
            self.labels = np.repeat(np.arange(len(found.counts)), found.counts).tolist()
        else:
            self.paths = [os.fspath(path) for path in root]
            self.labels = None if labels is None else list(labels)
        if self.labels is not None and len(self.labels) != len(self.paths):
            raise InvalidOption(f"labels= has {len(self.labels):,} labels for {counted(len(self.paths), 'file')}")
        if not self.paths or (seconds is not None and not seconds > 0):
            raise InvalidOption("AudioFolder needs a file at least, and seconds= above zero")
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        self.seconds = seconds
        self.sampling_rate = _about(self.paths[0])[2] if sampling_rate is None else sampling_rate

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"AudioFolder({counted(len(self), 'file')}, {self.sampling_rate:,} frames a second)"

    def __getitem__(self, index: int) -> Any:
        try:
            position = range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"sample index {index} is out of range: {there_are(len(self), 'sample')}") from None
        waveform: Any = self.read(position)
        waveform = waveform if self.transform is None else self.transform(waveform)
        if self.labels is None:
            return waveform
        label = self.labels[position]
        return waveform, label if self.target_transform is None else self.target_transform(label)

    def read(self, position: int) -> torch.Tensor:
        """Return the waveform at a position. Raises SampleError."""
        path = self.paths[position]
        frames, channels, rate = _about(path)
        if rate != self.sampling_rate:
            raise CorruptSample(
                f"sample {path!r} has {rate:,} frames a second, not {self.sampling_rate:,}: resample the file, "
                "or give sampling_rate= and files that have it",
                sample_id=path,
                path=path,
            )
        if self.seconds is None:
            return _read(path, 0, frames)
        wanted = round(self.seconds * rate)
        start = _place(frames - wanted) if frames > wanted else 0
        found = _read(path, start, min(wanted, frames))
        if frames >= wanted:
            return found
        padded = torch.zeros((channels, wanted), device="cpu")
        padded[:, :frames] = found
        return padded


def _place(most: int) -> int:
    """Return a random number from 0 to `most`."""
    if drawing.is_keyed():
        drawn = drawing.of_this_thread().crop(1, 1, 1, most + 1)
        if drawn is not None:
            return drawn[1]
    return int(torch.randint(most + 1, ()))


def _about(path: str) -> tuple[int, int, int]:
    """Return (frames, channels, frames a second) of a file."""
    about = _wav.describe(path)
    if isinstance(about, str):
        about = _by_soundfile(path, about, lambda file: (file.frames, file.channels, file.samplerate))
    frames, channels, rate = about[:3]
    return frames, channels, rate


def _read(path: str, start: int, frames: int) -> torch.Tensor:
    found = _wav.tensor(path, start, frames, _ALL_CODES, False)
    if not isinstance(found, str):
        waveform: torch.Tensor = found[0]
        return waveform

    def read(file: Any) -> torch.Tensor:
        file.seek(start)
        return torch.from_numpy(file.read(frames, "float32", always_2d=True).T).contiguous()

    decoded: torch.Tensor = _by_soundfile(path, found, read)
    return decoded


def _by_soundfile(path: str, why: str, work: Callable[[Any], Any]) -> Any:
    """Return what is read of a file that the native core does not take."""
    if not os.path.exists(path):
        raise MissingSample(f"sample {path!r} does not exist", sample_id=path, path=path)
    try:
        import soundfile  # noqa: PLC0415  optional
    except ImportError as error:
        message = f"sample {path!r} ({why}) is read by soundfile, which is not installed: pip install soundfile"
        raise CorruptSample(message, sample_id=path, path=path) from error
    try:
        with soundfile.SoundFile(path) as file:
            return work(file)
    except soundfile.SoundFileError as error:
        raise CorruptSample(f"sample {path!r} cannot be read: {error}", sample_id=path, path=path) from error
