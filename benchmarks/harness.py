"""What a benchmark is made of, and how its contestants are measured: interleaved, one process each.

A question holds tables; a table holds contestants that deliver the same samples, and the targets that it checks.
Each contestant lives in a process of its own (so that no peer's libraries disturb another's), is warmed up by one
epoch, and is stopped (SIGSTOP to its process group) while another one measures: A B C, A B C, ... for every round.
Question modules import only the standard library and this package at the top: their libraries are optional, and a
contestant whose library is missing is listed with the reason instead of ending the run.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, process

Facts = dict[str, Any]
Numbers = dict[str, float]


class Role(enum.StrEnum):
    """What a contestant is compared as."""

    TORCH = "torch"
    PENSTOCK = "penstock"
    BARE = "bare"
    PEER = "peer"
    ASIDE = "aside"  # shown with its ratios, never taken as the best peer; its description says why


@dataclasses.dataclass(frozen=True)
class Measure:
    """One number that a contestant gives per round."""

    key: str
    unit: str
    higher_is_better: bool = True


SPEED = Measure("samples_per_s", "samples/s")


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    cache: Path
    results: Path
    rounds: int
    quick: bool
    photos: Path | None
    ids: int | None
    peers_python: str
    only: tuple[str, ...] = ()
    before: str | None = None
    """The interpreter of an environment with another build of Penstock, which is measured beside this one."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What every contestant of a table is given: the same data, batch size and number of workers or threads."""

    data: str
    samples: int
    batch: int = 64
    workers: int = 2
    variant: str = ""
    facts: Facts = dataclasses.field(default_factory=dict)

    def path(self, *parts: str) -> Path:
        """A path inside the prepared data."""
        return Path(self.data, *parts)


@dataclasses.dataclass(frozen=True)
class Running:
    """A contestant that is ready: `epoch()` gives the samples it delivered, or its own numbers by measure."""

    epoch: Callable[[], int | Numbers]
    explain: Callable[[], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A way to deliver the samples. `build` runs in the contestant's process; its docstring says how it is set up."""

    name: str
    role: Role
    build: Callable[[Setup], Running]
    packages: tuple[str, ...] = ()
    peers_venv: bool = False

    @property
    def how(self) -> str:
        return " ".join((self.build.__doc__ or "").split())

    def before(self) -> Contestant:
        """The same contestant, to be run with the other build of Penstock."""
        return dataclasses.replace(self, name=self.name + process.BEFORE, role=Role.ASIDE)


@dataclasses.dataclass(frozen=True)
class Target:
    """`contestant`'s median against `bound`: over that of `to` ("best peer": the best), or alone if None."""

    contestant: str
    bound: float
    to: str | None = None
    measure: Measure = SPEED


@dataclasses.dataclass(frozen=True)
class Table:
    """Contestants over one setup. `fresh`: a new process for each round, nothing warmed but the page cache."""

    name: str
    title: str
    contestants: tuple[Contestant, ...]
    targets: tuple[Target, ...] = ()
    measures: tuple[Measure, ...] = (SPEED,)
    fresh: bool = False


@dataclasses.dataclass(frozen=True)
class Question:
    """One benchmark file: `prepare` makes the data once (in the cache) and says what every contestant is given."""

    name: str
    title: str
    tables: tuple[Table, ...]
    prepare: Callable[[Options], Setup]


def over(loader: Iterable[Any]) -> Running:
    """A loader of (x, y) tensor batches: one element of each x is read, the samples are counted."""

    def epoch() -> int:
        count = 0
        for x, y in loader:
            x[(0,) * x.ndim].item()
            count += len(y)
        return count

    return Running(epoch, getattr(loader, "explain", None))


def made(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` when it is not there yet: an interrupted `make` leaves nothing that counts."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished-{os.getpid()}")
        unfinished.mkdir(parents=True)
        try:
            make(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def answer(question: Question, options: Options) -> Facts:
    """Measures every table of the question, prints them and writes the JSON file; the same facts are returned."""
    say(f"{question.name}: preparing data in {options.cache}")
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    load = os.getloadavg()[0]
    setup = question.prepare(options)
    tables = [run_table(question, table, setup, options) for table in question.tables]
    facts: Facts = {
        "question": question.name,
        "title": question.title,
        "date": began,
        "quick": options.quick,
        "machine": {**machine.describe(), "load_average_before": round(load, 2)},
        "data": {"samples": setup.samples, "batch": setup.batch, "workers": setup.workers, **setup.facts},
        "tables": tables,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{question.name}.json"
    path.write_text(json.dumps(facts, indent=1) + "\n")
    say(f"{question.name}: written to {path}")
    return facts


def run_table(question: Question, table: Table, setup: Setup, options: Options) -> Facts:
    """Interleaved rounds of one table, reduced to medians, ratios and targets, and printed."""
    chosen = [c for c in table.contestants if not options.only or any(word in c.name for word in options.only)]
    if options.before is not None:
        chosen += [c.before() for c in chosen if c.role is Role.PENSTOCK]
    setup = dataclasses.replace(setup, variant=table.name)
    entries = [
        process.Entry(
            question.name,
            table.name,
            c.name,
            options.before
            if options.before is not None and c.name.endswith(process.BEFORE)
            else process.python_for(c.peers_venv, options.peers_python),
            json.dumps(dataclasses.asdict(setup)),
            c.packages,
        )
        for c in chosen
    ]
    disk_before = machine.disk_read_mb()
    measure = process.fresh_rounds if table.fresh else process.interleaved_rounds
    outcomes = measure(entries, options.rounds, f"{question.name} {table.name}")
    disk = outcomes.disk_read_mb if outcomes.disk_read_mb is not None else machine.disk_read_mb() - disk_before
    rows = [row(c, outcomes.of[c.name], table.measures) for c in chosen]
    add_ratios(rows, table.measures[0])
    facts: Facts = {
        "name": table.name,
        "title": table.title,
        "rounds": options.rounds,
        "order": "each contestant once per round, in the order of the rows, the others stopped meanwhile",
        "page_cache": "warm: each contestant ran one epoch before the first round"
        if not table.fresh
        else "warm: one round was run and thrown away; a fresh process for each round",
        "disk_read_mb_while_measuring": round(disk, 1),
        "contestants": rows,
        "targets": [check(target, rows) for target in table.targets],
    }
    show(question, table, facts)
    return facts


def row(contestant: Contestant, outcome: process.Outcome, measures: Sequence[Measure]) -> Facts:
    facts: Facts = {
        "name": contestant.name,
        "role": str(contestant.role),
        "how": contestant.how,
        "versions": outcome.versions,
        "status": outcome.status,
    }
    if outcome.explain:
        facts["explain"] = outcome.explain
    for measure in measures:
        values = [numbers[measure.key] for numbers in outcome.rounds if measure.key in numbers]
        if values:
            facts[measure.key] = {
                "unit": measure.unit,
                "median": statistics.median(values),
                "least": min(values),
                "most": max(values),
                "rounds": values,
            }
    return facts


def median_of(row: Facts, measure: Measure) -> float | None:
    return row[measure.key]["median"] if measure.key in row else None


def best_peer(rows: Sequence[Facts], measure: Measure) -> Facts | None:
    peers = [r for r in rows if r["role"] == Role.PEER and measure.key in r]
    pick = max if measure.higher_is_better else min
    return pick(peers, key=lambda r: r[measure.key]["median"]) if peers else None


def add_ratios(rows: Sequence[Facts], measure: Measure) -> None:
    """Medians over those of torch's loader, of the bare limit, of the best peer and of the build before."""
    named = {r["name"]: r for r in rows if measure.key in r}
    against = {"best_peer": best_peer(rows, measure)}
    for role in (Role.TORCH, Role.BARE):
        against[str(role)] = next((r for r in rows if r["role"] == role and measure.key in r), None)
    for r in rows:
        mine = median_of(r, measure)
        if mine is not None:
            r["ratios"] = {
                name: round(mine / other[measure.key]["median"], 3)
                for name, other in {**against, "before": named.get(r["name"] + process.BEFORE)}.items()
                if other and other[measure.key]["median"]
            }


def check(target: Target, rows: Sequence[Facts]) -> Facts:
    """Whether the target is met; None when a contestant that it needs did not run."""
    by_name = {r["name"]: r for r in rows}
    value = median_of(by_name[target.contestant], target.measure) if target.contestant in by_name else None
    other = best_peer(rows, target.measure) if target.to == "best peer" else by_name.get(target.to or "")
    better, unit = target.measure.higher_is_better, target.measure.unit
    word = "at least" if better else "at most"
    text = f"{target.contestant}: {target.measure.key} {word} {target.bound:g}"
    text += (
        f" times {target.to}" + (f" ({other['name']})" if other and other["name"] != target.to else "")
        if target.to
        else f" {unit}"
    )
    if target.to is not None:
        base = median_of(other, target.measure) if other else None
        value = value / base if value is not None and base else None
    met = None if value is None else (value >= target.bound if better else value <= target.bound)
    return {"target": text, "value": value, "met": met}


def show(question: Question, table: Table, facts: Facts) -> None:
    """The table on stdout."""
    print(f"\n{question.name} / {table.name}: {table.title}")
    measured = [f"{m.key} [{m.unit}]" for m in table.measures]
    shown = {"torch": "x torch", "bare": "x bare", "best_peer": "x best peer", "before": "x before"}
    if not any("before" in r.get("ratios", {}) for r in facts["contestants"]):
        del shown["before"]
    heads = ["contestant", *measured, "spread", *shown.values()]
    lines = [heads]
    for r in facts["contestants"]:
        first = r.get(table.measures[0].key)
        ratios = r.get("ratios", {})
        cells = [figure(median_of(r, m)) for m in table.measures]
        spread = f"{figure(first['least'])}..{figure(first['most'])}" if first else r["status"]
        lines.append([r["name"], *cells, spread, *(figure(ratios.get(k)) for k in shown)])
    # A reason in the spread column may be long: it does not set the width.
    widths = [max(len(line[i]) for line in lines if i == 0 or len(line[i]) < 40) for i in range(len(heads))]
    for line in lines:
        print(
            "  "
            + "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
        )
    for target in facts["targets"]:
        mark = {True: "met", False: "MISSED", None: "not measured"}[target["met"]]
        print(f"  {mark}: {target['target']} (measured {figure(target['value'])})")
    sys.stdout.flush()


def figure(value: float | None) -> str:
    """Three significant digits, thousands separated; '-' for nothing."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
