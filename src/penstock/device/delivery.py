"""How a loader's batches come to its device, pass after pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from penstock.device.feed import Feed, explain_feed
from penstock.device.feeding import Feeding, KeptIterator
from penstock.device.lane import Lane
from penstock.device.station import Station
from penstock.plan import Plan
from penstock.settings import Settings


class Delivery:
    """The device of a loader, found when a pass begins, and the pass that uses it. Not picklable."""

    def __init__(self) -> None:
        self.station: Station | None = None
        """Where the batches of the latest pass went."""
        self._kept = KeptIterator()

    def begin(self, feed: Feed | None) -> Station | None:
        """Return the device of the pass that begins, None where batches stay in host memory; end the pass before.

        Raises InvalidOption.
        """
        self._kept.take_back()
        self.station = self.station_of(feed)
        return self.station

    def station_of(self, feed: Feed | None) -> Station | None:
        """Return the device that a pass would go to now. Raises InvalidOption."""
        device = None if feed is None else feed.resolve()
        if device is None:
            return None
        return self.station if self.station is not None and self.station.device == device else Station(device)

    def feeding(
        self, batches: Any, feed: Feed, station: Station, lane: Lane | None, settings: Settings, plan: Plan
    ) -> Feeding[Any]:
        """Return the pass that brings batches to the device."""
        end = getattr(batches, "_shutdown_workers", None)
        feeding: Feeding[Any] = Feeding(
            batches,
            feed,
            station.device,
            lane,
            finish=station.finish(plan),
            in_thread=settings.num_workers > 0,
            end_source=None if settings.persistent_workers else end,
        )
        if settings.persistent_workers:
            self._kept.lend(feeding)
        return feeding

    def explain(self, feed: Feed | None, plan: Plan) -> Iterator[str]:
        """Yield what explain() says of the device. plan: of the loader, with raw pixels where those are sent."""
        station = self._quietly(feed)
        if feed is not None and station is not None:
            yield explain_feed(feed, station.device)
            yield from station.told(feed, plan)

    def sends(self, feed: Feed | None) -> bool:
        """Return whether a pass that began now would send its batches to an accelerator."""
        station = self._quietly(feed)
        return station is not None and station.sends

    def _quietly(self, feed: Feed | None) -> Station | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a device that is not there: the pass says it
            return self.station_of(feed)
