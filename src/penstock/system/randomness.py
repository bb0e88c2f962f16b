"""Random generators as functions of (seed, epoch, sample, position): a process's global ones, and those of a thread.

`position` is where the sample stands in the order of the epoch: one that comes several times draws anew each time.

The generators' states are derived from BLAKE2b of the key, so that equal keys give equal draws in any process and
on any machine, and nothing has to be saved.
"""

from __future__ import annotations

import hashlib
import operator
import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

_MASK = 0xFFFFFFFFFFFFFFFF
#: The functions that set the generators of numpy and Python, and their modules.
SETTING = (np.random, "seed"), (np.random, "set_state"), (random, "seed"), (random, "setstate")


def sample_number(index: Any) -> int:
    """Return the number, of 64 bits, that keys a sampler's index: itself, or a hash of its repr."""
    try:
        return operator.index(index) & _MASK
    except TypeError:
        return int.from_bytes(hashlib.blake2b(repr(index).encode(), digest_size=8).digest(), "little")


def digest(*key: int) -> bytes:
    """Return 32 bytes that are a function of a few numbers of 64 bits. Source: BLAKE2b, RFC 7693."""
    packed = struct.pack(f"<{len(key)}Q", *(part & _MASK for part in key))
    return hashlib.blake2b(packed, digest_size=32).digest()


def seed_globals(seed: int, epoch: int, sample: int, position: int) -> None:
    """Set the global generators of ``random``, ``numpy.random`` and torch (CPU) for one sample."""
    key = digest(seed, epoch, sample, position)
    random.seed(int.from_bytes(key[:16], "little"))
    np.random.seed(int.from_bytes(key[16:20], "little"))
    torch.default_generator.manual_seed(torch_seed(key))


def seed_worker(base_seed: int, worker: int) -> int:
    """Set the global generators of a worker process as torch does, and return the seed of get_worker_info()."""
    seed = base_seed + worker
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(torch_worker._generate_state(base_seed, worker))  # type: ignore[no-untyped-call]
    return seed


def torch_seed(key: bytes) -> int:
    """Return the seed that a digest gives torch: 63 bits, for datasets that return it, in tensors of int64."""
    return int.from_bytes(key[24:], "little") >> 1


#: The states of random, numpy.random and torch's global generator.
States = tuple[Any, Any, torch.Tensor]


def generator_states() -> States:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


@contextmanager
def generators_kept() -> Iterator[None]:
    """Give the global generators back as they were."""
    before = generator_states()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.default_generator.set_state(before[2])


def generators_drawn_from(before: States, now: States | None = None) -> tuple[str, ...]:
    """Return the names of the global generators whose states are not those from before; now: None for the present."""
    now = generator_states() if now is None else now
    unchanged = {
        "random": now[0] == before[0],
        "numpy.random": now[1][2:] == before[1][2:] and np.array_equal(now[1][1], before[1][1]),
        "torch": torch.equal(now[2], before[2]),
    }
    return tuple(name for name, same in unchanged.items() if not same)


class Cursor(Protocol):
    """The present sample of a thread: its index, and its position among those that the thread took."""

    def position(self) -> int: ...

    def sample(self) -> Any: ...


class Generators:
    """The generators of one worker thread, under the names that torch's WorkerInfo.rng gives them.

    They are functions of (seed, epoch, sample, position), set when first used after `set_sample_key`, for one thread.
    """

    def __init__(self) -> None:
        self._random = random.Random()
        self._torch = torch.Generator()
        self._numpy = np.random.Generator(np.random.Philox(key=0))
        self._seed = self._epoch = 0
        self._cursor: Cursor | None = None
        self._positions: Sequence[int] = range(0)
        self._set_for: dict[str, int] = {}  # the position of the sample that each generator was set for last

    def set_sample_key(self, seed: int, epoch: int, cursor: Cursor, positions: Sequence[int]) -> None:
        """Begin with other samples, at these positions of the epoch's order; no generator is set before it is used."""
        self._seed, self._epoch, self._cursor, self._positions = seed, epoch, cursor, positions
        self._set_for = {}

    def _begin(self, name: str) -> bytes | None:
        """Return the key's bytes for a generator that the present sample uses for the first time, else None."""
        position = -1 if self._cursor is None else self._cursor.position()
        if self._set_for.get(name) == position:
            return None
        self._set_for[name] = position
        sample = 0 if self._cursor is None else sample_number(self._cursor.sample())
        return digest(self._seed, self._epoch, sample, self._positions[max(0, position)])

    @property
    def random_generator(self) -> random.Random:
        if (key := self._begin("random")) is not None:
            self._random.seed(int.from_bytes(key[:16], "little"))
        return self._random

    @property
    def torch_generator(self) -> torch.Generator:
        if (key := self._begin("torch")) is not None:
            self._torch.manual_seed(torch_seed(key))
        return self._torch

    @property
    def numpy_generator(self) -> np.random.Generator:
        if (key := self._begin("numpy")) is not None:
            self._numpy = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
        return self._numpy
