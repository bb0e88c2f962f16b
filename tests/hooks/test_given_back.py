"""Attributes of other packages that are set while a pass is open, and given back at the end of the last one.

What is there before the first pass is seen in a fresh process alone, so that each test runs a script in one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import python_processes

pytestmark = pytest.mark.native

pytest.importorskip("torchvision")

BEGIN = """
import gc, io, os, sys, types
import numpy as np
import torch
import torch.utils.data as tud
import torchvision
from PIL import Image
from torch.utils.data import default_collate, get_worker_info
from torchvision.transforms import v2
from penstock import DataLoader

from torch.utils.data._utils.collate import default_collate_fn_map

PACKAGES = ("torchvision.", "PIL.", "numpy", "torch.serialization", "torch.utils.")
stored = io.BytesIO()
Image.new("RGB", (24, 20), (1, 2, 3)).save(stored, "JPEG")
torch.save(torch.ones(2), sys.argv[1])

class Photos(tud.Dataset):
    transform = torchvision.transforms.Compose([v2.RandomCrop(16), v2.RandomHorizontalFlip(), v2.ToImage()])
    fails = ()

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index in self.fails:
            raise KeyError(index)
        with Image.open(io.BytesIO(stored.getvalue())) as image:
            return self.transform(image.convert("RGB")), torch.load(sys.argv[1]), get_worker_info() is None

def attributes():
    # Return what each attribute of these packages' modules and classes is.
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(PACKAGES)]
    kinds = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    mine = [sys.modules["__main__"], torch, default_collate_fn_map]
    held = {id(one): one if isinstance(one, dict) else vars(one) for one in [*modules, *kinds, *mine]}
    return {number: dict(one) for number, one in held.items()}

def content(function):
    return function.__code__, function.__defaults__, function.__kwdefaults__, function.__module__, dict(vars(function))

def differences():
    # Return the functions that are not where they were, or not what they were.
    now = attributes()
    return [name for number, before in ATTRIBUTES.items() for name, value in before.items()
            if callable(getattr(value, "__func__", value)) and now[number].get(name) is not value] + [
        one for one, before in BEFORE.items() if content(one) != before]

def changed_inside():
    # Return the functions that have other code, defaults or attributes.
    return [one for one, before in BEFORE.items() if content(one)[:3] != before[:3] or vars(one) != before[4]]

EDGES = v2.Compose([v2.Resize(8), v2.CenterCrop(6), v2.Normalize([0.5] * 3, [0.5] * 3)])
FLOATS = torch.rand(3, 12, 10, generator=torch.Generator().manual_seed(0))

def compiles():
    torch._dynamo.reset()
    return torch.equal(torch.compile(EDGES, fullgraph=True, backend="eager")(FLOATS), EDGES(FLOATS))

list(tud.DataLoader(Photos(), 4))  # what torch's loader imports and makes is there
ATTRIBUTES = attributes()
gc.unfreeze()  # of the process that this one was forked from
BEFORE = {one: content(one) for one in gc.get_objects() if type(one) is types.FunctionType
          and (one.__module__ or "").startswith(PACKAGES)}
assert {Image.open, torch.load, np.load, v2.Transform.forward, get_worker_info} <= BEFORE.keys()
"""


SCRIPTS = {
    "after the last pass every function is what it was": """
def failing(**options):
    dataset = Photos()
    dataset.fails = (5,)
    for _ in range(2):
        try:
            list(DataLoader(dataset, 4, **options))
        except KeyError:
            pass

def left(**options):
    batches = iter(DataLoader(Photos(), 4, **options))
    next(batches)

def nested(**options):
    outer = iter(DataLoader(Photos(), 4, **options))
    next(outer)
    list(DataLoader(Photos(), 4, num_workers=0))
    assert differences() and not changed_inside()
    assert len(list(outer)) == 2
    del outer

def mixed(samples):
    return v2.functional.horizontal_flip(default_collate(samples)[0])

threads = {"num_workers": 2, "worker_method": "thread"}
WAYS = {
    "caller": {"num_workers": 0}, "caller, seed": {"num_workers": 0, "seed": 3}, "threads": threads,
    "threads, seed": {**threads, "seed": 3}, "collate_fn": {**threads, "collate_fn": mixed},
    "persistent": {**threads, "persistent_workers": True}, "processes": {"num_workers": 1, "worker_method": "process"},
}
for name, options in WAYS.items():
    kept = DataLoader(Photos(), 4, **options)
    for work in (lambda **_: list(kept), lambda **_: list(kept), left, failing, nested)[: 4 + (name != "processes")]:
        work(**options)
        assert not differences() and not changed_inside(), (name, differences())
""",
    "transforms are compiled before, during and after a pass": """
assert compiles()
compiled = torch.compile(EDGES, fullgraph=True, backend="eager")
threads = {"num_workers": 2, "worker_method": "thread", "seed": 3}
for options in ({"num_workers": 0}, {"num_workers": 0, "seed": 3}, threads):
    for number, _ in enumerate(DataLoader(Photos(), 4, **options)):
        assert differences()
        assert number or compiles()
        assert torch.equal(compiled(FLOATS), EDGES(FLOATS))
    assert not differences() and compiles()
    assert torch.equal(compiled(FLOATS), EDGES(FLOATS))
""",
    "a forked child gives back what its parent had exchanged": """
def in_child(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(1 if differences() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

for options in ({"num_workers": 0}, {"num_workers": 2, "worker_method": "thread"}):
    batches = iter(DataLoader(Photos(), 4, **options))
    next(batches)

    def drop():
        global batches
        del batches
        list(DataLoader(Photos(), 4, num_workers=0))

    in_child(drop)
    assert differences()
    assert len(list(batches)) == 2
    del batches
    assert not differences()
""",
    "nothing is exchanged for samples that cost next to nothing": """
from penstock import observe

for dataset, light in ((Photos(), False), (range(2000), True)):
    if light:
        observe.LIGHT = 1.0  # a busy machine may hold a thread for long
    loader = DataLoader(dataset, 4, num_workers=0)
    for earlier in (False, True):
        for number, _ in enumerate(loader):
            if number == 1:
                assert bool(differences()) == (not (light and earlier))
    assert not differences()
""",
    "a program's own calls show nothing of a pass": """
import inspect, pickle, traceback
import torch.jit
from torchvision import transforms as v1

held = torch.load, np.load, get_worker_info
COMPOSE = v1.Compose([v1.Resize(8)])

def shown():
    texts = []
    for call in (lambda: COMPOSE(None), lambda: np.load(sys.argv[1]), lambda: torch.load("none"),
                 lambda: Image.Image.convert(None)):
        try:
            call()
        except Exception:
            texts.append(traceback.format_exc())
    now = (v1.Compose.__call__, v1.Resize.forward, v2.RandomCrop.make_params, Image.Image.convert, np.load, torch.load)
    return "".join(texts), [(inspect.getsource(one), inspect.getsourcefile(one), inspect.signature(one), one.__name__,
                             one.__code__.co_filename) for one in now]

before, looks = shown()
for options in ({"num_workers": 0}, {"num_workers": 2, "worker_method": "thread", "seed": 3}):
    for _ in DataLoader(Photos(), 4, **options):
        assert differences()
        during, now = shown()
        assert now == looks
        assert "src/penstock" not in during and during.count("Traceback") == before.count("Traceback")
        assert pickle.loads(pickle.dumps(held)) == held
        assert pickle.loads(pickle.dumps((torch.load, np.load))) == (torch.load, np.load)
        assert torch.jit.script(v1.RandomCrop(4))(torch.zeros(3, 8, 8)).shape[0] == 3
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_exchanged(name: str, tmp_path: Path) -> None:
    source = BEGIN + SCRIPTS[name] + "\nprint('to the end')\n"
    done = python_processes.run(source, tmp_path / "x.pt", imported=python_processes.VISION)
    assert done.returncode == 0 and done.stdout.endswith("to the end\n"), (done.stdout[-2000:], done.stderr[-4000:])
