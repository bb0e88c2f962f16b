"""``penstock doctor``: checks the machine, or what of it concerns a dataset; lints the dataset and measures a loop."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch.utils.data

import penstock
from penstock import derived
from penstock.cli.terminal import add_verb, count, number, positive, say, shown, table, write_lines
from penstock.errors import InvalidOption
from penstock.insight.diagnosis import Diagnosis, diagnose, loader_maker
from penstock.insight.lint import Remark, lint
from penstock.insight.machine import Check, DatasetFiles, State, dataset_files, examine
from penstock.insight.targets import DATASET, default_transform, function, target
from penstock.insight.view import sentence
from penstock.loop_model import Cause
from penstock.system.words import counted, duration, size_of
from penstock.verdict import PAGE, WORTH

_DESCRIPTION = (
    "Without DATASET: checks this machine's CPUs, memory and limits. With DATASET: also checks the dataset's files and "
    "its Python objects for what would cost time or memory, or fail, in workers; then measures a loop over it by "
    "stages, and names what limits it and what would help. Exit code 1: something is bad."
)
_STEP = "what the loop does with a batch: it is called with one, and must not leave work behind on an accelerator"
_APPLY = "also measure the changes that arguments of the loader make"
#: Arguments that are of a measured loop.
_MEASURING = ("step", "apply", "seconds", "batch_size", "num_workers", "no_measure")


def add_parser(verbs: Any) -> None:
    doctor = add_verb(verbs, "doctor", _run, description=_DESCRIPTION)
    doctor.add_argument("dataset", metavar="DATASET", nargs="?", help=DATASET)
    doctor.add_argument("--json", action="store_true", help="print a JSON object instead of tables")
    loop = doctor.add_argument_group("a loop over DATASET is measured in its parts")
    loop.add_argument("--step", metavar="MODULE:FUNCTION", help=_STEP)
    loop.add_argument("--apply", action="store_true", help=_APPLY)
    loop.add_argument("--seconds", type=number, help="seconds for each part (3)")
    said = "samples of a batch (32, or the batch size of a given loader)"
    loop.add_argument("--batch-size", type=positive, metavar="N", help=said)
    loop.add_argument("--num-workers", type=count, metavar="N", help="workers of the loader (default: its own choice)")
    loop.add_argument("--no-measure", action="store_true", help="check and lint only: no sample is read")


class Report(NamedTuple):
    """What the doctor found."""

    checks: list[Check]
    dataset: str | None = None
    """What was given as DATASET; None: only the machine was checked."""
    remarks: Sequence[Remark] = ()
    diagnosis: Diagnosis | None = None
    """The measured loop; None: none was measured."""

    @property
    def states(self) -> list[State]:
        return [*(check.state for check in self.checks), *(remark.state for remark in self.remarks)]


def _run(arguments: argparse.Namespace) -> int:
    if arguments.dataset is None and (given := [name for name in _MEASURING if getattr(arguments, name)]):
        raise InvalidOption(f"--{given[0].replace('_', '-')} needs a DATASET, whose loop is measured")
    report = Report(list(examine())) if arguments.dataset is None else _dataset(arguments)
    write_lines(_json(report) if arguments.json else _text(report))
    return 1 if State.BAD in report.states else 0


def _dataset(arguments: argparse.Namespace) -> Report:
    """Return what was found about a dataset. Raises InvalidOption, OSError, CorruptShards."""
    failed: list[Check] = []

    def tried(name: str, look: Callable[[], Any], otherwise: Any, state: State = State.UNKNOWN) -> Any:
        try:
            return look()
        except InvalidOption as error:  # too few samples
            failed.append(Check(name, State.UNKNOWN, str(error)))
        except Exception as error:  # of the dataset's code
            failed.append(Check(name, state, f"what was checked raised {sentence(error)}"))
        return otherwise

    # What the user's own modules print is kept out of the command's output.
    with contextlib.nullcontext() if sys.stderr is None else contextlib.redirect_stdout(sys.stderr):
        found = target(arguments.dataset)
        step = None if arguments.step is None else function(arguments.step)
        transform = default_transform(arguments.dataset, found)
        checks = [Check("transform", State.OK, transform)] if transform else []
        checks += _passes(found)
        checks += examine(tried("dataset files", lambda: dataset_files(found), DatasetFiles()))
        remarks = tried("lint", lambda: lint(found), ())
        measured = None
        if not arguments.no_measure:
            measured = tried("the loop", lambda: _measured(found, step, arguments), None, State.BAD)
    return Report([*checks, *failed], arguments.dataset, remarks, measured)


def _passes(found: Any) -> Iterator[Check]:
    """Yield who makes the batches of a loader under install(), where its class is derived from torch's."""
    kind, ours = type(found), isinstance(found, penstock.DataLoader)
    if ours or kind is torch.utils.data.DataLoader or not isinstance(found, torch.utils.data.DataLoader):
        return
    why, own = derived.stays_torchs(found), derived.iterates_itself(kind)
    if why or (own and kind.__module__ != derived.TORCHDATA):
        why = why or f"its own code makes the iterators: {own}"
        yield Check("penstock.install()", State.LOOK, f"it leaves the passes of a {kind.__name__} as they are: {why}")
    else:
        yield Check("penstock.install()", State.OK, f"under it the passes of a {kind.__name__} are Penstock's")


def _measured(found: Any, step: Callable[[Any], object] | None, arguments: argparse.Namespace) -> Diagnosis:
    """Return what was measured of a loop over a dataset, or over a loader's. Raises what its samples raise."""
    options = {"batch_size": arguments.batch_size, "num_workers": arguments.num_workers}
    make = loader_maker(found, **{name: value for name, value in options.items() if value is not None})
    note = "penstock doctor: measuring {}".format
    seconds, apply = arguments.seconds or 3.0, arguments.apply
    return diagnose(make, step, seconds=seconds, apply=apply, note=lambda doing: say(note(doing)))


# --- as JSON ---------------------------------------------------------------------------------------------------------


def _json(report: Report) -> list[str]:
    values: dict[str, Any] = {"penstock": penstock.__version__, "bad": State.BAD in report.states}
    values["machine"] = _plain(report.checks)
    if report.dataset is not None:
        values |= {"dataset": report.dataset, "lint": _plain(report.remarks)}
    if (found := report.diagnosis) is not None:
        said = ("cause", "evidence", "change", "options")
        findings = [
            {name: getattr(one, name) for name in said}
            | {"predicted_gain": one.gain, "measured_gain": found.gains.get(one)}
            for one in found.findings
        ]
        values["loop"] = {
            "verdict": found.verdict,
            "loader_samples_per_second": found.alone,
            "step_seconds": found.step,
            "loop_samples_per_second": found.together,
            "stages": {name: stage._asdict() for name, stage in found.stages.items()},
            "findings": findings,
        }
    return json.dumps(values, indent=1).splitlines()


def _plain(found: Iterable[Any]) -> list[dict[str, str]]:
    return [{**asdict(one), "state": one.state.value} for one in found]


# --- as text ---------------------------------------------------------------------------------------------------------


def _text(report: Report) -> list[str]:
    lines = _table(report.checks)
    if report.dataset is not None:
        said = counted(len(report.remarks), "remark") if report.remarks else "no remark"
        remarks = [
            Check(one.rule, one.state, f"{one.where}: {one.what}\n{one.why}", one.change) for one in report.remarks
        ]
        lines += ["", f"{shown(report.dataset)}: {said} of the lint", *_table(remarks)]
    if (found := report.diagnosis) is not None:
        lines += ["", "the loop, measured", *_table(_parts(found))]
        lines += ["", "findings, the one that would help most first", *_table(_findings(found))]
        lines += ["", f"{found.verdict} What the words mean: {PAGE}"]
    states = report.states
    return [*lines, "", ", ".join(f"{states.count(state):,} {state.value}" for state in State if state in states)]


def _parts(found: Diagnosis) -> Iterator[Check]:
    """Yield a row for the loader alone, the step alone, the loop, and each stage."""
    yield Check("loader alone", State.OK, f"{found.alone:,.0f} samples/s")
    if found.step is not None:
        yield Check("step", State.OK, f"{duration(found.step)} a batch")
        yield Check("loop", State.OK, f"{found.together:,.0f} samples/s")
    for name, stage in sorted(found.stages.items(), key=lambda item: -item[1].seconds):
        each, seconds = stage.seconds / max(1, stage.samples), max(stage.seconds, 1e-9)
        words = f"{duration(each)} a sample, {stage.cpu_seconds / seconds:.0%} of it on a CPU"
        if stage.bytes:
            words += f"; {size_of(int(stage.bytes / seconds))}/s for a worker"
        yield Check(f"stage {name}", State.OK, words)


def _findings(found: Diagnosis) -> Iterator[Check]:
    """Yield a row for each finding, the one that would help most first."""
    for finding in found.findings:
        change, gain = "", found.gains.get(finding)
        if finding.change:
            measured = "" if gain is None else f"; measured: {gain:.2f}x"
            change = f"{finding.change}: about {finding.gain:.2f}x predicted{measured}"
        elif finding.cause is Cause.COMPUTE:
            change = "a faster step: no loader makes this loop faster"
        state = State.OK if finding.gain < WORTH else State.LOOK
        yield Check(str(finding.cause), state, finding.evidence, change)


def _table(checks: Iterable[Check]) -> list[str]:
    """Return aligned lines: the state, a name, and what was found, with a line for what to do."""
    rows: list[tuple[str, str, str]] = []
    for one in checks:
        found, *more = [*one.found.split("\n"), *([f"-> {one.change}"] if one.change else [])]
        rows += [(one.state.value, shown(one.name), shown(found)), *(("", "", shown(line)) for line in more)]
    return table(rows) if rows else []
