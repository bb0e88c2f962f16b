"""The device of a loader: what it does of the plan (keeping data, decoding, arithmetic), and how batches come to it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from penstock.device import resident
from penstock.device.arithmetic import Arithmetic
from penstock.device.copy_stream import CopyStream, copy_stream_to
from penstock.device.decoders import Decoder, decoder_for
from penstock.device.decoding import DecodingCarrier, decoding_carrier, refusal
from penstock.device.feed import Feed
from penstock.device.feeding import Feeding, Sender, at_hand_of, reads_here
from penstock.errors import InvalidOption
from penstock.passes.iterator import open_pass
from penstock.passes.job import Open
from penstock.plan import NativePlan, Plan
from penstock.settings import Settings
from penstock.stats import Counters
from penstock.system.modes import outside_inference


class Target:
    """The device of a loader, and what is found out about it for all passes. Not picklable."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._decoder: Decoder | InvalidOption | None = None  # found, or why there is none

    @property
    def sends(self) -> bool:
        """Whether batches are copied to it on a stream of their own."""
        return self.device.type not in ("cpu", "mps")

    def copy_stream(self) -> CopyStream | None:
        """Return a new copy stream to the device; None where plain copies reach it."""
        return copy_stream_to(self.device)

    def current(self, stream: CopyStream | None) -> AbstractContextManager[Any]:
        return nullcontext() if stream is None else stream.current()

    @outside_inference()  # what stays on the device outlives the mode
    def prepare(self, feed: Feed, plan: Plan, stream: CopyStream | None, *, replaces: bool) -> Open | None:
        """Return what opens a pass whose batches are made on the device; None: the host makes them.

        replaces: bad samples are replaced. Raises InvalidOption where decode="gpu", and nothing is installed that can.
        """
        if stream is None or not isinstance(plan, NativePlan):
            return None
        if feed.cache is not None:
            held = resident.hold(plan, self.device)
            if isinstance(held, resident.ResidentPlan):
                return partial(open_pass, resident.resident_carrier(held, stream, feed))
        decoder = self._decoding(feed, plan, replaces)
        return None if decoder is None else partial(open_pass, decoding_carrier(decoder, self.device, stream))

    @staticmethod
    def arithmetic(plan: Plan) -> Arithmetic | None:
        """Return what is left to the device of what the plan's recipe does, or None."""
        table = plan.table if isinstance(plan, NativePlan) else None
        return None if table is None else Arithmetic(table)

    def explain(self, feed: Feed, plan: Plan, *, replaces: bool) -> Iterator[str]:
        """Yield what the device does of what the Feed asks, and why not the rest, for explain()."""
        if feed.cache is not None:
            if not self.sends:
                yield "cache    the data stays in host memory: there is no accelerator"
            elif not isinstance(plan, NativePlan):
                yield "cache    the data stays on the host: Python reads it"
            else:
                yield resident.explain(plan, self.device)
        if feed.decode == "cpu":
            return
        why = refusal(plan, replaces=replaces)
        if not self.sends:
            yield "decode   on the CPU: there is no accelerator"
        elif why is not None:
            yield f"decode   on the CPU: {why.why}; on the device with {why.remedy}"
        elif (decoder := self._decoding(feed, plan, replaces)) is not None:
            done = "crop, resize and flip there too, close to Pillow's pixels"
            yield f"decode   on the device, by {decoder.name}; {done}"
        else:
            yield f"decode   on the CPU: {self._decoder}"

    def _decoding(self, feed: Feed, plan: Plan, replaces: bool) -> Decoder | None:
        """Return what decodes the plan's images on the device, or None. Raises InvalidOption."""
        if feed.decode == "cpu" or refusal(plan, replaces=replaces) is not None:
            return None
        if self._decoder is None:
            try:
                self._decoder = decoder_for(self.device)
            except InvalidOption as error:
                self._decoder = error
        if not isinstance(self._decoder, InvalidOption):
            return self._decoder
        if feed.decode == "gpu":
            raise self._decoder
        return None


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
        self._target = None if feed is None else self._target_of(feed)
        return self._target

    def _target_of(self, feed: Feed) -> Target:
        device = feed.resolve()
        return self._target if self._target is not None and self._target.device == device else Target(device)

    def feeding(
        self,
        batches: Any,
        feed: Feed,
        target: Target,
        stream: CopyStream | None,
        settings: Settings,
        plan: Plan,
        counters: Counters,
    ) -> Feeding[Any]:
        """Return the pass that brings batches to the device. counters: of the loader."""
        end = getattr(batches, "_shutdown_workers", None)
        at_hand = at_hand_of(batches, settings.num_workers, pinned=True) or reads_here
        decodes = isinstance(getattr(batches, "carrier", None), DecodingCarrier)  # which takes its thread a while
        made: Feeding[Any] = Feeding(
            batches,
            feed,
            target.device,
            stream,
            arithmetic=target.arithmetic(plan),
            at_hand=None if decodes and settings.num_workers else at_hand,
            end_source=None if settings.persistent_workers else end,
            counters=counters,
        )
        self._sender = made.sender if settings.persistent_workers else None
        return made

    def explain(self, feed: Feed, plan: Plan, *, replaces: bool) -> Iterator[str]:
        """Yield what explain() says of the device.

        plan: of the loader, of raw pixels where those are sent; replaces: bad samples are replaced.
        """
        target = self._quietly(feed)
        if target.sends:
            ahead = f"{feed.depth} batch{'es' * (feed.depth > 1)} ahead"
            way = f"one copy a field, from page-locked memory, on a separate stream, {ahead}"
        else:
            way = "batches stay in host memory" if target.device.type == "cpu" else "by plain copies"
        yield f"device   {target.device}: {way}"
        yield from target.explain(feed, plan, replaces=replaces)

    def sends(self, feed: Feed) -> bool:
        """Return whether a pass that began now would send its batches to an accelerator."""
        return self._quietly(feed).sends

    def _quietly(self, feed: Feed) -> Target:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a device that is not there: the pass says it
            return self._target_of(feed)
