"""The documentation is true: its code runs and prints what it says, its links resolve, its commands exist."""

from __future__ import annotations

import re
import shlex
import sys
import traceback
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import penstock
import penstock.cli
from penstock.system import cache_folder
from tests.data import Made, tensor_files
from tests.pages import (
    ALL_PAGES,
    FENCE,
    GUIDES,
    PAGES,
    ROOT,
    Block,
    blocks_of,
    name_of,
    parts_of,
    text_of,
    without_code,
)

# ---------------------------------------------------------------- code


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
#: Packages that a block may need, and that need not be installed.
OPTIONAL = (
    "accelerate", "datasets", "ffcv", "grain", "lightning", "litdata", "nvidia.dali", "prometheus_client", "pyarrow",
    "soundfile", "spdl.pipeline", "streaming", "tokenizers", "torchvision", "transformers", "webdataset",
)  # fmt: skip
MISTAKES = "docs/mistakes.md"  # whose blocks raise what the page prints


class Signals(Made):
    """The dataset of the user's own that recipes speak of."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), index % 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the pages speak of: data/ID.pt, photos/CLASS/N.jpg, sounds/CLASS/N.wav."""
    folder = tmp_path_factory.mktemp("docs")
    tensor_files(folder / "data", 1200, name="id-{}")
    for kind in ("cat", "dog"):
        (folder / "photos" / kind).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((60, 80, 3), i, dtype=np.uint8)).save(folder / "photos" / kind / f"{i}.jpg")
    for kind in ("dog", "rain"):
        (folder / "sounds" / kind).mkdir(parents=True)
        for i in range(2):
            with wave.open(str(folder / "sounds" / kind / f"{i}.wav"), "wb") as file:
                file.setparams((1, 2, 1000, 0, "NONE", ""))
                file.writeframes(bytes(2000))
    return folder


@pytest.fixture
def names(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the names that the pages speak of, in a working folder with their files."""
    for folder in ("data", "photos", "sounds"):
        (tmp_path / folder).symlink_to(files / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_folder._Chosen, "path", cache_folder._UNSET)  # which a block may choose
    ids = [f"id-{number}" for number in range(1200)]
    dataset = Signals(size=640)
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


def run(source: str, page: str, names: dict[str, Any]) -> None:
    """Run a block. Of the page of mistakes, the last lines of the traceback are written out."""
    try:
        exec(compile(source, page, "exec"), names)
    except Exception as error:
        if page != MISTAKES:
            raise
        sys.stdout.write("".join(traceback.format_exception_only(error)))
    else:
        assert page != MISTAKES, "nothing was raised"


def _parameter(block: Block) -> Any:
    marks = [pytest.mark.slow] if "import lightning" in block.code else []  # its import alone takes seconds
    return pytest.param(block, id=f"{block.page}:{block.line}", marks=marks)


def test_pages_have_blocks() -> None:
    assert len(BLOCKS) >= 25
    assert sum(block.output is not None for block in BLOCKS) >= 10


@pytest.mark.timeout(300)  # worker processes start slowly on a machine that is shared
@pytest.mark.filterwarnings("ignore:.*no cuda device is available:UserWarning")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create 6 worker processes:UserWarning")
@pytest.mark.filterwarnings("ignore:.*samples-000000.tar:pytest.PytestUnraisableExceptionWarning")  # WebDataset's
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.filterwarnings("ignore:.*:FutureWarning:lightning")
@pytest.mark.filterwarnings("ignore:.*:UserWarning:lightning")
@pytest.mark.parametrize("block", [_parameter(block) for block in BLOCKS])
def test_block_runs(block: Block, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for package in OPTIONAL:
        if re.search(rf"^(import|from) {package}\b", block.code, re.MULTILINE):
            pytest.importorskip(package, reason=f"{package} is not installed")
    if "torch.utils.tensorboard" in block.code:
        pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install tensorboard")
    if block.page == "docs/storage.md":
        pytest.importorskip("obstore", reason='obstore is not installed: pip install "penstock-loader[remote]"')
    if re.search(r"\.cuda\(|cuda\.Stream\(", block.code) and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    source = "\n" * (block.line - 1) + block.code  # tracebacks name the line of the page
    run(source, block.page, names)
    if block.output is not None:
        out = capsys.readouterr().out
        for line in ("reading", "verdict"):  # explain() has them where the disk, or the machine, is busy
            if f"\n{line}  " not in block.output:
                out = re.sub(rf"^{line}  .*\n", "", out, flags=re.MULTILINE)
        assert normalised(out) == normalised(block.output)
    for loader in (names.get(name) for name in ("loader", "threads", "seeded")):
        if isinstance(loader, penstock.DataLoader):
            batch = next(iter(loader))
            fields = list(batch.values()) if isinstance(batch, dict) else batch if isinstance(batch, list) else [batch]
            assert len({len(field) for field in fields}) == 1
            assert len(fields[0]) > 0
    if "manifest=" in block.code and "sensor" in block.code:
        assert "the sensor was off" in Path("bad.jsonl").read_text(encoding="utf-8")


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
    reached, left = set(), [ROOT / "README.md"]
    while left:
        reached.add(page := left.pop())
        targets = re.findall(r"\]\(([\w./-]+\.md)(?:#[^)]*)?\)", without_code(text_of(page)))
        left += {(page.parent / target).resolve() for target in targets} - reached
    assert [name_of(page) for page in GUIDES if page not in reached] == []


def commands_in(page: Path) -> list[list[str]]:
    """Return the words of each command that a page shows: a line of a shell block, or a code span."""
    text = text_of(page)
    lines = [line for kind, body in FENCE.findall(text) if kind == "sh" for line in body.splitlines()]
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", without_code(text))
    words = [shlex.split(line, comments=True) for line in lines]
    words += [span.split() for span in spans if span.startswith(("make ", "penstock ", "python -m "))]
    return [command for command in words if command]


def complaint(command: list[str]) -> str | None:
    """Return what is wrong with a command of ours; None: nothing, or it is not one of ours."""
    if command[:2] == ["python", "-m"]:
        module = command[2].split(".")
        if module[0] == "benchmarks":
            questions = [word for word in command[3:4] if word.isidentifier()]
            wanted = [Path(*module), *(Path("benchmarks", question) for question in questions)]
            missing = [path for path in wanted if not any((ROOT / f"{path}{end}").exists() for end in ("", ".py"))]
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
    if command[1:2] == ["run"]:  # what stands behind the script is for the script
        command = command[: next((i for i, word in enumerate(command) if word.endswith(".py")), len(command))]
        command = command[: command.index("-m") + 1] if "-m" in command else command
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
    right += ["penstock run --quiet train.py --epochs 3", "penstock run --steps 5 -m package.train --epochs 3"]
    wrong = ["make coffee", "make bench BENCH=tea", "penstock ledger burn a", "penstock ledger show --far a"]
    wrong += ["python -m benchmarks tea", "python -m penstock brew", "penstock run --epochs 3 train.py"]
    assert [complaint(command.split()) for command in right] == [None] * len(right)
    assert None not in [complaint(command.split()) for command in wrong]


def test_readme_is_short() -> None:
    assert len(text_of(ROOT / "README.md").splitlines()) < 130


def test_architecture_names_every_package() -> None:
    text = text_of(ROOT / "ARCHITECTURE.md")
    folders = [path for top in ("src/penstock", "native") for path in (ROOT / top).iterdir() if path.is_dir()]
    names = [f"{path.name}/" for path in folders if path.name != "__pycache__"]
    assert len(names) > 20
    names += [path.stem for path in (ROOT / "src/penstock").glob("*.py") if not path.stem.startswith("__")]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_module_says_what_it_knows() -> None:
    for path in (ROOT / "src/penstock").rglob("*.py"):
        first = path.read_text().partition("\n")[0]
        assert path.name == "__init__.py" or re.match(r'"""\S', first), path
