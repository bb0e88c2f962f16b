"""How a dataset has changed since a state of it was taken: the difference in words, and the samples that are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidOption
from penstock.order.permutations import Indices, Order
from penstock.sources.catalogue import Catalogue
from penstock.system.words import counted


def differences(then: Mapping[str, Any], before: Catalogue | None, now: Catalogue) -> str | None:
    """Return in words how a dataset differs from what it was, or None.

    Args:
        then: the fingerprint that it had.
        before: the catalogue that it had, where one is kept; numbers need it.
        now: its catalogue.
    """
    present = now.fingerprint
    found = []
    if then.get("size") != present["size"]:
        had, has = then.get("size") or 0, present["size"]
        found.append(f"it had {counted(had, 'sample')} and has {has:,} ({has - had:+,})")
    same_ids = then.get("ids") == present["ids"] and not found
    if then.get("ids") != present["ids"]:
        found.append(_of_ids(before, now) if before is not None else "its IDs, or their order, are others")
    if then.get("labels") != present["labels"] and same_ids:
        found.append(_of_values("labels", None if before is None else before.labels, now.labels))
    if then.get("sizes") != present["sizes"] and same_ids:
        found.append(_of_values("sizes", None if before is None else before.sizes, now.sizes))
    return "; ".join(found) or None


def remaining(stages: Sequence[tuple[Catalogue, int]], now: Catalogue, order: Callable[[int, int], Order]) -> Indices:
    """Return the indices of the samples that an epoch has not handed out, ascending: each ID as often as it is left.

    Args:
        stages: each earlier catalogue of the dataset, and the position of the epoch at which the dataset changed.
        now: the present catalogue.
        order: returns the order of (number of the stage, samples that were left at its beginning).

    Raises:
        InvalidOption: a stage is longer than its dataset was.
    """
    handed: Counter[bytes] = Counter()
    begin = 0
    for stage, (then, end) in enumerate(stages):
        keys = then.texts()
        left = _without(keys, handed)
        if not begin <= end <= begin + len(left):
            raise InvalidOption(f"a state at position {end:,} of an epoch of {counted(begin + len(left), 'sample')}")
        done = left[order(stage, len(left)).take(0, end - begin)]
        handed.update(keys[index] for index in done.tolist())
        begin = end
    return _without(now.texts(), handed)


def _without(keys: list[bytes], handed: Counter[bytes]) -> Indices:
    """Return the indices of the keys but those handed out, one for each time that the key was."""
    times = handed.copy()
    left = []
    for index, key in enumerate(keys):
        if times[key]:
            times[key] -= 1
        else:
            left.append(index)
    return np.array(left, np.int64)


def _of_ids(before: Catalogue, now: Catalogue) -> str:
    common = (Counter(before.texts()) & Counter(now.texts())).total()
    fresh, gone = now.size - common, before.size - common
    if not fresh and not gone:
        return "its IDs are the same, in another order"
    return f"{fresh:,} {'ID is' if fresh == 1 else 'IDs are'} new, {gone:,} {'is' if gone == 1 else 'are'} gone"


def _of_values(what: str, before: NDArray[Any] | None, now: NDArray[Any] | None) -> str:
    if before is None or now is None or len(before) != len(now):
        return f"its {what} are others"
    return f"{int((before != now).sum()):,} of its {len(now):,} {what} are others"
