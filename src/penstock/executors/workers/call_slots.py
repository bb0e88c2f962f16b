"""The calls that a worker process counts, in memory that it shares with its parent.

Each worker has a table of slots of a fixed size: a number of calls, the length of a text, and the text, which names the
function, the reason and an example. A slot is in use once its number is not 0, and its text never changes then. What
finds no free slot is not counted.

Processes: `SlotCalls` is a worker's, `read_slots` is called in the parent.
"""

from __future__ import annotations

import mmap
import struct
import threading

from penstock.call_counts import CallRow, kept_reason, shortened

#: Slots of a worker.
SLOTS = 24
#: Bytes of a slot.
SLOT = 168
#: Bytes of a worker's table.
TABLE = SLOTS * SLOT
_CALLS = struct.Struct("=q")
_LENGTH = struct.Struct("=q")
_TEXT_AT = _CALLS.size + _LENGTH.size
_TEXT_MAX = SLOT - _TEXT_AT
_BETWEEN = "\0"
_NO_SLOT = -1


class SlotCalls:
    """Counts the calls of a worker process in its table, so that the parent knows of them even after its death."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._memory = memory
        self._offset = offset
        self._used = 0
        self._lock = threading.Lock()
        self._counts = memoryview(memory)[offset : offset + TABLE].cast("q")
        # The number of a slot's count among the 8-byte words of the table, or _NO_SLOT:
        self._answers: dict[str, int] = {}
        self._slots: dict[tuple[str, str], int] = {}  # of refused calls, by function and reason

    def answer(self, function: str) -> None:
        """Count a call that was answered natively."""
        at = self._answers.get(function)
        if at is None:
            at = self._answers[function] = self._new(function, "", "")
        if at >= 0:
            self._counts[at] += 1

    def refuse(self, function: str, reason: str, example: str) -> None:
        """Count a call that the original function does."""
        at = self._slots.get((function, reason))
        if at is None:
            _, kept = kept_reason(self._slots, function, reason)
            at = self._slots.get((function, kept))
            if at is None:
                at = self._slots[function, kept] = self._new(function, kept, shortened(example))
        if at >= 0:
            self._counts[at] += 1

    def _new(self, function: str, reason: str, example: str) -> int:
        """Write the text of the next slot, and return where its count is."""
        with self._lock:  # the user's code may have started threads
            number = self._used
            if number == SLOTS:
                return _NO_SLOT
            self._used += 1
        text = _BETWEEN.join((function, reason, example)).encode(errors="replace")[:_TEXT_MAX]
        begin = self._offset + number * SLOT
        self._memory[begin + _TEXT_AT : begin + _TEXT_AT + len(text)] = text
        _LENGTH.pack_into(self._memory, begin + _CALLS.size, len(text))
        return number * SLOT // _CALLS.size


def read_slots(memory: mmap.mmap, offset: int) -> list[CallRow]:
    """Return what a worker has counted in the table at an offset."""
    found = []
    for begin in range(offset, offset + TABLE, SLOT):
        (calls,) = _CALLS.unpack_from(memory, begin)
        if not calls:
            continue
        (length,) = _LENGTH.unpack_from(memory, begin + _CALLS.size)
        text = memory[begin + _TEXT_AT : begin + _TEXT_AT + length].decode(errors="replace")
        function, reason, example = [*text.split(_BETWEEN), "", ""][:3]
        found.append(CallRow(function, reason, calls, example))
    return found
