"""Batches of datasets whose class only indexes, gathered for all samples at once; checked by the class itself.

The first batch of a dataset is made both ways, and one sample in some thousand later: a difference leaves the dataset
to its class from then on. Before each batch the dataset is looked at; where it has changed, or a sample is not like the
one that the program was made with, the class makes the batch.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset

import penstock._native as _native
from penstock.indexing.equality import same
from penstock.indexing.program import NotIndexing, place_of
from penstock.recipe.originals import READING, replaced_in_class
from penstock.recipe.steps import Refusal
from penstock.sample_notes import torch_batch
from penstock.sources.source import native_of
from penstock.sources.tree import is_foreign, source_of
from penstock.system.deferred import deferred
from penstock.system.warn_user import warn_user
from penstock.tables.column import NotGathered
from penstock.tables.hugging_face import collated_rows, is_dataset

if TYPE_CHECKING:
    from penstock.indexing import batches
    from penstock.indexing.batches import Reading
    from penstock.tables import collated

    Held = tuple[Reading, list[tuple[Any, tuple[Any, ...]]]] | None
    """What a pass reads from, and its arrays with their places; None: the dataset as it is at each batch."""
else:
    (batches,) = deferred("penstock.indexing", "batches")
    (collated,) = deferred("penstock.tables", "collated")

#: One sample of so many is made by the class, too.
CHECKED = 4096
#: Batches of other samples than the example after which a dataset is left to its class.
_MOST_UNLIKE = 4
#: Samples that a class makes before it is read: to read it takes as long as to make a few hundred.
LEARNING = 256
_MOST_PARTS = 16
#: How often a dataset whose attributes change is read anew.
_MOST_READ = 16
_OWN = frozenset({"__getitem__", "__getitems__", "__len__"})


class IndexedDataset:
    """A user's dataset, and the program of its `__getitem__`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._kind = weakref.ref(dataset), type(dataset)
        self._read: Reading | None = None
        self.refusal = ""
        """Why the class makes the batches; empty: it does not."""
        self._checked = False
        self._times = self._unlike = self._samples = self.row_bytes = 0

    def read(self, index: int) -> bool:
        """Return whether the class only indexes, with a sample as the example; it is read where it was not."""
        if self._read is not None and self._unchanged(self._read) is not None:
            return True
        self._read, self._times = None, self._times + 1
        if self.refusal or self._times > _MOST_READ:
            return False
        dataset: Any = self._dataset()
        try:
            kept = _reader_of_columns(dataset)
            read = batches.read(dataset, index) if kept is None else kept(dataset, index)
        except (NotIndexing, NotGathered) as why:
            self.refusal = str(why)
            return False
        except Exception as error:  # of an object of the user's
            self.refusal = f"reading it raised {type(error).__name__}"
            return False
        self._read, self.row_bytes = read, read.row_bytes
        self._checked, self._unlike = False, 0
        return True

    def _unchanged(self, read: Reading) -> list[Any] | None:
        """Return the arrays that are read of the dataset; None: it is not what it was."""
        dataset = self._dataset()
        if type(dataset) is not self._kind or vars(dataset) is not read.attributes:
            return None
        return read.reads.unchanged()

    @property
    def gathers(self) -> bool:
        """Whether its batches are gathered."""
        return self._read is not None

    def held(self) -> Held:
        """Return the arrays that are read, for a pass that continues with them whatever becomes of the dataset."""
        return None if self._read is None else (self._read, self._read.reads.held())

    def _numbers_of(self, read: Reading, given: Any) -> torch.Tensor | None:
        """Return the numbers of some samples; None: the class must make sense of them."""
        if type(given) is np.ndarray:
            return torch.from_numpy(given) if given.size else None
        if not (count := len(given)):
            return None
        numbers = torch.empty(count, dtype=torch.int64)
        if type(given) is not list or not _native.write_integers(given, numbers.data_ptr()):
            if read.takes_ints_only or not set(map(type, given)) <= {int, np.int64}:
                return None
            if not _native.write_integers(list(map(int, given)), numbers.data_ptr()):
                return None
        return numbers

    def batch(self, given: Any, held: Held = None) -> Any:
        """Return the batch of some samples; None: the class makes it.

        held: by the pass; None: the dataset is read as it is now.
        """
        read = self._read if held is None else held[0]
        if held is not None and any(place_of(array) != place for array, place in held[1]):
            return None
        arrays = None if read is None or held is not None else self._unchanged(read)  # in use until the batch is made
        if read is None or (held is None and arrays is None):
            self._read = None
            return None
        numbers = self._numbers_of(read, given)
        if numbers is None:
            return None
        try:
            made = read.batch(numbers)
        except Exception:  # the class raises it, or knows better
            self._unlike += 1
            if self._unlike >= _MOST_UNLIKE:
                self._read, self.refusal = None, "its samples differ in shape or type"
            return None
        self._samples += len(given)
        if (not self._checked or self._samples >= CHECKED) and (held is None or self._unchanged(read) is not None):
            return self._check(read, numbers, made, _listed(given))
        return made

    def _check(self, read: Reading, numbers: torch.Tensor, made: Any, given: list[Any]) -> Any:
        """Return the batch, once the class has made it, or one sample of it, as well; its own where they differ."""
        dataset: Any = self._dataset()
        if not self._checked:
            expected = torch_batch(dataset, given)
            equal = same(made, expected)
        else:
            expected, place = None, self._samples % len(given)
            equal = same(read.batch(numbers[place : place + 1]), torch_batch(dataset, [given[place]]))
        self._checked, self._samples = True, 0
        if equal:
            return made
        self._read, kind = None, type(dataset).__name__
        self.refusal = "its batches were other ones than those that were gathered"
        warn_user(
            f"{kind}.__getitem__ gave another sample than Penstock gathered for it, so that the class makes all "
            "batches from now on. Please report it with the code of the class; worker_method='process' gathers nothing."
        )
        return expected


#: By the identity of a dataset, for as long as it lives.
_known: dict[int, IndexedDataset] = {}


def known(dataset: Any) -> IndexedDataset:
    """Return what is known of a dataset, which is the same for all loaders."""
    key = id(dataset)
    found = _known.get(key)
    if found is None or found._dataset() is not dataset:
        found = IndexedDataset(dataset)
        weakref.finalize(dataset, _known.pop, key, None).atexit = False
        _known[key] = found
    return found


class IndexedRows:
    """A dataset as a pass is to see it: `__getitems__` returns the collated samples."""

    def __init__(self, dataset: Any, *, frozen: bool) -> None:
        self._dataset, self._frozen = dataset, frozen
        self._held: dict[int, Held] = {}
        self.ended = False
        """The class makes the batches from now on."""

    def row_bytes(self) -> int:
        """Return how many bytes the tensors of a sample have."""
        return max(known(base).row_bytes for base in _bases(self._dataset))

    def __getitems__(self, given: Any) -> Any:
        if self._frozen:  # what has changed since the pass began is in its first batch
            self._frozen = False
            self._held = {id(base): known(base).held() for base in _bases(self._dataset) if known(base).read(0)}
        made = _gathered(self._dataset, given, self._held)
        if made is None:
            self.ended = not all(known(base).gathers for base in _bases(self._dataset))
            return torch_batch(self._dataset, _listed(given))
        return made


def are_known(dataset: Any) -> bool:
    """Return whether a class was read of which a dataset is made."""
    return bool(_known) and any(id(base) in _known for base in _bases(dataset))


def rows_of(dataset: Any, *, learns: bool, frozen: bool = False) -> IndexedRows | None:
    """Return what gathers the batches of a dataset, or of one made of Subset and ConcatDataset; None: its class does.

    Args:
        learns: a class that was not read yet is read now.
        frozen: the pass continues with the arrays of the dataset as its first batch finds them, as workers do.
    """
    try:
        bases = _bases(dataset)
    except Exception:  # of a dataset in an unusual state
        return None
    if not bases or len(bases) > _MOST_PARTS:
        return None
    for base in bases:
        if not learns and id(base) not in _known:
            return None
        if not (_may_be_read(base) and known(base).read(0)):
            return None
    return IndexedRows(dataset, frozen=frozen)


def refusal_of(dataset: Any) -> str:
    """Return which expression has the class of a dataset make its batches, where it was read; else an empty text."""
    found = [_known[id(base)].refusal for base in _bases(dataset) if id(base) in _known]
    return next((f"{why}, so Python reads it" for why in found if "`" in why), "")


def _may_be_read(dataset: Any) -> bool:
    kind = type(dataset)
    if _reader_of_columns(dataset) is not None:
        gathered = id(dataset) in _known and known(dataset).gathers  # the planner was asked before
        unread = gathered or isinstance(native_of(source_of(dataset), False), Refusal)
        return _OWN.isdisjoint(vars(dataset)) and unread
    if isinstance(dataset, IterableDataset) or hasattr(dataset, "__getitems__") or not hasattr(dataset, "__dict__"):
        return False
    ours = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
    usual = _OWN.isdisjoint(vars(dataset)) and getattr(kind, "__weakrefoffset__", 0) != 0 and not ours
    return usual and is_foreign(dataset)


def _reader_of_columns(dataset: Any) -> Callable[[Any, int], Reading] | None:
    """Return what gathers the batches of a dataset of columns; None: it is none."""
    if is_dataset(dataset):
        return collated_rows
    return collated.collated_table if type(dataset).__module__ == "penstock.tables.table" else None


def _bases(dataset: Any) -> list[Any]:
    """Return the users' datasets that a dataset is made of."""
    if type(dataset) is Subset:
        return _bases(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return [base for part in dataset.datasets for base in _bases(part)]
    return [dataset]


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else given.tolist()


def below_subsets(dataset: Any, given: Any) -> tuple[Any, Any]:
    """Return the dataset that a Subset is of, whatever lies between them, and its numbers of some samples.

    (None, []): a Subset is not read as torch's class reads it, or raises its own error.
    """
    while type(dataset) is Subset:
        if not _OWN.isdisjoint(vars(dataset)) or replaced_in_class(Subset, READING) is not None:
            return None, []
        try:
            dataset, given = dataset.dataset, [dataset.indices[number] for number in _listed(given)]
        except Exception:
            return None, []
    return dataset, given


def _gathered(dataset: Any, given: Any, held: dict[int, Held]) -> Any:
    """Return the batch of some samples; None: Python makes it."""
    dataset, given = below_subsets(dataset, given)
    if type(dataset) is ConcatDataset:
        return _joined(dataset, _listed(given), held)
    found = _known.get(id(dataset))
    return None if found is None or found._dataset() is not dataset else found.batch(given, held.get(id(dataset)))


def _joined(dataset: Any, given: list[Any], all_held: dict[int, Held]) -> Any:
    """Return the batch of some samples of a ConcatDataset."""
    if not _OWN.isdisjoint(vars(dataset)) or replaced_in_class(ConcatDataset, READING) is not None:
        return None
    ends, places = dataset.cumulative_sizes, dict[int, list[int]]()
    if set(map(type, given)) != {int} or not all(0 <= number < ends[-1] for number in given):
        return None
    for place, number in enumerate(given):
        places.setdefault(bisect_right(ends, number), []).append(place)
    parts: list[tuple[Any, batches.Places]] = []
    for part, held in places.items():
        begin = ends[part - 1] if part else 0
        made = _gathered(dataset.datasets[part], [given[place] - begin for place in held], all_held)
        if made is None:
            return None
        parts.append((made, held))
    try:
        return parts[0][0] if len(parts) == 1 else batches.assembled(parts, len(given))
    except Exception:  # of datasets whose samples differ, or of a dtype that torch does not assemble
        return None
