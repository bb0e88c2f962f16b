"""Rules about what the code of a sample names: global random generators, CUDA, and OpenCV."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from penstock.executors.method import and_join
from penstock.insight.check import State
from penstock.insight.lint.functions import Function, Mention
from penstock.insight.lint.remark import Remark, place
from penstock.recipe.unseeded_generators import attributes

#: What draws from random's global generator.
# fmt: off
_RANDOM = frozenset(
    [
        "betavariate", "binomialvariate", "choice", "choices", "expovariate", "gammavariate", "gauss",
        "getrandbits", "lognormvariate", "normalvariate", "paretovariate", "randbytes", "randint", "random",
        "randrange", "sample", "shuffle", "triangular", "uniform", "vonmisesvariate", "weibullvariate",
    ]
)
# fmt: on
#: What of numpy.random does not draw from its global generator, beside its classes.
_NUMPY_OTHERS = frozenset(("default_rng", "get_state", "set_state", "seed", "get_bit_generator", "set_bit_generator"))
#: What of torch.cuda needs no CUDA context.
_CUDA_QUESTIONS = frozenset(("is_available", "device_count", "is_initialized", "amp"))
#: The most lines that a remark names.
_LINES = 4


def global_random(functions: Iterable[Function]) -> Iterator[Remark]:
    """Yield remarks on functions that draw from the global generators of random and numpy.random."""
    for function in functions:
        seeded = {mention.name for mention in function.mentions}
        found = [one for one in function.mentions if (kind := _generator(one.name)) and f"{kind}.seed" not in seeded]
        if found:
            yield _remark(
                "global-random",
                State.LOOK,
                function,
                found,
                "draws from a generator that all samples of a worker share",
                "What a sample gets depends on which samples the worker read before: other numbers of workers, a "
                "resumed run and, in threads, every run give other samples.",
                "Give penstock.DataLoader(seed=...) with worker processes, which sets the generators for each "
                "sample, or draw from torch.utils.data.get_worker_info().rng, or from a generator made of (seed, "
                "epoch, index).",
            )


def _generator(name: str) -> str | None:
    """Return the module whose global generator a function of this name draws from."""
    module, _, function = name.rpartition(".")
    if module == "random" and function in _RANDOM:
        return module
    if module == "numpy.random" and function not in _NUMPY_OTHERS and function[:1].islower():
        return module
    return None


def opencv_threads(functions: Iterable[Function]) -> Iterator[Remark]:
    """Yield a remark on the first function that calls OpenCV, where its pool of threads is on."""
    functions = list(functions)
    if any(mention.name == "cv2.setNumThreads" for function in functions for mention in function.mentions):
        return
    module = sys.modules.get("cv2")
    if module is not None and module.getNumThreads() <= 1:
        return
    for function in functions:
        found = [mention for mention in function.mentions if mention.name.startswith("cv2.")]
        if found:
            yield _remark(
                "opencv-threads",
                State.LOOK,
                function,
                found,
                "runs in OpenCV's own pool of threads",
                "Each worker starts as many threads as the machine has CPUs, which compete with the other workers; and "
                "a pool that was used before a fork may hang in the child.",
                "Call cv2.setNumThreads(0) where cv2 is imported.",
            )
            return


# --- CUDA -------------------------------------------------------------------------------------------------------------


def cuda_calls(functions: Iterable[Function]) -> Iterator[Remark]:
    """Yield remarks on functions that use CUDA for a sample."""
    for function in functions:
        found = [one for one in function.mentions if _of_cuda(one.name)]
        found += _calls_by_names(function) if function.tree is None else _calls_in(function, function.tree)
        if found:
            yield _remark(
                "cuda",
                State.BAD,
                function,
                found,
                "uses CUDA while a sample is made",
                "A forked worker cannot set CUDA up where its parent has ('Cannot re-initialize CUDA in forked "
                "subprocess'); a spawned one takes hundreds of MiB of the GPU's memory for a context of its own, and "
                "copies samples one by one.",
                "Return CPU tensors, and copy whole batches: penstock.DataLoader(device='cuda'), or pin_memory=True "
                "and .to('cuda', non_blocking=True) in the loop.",
            )


def _of_cuda(name: str) -> bool:
    words = name.split(".")
    return words[:2] == ["torch", "cuda"] and len(words) > 2 and words[2] not in _CUDA_QUESTIONS


def _calls_in(function: Function, tree: ast.AST) -> Iterator[Mention]:
    """Yield the calls of a function's source that put something on a CUDA device."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if attribute == "cuda" and not _is_module(function, call.func):
            yield Mention(".cuda()", call.lineno)
            continue
        given = [word.value for word in call.keywords if word.arg == "device"]
        if attribute == "to":
            given += call.args[:1]
        if any(_is_cuda(function, value) for value in given):
            yield Mention(f".{attribute}(cuda)" if attribute == "to" else "device=cuda", call.lineno)


def _is_module(function: Function, node: ast.expr) -> bool:
    """Return whether an expression is known to be something of a module: torch.version.cuda()."""
    names = dotted(node)
    return names is not None and function.resolve(names, node.lineno).name.startswith("torch.")


def _is_cuda(function: Function, node: ast.expr) -> bool:
    """Return whether an expression is a CUDA device, as far as that is known without running anything."""
    if isinstance(node, ast.Constant):
        return _names_cuda(node.value)
    if isinstance(node, ast.Call):
        names = dotted(node.func)
        made = names is not None and function.resolve(names, node.lineno).name in ("torch.device", "torch._C.device")
        given = (*node.args[:1], *(word.value for word in node.keywords))
        return made and any(_is_cuda(function, one) for one in given)
    names = dotted(node)
    if names is None:
        return False
    mention = function.resolve(names, node.lineno)
    words = mention.name.split(".")
    if words[0] == "self" and len(words) == 2 and function.owner is not None:
        return _names_cuda(attributes(function.owner).get(words[1]))
    return _names_cuda(mention.value)


def _names_cuda(value: Any) -> bool:
    if type(value) is torch.device:
        return bool(value.type == "cuda")
    return type(value) is str and (value == "cuda" or value.startswith("cuda:"))


def _calls_by_names(function: Function) -> Iterator[Mention]:
    """Yield what a function without source names of CUDA."""
    constants = function.function.__code__.co_consts
    on_cuda = any(_names_cuda(value) for value in constants)
    for mention in function.mentions:
        last = mention.name.rpartition(".")[2]
        if "." in mention.name and not mention.name.startswith(("torch.", "self.")) and last == "cuda":
            yield Mention(".cuda()", mention.line)
        elif on_cuda and (mention.name.endswith(".to") or mention.name.startswith("torch.")):
            yield Mention("device=cuda", mention.line)


def dotted(node: ast.expr) -> list[str] | None:
    """Return the names of an expression such as np.random.rand; None: it is another one."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return None if before is None else [*before, node.attr]
    return None


def _remark(
    rule: str, state: State, function: Function, found: list[Mention], does: str, why: str, change: str
) -> Remark:
    """Return the remark on what a function names."""
    found = sorted(found, key=lambda mention: mention.line)
    names = list(dict.fromkeys(mention.name for mention in found))
    lines = list(dict.fromkeys(mention.line for mention in found))
    more = f" and {len(names) - _LINES} more" if len(names) > _LINES else ""
    shown = and_join(tuple(names)) if not more else ", ".join(names[:_LINES]) + more
    where = place(function.name, function.file, lines[0])
    if lines[1:]:
        shown += f" (lines {', '.join(map(str, lines[:_LINES]))}{', ...' if len(lines) > _LINES else ''})"
    return Remark(rule, state, where, f"{shown}: {does}", why, change)
