"""Imports of the package's modules: none goes round in a circle, and none changes anything in the process."""

from __future__ import annotations

import ast
import ctypes
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.resources import run_script

SOURCE = Path(__file__).parents[1] / "src"


# --- circles ----------------------------------------------------------------------------------------------------------


def trees(folder: Path) -> dict[str, ast.Module]:
    """Return the syntax tree of each module below a folder, by the module's name."""
    found = {}
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text("utf-8"))
    return found


def named_in(module: str, tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a module names: in any import, and as a text, by which it imports them later.

    The functions of penstock.system.deferred take a package, and the modules in it. What is imported for types only
    counts too, and a pattern such as f"{package}.{name}" names all modules of the package.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr) and isinstance(first := node.values[0], ast.Constant):
            yield f"{first.value!s}*"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and "deferred" in node.func.id:
            package, *names = (module if isinstance(one, ast.Name) else ast.literal_eval(one) for one in node.args)
            yield from (f"{package}.{name}" for name in names)
        elif isinstance(node, ast.Dict):  # the table of attributes_of
            yield from (f"{module}.{key.value!s}" for key in node.keys if isinstance(key, ast.Constant))


def imports(folder: Path) -> dict[str, set[str]]:
    """Return which modules each module below a folder imports, the package's own `__init__` left out."""
    found = trees(folder)
    roots = {name for name in found if "." not in name}
    graph: dict[str, set[str]] = {}
    for module, tree in found.items():
        graph[module] = set()
        for name in named_in(module, tree):
            if name.endswith(".*"):
                graph[module] |= {one for one in found if one.startswith(name[:-1])}
            graph[module] |= {name if name in found else name.rpartition(".")[0]} & found.keys()
        graph[module] -= {module, *roots}
    return {module: graph[module] for module in graph.keys() - roots}


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module."""
    reached: dict[str, set[str]] = {}
    for module in graph:
        reached[module], pending = set(), [module]
        while pending:
            pending += graph[pending.pop()] - reached[module]
            reached[module].update(pending)
    of_each = {one: frozenset(other for other in reached[one] if one in reached[other]) for one in graph}
    return [set(each) for each in {*of_each.values()} if each]


def test_no_modules_import_each_other() -> None:
    """Imports for types, imports in functions and deferred ones count."""
    found: set[str] = set().union(*circles(imports(SOURCE)))
    assert not found, f"these import each other: {sorted(found)}"


@pytest.mark.parametrize(
    "line",
    [
        "import pack.two",
        "from pack import two",
        "from pack.two import anything",
        "if TYPE_CHECKING:\n    from pack.two import Anything",
        "def later():\n    from pack import two",
        "(two,) = deferred('pack', 'two')",
        "(two,) = deferred(\n    'pack', 'three', 'two'\n)",
        "two = import_module('pack.two')",
        "two = import_module(f'pack.{name}')",
        "ROWS = (('torch', 'pack.two', 'Kind'),)",
    ],
)
def test_each_way_to_import_counts(line: str, tmp_path: Path) -> None:
    (package := tmp_path / "pack").mkdir()
    texts = {
        "__init__": "from pack import one",
        "one": line,
        "two": "from pack.three import x",
        "three": "import pack.one",
    }
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    assert circles(imports(tmp_path)) == [{"pack.one", "pack.two", "pack.three"}]
    (package / "three.py").write_text("import pack")
    assert circles(imports(tmp_path)) == []


# --- what an import changes -------------------------------------------------------------------------------------------

IMPORT_ALL = """
import importlib, json, pkgutil, sys, warnings

def import_all():
    import penstock
    for found in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if found.name != "penstock.__main__":
            importlib.import_module(found.name)
"""
#: Prints the modules of other packages that all modules of this one import.
OTHERS = f"""{IMPORT_ALL}
import_all()
ours = ("penstock", "__main__", "__mp_main__")
print(json.dumps([name for name in sys.modules if name.partition(".")[0] not in ours]))
"""
#: Imports those modules, and then all modules of this package; prints what of the process has changed meanwhile.
CHANGED = f"""{IMPORT_ALL}
import atexit, copyreg, gc, logging, os, random, signal, threading
import numpy, torch

def attributes():
    'Return the identity of what stands at each name, of each module and class of other packages.'
    found = {{}}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("torch", "torchvision", "numpy", "PIL", "multiprocessing", "os", "threading"):
            held = {{key: value for key, value in list(vars(module).items()) if type(value) is not type(sys)}}
            classes = [(f"{{name}}.{{key}}", vars(one)) for key, one in held.items() if issubclass(type(one), type)]
            for owner, names in [(name, held), *classes]:
                found[owner] = {{key: id(value) for key, value in list(names.items())}}
    return found

def state():
    return {{
        "signals": {{str(one): repr(signal.getsignal(one)) for one in signal.valid_signals()}},
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "forks": len(at_fork),
        "exits": atexit._ncallbacks() - ("penstock._native" in sys.modules),  # nanobind clears typing's caches at exit
        "imports": [*map(id, (*sys.meta_path, *sys.path_hooks))],
        "hooks": [*map(id, (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook))],
        "interpreter": [sys.gettrace(), sys.getprofile(), sys.getswitchinterval(), sys.getrecursionlimit()],
        "warnings": [repr(warnings.filters), repr(warnings.showwarning)],
        "collector": [*gc.get_threshold(), len(gc.callbacks), gc.isenabled()],
        "logging": [repr(logging.root.handlers), logging.root.level, repr(logging.getLogger("penstock").handlers)],
        "pickling": [repr(one) for one in copyreg.dispatch_table if not one.__module__.startswith("penstock")],
        "environment": dict(os.environ),
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "numbers": [torch.get_num_threads(), torch.initial_seed(), torch.get_rng_state().tolist()],
        "draws": [repr(random.getstate()), numpy.random.get_state()[1].tolist()],
        "attributes": attributes(),
    }}

at_fork, os.register_at_fork = [], lambda **hooks: at_fork.append(hooks)
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except Exception:
        pass  # its own package imports it in an order of its own
before = state()
import_all()
after = state()
print(json.dumps([
    f"{{what}} {{key}}" if what == "attributes" else f"{{what}} {{key}}: {{then.get(key)}} -> {{now.get(key)}}"
    for what in after
    for then, now in [[each if isinstance(each, dict) else {{"": each}} for each in (before[what], after[what])]]
    for key in {{**then, **now}}
    if then.get(key) != now.get(key)
]))
"""


def test_an_import_changes_nothing_in_the_process() -> None:
    others = run_script(OTHERS).stdout
    done = run_script(CHANGED, others)
    assert (json.loads(done.stdout), done.stderr) == ([], "")


#: Prints whether malloc maps blocks of these sizes by themselves (mallinfo2(3)), as it does above its threshold.
MAPPED = """
class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks mapped usmblks fsmblks".split()]
    _fields_ += [(name, ctypes.c_size_t) for name in "uordblks fordblks keepcost".split()]

def is_mapped(size):
    before = libc.mallinfo2().mapped
    block = libc.malloc(size)
    grown = libc.mallinfo2().mapped - before
    libc.free(block)
    return grown >= size

libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype = Mallinfo, ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
print([is_mapped(size << 20) for size in (4, 12, 24, 30)])
"""
PASSES = """
import torch, torch.utils.data, penstock
class Own(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((1 << 14,), float(index))
rows = torch.utils.data.TensorDataset(torch.zeros(64, 1 << 10))
for dataset, workers in ((Own(), {}), (rows, {}), (rows, {"num_workers": 2})):
    for _ in penstock.DataLoader(dataset, 8, **workers):
        pass
for method in ("thread", "process"):
    for _ in penstock.DataLoader(Own(), 8, num_workers=2, worker_method=method):
        pass
"""


@cache
def mapped_after(script: str) -> tuple[str, str]:
    """Return what a program prints behind a script, and its errors."""
    done = run_script(f"import ctypes, torch, torch.utils.data\n{script}\n{MAPPED}")
    return done.stdout, done.stderr


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="malloc does not say which blocks are mapped")
@pytest.mark.parametrize("script", [f"{IMPORT_ALL}\nimport_all()", PASSES], ids=["imports", "passes"])
def test_the_thresholds_of_malloc_are_not_moved(script: str) -> None:
    assert mapped_after(script) == mapped_after("")


REGISTERED = """
import atexit, os, sys
hooks, original = [], os.register_at_fork
os.register_at_fork = lambda **given: hooks.append(given) or original(**given)
for _ in range(3):
    exec(sys.argv[1], {})
    print(len(hooks), atexit._ncallbacks())
"""


def test_what_loaders_register_they_register_once() -> None:
    done = run_script(REGISTERED, PASSES)
    first, *later = done.stdout.splitlines()
    assert (later, done.stderr) == ([first] * 2, "") and int(first.split()[0]) > 0
