"""Bad samples: how many may be, which are known, and which samples replace them."""

from __future__ import annotations

import logging
import math
import numbers
import operator
import os
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from penstock.errors import InvalidOption, TooManyBadSamples
from penstock.observe import Delivery, Observer
from penstock.order.buckets import CutBatches
from penstock.order.permutations import KeyedSampler
from penstock.settings import known_size
from penstock.sources.naming import name_of, names_of
from penstock.state.delivery import Task
from penstock.state.manifest import BadSample, Manifest
from penstock.system.randomness import digest, sample_number
from penstock.system.warn_user import warn_user
from penstock.system.words import counted

_log = logging.getLogger("penstock")
#: How many samples are tried instead of a bad one, before its error is raised.
TRIES = 100
#: Bad samples that an error message lists.
_LISTED = 20


@dataclass(frozen=True)
class Replace:
    """The value of on_error= that puts a good sample, drawn by the seed, in the place of each bad one."""

    max_share: float = 0.001
    """The largest share of the dataset's samples that may be bad, 0 to 1; one more raises TooManyBadSamples. Above 0 it
    allows at least one bad sample, however small the dataset is."""
    manifest: str | os.PathLike[str] | None = None
    """The file that keeps the bad samples between runs; it need not exist, its folder must. None: not kept."""

    def __post_init__(self) -> None:
        given: object = self.max_share
        share = float(given) if isinstance(given, numbers.Real) and not isinstance(given, bool) else math.nan
        if not 0 <= share <= 1:
            raise InvalidOption(f"max_share={given!r} is not a share: give a number from 0 to 1, such as 0.001")
        object.__setattr__(self, "max_share", share)
        if not isinstance(self.manifest, str | os.PathLike | None):
            raise InvalidOption(f"manifest={self.manifest!r}: it is the path of a file, or None")


class Substitutes:
    """Which samples are bad, and which replace them. bad: their indices, as far as they are known.

    A stand-in is a function of (seed, epoch, sample, position): the same one in any process and thread. Any thread may
    call any method; picklable, and a copy in a worker process learns on its own.
    """

    def __init__(self, dataset: Any, bad: Iterable[Any]) -> None:
        self.population: Sequence[Any] | None = None
        """Indices to draw from; None: the other ones of the same batch."""
        self._dataset = dataset
        self._bad = set(bad)
        self._news: deque[BadSample] = deque()

    def is_bad(self, index: Any) -> bool:
        return bool(self._bad) and _key(index) in self._bad

    def learn(self, bad: BadSample) -> None:
        """Take note of a bad sample that a copy in another process found."""
        if bad.index is not None:
            self._bad.add(bad.index)

    def found_bad(self, index: Any, error: BaseException) -> None:
        name, path = name_of(self._dataset, index)
        if path is None and isinstance(getattr(error, "filename", None), str):
            path = error.filename  # type: ignore[attr-defined]
        if _key(index) not in self._bad:
            self._bad.add(_key(index))
            self._news.append(BadSample.of(name, path, error, _whole(index)))

    def candidates(self, task: Task, index: Any, position: int) -> Iterator[Any]:
        """Yield the indices of samples that may replace one, at its position in the epoch's order."""
        others = self.population
        if others is None:
            given = task.given if isinstance(task.given, (list, tuple)) else ()  # one index, with batch_size=None
            others = [other for other in given if _key(other) != _key(index)]
        for attempt in range(TRIES if others else 0):
            key = digest(task.seed, task.epoch, sample_number(index), position, attempt)
            yield others[int.from_bytes(key[:8], "little") % len(others)]

    def take_news(self) -> list[BadSample]:
        """Return what was found bad since the last call."""
        news: list[BadSample] = []
        with suppress(IndexError):
            while True:
                news.append(self._news.popleft())
        return news


class Register(Observer):
    """The bad samples of a loader: those that the manifest knew, those found since, and the samples that stand in.

    The thread that takes the batches of a pass tells of them; any other may read. A copy in another process (forked or
    pickled) knows what was known then. Raises (when made) InvalidOption: the manifest cannot be used;
    TooManyBadSamples.
    """

    def __init__(self, how: Replace, dataset: Any) -> None:
        size = known_size(dataset)
        if size is None:
            raise InvalidOption(
                f"on_error='replace' needs a dataset with a length: {type(dataset).__name__} has none, and the share "
                "of bad samples is unknown without"
            )
        self.how, self.size = how, size
        # The share as it was written: in floating point 0.29 * 100 is less than 29.
        self.limit = max(math.floor(Fraction(str(how.max_share)) * size), int(how.max_share > 0))
        self.manifest = None if how.manifest is None else Manifest(how.manifest)
        entries: Mapping[str, BadSample] = {}
        if self.manifest is not None:
            self.manifest.check()
            entries = self.manifest.read()
        whole = range(size if entries else 0)
        named = zip(whole, names_of(dataset, whole), strict=True)
        bad = {index: name for index, (name, _) in named if name in entries}
        if self.manifest is not None:
            _warn_of_other_dataset(self.manifest.path, entries, dataset, bad)
        self._bad = {name: entries[name] for name in bad.values()}  # by ID, in the order in which they became known
        self._check_limit()
        self.substitutes = Substitutes(dataset, bad)
        self._said = False  # that samples are replaced

    def delivered(self, delivery: Delivery) -> None:
        """Register the samples that were found bad while a batch was made, and write them to the manifest.

        One that cannot be written (a full disk) is a warning. Raises TooManyBadSamples while more are known than the
        limit, also where there is no news.
        """
        news = [*delivery.bad, *self.substitutes.take_news()]
        for bad in news:
            self.substitutes.learn(bad)
            if self._bad.setdefault(bad.id, bad) is bad and self.manifest is not None:
                try:
                    self.manifest.add(bad)
                except (OSError, InvalidOption) as error:
                    warn_user(
                        f"bad sample {bad.id!r} could not be written to the manifest {self.manifest.path!r}: {error}; "
                        "it is replaced nevertheless, and a later run finds it again",
                        RuntimeWarning,
                    )
        self._check_limit()
        if self._bad and not self._said:
            self._said = True
            first = ", ".join(f"{one.id!r} ({one.error!r})" for one in news[:1])
            _log.warning(
                "on_error='replace': good samples replace bad ones from here on, beginning with %s; their number "
                "is logged at the end",
                first or f"{counted(len(self._bad), 'sample')} of the manifest",
            )
            weakref.finalize(self, _log_count, self._bad, self.size, self.manifest, os.getpid())

    def explain(self) -> str:
        return (
            f"bad      {counted(len(self._bad), 'bad sample')}, replaced by good ones; more than {self.limit:,} end "
            "the run"
        )

    def _check_limit(self) -> None:
        if len(self._bad) <= self.limit:
            return
        bad = list(self._bad.values())
        least = ", as any share above 0 does" if 0 < self.how.max_share * self.size < 1 else ""
        lines = [
            f"{len(bad):,} of {counted(self.size, 'sample')} {'is' if len(bad) == 1 else 'are'} bad "
            f"({len(bad) / max(self.size, 1):.3%}), and "
            f"on_error=Replace(max_share={self.how.max_share:g}) allows {self.limit:,}{least}:"
        ]
        for one in bad[:_LISTED]:
            place = "" if one.path is None or one.path == one.id or one.path in one.error else f" ({one.path})"
            lines.append(f"  {one.id!r}{place}: {one.error}")
        lines += [f"  and {len(bad) - _LISTED:,} more"] * (len(bad) > _LISTED)
        remedy = "Repair the files or leave them out, or raise max_share; manifest=PATH would keep the list."
        if self.manifest is not None:
            remedy = (
                f"The list stands in {self.manifest.path}. Repair the files and run `penstock quarantine retry` on it, "
                "take lines out of it that should be tried again, or raise max_share."
            )
        raise TooManyBadSamples("\n".join([*lines, remedy]))


def _log_count(bad: Mapping[str, BadSample], size: int, kept: Manifest | None, process: int) -> None:
    """Log how many samples a loader has replaced, when it is gone or the process ends."""
    if os.getpid() == process:
        number, listed = counted(len(bad), "bad sample"), "" if kept is None else f"; they are listed in {kept.path!r}"
        _log.warning("on_error='replace': good samples replaced %s of %s%s", number, f"{size:,}", listed)


def register_of(on_error: object, dataset: Any) -> Register | None:
    """Return the bookkeeping of an on_error= argument, None for "raise". Raises InvalidOption."""
    if on_error == "raise":
        return None
    how = Replace() if on_error == "replace" else on_error
    if not isinstance(how, Replace):
        raise InvalidOption(f"on_error={on_error!r}: it is 'raise', 'replace' or a penstock.Replace")
    if isinstance(dataset, IterableDataset):
        raise InvalidOption("on_error='replace' needs a map-style dataset: an iterable one has no other sample to take")
    return Register(how, dataset)


def population(sampler: Any, batch_sampler: Any, size: int) -> Sequence[Any] | None:
    """Return the indices that a sampler of torch's or Penstock's draws from; None: a sampler of another class."""
    if type(batch_sampler) is BatchSampler or isinstance(batch_sampler, CutBatches):
        sampler = batch_sampler.sampler
    elif batch_sampler is not None:
        return None
    if type(sampler) is SubsetRandomSampler:
        return sampler.indices
    if isinstance(sampler, KeyedSampler):
        return sampler.drawn_from()
    if type(sampler) not in (SequentialSampler, RandomSampler, DistributedSampler):
        return None
    source: Any = sampler.dataset if type(sampler) is DistributedSampler else sampler.data_source
    return range(min(size, len(source)))  # a sampler of fewer must not be given what it never draws


def _warn_of_other_dataset(
    manifest: str, entries: Mapping[str, BadSample], dataset: Any, bad: Mapping[int, str]
) -> None:
    """Warn of a manifest that names no sample of the dataset, or whose samples of the same IDs are other files."""
    differs = None
    if entries and not bad:
        differs = f"it names {counted(len(entries), 'bad sample')}, and none is in this dataset"
    files = {name: os.path.abspath(path) for name, path in names_of(dataset, bad) if path is not None}
    listed = {name: path for name in files if (path := entries[name].path) is not None}
    if listed and not listed.items() & files.items():
        name = next((name for name in listed if os.path.exists(listed[name])), None)
        if name is not None:  # else the dataset was moved
            differs = f"its sample {name!r} is the file {listed[name]!r}, and in this dataset {files[name]!r}"
    if differs is not None:
        warn_user(
            f"the manifest {manifest!r} seems to belong to another dataset: {differs}. A manifest belongs to one "
            "dataset, and samples with the IDs that it holds are replaced: name another file in Replace(manifest=)"
        )


def _whole(index: Any) -> int | None:
    """Return an index as an int: NumPy's integers and tensors too."""
    try:
        return operator.index(index)
    except TypeError:
        return None


def _key(index: Any) -> Any:
    return index if isinstance(index, (int, str, tuple)) else sample_number(index)
