"""Starting worker processes costs what it costs in torch's loader, however many modules a program has imported."""

from __future__ import annotations

import pytest

from tests import python_processes

SCRIPT = """
import multiprocessing, resource, sys, types, torch, penstock
multiprocessing.set_start_method("fork")
for number in range(4000):
    module = types.ModuleType(f"application.part_{number}")
    vars(module).update({f"name_{number}_{i}": object() for i in range(40)}, load=torch.load)
    sys.modules[module.__name__] = module
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor(load_is_ours())
def load_is_ours(): return sys.modules["application.part_3999"].load is not original[0]
original = [torch.load]
def pages(kind, **options):
    loader = kind(Samples(), 4, num_workers=2, **options)
    seen = torch.cat(list(loader))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    list(loader)
    return int(seen.sum()), (resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before) // 2
print(*pages(torch.utils.data.DataLoader), *pages(penstock.DataLoader, OPTIONS))
assert load_is_ours() == 0
"""


@pytest.mark.parametrize("options", ["seed=None", "seed=1"])
def test_workers_find_set_what_they_answer(options: str) -> None:
    done = python_processes.run(SCRIPT.replace("OPTIONS", options))
    theirs, their_pages, ours, our_pages = map(int, done.stdout.split())
    assert (theirs, ours) == (0, 8)
    assert our_pages - their_pages < 512, done  # 2 MB a worker
