"""``penstock view``: a contact sheet of a batch, as a PNG or an HTML page."""

from __future__ import annotations

import argparse
import errno
import math
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from penstock.cli.terminal import add_verb, count, positive, shown, write_lines
from penstock.errors import InvalidOption
from penstock.insight.pictures import Normalisation
from penstock.insight.sheet import MOST, SIDE, check_suffix, write_sheet
from penstock.insight.targets import DATASET, default_transform, target
from penstock.insight.view import BATCH_SIZE, sentence, sheet_of
from penstock.system.words import counted

_OUT = "penstock-view.png"
_MORE = (
    " The batch is read as the model gets it, by the dataset's and the loader's own code. A known "
    "normalisation is undone; the sheet says how values became pixels."
)


def add_parser(verbs: Any) -> None:
    parser = add_verb(verbs, "view", _view, description=_MORE)
    parser.add_argument("dataset", metavar="DATASET", help=DATASET)
    said = f"a .png or .html file, which is overwritten (default: {_OUT})"
    parser.add_argument("-o", "--output", default=_OUT, metavar="FILE", help=said)
    parser.add_argument("--batch", type=count, default=0, metavar="N", help="the batch, counted from 0 (default: 0)")
    parser.add_argument(
        "--batch-size", type=positive, metavar="N", help=f"samples of a batch, for a dataset (default: {BATCH_SIZE})"
    )
    parser.add_argument("--shuffle", action="store_true", help="take a dataset in random order")
    parser.add_argument("--seed", type=count, metavar="SEED", help="seed of a dataset's order and random draws")
    parser.add_argument("--split", metavar="NAME", help="the split of packed shards, where the folder holds several")
    parser.add_argument(
        "--max", type=positive, default=MOST, metavar="N", help=f"the most samples shown (default: {MOST})"
    )
    parser.add_argument("--columns", type=positive, metavar="N", help="samples in a row (default: as many as rows)")
    said = f"pixels of a picture's side (default: {SIDE})"
    parser.add_argument("--side", type=positive, default=SIDE, metavar="N", help=said)
    parser.add_argument("--mean", type=_numbers, metavar="M,M,M", help="undo a normalisation: one mean a channel")
    parser.add_argument("--std", type=_numbers, metavar="S,S,S", help="undo a normalisation: one deviation a channel")
    parser.add_argument("--tokenizer", metavar="NAME", help="show tokens as text: a name or folder for Transformers")
    parser.add_argument("--as-is", action="store_true", help="keep the normalisation of the dataset's transform")


def _view(arguments: argparse.Namespace) -> int:
    given, out = arguments, os.path.expanduser(arguments.output)
    check_suffix(out)
    folder = os.path.dirname(out) or "."
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder for the sheet", folder)
    undo = _normalisation(given.mean, given.std, given.as_is)
    dataset = target(given.dataset, given.split)
    sheet = sheet_of(
        dataset,
        given.batch,
        batch_size=given.batch_size,
        shuffle=given.shuffle,
        seed=given.seed,
        undo=undo,
        as_is=given.as_is,
        most=given.max,
        columns=given.columns,
        decode=None if given.tokenizer is None else _decoder(given.tokenizer),
    )
    if undo is not None and not any("normalisation was undone" in note for note in sheet.notes):
        numbers = counted(max(len(undo.mean), len(undo.std)), "number")
        raise InvalidOption(f"--mean and --std have {numbers}: the batch has no picture of floats with such channels")
    write_sheet(sheet, out, given.side)
    transform = default_transform(given.dataset, dataset)
    notes = [*sheet.notes, *([f"transform: {transform}"] if transform else [])]
    write_lines([f"{shown(out)}: {sheet.title}", *(f"  {note}" for note in notes)])
    return 0


def _decoder(name: str) -> Callable[[list[int]], str]:
    """Return what makes texts of the tokens of a tokenizer. Raises InvalidOption."""
    try:
        kind = import_module("transformers").AutoTokenizer
    except ImportError:
        raise InvalidOption("--tokenizer needs Transformers: pip install transformers") from None
    try:
        tokenizer = kind.from_pretrained(name)
    except Exception as error:  # of the package's, or of a file
        raise InvalidOption(f"--tokenizer {shown(name)}: {sentence(error)}") from error
    return lambda tokens: str(tokenizer.decode(tokens))


def _normalisation(mean: tuple[float, ...] | None, std: tuple[float, ...] | None, as_is: bool) -> Normalisation | None:
    """Return what --mean and --std say. Raises InvalidOption."""
    if mean is None and std is None:
        return None
    if as_is:
        raise InvalidOption("--as-is and --mean or --std exclude each other")
    mean, std = mean or (0.0,), std or (1.0,)
    if len(mean) != len(std) and 1 not in (len(mean), len(std)):
        raise InvalidOption(f"--mean has {counted(len(mean), 'number')} and --std {len(std)}: give one a channel")
    if 0 in std:
        raise InvalidOption("--std holds 0: give the values that the transform divides by")
    return Normalisation(mean, std)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers with commas between them, such as 0.485,0.456,0.406")
    return numbers
