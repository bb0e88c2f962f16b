"""The writing of one shard of a packing, in whatever thread, process or machine: the same bytes everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from penstock.packing.contents import Contents
from penstock.packing.copying import ShardCopier, copies
from penstock.packing.encoding import Encoding
from penstock.packing.finishing import ShardRecord
from penstock.packing.place import After, Place, rows_name, shard_name
from penstock.packing.plan import Plan
from penstock.packing.shard_writer import write_shard


@dataclass(frozen=True)
class ShardWork:
    """What the shards of a packing are written of, and where to. Several threads may write, a shard each."""

    place: Place
    contents: Contents
    encoding: Encoding
    plan: Plan
    stamps: NDArray[np.int64]
    """Size and time of each sample's file, shape (samples, 2)."""

    def samples(self, shard: int) -> range:
        """Return the samples of a shard."""
        return range(self.plan.begins[shard], self.plan.ends[shard])

    @cached_property
    def _id_offsets(self) -> NDArray[np.int64]:
        lengths = np.fromiter(map(len, self.contents.ids), np.int64, self.contents.size) + 1
        return np.concatenate([[0], np.cumsum(lengths)])

    def write(self, shard: int, after: After, attempt: str = "") -> ShardRecord:
        """Write a shard and its rows; the rows get their final name first.

        Args:
            shard: its number.
            after: called after each sample with the bytes that were added, and with none while the shard is sent
                somewhere; may raise to stop.
            attempt: a part of the temporary names: who was given up may still write to the names of its own.

        Raises:
            SampleError, DatasetChanged, OSError: the temporary files are removed then.
        """
        place, plan, contents = self.place, self.plan, self.contents
        name = shard_name(place.split, shard)
        samples, id_offset = self.samples(shard), int(self._id_offsets[plan.begins[shard]])
        with place.draft(name, attempt, after) as descriptor:
            if copies(contents) and not self.encoding.changes:
                copier = ShardCopier(descriptor, contents, self.stamps, labelled=plan.labelled, after=after)
                record = copier.write(name, samples, shard, id_offset=id_offset)
            else:
                encode = partial(self.encoding.encoded, contents)
                record = write_shard(
                    descriptor, name, contents, encode, samples, shard, id_offset=id_offset, labelled=plan.labelled,
                    after=after,
                )  # fmt: skip
            place.write(rows_name(place.split, shard), record.write, attempt)
        return record
