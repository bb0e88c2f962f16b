"""A case: a dataset, a collate_fn, options and a loop, and the program that compares both loaders on it."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path

from tests.differential.indexing import OWN

_HERE = Path(__file__).parent
_HEADER = """\
from __future__ import annotations

import collections, contextlib, copy, dataclasses, gc, io, itertools, os, pathlib, pickle, queue, random, re, sys
import tempfile, threading, traceback, types, warnings, zlib
from typing import Any
from unittest import mock
import numpy as np
import torch
import torch.multiprocessing
import torch.utils.dlpack
import torchvision.transforms
import torchvision.transforms.v2
from PIL import Image
from torch.utils.data import *
from torch.utils.data import default_collate, get_worker_info
import penstock
import penstock.workers.indexed
"""
_LENGTH = "    def __len__(self):\n        return {length}\n"
_ITEM = "    def __getitem__(self, i):\n{wrong}        return {sample}\n"
_CLASS = "class Data(Dataset):\n" + _LENGTH + "\n" + _ITEM
#: Kinds of dataset whose `__getitem__` indexes (indexing.py), and where the source of their module is.
INDEXING = {"indexing": "file", "indexing without a source": "nowhere", "indexing, edited": "edited"}
_KINDS = {
    "map": _CLASS,
    "getitems": _CLASS + "\n    def __getitems__(self, indices):\n        return [self[i] for i in indices]\n",
    "rows": "class Data(Dataset):\n    def __init__(self):\n        self.rows = {rows}\n\n" + _LENGTH + "\n" + _ITEM,
    "files": (
        "class Data(Dataset):\n    def __init__(self):\n        self.folder = tempfile.mkdtemp(dir=os.getcwd())\n"
        "        for i in range({length}):\n            {rows}\n\n" + _LENGTH + "\n" + _ITEM
    ),
    "iterable": (
        "class Data(IterableDataset):\n    def __iter__(self):\n        info = get_worker_info()\n"
        "        for i in range({length})[info.id :: info.num_workers] if info else range({length}):\n"
        "{deep_wrong}            yield {sample}\n"
    ),
    "sized": (
        "class Data(IterableDataset):\n" + _LENGTH + "\n    def __iter__(self):\n        for i in range({length}):\n"
        "{deep_wrong}            yield {sample}\n"
    ),
    "unsized": "class Data(Dataset):\n" + _ITEM,
    "unmeasured": "class Data(Dataset):\n    def __len__(self):\n        raise NotImplementedError\n\n" + _ITEM,
    "list": "def Data():\n    return [{sample} for i in range({length})]\n",
    "names": "def Data():\n    return {{f'name {{i}}': {sample} for i in range({length})}}\n",
    "tensors": "def Data():\n    return TensorDataset({columns})\n",
    "subset": _CLASS + "\nWhole = Data\n\n\ndef Data():\n    return Subset(Whole(), list(range({length}))[::-2])\n",
    "concat": _CLASS + "\nWhole = Data\n\n\ndef Data():\n    return ConcatDataset([Whole(), Whole()])\n",
    **{
        kind: 'penstock.workers.indexed.LEARNING = 1\n\nSOURCE = r"""{rows}"""\n\n\n'
        f"def Data():\n    return fresh(SOURCE, {how!r})\n"
        for kind, how in INDEXING.items()
    },
    "stack": _CLASS + "\nWhole = Data\n\n\ndef Data():\n    return StackDataset(Whole(), again=Whole())\n",
}
_CONTAINERS = {"tuple": "({},)", "list": "[{}]", "Pair": "Pair({}, i)", "Point": "Point({}, i)", "dict": "{{{}}}"}
_RUN = """
def run(loader_class, **own):
    global ours
    ours = loader_class is penstock.DataLoader
    seeded()
    log = Log()
    try:
        with {around}:
            {loop}(lambda: loader_class(Data(){options}, **own){arguments})
            log.end()
    except Exception as error:  # of the loader's making, or of the loop
        log.raised(error)
    return log.lines


def both(told=lambda name, lines: None):
    warnings.simplefilter("ignore")
    found = []
    for loader, own in ((torch.utils.data.DataLoader, {{}}), (penstock.DataLoader, dict({own}))):
        found.append([{alike} for line in run(loader, **own)])
        told(loader.__module__, found[-1])
    return found


if __name__ == "__main__":
    wrong = [pair for pair in itertools.zip_longest(*both()) if pair[0] != pair[1]]
    for theirs, ours in wrong[:8]:
        print("torch:   ", theirs)
        print("penstock:", ours)
    print(f"{{len(wrong)}} lines differ")
    sys.exit(bool(wrong))
"""


@dataclass(frozen=True)
class Case:
    """What both loaders are to do alike."""

    kind: str  # of dataset, a key of the templates above
    length: int
    container: str  # what a sample is made of its fields
    fields: tuple[str, ...]  # an expression for each, of the index `i` (of "tensors": of no index, whole columns)
    wrong: str  # a line of __getitem__ before its return, or ""
    rows: str  # of kind "rows": the dataset's memory, an expression; of "files": a statement that writes number `i`;
    # of INDEXING: the source of the dataset's module
    options: tuple[str, ...]  # arguments of both loaders
    own: tuple[str, ...]  # arguments of Penstock's only
    loop: str  # a function of consumers.py
    arguments: tuple[str, ...]  # its arguments, after the log
    pins: bool  # pinning is stood in for
    pure: bool = True  # the same sample comes of the same index, whoever asks and how often

    def __str__(self) -> str:
        """Return what is this case's own; of a module's source, what does not stand in all of them."""
        source = self.rows.partition(OWN)[2] if self.kind in INDEXING else ""
        return f"{replace(self, rows='') if source else self!r}\n{source}".rstrip()

    def sample(self) -> str:
        named = (f'"{name}": {field}' for name, field in zip("abcdefgh", self.fields, strict=False))
        if self.container == "bare":
            return self.fields[0]
        inner = ", ".join(named if self.container == "dict" else self.fields)
        return _CONTAINERS[self.container].format(f"({inner})" if self.container in ("Pair", "Point") else inner)

    def program(self) -> str:
        """Return a program that stands alone: it exits with 1, and says where, if the loaders differ."""
        body = self.body()
        return "\n\n".join([_HEADER, *_definitions(body), body])

    def body(self) -> str:
        """Return the part of the program that is this case's own."""
        wrong, deep_wrong = (f"{' ' * deep}{self.wrong}\n" if self.wrong else "" for deep in (8, 12))
        columns = ", ".join(self.fields)
        named = {"length": self.length, "sample": self.sample(), "rows": self.rows, "columns": columns}
        dataset = _KINDS[self.kind].format(wrong=wrong, deep_wrong=deep_wrong, **named)
        # The kind of an error of torch's own code is another one in its workers than in its caller's thread.
        in_threads = "thread" in str(self.own) or "auto" in str(self.own)
        run = _RUN.format(
            around="pinning()" if self.pins else "contextlib.nullcontext()",
            loop=self.loop,
            options="".join(f", {option}" for option in self.options),
            own=", ".join(self.own),
            alike="re.sub(r'^raised \\w+', 'raised', line)" if in_threads else "line",
            arguments=", ".join(["", "log", *self.arguments]),
        )
        return f"{dataset}\n\n\n{run.strip()}\n"


def prelude() -> str:
    """Return what stands before the body of any case."""
    return "\n\n".join([_HEADER, *_parts().values()])


@functools.cache
def _parts() -> dict[str, str]:
    found = {}
    for module in ("values", "collates", "consumers"):
        text = (_HERE / f"{module}.py").read_text()
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
            elif isinstance(node, ast.Assign):
                (target,) = node.targets
                assert isinstance(target, ast.Name)
                found[target.id] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return found


def _definitions(text: str) -> list[str]:
    parts, named, texts = _parts(), set[str](), [text]
    while texts:
        words = set(re.findall(r"\w+", texts.pop())) & parts.keys() - named
        named |= words
        texts += [parts[word] for word in words]
    return [part for name, part in parts.items() if name in named]
