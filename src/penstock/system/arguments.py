"""Checks of arguments that torch's loader would fail on later, with the exceptions that torch raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import IterableDataset

from penstock.errors import InvalidOption


def check_numbers(*, num_workers: Any, batch_size: Any, timeout: Any, prefetch_factor: Any) -> None:
    """Raise TypeError for what is no number, and InvalidOption, a ValueError, for a batch_size that is none."""
    for name, value in (("num_workers", num_workers), ("prefetch_factor", prefetch_factor)):
        if value is not None and not hasattr(value, "__index__"):
            raise TypeError(f"{name} must be an integer, or None for the default, not {value!r}")
    if isinstance(timeout, complex) or not (hasattr(timeout, "__float__") or hasattr(timeout, "__index__")):
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}; 0 waits without limit")
    if batch_size is not None and not isinstance(batch_size, int):
        raise InvalidOption(
            f"batch_size must be an int or None, which batches nothing, not {batch_size!r} of type "
            f"{type(batch_size).__name__}"
        )


@contextmanager
def naming_empty(dataset: Any, *, shuffle: Any) -> Iterator[None]:
    """Name the empty dataset in torch's error for a shuffle of no samples. Raises InvalidOption, a ValueError."""
    try:
        yield
    except ValueError as error:
        if not shuffle or isinstance(dataset, IterableDataset) or "num_samples=0" not in str(error):
            raise
        text = repr(dataset)
        name = type(dataset).__name__ if text.startswith("<") or len(text) > 200 else text
        raise InvalidOption(f"{name} has no samples, and shuffle=True needs one at least ({error})") from error
