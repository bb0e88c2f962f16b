"""What went wrong with the samples of a batch that native threads filled, as the error of the batch."""

from __future__ import annotations

import penstock._native as _native
from penstock.errors import ShapeMismatch
from penstock.executors.workers.native import NativeBatch
from penstock.plan import NativePlan
from penstock.sample_notes import add_note
from penstock.sources.reading import outside_root, system_error, unreadable


def error_of(plan: NativePlan, batch: NativeBatch, failures: list[_native.Failure]) -> Exception:
    """Return the error of the first sample that failed; a shape counts only where nothing worse happened."""
    grave = [failure for failure in failures if failure[2] != "mismatch"]
    position, number, code, system, *_ = (grave or failures)[0]
    name, path = identify(plan, batch, position)
    if code == "python":
        error = batch.rescues_failed[position]
        place = f"at position {position} of a batch of {len(batch.indices)}"
        add_note(error, f"{place}: sample {name!r} ({path or 'in memory'})")
        return error if isinstance(error, Exception) else RuntimeError(f"sample {name!r} was interrupted")
    if code == "io":
        return system_error(system, name, path or name)
    if code == "escapes":
        return outside_root(name, path or name)
    if code == "moved":
        gone = plan.leaf(batch.leaves, position).gone
        return (gone and gone(int(batch.local[position]))) or unreadable(name)
    return _mismatch(plan, batch, failures, number)


def identify(plan: NativePlan, batch: NativeBatch, position: int) -> tuple[str, str | None]:
    """Return the ID and the file of a sample of a batch, for messages."""
    name, path = plan.leaf(batch.leaves, position).identify(int(batch.local[position]))
    if path is None:  # a number in one of several datasets would name two samples
        name = f"number {batch.indices[position]}"
    return name, path


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
        f"sample {name!r} ({path or 'in memory'}) has {_shape(shapes[position])}; this batch holds "
        f"{_shape(first)}, as sample {other!r} does. Give collate_fn= to batch samples of different shapes or "
        "dtypes, or a transform that makes them equal",
        sample_id=name,
        path=path,
    )


def _shape(shape: tuple[str, tuple[int, ...]]) -> str:
    return f"shape {tuple(shape[1])} of {shape[0]}"
