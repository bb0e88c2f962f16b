"""The collate_fns of cases; printed into the programs that name them."""

from __future__ import annotations

import torch
from torch.utils.data import default_collate

from tests.differential.values import Marked, Pinnable, Point, mapped, tensors_of


def listed(samples):
    return samples


def stacking(samples):
    return [torch.stack(parts) for parts in zip(*map(tensors_of, samples), strict=True)]


def padding(samples):
    flat = [[part.reshape(-1) for part in tensors_of(sample)] for sample in samples]
    return [torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True) for parts in zip(*flat, strict=True)]


def joined(samples):
    return [torch.cat([part.reshape(-1) for part in parts]) for parts in zip(*map(tensors_of, samples), strict=True)]


def views(samples):
    changes = (lambda t: t.transpose(0, -1), lambda t: t[::2], lambda t: t[1:], lambda t: t[0])
    batch = default_collate(samples)
    return [mapped(batch, change) for change in changes]


def unbound(samples):
    return mapped(default_collate(samples), lambda t: list(t.unbind()))


def slices(samples):
    whole = torch.cat([part.reshape(-1).float() for sample in samples for part in tensors_of(sample)])
    return list(whole.split(max(1, len(whole) // 3)))


def part_of_large(samples):
    large = torch.arange(60_000, dtype=torch.int32) + sum(int(t.numel()) for t in tensors_of(samples))
    return large[10:20], large[-7:], samples[:1]


def twice(samples):
    batch = default_collate(samples)
    return batch, batch


def shared(samples):
    batch = default_collate(samples)
    return mapped(batch, lambda t: (t, t.detach(), t.view(t.shape), t.reshape(-1)[::3]))


def expanded(samples):
    return mapped(default_collate(samples), lambda t: t[:1].expand(3, *t.shape[1:]))


def lazily(samples):
    return mapped(
        default_collate(samples), lambda t: t.conj() if t.is_complex() else torch._neg_view(t) if t.is_signed() else t
    )


def marked(samples):
    return mapped(default_collate(samples), lambda t: t.as_subclass(Marked) if t.dtype == torch.float32 else t)


def with_grad(samples):
    return mapped(default_collate(samples), lambda t: t.requires_grad_() if t.is_floating_point() else t)


def as_point(samples):
    return Point(default_collate(samples), len(samples))


def as_pinnable(samples):
    return Pinnable(tensors_of(default_collate(samples))[0], len(samples))


def as_arrays(samples):
    return mapped(default_collate(samples), lambda t: t.numpy() if t.dtype == torch.float32 else t)


def sparse(samples):
    return mapped(default_collate(samples), lambda t: t.to_sparse() if t.dtype == torch.float32 else t)


def first_fails(samples):
    if int(tensors_of(samples)[0].reshape(-1)[0]) % 3 == 0:
        raise ValueError("bad batch 3")
    return default_collate(samples)


class WithTable:
    def __init__(self, size):
        self.table = torch.arange(size, dtype=torch.float32)

    def __call__(self, samples):
        return default_collate(samples), self.table, self.table[1:]


class Keeping:
    def __init__(self):
        self.kept = []

    def __call__(self, samples):
        batch = default_collate(samples)
        self.kept.append((batch, samples))
        return batch


class Reused:
    def __init__(self):
        self.memory = torch.zeros(20_000)

    def __call__(self, samples):
        first = torch.cat([part.reshape(-1).float() for sample in samples for part in tensors_of(sample)])
        size = min(len(first), len(self.memory))
        self.memory[:size] = first[:size]
        return self.memory[:size]
