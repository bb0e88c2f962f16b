"""States of a stream on their way from a worker: pickled, and the rows of each shuffle buffer sent once."""

from __future__ import annotations

import itertools
import pickle
import sys
from functools import cached_property
from io import BytesIO
from typing import Any

import numpy as np
import torch

from penstock.errors import InvalidOption
from penstock.state.samplers import encoded


class PackedState:
    """A state, pickled: what each batch of a worker brings with it.

    Args:
        kept: the rows of shuffle buffers that it holds, by their numbers; None: an earlier state has brought them.
        sent: the numbers of those that were pickled last, which are not pickled again; None: all are.
    """

    def __init__(self, data: bytes, kept: dict[int, bytes | None], sent: set[int] | None = None) -> None:
        self.data, self.kept, self._sent = data, kept, sent

    def __deepcopy__(self, memo: object) -> PackedState:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        kept, sent = self.kept, self._sent
        if sent is not None:  # it comes here when the batch before it in the message could be pickled
            kept = {number: None if number in sent else rows for number, rows in kept.items()}
            sent.clear()
            sent.update(kept)
        return PackedState, (self.data, kept)

    @classmethod
    def of(cls, state: Any, sent: set[int] | None) -> PackedState:
        file = BytesIO()
        pickler = _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL)
        pickler.dump(state)
        return cls(file.getvalue(), pickler.kept, sent)

    def filled(self, before: PackedState | None) -> PackedState:
        """Return this with the rows that an earlier state of the same stream has brought."""
        known = {} if before is None else before.kept
        return PackedState(self.data, {number: rows or known.get(number) for number, rows in self.kept.items()})

    def plain(self) -> Any:
        """Return the state as numbers, texts, lists and dictionaries; rows are what the pipeline makes of them."""
        if None in self.kept.values():
            raise InvalidOption("the state of a worker is not known: the batch that brought it could not be read")
        return _Unpickler(self).load()


class _Pickler(pickle.Pickler):
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.kept: dict[int, bytes | None] = {}

    def persistent_id(self, value: Any) -> int | None:
        if type(value) is not KeptRows:
            return None
        self.kept[value.number] = value.packed
        return value.number


class _Unpickler(pickle.Unpickler):
    def __init__(self, state: PackedState) -> None:
        super().__init__(BytesIO(state.data))
        self._kept = state.kept

    def persistent_load(self, number: Any) -> Any:
        return pickle.loads(self._kept[number] or b"")


class KeptRows:
    """The rows that a shuffle buffer holds when it begins to be refilled. Nobody changes them.

    rows: their positions, an array; a table of Arrow's; a tuple of examples; or what a state holds of any of these.
    """

    _numbers = itertools.count()

    def __init__(self, rows: Any) -> None:
        self._rows, self.number = rows, next(KeptRows._numbers)

    def __deepcopy__(self, memo: object) -> KeptRows:
        return self

    @cached_property
    def packed(self) -> bytes:
        rows = self._rows
        if isinstance(rows, dict):
            found = rows
        elif isinstance(rows, np.ndarray):
            found = {"positions": encoded(torch.from_numpy(rows).view(torch.uint8)), "rows": len(rows)}
        elif isinstance(rows, tuple):
            found = {"examples": [example for _, example in rows]}
        else:
            sink = sys.modules["pyarrow"].BufferOutputStream()
            with sys.modules["pyarrow"].ipc.new_stream(sink, rows.schema) as writer:
                writer.write_table(rows)
            found = {"table": sink.getvalue().to_pybytes()}
        return pickle.dumps(found)

    def plain(self) -> dict[str, Any]:
        """Return what a state holds of the rows."""
        found: dict[str, Any] = pickle.loads(self.packed)
        return found


def with_kept_rows(state: Any) -> Any:
    """Return a copy of a state that was loaded, with what it holds of rows as `KeptRows`."""
    if isinstance(state, list):
        return [with_kept_rows(part) for part in state]
    if not isinstance(state, dict):
        return state
    return {
        name: KeptRows(part) if name == "kept" and isinstance(part, dict) else with_kept_rows(part)
        for name, part in state.items()
    }
