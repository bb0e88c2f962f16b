"""Tokenizers, tables of tokens and collators, at random, and what two loaders make of them.

The tests that import this module are skipped where the packages are missing.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from tests.same import assert_same, outcomes

datasets: Any = pytest.importorskip("datasets", reason="pip install datasets")
tokenizers: Any = pytest.importorskip("tokenizers", reason="pip install tokenizers")
transformers: Any = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install transformers"
)
datasets.disable_progress_bars()

WORDS, PAD, MASK = 90, 90, 91
INPUTS = ("input_ids", "attention_mask")
FORMATS = (None, "torch", "numpy")
#: What torch warns of once a process, or of each tensor that is made of a tensor.
_OF_TORCH = ("Creating a tensor from a list", "To copy construct")


def tokenizer(
    *, pad: bool = True, side: str = "right", inputs: tuple[str, ...] = ("input_ids", "attention_mask")
) -> Any:
    """Return a tokenizer of `WORDS` words and a few special tokens."""
    words = {f"w{number}": number for number in range(WORDS)} | {"[PAD]": PAD, "[MASK]": MASK, "[UNK]": 92}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    special = {"mask_token": "[MASK]", "unk_token": "[UNK]"} | ({"pad_token": "[PAD]"} if pad else {})
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, padding_side=side, model_input_names=list(inputs), **special
    )


def trl_collator(**options: Any) -> Any:
    trainer = pytest.importorskip("trl.trainer.sft_trainer", reason="pip install trl")
    return trainer.DataCollatorForLanguageModeling(**options)


class Draw(random.Random):
    """Draws tables and collators."""

    def some(self, odds: float) -> bool:
        return self.random() < odds

    def tokens(self, length: int) -> list[int]:
        return [self.randrange(WORDS) for _ in range(length)]

    def lengths(self, rows: int) -> list[int]:
        longest, least = self.choice([1, 2, 9, 40]), 0 if self.some(0.15) else 1
        return [longest] * rows if self.some(0.2) else [self.randint(least, longest) for _ in range(rows)]

    def table(self, rows: int, *, rare: float = 0.1) -> Any:
        """Return a table of `input_ids` and other columns. rare: how likely each of the unusual things is."""
        lengths = self.lengths(rows)
        lists = datasets.LargeList if self.some(0.2) else datasets.List
        columns: dict[str, list[Any]] = {"input_ids": list(map(self.tokens, lengths))}
        features: dict[str, Any] = {
            "input_ids": lists(datasets.Value(self.choice(["int64", "int32", "uint16", "int8"])))
        }

        def add(name: str, values: list[Any], feature: Any) -> None:
            columns[name], features[name] = values, feature

        for name in ("attention_mask", "token_type_ids", "special_tokens_mask"):
            if self.some(0.7 if name == "attention_mask" else 0.2):
                kind = self.choice(["int64", "int8", "bool"]) if self.some(0.3) else "int64"
                add(
                    name,
                    [[self.randrange(2) for _ in range(length)] for length in lengths],
                    lists(datasets.Value(kind)),
                )
        label = self.choice(["none", "int", "float", "bool", "list", "list", "ids"])
        name = self.choice(["label", "labels"])
        if label in ("int", "float", "bool"):
            kind = {
                "int": self.choice(["int64", "int8"]),
                "float": self.choice(["float32", "float64"]),
                "bool": "bool",
            }[label]
            add(name, [self.randrange(2) / (3 if label == "float" else 1) for _ in range(rows)], datasets.Value(kind))
        elif label != "none":
            of_labels = self.lengths(rows) if self.some(0.2) else lengths
            add(
                "label_ids" if label == "ids" else name,
                list(map(self.tokens, of_labels)),
                lists(datasets.Value("int64")),
            )
        if self.some(rare):
            add("text", ["a"] * rows, datasets.Value("string"))
        if self.some(rare):
            add("weights", [[self.random()] * length for length in lengths], lists(datasets.Value("float64")))
        if self.some(rare):
            add("pieces", [[length] if length else [] for length in lengths], lists(datasets.Value("int32")))
            columns["seq_lengths"], features["seq_lengths"] = columns.pop("pieces"), features.pop("pieces")
        if self.some(rare):
            columns[self.choice(list(columns))][self.randrange(rows)] = None
        made = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        if self.some(0.3):
            made = datasets.concatenate_datasets([made, made.select(range(rows // 2))])
        if self.some(0.3):
            made = made.shuffle(seed=self.randrange(100))
        some = self.sample(list(columns), self.randint(1, len(columns))) if self.some(0.1) else None
        return made.with_format(self.choice(FORMATS), columns=some, output_all_columns=self.some(0.5))

    def collator(self) -> Any:
        """Return a collator of Transformers or TRL with options."""
        pad = tokenizer(
            pad=not self.some(0.05),
            side=self.choice(["right", "right", "left"]),
            inputs=("input_ids",) if self.some(0.1) else INPUTS,
        )
        multiple = self.choice([None, None, 8])
        of_trl = {"pad_token_id": PAD, "pad_to_multiple_of": multiple}
        padded: dict[str, Any] = {"pad_to_multiple_of": multiple}
        if self.some(0.3):
            padded |= {
                "padding": self.choice(["longest", "max_length", False]),
                "max_length": self.choice([None, 8, 48]),
            }
        flat = {name: self.some(0.5) for name in ("return_position_ids", "return_flash_attn_kwargs", "return_seq_idx")}
        masked = {"pad_to_multiple_of": multiple, "mlm": self.some(0.6), "seed": self.choice([None, 5])}
        makers: list[Callable[[], Any]] = [
            lambda: transformers.DataCollatorWithPadding(pad, **padded),
            lambda: transformers.DataCollatorForTokenClassification(pad, **padded),
            lambda: transformers.DataCollatorForSeq2Seq(pad, label_pad_token_id=self.choice([-100, 7]), **padded),
            lambda: transformers.DataCollatorForLanguageModeling(pad, **masked),
            lambda: transformers.DataCollatorWithFlattening(separator_id=self.choice([-100, 3]), **flat),
            lambda: transformers.default_data_collator,
            transformers.DefaultDataCollator,
            lambda: trl_collator(padding_free=True, **of_trl),
            lambda: trl_collator(return_position_ids=self.some(0.5), **of_trl),
        ]
        return self.choice(makers)()

    def part(self, table: Any) -> Any:
        """Return the table, or some of its rows."""
        return Subset(table, self.sample(range(len(table)), len(table) // 2)) if self.some(0.2) else table


def made_by(loader: Any, collator: Any, *, seed: int = 3) -> tuple[list[Any], list[str], torch.Tensor]:
    """Return the batches and errors of a pass, the warnings, and the state of torch's generator behind it."""
    if getattr(collator, "generator", None) is not None:
        collator.generator = None  # which its seed makes anew
    torch.manual_seed(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = [plain(batch) for batch in outcomes(loader)]
    said = [str(one.message) for one in caught if not str(one.message).startswith(_OF_TORCH)]
    return batches, said, torch.get_rng_state()


def plain(batch: Any) -> Any:
    """Return a batch as what `assert_same` compares: a BatchEncoding as its name, its dictionary and its encodings.

    Its number of sequences is lost on the way from a worker process.
    """
    if isinstance(batch, transformers.BatchEncoding):
        return type(batch).__name__, plain(dict(batch)), batch.encodings
    if isinstance(batch, dict):
        return {name: _comparable(value) for name, value in batch.items()}
    return batch


def _comparable(value: Any) -> Any:
    """Return a value with a number in the place of each NaN, which equals nothing."""
    return value.nan_to_num(nan=-1e30) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def assert_same_passes(ours: Any, theirs: Any, collator: Any, passes: int = 1) -> list[Any]:
    """Assert that the passes of two loaders are the same in all that a program sees; return the last one's batches."""
    made: list[Any] = []
    for number in range(passes):
        made, said, drawn = made_by(ours, collator, seed=number)
        expected, warned, left = made_by(theirs, collator, seed=number)
        assert_same(made, expected)
        assert said == warned
        assert torch.equal(drawn, left)
    return made


@contextmanager
def calls_of(function: Any) -> Iterator[list[int]]:
    """Count the calls of a function of Python within the block: the list's one element."""
    code: CodeType = function.__code__
    count = [0]

    def see(frame: Any, event: str, _: Any) -> None:
        count[0] += event == "call" and frame.f_code is code

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield count
    finally:
        sys.setprofile(before)
