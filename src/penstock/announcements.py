"""Listeners for loaders: the loader's module announces them here, and imports none of the listeners above it."""

from __future__ import annotations

from typing import Any, Protocol


class Listener(Protocol):
    """Is told of each penstock.DataLoader of this process."""

    def made(self, loader: Any) -> None:
        """Take note of a loader that was made here, or that has come from another process."""

    def copied(self, loader: Any) -> None:
        """Take note that Accelerate is to build a loader from the attributes of this one. Raises InvalidOption."""


#: penstock.frameworks enters its own when `import penstock` imports it.
listeners: list[Listener] = []


def made(loader: Any) -> None:
    """Announce a loader that was made here, or that has come from another process."""
    for listener in listeners:
        listener.made(loader)


def copied(loader: Any) -> None:
    """Announce that Accelerate is to build a loader from the attributes of this one. Raises InvalidOption."""
    for listener in listeners:
        listener.copied(loader)
