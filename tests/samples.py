"""Samples of every kind that default_collate takes or refuses, as functions of their index."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Point = namedtuple("Point", ["x", "y"])


def image(i: int) -> torch.Tensor:
    return torch.arange(12, dtype=torch.float32).view(3, 4) + i


SAMPLES: dict[str, Callable[[int], Any]] = {
    "tensor": image,
    "tensor and label": lambda i: (image(i), i),
    "list": lambda i: [image(i), float(i), str(i)],
    "dict": lambda i: {"x": image(i), "y": {"z": i % 2 == 0, "name": f"n{i}"}},
    "named tuple": lambda i: Point(image(i), (i, image(2 * i))),
    "arrays": lambda i: (np.full((2, 3), i, dtype=np.int16), np.float64(i), np.arange(4)[::-1]),
    "0-d": lambda i: (torch.tensor(i), np.array(i, dtype=np.float32)),
    "not contiguous": lambda i: image(i).t(),
    "empty": lambda i: torch.empty(0, 3),
    "bool and complex": lambda i: (torch.tensor([i % 2 == 0]), torch.tensor([complex(i, -i)]).conj()),
    "bytes": lambda i: b"%d" % i,
    "keys in another order": lambda i: {"a": i, "b": image(i)} if i % 3 else {"b": image(i), "a": i},
    "promoted dtypes": lambda i: image(i) if i % 2 else image(i).double(),
    "tensors and arrays": lambda i: image(i) if i < 8 else image(i).numpy(),
    "with a gradient": lambda i: image(i).requires_grad_(),
    "parameter": lambda i: torch.nn.Parameter(image(i), requires_grad=False),
    "unlike batches": lambda i: image(i) if i < 8 else (image(i), i),
    "unlike shapes": lambda i: torch.zeros(3 if i != 5 else 4),
}
