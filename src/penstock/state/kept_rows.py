"""The rows that a shuffle buffer holds, as a part of a stream's state: a worker sends them once."""

from __future__ import annotations

import pickle
import sys
import uuid
from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import torch

from penstock.errors import InvalidOption
from penstock.state.samplers import decoded, encoded


class KeptRows:
    """The rows that a shuffle buffer holds when it begins to be refilled. Nobody changes them.

    A worker sends a state with each batch. The rows are in the first one that is sent with them; the process that
    receives it keeps them as long as it has a state that holds them.

    Args:
        rows: their positions, an array; a table of Arrow's; a tuple of examples; or what a state holds of any of these.
        brief: they are pickled only the first time.
    """

    _received: ClassVar[WeakValueDictionary[str, KeptRows]] = WeakValueDictionary()

    def __init__(self, rows: Any, *, brief: bool) -> None:
        self._rows, self._brief, self._sent = rows, brief, False
        self._packed: bytes | None = None
        self._number = uuid.uuid4().hex

    def __deepcopy__(self, memo: object) -> KeptRows:
        self._pack()  # what the program does later to an example does not reach the state
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        packed = None if self._sent else self._pack()
        self._sent = self._brief  # it comes here when the batch before it in the message could be pickled
        return KeptRows._of, (self._number, packed)

    @classmethod
    def _of(cls, number: str, packed: bytes | None) -> KeptRows:
        """Return the rows of a message."""
        if packed is None and (known := cls._received.get(number)) is not None:
            return known
        made = cls(None, brief=False)
        made._number, made._packed = number, packed
        cls._received[number] = made
        return made

    def _pack(self) -> bytes | None:
        """Return the rows as they are sent; None: the batch that brought them could not be read."""
        rows, self._rows = self._rows, None
        if rows is None:
            return self._packed
        if isinstance(rows, dict):
            found = rows
        elif isinstance(rows, np.ndarray):
            found = {"positions": encoded(torch.tensor(rows).view(torch.uint8)), "rows": len(rows)}
        elif isinstance(rows, tuple):
            found = {"examples": [example for _, example in rows]}
        else:
            sink = sys.modules["pyarrow"].BufferOutputStream()
            with sys.modules["pyarrow"].ipc.new_stream(sink, rows.schema) as writer:
                writer.write_table(rows)
            found = {"table": sink.getvalue().to_pybytes()}
        self._packed = pickle.dumps(found)
        return self._packed

    def plain(self) -> dict[str, Any]:
        """Return what a loader's state holds of the rows. Raises InvalidOption."""
        packed = self._pack()
        if packed is None:
            raise InvalidOption("the state of a worker is not known: the batch that brought it could not be read")
        found: dict[str, Any] = pickle.loads(packed)
        return found


def positions_of(kept: dict[str, Any]) -> Any:
    """Return the positions that a state holds in the place of rows."""
    if not kept["rows"]:
        return np.empty(0, np.int64)
    return decoded(kept["positions"], most=8 * kept["rows"]).numpy().view(np.int64)


def with_kept_rows(state: Any, *, brief: bool) -> Any:
    """Return a copy of a state that was loaded, with what it holds of rows as `KeptRows`."""
    return _copied(state, lambda part: KeptRows(part, brief=brief) if isinstance(part, dict) else part)


def with_plain_rows(state: Any) -> Any:
    """Return a copy of a state that consists of numbers, texts, lists and dictionaries."""
    return _copied(state, lambda part: part.plain() if isinstance(part, KeptRows) else part)


def _copied(state: Any, of_kept: Callable[[Any], Any]) -> Any:
    """Return a copy of a state, with what of_kept() makes of each part that is named "kept"."""
    if isinstance(state, list):
        return [_copied(part, of_kept) for part in state]
    if not isinstance(state, dict):
        return state
    return {name: of_kept(part) if name == "kept" else _copied(part, of_kept) for name, part in state.items()}
