"""The documentation is true: its code runs and prints what it says, its links resolve, its tables are complete."""

from __future__ import annotations

import argparse
import builtins
import inspect
import json
import re
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

import penstock
import penstock.cli
import penstock.frameworks
import penstock.testing

ROOT = Path(__file__).parent.parent
GUIDES = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *GUIDES]
ALL_PAGES = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", ROOT / "benchmarks" / "README.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# ---------------------------------------------------------------- code


class Block(NamedTuple):
    """A block of Python code on a page."""

    page: str
    line: int
    code: str
    output: str | None
    """What the page says that the code prints: the `text` block that follows it directly."""


def blocks_of(page: Path) -> Iterator[Block]:
    text = text_of(page)
    for found in FENCE.finditer(text):
        if found[1] == "python":
            follows = re.compile(r"\n```text\n(.*?)^```\n", re.DOTALL | re.MULTILINE).match(text, found.end())
            output = None if follows is None else follows[1]
            yield Block(name_of(page), text.count("\n", 0, found.start(2)) + 1, found[2], output)


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
#: Packages that a block may need, and that need not be installed.
OPTIONAL = ("accelerate", "lightning", "torchvision")


class Signals(torch.utils.data.Dataset[Any]):
    """The dataset of the user's own that recipes speak of."""

    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), index % 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the pages speak of: data/ID.pt and photos/CLASS/N.jpg."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "data").mkdir()
    for number in range(1200):
        torch.save(torch.zeros(3), folder / "data" / f"id-{number}.pt")
    for kind in ("cat", "dog"):
        (folder / "photos" / kind).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((60, 80, 3), i, dtype=np.uint8)).save(folder / "photos" / kind / f"{i}.jpg")
    return folder


@pytest.fixture
def names(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the names that the pages speak of, in a working folder with their files."""
    for folder in ("data", "photos"):
        (tmp_path / folder).symlink_to(files / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ids = [f"id-{number}" for number in range(1200)]
    dataset = Signals()
    return {
        "__name__": "__main__",
        "torch": torch,
        "partition": {"train": ids[:1000], "validation": ids[1000:]},
        "labels": dict.fromkeys(ids, 1),
        "dataset": dataset,
        "model": torch.mean,
        "checkpoint": penstock.DataLoader(dataset, batch_size=64, shuffle=True, seed=7).state_dict(),
    }


def normalised(output: str) -> str:
    """Return an output without what depends on the machine's speed."""
    return re.sub(r"\b\d+\.\d+ s\b", "N s", output)


def _parameter(block: Block) -> Any:
    marks = [pytest.mark.slow] if "import lightning" in block.code else []  # its import alone takes seconds
    return pytest.param(block, id=f"{block.page}:{block.line}", marks=marks)


def test_pages_have_blocks() -> None:
    assert len(BLOCKS) >= 25
    assert sum(block.output is not None for block in BLOCKS) >= 10


@pytest.mark.timeout(300)  # worker processes start slowly on a machine that is shared
@pytest.mark.filterwarnings("ignore:.*no cuda device is available:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.filterwarnings("ignore:.*:FutureWarning:lightning")
@pytest.mark.filterwarnings("ignore:.*:UserWarning:lightning")
@pytest.mark.parametrize("block", [_parameter(block) for block in BLOCKS])
def test_block_runs(block: Block, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for package in OPTIONAL:
        if re.search(rf"^(import|from) {package}\b", block.code, re.MULTILINE):
            pytest.importorskip(package, reason=f"{package} is not installed: pip install {package}")
    source = "\n" * (block.line - 1) + block.code  # tracebacks name the line of the page
    exec(compile(source, block.page, "exec"), names)
    if block.output is not None:
        assert normalised(capsys.readouterr().out) == normalised(block.output)
    for loader in (names.get(name) for name in ("loader", "threads", "seeded")):
        if isinstance(loader, penstock.DataLoader):
            batch = next(iter(loader))
            fields = batch if isinstance(batch, list) else [batch]
            assert len({len(field) for field in fields}) == 1
            assert len(fields[0]) > 0
    if "manifest=" in block.code and "sensor" in block.code:
        assert "the sensor was off" in Path("bad.jsonl").read_text(encoding="utf-8")


# ---------------------------------------------------------------- links


def without_code(text: str) -> str:
    return FENCE.sub("", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_code(text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_relative_links_resolve(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (page.parent / file).resolve() if file else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(target)
    assert not broken


def test_readme_leads_to_every_guide() -> None:
    assert [name_of(page) for page in GUIDES if f"({name_of(page)})" not in text_of(ROOT / "README.md")] == []


# ---------------------------------------------------------------- commands


def commands_in(page: Path) -> list[list[str]]:
    """Return the words of each command that a page shows: a line of a shell block, or a code span."""
    text = text_of(page)
    lines = [line for kind, body in FENCE.findall(text) if kind == "sh" for line in body.splitlines()]
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", without_code(text))
    words = [shlex.split(line, comments=True) for line in lines]
    words += [span.split() for span in spans if span.startswith(("make ", "penstock ", "python -m "))]
    return [command for command in words if command]


def parts_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers below a parser, by name."""
    below = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(below[0]) if below else {}


def complaint(command: list[str]) -> str | None:
    """Return what is wrong with a command of ours; None: nothing, or it is not one of ours."""
    if command[:2] == ["python", "-m"]:
        module = command[2].split(".")
        if module[0] == "benchmarks":
            questions = [word for word in command[3:4] if word.isidentifier()]
            wanted = [Path(*module), *(Path("benchmarks", question) for question in questions)]
            missing = [
                path for path in wanted if not ((ROOT / path).is_dir() or (ROOT / path).with_suffix(".py").exists())
            ]
            return f"no such module: {missing}" if missing else None
        return complaint(command[2:]) if module == ["penstock"] else None
    if command[0] == "make":
        targets = re.findall(r"^([a-z]+):", text_of(ROOT / "Makefile"), re.MULTILINE)
        unknown = [word for word in command[1:2] if "=" not in word and word not in targets]
        questions = [name for word in command if word.startswith("BENCH=") for name in word[6:].strip('"').split()]
        unknown += [name for name in questions if name.isidentifier() and not (ROOT / f"benchmarks/{name}.py").exists()]
        return f"no such target or benchmark: {unknown}" if unknown else None
    if command[0] != "penstock":
        return None
    parser = penstock.cli.parser()
    for word in command[1:]:
        if not (parts := parts_of(parser)):
            break
        if word.startswith("-"):
            return None if word in parser._option_string_actions else f"no such option: {word}"
        if word not in parts:
            return f"no such command: {word}"
        parser = parts[word]
    unknown = [word for word in command if re.match(r"--\w", word) and word not in parser._option_string_actions]
    return f"no such option: {unknown}" if unknown else None


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_commands_exist(page: Path) -> None:
    assert [(command, why) for command in commands_in(page) if (why := complaint(command)) is not None] == []


def test_wrong_commands_are_noticed() -> None:
    right = ["make demo", "make bench BENCH=cifar", "penstock quarantine list bad.jsonl --json", "penstock --version"]
    wrong = ["make coffee", "make bench BENCH=tea", "penstock ledger burn a", "penstock ledger show --far a"]
    wrong += ["python -m benchmarks tea", "python -m penstock brew"]
    assert [complaint(command.split()) for command in right] == [None] * len(right)
    assert None not in [complaint(command.split()) for command in wrong]


# ---------------------------------------------------------------- tables


def rows_of(page: Path, first: str) -> list[list[str]]:
    """Return the rows, cell by cell, of all tables of a page whose first column is called so."""
    tables = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text_of(page), re.MULTILINE)
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for table in tables for row in table.splitlines()
    ]


def signature(function: Any) -> str:
    """Return the parameters of a function, or of a class, without annotations, as the reference shows them."""
    if inspect.isclass(function):
        function = function.__init__
    parameters = list(inspect.signature(function).parameters.values())
    if parameters[0].name == "self":
        parameters = parameters[1:]
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
    return str(inspect.Signature(bare))


def defaults_of(function: Any) -> list[tuple[str, str]]:
    """Return each parameter and its default, as tables show them."""
    parameters = inspect.signature(function).parameters.values()
    return [(one.name, "required" if one.default is one.empty else repr(one.default)) for one in parameters]


def arguments_of(rows: list[list[str]]) -> list[tuple[str, str]]:
    """Return the first two columns of a table of arguments."""
    return [(row[0].strip("`"), row[1].strip("`").replace('"', "'")) for row in rows]


def test_options_table_is_the_signature() -> None:
    assert arguments_of(rows_of(ROOT / "docs" / "options.md", "argument")) == defaults_of(penstock.DataLoader)


class Counting(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


class Holding(Signals):
    """What threads cannot have copies of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


ROWS = TensorDataset(torch.zeros(8))
WORKERS = {"dataset": Signals(), "num_workers": 1}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("dataset", {"dataset": None}, "TypeError"),
    ("batch_size", {"batch_size": 2.5}, "InvalidOption"),
    ("batch_size", {"batch_size": 0}, "ValueError"),
    ("shuffle", {"shuffle": True, "sampler": [0]}, "ValueError"),
    ("shuffle", {"shuffle": True, "dataset": Counting()}, "ValueError"),
    ("shuffle", {"shuffle": True, "dataset": TensorDataset(torch.zeros(0))}, "InvalidOption"),
    ("sampler", {"sampler": [0], "shuffle": True}, "ValueError"),
    ("sampler", {"sampler": penstock.Weighted([1.0, 2.0])}, "InvalidOption"),
    ("batch_sampler", {"batch_sampler": [[0]], "batch_size": 4}, "ValueError"),
    ("num_workers", {"num_workers": 1.5}, "TypeError"),
    ("num_workers", {"num_workers": -1}, "ValueError"),
    ("drop_last", {"drop_last": True, "batch_size": None}, "ValueError"),
    ("timeout", {"timeout": -1}, "ValueError"),
    ("timeout", {"timeout": "long"}, "TypeError"),
    ("timeout", {"timeout": 5, "num_workers": 0}, "AssertionError"),
    ("timeout", {"timeout": 5, "dataset": Signals()}, "AssertionError"),
    ("multiprocessing_context", {**WORKERS, "multiprocessing_context": "thread"}, "ValueError"),
    ("multiprocessing_context", {"multiprocessing_context": "fork", "num_workers": 0}, "ValueError"),
    ("generator", {"generator": torch.Generator(), "seed": 1}, "InvalidOption"),
    ("prefetch_factor", {"prefetch_factor": -1, "num_workers": 1}, "ValueError"),
    ("prefetch_factor", {"prefetch_factor": 2, "num_workers": 0}, "ValueError"),
    ("prefetch_factor", {**WORKERS, "prefetch_factor": 0}, "AssertionError"),
    ("persistent_workers", {"persistent_workers": True, "num_workers": 0}, "ValueError"),
    ("seed", {"seed": 1.5}, "TypeError"),
    ("seed", {"seed": 2**64}, "InvalidOption"),
    ("seed", {"seed": 1, "generator": torch.Generator()}, "InvalidOption"),
    ("worker_method", {"worker_method": "fiber"}, "InvalidOption"),
    ("worker_method", {"worker_method": "thread", "dataset": Holding(), "num_workers": 1}, "InvalidOption"),
    ("share_dataset", {"share_dataset": 1, "worker_method": "thread"}, "InvalidOption"),
    ("share_dataset", {"share_dataset": True}, "InvalidOption"),
    ("on_error", {"on_error": "skip"}, "InvalidOption"),
    ("on_error", {"on_error": "replace", "dataset": Counting()}, "InvalidOption"),
    ("device", {"device": "abacus"}, "InvalidOption"),
    ("device", {"device": "meta"}, "InvalidOption"),
    ("shard", {"shard": (2, 2)}, "InvalidOption"),
    ("shard", {"shard": (0, 2), "dataset": Counting()}, "InvalidOption"),
    ("shard", {"shard": (0, 2), "sampler": [0]}, "InvalidOption"),
    ("shard", {"shard": (0, 2), "shuffle": True}, "InvalidOption"),
    ("ledger", {"ledger": "run.ledger", "sampler": [0]}, "InvalidOption"),
    ("ledger", {"ledger": "run.ledger", "dataset": Counting()}, "InvalidOption"),
    ("ledger", {"ledger": "no/such/folder/run.ledger"}, "OSError"),
    ("ledger", {"ledger": 5}, "TypeError"),
    ("snapshot_every_n_steps", {"snapshot_every_n_steps": -1}, "InvalidOption"),
]


@pytest.mark.parametrize(("name", "options", "error"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_wrong_arguments_raise_what_the_table_says(name: str, options: dict[str, Any], error: str) -> None:
    row = next(row for row in rows_of(ROOT / "docs" / "options.md", "argument") if row[0] == f"`{name}`")
    assert f"`{error}`" in row[3]
    kind = getattr(builtins, error, None) or getattr(penstock, error)
    with pytest.raises(kind):
        list(penstock.DataLoader(**{"dataset": ROWS, **options}))


def test_arguments_are_attributes() -> None:
    loader = penstock.DataLoader(TensorDataset(torch.zeros(8)))
    missing = [name for name, _ in defaults_of(penstock.DataLoader) if not hasattr(loader, name)]
    assert missing == ["shuffle"]


@pytest.mark.parametrize(
    ("page", "head", "function"),
    [
        ("tensors", "argument", penstock.TensorFolder),
        ("device", "argument of `Feed`", penstock.Feed),
        ("bad-samples", "argument of `Replace`", penstock.Replace),
    ],
)
def test_argument_tables_are_signatures(page: str, head: str, function: Any) -> None:
    assert arguments_of(rows_of(ROOT / "docs" / f"{page}.md", head)) == defaults_of(function)


def test_stats_table_is_complete() -> None:
    rows = rows_of(ROOT / "docs" / "options.md", "field of `penstock.Stats`")
    assert [row[0].strip("`") for row in rows] == list(penstock.Stats.__dataclass_fields__)


def test_every_public_name_is_in_the_reference() -> None:
    shown = " ".join(row[0] for row in rows_of(ROOT / "docs" / "reference.md", "name"))
    listed = [re.match(r"\w+", span)[0] for span in re.findall(r"`([^`]+)`", shown)]  # type: ignore[index]
    public = [*penstock.__all__, *penstock.testing.__all__, *penstock.frameworks.__all__]
    assert sorted(listed) == sorted(public)


@pytest.mark.parametrize(
    "name", [name for name in penstock.__all__ if not re.search(r"DataLoader|Stats", name) and name[0] != "_"]
)
def test_signatures_in_the_reference(name: str) -> None:
    thing = getattr(penstock, name)
    if inspect.isclass(thing) and issubclass(thing, Exception):
        rows = {row[0].strip("`"): row[1] for row in rows_of(ROOT / "docs" / "bad-samples.md", "exception")}
        builtin = rows[name].strip("`")
        assert not builtin or builtin in [one.__name__ for one in thing.__mro__]
    else:
        assert f"`{name}{signature(thing)}`" in text_of(ROOT / "docs" / "reference.md")


@pytest.mark.parametrize("name", penstock.testing.__all__)
def test_signatures_of_the_checks(name: str) -> None:
    assert f"`{name}{signature(getattr(penstock.testing, name))}`" in text_of(ROOT / "docs" / "testing.md")


def test_every_command_is_in_the_reference() -> None:
    rows = [row[0] for row in rows_of(ROOT / "docs" / "reference.md", "command")]
    for verb, below in parts_of(penstock.cli.parser()).items():
        for action, parser in parts_of(below).items():
            shown = [row for row in rows if row.startswith(f"`penstock {verb} {action}")]
            assert len(shown) == 1
            options = [
                option for option in parser._option_string_actions if option.startswith("--") and option != "--help"
            ]
            assert [option for option in options if option not in shown[0]] == []


def test_known_transforms_are_those_of_explain(files: Path) -> None:
    transforms = pytest.importorskip("torchvision.transforms", reason="torchvision is not installed")
    mine = transforms.Compose([transforms.Resize(8), bool, transforms.ToTensor()])
    explained = penstock.DataLoader(penstock.ImageFolder(files / "photos", mine)).explain()
    advice = next(line for line in explained.splitlines() if "torchvision's" in line and line.startswith("advice"))
    paragraph = re.search(
        r"^`RandomResizedCrop`.*?\n\n", text_of(ROOT / "docs" / "images.md"), re.DOTALL | re.MULTILINE
    )
    assert paragraph is not None
    assert set(re.findall(r"\w+", paragraph[0])) == set(re.findall(r"\b[A-Z]\w+", advice)) - {"Compose"}


# ---------------------------------------------------------------- README and results


def test_readme_is_short() -> None:
    assert len(text_of(ROOT / "README.md").splitlines()) < 120


def medians(value: Any) -> Iterator[float]:
    """Yield every median of a file of results."""
    if isinstance(value, dict):
        if isinstance(value.get("median"), int | float):
            yield value["median"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from medians(one)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "results.md"], ids=name_of)
def test_rates_were_measured(page: Path) -> None:
    results = [json.loads(text_of(file)) for file in (ROOT / "benchmarks" / "results").glob("*.json")]
    measured = {f"{median:,.0f}" for result in results for median in medians(result)}
    heads = ("samples", "samples per second")
    rates = [
        rate
        for head in heads
        for row in rows_of(page, head)
        for cell in row[1:]
        for rate in re.findall(r"\d[\d,]{2,}", cell)
    ]
    assert len(rates) >= 15
    assert [rate for rate in rates if rate not in measured] == []


def test_ratios_are_those_of_the_rates() -> None:
    rows = rows_of(ROOT / "docs" / "results.md", "samples per second")
    checked = 0
    for row in rows:
        rate = reference = float(row[1].replace(",", ""))
        for number, ratio in re.findall(r"(\d[\d,.]*\d|\d)(x?)", " ".join(row[2:])):
            if not ratio:
                rate = float(number.replace(",", ""))
                continue
            decimals = len(number.partition(".")[2])
            assert rate / reference == pytest.approx(float(number), abs=0.51 * 10**-decimals), row[0]
            checked += 1
    assert checked >= 15


def test_gains_in_the_readme_are_results() -> None:
    results = text_of(ROOT / "docs" / "results.md")
    gains = re.findall(r"\b[\d.]+x", " ".join(row[2] for row in rows_of(ROOT / "README.md", "dataset")))
    assert len(gains) >= 10
    assert [gain for gain in gains if not re.search(rf"(?<![.\d]){re.escape(gain)}", results)] == []


def test_architecture_names_every_file() -> None:
    text = text_of(ROOT / "ARCHITECTURE.md")
    files = [*(ROOT / "src/penstock").rglob("*.py"), *(ROOT / "native").glob("*.[ch]*")]
    assert len(files) > 40
    missing = [file.name for file in files if file.stem != "__init__" and not re.search(rf"[`/]{file.stem}`", text)]
    assert not missing
