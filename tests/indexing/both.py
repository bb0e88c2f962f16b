"""Both loaders over the same dataset, and all that a program could see of them, as lines of text."""

from __future__ import annotations

import contextlib
import io
import pickle
import random
import re
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.utils.data as tud

import penstock
from tests.differential.values import describe
from tests.same import generator_states

Dataset = Any
Change = Callable[[Any], object]


def told(error: Exception, of_worker: bool) -> str:
    """Return an error's class and words.

    Of an error that came through a worker they are those of the dataset's own error: a pass that gathers has no worker.
    """
    words = str(error)
    if of_worker:
        lines = words.rstrip().splitlines()
        while len(lines) > 1 and lines[-1].startswith("in "):  # notes of ours, which name the sample
            lines.pop()
        words = lines[-1].removeprefix(f"{type(error).__name__}: ")
    return re.sub(" at 0x[0-9a-f]+", "", f"raised {type(error).__name__}: {words}")


def changed(change: Change, dataset: Dataset) -> list[str]:
    """Change a dataset, and return the error of a change that cannot be made (twice)."""
    try:
        change(dataset)
    except Exception as error:
        return [told(error, of_worker=False)]
    return []


def seen(
    kind: Any,
    make: Callable[[], Dataset],
    options: Callable[[], dict[str, Any]],
    own: dict[str, Any],
    *,
    wrap: Callable[[Dataset], Dataset] = lambda dataset: dataset,
    passes: int = 2,
    during: Change | None = None,
    between: Change | None = None,
    receive: Change | None = None,
    state: Callable[[Dataset], object] = lambda dataset: None,
) -> list[str]:
    """Return what a program sees of a loader's passes over a new dataset, line by line.

    Args:
        own: arguments that may be penstock's only; where there is a seed among them, draws are not torch's.
        wrap: what is read of the dataset: a Subset, for example.
        during, between: what the program does to the dataset behind the second batch of each pass, and behind the pass.
        receive: what the program does to each batch.
        state: what the dataset's own code may have changed.
    """
    torch.default_generator.manual_seed(5)  # torch.manual_seed formats three stacks for devices that are not there
    random.seed(5)
    np.random.seed(5)
    dataset, lines, held = make(), list[str](), list[Any]()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()) as printed:
        warnings.simplefilter("always")
        given = options()
        try:
            loader = kind(wrap(dataset), **given, **(own if kind is penstock.DataLoader else {}))
        except Exception as error:
            return [told(error, of_worker=False)]
        for _ in range(passes):
            batches, step, errors = iter(loader), 0, 0
            while errors < 9:  # of a loader that fails for ever
                try:
                    batch = next(batches)
                except StopIteration:
                    lines.append("end")
                    break
                except Exception as error:
                    lines.append(told(error, bool(given.get("num_workers"))))
                    error.__traceback__ = None
                    errors += 1
                else:
                    lines.append(describe(batch))
                    held.append(batch)
                    if receive is not None:
                        receive(batch)
                if step == 1 and during is not None:
                    lines += changed(during, dataset)
                step += 1
            if between is not None:
                lines += changed(between, dataset)
    # What the program holds has changed only where it has changed it.
    lines += [describe(held), printed.getvalue(), describe(state(dataset))]
    if "seed" not in own:
        lines.append(f"drawn {zlib.crc32(pickle.dumps(generator_states())):08x}")
    if kind is penstock.DataLoader:
        lines += [f"warned {one.message}" for one in caught if "penstock" in str(one.message).lower()]
    return lines


def assert_as_torch(
    make: Callable[[], Dataset], options: Callable[[], dict[str, Any]], own: dict[str, Any] | None = None, **given: Any
) -> list[str]:
    """Assert that penstock's loader shows what torch's does, and return it. own: arguments of penstock's only."""
    theirs, ours = (seen(kind, make, options, own or {}, **given) for kind in (tud.DataLoader, penstock.DataLoader))
    wrong = [(a, b) for a, b in zip(theirs, ours, strict=False) if a != b]
    assert not wrong and len(ours) == len(theirs), "\n".join(
        f"torch:    {a}\npenstock: {b}" for a, b in [*wrong[:3], (theirs[len(ours) :], ours[len(theirs) :])]
    )
    return theirs
