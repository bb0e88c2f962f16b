"""What tells one dataset from another: how many samples, which IDs in which order, which labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from penstock.sources import ImageFolder, TensorFolder

#: Bytes of a hash: two datasets share one by chance once in 2**64 pairs.
_SIZE = 8


def fingerprint(dataset: Any) -> dict[str, Any]:
    """Return the fingerprint of a map-style dataset: JSON-able, a few dozen bytes.

    `size`: of the dataset. `ids`: a hash of the IDs (file names, below the root where there is one) in order. `labels`:
    one of the labels. Both are None where a dataset has none that can be had without reading samples.
    """
    ids, labels = hashlib.blake2b(digest_size=_SIZE), hashlib.blake2b(digest_size=_SIZE)
    known = _Known()
    _add(dataset, ids, labels, known)
    return {
        "size": len(dataset),
        "ids": ids.hexdigest() if known.ids else None,
        "labels": labels.hexdigest() if known.labels else None,
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return in words how a dataset differs from what it was, or None."""
    told = []
    if then.get("size") != now["size"]:
        told.append(
            f"it had {then.get('size'):,} samples and has {now['size']:,} ({now['size'] - then.get('size', 0):+,})"
        )
    if then.get("ids") != now["ids"]:
        told.append("its IDs, or their order, are others")
    if then.get("labels") != now["labels"]:
        told.append("its labels are others")
    return "; ".join(told) or None


class _Known:
    ids = False
    labels = False


def _add(dataset: Any, ids: Any, labels: Any, known: _Known) -> None:
    if isinstance(dataset, Subset):
        _add(dataset.dataset, ids, labels, known)
        ids.update(np.asarray(dataset.indices, dtype=np.int64).tobytes())
        known.ids = True
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            ids.update(len(part).to_bytes(8, "little"))  # type: ignore[arg-type]
            _add(part, ids, labels, known)
        known.ids = True
    elif isinstance(dataset, TensorFolder | ImageFolder):
        ids.update(dataset.paths.names())
        known.ids = True
        if dataset.labels is not None:
            labels.update(_label_bytes(dataset))
            known.labels = True
    else:
        samples = getattr(dataset, "samples", None)  # of torchvision's DatasetFolder
        if isinstance(samples, list) and samples and isinstance(samples[0], tuple) and isinstance(samples[0][0], str):
            root = str(getattr(dataset, "root", ""))
            _each(ids, (sample[0].removeprefix(root) for sample in samples))
            _each(labels, (str(sample[1]) for sample in samples))
            known.ids = known.labels = True
        targets = getattr(dataset, "targets", None)
        if not known.labels and targets is not None and len(targets) == len(dataset):
            values = targets.numpy() if isinstance(targets, torch.Tensor) else np.asarray(targets)
            if values.dtype != object:
                labels.update(values.tobytes())
                known.labels = True


def _label_bytes(dataset: TensorFolder | ImageFolder) -> bytes:
    """Return the labels of all samples; nothing where one of them is missing, which is an error of its batch."""
    if isinstance(dataset, ImageFolder):
        return dataset.labels.tobytes()
    assert dataset.labels is not None
    try:
        values = dataset.labels.take(np.arange(len(dataset), dtype=np.int64))
    except KeyError:
        return b""
    return values.tobytes() if isinstance(values, np.ndarray) else repr(values).encode()


def _each(into: Any, names: Iterable[str]) -> None:
    into.update(b"".join(name.encode("utf-8", "surrogateescape") + b"\0" for name in names))
