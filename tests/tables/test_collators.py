"""Batches of the collators of Transformers and TRL: those of torch's loader, without a Python object a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

import penstock
from tests.same import assert_same
from tests.texts import FORMATS, Draw, assert_same_passes, calls_of, datasets, tokenizer, transformers, trl_collator

GATHERED = "native   gather, collated as "


def table(rows: int = 40, *, label: bool = True, seed: int = 0) -> Any:
    draw = Draw(seed)
    tokens = [draw.tokens(draw.randint(1, 30)) for _ in range(rows)]
    columns: dict[str, Any] = {"input_ids": tokens, "attention_mask": [[1] * len(one) for one in tokens]}
    return datasets.Dataset.from_dict(columns | ({"label": [len(one) % 3 for one in tokens]} if label else {}))


def documents(rows: int = 40) -> Any:
    tokens = table(rows)["input_ids"]
    return datasets.Dataset.from_dict({"input_ids": tokens, "labels": tokens})


def both(data: Any, collator: Any, **options: Any) -> tuple[Any, Any]:
    options = {"batch_size": 7, "shuffle": True, "collate_fn": collator} | options
    return penstock.DataLoader(data, **options), torch.utils.data.DataLoader(data, **options)


def masking(**options: Any) -> Any:
    return transformers.DataCollatorForLanguageModeling(tokenizer(), **options)


#: What makes a collator of each class, and the table that it is for.
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "padding": (lambda: transformers.DataCollatorWithPadding(tokenizer()), table),
    "causal": (lambda: masking(mlm=False), table),
    "masked": (masking, table),
    "seeded": (lambda: masking(seed=5, pad_to_multiple_of=8), table),
    "seq2seq": (lambda: transformers.DataCollatorForSeq2Seq(tokenizer(side="left")), documents),
    "tokens": (lambda: transformers.DataCollatorForTokenClassification(tokenizer(side="left")), documents),
    "flat": (lambda: transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True), documents),
    "default": (lambda: transformers.default_data_collator, lambda: table().select_columns(["label"])),
    "trl": (lambda: trl_collator(pad_token_id=0), documents),
    "padding free": (lambda: trl_collator(pad_token_id=0, padding_free=True, pad_to_multiple_of=8), documents),
}


def case(kind: str) -> tuple[Any, Any]:
    """Return a collator and its table."""
    collator, data = CASES[kind]
    return collator(), data()


DRAWING = ("masked", "seeded")


@pytest.mark.parametrize("kind", CASES)
def test_each_collator_gives_its_own_batches_in_each_format(kind: str) -> None:
    collator, data = case(kind)
    for name in FORMATS:
        shown = data.with_format(name)
        ours, theirs = both(shown, collator)
        assert_same_passes(ours, theirs, collator, passes=2)
        if (kind, name) not in (("trl", "torch"), ("padding free", "torch")):  # TRL warns of each tensor
            assert GATHERED in ours.explain()
            called = collator if kind == "default" else type(collator).__call__
            with calls_of(called) as calls:
                list(ours)
            assert calls == [0]


@pytest.mark.parametrize("kind", ["padding", "masked", "seeded", "padding free"])
def test_the_batches_of_workers_are_those_of_torchs_workers(kind: str) -> None:
    collator, data = case(kind)
    ours, theirs = both(data, collator, num_workers=2)
    assert_same_passes(ours, theirs, collator, passes=2)
    explained = ours.explain()
    assert GATHERED in explained
    assert ("starts no process" in explained) is (kind not in DRAWING)


def test_random_tables_collators_and_options() -> None:
    gathered = 0
    for seed in range(60):
        draw = Draw(seed)
        data, collator = draw.part(draw.table(draw.randint(2, 24))), draw.collator()
        options = {"batch_size": draw.randint(1, 9), "shuffle": draw.some(0.7), "drop_last": draw.some(0.2)}
        ours, theirs = both(data, collator, **options)
        try:
            assert_same_passes(ours, theirs, collator)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {collator} of {data} with {options}") from error
        gathered += GATHERED in ours.explain()
    assert gathered > 40


def test_a_masking_collator_draws_from_the_generator_of_its_process() -> None:
    collator, data = case("masked")
    for workers in (0, 2):
        made = []
        for number in (0, 1):
            own = torch.Generator().manual_seed(2)
            torch.manual_seed(1)
            loader = both(data, collator, generator=own, num_workers=workers)[number]
            made.append([[dict(batch) for batch in loader] for _ in range(2)])
        assert_same(*made)


def test_with_a_seed_the_batches_are_the_same_for_any_number_of_workers() -> None:
    for kind in ("padding", "masked"):
        collator, data = case(kind)
        options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 11, "collate_fn": collator}
        here, there = ([dict(b) for b in penstock.DataLoader(data, num_workers=n, **options)] for n in (0, 2))
        assert_same(here, there)


def test_a_pass_resumes_in_the_middle() -> None:
    collator, data = case("padding")
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 3, "collate_fn": collator}
    whole = [dict(batch) for batch in penstock.DataLoader(data, **options)]
    stopped = penstock.DataLoader(data, **options)
    batches = iter(stopped)
    for _ in range(2):
        next(batches)
    resumed = penstock.DataLoader(data, num_workers=2, **options)
    resumed.load_state_dict(stopped.state_dict())
    assert_same([dict(batch) for batch in resumed], whole[2:])


def test_batch_samplers_are_as_they_are() -> None:
    collator, data = case("padding")
    lengths = [len(one) for one in data["input_ids"]]
    grouped = transformers.trainer_pt_utils.LengthGroupedSampler(7, lengths=lengths)
    given: list[dict[str, Any]] = [
        {"batch_sampler": [[0, 3], [5], [1, 2, 7]]},
        {"batch_size": 7, "sampler": grouped},
        {"batch_size": 7, "sampler": grouped, "num_workers": 2},
    ]
    for options in given:
        ours: Any = penstock.DataLoader(data, collate_fn=collator, **options)
        theirs: Any = torch.utils.data.DataLoader(data, collate_fn=collator, **options)
        assert_same_passes(ours, theirs, collator, passes=2)
        assert GATHERED in ours.explain()
    buckets = penstock.DataLoader(data, batch_sampler=penstock.Buckets(lengths, 200), collate_fn=collator, seed=1)
    assert sum(len(batch["labels"]) for batch in buckets) == len(data)


# --- what is left to the collator -------------------------------------------------------------------------------------


class Upper(transformers.DataCollatorWithPadding):
    """A collator of a program's own."""

    def __call__(self, features: Any) -> Any:
        return super().__call__([{"input_ids": one["input_ids"]} for one in features])


def test_a_collator_of_a_programs_own_makes_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    data, pad = table(), tokenizer()
    replaced = transformers.DataCollatorWithPadding(pad)
    replaced.extra = 1
    numpy = transformers.DataCollatorWithPadding(pad, return_tensors="np")
    for collator in (Upper(pad), replaced, numpy, lambda rows: [len(row["input_ids"]) for row in rows]):
        ours, theirs = both(data, collator)
        assert_same_passes(ours, theirs, collator)
        assert GATHERED not in ours.explain()
    collator = transformers.DataCollatorWithPadding(pad)
    ours, theirs = both(data, collator)
    assert_same_passes(ours, theirs, collator)
    own = type(pad).pad
    monkeypatch.setattr(type(pad), "pad", lambda *given, **options: own(*given, **options), raising=False)
    assert GATHERED not in ours.explain()


def test_a_tokenizer_without_a_pad_token_is_the_packages_own_error() -> None:
    collator = transformers.DataCollatorWithPadding(tokenizer(pad=False))
    ours, theirs = both(table(), collator)
    made = assert_same_passes(ours, theirs, collator)
    assert made[0][1].startswith("Asking to pad but the tokenizer does not have a padding token.")


def other_padding(collator: Any, data: Any) -> None:
    collator.tokenizer.padding_side, collator.pad_to_multiple_of = "left", 64


def arrays(collator: Any, data: Any) -> None:
    collator.return_tensors = "np"


def own_pad(collator: Any, data: Any) -> None:
    collator.tokenizer.pad = lambda *_, **__: {"padded": torch.zeros(1)}


def other_columns(collator: Any, data: Any) -> None:
    data.set_format(columns=["input_ids"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("change", [other_padding, arrays, own_pad, other_columns])
def test_what_changes_between_batches_is_seen(change: Callable[[Any, Any], None], workers: int) -> None:
    made = []
    for kind in (torch.utils.data.DataLoader, penstock.DataLoader):
        collator, data = transformers.DataCollatorWithPadding(tokenizer()), table()
        torch.manual_seed(0)
        batches = iter(kind(data, 8, shuffle=True, collate_fn=collator, num_workers=workers))
        found = [next(batches), next(batches)]
        change(collator, data)
        made.append([dict(batch) for batch in [*found, *batches]])
    assert_same(*made)


def test_the_tensors_are_made_on_the_default_device() -> None:
    collator, data = case("padding")
    made = []
    for loader in both(data, collator):
        batches = iter(loader)
        next(batches)
        with torch.device("meta"):
            made.append([next(batches)["input_ids"].device.type for _ in range(2)])
        made[-1] += [batch["input_ids"].device.type for batch in batches]
    assert made[0] == made[1] == ["meta"] * 2 + ["cpu"] * 3


def test_a_batch_that_differs_has_the_collator_make_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of the package that pads otherwise, which is not known here."""
    collator, rows = transformers.DataCollatorWithPadding(tokenizer()), table()
    data: Any = Subset(rows, range(30))
    monkeypatch.setattr("penstock.tables.collators.token_mask", lambda *_, **__: torch.zeros(1))
    ours, theirs = both(data, collator)
    rows.set_format(columns=["input_ids", "label"])
    with pytest.warns(UserWarning, match="DataCollatorWithPadding gave another batch than Penstock gathered"):
        list(ours)
    assert_same_passes(ours, theirs, collator)
    assert GATHERED not in ours.explain()
