"""The tables of the documentation are the signatures, errors and commands of the code, and the figures of results."""

from __future__ import annotations

import builtins
import inspect
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

import penstock
import penstock.cli
import penstock.frameworks
import penstock.insight
import penstock.testing
from penstock.insight.lint import __all__ as REMARKS
from penstock.recipe.reader import TRANSFORMS
from tests.pages import ROOT, parts_of, rows_of, text_of


def signature(function: Any) -> str:
    """Return the parameters of a function, or of a class, without annotations, as the reference shows them."""
    if inspect.isclass(function):
        function = function.__new__ if issubclass(function, tuple) else function.__init__
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "_cls"):
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


class Holding(list[int]):
    """A dataset that holds a lock, which threads cannot copy."""

    def __init__(self) -> None:
        super().__init__(range(8))
        self.lock = threading.Lock()


ROWS = TensorDataset(torch.zeros(8))
NUMBERS = list(range(8))  # Python reads a list
WORKERS = {"dataset": NUMBERS, "num_workers": 1}
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
    ("timeout", {"timeout": 5, "dataset": NUMBERS}, "AssertionError"),
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
    ("worker_method", {"worker_method": 3}, "InvalidOption"),
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
def test_wrong_arguments_raise_what_the_table_says(
    name: str, options: dict[str, Any], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = next(row for row in rows_of(ROOT / "docs" / "options.md", "option") if row[0] == f"`{name}`")
    assert f"`{error}`" in row[1]
    kind = getattr(builtins, error, None) or getattr(penstock, error)
    given = {"dataset": ROWS, **options}
    with pytest.raises(kind) as caught:
        list(penstock.DataLoader(**given))
    if error == "ValueError":  # which is torch's, in its words
        with pytest.raises(ValueError, match=f"^{re.escape(str(caught.value))}$"):
            torch.utils.data.DataLoader(**given)
    if (name, error) == ("timeout", "AssertionError"):
        assert isinstance(caught.value, penstock.InvalidOption)
        with pytest.raises(AssertionError):
            list(torch.utils.data.DataLoader(**given))
    if name in ("worker_method", "share_dataset", "on_error"):
        assert f"{name}={options[name]!r}" in str(caught.value)
    assert options != {"share_dataset": True} or "is for worker_method='thread'" in str(caught.value)


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
        ("shards", "argument of `pack`", penstock.pack),
        ("tables", "argument of `Table`", penstock.Table),
        ("recordings", "argument of `record`", penstock.insight.record),
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
    insight = (*penstock.insight.__all__, *REMARKS)
    public = [*penstock.__all__, *penstock.testing.__all__, *penstock.frameworks.__all__, *insight]
    assert sorted(listed) == sorted(public)


def public_names(*, exceptions: bool) -> set[str]:
    """Return the public names of all modules that are, or are not, exceptions."""
    modules = (penstock, penstock.testing, penstock.frameworks, penstock.insight, penstock.insight.lint)
    things = {name: getattr(module, name) for module in modules for name in module.__all__}
    return {
        name
        for name, thing in things.items()
        if (inspect.isclass(thing) and issubclass(thing, Exception)) is exceptions
    }


def test_every_public_name_has_an_example() -> None:
    page = text_of(ROOT / "docs" / "api.md")
    sections = re.split(r"^### `([\w.]+)`\n", page.partition("\n## Exceptions\n")[0], flags=re.MULTILINE)
    examples = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert {name for name in examples if "." not in name} == public_names(exceptions=False)
    code = {
        name: re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE) for name, text in examples.items()
    }
    assert [name for name, found in code.items() if not (len(found) == 1 and name.split(".")[-1] in found[0])] == []
    assert next(iter(examples)) == "DataLoader"
    caught = re.findall(r"penstock\.(\w+)", page.partition("\n## Exceptions\n")[2])
    assert public_names(exceptions=True) <= set(caught)


SHOWN = [(penstock, name, "reference.md") for name in penstock.__all__ if not re.search(r"DataLoader|Stats|^_", name)]


@pytest.mark.parametrize(
    ("module", "name", "page"), [*SHOWN, *((penstock.testing, name, "testing.md") for name in penstock.testing.__all__)]
)
def test_signatures_are_shown(module: Any, name: str, page: str) -> None:
    thing = getattr(module, name)
    if inspect.isclass(thing) and issubclass(thing, Exception):
        rows = {row[0].strip("`"): row[1] for row in rows_of(ROOT / "docs" / "bad-samples.md", "exception")}
        builtin = rows[name].strip("`")
        assert not builtin or builtin in [one.__name__ for one in thing.__mro__]
    else:
        assert f"`{name}{signature(thing)}`" in text_of(ROOT / "docs" / page)


def test_every_command_is_in_the_reference() -> None:
    rows = [row[0] for row in rows_of(ROOT / "docs" / "reference.md", "command")]
    for verb, below in parts_of(penstock.cli.parser()).items():
        for action, parser in (parts_of(below) or {"": below}).items():
            shown = [row for row in rows if row.startswith(f"`penstock {verb} {action}")]
            assert len(shown) == 1
            options = [option for option in parser._option_string_actions if option.startswith("--")]
            assert [option for option in options if option not in shown[0] and option != "--help"] == []


def test_known_transforms_are_those_of_the_page_that_explain_names(tmp_path: Path) -> None:
    transforms = pytest.importorskip("torchvision.transforms", reason="torchvision is not installed")
    mine = transforms.Compose([transforms.Resize(8), bool, transforms.ToTensor()])
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "cat" / "0.jpg")
    explained = penstock.DataLoader(penstock.ImageFolder(tmp_path, mine)).explain()
    assert "with a transform of docs/images.md instead of type, the native core could read it" in explained
    table = re.search(r"^\| what they do \|.*?\n\n", text_of(ROOT / "docs" / "images.md"), re.DOTALL | re.MULTILINE)
    assert table is not None
    assert set(re.findall(r"`([A-Z]\w+)`", table[0])) == set(TRANSFORMS)


def medians(value: Any) -> Iterator[float]:
    """Yield every median of a file of results."""
    if isinstance(value, dict):
        if isinstance(value.get("median"), int | float):
            yield value["median"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from medians(one)


def test_rates_were_measured() -> None:
    results = [json.loads(text_of(file)) for file in (ROOT / "benchmarks" / "results").glob("*.json")]
    measured = {f"{median:,.0f}" for result in results for median in medians(result)}
    rows = rows_of(ROOT / "docs" / "results.md", "samples per second")
    rates = [rate for row in rows for cell in row[1:] for rate in re.findall(r"\d[\d,]{2,}", cell)]
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
