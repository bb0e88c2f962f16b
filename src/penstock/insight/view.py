"""`penstock view`: the contact sheet of one batch of a dataset or loader; where possible nothing is read before it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from penstock.errors import InvalidOption, PenstockError
from penstock.insight.diagnosis import loader_maker
from penstock.insight.pictures import Normalisation
from penstock.insight.sheet import LABELS, MOST, Sheet, contact_sheet, flat
from penstock.loader import DataLoader
from penstock.recipe.torchvision import classes, flatten
from penstock.showing import said
from penstock.sources.naming import ids_of
from penstock.sources.tree import source_of
from penstock.system.words import counted

T = TypeVar("T", bound=Hashable)

#: Samples of a batch of a dataset that has no loader.
BATCH_SIZE = 32


#: Names of fields that are tokens of a text.
TOKENS = ("input_ids", "labels", "decoder_input_ids", "tokens")


class Batch(NamedTuple):
    """A batch as a loader hands it out."""

    value: Any
    ids: tuple[str, ...] | None
    """The ID of each sample, in order; None: not known."""
    about: str
    """Which batch it is, in words."""
    listed: bool = False
    """The value is a list of samples."""


def sheet_of(
    given: Any,
    number: int = 0,
    *,
    undo: Normalisation | None = None,
    as_is: bool = False,
    most: int = MOST,
    columns: int | None = None,
    decode: Callable[[list[int]], str] | None = None,
    **options: Any,
) -> Sheet:
    """Return the contact sheet of a batch, read as the loader reads it: see `batch_of` and `contact_sheet`.

    Args:
        undo: the normalisation of the pictures; None: that of torchvision's Normalize in the dataset's transform,
            where it has one.
        as_is: no normalisation is undone.
        decode: returns the text of tokens, which is shown of fields named as in TOKENS; None: they are numbers.
        options: batch_size, shuffle and seed, as of `batch_of`.

    Raises InvalidOption, too, where there is a `decode` and no such field.
    """
    batch = batch_of(given, number, **options)
    if decode is not None:
        shown = _with_texts(batch.value, decode)
        if shown is None:
            raise InvalidOption(f"the batch has no field of tokens: none is named {', '.join(TOKENS)}")
        batch = batch._replace(value=shown)
    dataset = getattr(given, "dataset", given)
    samples = "" if batch.ids is None else f", {counted(len(batch.ids), 'sample')}"
    return contact_sheet(
        batch.value,
        batch.ids,
        listed=batch.listed,
        classes=_of_all_parts(dataset, _classes),
        undo=None if as_is else undo or _of_all_parts(dataset, _normalisation),
        most=most,
        columns=columns,
        title=f"{type(dataset).__name__}: {batch.about}{samples}",
    )


# --- the batch -------------------------------------------------------------------------------------------------------


def batch_of(
    given: Any, number: int = 0, *, batch_size: int | None = None, shuffle: bool = False, seed: int | None = None
) -> Batch:
    """Return a batch of a loader; or samples of a dataset, as it returns them.

    Of a loader with a sampler only the samples of that batch are read, with at most one worker process; an iterable
    dataset, and a loader class that defines __iter__, is read up to that batch.

    Args:
        given: a dataset, a loader, or an object that yields batches.
        number: of the batch in the epoch, from 0 on.
        batch_size, shuffle, seed: of a dataset; a loader has its own. batch_size=None: BATCH_SIZE.

    Raises InvalidOption for options of a loader, for a batch that there is not, and for a sample that fails, by name.
    """
    if number < 0:
        raise InvalidOption(f"the batch is {number}: batches are counted from 0 on")
    dataset = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    try:
        if isinstance(given, IterableDataset) or (dataset and not isinstance(given, torch.utils.data.DataLoader)):
            if not isinstance(given, IterableDataset) and len(given) == 0:
                raise InvalidOption(f"the dataset, a {type(given).__name__}, is empty: it has no batch to show")
            chosen: dict[str, Any] = {"shuffle": shuffle or None, "seed": seed, "collate_fn": list, "num_workers": 0}
            size = BATCH_SIZE if batch_size is None else batch_size
            return _of_loader(DataLoader(given, size, **chosen), number, listed=True)
        if (batch_size, shuffle, seed) != (None, False, None):
            raise InvalidOption(
                f"a {type(given).__name__} has its own batch size, order and seed: they are options of a dataset"
            )
        return _of_loader(given, number)
    except PenstockError:
        raise
    except Exception as error:  # of the user's sampler, dataset or loader
        raise InvalidOption(f"batch {number:,} of a {_name_of(given)} failed: {sentence(error)}") from error


def _of_loader(loader: Any, number: int, *, listed: bool = False) -> Batch:
    """Return a batch of a loader. Raises InvalidOption and what the loader's code raises."""
    about = f"batch {number:,} of a {_name_of(loader)}"
    unbatched = getattr(loader, "_auto_collation", True) is False
    own = DataLoader if isinstance(loader, DataLoader) else torch.utils.data.DataLoader
    if (
        not isinstance(loader, own)
        or isinstance(loader.dataset, IterableDataset)
        or any(getattr(type(loader), step) is not getattr(own, step) for step in ("__iter__", "_get_iterator"))
    ):
        value = _nth(loader, number, loader)
        one = unbatched and not any(getattr(leaf, "ndim", 0) >= 4 for leaf in flat(value).values())
        return Batch([value] if one else value, None, about, listed or one)
    if isinstance(loader, DataLoader) and (key := loader.order_key()) is not None:
        seed, epoch = key
        try:
            ids = tuple(loader.ids(epoch, number))
        except IndexError:
            raise _too_few(loader, number, len(loader)) from None
        return Batch(loader.batch_at(epoch, number), ids, f"{about}, epoch {epoch:,}, seed {seed}", listed)
    given: Any = _nth(loader._index_sampler, number, loader)
    one = not isinstance(given, list | tuple)
    # A loader of only this batch, which reads as the given one does. Its ledger is of the run; its sampler gave this
    # rank's share; host memory is where a picture is made.
    chosen: dict[str, Any] = {"ledger": None, "shard": None, "device": None} if own is DataLoader else {}
    chosen |= {"batch_size": None, "sampler": [given]} if unbatched else {"batch_sampler": [list(given)]}
    value = next(iter(loader_maker(loader, **chosen, num_workers=min(1, loader.num_workers))()))
    ids = tuple(ids_of(loader.dataset, [given] if one else given))
    return Batch([value] if one else value, ids, about, listed or one)


def _nth(values: Iterable[Any], number: int, loader: Any) -> Any:
    """Return a value after all those before it. Raises InvalidOption: there are fewer."""
    count = -1
    for count, value in enumerate(values):
        if count == number:
            return value
    raise _too_few(loader, number, count + 1)


def _too_few(loader: Any, number: int, count: int) -> InvalidOption:
    if not count:
        return InvalidOption(f"a {_name_of(loader)} has no batch to show: its dataset is empty, or drop_last drops all")
    return InvalidOption(f"there is no batch {number:,}: a {_name_of(loader)} has {counted(count, 'batch', 'batches')}")


def sentence(error: BaseException) -> str:
    """Return the type of an error, its message, and Penstock's notes, which name the sample, in one line."""
    lines = said(error).splitlines()
    if lines and lines[0].startswith("Caught "):  # in a worker process, as torch says it: behind its traceback
        return " ".join(lines[max(number for number, line in enumerate(lines) if line[:1] in ("", " ")) + 1 :])
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {' '.join(' '.join(lines).split())}{notes}"


def _name_of(loader: Any) -> str:
    kind = type(loader)
    where = {DataLoader: "penstock.", torch.utils.data.DataLoader: "torch.utils.data."}
    return f"{where.get(kind, '')}{kind.__qualname__}"


def _with_texts(value: Any, decode: Callable[[list[int]], str]) -> Any:
    """Return a batch, or samples, with texts for their tokens; None: they have none. Numbers below 0 are not tokens."""

    def text_of(row: Any) -> Any:
        row = row.tolist() if hasattr(row, "tolist") else row
        if not isinstance(row, list) or not row:
            return None
        if not all(type(one) is int for one in row):
            texts = list(map(text_of, row))
            return None if None in texts else texts
        return decode([one for one in row if one >= 0])

    if isinstance(value, list | tuple):
        samples = [_with_texts(one, decode) for one in value]
        return None if None in samples or not samples else samples
    if not isinstance(value, Mapping):
        return None
    texts = {name: text for name in TOKENS if name in value and (text := text_of(value[name])) is not None}
    return {**value, **texts} if texts else None


# --- what a dataset says of its pictures and labels -------------------------------------------------------------------


def _of_all_parts(dataset: Any, find: Callable[[Any], T | None]) -> T | None:
    """Return what is found in each dataset that the samples come from; None: they differ."""
    try:
        found = {find(source.dataset) for source in source_of(dataset).parts()}
    except Exception:  # a dataset of any kind may raise anything
        return None
    return found.pop() if len(found) == 1 else None


def _classes(dataset: Any) -> tuple[str, ...] | None:
    """Return the names of a dataset's classes by label; None: it has none, or its labels are not their numbers."""
    names = getattr(dataset, "classes", None)
    if names is None:  # a Hugging Face dataset, whose labels are a ClassLabel
        features = getattr(dataset, "features", None) or {}
        names = next((features[name].names for name in LABELS if hasattr(features.get(name), "names")), None)
    if getattr(dataset, "target_transform", None) is not None or not isinstance(names, list | tuple):
        return None
    return tuple(names) if names and all(isinstance(name, str) for name in names) else None


def _normalisation(dataset: Any) -> Normalisation | None:
    """Return the normalisation of a dataset's `transform`: torchvision's Normalize; None: there is not just one."""
    kinds = tuple(classes("Normalize"))
    steps: list[Any] = [step for step in flatten(getattr(dataset, "transform", None)) if isinstance(step, kinds)]
    if len(steps) != 1:
        return None
    mean, std = (
        torch.as_tensor(value, dtype=torch.float64).reshape(-1).tolist() for value in (steps[0].mean, steps[0].std)
    )
    return Normalisation(tuple(mean), tuple(std)) if all(std) else None
