"""Steps that must fit into memory: the largest batch that does, and a batch run in as few parts as will."""

from __future__ import annotations

import gc
import inspect
import operator
import re
import sys
import traceback
import types
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from penstock.device.moving import leaves, map_leaves
from penstock.errors import InvalidOption, OutOfMemory
from penstock.sample_notes import add_note
from penstock.showing import said
from penstock.system.limits import available_bytes

R = TypeVar("R")
Step = Callable[..., R]

# What PyTorch says in a RuntimeError of no class of its own: the CPU's allocator (on Linux, on Windows), a driver, and
# the libraries that allocate behind PyTorch's back.
_SAID = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)"
    r"|\b(?:CUDA|HIP|XPU|MPS backend)(?: driver)?(?: error:)? out of memory"
    r"|\b(?:CUDNN|CUBLAS|CUSPARSE|CUSOLVER|HIPBLAS)_STATUS_ALLOC_FAILED\b|\bCUFFT_ALLOC_FAILED\b"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on a device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _SAID.search(said(error)) is not None


def release_memory() -> None:
    """Collect garbage, and give back what PyTorch's allocator keeps for later on every device."""
    gc.collect()
    if torch.accelerator.is_available():
        try:
            torch.get_device_module().empty_cache()
        except RuntimeError as error:  # short of memory, even this has been seen to fail
            if not is_out_of_memory(error):
                raise


def find_batch_size(
    step: Step[object], example_batch: object, *, start: int | None = None, most: int | None = None
) -> int:
    """Return the largest batch size whose step fits into memory, found by doubling and bisection.

    The samples of example_batch are repeated, or cut, to the size that is tried, on the device that they are on; they
    should be as long as the longest of the data. The step really runs, about 2 * log2(size) times, and changes weights
    and optimiser states: find the size before the training, or give it a copy of the model. Under
    DistributedDataParallel, give it the model that is not wrapped yet, and take the least size of all ranks.

    On the CPU, Linux promises more memory than it has and may kill the process before anything fails: give most=
    there. A batch in host memory that exceeds the memory available counts as one that does not fit.

    Args:
        step: called as step(batch), its result dropped; where it has a parameter share, that is 1.0, as
            run_within_memory() gives it for a whole batch.
        example_batch: tuples, lists, mappings and dataclasses of tensors and arrays with the same number of samples,
            at least 1, along dimension 0. Lists and tuples without tensors in them that are that long are repeated or
            cut too, such as the strings that default_collate leaves in a list; all else stays as it is.
        start: the size to try first; None: the number of samples in example_batch.
        most: the largest size to try; None: whatever fits.

    Raises:
        OutOfMemory: one sample does not fit; the step's own error is its cause.
        ValueError: the batch is empty, or its tensors disagree about the number of samples, or it cannot be cut.
        InvalidOption: start or most below 1, or start above most.
        Exception: anything else that step raises.
    """
    samples = Samples(example_batch)
    most = None if most is None else _at_least_one("most", most)
    size = min(samples.number, most or samples.number) if start is None else _at_least_one("start", start)
    if most is not None and size > most:
        raise InvalidOption(f"start={size} is above most={most}; begin with {most} or less")
    fitting, failing = 0, None  # the largest that fits, the smallest that does not
    failure: BaseException | None = None
    while fitting != most and (failing is None or failing - fitting > 1):
        error = _try_size(step, samples, size)
        if error is None and fitting == 0:
            error = _try_size(step, samples, size)
        if error is None:
            fitting = size
        else:
            failing, failure = size, error
        size = min(2 * size, most or 2 * size) if failing is None else (fitting + failing) // 2
    release_memory()
    if fitting == 0:
        first_line = next(iter(str(failure).splitlines()), "") or type(failure).__name__
        raise OutOfMemory(
            f"a batch of one sample does not fit into memory: {first_line}; free memory or make the sample "
            "or the model smaller"
        ) from failure
    return fitting


def run_within_memory(
    step: Step[R], batch: object, *, start: int | None = None, undo: Callable[[], object] | None = None
) -> list[R]:
    """Run a step on a batch, in micro-batches where the whole does not fit, and return their results in order.

    Where memory runs out, the part that failed is cut in two and tried again; the parts that were done are not run
    again. The size that worked is remembered for as long as the step lives (a bound method with its object): give the
    same step each time, not a new lambda. A loss that is a mean over the batch must be weighted: where step has a
    parameter share besides the batch, it gets the samples of the micro-batch over those of the batch.

    undo= reverts the effects of a failed try, and then the whole batch is run again. Results are kept until the last
    part is done: return loss.item(). Under DistributedDataParallel a single rank must not split: use
    find_batch_size().

    Args:
        step: called as step(batch) or step(batch, share=...), with the batch itself or with views of its tensors.
        batch: as for find_batch_size().
        start: samples of the largest micro-batch to begin with; None: the size that worked before, else all.
        undo: reverts the effects of step since this call began, such as optimizer.zero_grad.

    Raises:
        ValueError: the batch is empty, or its tensors disagree about the number of samples, or it cannot be cut.
        InvalidOption: start below 1.
        Exception: the step's own errors, and the out-of-memory error of a single sample that does not fit.
    """
    samples = Samples(batch)
    known = _remembered(step) or samples.number
    size = known if start is None else _at_least_one("start", start)
    return _run_parts(step, samples, size, known, undo)


def _run_parts(step: Step[R], samples: Samples, size: int, known: int, undo: Callable[[], object] | None) -> list[R]:
    """Run a step on parts of a batch; known: the size that is remembered, or that of the batch."""
    results: list[R] = []
    done = 0
    while done < samples.number:
        end = min(done + size, samples.number)
        error = _try(step, partial(samples.part, done, end), (end - done) / samples.number, results)
        if error is None:
            done = end
            if size != known:
                known = size
                _remember(step, size)
            continue
        if end - done == 1:
            add_note(error, f"Sample {done} of a batch of {samples.number} does not fit into memory on its own.")
            raise error
        del error
        size = (end - done + 1) // 2
        if undo is not None:
            results.clear()
            done = 0
            undo()
        release_memory()
    return results


def _try_size(step: Step[object], samples: Samples, size: int) -> BaseException | None:
    release_memory()
    return _try(step, partial(samples.repeated, size), 1.0, [])


def _try(step: Step[R], batch: Callable[[], object], share: float, results: list[R]) -> BaseException | None:
    """Add what a step gives for a batch to the results; return its out-of-memory error, which holds no tensors."""
    outer = sys.exc_info()[1]
    named = {"share": share} if _takes_share(step) else {}
    try:
        results.append(step(batch(), **named))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _empty_frames(error, outer)
        return error
    return None


def _empty_frames(error: BaseException, outer: BaseException | None) -> None:
    """Drop the local variables of the frames that an error went through, and those before it up to outer.

    Someone else may hold the error; the lines of its traceback stay readable.
    """
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and one is not outer and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            pending += [one.__cause__, one.__context__]


def _at_least_one(name: str, value: int) -> int:
    number = operator.index(value)
    if number < 1:
        raise InvalidOption(f"{name}={number}: a batch has at least one sample")
    return number


def _takes_share(step: Step[object]) -> bool:
    try:
        called = step.forward if isinstance(step, torch.nn.Module) else step
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # of some builtins
        return False
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(one.name == "share" and one.kind in named for one in parameters[1:])


#: The micro-batch sizes that worked, by step: for a bound method, by its object and its name.
_sizes: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()


def _remembered(step: object) -> int | None:
    owner, name = _owner(step)
    try:
        return _sizes.get(owner, {}).get(name)
    except TypeError:  # it cannot be held weakly, or has no hash
        return None


def _remember(step: object, size: int) -> None:
    """Remember the size that worked for a step, for as long as the step lives."""
    owner, name = _owner(step)
    with suppress(TypeError):
        _sizes.setdefault(owner, {})[name] = size


def _owner(step: object) -> tuple[object, str]:
    """Return what lives as long as a step: a bound method is made anew each time that it is looked up."""
    return (step.__self__, step.__func__.__name__) if isinstance(step, types.MethodType) else (step, "")


# --- a batch as samples along dimension 0 -----------------------------------------------------------------------------


class Samples:
    """A batch, as samples along dimension 0, of which there is at least one."""

    def __init__(self, batch: object) -> None:
        self._batch = batch
        self.number = _number_of_samples(batch)

    def part(self, begin: int, end: int) -> object:
        """Return samples [begin, end): views of the tensors and arrays; the batch itself where that is all."""
        if end - begin == self.number:
            return self._batch
        return map_leaves(self._batch, lambda leaf: leaf[begin:end] if self._is_cut(leaf) else leaf, self._is_column)

    def repeated(self, number: int) -> object:
        """Return a batch of that many samples in memory of its own. Raises MemoryError and the allocators' errors."""
        counted = [leaf for leaf in leaves(self._batch, self._is_column) if self._is_cut(leaf)]
        needed = sum(_host_bytes(leaf) for leaf in counted) * number // self.number
        available = available_bytes()
        if needed > available:
            raise MemoryError(
                f"{number} samples take {needed / 1e9:.1f} GB of host memory, of which {available / 1e9:.1f} GB is "
                "available"
            )
        return map_leaves(
            self._batch, lambda leaf: _repeated(leaf, number) if self._is_cut(leaf) else leaf, self._is_column
        )

    def _is_cut(self, leaf: object) -> bool:
        return _has_samples(leaf) or self._is_column(leaf)

    def _is_column(self, value: Any) -> bool:
        """Return whether a list or tuple holds one object a sample, none of them with tensors in it."""
        if not _is_sequence(value, self.number) or any(_has_samples(leaf) for leaf in leaves(value)):
            return False
        # default_collate turns samples of several strings into a list of such columns, perhaps just as many.
        return not all(_is_sequence(one, self.number) for one in value)


def _number_of_samples(batch: object) -> int:
    shapes: dict[int, tuple[int, ...]] = {}
    # The tensors of a PackedSequence hold the samples interleaved.
    for leaf in leaves(batch, lambda value: isinstance(value, PackedSequence)):
        if _has_samples(leaf):
            if isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided:
                raise ValueError(f"a tensor of layout {leaf.layout} cannot be cut along dimension 0; make it dense")
            shapes.setdefault(leaf.shape[0], tuple(leaf.shape))
        elif not isinstance(leaf, torch.Tensor | type) and callable(getattr(leaf, "to", None)):
            raise ValueError(
                f"a {type(leaf).__name__} holds tensors and cannot be cut along dimension 0; give a step "
                "that takes these tensors in a tuple, dict or dataclass"
            )
    # A batch without tensors, of strings for example, is as long as the lists and tuples that hold them.
    lengths = set(shapes) or {len(one) for one in leaves(batch, _is_flat) if _is_flat(one)}
    if len(lengths) > 1:
        raise ValueError(
            "the parts of a batch must have the same number of samples along dimension 0; found "
            + (f"tensors of shapes {', '.join(map(str, shapes.values()))}" if shapes else f"lists of {sorted(lengths)}")
        )
    if not lengths:
        raise ValueError(f"a batch of type {type(batch).__name__} without a tensor or array of at least one dimension")
    if lengths == {0}:
        raise ValueError("the batch has no samples: its size along dimension 0 is 0")
    return lengths.pop()


def _has_samples(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim > 0


def _is_sequence(value: object, length: int | None = None) -> bool:
    """Return whether a value is a list or tuple, of that length where one is given, and no named tuple."""
    if not isinstance(value, list | tuple) or hasattr(value, "_fields"):
        return False
    return length is None or len(value) == length


def _is_flat(value: Any) -> bool:
    """Return whether a value is a list or tuple of leaves."""
    return _is_sequence(value) and all(next(leaves(one), None) is one for one in value)


def _host_bytes(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return leaf.numel() * leaf.element_size() if leaf.device.type == "cpu" else 0
    return leaf.nbytes if isinstance(leaf, np.ndarray) else 8 * len(leaf)  # pointers


def _repeated(leaf: Any, number: int) -> Any:
    """Return the samples of a tensor, array, list or tuple, from the first again after the last, number in all."""
    if isinstance(leaf, list | tuple):
        column: Any = leaf
        return column * (number // len(column)) + column[: number % len(column)]
    shape = (number, *leaf.shape[1:])
    if isinstance(leaf, torch.Tensor):
        made = torch.empty_permuted(
            shape, leaf.dim_order(), dtype=leaf.dtype, device=leaf.device
        )  # channels_last stays
        again = torch.arange(number, device=leaf.device) % len(leaf)
        torch.index_select(leaf.detach(), 0, again, out=made)
        return made.requires_grad_(leaf.requires_grad)
    return np.take(leaf, np.arange(number) % len(leaf), 0, np.empty_like(leaf, shape=shape), "clip")
