"""Which samples came, and where: each once. And how a check fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import NoReturn


def fail(message: str) -> NoReturn:
    """Raise AssertionError; pytest does not show this frame."""
    __tracebackhide__ = True
    raise AssertionError(message)


class Tally:
    """Which samples came, and where.

    Args:
        subject: what messages begin with.
        repeats: the order holds samples more than once by design.
    """

    def __init__(self, subject: str, *, repeats: bool = False) -> None:
        self._subject = subject
        self._repeats = repeats
        self.wanted: Counter[Hashable] = Counter()
        self._names: dict[Hashable, str | None] = {}
        self._due: dict[Hashable, str] = {}
        self._came: dict[Hashable, list[str]] = {}

    def expect(
        self, names: Mapping[Hashable, str | None], due: Mapping[Hashable, str], keys: Iterable[Hashable]
    ) -> None:
        """Expect a sample for each key. names, due: what messages call a sample, and where it is to come, by key."""
        self.wanted.update(list(keys))
        self._names.update(names)
        self._due.update(due)

    def add(self, keys: Iterable[Hashable], where: str) -> None:
        for key in keys:
            self._came.setdefault(key, []).append(where)

    def check(self, count: int, spare: int = 0) -> None:
        """Fail unless so many samples came, each once, and no more than `spare` that were not expected."""
        for key, places in self._came.items():
            if len(places) > max(1, self.wanted[key]) + (spare if self._repeats else 0):
                fail(f"{self._subject}: {self._say(key)} came {len(places)} times: {'; '.join(places)}")
        strange = [key for key in self._came if key not in self.wanted]
        if len(strange) > spare:
            key = strange[0]
            fail(f"{self._subject}: {self._say(key)} is none that should have come: {self._came[key][0]}")
        came = sum(map(len, self._came.values()))
        missing = [key for key, times in self.wanted.items() if len(self._came.get(key, ())) < times]
        if came != count:
            one = f"; {self._say(missing[0])} did not come" if missing else ""
            due = f" ({self._due[missing[0]]})" if missing and missing[0] in self._due else ""
            fail(f"{self._subject}: {came} samples came, {count} should have{one}{due}")

    def _say(self, key: Hashable) -> str:
        name = self._names.get(key)
        if name is not None:
            return f"sample {name}"
        return "a sample" if isinstance(key, bytes) else f"sample {key!r}"
