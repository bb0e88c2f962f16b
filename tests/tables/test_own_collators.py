"""A user's own collate_fn that pads columns gives the batches that it gives without us, of gathered columns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Subset

import penstock
from tests.same import assert_same

datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")

PAD = 7
READ = "native   gather, collated as "


def table(rows: int = 40) -> Any:
    ids = [[index * 3 + place for place in range(1 + index % 6)] for index in range(rows)]
    return datasets.Dataset.from_dict(
        {
            "ids": ids,
            "weights": [[place / 7 for place in row] for row in ids],
            "label": list(range(rows)),
            "score": [index / 3 for index in range(rows)],
            "text": [f"text {index}" for index in range(rows)],
        }
    )


def usual(batch: Any) -> Any:
    ids = pad_sequence([torch.tensor(row["ids"]) for row in batch], batch_first=True, padding_value=0)
    return {"ids": ids, "mask": (ids != 0).long(), "label": torch.tensor([row["label"] for row in batch])}


def by_name(rows: Any) -> Any:
    ids: Any = [torch.tensor(row["ids"], dtype=torch.long) for row in rows]
    weights: Any = [torch.FloatTensor(row["weights"]) for row in rows]
    lengths = torch.tensor([len(row["ids"]) for row in rows])
    ids = ids
    return pad_sequence(ids, True, PAD), pad_sequence(weights), lengths, len(rows)


def two_names(rows: Any) -> Any:
    tokens: Any = [torch.LongTensor(row["ids"]) for row in rows]
    scores = torch.tensor([row["score"] for row in rows], dtype=torch.float64)
    padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_side="left", padding_value=-100)
    return padded, scores, max([len(row["ids"]) for row in rows])


def listed(rows: Any) -> Any:
    return [torch.tensor(one["ids"]) for one in rows], torch.stack([torch.tensor(one["ids"])[:1] for one in rows])


def as_lists(rows: Any) -> Any:
    tensors = [torch.as_tensor(one["weights"]) for one in rows]
    return tensors, [one["label"] for one in rows], torch.cat(tensors)


class Collator:
    """As most are written: an object with its padding."""

    def __init__(self, pad: int) -> None:
        self.pad, self.return_tensors = pad, "own"

    def __call__(self, batch: Any) -> Any:
        ids = [torch.tensor(one["ids"]) for one in batch]
        padded = pad_sequence(ids, batch_first=True, padding_value=self.pad)
        return {"ids": padded, "mask": padded.ne(self.pad).long()}


def closed(pad: int) -> Any:
    def collate(batch: Any) -> Any:
        return pad_sequence([torch.tensor(one["ids"]) for one in batch], batch_first=True, padding_value=pad)

    return collate


GATHERED = {"usual": usual, "by name": two_names, "lists": as_lists, "object": Collator(3), "closure": closed(5)}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", GATHERED)
def test_the_batches_are_those_of_the_function(name: str, workers: int) -> None:
    collate = GATHERED[name]
    for data in (table(), Subset(table(), [5, 3, 39, 0, 7, 7, 12])):
        given: Any = {"batch_size": 6, "collate_fn": collate, "num_workers": workers}
        ours: Any = penstock.DataLoader(data, **given)
        theirs: Any = DataLoader(data, **given)
        for _ in range(2):
            assert_same(list(ours), list(theirs))
        assert READ in ours.explain()


def test_rows_of_the_torch_format() -> None:
    def bare(batch: Any) -> Any:
        return (
            pad_sequence([one["ids"] for one in batch], batch_first=True),
            torch.stack([one["label"] for one in batch]),
        )

    data = table().with_format("torch", columns=["ids", "label"])
    ours, theirs = (kind(data, batch_size=6, collate_fn=bare) for kind in (penstock.DataLoader, DataLoader))
    assert_same(list(ours), list(theirs))


def drawing(batch: Any) -> Any:
    padded = pad_sequence([torch.tensor(one["ids"]) for one in batch], batch_first=True)
    return torch.where(torch.rand(padded.shape) < 0.5, padded, 0)


def helped(batch: Any) -> Any:
    return usual(batch)


def sorting(batch: Any) -> Any:
    batch.sort(key=len)
    return pad_sequence([torch.tensor(one["ids"]) for one in batch])


def filtered(batch: Any) -> Any:
    return pad_sequence([torch.tensor(one["ids"]) for one in batch if one["label"] > 3])


@pytest.mark.parametrize("collate", [drawing, helped, sorting, filtered, listed, print])
def test_what_is_not_read(collate: Any) -> None:
    assert READ not in penstock.DataLoader(table(), batch_size=6, collate_fn=collate).explain()


def test_changes_reach_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    collator, data = Collator(0), table()
    ours: Any = penstock.DataLoader(data, batch_size=6, collate_fn=collator)
    batches = iter(ours)
    first = next(batches)["ids"]
    assert 0 in first
    collator.pad = 99
    assert any(99 in batch["ids"] for batch in batches)

    def with_global(batch: Any) -> Any:
        return pad_sequence([torch.tensor(one["ids"]) for one in batch], batch_first=True, padding_value=PAD)

    batches = iter(penstock.DataLoader(data, batch_size=6, collate_fn=with_global))
    next(batches)
    monkeypatch.setitem(globals(), "PAD", 1234)
    assert all(1234 in batch for batch in batches)


@pytest.mark.parametrize("bad", [None, [None], []])
def test_nulls_and_empty_lists_are_the_functions(bad: Any) -> None:
    data = datasets.Dataset.from_dict({"ids": [[1, 2], [3], bad] * 4})
    found = []
    for kind in (DataLoader, penstock.DataLoader):
        try:
            found.append(str(list(kind(data, batch_size=3, collate_fn=closed(0)))))
        except (TypeError, ValueError, RuntimeError) as error:
            found.append(str(error).partition("\n")[0])
    assert found[0] == found[1]
