"""Modules of datasets whose `__getitem__` indexes what they hold, and does what is just outside of that, from seeds.

A module has a function `make`, which returns its dataset, and a function `change`, which changes the dataset (or its
class, or the module) as a program might in the middle of a pass.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

_HEADER = """\
import collections, contextlib, dataclasses, functools, io, itertools, math, operator, random, sys, types, typing
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import *

CALLS = []
OUT = io.StringIO()


def numbers(k, dtype, *shape):
    made = bits(k, dtype, *shape)
    if made.dtype.is_floating_point or made.dtype.is_complex:
        # To convert the bits of other NaNs, and any of 16 bits, torch has two ways, by a row's length.
        made[made.isnan()] = 0 if made.itemsize == 2 else torch.nan
    return made


K = 3


def helper(x, times=2):
    return x * times


def pick(values, at, *, default=None):
    return values[at]


def same(x):
    return x


def counted(x):
    CALLS.append(1)
    return x


class Config:
    width = 3

    def __init__(self, **given):
        vars(self).update(given)


class Counted(list):
    def __getitem__(self, at):
        CALLS.append(at)
        return list.__getitem__(self, at)


class Shifted(np.ndarray):
    def __getitem__(self, at):
        return np.asarray(self)[at] + 1


class Computed:
    def __get__(self, owner, kind=None):
        return torch.arange(40.0).reshape(20, 2)


Row = collections.namedtuple("Row", "x y")


class Typed(typing.NamedTuple):
    x: typing.Any
    y: typing.Any = 0
"""


#: What is this module's own stands behind this line.
OWN = "\n\n# --- the dataset\n\n"


class Module(NamedTuple):
    """The source of a dataset's module, and what may be done with it."""

    source: str
    pure: bool
    """The same sample comes of the same index, whoever asks and how often."""


# --- data: an expression of a container of {n} rows; what a row of it is ----------------------------------------------
# t: tensor, a: array, n: Python's number, f: numpy's number, s: text, l: list of numbers, o: something else

_NUMERIC = ("float32", "float32", "float64", "int64", "int64", "uint8", "int32", "bool", "int16")
_ODD = ("float16", "bfloat16", "complex64", "uint16", "int8", "uint32", "complex128")
_SHAPES = ("", "", "3", "3", "4", "2, 3", "1", "4, 4", "2, 4, 3", "0")
_TENSOR_FORMS = (
    "[..., ::2]", ".flip(0)", ".transpose(0, -1).contiguous().transpose(0, -1)", ".requires_grad_()", ".conj()",
    ".as_subclass(Marked)", "[:, :1]", ".share_memory_()", ".expand(-1, 3)", "[:-2]", ".t()",
)  # fmt: skip
_ARRAY_FORMS = (
    "[::-1]", "[..., ::2]", ".astype('>i4')", ".astype('>f8')", ".view(Shifted)", "[:-2]", ".astype(object)",
    ".astype(str)", ".T",
)  # fmt: skip
_LISTS = (
    ("n", "[{k} + 3 * k for k in range({n})]"), ("n", "list(range({n}))"), ("n", "[k / 3 for k in range({n})]"),
    ("n", "[k % 3 == 0 for k in range({n})]"), ("n", "tuple(range({k}, {k} + {n}))"), ("n", "range({k}, {k} + {n})"),
    ("s", "[f'text {{k * {k}}}' for k in range({n})]"), ("s", "tuple('ab' * k for k in range({n}))"),
    ("t", "[torch.arange(3) * k for k in range({n})]"), ("t", "[torch.ones(2, 2) * k for k in range({n})]"),
    ("t", "list(torch.arange(2.0 * {n}).reshape({n}, 2).unbind())"), ("t", "[torch.tensor(k) for k in range({n})]"),
    ("a", "[np.arange(3) * k for k in range({n})]"), ("a", "list(np.arange(2.0 * {n}).reshape({n}, 2))"),
    ("f", "[np.float32(k) for k in range({n})]"), ("f", "list(np.arange({n}))"),
    ("l", "[[k, k + 1, k + 2] for k in range({n})]"), ("l", "[(k, k / 2) for k in range({n})]"),
    ("l", "np.arange({n} * 2).reshape({n}, 2).tolist()"),
    ("o", "[(torch.ones(2) * k, k) for k in range({n})]"), ("o", "[{{'p': k, 'q': f't{{k}}'}} for k in range({n})]"),
    ("o", "list(zip(range({n}), 'abcdefghijklmnopqrst'))"), ("o", "[Row(k, torch.tensor([k])) for k in range({n})]"),
    ("n", "{{k: 2 * k for k in range({n})}}"), ("t", "{{k: torch.ones(3) * k for k in range({n})}}"),
    ("n", "bytes(range({n}))"), ("s", "'abcdefghijklmnopqrst'[:{n}]"), ("n", "Counted(range({n}))"),
    ("n", "collections.deque(range({n}))"),
)  # fmt: skip
#: One row that is not as the others.
_EXCEPTIONS = {
    "n": ("None", "2.5", "2**70", "True", "'text'", "np.int32(4)", "float('nan')"),
    "s": ("None", "5", "b'a'", "''", "np.str_('a')"),
    "t": ("None", "torch.ones(5)", "torch.ones(3).double()", "torch.ones(3, 1).t()[0]",
    "torch.ones(3).requires_grad_()"),
    "a": ("None", "np.ones(5)", "np.ones(3, np.float16)", "[1, 2, 3]"),
    "f": ("None", "np.float64(2)", "2", "np.int8(1)"),
    "l": ("None", "[1]", "[1, 2.5, 3]", "(1, 2, 3)", "[]", "[1, None, 3]"),
    "o": ("None", "(1, 2)", "{'q': 't', 'p': 1}"),
}  # fmt: skip
_FRAMES = (
    ("f", "{}.iloc[{i}, 0]"), ("f", "{}['n'].values[{i}]"), ("f", "{}['f'].iloc[{i}]"), ("f", "{}.loc[{i}, 'n']"),
    ("a", "{}[['f', 'g']].values[{i}]"), ("a", "{}[['f', 'n']].iloc[{i}].values"), ("s", "{}['s'].values[{i}]"),
    ("a", "{}.iloc[{i}][['f', 'g']].values.astype(np.float32)"), ("s", "{}.iloc[{i}, 3]"), ("f", "{}.iloc[{i}]['f']"),
    ("a", "{}.iloc[{i}, :2].to_numpy()"), ("a", "{}.values[{i}, :2].astype(np.float64)"), ("f", "{}.f[{i}]"),
    ("a", "{}.drop(columns='s').iloc[{i}].to_numpy(dtype=np.float32)"), ("o", "{}.iloc[{i}].to_dict()"),
    ("f", "{}['f'].to_numpy()[{i}]"), ("a", "{}.iloc[{i}, 0:3].values"), ("f", "{}.at[{i}, 'n']"),
)  # fmt: skip

# --- what is done to a row --------------------------------------------------------------------------------------------

_STEPS = {
    "t": (
        ("t", "{}.float()"), ("t", "{}.long()"), ("t", "{}.to(torch.float32)"), ("t", "{}.to(dtype=torch.int64)"),
        ("t", "{}.clone()"), ("t", "{}.contiguous()"), ("t", "{}.unsqueeze(0)"), ("t", "{}.unsqueeze(-1)"),
        ("t", "{}.reshape(-1)"), ("t", "{}.view(-1)"), ("t", "{}.flatten()"), ("t", "{} / 255"), ("t", "{} / 255.0"),
        ("t", "{} * 2"), ("t", "{} - 1"), ("t", "1 - {}"), ("t", "-{}"), ("t", "{} // 2"), ("t", "{} % 3"),
        ("t", "{} > 1"), ("t", "({} - self.mean) / self.std"), ("t", "{} - self.mean"), ("t", "{}.detach()"),
        ("t", "{}.double()"), ("t", "{}.half()"), ("t", "{}.int()"), ("t", "{}.bool()"), ("t", "{}[None]"),
        ("t", "torch.as_tensor({})"), ("t", "{}.clone().detach()"), ("t", "{}.to(self.dtype)"), ("t", "{}.squeeze()"),
        ("t", "{}.permute(*range({}.dim() - 1, -1, -1))"), ("t", "{}.transpose(0, -1)"), ("t", "{}[..., :2]"),
        ("t", "{}[..., ::2]"), ("t", "{}[0]"), ("t", "{}[1:]"), ("t", "{}[..., -1]"), ("t", "{}.T"),
        ("t", "{}.cpu()"), ("t", "F.one_hot({}.long() % 5, 5)"),
        ("t", "F.one_hot({}.long() % 5, num_classes=5).float()"), ("t", "{}.type(torch.float32)"),
        ("t", "{}.view(1, -1)"), ("t", "{}.reshape(2, -1)"), ("t", "{}.div(2)"), ("t", "{}.mul(3).add(1)"),
        ("t", "{}.float() / 255"), ("t", "{}.float().div(255).sub(0.5)"), ("t", "{}.permute(2, 0, 1)"),
        ("t", "{}.unsqueeze(0).float()"), ("t", "{}.squeeze(0)"),
    ),
    "a": (
        ("t", "torch.from_numpy({})"), ("t", "torch.from_numpy({})"), ("t", "torch.tensor({})"),
        ("t", "torch.as_tensor({})"), ("t", "torch.tensor({}, dtype=torch.float32)"), ("t", "torch.FloatTensor({})"),
        ("t", "torch.LongTensor({})"), ("a", "{}.astype(np.float32)"), ("a", "{}.astype(np.int64)"),
        ("a", "{}.astype('float64')"), ("a", "{}.copy()"), ("a", "np.asarray({})"), ("a", "np.array({})"),
        ("a", "np.array({}, dtype=np.float32)"), ("a", "{}.reshape(-1)"), ("a", "{} / 255"),
        ("a", "{} / np.float32(255)"), ("a", "({} - 3) * 0.5"), ("a", "{}[None]"), ("a", "{}[..., ::2]"),
        ("a", "{}.T"), ("a", "{}.transpose()"), ("a", "np.expand_dims({}, 0)"), ("a", "{}[:2]"), ("f", "{}[0]"),
        ("t", "torch.from_numpy({}.astype(np.int64))"), ("t", "torch.from_numpy({}.copy()).float()"),
        ("a", "{} - self.mean"), ("t", "torch.Tensor({})"), ("t", "torch.as_tensor({}, dtype=torch.float64)"),
        ("a", "np.asarray({}, dtype=np.float64)"), ("a", "{}[..., -1]"), ("a", "{}.astype(self.array_dtype)"),
        ("a", "np.array({}, copy=True)"), ("a", "-{}"),
    ),
    "f": (
        ("n", "int({})"), ("n", "float({})"), ("t", "torch.tensor({})"), ("t", "torch.tensor({}, dtype=torch.long)"),
        ("t", "torch.as_tensor({})"), ("f", "np.float32({})"), ("n", "{}.item()"), ("f", "{}.astype(np.float32)"),
        ("f", "{} + 1"), ("f", "{} / 2"), ("t", "torch.LongTensor([{}])"), ("t", "torch.tensor([{}])"),
        ("a", "np.array({})"), ("a", "np.array([{}])"), ("n", "bool({})"), ("s", "str({})"),
    ),
    "n": (
        ("n", "int({})"), ("n", "float({})"), ("t", "torch.tensor({})"),
        ("t", "torch.tensor({}, dtype=torch.float32)"), ("t", "torch.tensor([{}])"), ("t", "torch.LongTensor([{}])"),
        ("t", "torch.FloatTensor([{}])"), ("n", "{} + 1"), ("n", "{} / 2"), ("n", "{} * 2.5"), ("n", "{} // 2"),
        ("n", "{} % 4"), ("n", "-{}"), ("f", "np.float32({})"), ("t", "torch.as_tensor({}, dtype=torch.int64)"),
        ("a", "np.array([{}, 1])"), ("n", "{} == 1"), ("n", "{} ** 2"), ("s", "str({})"),
    ),
    "s": (
        ("s", "{}.upper()"), ("s", "{}[:2]"), ("n", "len({})"), ("s", "{} + '!'"), ("s", "f'<{{{}}}>'"),
    ),
    "l": (
        ("t", "torch.tensor({})"), ("t", "torch.tensor({}, dtype=torch.long)"),
        ("t", "torch.tensor({}, dtype=torch.float32)"), ("t", "torch.LongTensor({})"), ("t", "torch.FloatTensor({})"),
        ("a", "np.array({})"), ("a", "np.asarray({}, dtype=np.float32)"), ("t", "torch.as_tensor({})"),
        ("l", "{}[:2]"), ("n", "{}[0]"),
    ),
    "o": (
        ("o", "{}[0]"), ("o", "{}['p']"), ("o", "[{}]"), ("o", "{}.y"), ("o", "({}, 1)"), ("o", "list({})"),
    ),
}  # fmt: skip
#: What is just outside of the language, and some of what is in it but seldom written.
_MORE_STEPS = {
    "t": (
        ("t", "{}.clamp(0, 1)"), ("t", "{}.abs()"), ("t", "{}.sum()"), ("t", "{}.float().mean(0)"),
        ("t", "{}.flip(0)"), ("t", "{}.roll(1)"), ("t", "{}.repeat(2)"), ("t", "torch.stack([{}, {}])"),
        ("t", "torch.cat([{}, {}], -1)"), ("t", "torch.where({} > 2, {}, 0)"), ("t", "{}.expand(2, *{}.shape)"),
        ("t", "{}.type_as(self.mean)"), ("t", "{} ** 2"), ("t", "{}.float().log1p()"), ("t", "{}.sort()[0]"),
        ("t", "{}.nonzero()"), ("t", "{}[{} > 1]"), ("t", "torch.zeros_like({})"), ("t", "{}.float().softmax(-1)"),
        ("t", "{} @ {}"), ("t", "{}.float().requires_grad_()"), ("a", "{}.numpy()"), ("n", "{}.item()"),
        ("l", "{}.tolist()"), ("n", "len({})"), ("n", "float({}.sum())"), ("t", "torch.tensor({})"), ("t", "{} + K"),
        ("t", "helper({})"), ("t", "helper({}, times=3)"), ("o", "{}.shape"), ("o", "list({})"), ("o", "tuple({})"),
        ("t", "same({})"), ("t", "self.scaled({})"), ("t", "self.scaled({}, by=3)"), ("t", "self.normalised({})"),
        ("t", "{}.add_(1)"), ("t", "{}.clone().add_(1)"), ("t", "{}.zero_()"), ("t", "counted({})"),
        ("t", "torch.from_numpy({}.numpy())"), ("t", "{}.float().numpy().astype(np.float64)"),
        ("t", "{}.bernoulli_()"), ("t", "torch.dropout({}.float(), 0.5, True)"),
        ("t", "{} + torch.randn_like({}.float())"), ("t", "{}.data"),
    ),
    "a": (
        ("a", "np.ascontiguousarray({})"), ("a", "{}.sum()"), ("a", "{}.ravel()"), ("a", "np.float32(0.5) * {}"),
        ("a", "np.stack([{}, {}])"), ("l", "{}.tolist()"), ("a", "{}.flatten()"), ("a", "np.pad({}, 1)"),
        ("a", "np.clip({}, 0, 2)"), ("a", "np.flip({})"), ("a", "{}.view(np.uint8)"), ("n", "{}.item()"),
        ("n", "len({})"), ("a", "helper({})"), ("a", "np.sqrt(np.abs({}))"), ("o", "{}.shape"), ("o", "list({})"),
        ("o", "bytes({})"), ("a", "{}.squeeze()"), ("a", "np.log1p({})"), ("a", "np.random.permutation({})"),
        ("a", "{}.swapaxes(0, -1)"),
    ),
    "f": (
        ("s", "f'{{{}}}'"), ("f", "np.int64({})"), ("t", "torch.tensor(float({}))"), ("f", "helper({})"),
        ("n", "{} == 1"), ("n", "round(float({}), 2)"), ("f", "-{}"),
    ),
    "n": (
        ("s", "f'{{{}:03}}'"), ("n", "helper({})"), ("n", "abs({})"), ("n", "min({}, 5)"), ("n", "not {}"),
        ("n", "{} - K"), ("t", "F.one_hot(torch.tensor({} % 4), 4)"), ("s", "'abc'[int({}) % 3]"),
        ("n", "divmod({}, 3)[0]"), ("n", "{} if {} > 2 else -1"), ("n", "{} and 7"), ("n", "{} & 3"),
        ("n", "{} << 2"), ("n", "math.sqrt(abs({}))"), ("o", "[{}, {}]"), ("o", "({}, 'x')"), ("n", "bool({})"),
        ("o", "complex({}, 1)"), ("n", "self.scaled({})"),
    ),
    "s": (
        ("o", "{}.split()"), ("s", "str({})"), ("n", "hash({}) * 0"), ("s", "'%s' % {}"), ("n", "{} == 'text 3'"),
        ("n", "self.vocabulary.get({}, 0)"), ("s", "{}.strip()"), ("o", "{}.encode()"),
        ("t", "torch.tensor([ord(c) for c in {}])"),
    ),
    "l": (
        ("l", "list({})"), ("l", "tuple({})"), ("n", "len({})"), ("n", "sum({})"), ("l", "[v + 1 for v in {}]"),
        ("l", "{}[::-1]"), ("n", "max({})"), ("l", "sorted({})"), ("n", "{}[-1]"), ("l", "[*{}, 0]"),
        ("l", "list(map(float, {}))"), ("o", "{{'v': {}}}"), ("t", "torch.tensor([{}])"),
    ),
    "o": (
        ("o", "dict({})"), ("o", "Pair({}, 1)"), ("o", "{}.x"), ("o", "{}[-1]"), ("o", "{{**{}}}"), ("o", "str({})"),
    ),
}  # fmt: skip

# --- indices and windows ----------------------------------------------------------------------------------------------

_INDICES = (
    *("i",) * 14, "int(i)", "i % {n}", "self.ids[i]", "{n} - 1 - i", "i // 2", "(i + 1) % {n}",
    "self.ids[i] - 1", "i * 1 + 0", "self.order[i]", "i % len({x})", "self.ids[self.ids[i]]", "i - 1", "min(i, 3)",
    "i % K",
    "i if i < 4 else 0", "self.places[i]", "-i", "-1 - i", "operator.index(i)", "i, 0", "slice(i, i + 1)", "i ^ 1",
    "+i",
    "self.shifted(i)", "abs(i - 2)", "[i]", "...", "None", "i:", "random.randrange({n})", "self.count % {n}",
    "len(self) - 1 - i",
)  # fmt: skip
_SLICES = (
    "i : i + 3", "i : i + self.width", "i * 2 : i * 2 + 4", "i : i + self.cfg.width", "i : i + K", "i + 1 : i + 4",
    "i : i + 4 : 2",
    "i * self.width : (i + 1) * self.width", "i : i + self.width + 1", "start : start + 3", "start : end",
    "i + self.width",
    # just outside: of lengths that depend on the index, or at the data's ends
    "i :", ": i", ": i + 1", "max(0, i - 2) : i + 1", "i : 2 * i", "i : i + self.ids[i]", "-i :", "i : i + 300",
    "i : i + 1 + i % 2",
    "i - 3 : i", "i + 3 : i : -1", "i : i", "i : i + 0", "::i + 1", "i : min(i + 3, 9)",
)  # fmt: skip
_TAILS = ("", "", "", "[:-1]", "[1:]", "[..., 0]", "[::2]", "[-1]", "[0]")

# --- what stands around it --------------------------------------------------------------------------------------------

_STILL = (
    "self.transform", "self.transform is not None", "self.train", "self.split == 'train'", "torch.is_tensor(i)",
    "isinstance(i, int)", "len(self) > 3", "self.mean is not None", "hasattr(self, 'missing')", "not self.train",
    "K > 2",
    "self.split in ('train', 'test')", "self.width > 2 and self.train", "self.cfg.width == 3", "type(i) is int",
    "self.kind", "isinstance(self.mean, torch.Tensor)", "getattr(self, 'absent', None) is None", "True", "0",
    "self.names",
)  # fmt: skip
_MOVING = ("i % 2", "i == 3", "i < 4", "self.ids[i] > 2", "x{a} is None", "i in self.chosen", "bool(self.ids[i])",
"x{a} == 3",
    "self.count > 3", "i and self.train", "random.random() < 0.5", "len(CALLS) % 2")  # fmt: skip
#: Lines with effects, or of Python that does not only index; what is behind # is not the same each time it is run.
_OUTSIDE = (
    "self.count += 1 #", "print('sample', i) #", "CALLS.append(i) #", "print(i, file=OUT) #", "self.last = i #",
    "torch.rand(1) #", "x{a} = x{a} + torch.rand(1) #", "r = random.random() #", "x{a} = np.random.rand() #",
    "self.seen.append(i) #", "self.seen.append(x{a}) #", "self.ids[0] = self.ids[0] #", "self.cache[i] = i #",
    "x{a} += 1 #", "x{a} *= 2 #", "x{a} /= 2 #", "x{a}[0] = 0 #", "x{a}[..., 0] += 1 #", "x{a}.append(1) #",
    "x{a}['p'] = 5 #",
    "assert i >= 0", "assert i != 5, 'bad sample 5'", "pass", "del start",
    "if i == 5: raise ValueError(f'bad sample {{i}}')",
    "if i > len(self): raise IndexError(i)", "try: y = self.ids[i + 3]\n        except IndexError: y = 0",
    "for y in range(2): z = y", "while False: pass", "y = [v for v in range(3)]", "y = lambda v: v + 1",
    "(y := i)", "y, *z = 1, 2, 3", "global K", "import math", "with contextlib.suppress(KeyError): y = 3",
    "def inner(v):\n            return v + 1", "y = f'{{i}} and {{K!r}}'", "nonlocal_ = 3",
    "y = x{a} if self.train else None",
    "if self.train: return x{a}", "y: int = 3", "i = int(i)", "i = self.ids[i]",
    "if torch.is_tensor(i): i = i.tolist()",
    "x{a} = same(x{a})", "x{a} = self.apply(x{a})", "x{a} = (lambda v: v)(x{a})", "x{a} = [x{a}][0]",
    "y = self[0] if i == 1 else 0",
    "y = len(self)", "'a string'", "y = self.__class__.__name__", "y = vars(self)",
    "y = [k for k in self.ids if k > i]", "torch = None",
    "self = self", "x{a}, y = x{a}, i", "y = np.random.default_rng(i).random()", "torch.manual_seed(i) #",
    "x{a} = counted(x{a}) #",
    "x{a} = self.deferred(x{a}) #", "yield 3", "return None", "x{a} = x{a}", "y = x{a}", "y = next(self.endless) #",
    "raise NotImplementedError",
    "y = self.undefined", "y = undefined", "y = 1 / (i - 5)", "y = getattr(self, 'ids')",
    "setattr(self, 'seen', []) #", "y = super().__getattribute__('ids')",
    "y = i is True", "y = i\n        i = 0", "x{a} = eval('i')", "locals()", "y = __class__",
)  # fmt: skip
_RETURNS = (
    *("{0}, {1}",) * 6, "{0}", "{0}", "({0}, {1})", "[{0}, {1}]", "{{'a': {0}, 'b': {1}}}", "{{'a': {0}, 'b': {1}}}",
    "{0}, {1}, i", "dict(a={0}, b={1})", "Pair({0}, {1})", "Row(x={0}, y={1})", "Typed({0}, {1})", "Typed({0})",
    "{0}, {0}",
    "{{'a': {{'b': {0}}}, 'c': [{1}, i]}}", "({0}, ({1}, i))", "collections.OrderedDict(b={0}, a={1})",
    "tuple([{0}, {1}])",
    "tuple(v for v in ({0}, {1}))", "{{k: v for k, v in (('a', {0}), ('b', {1}))}}", "[v for v in ({0}, {1})]",
    "{0}, self.cfg.width",
    "{{**{{'a': {0}}}, 'b': {1}}}", "(*({0}, {1}), i)", "Point({0}, {1})", "{0} if self.train else {1}",
    "{0}, 'constant', 1.5, True",
    "{{'index': i, 'a': {0}}}", "{0}, self.mean", "({0},)", "[{0}]", "{{'a': {0}, 0: {1}}}", "None", "{0}, None", "i",
    "{0}, (), {{}}", "{{}}",
    "{0}, K, self.split", "types.SimpleNamespace(a={0})", "iter([{0}])", "{0} or {1}",
    "collections.defaultdict(int, a={0}, b={1})", "{{{0}}}",
)  # fmt: skip

# --- changes ----------------------------------------------------------------------------------------------------------

_CHANGES = (
    "d.{x} = d.{x} * 2", "d.{x}[2] = d.{x}[0]", "d.{x}.add_(1)", "d.{x} = list(d.{x})", "d.{x} = d.{x}[:4]",
    "d.{x} = d.{x}[1:]",
    "del d.{x}", "d.{x} = None", "d.{x}.append(d.{x}[0])", "d.{x}.reverse()", "d.{x}[1] = None", "d.{x}[3] = 7",
    "d.{x}.clear()",
    "d.{x}[...] = 1", "d.{x}.resize_(0)", "d.{x} = d.{x}.double()", "d.{x} = d.{x}.astype(np.float16)",
    "d.{x}.requires_grad_()",
    "d.{x}.setflags(write=False)", "d.{x} = np.asarray(d.{x})", "d.{x} = torch.as_tensor(np.asarray(d.{x}))",
    "d.{x}.t_()",
    "d.{x}.resize((2, 2), refcheck=False)", "d.{x} = d.{x}[::-1]", "d.{x} = range(20)", "d.{x} = d.ids",
    "d.{x}.unsqueeze_(-1)",
    "d.{x}.data = torch.ones(20, 2)", "d.{x} = Counted(d.{x})", "d.{x}.zero_()", "d.{x}.insert(0, d.{x}[2])",
    "d.train = not d.train", "d.transform = lambda x: (x, 1)", "d.transform = same", "d.mean = torch.tensor(2.0)",
    "d.mean = 5",
    "d.width = 2", "d.cfg.width = 2", "d.cfg = Config(width=4)", "Config.width = 4", "d.ids.reverse()", "d.ids[2] = 0",
    "d.ids = d.ids[::-1]",
    "d.split = 'test'", "d.dtype = torch.float16", "d.std = 3", "global K; K = 2", "globals()['helper'] = same",
    "globals()['F'] = None",
    "type(d).__getitem__ = lambda self, i: i", "d.__getitem__ = lambda i: i",
    "type(d).{x} = property(lambda self: torch.arange(40.0))",
    "type(d).{x} = Computed()", "type(d).__getattribute__ = lambda self, name: object.__getattribute__(self, name)",
    "type(d).__getitem__.__code__ = (lambda self, i: (i, 1)).__code__",
    "d.__class__ = type('Other', (type(d),), {{'__getitem__': lambda self, i: -i}})",
    "helper.__defaults__ = (5,)", "helper.__code__ = same.__code__", "type(d).scaled = lambda self, x, by=2: x",
    "d.scaled = lambda x, by=2: x",
    "type(d).__getattr__ = lambda self, name: 3",
    "type(d).__getitems__ = lambda self, some: [self[i] for i in some][::-1]", "d.count = 50",
 "globals()['int'] = float", "vars(d).update({x}=d.ids)",
    "d.names = [] if d.names else ['a']", "pass",
)  # fmt: skip


class _Writer:
    def __init__(self, draw: random.Random, length: int) -> None:
        self.tame = draw.random() < 0.85  # only the language, and samples that are made without an error, mostly
        self.draw, self.n, self.pure, self.count = draw, length, True, 0
        self.module: list[str] = []  # statements of the module
        self.init: list[str] = []  # of __init__
        self.of_class: list[str] = []  # of the class
        self.held: list[str] = []  # attributes that hold data

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def one(self, kinds: tuple) -> str:
        """Return one of some texts."""
        return self.draw.choice(kinds)

    # --- data

    def column(self) -> tuple[str, str, int | None]:
        """Return what a row of some data is, an expression of the data, and how many dimensions a row has."""
        k, n = self.draw.randrange(5), self.n
        if self.chance(0.03 if self.tame else 0.1):
            n = self.draw.choice((max(n - 2, 0), n + 3, 0))  # the length lies
        what = self.draw.random()
        if what < 0.6:
            dtype = self.one(_ODD if self.chance(0.05 if self.tame else 0.15) else _NUMERIC)
            shape = self.one(_SHAPES)
            text = f"numbers({k}, torch.{dtype}, {n}{', ' * bool(shape)}{shape})"
            dims = len(shape.split(",")) if shape else 0
            if what < 0.32:
                if self.chance(0.12):
                    return "t", text + self.one(_TENSOR_FORMS), None
                return "t", text, dims
            if dtype == "bfloat16":
                text = text.replace("bfloat16", "float32")
            text += ".numpy()"
            if self.chance(0.12):
                text += self.one(_ARRAY_FORMS)
            elif self.chance(0.06):
                text = f"read_only({text})"
            elif self.chance(0.12):
                text = f"mapped({text}, {self.one(('r', 'c'))!r})"
            return ("a" if shape else "f"), text, dims
        kind, text = self.draw.choice(_LISTS[:22] if self.tame else _LISTS)
        text = text.format(n=n, k=k)
        if self.chance(0.12) and text.startswith("[") and n:
            text = f"replaced({text}, {self.draw.randrange(n)}, {self.one(_EXCEPTIONS[kind])})"
        return kind, text, None

    def hold(self, data: str) -> str:
        """Have the dataset hold some data, and return the expression by which its code reads it."""
        name, self.count = f"d{self.count}", self.count + 1
        way = self.draw.random()
        if way < 0.72:
            self.init.append(f"self.{name} = {data}")
            self.held.append(name)
            return f"self.{name}"
        if way < 0.78:
            self.of_class.append(f"{name} = {data}")
            self.held.append(name)
            return f"self.{name}"
        if way < 0.82:
            self.module.append(f"{name} = {data}")
            return name
        if way < 0.87:
            self.init.append(f"self.{name} = {{'x': {data}}}")
            return f"self.{name}['x']"
        if way < 0.91:
            self.init.append(f"self.{name} = Config(x={data})")
            return f"self.{name}.x"
        if way < 0.94:
            self.init.append(f"self.{name} = [0, {data}]")
            return f"self.{name}[1]"
        if way < 0.97:
            self.init.append(f"self._{name} = {data}")
            effect = "CALLS.append(1); " if self.chance(0.15) else ""
            self.pure = self.pure and not effect
            self.of_class.append(f"@property\n    def {name}(self):\n        {effect}return self._{name}")
            self.held.append(f"_{name}")
            return f"self.{name}"
        self.init.append(f"self.__{name} = {data}")
        return f"self.__{name}"

    # --- a field

    def field(self, number: int) -> list[str]:
        """Return the lines that make a field, x0 or x1."""
        name = f"x{number}"
        if self.chance(0.12):
            return self.window(name)
        dims = None
        if self.chance(0.07):
            kind, read = self.draw.choice(_FRAMES)
            self.module.append("import pandas as pd")
            where = self.hold(f"frame({self.n})")
            expression = read.format(where, i=self.index(where))
        else:
            kind, data, dims = self.column()
            where = self.hold(data)
            index = self.index(where)
            expression = f"{where}[{index}]"
            if dims and self.chance(0.12):
                expression = f"{where}[{index}, {self.one(('0', '-1', ':', '1:', '...', '::2', 'None', 'i % 2'))}]"
                dims = None
            elif kind in "tan" and self.chance(0.03):
                expression = f"pick({where}, {index})"
            elif self.chance(0.03):
                expression = f"{where}.__getitem__({index})"
        return self.chain(name, kind, expression, dims)

    def index(self, where: str) -> str:
        some = self.one(_INDICES[:24] if self.tame else _INDICES)
        self.pure = self.pure and "random" not in some
        return some.format(n=self.n, x=where)

    def window(self, name: str) -> list[str]:
        dtype, shape = self.one(_NUMERIC), self.one(("", "", "", "2"))
        length = 3 * self.n + (9 if self.tame else self.draw.choice((9, 4, 0, -self.n)))
        kind, data = "t", f"numbers(2, torch.{dtype}, {length}{', ' * bool(shape)}{shape})"
        way = self.draw.random()
        if way < 0.35:
            kind, data = "a", f"mapped({data}.numpy(), 'r')" if way < 0.15 else f"{data}.numpy()"
        elif way < 0.5:
            kind, data = "l", f"list(range({length}))"
        elif way < 0.55:
            kind, data = "s", "'the quick brown fox jumps over the lazy dog'"
        where, part = self.hold(data), self.one(_SLICES[:12] if self.tame else _SLICES)
        if shape and self.chance(0.3):
            part += self.one((", 0", ", :1", ", ::2", ", -1"))
        lines = (
            [f"start = i * {self.one(('1', '2', 'self.width'))}", "end = start + self.width"] if "start" in part else []
        )
        tail = self.one(_TAILS)
        if ":" not in part or (tail in ("[-1]", "[0]") and (kind in "ls" or not shape)):
            kind = {"t": "t", "a": "f", "l": "n", "s": "s"}[kind]
        if ":" not in part:
            tail = ""
        if self.chance(0.3):
            return [*lines, f"chunk = {where}[{part}]", *self.chain(name, kind, f"chunk{tail}")]
        return [*lines, *self.chain(name, kind, f"{where}[{part}]{tail}")]

    def chain(self, name: str, kind: str, expression: str, dims: int | None = None) -> list[str]:
        """Return the lines that do some steps. dims: of a row, where that is known."""
        lines = []
        for _ in range(self.draw.choice((0, 1, 1, 1, 2, 2, 3))):
            some = _STEPS[kind] if self.tame or self.chance(0.7) else _MORE_STEPS[kind]
            fitting = [one for one in some if not self.tame or _fits(one[1], dims)]
            if kind != "l" and not dims:  # torch.Tensor(3) is memory as it was found
                fitting = [one for one in fitting if "Tensor({})" not in one[1]]
            after, step = self.draw.choice(fitting)
            dims = _dims_after(step, dims)
            if re.search(r"rand|dropout|bernoulli|_\(|counted", step) and "requires_grad_" not in step:
                self.pure = False
            if self.chance(0.25) or ("f'" in step and "'" in expression):  # Python 3.11 takes no quotes in quotes
                lines.append(f"{name} = {expression}")
                expression = name
            if self.chance(0.1):
                still = self.tame or not self.chance(0.3)
                word = self.one(_STILL if still else _MOVING)
                self.pure = self.pure and not re.search("random|CALLS", word)
                lines += [f"{name} = {expression}", f"if {word.format(a=name[1:])}:\n    {name} = {_fill(step, name)}"]
                expression = name
            else:
                bare = re.fullmatch(r"[\w.]+(\[.*\])?(\(.*\))?", expression)
                expression = _fill(step, expression if bare else f"({expression})")
            kind = after
        return lines if expression == name else [*lines, f"{name} = {expression}"]

    # --- the whole

    def body(self, index: str) -> list[str]:
        """Return the lines of __getitem__."""
        lines = [*self.field(0), *self.field(1)]
        if self.chance(0.12):
            lines.insert(
                0, self.one(("if torch.is_tensor(i):\n    i = i.tolist()", "i = int(i)", "'''Return a sample.'''"))
            )
        if self.chance(0.12):
            lines.append("if self.transform is not None:\n    x0 = self.transform(x0)")
        for _ in range(self.draw.choice((0, 0, 1, 2)) if not self.tame else self.chance(0.12)):
            line = self.one(_OUTSIDE)
            self.pure = self.pure and not line.endswith("#")
            line = line.removesuffix(" #").format(a=self.draw.randrange(2)).replace("\n        ", "\n")
            lines.insert(self.draw.randrange(len(lines) + 1) if self.chance(0.3) else len(lines), line)
        lines += self.returned()
        if index != "i":
            lines = [re.sub(r"(?<![\w.'{])i(?!\w|')", index, line) for line in lines]
        return [part for line in lines for part in line.split("\n")]

    def returned(self) -> list[str]:
        first, second, way = "x0", "x1", self.draw.random()
        if way < 0.08:
            return [f"item = {{'a': {first}}}", f"item['b'] = {second}", "return item"]
        if way < 0.12:
            return [f"sample = [{first}]", f"sample.append({second})", "return sample"]
        if way < 0.15:
            return [f"sample = ({first}, {second})", "if self.train:", "    return sample", "return sample[0]"]
        if way < 0.18:
            return ["if self.train:", f"    return {first}, {second}", "else:", f"    return {first}"]
        if way < 0.2:
            return [f"return {first}, {second}" if self.chance(0.5) else f"return {first} and {second}"]
        if way < 0.22:
            self.init.append(f"self.all = {{'p': torch.arange({self.n}), 'q': list(range({self.n}))}}")
            return ["item = {key: value[i] for key, value in self.all.items()}", f"item['x'] = {first}", "return item"]
        if way < 0.24:
            self.init.append(f"self.tensors = (torch.arange({self.n}), numbers(1, torch.float32, {self.n}, 3))")
            return ["return tuple(tensor[i] for tensor in self.tensors)"]
        return [f"return {self.one(_RETURNS[:22] if self.tame else _RETURNS).format(first, second)}"]


def _fits(step: str, dims: int | None) -> bool:
    """Return whether a step can be done to a row of so many dimensions."""
    if "permute(2" in step:
        return dims == 3
    return bool(dims) if re.search(r"\{\}\[(?!None)|\.T$|transpose|reshape\(2", step) else True


def _dims_after(step: str, dims: int | None) -> int | None:
    if dims is None or (re.search(r"squeeze\(\)|reshape\(2|squeeze\(0\)$", step) and "unsqueeze" not in step):
        return None
    if re.search(r"reshape\(-1|view\(-1|flatten", step):
        return 1
    if "view(1, -1)" in step:
        return 2
    return (
        dims + len(re.findall(r"unsqueeze|\[None\]|one_hot|expand_dims", step)) - len(re.findall(r"\[0\]|, -1\]", step))
    )


def _fill(step: str, expression: str) -> str:
    """Return a step with an expression in each of its places; doubled braces are the step's own."""
    return re.sub(r"\{\{|\}\}|\{\}", lambda found: {"{{": "{", "}}": "}"}.get(found[0], expression), step)


_SUPPORT = """

def read_only(array):
    array.setflags(write=False)
    return array


def mapped(array, mode):
    with open(f"{__name__}.bin", "wb") as file:
        file.write(array.tobytes() or bytes(1))
    return np.memmap(f"{__name__}.bin", dtype=array.dtype, mode=mode, shape=array.shape)


def replaced(values, at, value):
    values[at] = value
    return values


def frame(n):
    columns = {"f": np.arange(n) / 3, "g": np.arange(n) * 1.5, "n": np.arange(n) * 7, "s": [f"t{k}" for k in range(n)]}
    return pd.DataFrame(columns)
"""
_COMMON = """
        self.ids = [(k + 2) % {n} for k in range({n})]
        self.order = {order}
        self.places = {{k: k for k in range({n})}}
        self.chosen = {{1, 3}}
        self.mean, self.std = {mean}, {std}
        self.dtype, self.array_dtype = torch.float64, np.float32
        self.transform, self.train, self.split, self.kind = {transform}, {train}, "train", None
        self.width, self.cfg, self.names = 3, Config(), ["a", "b"]
        self.vocabulary = {{"text 3": 3}}
        self.count, self.seen, self.cache, self.last = 0, [], {{}}, None
        self.endless = itertools.count()
"""
_METHODS = """
    def __len__(self):
        return {length}

    def scaled(self, x, by=2):
        return x * by

    def normalised(self, x):
        return (x - self.mean) / self.std

    @staticmethod
    def apply(x):
        return x

    def shifted(self, i):
        return (i + 1) % {n}

    def deferred(self, x):
        self.count += 1
        return x
"""


def module_of(draw: random.Random, length: int) -> Module:
    """Return a module whose dataset has so many samples."""
    n = max(length, 1)
    writer = _Writer(draw, n)
    index = draw.choice(("i",) * 5 + ("idx", "index", "item_number"))
    body = writer.body(index)
    lines = "\n".join(f"        {line}" for line in body)
    base, signature, decorator, extra = "Dataset", f"self, {index}", "", ""
    way = draw.random() if not writer.tame or draw.random() < 0.3 else 1.0
    if way < 0.04:
        base = draw.choice(("object", "Dataset[typing.Any]", "torch.utils.data.Dataset", "dict", "Data0"))
    if way < 0.05:
        signature += draw.choice((", scale=2", ", *rest", ", *, option=None", " : int", "=0", ", /"))
    elif way < 0.07:
        decorator = (
            draw.choice(("@functools.lru_cache(None)", "@wrapped", "@typing.no_type_check", "@torch.no_grad()"))
            + "\n    "
        )
        writer.pure = writer.pure and "lru" not in decorator
    elif way < 0.09:
        extra = "\n    def __getitems__(self, some):\n        return [self[i] for i in some]"
        extra += draw.choice(("", "[::-1]")) + "\n"
    elif way < 0.1:
        extra = "\n    def __getattribute__(self, name):\n        if name[1:].isdigit():\n"
        extra += "            CALLS.append(name)\n"
        extra += "        return object.__getattribute__(self, name)\n"
        writer.pure = False
    elif way < 0.11:
        extra = "\n    def __getattr__(self, name):\n        if name[0] != 'a':\n"
        extra += "            raise AttributeError(name)\n        return 3\n"
    common = _COMMON.format(
        n=n,
        order=draw.choice(
            ("torch.randperm({n}, generator=torch.Generator().manual_seed(1))", "np.arange({n})[::-1]")
        ).format(n=n),
        mean=draw.choice(("1.5", "2", "torch.tensor(0.5)", "np.float32(0.25)")),
        std=draw.choice(("2", "0.3", "torch.tensor(2.0)", "np.float64(3)")),
        transform=draw.choice(("None",) * 6 + ("same", "(lambda x: x)", "torch.nn.Identity()")),
        train=draw.random() < 0.8,
    )
    init = "".join(f"        {line}\n" for line in writer.init)
    of_class = "".join(f"    {line}\n" for line in writer.of_class)
    called = "super().__init__()\n        " if base == "Data0" else ""
    claimed = draw.choice((str(length),) * 9 + (f"len(range({length}))", f"{length} + 2"))
    methods = _METHODS.format(length=claimed, n=n)
    text = f"class Data({base}):\n{of_class}\n    def __init__(self):\n        {called}{common.lstrip()}{init}"
    text += methods + extra
    first = "class Data0(Dataset):\n    def __getitem__(self, i):\n        return i\n\n\n" if base == "Data0" else ""
    getitem = f"\n    {decorator}def __getitem__({signature}):\n{lines}\n"
    last, made = "", "Data()"
    how = draw.random()
    if how < 0.78:
        text += getitem
    elif how < 0.84:  # of a base class
        text += getitem
        last = "\n\nclass Child(Data):\n    def scaled(self, x, by=3):\n        return x / by\n"
        made = "Child()"
    elif how < 0.89:  # super()
        text += getitem
        last = "\n\nclass Child(Data):\n    def __getitem__(self, i):\n" + draw.choice((
            "        return super().__getitem__(i), i\n", "        return super().__getitem__(self.ids[i])\n",
            "        found = super().__getitem__(i)\n        return {'found': found, 'i': self.ids[i]}\n",
            "        x, y = super().__getitem__(i)\n        return x, y, self.ids[i]\n",
            "        return Data.__getitem__(self, i)\n",
        ))  # fmt: skip
        made = "Child()"
    elif how < 0.93:  # a helper of the class
        text += getitem.replace("def __getitem__(", "def load(")
        text += "\n    def __getitem__(self, i):\n        " + draw.choice(
            (
                "return self.load(i)\n",
                "return self.load(self.ids[i]), i\n",
                "found = self.load(i)\n        return found\n",
            )
        )
    elif how < 0.95:  # a function of the module
        last = f"\n\n{getitem}".replace("\n    ", "\n").replace("__getitem__", "get") + "\n\nData.__getitem__ = get\n"
    elif how < 0.97:  # another dataset
        text += getitem
        last = (
            "\n\nclass Outer(Dataset):\n    def __init__(self):\n        self.dataset = Data()\n\n"
            "    def __len__(self):\n"
            "        return len(self.dataset)\n\n    def __getitem__(self, i):\n        return self.dataset[i]\n"
        )
        made = "Outer()"
    else:
        text += getitem
        made = draw.choice((
            f"Subset(Data(), list(range({length}))[::-1])", "ConcatDataset([Data(), Data()])",
            "StackDataset(Data(), again=Data())",
            f"Subset(Subset(Data(), range({length})), [*range({length})])", f"random_split(Data(), [{length}, 0])[0]",
        ))  # fmt: skip
    if draw.random() < 0.04:
        last += "\n\n" + draw.choice((
            "def float(x):\n    return 7\n", "len = lambda x: 6\n", "int = str\n", "def int(x):\n    return x\n",
            "range = reversed\n",
            "class torch2:\n    pass\n", "F = None\n", "isinstance = lambda a, b: False\n", "tuple = list\n",
        ))  # fmt: skip
    if "@wrapped" in decorator:
        first = (
            "def wrapped(f):\n    @functools.wraps(f)\n    def inner(self, i):\n        return f(self, i)\n\n"
            "    return inner\n\n\n" + first
        )
    target = draw.choice(writer.held or ["ids"])
    change = draw.choice(_CHANGES).format(x=target)
    changing = f"""

def change(d):
    {change.replace("; ", chr(10) + "    ")}
"""
    module = "".join(f"{line}\n" for line in writer.module)
    return Module(
        f"{_HEADER}{_SUPPORT}{OWN}{module}\n\n{first}{text}{last}\n\ndef make():\n    return {made}\n{changing}",
        writer.pure,
    )
