"""penstock.Packed: Transformers' flattened batches, each document once, the same for any workers, ranks and stops."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

import penstock
from penstock.errors import InvalidOption
from penstock.testing import assert_each_sample_once, assert_resume_exact, assert_worker_invariant
from tests.same import assert_same
from tests.texts import FORMATS, Draw, datasets, transformers

COUNT, TOKENS = 120, 200
LENGTHS = [int(one) for one in np.random.default_rng(0).integers(1, 60, COUNT)]
#: The first token of each document is its number.
DOCUMENTS = [[number, *Draw(number).tokens(length - 1)] for number, length in enumerate(LENGTHS)]
FLATTEN = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)


def table(documents: Any = DOCUMENTS, **columns: Any) -> Any:
    return datasets.Dataset.from_dict({"input_ids": documents, **columns})


class Documents(Dataset[Any]):
    """Documents of a program's own: tensors, or dictionaries of them."""

    def __init__(self, documents: list[list[int]] = DOCUMENTS, *, named: bool = False) -> None:
        self.documents, self.named = documents, named

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> Any:
        tokens = torch.tensor(self.documents[index])
        return {"input_ids": tokens, "text": "not looked at"} if self.named else tokens


def packed(data: Any, tokens: int = TOKENS, **options: Any) -> Any:
    own = {name: options.pop(name) for name in ("lengths", "longer", "vocab_size") if name in options}
    return penstock.DataLoader(data, collate_fn=penstock.Packed(tokens, **own), **options)


make = functools.partial(packed, table(), shuffle=True, seed=5)
make_own = functools.partial(packed, Documents(), lengths=LENGTHS, shuffle=True, seed=5)


def numbers(batch: Any) -> list[int]:
    """Return the numbers of a batch's documents."""
    return batch["input_ids"][0][batch["cu_seq_lens_q"][:-1].long()].tolist()


def test_batches_are_transformers_own() -> None:
    labels = [[-100, *one[1:]] if number % 2 else one for number, one in enumerate(DOCUMENTS)]
    given: list[dict[str, Any]] = [{}, {"labels": labels, "text": ["a"] * COUNT}]
    for columns in given:
        for name in FORMATS:
            data = table(**columns).with_format(name)
            for shuffle in (False, True):
                for batch in packed(data, shuffle=shuffle, seed=1):
                    assert_same(batch, FLATTEN([data[number] for number in numbers(batch)]))
    for named in (False, True):
        data = Documents(named=named)
        for batch in packed(data, lengths=LENGTHS):
            assert_same(batch, FLATTEN([{"input_ids": data.documents[number]} for number in numbers(batch)]))


@pytest.mark.parametrize("shuffle", [False, True])
def test_what_does_not_fit_begins_the_next_batch_and_none_is_lost(shuffle: bool) -> None:
    torch.manual_seed(0)
    loader = packed(table(), shuffle=shuffle)
    for _ in range(2):
        batches = [numbers(batch) for batch in loader]
        order = list(itertools.chain(*batches))
        assert sorted(order) == list(range(COUNT)) and (order == list(range(COUNT))) is not shuffle
        assert len(batches) == len(loader)
        needless = 0
        for one, following in itertools.pairwise(batches):
            tokens = sum(LENGTHS[number] for number in one)
            assert tokens <= TOKENS
            needless += tokens + LENGTHS[following[0]] <= TOKENS
        assert needless <= (6 if shuffle else 0)  # about the one or two batches that were cut in two


def test_each_epoch_has_the_same_number_of_batches() -> None:
    draw = np.random.default_rng(1)
    for trial in range(25):
        count, tokens = int(draw.integers(1, 60)), int(draw.integers(30, 200))
        lengths = draw.integers(0, 31, count)
        lengths[0] = 1
        loader = packed(
            Documents([[1] * int(one) for one in lengths]), tokens, lengths=lengths, shuffle=True, seed=trial
        )
        for _ in range(4):
            batches = list(loader)
            assert len(batches) == len(loader) and all(0 < batch["input_ids"].numel() <= tokens for batch in batches)
            assert sum(batch["input_ids"].numel() for batch in batches) == lengths.sum()


def test_a_document_of_the_table_is_gathered_and_a_programs_own_is_not() -> None:
    assert_same(list(make()), list(make_own()))
    assert "native   gather, collated as Packed does" in make().explain()
    assert "starts no process" in make(num_workers=2).explain()


@pytest.mark.parametrize("loader", [make, make_own])
def test_conforms(loader: Any) -> None:
    assert_each_sample_once(loader, ranks=(1, 2), workers=(0,), epochs=2, key=numbers)
    assert_worker_invariant(loader, workers=(0, 2))
    assert_resume_exact(loader, stops=(0, 3, 11, 1, 7), workers=(0,), ranks=(1, 3, 2), key=numbers)


def test_a_stop_without_a_seed_resumes_exactly() -> None:
    torch.manual_seed(4)
    loader = packed(table(), shuffle=True)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    again = packed(table(), shuffle=True, num_workers=2)
    again.load_state_dict(loader.state_dict())
    assert_same(list(again), list(batches))


def test_another_budget_is_another_order() -> None:
    loader = make()
    next(iter(loader))
    with pytest.raises(penstock.errors.DatasetChanged, match="DocumentOrder is not what it was"):
        packed(table(), TOKENS + 1, shuffle=True, seed=5).load_state_dict(loader.state_dict())


def test_lengths_are_found_below_subsets_and_in_mapped_tables() -> None:
    data = table()
    chosen = [5, 3, 99, 7, 40]
    joined: Any = ConcatDataset([data.select(chosen[:2]), data.select(chosen[2:])])
    for some in (Subset(data, chosen), data.select(chosen), joined):
        assert list(itertools.chain(*(numbers(batch) for batch in packed(some, 70)))) == chosen
    shuffled = data.shuffle(seed=1)
    assert sorted(itertools.chain(*(numbers(batch) for batch in packed(shuffled)))) == list(range(COUNT))


def test_empty_documents_are_left_out() -> None:
    data = table([[], [1, 2], [], [3], []])
    (batch,) = packed(data, 4)
    assert_same(batch, FLATTEN(list(data)))
    with pytest.raises(InvalidOption, match="Documents has no tokens: all of its documents are empty"):
        packed(Documents([[], []]), lengths=[0, 0])


def test_longer_documents_are_an_error_or_cut() -> None:
    data = table([[1, 2], [3, 4, 5, 6, 7], [8], [9, 10, 11, 12]])
    with pytest.raises(
        InvalidOption, match="document 1 has 5 tokens, more than tokens=3: allow more, leave it out, or"
    ):
        packed(data, 3)
    cut = [batch["input_ids"][0].tolist() for batch in packed(data, 3, longer="cut")]
    assert cut == [[1, 2], [3, 4, 5], [8], [9, 10, 11]]
    own = Documents(data["input_ids"][:])
    assert_same(list(packed(data, 3, longer="cut")), list(packed(own, 3, longer="cut", lengths=[2, 5, 1, 4])))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_token_beyond_the_vocabulary_names_its_document(workers: int) -> None:
    documents = [[1, 2], [3, 4], [5, 70, 6], [7]]
    for data, lengths in ((table(documents), None), (Documents(documents), [2, 2, 3, 1])):
        loader = packed(data, 6, vocab_size=50, lengths=lengths, num_workers=workers)
        batches = iter(loader)
        next(batches)
        with pytest.raises(
            InvalidOption, match="document 0 of the batch holds token 70 at place 1: vocab_size=50"
        ) as caught:
            next(batches)
        assert "in sample 2, in a batch of samples" in "\n".join(
            [str(caught.value), *getattr(caught.value, "__notes__", ())]
        )


class Stream(IterableDataset[Any]):
    """Documents that come as they come."""

    def __iter__(self) -> Any:
        return iter(DOCUMENTS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"batch_size": 8},
            r"batch_size=8: Packed\(tokens=200\) cuts the loader's order by itself; leave batch_size= out",
        ),
        ({"batch_size": None}, "leave batch_size= out"),
        ({"drop_last": True}, "leave drop_last= out"),
        ({"sampler": [1, 2]}, "leave sampler= out"),
        ({"on_error": "replace"}, "leave on_error= out"),
        ({"lengths": [1, 2]}, "there are 2 lengths, but the dataset has 120 samples"),
        ({"lengths": [-1] * COUNT}, "a length is 0 or more"),
        ({"tokens": 0}, "tokens=0 is out of range"),
        ({"longer": "split"}, "longer='split': it is 'raise' or 'cut'"),
        ({"vocab_size": 0}, "vocab_size=0 is out of range"),
        ({"data": Stream()}, "needs a map-style dataset"),
        (
            {"data": Documents()},
            r"the lengths of the documents of Documents are not known: give Packed\(tokens, lengths=",
        ),
        (
            {"data": table().rename_column("input_ids", "input_id")},
            "has no 'input_ids', but .'input_id'.; rename 'input_id'",
        ),
        ({"data": table([[1], None])}, "document 1 of the dataset is null"),
        ({"data": table([[1], [2, None]])}, "document 1 of the dataset is null, or holds a null"),
        ({"data": datasets.Dataset.from_dict({"input_ids": ["a"]})}, "holds string: lists of tokens are needed"),
    ],
)
def test_bad_input_is_one_error_before_the_first_batch(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        packed(**({"data": table()} | options))


def test_bad_documents_are_errors_of_their_batch() -> None:
    wrong = table([[1, 2]], labels=[[1]])
    with pytest.raises(InvalidOption, match="document 0 of the batch has 1 labels for 2 tokens"):
        list(packed(wrong))
    with pytest.raises(TypeError, match=r"input_ids are of shape \(2,\) and dtype float64"):
        list(packed(table([[0.5, 2.0]])))
    with pytest.raises(
        InvalidOption, match="have 240 tokens, and 1 to 200 are needed"
    ):  # of a sampler of a program's own
        list(penstock.DataLoader(table([[1] * 80] * 3), batch_sampler=[[0, 1, 2]], collate_fn=penstock.Packed(TOKENS)))
    (batch,) = penstock.DataLoader(table(), batch_sampler=[[4, 2]], collate_fn=penstock.Packed(TOKENS))
    assert numbers(batch) == [4, 2]
