"""Which samples came, and where: each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from penstock.testing.failing import fail


class Tally:
    """Which samples came, and where.

    Args:
        told: what messages begin with.
        repeats: the order holds samples more than once by design.
    """

    def __init__(self, told: str, *, repeats: bool = False) -> None:
        self._told = told
        self._repeats = repeats
        self.wanted: Counter[Hashable] = Counter()
        self._names: dict[Hashable, str | None] = {}
        self._due: dict[Hashable, str] = {}
        self._came: dict[Hashable, list[str]] = {}

    def expect(
        self, names: Mapping[Hashable, str | None], due: Mapping[Hashable, str], keys: Iterable[Hashable] | None = None
    ) -> None:
        """Expect samples: each of the names, or as often as the keys have it."""
        self.wanted.update(list(names) if keys is None else keys)
        self._names.update(names)
        self._due.update(due)

    def add(self, keys: Iterable[Hashable], where: str) -> None:
        for key in keys:
            self._came.setdefault(key, []).append(where)

    def check(self, count: int, spare: int = 0) -> None:
        """Fail unless so many samples came, each once, and no more than `spare` that were not expected."""
        for key, places in self._came.items():
            if len(places) > max(1, self.wanted[key]) + (spare if self._repeats else 0):
                fail(f"{self._told}: {self._say(key)} came {len(places)} times: {'; '.join(places)}")
        strange = [key for key in self._came if key not in self.wanted]
        if len(strange) > spare:
            key = strange[0]
            fail(f"{self._told}: {self._say(key)} is none that should have come: {self._came[key][0]}")
        came = sum(map(len, self._came.values()))
        missing = [key for key, times in self.wanted.items() if len(self._came.get(key, ())) < times]
        if came != count:
            one = f"; {self._say(missing[0])} did not come" if missing else ""
            due = f" ({self._due[missing[0]]})" if missing and missing[0] in self._due else ""
            fail(f"{self._told}: {came} samples came, {count} should have{one}{due}")

    def _say(self, key: Hashable) -> str:
        name = self._names.get(key)
        if name is not None:
            return f"sample {name}"
        return "a sample" if isinstance(key, bytes) else f"sample {key!r}"
