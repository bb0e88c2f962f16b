"""The batches of a Table as default_collate makes them, of its columns at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.tables.column import NotGathered
from penstock.tables.hugging_face import reading_of
from penstock.tables.table import Table

if TYPE_CHECKING:
    from penstock.indexing.batches import Reading

_modes = torch._C._len_torch_function_stack  # a default device is one


def collated_table(table: Table, index: int) -> Reading:
    """Return what gathers the batches of a Table whose row groups all are mapped; index: see `reading_of`.

    Raises NotGathered, and what its samples raise.
    """
    if table.in_blocks or table.transform is not None or table.image is not None:
        raise NotGathered("its row groups come one by one, or a transform is called with each sample")
    return reading_of(table, table.row_groups.whole(), index, Table.collated, lambda now: now.row_groups.unchanged())


@dataclass(frozen=True, eq=False)
class GatheredBatch:
    """A batch of a table, collated. Its samples are made where something else than default_collate asks for them."""

    batch: Callable[[], Any]
    samples: Callable[[], list[Any]]


class TableBatches:
    """Gathers the batches of a Table for a Worker, in any number of threads: its row groups come one by one.

    Columns of numbers and texts only, of which a batch is made of parts of several row groups.
    """

    unseen = True

    def __init__(self, table: Table) -> None:
        self._table = table

    def fill(self, task: Any, *_: Any) -> GatheredBatch | None:
        """Return the batch of a task; None: its samples are collated one by one. Raises CorruptSample, StorageError."""
        given = task.given
        if not set(map(type, given)) <= {int, np.int64} or _modes():
            return None
        try:
            made = self._table.collated(np.array(given, np.int64))
        except PenstockError:
            raise
        except Exception:  # default_collate raises it
            return None
        return GatheredBatch(lambda: made, lambda: list(map(self._table.__getitem__, given)))

    def of(self, table: Table) -> TableBatches:
        return TableBatches(table)


def batches_of(table: Any) -> TableBatches | None:
    """Return what gathers the batches of a Table in workers; None: its samples are collated."""
    whole = type(table) is Table and table.in_blocks and table.transform is None and table.image is None
    return TableBatches(table) if whole and table.joins else None
