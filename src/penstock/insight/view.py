"""`penstock view`: the contact sheet of a batch of a dataset or loader."""

from __future__ import annotations

from typing import Any

from penstock.insight.batches import Options, batch_of
from penstock.insight.cells import Sheet
from penstock.insight.knowledge import classes_of, normalisation_of
from penstock.insight.pictures import Normalisation
from penstock.insight.sheet import MOST, contact_sheet
from penstock.system.words import counted


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
    """Return the contact sheet of a batch, read as the loader reads it.

    Args:
        given: a dataset, a loader, or an object that yields batches.
        number: of the batch in the epoch, from 0 on.
        options: how a dataset is batched.
        undo: the normalisation of the pictures; None: that of torchvision's Normalize at the end of the dataset's
            transform, where it has one.
        as_is: no normalisation is undone.
        most: samples of the sheet at most.
        columns: samples in a row; None: about as many as rows.

    Raises: as `batch_of` and `contact_sheet`.
    """
    batch = batch_of(given, number, options)
    dataset = getattr(given, "dataset", given)
    if as_is:
        undo = None
    elif undo is None:
        undo = normalisation_of(dataset)
    samples = "" if batch.ids is None else f", {counted(len(batch.ids), 'sample')}"
    return contact_sheet(
        batch.value,
        batch.ids,
        form=batch.form,
        classes=classes_of(dataset),
        undo=undo,
        most=most,
        columns=columns,
        title=f"{type(dataset).__name__}: {batch.about}{samples}",
        notes=batch.notes,
    )
