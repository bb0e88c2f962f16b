"""Files read ahead by Python threads, for a decoder on the device; and by Pillow, where that is not to be trusted."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from penstock import _native
from penstock.device.decoders import read_header
from penstock.errors import InvalidOption
from penstock.executors.batch import IndexedBatch
from penstock.executors.workers.leaving import end_crew
from penstock.plan import NativePlan
from penstock.recipe import drawing
from penstock.sources.image_files import max_pixels
from penstock.sources.source import NativeSource
from penstock.state.delivery import Task
from penstock.state.substitutes import Substitutes

#: Threads at the most: each holds Python's lock for a good part of its time.
READERS = 8
#: A larger file is left to Pillow.
_MOST_BYTES = 256 << 20
_WORD = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True)
class Encoded:
    """A file for the decoder."""

    data: torch.Tensor
    """Its bytes, uint8."""
    size: tuple[int, int]
    """(height, width) that its header says."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """What Pillow decoded: uint8 (height, width, 3), in host memory."""

    pixels: torch.Tensor


@dataclass(frozen=True, slots=True)
class Row:
    """What the dataset's own transform made: uint8 (channels, height, width), in host memory."""

    pixels: torch.Tensor


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample, ready for its device."""

    leaf: int
    local: int
    content: Encoded | Pixels | Row
    drawn: list[Any]
    """The parameters of each operation of its recipe."""


@dataclass(slots=True, eq=False)
class Batch(IndexedBatch):
    """A batch whose files are being read. The lock of its Readers guards what threads write."""

    samples: list[Sample] = field(default_factory=list)
    taken: int = 0
    unfinished: int = 0
    replaced: bool = False
    failed_at: int = 0
    """The first position that failed, with the error."""

    def let_go(self) -> None:
        self.samples.clear()


class Readers:
    """The threads of a pass. They hold the plan and the batches, never the pass, which can be collected.

    Args:
        plan: what is read.
        seed, epoch: the key of the random draws.
        threads: 0 reads in the caller's thread, when a batch is waited for.
        grey: the decoder takes files of one channel.
        substitutes: how bad samples are replaced; None: their errors are kept.
    """

    def __init__(
        self,
        plan: NativePlan,
        seed: int,
        epoch: int,
        threads: int,
        *,
        grey: bool,
        substitutes: Substitutes | None = None,
    ) -> None:
        self.ended = threading.Event()
        self._plan = plan
        self._seed, self._epoch = seed, epoch
        self._grey = grey
        self._substitutes = substitutes
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._done = threading.Condition(self._lock)
        self._open: deque[Batch] = deque()  # those with samples that nobody has taken
        self._closed = False
        self._pid = os.getpid()
        self._count = min(threads, READERS)
        self._threads: list[threading.Thread] = []
        Image.init()  # Pillow looks up its formats once, and not thread-safely
        try:
            for number in range(self._count):
                thread = threading.Thread(target=self._run, name=f"penstock-reading-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:
            self.close()
            raise InvalidOption(f"num_workers={threads}: the system has not so many threads ({error})") from error

    def submit(self, batch: Batch) -> None:
        """Begin to read a batch."""
        count = len(batch.indices)
        unread: Any = None
        with self._lock:
            if batch.taken or any(batch is other for other in self._open):
                return  # again, after an interrupt
            batch.samples, batch.unfinished = [unread] * count, count
            if count:
                self._open.append(batch)
                self._work.notify_all()

    def wait(self, batch: Batch, timeout: float) -> Batch | None:
        """Wait until a batch is read and return it; None: `timeout` seconds (0: no limit) went by."""
        if os.getpid() != self._pid:
            raise RuntimeError("the threads of this iterator are in the process that this one was forked off from")
        if not self._threads and batch.unfinished:
            self._open.clear()
            for position in range(len(batch.indices)):
                self.prepare(batch, position)
            batch.unfinished = 0
        deadline = time.monotonic() + timeout
        with self._lock:
            while batch.unfinished:
                if self._closed:
                    raise RuntimeError("the loader's iterator was closed while a batch was waited for")
                remaining = deadline - time.monotonic()
                if timeout and remaining <= 0:
                    return None
                self._done.wait(remaining if timeout else None)
        return batch

    def close(self) -> None:
        """End the threads. In a forked child they do not exist, and nothing is done."""
        end_crew(self._threads, self._stop, self.ended, self._pid)

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
            self._open.clear()
            self._work.notify_all()
            self._done.notify_all()

    # --- the threads' side --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (work := self._take()) is not None:
            batch, begin, end = work
            for position in range(begin, end):
                if not self._closed:
                    self.prepare(batch, position)
            with self._lock:
                batch.unfinished -= end - begin
                if not batch.unfinished:
                    self._done.notify_all()
            del batch, work  # nothing is held while work is waited for

    def _take(self) -> tuple[Batch, int, int] | None:
        """Return a part of the oldest batch that has any left. None: the crew is closed."""
        with self._lock:
            while not self._closed:
                if self._open:
                    batch = self._open[0]
                    begin, count = batch.taken, len(batch.indices)
                    batch.taken = end = min(count, begin + max(1, min(16, count // (4 * self._count))))
                    if end == count:
                        self._open.popleft()
                    return batch, begin, end
                self._work.wait()
        return None

    def prepare(self, batch: Batch, position: int, *, trusted: bool = True) -> None:
        """Read the sample at a position, or what stands in for it; an error is kept in the batch.

        trusted: the decoder may have it.
        """
        index = int(batch.wanted[position])
        bad = self._substitutes is not None and self._substitutes.is_bad(index)
        error = None if bad else self._tried(batch, position, index, trusted)
        if bad or (error is not None and self._substitutes is not None):
            error = self._replaced(batch, position, error, trusted)
        if error is None:
            return
        name, path = self._plan.leaf(batch.leaves, position).identify(int(batch.local[position]))
        with contextlib.suppress(Exception):  # an exception of the user's that takes no notes
            error.add_note(
                f"at position {position} of a batch of {len(batch.indices)}: sample {name!r} ({path or 'in memory'})"
            )
        with self._lock:
            if batch.error is None or position < batch.failed_at:
                batch.failed_at, batch.error = position, error
        error = None  # whose traceback holds this frame

    def _replaced(self, batch: Batch, position: int, error: Exception | None, trusted: bool) -> Exception | None:
        """Read another sample for a bad one; return the error where no other one is good.

        error: of the sample itself; None: it was known as bad, and has not been read.
        """
        assert self._substitutes is not None
        wanted = int(batch.wanted[position])
        if error is not None:
            self._substitutes.found_bad(wanted, error)
        task = Task(batch.wanted, self._seed, self._epoch)
        for candidate in self._substitutes.candidates(task, wanted, batch.place(position)):
            index = int(candidate)
            if not self._substitutes.is_bad(index):
                another = self._tried(batch, position, index, trusted)
                if another is None:
                    batch.indices[position], batch.replaced = index, True
                    return None
                self._substitutes.found_bad(index, another)
                del another  # whose traceback holds this frame
        try:
            return error or self._tried(batch, position, wanted, trusted)
        finally:
            error = None

    def _tried(self, batch: Batch, position: int, index: int, trusted: bool) -> Exception | None:
        """Read a sample for a position; return the error of the attempt."""
        try:
            if index == batch.wanted[position]:
                number = 0 if batch.leaves is None else int(batch.leaves[position])
                local = int(batch.local[position])
            else:
                leaves, inside = self._plan.root.resolve(np.array([index], dtype=np.int64))
                number, local = 0 if leaves is None else int(leaves[0]), int(inside[0])
            leaf = self._plan.leaves[number]
            batch.samples[position] = Sample(
                number, local, *self._read(batch, leaf, local, (index, batch.place(position)), trusted)
            )
        except Exception as error:
            return error
        return None

    def _read(
        self, batch: Batch, leaf: NativeSource, local: int, place: tuple[int, int], trusted: bool
    ) -> tuple[Encoded | Pixels | Row, list[Any]]:
        """Return what is read of a sample, and what is drawn for it, by its index and its position in the order."""
        content: Encoded | Pixels | Row | str = self._encoded(leaf, local) if trusted else ""
        if isinstance(content, str):
            if content:
                batch.rescued.append(content)
            pixels = leaf.rescue(local)
            content = Row(pixels) if isinstance(pixels, torch.Tensor) else Pixels(torch.from_numpy(np.array(pixels)))
        if isinstance(content, Row):
            return content, []
        assert leaf.recipe is not None
        height, width = content.size if isinstance(content, Encoded) else content.pixels.shape[:2]
        try:
            key = (self._seed & _WORD, self._epoch, place[0] & _WORD, place[1])
            return content, _native.draw(leaf.recipe.native, *key, width, height)
        except ValueError as why:  # the user's own transform has the last word
            batch.rescued.append(str(why))
            with drawing.of_sample(self._seed, self._epoch, *place):
                return Row(leaf.apply(local)), []

    def _encoded(self, leaf: NativeSource, local: int) -> Encoded | str:
        """Return a file for the decoder, or why Pillow must read it."""
        path = leaf.identify(local)[1]
        try:
            assert path is not None
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                about = os.fstat(file)
                if not stat.S_ISREG(about.st_mode) or not 0 < about.st_size <= _MOST_BYTES:
                    return "no regular file, or an empty or huge one"
                data = torch.empty(about.st_size, dtype=torch.uint8, device="cpu")
                view, done = data.numpy().data, 0
                while done < len(view) and (read := os.readv(file, [view[done:]])):
                    done += read
                if done < len(view):
                    return "the file became shorter while it was read"
            finally:
                os.close(file)
        except OSError as error:
            return f"cannot be read: {os.strerror(error.errno or 0)}"
        header = read_header(data.numpy())
        if isinstance(header, str):
            return header
        if header.channels == 1 and not self._grey:
            return "JPEG: grey, which this decoder does not take"
        if max_pixels() and header.width * header.height > max_pixels():
            return "over Pillow's limit for decompression bombs"
        return Encoded(data, (header.height, header.width))
