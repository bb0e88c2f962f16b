"""Memory that is exchanged, freed or truncated between two batches: no crash, and no freed memory's content.

A fault would end the test run, so that each test runs a script in a process of its own.
"""

from __future__ import annotations

import pickle
import signal
import textwrap
from typing import Any

import numpy as np
import pytest

import penstock
from tests import python_processes

pytestmark = pytest.mark.native

BEGIN = """
import faulthandler, gc, os, signal, threading, time
import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset
import penstock
from penstock import DataLoader
from tests.same import outcomes

WAYS = [{"num_workers": 0}, {}, {"num_workers": 2}]

def begun(dataset, batch_size=256, **options):
    batches = iter(DataLoader(dataset, batch_size=batch_size, **options))
    next(batches)
    return batches

def all_ones(batches):
    return all((batch == 1).all() for (batch,) in batches)

def pictures(name, data):
    import torchvision
    kind = getattr(torchvision.datasets, name)
    dataset = kind.__new__(kind)
    dataset.data = data
    dataset.targets = [0] * len(data) if name == "CIFAR10" else torch.zeros(len(data), dtype=torch.int64)
    dataset.transform, dataset.target_transform = torchvision.transforms.PILToTensor(), None
    return dataset
"""


def run(script: str, *, code: int = 0) -> str:
    """Run a script after BEGIN, assert how it ends, and return what it wrote to stderr."""
    source = BEGIN + textwrap.dedent(script) + "\nprint('to the end')\n"
    done = python_processes.run(source, imported=python_processes.VISION)
    assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    assert done.stdout.endswith("to the end\n") or code, done.stdout
    return done.stderr


@pytest.mark.parametrize("begun", [0, 1])
def test_memory_that_moves(begun):
    """Before the first batch of a pass, or behind it."""
    run(f"""
        def grow(x):
            with torch.no_grad():
                x.resize_(2 * len(x), *x.shape[1:])[len(x) // 2:] = 9

        CHANGES = {{
            "share": lambda x: x.share_memory_(),
            "pickled for a spawned worker": lambda x: torch.multiprocessing.reductions.reduce_tensor(x),
            "grow": grow,
            "data": lambda x: setattr(x, "data", torch.full_like(x, 9)),
            "set": lambda x: x.set_(torch.full_like(x, 9)),
            "storage": lambda x: x.untyped_storage().resize_(x.untyped_storage().nbytes() + 4096),
        }}
        for name, change in CHANGES.items():
            for options in WAYS:
                for kind in (TensorDataset, lambda x: pictures("MNIST", x)):
                    x = torch.full((6_000, 28, 28), 9, dtype=torch.uint8)
                    batches = iter(DataLoader(kind(x), batch_size=256, **options))
                    seen = [next(batches) for _ in range({begun})]
                    change(x)
                    seen += batches
                    assert len(seen) == 24 and all((batch[0] == 9).all() for batch in seen), (name, options)
    """)


def test_storage_that_is_gone_raises_what_torch_raises():
    run("""
        for bytes_left in (0, 64 * 4 * 30_000):
            for options in WAYS:
                x = torch.ones(60_000, 64)
                batches = begun(TensorDataset(x), **options)
                x.untyped_storage().resize_(bytes_left)
                found = outcomes(batches)
                errors = [one for one in found if isinstance(one, tuple)]
                assert all(kind == "RuntimeError" and "out of bounds for storage" in words for kind, words in errors)
                assert all_ones(one for one in found if isinstance(one, list))
                assert (len(found), len(errors)) == (234, 118 if bytes_left else 234)
    """)


def test_images_in_memory_that_move():
    run("""
        for options in WAYS:
            dataset = pictures("MNIST", torch.full((3_000, 28, 28), 9, dtype=torch.uint8))
            batches = iter(DataLoader(dataset, batch_size=256, **options))
            next(batches)
            dataset.data.share_memory_()
            dataset.targets.share_memory_()
            assert all((images == 9).all() and (labels == 0).all() for images, labels in batches)

            dataset = pictures("MNIST", torch.full((3_000, 28, 28), 9, dtype=torch.uint8))
            batches = iter(DataLoader(dataset, batch_size=256, **options))
            next(batches)
            dataset.data.untyped_storage().resize_(0)
            try:
                next(batches)
            except RuntimeError as error:
                assert "out of bounds for storage" in str(error)
            else:
                raise AssertionError

            dataset = pictures("CIFAR10", np.full((2_000, 32, 32, 3), 9, dtype=np.uint8))
            batches = iter(DataLoader(dataset, batch_size=256, **options))
            next(batches)
            dataset.data.resize((6_000, 32, 32, 3), refcheck=False)
            dataset.data[2_000:] = 9
            for images, labels in batches:
                assert (images == 9).all()
    """)


def test_numpy_does_not_resize_arrays_that_are_rows():
    x = np.ones((60, 64), dtype=np.float32)
    for dataset in (penstock.Arrays(x), pickle.loads(pickle.dumps(penstock.Arrays(x)))):
        given: Any = dataset._given[0]
        with pytest.raises(ValueError, match="cannot resize"):
            given.resize((100, 64), refcheck=False)
        del given
    del dataset
    x.resize((100, 64), refcheck=False)


def test_the_same_tensors_in_two_loaders_of_which_one_spawns_workers():
    run("""
        x = torch.ones(60_000, 64)
        first, second = (begun(TensorDataset(x), **options) for options in ({}, {"num_workers": 2}))
        spawning = iter(DataLoader(Subset(TensorDataset(x), list(range(8))), batch_size=4, num_workers=1,
                                   worker_method="process", multiprocessing_context="forkserver"))
        assert x.is_shared() and all_ones(first) and all_ones(second) and all_ones(spawning)
    """)


def test_passes_that_are_used_again_abandoned_or_forked():
    run("""
        x = torch.ones(30_000, 64)
        loader = DataLoader(TensorDataset(x), batch_size=256, num_workers=2, persistent_workers=True)
        next(iter(loader))
        x.share_memory_()
        assert all_ones(loader) and all_ones(loader)

        for options in WAYS:  # abandoned while threads read what is freed then
            x = torch.ones(30_000, 64)
            batches = begun(TensorDataset(x), **options)
            x.untyped_storage().resize_(0)
            del batches, x
        gc.collect()

        x = torch.ones(30_000, 64)
        batches = begun(TensorDataset(x), num_workers=2)
        child = os.fork()
        if child == 0:
            x.untyped_storage().resize_(x.untyped_storage().nbytes() + 4096)
            os._exit(not all_ones(DataLoader(TensorDataset(x), batch_size=256, num_workers=0)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert all_ones(batches)
    """)


def test_a_mapped_file_that_is_truncated(tmp_path):
    run(f"""
        path = {str(tmp_path / "rows.npy")!r}
        for options in WAYS[:2]:  # workers read ahead, and a file that becomes shorter meanwhile ends the process
            for left in (128 + 1_000 * 1024, 128 + 1_000 * 1024 + 100, 0):
                np.save(path, np.ones((2_000, 256), dtype=np.float32))
                dataset = penstock.Arrays(path)
                batches = iter(DataLoader(dataset, batch_size=50, **options))
                (batch,) = next(batches)
                assert (batch == 1).all()
                os.truncate(path, left)
                errors = 0
                for _ in range(39):
                    try:
                        (batch,) = next(batches)
                    except penstock.CorruptSample as error:
                        assert path in str(error) and f"{{left:,}} bytes" in str(error), error
                        assert f"{{128 + 2_000 * 1024:,}}" in str(error) and error.path == path
                        errors += 1
                    else:
                        assert (batch == 1).all()  # read before the file was cut off
                assert errors >= 30, errors
                with pytest.raises(penstock.CorruptSample, match=path):
                    dataset[1_500]
    """)


def test_memory_is_read_in_next_alone():
    """Between two calls the pages are taken away: a thread that read them then would end the process."""
    run("""
        import ctypes, mmap
        libc = ctypes.CDLL(None, use_errno=True)

        def pages(size):
            held = mmap.mmap(-1, size)
            held[:] = b"\\x01" * size
            values = torch.frombuffer(held, dtype=torch.uint8)
            return values, values.data_ptr()

        def access(address, size, allowed):
            assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), 3 if allowed else 0) == 0

        size = 4_096 * 1_024
        values, address = pages(size)
        datasets = {
            "tensors": (TensorDataset(values.view(4_096, 1_024)), 1),
            "arrays": (penstock.Arrays(values.numpy().reshape(4_096, 1_024)), 1),
            "images": (pictures("CIFAR10", values.numpy()[: 1_365 * 3_072].reshape(1_365, 32, 32, 3)), 1),
        }
        for name, (dataset, expected) in datasets.items():
            for options in [*WAYS, {"num_workers": 2, "persistent_workers": True}]:
                loader = DataLoader(dataset, batch_size=256, **options)
                for _ in range(2):
                    batches = iter(loader)
                    access(address, size, False)
                    time.sleep(0.002)
                    access(address, size, True)
                    for number, (batch, *_) in enumerate(batches):
                        access(address, size, False)
                        time.sleep(0.002)  # threads that had work would read
                        assert (batch == expected).all(), (name, options, number)
                        access(address, size, True)
                        if number == 4:
                            break
                    del batches
    """)


def test_rows_are_those_of_the_call_that_asks_for_them():
    run("""
        for options in WAYS:
            x = torch.ones(10_000, 64)
            batches = iter(DataLoader(TensorDataset(x), batch_size=256, **options))
            for number, (batch,) in enumerate(batches):
                assert (batch == number + 1).all(), (options, number)
                x.fill_(number + 2)
    """)


def test_no_signal_is_handled():
    run("""
        def caught():
            with open("/proc/self/status") as file:
                return [line for line in file if line.startswith("SigCgt")]

        before = caught()
        for options in WAYS:
            list(DataLoader(TensorDataset(torch.ones(1_000, 64)), batch_size=256, **options))
            list(DataLoader(pictures("MNIST", torch.ones((1_000, 28, 28), dtype=torch.uint8)), 256, **options))
        assert caught() == before
    """)


def test_a_fault_in_a_thread_of_the_core_comes_to_the_handlers_of_the_program(tmp_path):
    """As where torch reads a file that its owner has mapped and truncated."""
    told = run(
        f"""
        path = {str(tmp_path / "rows.npy")!r}
        np.save(path, np.ones((2_000, 256), dtype=np.float32))
        rows = np.load(path, mmap_mode="c")
        batches = begun(TensorDataset(torch.from_numpy(rows)), 50, num_workers=2)
        faulthandler.enable()
        os.truncate(path, 128)
        list(batches)
        """,
        code=-signal.SIGBUS,
    )
    assert "Fatal Python error: Bus error" in told
