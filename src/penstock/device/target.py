"""The device of a loader: what it does of the plan (keeping data, decoding, arithmetic), and how batches come to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from penstock.device import resident
from penstock.device.copy_stream import CopyStream, copy_stream_to
from penstock.device.decoders import Decoder, decoder_for
from penstock.device.decoding import DecodingExecutor, refusal
from penstock.device.feed import Feed
from penstock.device.moving import Arithmetic
from penstock.errors import InvalidOption
from penstock.executors.job import Executor
from penstock.plan import NativePlan, Plan
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
    def prepare(self, feed: Feed, plan: Plan, stream: CopyStream | None, *, replaces: bool) -> Executor | None:
        """Return what makes the batches of the pass that begins on the device; None: the host makes them.

        replaces: bad samples are replaced. Raises InvalidOption where decode="gpu", and nothing is installed that can.
        """
        if stream is None or not isinstance(plan, NativePlan):
            return None
        if feed.cache is not None:
            held = resident.hold(plan, self.device)
            if isinstance(held, resident.ResidentPlan):
                return resident.ResidentExecutor(held, stream)
        decoder = self._decoding(feed, plan, replaces)
        return None if decoder is None else DecodingExecutor(decoder, self.device, stream)

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
