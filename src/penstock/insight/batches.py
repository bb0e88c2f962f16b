"""One batch of a loader or dataset with the IDs of its samples; where possible nothing is read before it."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from penstock.errors import InvalidOption, PenstockError
from penstock.insight.fields import Form
from penstock.loader import DataLoader
from penstock.sample_notes import fetch_samples
from penstock.sources.naming import ids_of
from penstock.system.words import counted

#: Samples of a batch of a dataset that has no loader.
BATCH_SIZE = 32
_NAMED = 3  # IDs of a batch that a message names
_STEPS = ("__iter__", "_get_iterator")  # methods of a loader that say how a pass goes


@dataclass(frozen=True)
class Options:
    """How a dataset without a loader is batched."""

    batch_size: int | None = None
    """Samples of a batch; None: BATCH_SIZE."""
    shuffle: bool = False
    seed: int | None = None
    """Of the order and the random draws."""


@dataclass(frozen=True)
class Batch:
    """A batch as a loader hands it out."""

    value: Any
    ids: tuple[str, ...] | None
    """The ID of each sample, in order; None: not known."""
    about: str
    """Which batch it is, in words."""
    notes: tuple[str, ...] = ()
    """What a user should know of how it was made."""
    form: Form = Form.BATCH


def batch_of(given: Any, number: int = 0, options: Options | None = None) -> Batch:
    """Return a batch of a loader, or of a dataset, which gets a penstock.DataLoader.

    Of a loader with a sampler only the samples of that batch are read, by the loader's own code with at most one
    worker process; the batches of an iterable dataset, and of a loader class with an __iter__ of its own, are gone
    through up to that one.

    Args:
        given: a dataset, a loader, or an object that yields batches.
        number: of the batch in the epoch, from 0 on.
        options: of a dataset; None for a loader, which has its own.

    Raises:
        InvalidOption: options for a loader, a negative number, or fewer batches than that; a sample or the batch
            fails: the message names it, the error is its cause.
        PenstockError: of Penstock's own readers.
    """
    if number < 0:
        raise InvalidOption(f"the batch is {number}: batches are counted from 0 on")
    try:
        return _batch_of(given, number, options)
    except PenstockError:
        raise
    except Exception as error:  # of the user's sampler, or another part of the dataset or loader
        raise InvalidOption(f"batch {number:,} of a {_name_of(given)} failed: {_sentence(error)}") from error


def _batch_of(given: Any, number: int, options: Options | None) -> Batch:
    if not _is_dataset(given):
        if options is not None and options != Options():
            raise InvalidOption(
                f"a {type(given).__name__} has its own batch size, order and seed: they are options of a dataset"
            )
        return _of_loader(given, number)
    options = options or Options()
    loader = _loader_of(given, options)
    try:
        return _of_loader(loader, number)
    except PenstockError as error:
        return _listed(given, number, options, error)


def _is_dataset(given: Any) -> bool:
    return isinstance(given, IterableDataset) or (
        hasattr(given, "__getitem__")
        and hasattr(given, "__len__")
        and not isinstance(given, torch.utils.data.DataLoader)
    )


def _loader_of(dataset: Any, options: Options, **own: Any) -> DataLoader[Any]:
    if not isinstance(dataset, IterableDataset) and len(dataset) == 0:
        raise InvalidOption(f"the dataset, a {type(dataset).__name__}, is empty: it has no batch to show")
    size = BATCH_SIZE if options.batch_size is None else options.batch_size
    try:
        return DataLoader(dataset, batch_size=size, shuffle=options.shuffle or None, seed=options.seed, **own)
    except (ValueError, TypeError) as error:  # torch's, of options that the dataset does not go with
        raise InvalidOption(str(error)) from None


def _listed(dataset: Any, number: int, options: Options, error: PenstockError) -> Batch:
    """Return a batch as the list of its samples, where they can be read but not be put together; else raise the error.

    A folder of images is such a dataset, as long as it has no transform.
    """
    if isinstance(dataset, IterableDataset) or (isinstance(error, InvalidOption) and error.__cause__ is None):
        raise error
    try:
        found = _of_loader(_loader_of(dataset, options, num_workers=0, collate_fn=_as_list), number)
    except Exception:  # its samples cannot be read either
        raise error from error.__cause__
    why = error if error.__cause__ is None else error.__cause__
    note = f"these samples make no batch as they are ({_sentence(why)}): each is shown as the dataset returns it"
    return Batch(found.value, found.ids, found.about, (*found.notes, note), Form.SAMPLES)


def _as_list(samples: list[Any]) -> list[Any]:
    return samples


def _of_loader(loader: Any, number: int) -> Batch:
    """Return a batch of a loader. Raises InvalidOption and what the loader's code raises."""
    single = getattr(loader, "_auto_collation", True) is False
    form = Form.UNBATCHED if single else Form.BATCH
    about = f"batch {number:,} of a {_name_of(loader)}"
    if not isinstance(loader, torch.utils.data.DataLoader) or isinstance(loader.dataset, IterableDataset):
        return Batch(_passed_to(loader, number), None, about, form=form)
    own = DataLoader if isinstance(loader, DataLoader) else torch.utils.data.DataLoader
    if any(getattr(type(loader), step) is not getattr(own, step) for step in _STEPS):
        return Batch(_passed_to(loader, number), None, about, form=form)
    if isinstance(loader, DataLoader) and (key := loader.order_key()) is not None:
        return _of_order(loader, key[1], number, about)
    given: Any = _sampled(loader, number)
    ids = tuple(ids_of(loader.dataset, given if _is_list(given) else [given]))
    try:
        value = _first(_twin(loader, given, single=single))
    except PenstockError:
        raise
    except Exception as error:
        raise _failure(loader.dataset, given, ids, number, error) from error
    return Batch(value, ids, about, form=form)


def _of_order(loader: DataLoader[Any], epoch: int, number: int, about: str) -> Batch:
    """Return a batch of a loader whose order is a function of (seed, epoch)."""
    try:
        ids = tuple(loader.ids(epoch, number))
    except IndexError:
        raise _too_few(loader, number, len(loader)) from None
    try:
        value = loader.batch_at(epoch, number)
    except PenstockError:
        raise
    except Exception as error:
        raise _failure(loader.dataset, None, ids, number, error) from error
    return Batch(value, ids, f"{about}, epoch {epoch:,}, seed {loader.seed}")


def _sampled(loader: Any, number: int) -> Any:
    """Return what a loader's sampler gives for a batch: indices, or the index of one sample."""
    count = 0
    for given in loader._index_sampler:
        if count == number:
            return list(given) if loader._auto_collation else given
        count += 1
    raise _too_few(loader, number, count)


def _twin(loader: Any, given: Any, *, single: bool) -> Any:
    """Return a loader of one batch, which reads as the given loader does."""
    chosen: dict[str, Any] = {"batch_size": None, "sampler": [given]} if single else {"batch_sampler": [given]}
    if isinstance(loader, DataLoader):
        twin: Any = loader.with_samples(loader.dataset, **chosen)
        # The ledger is of the run; the sampler gave this rank's share; host memory is where a picture is made.
        twin.ledger = twin.shard = twin.device = None
        return twin
    workers = min(1, loader.num_workers)
    return torch.utils.data.DataLoader(
        loader.dataset,
        **chosen,
        num_workers=workers,
        collate_fn=loader.collate_fn,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context if workers else None,
        generator=loader.generator,
    )


def _first(loader: Any) -> Any:
    """Return the first batch of a loader. Its worker processes have ended then, also where it fails."""
    try:
        for batch in loader:
            return batch
    except Exception as error:
        if loader.num_workers:  # the frames of its traceback would hold the iterator, and so the processes
            traceback.clear_frames(error.__traceback__)
        raise
    raise InvalidOption(f"a {_name_of(loader)} gave no batch")


def _passed_to(loader: Iterable[Any], number: int) -> Any:
    """Return a batch after all those before it."""
    count, passed = 0, iter(loader)
    while True:
        try:
            batch = next(passed)
        except StopIteration:
            raise _too_few(loader, number, count) from None
        except PenstockError:
            raise
        except Exception as error:
            raise InvalidOption(f"batch {count:,} of a {_name_of(loader)} failed: {_sentence(error)}") from error
        if count == number:
            return batch
        count += 1


def _too_few(loader: Any, number: int, count: int) -> InvalidOption:
    if not count:
        return InvalidOption(f"a {_name_of(loader)} has no batch to show: its dataset is empty, or drop_last drops all")
    return InvalidOption(f"there is no batch {number:,}: a {_name_of(loader)} has {counted(count, 'batch', 'batches')}")


def _failure(dataset: Any, given: Any, ids: Sequence[str], number: int, error: Exception) -> InvalidOption:
    """Return the error of a batch that could not be made; it names the sample that failed where one did."""
    if _is_list(given) and not getattr(dataset, "__getitems__", None):
        for index, name in zip(given, ids, strict=True):
            try:
                fetch_samples(dataset, [index])
            except Exception as own:
                return InvalidOption(f"sample {name!r} of batch {number:,} failed: {_sentence(own)}")
    listed = ", ".join(map(repr, ids[:_NAMED])) + (f" and {len(ids) - _NAMED:,} more" if len(ids) > _NAMED else "")
    return InvalidOption(f"batch {number:,} (samples {listed}) failed: {_sentence(error)}")


def _sentence(error: BaseException) -> str:
    """Return the type of an error and the last line of its message, which has a worker's whole traceback otherwise."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Caught "):  # torch's words for an error of a worker process
        return lines[-1]
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {' '.join(lines)}{notes}" if lines else type(error).__name__ + notes


def _name_of(loader: Any) -> str:
    kind = type(loader)
    where = {"penstock.loader": "penstock.", "torch.utils.data.dataloader": "torch.utils.data."}
    return f"{where.get(kind.__module__, '')}{kind.__qualname__}"


def _is_list(given: Any) -> bool:
    return isinstance(given, list | tuple)
