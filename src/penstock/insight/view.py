"""`penstock view`: the contact sheet of one batch of a dataset or loader; where possible nothing is read before it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from penstock.errors import InvalidOption, PenstockError
from penstock.insight.diagnosis import loader_maker
from penstock.insight.fields import LABELS, Form
from penstock.insight.pictures import Normalisation
from penstock.insight.sheet import MOST, Sheet, contact_sheet
from penstock.loader import DataLoader
from penstock.recipe.torchvision import classes, flatten
from penstock.sample_notes import fetch_samples
from penstock.sources.naming import ids_of
from penstock.sources.tree import source_of
from penstock.system.words import counted

T = TypeVar("T", bound=Hashable)

#: Samples of a batch of a dataset that has no loader.
BATCH_SIZE = 32
_NAMED = 3  # IDs of a batch that a message names
#: Transforms behind a Normalize that leave its values unchanged, or put others in the place of some.
_AFTER = ("RandomErasing", "ToPureTensor", "RandomHorizontalFlip", "RandomVerticalFlip", "CenterCrop", "RandomCrop")


@dataclass(frozen=True)
class Options:
    """How a dataset without a loader is batched."""

    batch_size: int | None = None
    """Samples of a batch; None: BATCH_SIZE."""
    shuffle: bool = False
    seed: int | None = None
    """Of the order and the random draws."""


class Batch(NamedTuple):
    """A batch as a loader hands it out."""

    value: Any
    ids: tuple[str, ...] | None
    """The ID of each sample, in order; None: not known."""
    about: str
    """Which batch it is, in words."""
    notes: tuple[str, ...] = ()
    """What a user should know of how it was made."""
    form: Form = Form.BATCH


def sheet_of(
    given: Any,
    number: int = 0,
    *,
    options: Options | None = None,
    undo: Normalisation | None = None,
    as_is: bool = False,
    most: int = MOST,
    columns: int | None = None,
) -> Sheet:
    """Return the contact sheet of a batch, read as the loader reads it: see `batch_of` and `contact_sheet`.

    Args:
        undo: the normalisation of the pictures; None: that of torchvision's Normalize at the end of the dataset's
            transform, where it has one.
        as_is: no normalisation is undone.
    """
    batch = batch_of(given, number, options)
    dataset = getattr(given, "dataset", given)
    samples = "" if batch.ids is None else f", {counted(len(batch.ids), 'sample')}"
    return contact_sheet(
        batch.value,
        batch.ids,
        form=batch.form,
        classes=classes_of(dataset),
        undo=None if as_is else undo or normalisation_of(dataset),
        most=most,
        columns=columns,
        title=f"{type(dataset).__name__}: {batch.about}{samples}",
        notes=batch.notes,
    )


# --- the batch -------------------------------------------------------------------------------------------------------


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
    dataset = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    try:
        if isinstance(given, IterableDataset) or (dataset and not isinstance(given, torch.utils.data.DataLoader)):
            return _of_dataset(given, number, options or Options())
        if options is not None and options != Options():
            raise InvalidOption(
                f"a {type(given).__name__} has its own batch size, order and seed: they are options of a dataset"
            )
        return _of_loader(given, number)
    except PenstockError:
        raise
    except Exception as error:  # of the user's sampler, or another part of the dataset or loader
        raise InvalidOption(f"batch {number:,} of a {_name_of(given)} failed: {_sentence(error)}") from error


def _of_dataset(dataset: Any, number: int, options: Options) -> Batch:
    """Return a batch of a dataset; of samples that can be read but not be put together, the list of them.

    A folder of images is such a dataset, as long as it has no transform.
    """
    if not isinstance(dataset, IterableDataset) and len(dataset) == 0:
        raise InvalidOption(f"the dataset, a {type(dataset).__name__}, is empty: it has no batch to show")
    size = BATCH_SIZE if options.batch_size is None else options.batch_size
    chosen: dict[str, Any] = {"batch_size": size, "shuffle": options.shuffle or None, "seed": options.seed}
    try:
        loader = DataLoader(dataset, **chosen)
    except (ValueError, TypeError) as error:  # torch's, of options that the dataset does not go with
        raise InvalidOption(str(error)) from None
    try:
        return _of_loader(loader, number)
    except PenstockError as error:
        if isinstance(dataset, IterableDataset) or (isinstance(error, InvalidOption) and error.__cause__ is None):
            raise
        try:
            found = _of_loader(DataLoader(dataset, **chosen, num_workers=0, collate_fn=list), number)
        except Exception:  # its samples cannot be read either
            raise error from error.__cause__
        note = f"these samples make no batch as they are ({_sentence(error.__cause__ or error)}): each is shown as the "
        return found._replace(notes=(f"{note}dataset returns it",), form=Form.SAMPLES)


def _of_loader(loader: Any, number: int) -> Batch:
    """Return a batch of a loader. Raises InvalidOption and what the loader's code raises."""
    single = getattr(loader, "_auto_collation", True) is False
    form = Form.UNBATCHED if single else Form.BATCH
    about = f"batch {number:,} of a {_name_of(loader)}"
    own = DataLoader if isinstance(loader, DataLoader) else torch.utils.data.DataLoader
    if (
        not isinstance(loader, own)
        or isinstance(loader.dataset, IterableDataset)
        or any(getattr(type(loader), step) is not getattr(own, step) for step in ("__iter__", "_get_iterator"))
    ):
        return Batch(_nth(loader, number, loader), None, about, form=form)
    if isinstance(loader, DataLoader) and (key := loader.order_key()) is not None:
        seed, epoch = key
        try:
            ids = tuple(loader.ids(epoch, number))
        except IndexError:
            raise _too_few(loader, number, len(loader)) from None
        value = _read(lambda: loader.batch_at(epoch, number), loader.dataset, (), ids, number)
        return Batch(value, ids, f"{about}, epoch {epoch:,}, seed {seed}")
    given: Any = _nth(loader._index_sampler, number, loader)
    indices = given if isinstance(given, list | tuple) else [given]
    ids = tuple(ids_of(loader.dataset, indices))
    # A loader of only this batch, which reads as the given one does. Its ledger is of the run; its sampler gave this
    # rank's share; host memory is where a picture is made.
    chosen: dict[str, Any] = {"ledger": None, "shard": None, "device": None} if own is DataLoader else {}
    chosen |= {"batch_size": None, "sampler": [given]} if single else {"batch_sampler": [list(given)]}
    twin = loader_maker(loader, **chosen, num_workers=min(1, loader.num_workers))()
    one_by_one = () if indices is not given or getattr(loader.dataset, "__getitems__", None) else indices
    return Batch(_read(lambda: next(iter(twin)), loader.dataset, one_by_one, ids, number), ids, about, form=form)


def _nth(values: Iterable[Any], number: int, loader: Any) -> Any:
    """Return a value after all those before it. Raises InvalidOption: there are fewer."""
    count = 0
    try:
        for value in values:
            if count == number:
                return value
            count += 1
    except PenstockError:
        raise
    except Exception as error:
        raise InvalidOption(f"batch {count:,} of a {_name_of(loader)} failed: {_sentence(error)}") from error
    raise _too_few(loader, number, count)


def _too_few(loader: Any, number: int, count: int) -> InvalidOption:
    if not count:
        return InvalidOption(f"a {_name_of(loader)} has no batch to show: its dataset is empty, or drop_last drops all")
    return InvalidOption(f"there is no batch {number:,}: a {_name_of(loader)} has {counted(count, 'batch', 'batches')}")


# --- what failed -----------------------------------------------------------------------------------------------------


def _read(read: Callable[[], Any], dataset: Any, indices: Sequence[Any], ids: Sequence[str], number: int) -> Any:
    """Return a batch. Raises InvalidOption: the user's code raised; it names the sample that failed where one did.

    indices: of the samples that can be read one by one.
    """
    try:
        return read()
    except PenstockError:
        raise
    except Exception as error:
        for index, name in zip(indices, ids, strict=False):
            try:
                fetch_samples(dataset, [index])
            except Exception as own:
                raise InvalidOption(f"sample {name!r} of batch {number:,} failed: {_sentence(own)}") from error
        listed = ", ".join(map(repr, ids[:_NAMED])) + (f" and {len(ids) - _NAMED:,} more" if len(ids) > _NAMED else "")
        raise InvalidOption(f"batch {number:,} (samples {listed}) failed: {_sentence(error)}") from error


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


# --- what a dataset says of its pictures and labels -------------------------------------------------------------------


def classes_of(dataset: Any) -> tuple[str, ...] | None:
    """Return the names of a dataset's classes by label; None: it has none, or its labels are not their numbers.

    All parts of a ConcatDataset must have the same names.
    """
    return _of_all_parts(dataset, _classes)


def normalisation_of(dataset: Any) -> Normalisation | None:
    """Return the normalisation that a dataset's transform ends with: torchvision's Normalize; None: there is none.

    It is looked for in the dataset's attribute `transform`, a Compose of torchvision's or a single transform. All parts
    of a ConcatDataset must have the same one.
    """
    return _of_all_parts(dataset, _normalisation)


def _of_all_parts(dataset: Any, find: Callable[[Any], T | None]) -> T | None:
    """Return what is found in each dataset that the samples come from; None: they differ."""
    try:
        found = {find(source.dataset) for source in source_of(dataset).parts()}
    except Exception:  # a dataset of any kind may raise anything
        return None
    return found.pop() if len(found) == 1 else None


def _classes(dataset: Any) -> tuple[str, ...] | None:
    names = getattr(dataset, "classes", None)
    if names is None:  # a Hugging Face dataset, whose labels are a ClassLabel
        features = getattr(dataset, "features", None) or {}
        names = next((features[name].names for name in LABELS if hasattr(features.get(name), "names")), None)
    if getattr(dataset, "target_transform", None) is not None or not isinstance(names, list | tuple):
        return None
    return tuple(names) if names and all(isinstance(name, str) for name in names) else None


def _normalisation(dataset: Any) -> Normalisation | None:
    kinds = classes("Normalize")
    after = tuple(itertools.chain.from_iterable(map(classes, _AFTER)))
    steps = [step for step in flatten(getattr(dataset, "transform", None)) if type(step) not in after]
    if [type(step) in kinds for step in steps].count(True) != 1 or type(steps[-1]) not in kinds:
        return None
    last: Any = steps[-1]
    mean, std = (torch.as_tensor(value, dtype=torch.float64).reshape(-1).tolist() for value in (last.mean, last.std))
    return Normalisation(tuple(mean), tuple(std)) if all(std) else None
