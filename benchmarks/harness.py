"""How a question is answered: its tables measured, reduced to medians, ratios and targets, printed and written.

Contestants are interleaved: an epoch of each to warm up, then A B C, A B C, ... for every round. Each lives in a
process of its own (so that no peer's libraries disturb another's), which is stopped while another one measures.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import machine, process, worker
from benchmarks.process import say
from benchmarks.question import Contestant, Facts, Host, Measure, Options, Over, Question, Role, Setup, Table, Target

BEFORE = " (before)"
"""Ends the name of a contestant that is run with another build of Penstock."""
IN_TURN = "each contestant once per round, in the order of the rows"
ORDER = {
    Host.PROCESS: f"{IN_TURN}, the others stopped meanwhile",
    Host.FRESH: f"{IN_TURN}, the others stopped meanwhile",
    Host.HERE: f"{IN_TURN}; one loader at work at a time",
}
WARM = {
    Host.PROCESS: "warm: each contestant ran one epoch before the first round",
    Host.FRESH: "warm: one round was run and thrown away; a fresh process for each round",
    Host.HERE: "warm: each contestant ran one epoch before the first round",
}
RATIOS = {"torch": "x torch", "bare": "x bare", "best_peer": "x best peer", "before": "x before"}


def results(quick: bool) -> Path:
    """The folder of the JSON files where none is named."""
    return process.ROOT / ("build/quick" if quick else "benchmarks/results")


def answer(question: Question, options: Options, path: Path) -> None:
    """Measures every table of the question, prints it, and writes the JSON file."""
    say(f"{question.name}: preparing data")
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    load = round(os.getloadavg()[0], 2)
    setup = question.prepare(options)
    facts: Facts = {
        "question": question.name,
        "title": question.title,
        "date": began,
        "quick": options.quick,
        "machine": {**machine.describe(), **question.machine(), "load_average_before": load},
        "data": {"samples": setup.samples, "batch": setup.batch, "workers": setup.workers, **setup.facts},
        "tables": [],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = [one for one in question.tables if not options.cases or any(word in one.name for word in options.cases)]
    for table in tables:
        facts["tables"].append(run_table(question, table, setup, options))
        if table.host is Host.HERE or table is tables[-1]:  # the next table may take this process down
            path.write_text(json.dumps(facts, indent=1) + "\n")
    say(f"{question.name}: written to {path}")
    missed = sum(target["met"] is False for table in facts["tables"] for target in table["targets"])
    if missed and not options.quick:
        say(f"{question.name}: {missed} target(s) missed")


def run_table(question: Question, table: Table, setup: Setup, options: Options) -> Facts:
    """Measures one table and prints it; returns its part of the JSON."""
    setup = dataclasses.replace(setup, variant=table.name)
    entries = [
        (c, options.peers_python if c.peers else sys.executable)
        for c in table.contestants
        if not options.only or any(word in c.name for word in options.only)
    ]
    if options.before is not None:
        ours = [c for c, _ in entries if c.role is Role.PENSTOCK]
        entries += [(dataclasses.replace(c, name=c.name + BEFORE, role=Role.ASIDE), options.before) for c in ours]
    runners = {c.name: partial(runner, question, c, python, setup, table.host) for c, python in entries}
    fresh = table.host is Host.FRESH
    outcomes, disk = process.measure(runners, options.rounds, fresh, f"{question.name} {table.name}")
    rows = []
    for c, _ in entries:
        outcome = outcomes[c.name]
        known = {"name": c.name, "role": str(c.role), "how": c.how, "versions": outcome.versions}
        rows.append({**known, "status": outcome.status, **reduced(outcome, table.measures)})
    add_ratios(rows, table.measures[0])
    facts: Facts = {
        "name": table.name,
        "title": table.title,
        "rounds": options.rounds,
        "order": ORDER[table.host],
        "page_cache": WARM[table.host],
        "disk_read_mb_while_measuring": round(disk, 1),
        "contestants": rows,
        "targets": [check(target, rows) for target in table.targets],
    }
    show(question, table, facts)
    return facts


def runner(question: Question, contestant: Contestant, python: str, setup: Setup, host: Host) -> process.Runner:
    """The contestant, not built yet, in this process or in one of that interpreter."""
    if host is Host.HERE:
        return worker.Local(contestant, setup)
    return process.Worker(python, question.name, contestant.name.removesuffix(BEFORE), setup.as_json())


def reduced(outcome: process.Outcome, measures: Sequence[Measure]) -> Facts:
    """What a contestant says of itself, and each measure over its rounds."""
    facts: Facts = {"explain": outcome.explain} if outcome.explain else {}
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


def median_of(row: Facts | None, measure: Measure) -> float | None:
    return row[measure.key]["median"] if row and measure.key in row else None


def number_of(row: Facts | None, measure: Measure, over: Over) -> float | None:
    """The number that stands for a contestant's rounds."""
    if row is None or measure.key not in row:
        return None
    numbers = row[measure.key]
    worst = numbers["least" if measure.higher_is_better else "most"]
    return {Over.MEDIAN: numbers["median"], Over.MEAN: statistics.fmean(numbers["rounds"]), Over.WORST: worst}[over]


def best_peer(rows: Sequence[Facts], measure: Measure) -> Facts | None:
    peers = [r for r in rows if r["role"] == Role.PEER and measure.key in r]
    pick = max if measure.higher_is_better else min
    return pick(peers, key=lambda r: r[measure.key]["median"], default=None)


def add_ratios(rows: Sequence[Facts], measure: Measure) -> None:
    """Medians over those of torch's loader, of the bare limit, of the best peer and of the build before."""
    measured = [r for r in rows if measure.key in r]
    against = {"best_peer": best_peer(rows, measure)}
    for role in (Role.TORCH, Role.BARE):
        against[role.value] = next((r for r in measured if r["role"] == role), None)
    for r in measured:
        against["before"] = next((o for o in measured if o["name"] == r["name"] + BEFORE), None)
        medians = {name: median_of(other, measure) for name, other in against.items()}
        r["ratios"] = {name: round(r[measure.key]["median"] / base, 3) for name, base in medians.items() if base}


def check(target: Target, rows: Sequence[Facts]) -> Facts:
    """Whether the target is met; None when a contestant that it needs did not run."""
    by_name = {r["name"]: r for r in rows}
    measure = target.measure
    value = number_of(by_name.get(target.contestant), measure, target.over)
    bound = f"{target.bound:g} {measure.unit}"
    if target.to is not None:
        other = best_peer(rows, measure) if target.to == "best peer" else by_name.get(target.to)
        base = number_of(other, measure, target.over)
        value = value / base if value is not None and base else None
        bound = f"{target.bound:g} times {target.to}"
        if other and other["name"] != target.to:
            bound += f" ({other['name']})"
    better = measure.higher_is_better
    met = None if value is None else (value >= target.bound if better else value <= target.bound)
    over = "" if target.over is Over.MEDIAN else f"{target.over} "
    text = f"{target.contestant}: {over}{measure.key} {'at least' if better else 'at most'} {bound}"
    return {"target": text, "value": value, "met": met}


def show(question: Question, table: Table, facts: Facts) -> None:
    """The table on stdout."""
    print(f"\n{question.name} / {table.name}: {table.title}")
    compared = any("before" in r.get("ratios", {}) for r in facts["contestants"])
    ratios = {key: head for key, head in RATIOS.items() if compared or key != "before"}
    lines = [["contestant", *(f"{m.key} [{m.unit}]" for m in table.measures), "spread", *ratios.values()]]
    for r in facts["contestants"]:
        first = r.get(table.measures[0].key)
        cells = [figure(median_of(r, m)) for m in table.measures]
        spread = f"{figure(first['least'])}..{figure(first['most'])}" if first else r["status"]
        lines.append([r["name"], *cells, spread, *(figure(r.get("ratios", {}).get(key)) for key in ratios)])
    # A reason in the spread column may be long: it does not set the width.
    widths = [max(len(cell) for i, cell in enumerate(column) if len(cell) < 40) for column in zip(*lines, strict=True)]
    for name, *cells in lines:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        print("  " + "  ".join([name.ljust(widths[0]), *numbers]).rstrip())
    for target in facts["targets"]:
        mark = {True: "met", False: "MISSED", None: "not measured"}[target["met"]]
        print(f"  {mark}: {target['target']} (measured {figure(target['value'])})")
    sys.stdout.flush()


def figure(value: float | None) -> str:
    """Three significant digits, thousands separated; '-' for nothing."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
