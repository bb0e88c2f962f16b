"""Failing cases made smaller, so that they show what is wrong and little else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.differential.case import Case

_PLAIN = "numbers(i, torch.float32, 2)"


def shrunk(case: Case, fails: Callable[[Case], bool], tries: int = 60) -> Case:
    """Return a simpler case that still fails, after so many tries at most."""
    while True:
        for simpler in _simpler(case):
            if tries <= 0:
                return case
            tries -= 1
            if fails(simpler):
                case = simpler
                break
        else:
            return case


def _without(values: tuple[str, ...], least: int = 0) -> Iterator[tuple[str, ...]]:
    for n in range(len(values)):
        if len(values) > least:
            yield (*values[:n], *values[n + 1 :])


def _simpler(case: Case) -> Iterator[Case]:
    """Yield cases that are a step simpler, the largest steps first."""
    if case.loop != "hold":
        yield replace(case, loop="hold", arguments=())
        yield replace(case, loop="hold", arguments=("epochs=2", "last=1000"))
    for options in _without(case.options):
        if not any(option.startswith("pin_memory") for option in set(case.options) - set(options)):
            yield replace(case, options=options)
    for options in _without(case.own):
        yield replace(case, own=options)
    if case.pins:
        yield replace(case, pins=False, options=tuple(o for o in case.options if o != "pin_memory=True"))
    if case.wrong:
        yield replace(case, wrong="")
    for fields in _without(case.fields, 1):
        yield replace(case, fields=fields)
    if case.kind not in ("map", "rows", "tensors", "names", "files"):
        yield replace(case, kind="map")
    if case.container != "bare" and len(case.fields) == 1:
        yield replace(case, container="bare")
    if case.container not in ("tuple", "bare"):
        yield replace(case, container="tuple")
    if case.kind != "tensors":
        for n, field in enumerate(case.fields):
            if field != _PLAIN and len(case.fields) > 1:
                yield replace(case, fields=(*case.fields[:n], _PLAIN, *case.fields[n + 1 :]))
    for n, argument in enumerate(case.arguments):
        if (found := re.fullmatch(r"(\w+)=(\d+)", argument)) and int(found[2]) > 1:
            for smaller in {1, int(found[2]) // 2}:
                yield replace(case, arguments=(*case.arguments[:n], f"{found[1]}={smaller}", *case.arguments[n + 1 :]))
    for n, option in enumerate(case.options):
        if (found := re.fullmatch(r"(num_workers|batch_size)=(\d+)", option)) and int(found[2]) > 1:
            yield replace(case, options=(*case.options[:n], f"{found[1]}={int(found[2]) - 1}", *case.options[n + 1 :]))
    if case.length > 2 and case.kind not in ("names", "tensors", "rows") and "ampler" not in " ".join(case.options):
        yield replace(case, length=case.length // 2)
        yield replace(case, length=case.length - 1)
