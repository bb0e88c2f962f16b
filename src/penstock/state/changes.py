"""How a dataset has changed since a state of it was taken: the difference in words, and the samples that are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidOption
from penstock.order.permutations import Indices, Order
from penstock.sources.catalogue import Catalogue
from penstock.system.words import counted

Keys = Indices | list[bytes]


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
    if then.get("labels") != present["labels"] and (text := _of_labels(before, now, same_ids)):
        found.append(text)
    if then.get("sizes") != present["sizes"] and same_ids:
        found.append(_of_sizes(before, now))
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
    catalogues = [then for then, _ in stages] + [now]
    numbers = [each.numbers() for each in catalogues]
    numeric = all(each is not None for each in numbers)
    keys: list[Any] = numbers if numeric else [each.texts() for each in catalogues]
    handed: Any = np.empty(0, np.int64) if numeric else []
    begin = 0
    for stage, (then, end) in enumerate(stages):
        left = _without(keys[stage], handed) if stage else np.arange(then.size, dtype=np.int64)
        if not begin <= end <= begin + len(left):
            raise InvalidOption(f"a state at position {end:,} of an epoch of {counted(begin + len(left), 'sample')}")
        done = left[order(stage, len(left)).take(0, end - begin)]
        if numeric:
            handed = np.concatenate([handed, keys[stage][done]])
        else:
            handed += [keys[stage][index] for index in done.tolist()]
        begin = end
    return _without(keys[-1], handed)


def _without(keys: Keys, handed: Keys) -> Indices:
    """Return the indices of the keys but those handed out, one for each time that the key was."""
    if isinstance(keys, np.ndarray):
        return np.flatnonzero(np.isin(keys, np.asarray(handed), invert=True)).astype(np.int64, copy=False)
    times = Counter(handed)
    left = []
    for index, key in enumerate(keys):
        if times.get(key):
            times[key] -= 1
        else:
            left.append(index)
    return np.array(left, np.int64)


def _of_ids(before: Catalogue, now: Catalogue) -> str:
    then, present = before.numbers(), now.numbers()
    if then is not None and present is not None:
        common = int(np.isin(present, then).sum())
    else:
        common = (Counter(before.texts()) & Counter(now.texts())).total()
    fresh, gone = now.size - common, before.size - common
    if not fresh and not gone:
        return "its IDs are the same, in another order"
    return f"{fresh:,} {'ID is' if fresh == 1 else 'IDs are'} new, {gone:,} {'is' if gone == 1 else 'are'} gone"


def _of_labels(before: Catalogue | None, now: Catalogue, same_ids: bool) -> str | None:
    """Return how labels differ, of IDs that the dataset had before; None where they do not."""
    if now.labels is None:
        return "it has no labels that can be compared any more"
    if before is None or before.labels is None:
        return "its labels are others" if same_ids else None
    if same_ids:
        common, other = len(now.labels), int((before.labels != now.labels).sum())
    else:
        known = dict(zip(before.texts(), before.labels.tolist(), strict=True))
        pairs = zip(now.texts(), now.labels.tolist(), strict=True)
        same = [known[name] == label for name, label in pairs if name in known]
        common, other = len(same), same.count(False)
    return (
        f"{other:,} of {counted(common, 'sample')} {'has' if other == 1 else 'have'} another label" if other else None
    )


def _of_sizes(before: Catalogue | None, now: Catalogue) -> str:
    if before is None or len(before.sizes) != len(now.sizes):
        return "its samples have other sizes"
    other = int((before.sizes != now.sizes).sum())
    return f"{other:,} of the {len(now.sizes):,} sizes that are looked at {'differs' if other == 1 else 'differ'}"
