"""What is left of an epoch whose dataset has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.order.permutations import Indices, Order


@dataclass(frozen=True)
class Remainder:
    """What is left of an epoch whose dataset has changed; it has an order of its own."""

    begin: int
    """The first position of the rest."""
    indices: Indices
    """The samples that were not handed out, ascending."""
    past: tuple[Mapping[str, Any], ...]
    """The datasets before the change, in turn: "data", a fingerprint, and "to", the position up to which it held."""

    @property
    def end(self) -> int:
        """Return the number of positions of the epoch."""
        return self.begin + len(self.indices)

    def order(self, among: Callable[[], Order]) -> Order:
        """Return the order of the rest; `among` makes an order of len(indices) positions."""
        return _RemainderOrder(self, among())


class _RemainderOrder:
    def __init__(self, rest: Remainder, among: Order) -> None:
        self._rest = rest
        self._among = among

    def take(self, begin: int, count: int) -> Indices:
        return self._rest.indices[self._among.take(begin - self._rest.begin, count)]
