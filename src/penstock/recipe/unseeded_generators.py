"""Random generators in the user's code that a loader's seed does not reach: looked for, and warned of once."""

from __future__ import annotations

import hashlib
import pickle
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from penstock.recipe.held_objects import held_objects
from penstock.system.randomness import digest, generator_states, generators_drawn_from
from penstock.system.warn_user import warn_user

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_END = object()


class SeedWarnings:
    """The warnings of a loader, each given once."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def warn_of_dataset(self, dataset: Any, draws: Callable[[], tuple[str, ...]] | None, *, shared: bool) -> None:
        """Warn of a dataset's draws that do not follow the seed.

        draws: returns the global generators that the dataset draws from, where threads read it. None: the loader sets
            them for each sample.
        shared: threads share the dataset.
        """
        if "dataset" in self._warned:
            return
        self._warned.add("dataset")
        theirs = missed(dataset, shared=shared)
        if theirs:
            also = " and others" if len(theirs) > 3 else ""
            warn_user(
                f"seed= does not reach generators that the dataset keeps ({', '.join(theirs[:3])}{also}): their draws "
                "depend on the samples that a worker has read before. Draw from random, numpy.random or torch in "
                "worker processes, or from torch.utils.data.get_worker_info().rng in threads"
            )
        drawn = draws() if draws is not None else ()
        if drawn:
            warn_user(
                "seed= does not reach the draws of the dataset or the collate_fn from the global generators of "
                f"{' and '.join(drawn)}: threads share them, and the draws depend on timing. Give worker_method=None "
                "for worker processes, or draw from torch.random.thread_safe_generator() or "
                "torch.utils.data.get_worker_info().rng"
            )

    def watched(self, batches: Iterator[Any], sampler: object) -> Iterator[Any]:
        """Yield what a sampler gives; warn where its first batch is drawn from a global generator."""
        if "sampler" in self._warned:
            yield from batches
            return
        self._warned.add("sampler")
        before = generator_states()
        first = next(batches, _END)
        if drawn := generators_drawn_from(before):
            warn_user(
                f"seed= does not reach the order of {type(sampler).__name__}, which draws from the global generator "
                f"of {' and '.join(drawn)}: two runs have the same order, and a resumed run continues it, only if that "
                "generator is set before each pass. Give the sampler its own generator, set in its set_epoch()"
            )
        if first is not _END:
            yield first
            yield from batches


def held_generators(root: object) -> list[tuple[str, Any]]:
    """Return the generators that an object, or what it holds, keeps, each with the expression that leads to it.

    A pipeline of Albumentations counts as the generators that it keeps.
    """
    held = held_objects(root, closed=_is_generator, of_classes=False)
    return [(one.path, one.value) for one in held if _is_generator(one.value)]


def missed(dataset: object, *, shared: bool) -> list[str]:
    """Return the expressions of the generators that a dataset keeps and a loader's seed does not set.

    shared: threads share the dataset, so that none of them may set what all of them draw from.
    """
    return [path for path, value in held_generators(dataset) if shared or not _is_seedable(value)]


def seedable(root: object) -> list[Any]:
    """Return the pipelines of Albumentations that an object keeps, which take a seed before each sample."""
    return [value for _, value in held_generators(root) if _is_seedable(value)]


def reseed(pipeline: Any, key: bytes) -> None:
    """Set the generators of one of Albumentations' pipelines to a function of the key, of at least 32 bytes."""
    give = getattr(pipeline, "set_random_state", None)
    if give is None:
        pipeline.set_random_seed(int.from_bytes(key[16:20], "little"))
    else:  # one pair for all its transforms, in place of a pair for each
        give(
            np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little"))),
            random.Random(int.from_bytes(key[16:32], "little")),
        )


def copies_before(dataset: object) -> int:
    """Return how often this was called for a dataset before: once for each time that workers get copies of it."""
    try:
        before = _copies.get(dataset, 0)
        _copies[dataset] = before + 1
    except TypeError:  # it has no hash, or no weak references
        return 0
    return before


_copies: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()


def reseed_copy(dataset: object, earlier: int, worker: int) -> None:
    """Set the generators that a worker's own copy of a dataset keeps, so that each copy draws other numbers.

    Without it all workers have the generators of the dataset that they are copies of, and repeat each other's draws,
    and in each pass those of the pass before. The first worker of the first pass has them as they are.

    Args:
        earlier: how often workers got copies of the dataset before.
        worker: the number of the copy.
    """
    if not (earlier or worker):
        return
    for _, generator in held_generators(dataset):
        if isinstance(generator, random.SystemRandom):
            continue  # it has no state
        key = digest(_state_of(generator.random_generator if _is_seedable(generator) else generator), earlier, worker)
        number = int.from_bytes(key[:8], "little") >> 1
        if _is_seedable(generator):
            reseed(generator, key)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(number).state
        elif isinstance(generator, np.random.RandomState):
            generator.seed(number % 2**32)
        elif isinstance(generator, torch.Generator):
            generator.manual_seed(number)
        else:
            generator.seed(number)


def _state_of(generator: Any) -> int:
    """Return a number of 64 bits that identifies the state of a generator."""
    if isinstance(generator, torch.Generator):
        state: Any = generator.get_state().numpy()
    elif isinstance(generator, np.random.Generator):
        state = generator.bit_generator.state
    else:
        state = generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()
    return int.from_bytes(hashlib.blake2b(pickle.dumps(state), digest_size=8).digest(), "little")


def _is_generator(value: Any) -> bool:
    return isinstance(value, _GENERATORS) or _is_seedable(value)


def _is_seedable(value: Any) -> bool:
    """Return whether an object is one of Albumentations' pipelines, by what they show."""
    if not callable(getattr(type(value), "set_random_seed", None)):
        return False
    held = getattr(value, "__dict__", {})
    return isinstance(held.get("random_generator"), np.random.Generator) and isinstance(
        held.get("py_random"), random.Random
    )
