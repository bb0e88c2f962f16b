"""Files read ahead for a decoder on the device; Pillow decodes those that it is not trusted with.

Python threads take files that the native core reads: at once where they lie in memory, else brought by its readers.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

import penstock._native as _native
from penstock.device.decoders import planes, read_header
from penstock.errors import InvalidID, InvalidOption
from penstock.executors.filler import IndexedBatch, PassInput
from penstock.executors.workers.native import READERS, MeteredReaders, read_ahead_bytes
from penstock.executors.workers.worker_thread import end_crew
from penstock.observe import Meter
from penstock.plan import NativePlan
from penstock.recipe import keyed_methods
from penstock.sample_notes import add_note
from penstock.sources.image_files import max_pixels
from penstock.state.delivery import Task
from penstock.state.substitutes import Substitutes

#: Threads at the most: each holds Python's lock for a good part of its time.
MAX_READERS = 8
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
    files: _native.ReadList | None = None
    """The files that the native readers know of."""
    taken: int = 0
    unfinished: int = 0
    replaced: bool = False
    failed_at: int = 0
    """The first position that failed, with the error."""

    def let_go(self) -> None:
        self.samples.clear()
        self.files = None


class Readers:
    """The threads of a pass. They hold the plan and the batches, never the pass, which can be collected.

    Args:
        plan: what is read.
        pass_input: of the pass, for the key of its random draws.
        threads: 0 reads in the caller's thread, when a batch is waited for.
        meter: counts what the native readers do.
        grey: the decoder takes files of one channel.
        substitutes: how bad samples are replaced; None: their errors are kept.
    """

    def __init__(
        self,
        plan: NativePlan,
        pass_input: PassInput,
        threads: int,
        meter: Meter,
        *,
        grey: bool,
        substitutes: Substitutes | None = None,
    ) -> None:
        readers = _native.FileReaders(plan.program, READERS if threads else 0, read_ahead_bytes())
        self.files = MeteredReaders(readers, meter)
        self._plan = plan
        self._seed, self._epoch = pass_input.seed, pass_input.epoch
        self._grey = grey
        self._substitutes = substitutes
        self._changed = threading.Condition()  # batches were submitted or finished, or the crew was closed
        self._open: deque[Batch] = deque()  # those with samples that no thread has taken
        self._closed = False
        self._pid = os.getpid()
        self._count = min(threads, MAX_READERS)
        self._threads: list[threading.Thread] = []
        Image.init()  # Pillow looks up its formats once, and not thread-safely
        self.files.open()
        try:
            for number in range(self._count):
                thread = threading.Thread(target=self._run, name=f"penstock-reading-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:
            self.close()
            raise InvalidOption(f"num_workers={threads}: the system has not so many threads ({error})") from error

    def submit(self, batch: Batch) -> None:
        """Begin to read a batch: once, however often it is submitted after interrupts."""
        count = len(batch.indices)
        unread: Any = None
        if batch.files is None and self._threads:
            with contextlib.suppress(InvalidID):  # a path that no file can have is the error of its sample
                names = self._plan.names(batch.leaves, batch.local)
                batch.files = self.files.native.add(batch.local, batch.leaves, names)
        with self._changed:
            if batch.taken or any(batch is other for other in self._open):
                return
            batch.samples, batch.unfinished = [unread] * count, count
            if count:
                self._open.append(batch)
                self._changed.notify_all()

    def wait(self, batch: Batch, timeout: float) -> bool:
        """Wait until a batch is read; return whether it was within `timeout` seconds (0: no limit)."""
        if os.getpid() != self._pid:
            raise RuntimeError("the threads of this iterator are in the process that this one was forked off from")
        if not self._threads and batch.unfinished:
            self._open.clear()
            for position in range(len(batch.indices)):
                self.prepare(batch, position)
            batch.unfinished = 0
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not batch.unfinished, timeout or None)
            if batch.unfinished and self._closed:
                raise RuntimeError("the loader's iterator was closed while a batch was waited for")
            return not batch.unfinished

    def close(self) -> None:
        """End the threads. In a forked child they do not exist, and nothing is done."""
        end_crew(self._threads, self._stop, self._pid)

    def _stop(self) -> None:
        with self._changed:
            self._closed = True
            self._open.clear()
            self._changed.notify_all()
        self.files.close()

    # --- the threads' side --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (work := self._take()) is not None:
            batch, positions = work
            for position in positions:
                if not self._closed:
                    self.prepare(batch, position)
            with self._changed:
                batch.unfinished -= len(positions)
                if not batch.unfinished:
                    self._changed.notify_all()
            del batch, work  # nothing is held while work is waited for

    def _take(self) -> tuple[Batch, range] | None:
        """Return some positions of the oldest batch that has any left. None: the crew is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._open)
            if self._closed:
                return None
            batch = self._open[0]
            begin, count = batch.taken, len(batch.indices)
            batch.taken = min(count, begin + max(1, min(16, count // (4 * self._count))))
            if batch.taken == count:
                self._open.popleft()
            return batch, range(begin, batch.taken)

    def prepare(self, batch: Batch, position: int, *, trusted: bool = True) -> None:
        """Read the sample at a position, or what stands in for it; an error is kept in the batch.

        trusted: the decoder may have it.
        """
        try:
            batch.samples[position] = self._read_good(batch, position, trusted)
        except Exception as error:
            name, path = self._plan.leaf(batch.leaves, position).identify(int(batch.local[position]))
            place = f"at position {position} of a batch of {len(batch.indices)}"
            add_note(error, f"{place}: sample {name!r} ({path or 'in memory'})")
            with self._changed:
                if batch.error is None or position < batch.failed_at:
                    batch.failed_at, batch.error = position, error

    def _read_good(self, batch: Batch, position: int, trusted: bool) -> Sample:
        """Read the sample at a position; where bad samples are replaced, the first good one that may stand in for it.

        Where none is good, the error is that of the sample itself.
        """
        wanted, substitutes = int(batch.wanted[position]), self._substitutes
        if substitutes is not None:
            task = Task(batch.wanted, self._seed, self._epoch)
            candidates = substitutes.candidates(task, wanted, batch.positions[position])
            for index in map(int, itertools.chain([wanted], candidates)):
                if substitutes.is_bad(index):
                    continue
                try:
                    sample = self._read(batch, position, index, trusted)
                except Exception as error:
                    substitutes.found_bad(index, error)
                    continue
                if index != wanted:
                    batch.indices[position], batch.replaced = index, True
                return sample
        return self._read(batch, position, wanted, trusted)

    def _read(self, batch: Batch, position: int, index: int, trusted: bool) -> Sample:
        """Read a sample, by its index, for a position of a batch."""
        if index == batch.wanted[position]:
            leaves, local = batch.leaves, int(batch.local[position])
            number = 0 if leaves is None else int(leaves[position])
        else:
            leaves, inside = self._plan.root.resolve(np.array([index], dtype=np.int64))
            number, local = 0 if leaves is None else int(leaves[0]), int(inside[0])
        leaf = self._plan.leaves[number]
        content: Encoded | torch.Tensor | str = ""
        if trusted:
            brought = None
            if batch.files is not None and index == batch.wanted[position]:
                brought = self.files.native.take(batch.files, position)
            content = self._encoded(number, local, brought)
        if isinstance(content, str):
            if content:
                batch.rescued.append(content)
            rescued = leaf.rescue(local)
            if isinstance(rescued, torch.Tensor):
                return Sample(number, local, rescued, None)
            content = planes(torch.from_numpy(np.array(rescued)))
        assert leaf.recipe is not None
        height, width = content.size if isinstance(content, Encoded) else content.shape[1:]
        place = batch.positions[position]
        try:
            key = (self._seed & _WORD, self._epoch, index & _WORD, place)
            return Sample(number, local, content, _native.draw(leaf.recipe.native, *key, width, height))
        except ValueError as why:  # the user's own transform has the last word
            batch.rescued.append(str(why))
            with keyed_methods.of_sample(self._seed, self._epoch, index, place):
                return Sample(number, local, leaf.apply(local), None)

    def _encoded(self, number: int, local: int, brought: _native.BroughtFile | None) -> Encoded | str:
        """Return a file for the decoder, or why Pillow must read it.

        Args:
            number, local: of the leaf, and of the sample in it.
            brought: the file, where a reader has brought it.
        """
        if brought is None:
            files = self._plan.leaves[number].files
            name = files.name(local) if files is not None and files.listed else None
            found = self.files.native.read(number, local, name, _MAX_FILE_BYTES)
            if isinstance(found, str):
                return found
            brought = found
        content = brought.content
        if not 0 < len(content) <= _MAX_FILE_BYTES:
            return "an empty file, or a huge one"
        header = read_header(content)
        if isinstance(header, str):
            return header
        if header.channels == 1 and not self._grey:
            return "JPEG: grey, which this decoder does not take"
        if max_pixels() and header.width * header.height > max_pixels():
            return "over Pillow's limit for decompression bombs"
        return Encoded(torch.from_numpy(content), (header.height, header.width))
