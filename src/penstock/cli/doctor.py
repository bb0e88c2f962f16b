"""``penstock doctor``: checks the machine, or what of it concerns a dataset, and lints the dataset."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import penstock
from penstock.cli.diagnosis import advice_rows, as_dict, finding_rows, part_rows
from penstock.cli.numbers import count, positive, seconds
from penstock.cli.terminal import say, shown, width, write_lines
from penstock.errors import InvalidOption
from penstock.insight.check import Check, State
from penstock.insight.dataset_files import dataset_files
from penstock.insight.diagnosis import Diagnosis, diagnose, loader_maker
from penstock.insight.lint import Remark, lint
from penstock.insight.machine.examine import DatasetFiles, examine
from penstock.insight.targets import function, target

_DESCRIPTION = (
    "Without DATASET: checks what this machine gives to a loader: CPUs, memory, limits, the temporary folder's disk, "
    "GPUs and their links. With DATASET: checks what of it concerns the dataset, and looks at the dataset's own Python "
    "code and state for what costs time or memory, or fails, in workers; then measures a loop over it, in its parts, "
    "and says what holds it up and what would help. Takes some seconds, because disks and copies are measured with "
    "files and buffers of its own, which are removed. Exit code 1: something is bad."
)
_DATASET = (
    "a folder of images (class/name.jpg), of .pt or .npy files or of packed shards, or module:object: a dataset, a "
    "loader, or a function without arguments that returns one; modules are looked for in the current folder too"
)
#: Arguments that are of a measured loop.
_MEASURING = ("step", "apply", "batch_size", "num_workers", "no_measure")
#: Columns that a narrow terminal still gives to what was found.
_LEAST = 40


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    words = "check the machine, or a dataset on it, for what slows loading down"
    doctor = verbs.add_parser("doctor", help=words, description=_DESCRIPTION, allow_abbrev=False)
    doctor.add_argument("dataset", metavar="DATASET", nargs="?", help=_DATASET)
    doctor.add_argument("--json", action="store_true", help="print a JSON object instead of tables")
    measuring = doctor.add_argument_group("a loop over DATASET is measured in its parts")
    measuring.add_argument(
        "--step",
        metavar="MODULE:FUNCTION",
        help="what the loop does with a batch: it is called with one, and must not leave work behind on an accelerator",
    )
    measuring.add_argument(
        "--apply", action="store_true", help="make the changes that arguments of the loader make, and measure them too"
    )
    measuring.add_argument("--seconds", type=seconds, default=3.0, help="for each part (3)")
    measuring.add_argument(
        "--batch-size", type=positive, metavar="N", help="of the loader (32, or that of a given loader)"
    )
    measuring.add_argument("--num-workers", type=count, metavar="N", help="of the loader (as a loader chooses)")
    measuring.add_argument("--no-measure", action="store_true", help="check and lint only: no sample is read")
    doctor.set_defaults(run=_run)


@dataclass(frozen=True)
class Report:
    """What the doctor found."""

    checks: list[Check]
    dataset: str | None = None
    """What was given as DATASET; None: only the machine was checked."""
    remarks: list[Remark] = field(default_factory=list)
    diagnosis: Diagnosis | None = None
    """The measured loop; None: none was measured."""

    @property
    def bad(self) -> bool:
        """Whether anything is bad."""
        return State.BAD in self.states

    @property
    def states(self) -> list[State]:
        """The state of each check and remark."""
        return [check.state for check in self.checks] + [remark.state for remark in self.remarks]


def _run(arguments: argparse.Namespace) -> int:
    if arguments.dataset is None and (given := [name for name in _MEASURING if getattr(arguments, name)]):
        raise InvalidOption(f"--{given[0].replace('_', '-')} needs a DATASET, whose loop is measured")
    report = _machine() if arguments.dataset is None else _dataset(arguments)
    write_lines(_json(report) if arguments.json else _text(report, width()))
    return 1 if report.bad else 0


def _machine() -> Report:
    return Report(list(examine()))


def _dataset(arguments: argparse.Namespace) -> Report:
    """Return what was found about a dataset. Raises InvalidOption, OSError, CorruptShards."""
    name = arguments.dataset
    with _prints_to_stderr():
        found = target(name)
        step = None if arguments.step is None else function(arguments.step)
        checks, files, remarks = [], DatasetFiles(), list[Remark]()
        try:
            files = dataset_files(found)
        except Exception as error:  # of the dataset's own code
            checks.append(_unknown("dataset files", error))
        checks += examine(files)
        try:
            remarks = lint(found)
        except Exception as error:
            checks.append(_unknown("lint", error))
        diagnosis = None
        try:
            diagnosis = None if arguments.no_measure else _measured(found, step, arguments)
        except Exception as error:  # of the dataset's own code; or there are too few samples
            checks.append(_unknown("the loop", error))
        return Report(checks, name, remarks, diagnosis)


def _measured(found: Any, step: Callable[[Any], object] | None, arguments: argparse.Namespace) -> Diagnosis:
    """Return what was measured of a loop over a dataset, or over a loader's. Raises what its samples raise."""
    options = {"batch_size": arguments.batch_size, "num_workers": arguments.num_workers}
    make = loader_maker(found, **{name: value for name, value in options.items() if value is not None})
    return diagnose(
        make,
        step,
        seconds=arguments.seconds,
        apply=arguments.apply,
        note=lambda doing: say(f"penstock doctor: measuring {doing}"),
    )


def _unknown(name: str, error: Exception) -> Check:
    return Check(name, State.UNKNOWN, f"what was looked at raised {type(error).__name__}: {error}")


@contextlib.contextmanager
def _prints_to_stderr() -> Any:
    """Keep what the user's own modules print out of the command's output."""
    if sys.stderr is None:
        yield
    else:
        with contextlib.redirect_stdout(sys.stderr):
            yield


# --- output ----------------------------------------------------------------------------------------------------------


def _json(report: Report) -> list[str]:
    values: dict[str, Any] = {"penstock": penstock.__version__, "bad": report.bad, "machine": _rows(report.checks)}
    if report.dataset is not None:
        values |= {"dataset": report.dataset, "lint": _rows(report.remarks)}
    if report.diagnosis is not None:
        values["loop"] = as_dict(report.diagnosis)
    return json.dumps(values, indent=1).splitlines()


def _rows(found: Iterable[Any]) -> list[dict[str, str]]:
    return [{**asdict(one), "state": one.state.value} for one in found]


def _text(report: Report, columns: int | None) -> list[str]:
    """Return the lines of the report. columns: of the terminal; None: there is none, and no line is broken."""
    lines = _table([(check.state, check.name, [check.found, *_todo(check.change)]) for check in report.checks], columns)
    if report.dataset is not None:
        lines += ["", f"{shown(report.dataset)}: {_counted(report.remarks)} of the lint"]
        rows = [
            (remark.state, remark.rule, [f"{remark.where}: {remark.what}", remark.why, *_todo(remark.change)])
            for remark in report.remarks
        ]
        lines += _table(rows, columns)
    if (diagnosis := report.diagnosis) is not None:
        lines += ["", "the loop, measured", *_table(part_rows(diagnosis), columns)]
        lines += ["", "findings, the one that would help most first", *_table([*finding_rows(diagnosis)], columns)]
        lines += ["", "what tutorials advise, here", *_table([*advice_rows(diagnosis)], columns), "", diagnosis.verdict]
    return [*lines, "", _summary(report)]


def _todo(change: str) -> list[str]:
    return [f"-> {change}"] if change else []


def _table(rows: Sequence[tuple[State, str, list[str]]], columns: int | None) -> list[str]:
    """Return aligned lines: the state, a name, and paragraphs."""
    states = max((len(state.value) for state, _, _ in rows), default=0)
    names = max((len(name) for _, name, _ in rows), default=0)
    margin = states + names + 4
    lines = []
    for state, name, paragraphs in rows:
        body = [line for paragraph in paragraphs for line in _broken(shown(paragraph), columns, margin)]
        lines.append(f"{state.value:<{states}}  {shown(name):<{names}}  {body[0]}")
        lines += [" " * margin + line for line in body[1:]]
    return lines


def _broken(text: str, columns: int | None, margin: int) -> list[str]:
    if columns is None:
        return [text]
    indent = "   " if text.startswith("-> ") else ""
    room = max(_LEAST, columns - margin)
    return textwrap.wrap(text, room, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]


def _counted(remarks: list[Remark]) -> str:
    return f"{len(remarks):,} remark{'' if len(remarks) == 1 else 's'}" if remarks else "no remark"


def _summary(report: Report) -> str:
    counts = [f"{report.states.count(state):,} {state.value}" for state in State if state in report.states]
    return ", ".join(counts)
