"""What went wrong with the samples of a batch that native threads filled: the error of the batch, or a remedy."""

from __future__ import annotations

from collections import Counter

import penstock._native as _native
from penstock.errors import ShapeMismatch
from penstock.memory.buffers import Field
from penstock.plan import NativePlan
from penstock.sample_notes import add_note, not_an_end, resize_hint
from penstock.sources.reading import named, outside_root, system_error
from penstock.state.delivery import Task
from penstock.state.substitutes import Substitutes
from penstock.workers.native_crew import NativeBatch, NativeCrew


def error_of(plan: NativePlan, batch: NativeBatch, failures: list[_native.Failure]) -> Exception:
    """Return the error of the first sample that failed; a shape counts only where nothing worse happened."""
    grave = [failure for failure in failures if failure[2] != "mismatch"]
    position, number, code, system, *_ = (grave or failures)[0]
    name, path = identify(plan, batch, position)
    if code == "python":
        error = not_an_end(batch.python_errors[position], "by the dataset")
        place = f"at position {position} of a batch of {len(batch.indices)}"
        add_note(error, f"{place}: {named(name, path)}")
        return error if isinstance(error, Exception) else RuntimeError(f"sample {name!r} was interrupted")
    if code == "io":
        return system_error(system, name, path or name)
    if code == "escapes":
        return outside_root(name, path or name)
    return _mismatch(plan, batch, failures, number)


def identify(plan: NativePlan, batch: NativeBatch, position: int) -> tuple[str, str | None]:
    """Return the ID and the file of a sample of a batch, for messages."""
    name, path = plan.leaf(batch.leaves, position).identify(int(batch.local[position]))
    if path is None:  # a number in one of several datasets would name two samples
        name = f"number {batch.indices[position]}"
    return name, path


def why_stuck(plan: NativePlan, crew: NativeCrew, pool: _native.Pool, timeout: float, threads: int) -> str:
    """Return, for the error of a batch that did not come in so many seconds, what each thread is at."""
    at = [(*busy, "natively") for busy in pool.busy()] + [(*busy, "by Python") for busy in crew.busy()]
    lines = []
    for number, position, seconds, how in at:
        batch = crew.batches.get(number)
        if batch is not None:
            name, path = identify(plan, batch, position)
            lines.append(f"{named(name, path)} is being read {how} since {seconds:.1f} s")
    return (
        f"DataLoader timed out after {timeout} seconds: no batch came from {threads} native threads. "
        "Raise timeout= if samples may take that long; else check their file system.\n"
        + "\n".join(lines or ["No thread is working."])
    )


def agree_on_fields(crew: NativeCrew, batch: NativeBatch, failures: list[_native.Failure], *, lenient: bool) -> bool:
    """Have a crew fill the next batches with the shapes on which the samples of a batch agree; False: they do not.

    lenient: bad samples are replaced: the shape that most samples of the first batch have is the right one.
    """
    if any(code != "mismatch" for _, _, code, *_ in failures):
        return False
    learned = list(crew.fields)
    for number in {failure[1] for failure in failures}:
        found = Counter((dtype, shape) for _, field, _, _, _, dtype, shape in failures if field == number)
        agree = len(found) == 1 and found.total() == len(batch.indices)
        if not agree and (not lenient or learned[number] is not None):
            return False
        dtype, shape = found.most_common(1)[0][0]
        learned[number] = Field(_native.Spec(dtype, shape))
    crew.fields = learned
    return True


def put_others(batch: NativeBatch, positions: list[int], substitutes: Substitutes) -> bool:
    """Draw a sample that is not known as bad for each of these positions; False: none is left for one of them."""
    task = Task(batch.wanted, *batch.key)
    indices = batch.indices.copy()
    for position in positions:
        candidates = substitutes.candidates(task, int(batch.wanted[position]), batch.positions[position])
        index = next((int(i) for i in candidates if not substitutes.is_bad(int(i))), None)
        if index is None:
            return False
        indices[position] = index
    batch.indices = indices
    return True


def _mismatch(plan: NativePlan, batch: NativeBatch, failures: list[_native.Failure], number: int) -> ShapeMismatch:
    """Return the error that names two samples of a batch which do not agree in a field."""
    of_field = {failure[0]: (failure[5], failure[6]) for failure in failures if failure[1] == number}
    spec = batch.fields[number].spec
    shapes = [of_field.get(i, (spec.dtype, spec.shape)) for i in range(len(batch.indices))]
    first = shapes[0]
    position = next((i for i, shape in enumerate(shapes) if shape != first), 0)
    name, path = identify(plan, batch, position)
    other, _ = identify(plan, batch, 0)
    return ShapeMismatch(
        f"{named(name, path)} has {_shape(shapes[position])}; this batch holds "
        f"{_shape(first)}, as sample {other!r} does. Give collate_fn= to batch samples of different shapes or "
        f"dtypes, or a transform that makes them equal{resize_hint(first[1], shapes[position][1])}",
        sample_id=name,
        path=path,
    )


def _shape(shape: tuple[str, tuple[int, ...]]) -> str:
    return f"shape {tuple(shape[1])} of {shape[0]}"
