"""Files read ahead for a decoder on the device; Pillow decodes those that it is not trusted with.

Python threads take the files, which the native core reads or finds in a cache.
"""

from __future__ import annotations

import math
import os
import queue
import threading
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

import penstock._native as _native
from penstock.carriers.worker_thread import end_crew
from penstock.device.decoders import planes, read_header
from penstock.errors import InvalidOption
from penstock.passes.values import PassInput
from penstock.plan import NativePlan
from penstock.recipe import keyed_methods
from penstock.sample_notes import add_note
from penstock.sources.image_files import max_pixels
from penstock.workers.batch import IndexedBatch

#: Threads at the most: each holds Python's lock for a good part of its time, unless the file system is slow.
MAX_READERS = 16
#: A larger file is left to Pillow.
_MAX_FILE_BYTES = 256 << 20
_WORD = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True)
class Encoded:
    """A file for the decoder."""

    data: torch.Tensor
    """The bytes of the file, uint8."""
    size: tuple[int, int]
    """(height, width) that the header of the file says."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample, ready for its device."""

    leaf: int
    local: int
    content: Encoded | torch.Tensor
    """A file, or pixels in host memory: uint8 (channels, height, width)."""
    drawn: list[Any] | None
    """The parameters of each operation of its recipe; None: the dataset's own transform has made the content."""


@dataclass(slots=True, eq=False)
class Batch(IndexedBatch):
    """A batch whose files are being read. The lock of its Readers guards what threads write."""

    samples: list[Sample] = field(default_factory=list)
    unfinished: int = 0
    failed_at: int = 0
    """The first position that failed, with the error."""

    def let_go(self) -> None:
        self.samples.clear()


class Readers:
    """The threads of a pass. They hold the plan and the batches, never the pass, which can be collected.

    Args:
        pass_input: of the pass, for the key of its random draws.
        threads: 0 reads in the caller's thread, when a batch is waited for.
    """

    def __init__(self, plan: NativePlan, pass_input: PassInput, threads: int) -> None:
        self._plan = plan
        self._seed, self._epoch = pass_input.seed, pass_input.epoch
        self._work: queue.SimpleQueue[tuple[Batch, range] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()  # a batch was finished, or the crew was closed
        self._closed = False
        self._pid = os.getpid()
        self._threads: list[threading.Thread] = []
        Image.init()  # Pillow looks up its formats once, and not thread-safely
        try:
            for number in range(min(threads, MAX_READERS)):
                thread = threading.Thread(target=self._run, name=f"penstock-reading-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:
            self.close()
            raise InvalidOption(f"num_workers={threads}: the system cannot start so many threads ({error})") from error

    def submit(self, batch: Batch) -> None:
        count, unread = len(batch.indices), cast(Sample, None)
        batch.samples, batch.unfinished = [unread] * count, count
        if not self._threads:
            return
        step = max(1, min(16, count // (4 * len(self._threads))))
        for begin in range(0, count, step):
            self._work.put((batch, range(begin, min(begin + step, count))))

    def wait(self, batch: Batch, timeout: float) -> bool:
        """Wait until a batch is read, or the crew is closed; return whether it is within `timeout` seconds (0: any)."""
        if os.getpid() != self._pid:
            raise RuntimeError("the threads of this iterator are in the parent process of this fork")
        if not self._threads and batch.unfinished:
            for position in range(len(batch.indices)):
                self.prepare(batch, position)
            batch.unfinished = 0
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not batch.unfinished, timeout or None)
            return not batch.unfinished

    def close(self) -> None:
        """End the threads. In a forked child they do not exist, and nothing is done."""
        end_crew(self._threads, self._stop, self._pid)

    def _stop(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for _ in self._threads:
            self._work.put(None)

    # --- the threads' side --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            batch, positions = work
            for position in positions:
                if not self._closed:
                    self.prepare(batch, position)
            with self._changed:
                batch.unfinished -= len(positions)
                if not batch.unfinished:
                    self._changed.notify_all()
            del batch, work  # nothing is held while work is waited for

    def prepare(self, batch: Batch, position: int, *, trusted: bool = True) -> None:
        """Read the sample at a position; an error is kept in the batch.

        trusted: the decoder may have it.
        """
        try:
            batch.samples[position] = self._read(batch, position, trusted)
        except Exception as error:
            name, path = self._plan.leaf(batch.leaves, position).identify(int(batch.local[position]))
            place = f"at position {position} of a batch of {len(batch.indices)}"
            add_note(error, f"{place}: sample {name!r} ({path or 'in memory'})")
            with self._changed:
                if batch.error is None or position < batch.failed_at:
                    batch.failed_at, batch.error = position, error

    def _read(self, batch: Batch, position: int, trusted: bool) -> Sample:
        number, local = 0 if batch.leaves is None else int(batch.leaves[position]), int(batch.local[position])
        leaf, index, place = self._plan.leaves[number], int(batch.indices[position]), batch.positions[position]
        content: Encoded | torch.Tensor | str = self._encoded(number, local) if trusted else ""
        if isinstance(content, str):
            if content:
                batch.read_by_python.append(content)
            made = leaf.read_in_python(local)
            if isinstance(made, torch.Tensor):
                return Sample(number, local, made, None)
            content = planes(torch.from_numpy(np.array(made)))
        assert leaf.recipe is not None
        height, width = content.size if isinstance(content, Encoded) else content.shape[1:]
        try:
            key = (self._seed & _WORD, self._epoch, index & _WORD, place)
            return Sample(number, local, content, _native.draw(leaf.recipe.native, *key, width, height))
        except ValueError as why:  # the user's own transform has the last word
            batch.read_by_python.append(str(why))
            with keyed_methods.of_sample(self._seed, self._epoch, index, place):
                return Sample(number, local, leaf.sample_in_python(local), None)

    def _encoded(self, number: int, local: int) -> Encoded | str:
        """Return a file for the decoder, or why Pillow must read it; number, local: of the leaf, and of the sample."""
        files = self._plan.leaves[number].files
        name = files.name(local) if files is not None and files.listed else None
        content = _native.read_file(self._plan.program, number, local, name, _MAX_FILE_BYTES)
        if isinstance(content, str):
            return content
        size = read_header(content)
        if isinstance(size, str):
            return size
        if max_pixels() and math.prod(size) > max_pixels():
            return "over Pillow's limit for decompression bombs"
        return Encoded(torch.from_numpy(content), size[::-1])
