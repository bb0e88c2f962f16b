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
from functools import partial
from typing import Any, TypeVar

import torch

from penstock.device.samples import Samples
from penstock.errors import InvalidOption, OutOfMemory

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
    return isinstance(error, RuntimeError) and _SAID.search(str(error)) is not None


def release_memory() -> None:
    """Collect garbage, and give back what PyTorch's allocator keeps for later on every device."""
    gc.collect()
    if torch.accelerator.is_available():
        try:
            torch.accelerator.memory.empty_cache()
        except RuntimeError as error:  # short of memory, even this has been seen to fail
            if not is_out_of_memory(error):
                raise


def find_batch_size(
    step: Step[object], example_batch: object, *, start: int | None = None, most: int | None = None
) -> int:
    """Return the largest batch size whose step fits into memory, found by doubling and bisection.

    The samples of example_batch are repeated, or cut, to the size that is tried, on the device that they are on; so
    they should be as long as the longest of the data. Each try has tensors of its own, and what it held is freed
    before the next. There are about 2 * log2(size) tries.

        size = penstock.find_batch_size(train_step, next(iter(loader)))

    The step really runs: it changes weights, gradients, optimiser states and random generators. Find the size before
    the training, with a step that does all that takes memory there (backward() and the optimiser's step too), or give
    it a copy of the model. The first size that fits is tried twice, because a first run leaves behind gradients and
    optimiser states that the second finds in its way. A size that just fits today leaves no room for longer samples
    or for another process on the device. Under DistributedDataParallel, give it the model that is not wrapped yet, and
    take the least size of all ranks.

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

    Where memory runs out, the part that failed is cut in two and tried again; no sample is lost or repeated, and the
    parts that were done are not run again. The result is a list always, of one result when the batch fits whole.

    The size that worked is remembered for as long as the step lives, so the next batches do not fail first: for a
    bound method with its object, for a functools.partial with its function and arguments. Give the same step each
    time, not a new lambda. It never grows by itself: start=len(batch) forgets it.

    With gradients, a loss that is a mean over the batch must be weighted: where step has a parameter share besides
    the batch, it gets the samples of the micro-batch over those of the batch (1.0 for a whole batch):

        def step(batch, share):
            images, labels = batch
            loss = loss_function(model(images), labels) * share
            loss.backward()
            return loss.item()

        for batch in loader:
            optimizer.zero_grad()
            loss = sum(penstock.run_within_memory(step, batch, undo=optimizer.zero_grad))
            optimizer.step()

    A failed try leaves behind what step did before memory ran out. That matters for backward(): it may have added to
    the gradients of some layers. undo= takes that back: it is called after a failed try, must undo all that step has
    done to this batch, and then the whole batch is run again in smaller parts. Other traces remain, of failed tries as
    of every micro-batch: random numbers drawn, running means of batch norm, changes made to the batch in place.

    Results are kept until the last part is done: return loss.item() or loss.detach(), for a loss holds on to its
    graph. Under DistributedDataParallel every rank must call backward() equally often, so that a rank must not split
    on its own: use find_batch_size() beforehand.

    Args:
        step: called as step(batch) or step(batch, share=...), with the batch itself or with views of its tensors.
        batch: as for find_batch_size().
        start: samples of the largest micro-batch to begin with; None: the size that worked before, else all.
        undo: takes back what step has done since this call began, such as optimizer.zero_grad.

    Raises:
        ValueError: the batch is empty, or its tensors disagree about the number of samples, or it cannot be cut.
        InvalidOption: start below 1.
        Exception: what step raises, among that the out-of-memory error of a sample that does not fit alone.
    """
    samples = Samples(batch)
    known = _sizes.get(_identity(step)[0], (samples.number,))[0]
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
            error.add_note(f"Sample {done} of a batch of {samples.number} does not fit into memory on its own.")
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
    outer = sys.exception()
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


#: The micro-batch sizes that worked, by what tells their steps apart, with references that forget them. Steps need be
#: neither hashable nor comparable. Each use is one operation of the dict, which threads may do at once.
_sizes: dict[tuple[object, ...], tuple[int, list[weakref.ref[Any]]]] = {}


def _remember(step: object, size: int) -> None:
    """Remember the size that worked for a step, for as long as the step lives."""
    key, living = _identity(step)
    if living:  # else nothing would say when to forget it
        _sizes[key] = (size, [weakref.ref(one, lambda _: _sizes.pop(key, None)) for one in living])


def _identity(step: object) -> tuple[tuple[object, ...], list[object]]:
    """Return what tells a step from others, and the objects that must live for that to hold."""
    key: list[object] = []
    living: list[object] = []
    pending = [step]
    while pending:
        part = pending.pop()
        if isinstance(part, types.MethodType):  # made anew each time that it is looked up
            pending += [part.__func__, part.__self__]
        elif isinstance(part, partial):
            pending += [part.func, *part.args, *part.keywords, *part.keywords.values()]
        elif type(part) in (str, bytes, int, float, bool, types.NoneType):
            key += [type(part), part]
        elif type(part).__weakrefoffset__:  # a weak reference says when it is gone
            key.append(id(part))
            living.append(part)
        else:
            key.append(type(part))  # a list or the like: does not tell two steps apart
    return tuple(key), living
