"""Plans of datasets, and Penstock's own passes over them, for tests of what a device does with batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.carriers.native import NativeCarrier
from penstock.memory.buffers import Buffers
from penstock.order.batches import as_indices, with_sample_numbers
from penstock.passes.iterator import Pass
from penstock.passes.values import PassInput, PassResources
from penstock.plan import NativePlan, plan


def plan_of(dataset: Any, *, raw: bool = True, **options: Any) -> Any:
    return plan(dataset, batched=True, collate_fn=None, worker_init_fn=None, raw=raw, **options)


def native_plan(dataset: Any, *, raw: bool = True, **options: Any) -> NativePlan:
    made = plan_of(dataset, raw=raw, **options)
    assert isinstance(made, NativePlan), made
    return made


def resources(workers: int = 2, *, keep: int = 8, **options: Any) -> PassResources:
    return PassResources(workers, None, Buffers(pinned=False, keep=keep), **options)


def pass_input(batches: Iterable[Any], seed: int = 3, epoch: int = 1) -> PassInput:
    number = len(batches) if isinstance(batches, list) else None
    return PassInput(with_sample_numbers(map(as_indices, batches), 0, batched=True), number, seed, epoch)


def on_host(made: NativePlan, batches: Iterable[Any], workers: int = 2, **key: Any) -> Pass:
    """Return a pass over a plan without a device."""
    return Pass(NativeCarrier(made, resources(workers)), pass_input(batches, **key))
