"""How a loader's batches come to its device, pass after pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from penstock.device.copy_stream import CopyStream
from penstock.device.feed import Feed, explain_feed
from penstock.device.feeding import Feeding, Sender
from penstock.device.target import Target
from penstock.plan import Plan
from penstock.settings import Settings


class DeviceFeed:
    """Finds the device of a loader when a pass begins, and makes the pass that brings batches to it. Not picklable."""

    def __init__(self) -> None:
        self._target: Target | None = None  # of the latest pass
        self._sender: Sender | None = None  # of the pass that uses an iterator which the loader keeps

    def begin(self, feed: Feed | None) -> Target | None:
        """Return the device of the pass that begins, None where batches stay in host memory; end the pass before.

        Raises InvalidOption.
        """
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.release()
        self._target = self._target_of(feed)
        return self._target

    def _target_of(self, feed: Feed | None) -> Target | None:
        device = None if feed is None else feed.resolve()
        if device is None:
            return None
        return self._target if self._target is not None and self._target.device == device else Target(device)

    def feeding(
        self, batches: Any, feed: Feed, target: Target, stream: CopyStream | None, settings: Settings, plan: Plan
    ) -> Feeding[Any]:
        """Return the pass that brings batches to the device."""
        end = getattr(batches, "_shutdown_workers", None)
        feeding: Feeding[Any] = Feeding(
            batches,
            feed,
            target.device,
            stream,
            arithmetic=target.arithmetic(plan),
            in_thread=settings.num_workers > 0,
            end_source=None if settings.persistent_workers else end,
        )
        self._sender = feeding.sender if settings.persistent_workers else None
        return feeding

    def explain(self, feed: Feed | None, plan: Plan) -> Iterator[str]:
        """Yield what explain() says of the device. plan: of the loader, of raw pixels where those are sent."""
        target = self._quietly(feed)
        if feed is not None and target is not None:
            yield explain_feed(feed, target.device)
            yield from target.explain(feed, plan)

    def sends(self, feed: Feed | None) -> bool:
        """Return whether a pass that began now would send its batches to an accelerator."""
        target = self._quietly(feed)
        return target is not None and target.sends

    def _quietly(self, feed: Feed | None) -> Target | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a device that is not there: the pass says it
            return self._target_of(feed)
