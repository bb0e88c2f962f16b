"""Batches of a Hugging Face dataset as a known collator makes them, gathered from its columns; checked by the collator.

The first batch is made both ways. Where they differ the collator makes all batches from then on, and so it does where
the rows of several batches were nothing that is gathered.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from penstock.indexing.equality import same
from penstock.order.batches import BatchOrder, settled_at_start
from penstock.order.permutations import Indices
from penstock.plan import only_seeds
from penstock.recipe.originals import look_again
from penstock.settings import Settings
from penstock.sources.hugging_face import refused
from penstock.system.warn_user import warn_user
from penstock.tables.collators import CollatedBatches, draws, is_known
from penstock.tables.column import NotGathered
from penstock.tables.hugging_face import DatasetRows, is_dataset, rows_of as rows_of_dataset, state_of
from penstock.workers.indexed import below_subsets

#: Batches behind one another that the collator makes, after which it makes all.
_MOST_UNLIKE = 4
#: Rows that are collated both ways before worker processes start, each of which would do so.
_TRIED = 16
#: Bytes of a batch that worker processes make while the loop works, where they are asked for.
_LARGE_BATCH = 8 << 20
#: Samples of a batch where a sampler of the user's makes the batches.
_UNKNOWN_BATCH = 256


class _Seen:
    """What is known of a dataset's batches by a collator: it lasts from pass to pass, and holds neither of them."""

    def __init__(self, dataset: Any, collate_fn: Any) -> None:
        self.collate_fn = weakref.ref(collate_fn)
        rows = rows_of_dataset(dataset)
        if rows is None:
            raise NotGathered("the package makes the rows")
        self.rows = rows
        self.first: Mapping[str, Any] = dataset.__getitems__([0])[0]
        self.row_bytes = 2 * rows.table.nbytes // max(1, rows.table.num_rows)
        self.checked = False
        self.misses = 0


#: By dataset, what is known of it and the collator that it was last used with.
_seen: weakref.WeakKeyDictionary[Any, _Seen] = weakref.WeakKeyDictionary()


def _seen_of(settings: Settings) -> _Seen | None:
    """Return what is known of a loader's dataset and collator; None: the collator makes the batches."""
    dataset, collate_fn = _base_of(settings.dataset), settings.collate_fn
    if dataset is None or collate_fn is default_collate or not settings.batched or settings.method is not None:
        return None
    if settings.num_workers and settings.worker_init_fn is not None and not only_seeds(settings.worker_init_fn):
        return None
    look_again()
    if not is_known(collate_fn) or refused(dataset) is not None:
        return None
    found = _seen.get(dataset)
    if found is None or found.collate_fn() is not collate_fn or found.rows.state != state_of(dataset):
        try:
            found = _seen[dataset] = _Seen(dataset, collate_fn)
        except Exception:  # of the package, which raises it again
            return None
    return found if found.misses < _MOST_UNLIKE else None


def gathers_collated(settings: Settings) -> bool:
    """Return whether the batches of a pass are gathered in the caller's thread, with a known collator's result."""
    if (found := _seen_of(settings)) is None:
        return False
    if draws(settings.collate_fn) and (settings.num_workers or settings.seed is not None):
        return False  # a worker's generators make them
    if settings.on_demand:
        return True
    settled = BatchOrder(settings).cuts_itself() or settled_at_start(settings.index_sampler)
    return settled and found.row_bytes * (settings.batch_size or _UNKNOWN_BATCH) <= _LARGE_BATCH


def rows_of(settings: Settings, *, frozen: bool = False) -> RowsForCollator | None:
    """Return what gathers the batches of a loader; None: its collator makes them.

    frozen: the pass continues with collator and dataset as they are now, as torch's workers do.
    """
    found = _seen_of(settings)
    return None if found is None else RowsForCollator(settings.dataset, settings.collate_fn, found, frozen=frozen)


class RowsForCollator:
    """A dataset as a pass or a Worker is to see it: `__getitems__` notes what is asked for, and `collate` makes it."""

    def __init__(self, dataset: Any, collate_fn: Any, seen: _Seen, *, frozen: bool) -> None:
        self._dataset, self._collate_fn, self._seen = dataset, collate_fn, seen
        self._base: Any = None if frozen else _base_of(dataset)
        self._batches = CollatedBatches(collate_fn, seen.rows.table, seen.first, frozen=frozen)

    def __getitems__(self, given: Any) -> _Asked:
        return _Asked(given)

    def __len__(self) -> int:
        return len(self._dataset)

    def collate(self, asked: _Asked) -> Any:
        """Return the batch of what was asked for. Raises what dataset and collator raise."""
        seen = self._seen
        if seen.misses >= _MOST_UNLIKE:
            return self._theirs(asked)
        if not seen.checked:
            return self._both(asked)
        made = self._gathered(asked)
        return self._theirs(asked) if made is None else made

    def try_out(self) -> None:
        """Make a batch of the first rows both ways, and leave all generators as they were."""
        if not self._seen.checked:
            generators = _Generators(self._collate_fn)
            try:
                self._both(_Asked(list(range(min(_TRIED, len(self._dataset))))))
            except Exception:  # which the batches raise as well
                self._seen.misses = _MOST_UNLIKE
            finally:
                generators.put_back()

    def _theirs(self, asked: _Asked) -> Any:
        return self._collate_fn(self._dataset.__getitems__(asked.listed()))

    def _gathered(self, asked: _Asked, *, quiet: bool = False) -> Any | None:
        """Return the gathered batch; None: the collator makes it."""
        made, rows = None, None
        if self._base is None or self._seen.rows.state == state_of(self._base):
            rows = _table_rows(self._dataset, asked.given, self._seen.rows)
        if rows is not None:
            made = self._batches.batch(rows, quiet=quiet)
        self._seen.misses = 0 if made is not None else self._seen.misses + 1
        return made

    def _both(self, asked: _Asked) -> Any:
        """Return the collator's batch, once it was compared with the gathered one. Both draw the same numbers."""
        seen, before = self._seen, _Generators(self._collate_fn)
        made = self._gathered(asked, quiet=True)
        ours = _Generators(self._collate_fn)
        before.put_back()
        expected = self._theirs(asked)
        if made is None:
            return expected
        seen.checked = True
        equal = type(made) is type(expected) and same(_plain(made), _plain(expected))
        if not (equal and ours.same(_Generators(self._collate_fn))):
            seen.misses = _MOST_UNLIKE
            warn_user(
                f"{getattr(self._collate_fn, '__name__', type(self._collate_fn).__name__)} gave another batch than "
                "Penstock gathered for it, so that it makes all batches from now on. Please report it with the version "
                "of its package; worker_method='process' gathers nothing."
            )
        return expected

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._dataset, self._collate_fn, self._seen.checked)


def _plain(batch: Any) -> Any:
    return dict(batch) if isinstance(batch, Mapping) else batch


def _unpickled(dataset: Any, collate_fn: Any, checked: bool) -> RowsForCollator:
    seen = _Seen(_base_of(dataset), collate_fn)
    seen.checked = checked
    return RowsForCollator(dataset, collate_fn, seen, frozen=False)


class _Asked:
    """What a sampler gave for a batch."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def __len__(self) -> int:
        return len(self.given)

    def listed(self) -> Any:
        return self.given.tolist() if isinstance(self.given, np.ndarray) else self.given


class _Generators:
    """The states of the generators that a collator draws from: torch's, and its own."""

    def __init__(self, collate_fn: Any) -> None:
        self._collator, self._state = collate_fn, torch.get_rng_state() if draws(collate_fn) else None
        self._held = {name: vars(collate_fn).get(name) for name in ("generator", "_generator_pid")}
        own = self._held["generator"]
        self._own = own.get_state() if isinstance(own, torch.Generator) else None

    def put_back(self) -> None:
        if self._state is None:
            return
        torch.set_rng_state(self._state)
        vars(self._collator).update(self._held)
        if self._own is not None:
            self._held["generator"].set_state(self._own)

    def same(self, other: _Generators) -> bool:
        states = ((self._state, other._state), (self._own, other._own))
        return all(one is two or (one is not None and two is not None and torch.equal(one, two)) for one, two in states)


def _base_of(dataset: Any) -> Any:
    """Return the Hugging Face dataset that a dataset is, or is a Subset of; None: it is another one."""
    dataset, _ = below_subsets(dataset, [])
    return dataset if is_dataset(dataset) and {"__getitem__", "__getitems__"}.isdisjoint(vars(dataset)) else None


def _table_rows(dataset: Any, given: Any, rows: DatasetRows) -> Indices | None:
    """Return the rows of the table that some samples are; None: the package makes sense of what was asked for."""
    try:
        base, given = below_subsets(dataset, given)
        if base is None or not (isinstance(given, np.ndarray) or set(map(type, given)) <= {int, np.int64}):
            return None
        return rows.rows(np.asarray(given, dtype=np.int64))
    except Exception:  # of an index that is not there, which the package raises
        return None
