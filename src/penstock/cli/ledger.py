"""``penstock ledger diff|seen|show``: the files that record which samples each step of a run was given."""

from __future__ import annotations

import argparse
import json
from typing import Any

from penstock.cli.terminal import add_actions, add_verb, count, shown, table, write_lines
from penstock.errors import InvalidOption
from penstock.state.coverage import Seen, seen
from penstock.state.ledger import Comparison, LedgerFile, Record, compare, read
from penstock.system.words import counted


def add_parser(verbs: Any) -> None:
    description = "Shows and compares ledgers, the files that record which samples each step of a run was given."
    actions = add_actions(verbs, "ledger", description)
    diff = add_verb(
        actions,
        "diff",
        _diff,
        "print the step at which two runs diverged",
        " Exit code 0: they are equal up to the end of the shorter one; 1: they diverged; 2: they cannot be read or "
        "compared, because their ranks, numbers of ranks or batch sizes differ, or because no step is in both. "
        "Steps that a resumed run left behind are ignored.",
    )
    diff.add_argument("a", metavar="A", help="the ledger of one run")
    diff.add_argument("b", metavar="B", help="the ledger of the other")
    every = add_verb(
        actions,
        "seen",
        _seen,
        "say whether each sample was given once, in each epoch",
        " FILE: the ledgers of all ranks, and of the runs that continued each other, also with other numbers of ranks "
        "and batch sizes. The samples of the steps are counted. Exit code 0: each sample was given once; 1: it was "
        "not; 2: the ledgers cannot be read, are of different runs, or one is missing.",
    )
    every.add_argument("files", metavar="FILE", nargs="+", help="a ledger")
    show = add_verb(actions, "show", _show, "print what a ledger holds")
    show.add_argument("file", metavar="FILE", help="the ledger")
    show.add_argument("--epoch", type=count, metavar="E", help="print each step of this epoch instead")


def _diff(arguments: argparse.Namespace) -> int:
    a, b = read(arguments.a), read(arguments.b)
    found = compare(a, b)
    names = shown(a.path), shown(b.path)
    diverged = found.at is not None and found.ended is None
    lines = [_verdict(found, a, names)]
    if diverged:
        lines += [f"  {name}: {_step(record)}" for name, record in zip(names, (found.a, found.b), strict=True)]
    if found.since is not None:
        lines.append(f"compared from {_place(found.since)}, where one of them begins")
    lines += [
        f"{shown(name)}: {shown(one)} in {names[0]}, {shown(two)} in {names[1]}" for name, one, two in found.facts
    ]
    write_lines(lines)
    return 1 if diverged else 0


def _verdict(found: Comparison, a: LedgerFile, names: tuple[str, str]) -> str:
    steps = counted(found.equal, "step")
    if found.at is None:
        return f"equal: {steps}, to {_place(a.steps[-1][:2])}" if a.steps else f"equal: {steps}"
    if found.ended is None:
        return f"diverged at {_place(found.at)}, after {steps} in which they are equal"
    short, long = names[found.ended], names[1 - found.ended]
    return f"equal up to the end of {short}: {steps}; {long} continues with {_place(found.at)}"


def _seen(arguments: argparse.Namespace) -> int:
    epochs = seen(map(read, arguments.files))
    write_lines([_of_epoch(one) for one in epochs] or ["no step is in these ledgers"])
    return 0 if epochs and all(one.once for one in epochs) else 1


def _of_epoch(one: Seen) -> str:
    said, size = f"epoch {one.epoch:,}", counted(one.size, "sample")
    if not one.parts:
        return f"{said}: the steps do not continue each other, or a ledger of this epoch is missing"
    runs = ", then ".join(f"{counted(steps, 'step')} on {counted(run.world, 'rank')}" for run, steps in one.parts)
    if again := sum(len(run.samples) - steps for run, steps in one.parts):
        runs += f"; {counted(again, 'step')} did not count: a later run repeated {'it' if again == 1 else 'them'}"
    if one.once:
        return f"{said}: each of {size} once ({runs})"
    if one.given > one.size:
        twice = counted(one.given - one.size, "sample")
        return f"{said}: {twice} of {size} twice, so that each rank has as many ({runs})"
    return f"{said}: {one.given:,} of {size} once, the others not at all ({runs})"


def _show(arguments: argparse.Namespace) -> int:
    file = read(arguments.file)
    write_lines(_summary(file) if arguments.epoch is None else _epoch(file, arguments.epoch))
    return 0


def _summary(file: LedgerFile) -> list[str]:
    facts = ", ".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in file.run.items())
    rows = [("ledger", file.path), ("run", facts or "-"), ("epochs", "0"), ("steps", "0"), ("samples", "0")]
    if file.steps:
        first, last, epochs = file.steps[0], file.steps[-1], _epochs(file)
        rows[2:] = [
            ("epochs", f"{len(epochs):,}: {_range(epochs)}"),
            ("steps", f"{len(file.steps):,}: {_place(first[:2])} to {_place(last[:2])}"),
            ("samples", f"{sum(step.samples for step in file):,}"),
            ("hash", f"{last.hash} of the last step"),
        ]
    if file.resumed:
        times = "once" if file.resumed == 1 else f"{file.resumed:,} times"
        rows.append(("resumed", f"{times}, {counted(file.abandoned, 'step')} abandoned"))
    if file.torn:
        rows.append(("torn", f"{counted(file.torn, 'byte')} of a line that was not finished"))
    return [f"{name:<9}  {shown(text)}" for name, text in rows]


def _epoch(file: LedgerFile, epoch: int) -> list[str]:
    steps = [step for step in file if step.epoch == epoch]
    if not steps:
        epochs = _epochs(file)
        others = f"epoch{'s' * (len(epochs) > 1)} {_range(epochs)}" if epochs else "no step at all"
        raise InvalidOption(f"{file.path!r} contains no step of epoch {epoch}; it contains {others}")
    rows = [("STEP", "SAMPLES", "HASH")]
    rows += [(f"{step.step:,}", f"{step.samples:,}", step.hash) for step in steps]
    return table(rows, right=(0, 1))


def _epochs(file: LedgerFile) -> list[int]:
    return sorted({step.epoch for step in file})


def _range(epochs: list[int]) -> str:
    return f"{epochs[0]:,}" if len(epochs) == 1 else f"{epochs[0]:,} to {epochs[-1]:,}"


def _place(step: tuple[int, int]) -> str:
    return f"epoch {step[0]:,} step {step[1]:,}"


def _step(record: Record | None) -> str:
    return "no such step" if record is None else f"{counted(record.samples, 'sample')}, hash {record.hash}"
