"""Which samples of one loader are bad, and how many on_error=Replace(...) lets be."""

from __future__ import annotations

import math
import numbers
import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from penstock.errors import InvalidOption, TooManyBadSamples
from penstock.state.manifest import BadSample, Manifest
from penstock.system.warn_user import warn_user
from penstock.system.words import counted

_LISTED = 20  # bad samples in an error message


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
            raise InvalidOption(f"max_share={given!r} is no share: give a number from 0 to 1, such as 0.001")
        object.__setattr__(self, "max_share", share)
        if self.manifest is not None:
            _check_place(self.manifest)


def _check_place(manifest: object) -> None:
    try:
        path: object = os.fspath(manifest)  # type: ignore[call-overload]
    except TypeError:
        path = None
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidOption(f"manifest={manifest!r} is no name of a file: give a str or a Path, or None")
    path = os.path.abspath(os.path.expanduser(path))
    if os.path.isdir(path):
        raise InvalidOption(f"manifest={manifest!r} is a folder: name a file in it, such as bad-samples.jsonl")
    if not os.path.isdir(os.path.dirname(path)):
        raise InvalidOption(f"manifest={manifest!r}: the folder {os.path.dirname(path)!r} does not exist; make it")


class Quarantine:
    """One loader's bad samples: those that the manifest knew and those found since.

    The thread that takes the batches of a pass reports; any other may read. A copy in another process (forked or
    pickled) knows what was known then.

    Attributes:
        entries: what the manifest held when the loader was built, by ID; some may be of other datasets.
        limit: how many samples may be bad.

    Raises:
        InvalidOption: the manifest cannot be used.
    """

    def __init__(self, how: Replace, size: int) -> None:
        self.how = how
        self.size = size
        # The share as it was written: in floating point 0.29 * 100 is less than 29.
        self.limit = math.floor(Fraction(str(how.max_share)) * size)
        if how.max_share > 0:
            self.limit = min(size, max(1, self.limit))
        self.manifest = None if how.manifest is None else Manifest(how.manifest)
        self.entries: Mapping[str, BadSample] = {}
        if self.manifest is not None:
            self.manifest.check()
            self.entries = self.manifest.read()
        self._bad: dict[str, BadSample] = {}  # of this dataset, in the order in which they became known
        self._unwritten: deque[BadSample] = deque()

    def take_up(self, ids: Iterable[str]) -> None:
        """Count the manifest's entries with these IDs as bad; IDs that it does not hold are passed over.

        Raises TooManyBadSamples.
        """
        self._bad = {**{id: self.entries[id] for id in ids if id in self.entries}, **self._bad}
        self._check_limit()

    def report(self, *news: BadSample) -> None:
        """Make bad samples known and write them to the manifest; those that are known already change nothing.

        A manifest that cannot be written now (a full disk) is a warning, and tried again at the next report.
        Raises TooManyBadSamples while more are known than the limit, also where there is no news.
        """
        for bad in news:
            if self._bad.setdefault(bad.id, bad) is bad and bad.id not in self.entries:
                self._unwritten.append(bad)
        if news and self.manifest is not None:
            self._write(self.manifest)
        self._check_limit()

    @property
    def known(self) -> frozenset[str]:
        """The IDs known to be bad: of the manifest, as far as taken up, and found since."""
        return frozenset(self._bad)

    def _write(self, manifest: Manifest) -> None:
        while True:
            try:
                bad = self._unwritten.popleft()
            except IndexError:  # another thread writes the last one
                return
            try:
                manifest.add(bad)
            except (OSError, InvalidOption) as error:
                self._unwritten.appendleft(bad)
                warn_user(
                    f"bad sample {bad.id!r} could not be written to the manifest {manifest.path!r}: {error}; "
                    "it is replaced all the same, and written with the next one",
                    RuntimeWarning,
                )
                return

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
        if len(bad) > _LISTED:
            lines.append(f"  and {len(bad) - _LISTED:,} more")
        if self.manifest is None:
            lines.append("Repair the files or leave them out, or raise max_share; manifest=PATH would keep the list.")
        else:
            lines.append(
                f"The list stands in {self.manifest.path}. Repair the files and run `penstock quarantine retry` on it, "
                "take lines out of it that should be tried again, or raise max_share."
            )
        raise TooManyBadSamples("\n".join(lines))

    def __repr__(self) -> str:
        place = "" if self.manifest is None else f", manifest={self.manifest.path!r}"
        return f"Quarantine({len(self._bad):,} of {self.size:,} bad, {self.limit:,} allowed{place})"
