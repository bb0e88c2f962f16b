"""Memory that is exchanged, freed or truncated while native threads read it: no crash, and no freed memory's content.

A fault would end the test run, so that each test runs a script in a process of its own.
"""

from __future__ import annotations

import signal
import textwrap

import pytest

from tests import python_processes

pytestmark = pytest.mark.native

BEGIN = """
import faulthandler, gc, os, signal, threading, time
import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset
import penstock
from penstock import DataLoader

WAYS = [{"num_workers": 0}, {}, {"num_workers": 2}]

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
    done = python_processes.run(source)
    assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    if code == 0:
        assert done.stdout.endswith("to the end\n"), done.stdout
    return done.stderr


def test_memory_that_moves_in_the_middle_of_a_pass():
    run("""
        def grow(x):
            with torch.no_grad():
                x.resize_(2 * len(x), x.shape[1])[len(x) // 2:] = 1

        CHANGES = {
            "share": lambda x: x.share_memory_(),
            "pickled for a spawned worker": lambda x: torch.multiprocessing.reductions.reduce_tensor(x),
            "grow": grow,
            "data": lambda x: setattr(x, "data", torch.ones_like(x)),
            "set": lambda x: x.set_(torch.ones_like(x)),
            "storage": lambda x: x.untyped_storage().resize_(x.untyped_storage().nbytes() + 4096),
        }
        for name, change in CHANGES.items():
            for options in WAYS:
                x = torch.ones(60_000, 64)
                batches = iter(DataLoader(TensorDataset(x), batch_size=256, **options))
                next(batches)
                change(x)
                seen = 1
                for (batch,) in batches:
                    assert (batch == 1).all(), (name, options)
                    seen += 1
                assert seen == 235
    """)


def test_storage_that_is_gone_raises_what_torch_raises():
    run("""
        for bytes_left in (0, 64 * 4 * 30_000):
            for options in WAYS:
                x = torch.ones(60_000, 64)
                batches = iter(DataLoader(TensorDataset(x), batch_size=256, **options))
                next(batches)
                x.untyped_storage().resize_(bytes_left)
                errors = 0
                for _ in range(234):
                    try:
                        (batch,) = next(batches)
                    except RuntimeError as error:
                        assert "out of bounds for storage" in str(error), error
                        errors += 1
                    else:
                        assert bytes_left and (batch == 1).all()
                assert errors == (118 if bytes_left else 234), errors
    """)


def test_images_in_memory_that_move():
    run("""
        for options in WAYS:
            dataset = pictures("MNIST", torch.full((20_000, 28, 28), 9, dtype=torch.uint8))
            batches = iter(DataLoader(dataset, batch_size=256, **options))
            next(batches)
            dataset.data.share_memory_()
            dataset.targets.share_memory_()
            assert all((images == 9).all() and (labels == 0).all() for images, labels in batches)

            dataset = pictures("MNIST", torch.full((20_000, 28, 28), 9, dtype=torch.uint8))
            batches = iter(DataLoader(dataset, batch_size=256, **options))
            next(batches)
            dataset.data.untyped_storage().resize_(0)
            try:
                next(batches)
            except RuntimeError as error:
                assert "out of bounds for storage" in str(error)
            else:
                raise AssertionError

            dataset = pictures("CIFAR10", np.full((5_000, 32, 32, 3), 9, dtype=np.uint8))
            batches = iter(DataLoader(dataset, batch_size=256, **options))
            next(batches)
            dataset.data.resize((15_000, 32, 32, 3), refcheck=False)
            dataset.data[5_000:] = 9
            for images, labels in batches:
                assert (images == 9).all()
    """)


def test_numpy_arrays_that_are_resized():
    run("""
        for options in WAYS:
            x = np.ones((60_000, 64), dtype=np.float32)
            dataset = penstock.Arrays(x)
            batches = iter(DataLoader(dataset, batch_size=256, **options))
            next(batches)
            x.resize((100_000, 64), refcheck=False)
            x[60_000:] = 1
            assert all((batch == 1).all() for (batch,) in batches)
            assert (dataset[5][0] == 1).all() and len(dataset) == 100_000
    """)


@pytest.mark.parametrize("how", ["other memory", "resized"])
def test_another_thread_that_exchanges_memory_all_the_time(how):
    """Unless an address comes back: torch keeps no count of exchanges, and a storage at its old address looks unmoved.

    Python's own reading, which begins after several exchanges in a row, races with the thread as torch's loader does.
    """
    run(f"""
        penstock.executors.native._TIMES = 10**9
        x = torch.ones(1_000, 128)
        resized = {how == "resized"}
        bytes_, addresses, fillers, done = x.untyped_storage().nbytes(), [x.data_ptr()], [], threading.Event()

        def exchange():
            for number in range(600):
                if resized:
                    x.untyped_storage().resize_(bytes_ + 8192 * (number % 5 + 1))
                    fillers.append(torch.full((1_000, 128), -5.0))  # takes what was freed, and keeps it
                else:
                    fillers.append(x.untyped_storage())
                    x.set_(torch.ones(1_000, 128))
                addresses.append(x.data_ptr())
                time.sleep(0.0005)  # a native thread reads what has moved
            done.set()

        thread = threading.Thread(target=exchange, daemon=True)
        thread.start()
        while not done.is_set():
            for options in WAYS:
                for (batch,) in DataLoader(TensorDataset(x), batch_size=64, **options):
                    assert (batch == 1).all() or len(set(addresses)) < len(addresses), options
        thread.join()
        assert len(set(addresses)) > 500
    """)


def test_another_thread_that_shares_memory():
    run("""
        for options in WAYS:
            for _ in range(3):
                x = torch.ones(30_000, 64)
                batches = iter(DataLoader(TensorDataset(x), batch_size=64, **options))
                thread = threading.Thread(target=x.share_memory_)
                next(batches)
                thread.start()
                assert all((batch == 1).all() for (batch,) in batches)
                thread.join()
    """)


def test_the_same_tensors_in_two_loaders_of_which_one_spawns_workers():
    run("""
        x = torch.ones(60_000, 64)
        ways = {}, {"num_workers": 2}
        first, second = (iter(DataLoader(TensorDataset(x), batch_size=256, **options)) for options in ways)
        next(first), next(second)
        spawning = iter(DataLoader(Subset(TensorDataset(x), list(range(8))), batch_size=4, num_workers=1,
                                   worker_method="process", multiprocessing_context="forkserver"))
        assert x.is_shared()
        assert all((batch == 1).all() for (batch,) in first) and all((batch == 1).all() for (batch,) in second)
        assert all((batch == 1).all() for (batch,) in spawning)
    """)


def test_passes_that_are_used_again_abandoned_or_forked():
    run("""
        x = torch.ones(30_000, 64)
        loader = DataLoader(TensorDataset(x), batch_size=256, num_workers=2, persistent_workers=True)
        next(iter(loader))
        x.share_memory_()
        for _ in range(2):
            assert all((batch == 1).all() for (batch,) in loader)

        for options in WAYS:  # abandoned while threads read what is freed then
            x = torch.ones(30_000, 64)
            batches = iter(DataLoader(TensorDataset(x), batch_size=256, **options))
            next(batches)
            x.untyped_storage().resize_(0)
            del batches, x
        gc.collect()

        x = torch.ones(30_000, 64)
        batches = iter(DataLoader(TensorDataset(x), batch_size=256, num_workers=2))
        next(batches)
        child = os.fork()
        if child == 0:
            x.untyped_storage().resize_(x.untyped_storage().nbytes() + 4096)
            ok = all((batch == 1).all() for (batch,) in DataLoader(TensorDataset(x), batch_size=256, num_workers=0))
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert all((batch == 1).all() for (batch,) in batches)
    """)


def test_a_mapped_file_that_is_truncated(tmp_path):
    run(f"""
        path = {str(tmp_path / "rows.npy")!r}
        for options in WAYS:
            for left in (128 + 1_000 * 1024, 128 + 1_000 * 1024 + 100, 0):
                np.save(path, np.ones((2_000, 256), dtype=np.float32))
                dataset = penstock.Arrays(path)
                batches = iter(DataLoader(dataset, batch_size=50, **options))
                (batch,) = next(batches)
                assert (batch == 1).all()
                os.truncate(path, left)
                good = errors = 0
                for _ in range(39):
                    try:
                        (batch,) = next(batches)
                    except penstock.CorruptSample as error:
                        assert path in str(error) and f"{{left:,}} bytes" in str(error), error
                        assert f"{{128 + 2_000 * 1024:,}}" in str(error) and error.path == path
                        errors += 1
                    else:
                        assert (batch == 1).all()
                        good += 1
                assert good >= 19 if left else errors >= 30, (good, errors)
                assert errors >= 20
                try:
                    dataset[1_500]
                except penstock.CorruptSample as error:
                    assert path in str(error)
                else:
                    raise AssertionError
                assert not left or (dataset[999][0] == 1).all()

    """)


def test_a_file_that_its_owner_mapped_is_truncated(tmp_path):
    """Nobody knows which file it is."""
    run(f"""
        path = {str(tmp_path / "rows.npy")!r}
        for make in (lambda rows: TensorDataset(torch.from_numpy(rows)), lambda rows: penstock.Arrays(rows)):
            for options in WAYS:
                np.save(path, np.ones((2_000, 256), dtype=np.float32))
                rows = np.load(path, mmap_mode="c")
                batches = iter(DataLoader(make(rows), batch_size=50, **options))
                next(batches)
                os.truncate(path, 128)
                try:
                    for _ in range(39):
                        next(batches)
                except penstock.CorruptSample as error:
                    assert "truncated" in str(error), error
                else:
                    raise AssertionError(options)

    """)


def test_images_in_a_mapped_file_that_is_truncated(tmp_path):
    run(f"""
        path = {str(tmp_path / "images.npy")!r}
        np.save(path, np.full((2_000, 32, 32, 3), 7, dtype=np.uint8))
        dataset = pictures("CIFAR10", np.load(path, mmap_mode="r"))
        for options in WAYS:
            batches = iter(DataLoader(dataset, batch_size=50, **options))
            next(batches)
        os.truncate(path, 0)
        for options in WAYS:
            try:
                list(DataLoader(dataset, batch_size=50, **options))
            except penstock.CorruptSample as error:
                assert "truncated" in str(error), error
            else:
                raise AssertionError(options)
    """)


def test_samples_of_a_truncated_file_are_replaced(tmp_path):
    run(f"""
        path = {str(tmp_path / "rows.npy")!r}
        for options in WAYS:
            np.save(path, np.arange(2_000, dtype=np.float32).repeat(256).reshape(2_000, 256))
            dataset = penstock.Arrays(path)
            loader = DataLoader(dataset, batch_size=50, seed=0, on_error=penstock.Replace(max_share=0.9), **options)
            batches = iter(loader)
            first = next(batches)
            os.truncate(path, 128 + 1_990 * 1024)
            rest = [batch for (batch,) in batches]
            assert len(rest) == 39
            values = torch.cat(rest)[:, 0]
            assert (values[:1_940] == torch.arange(50, 1_990)).all() and (values < 1_990).all()
        """)


CRASH = """
x = torch.ones(1_000, 64)
list(DataLoader(TensorDataset(x), batch_size=256, num_workers={workers}))
{after}
import ctypes
ctypes.string_at(8)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_faults_that_are_not_ours_end_the_process_as_they_did(workers):
    told = run(CRASH.format(workers=workers, after="pass"), code=-signal.SIGSEGV)
    assert "Fatal Python error" not in told


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("faulthandler.enable()", "pass"),
        ("", "faulthandler.enable()"),
        ("", "faulthandler.enable(); list(DataLoader(TensorDataset(x), batch_size=8))"),  # whose handler comes to ours
    ],
)
def test_faults_that_are_not_ours_come_to_handlers_of_others(before, after):
    told = run(before + CRASH.format(workers=2, after=after), code=-signal.SIGSEGV)
    assert told.count("Segmentation fault") == 1


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS"])
def test_signals_that_somebody_sent_end_the_process(name):
    run(
        "list(DataLoader(TensorDataset(torch.ones(10)), num_workers=0))\n"
        f"os.kill(os.getpid(), signal.{name})\nsignal.pause()",
        code=-getattr(signal, name),
    )


def test_handlers_of_others_come_before_and_after():
    run("""
        def move(**options):
            x = torch.ones(60_000, 64)
            batches = iter(DataLoader(TensorDataset(x), batch_size=256, **options))
            next(batches)
            x.share_memory_()
            assert all((batch == 1).all() for (batch,) in batches)

        faulthandler.enable()
        move(num_workers=2)
        faulthandler.disable()
        move(num_workers=2)
        faulthandler.enable()
        move(num_workers=0)
        caught = []
        signal.signal(signal.SIGBUS, lambda *_: caught.append(1))
        move(num_workers=2)
        os.kill(os.getpid(), signal.SIGBUS)
        time.sleep(0)  # Python runs the handler
        assert caught == [1]
    """)


def test_fillers_over_memory_that_is_not_there(tmp_path):
    run(f"""
        import mmap
        import penstock._native as _native

        with open({str(tmp_path / "bytes")!r}, "w+b") as file:
            file.truncate(64 * 4096)
            mapped = mmap.mmap(file.fileno(), 0)
            mapped[:] = b"\\x05" * len(mapped)
            rows = np.frombuffer(mapped, dtype=np.uint8).reshape(64, 4096)
            os.truncate(file.name, 40 * 4096)
            spec = _native.Spec("uint8", [4096])
            for threads in (0, 2):
                pool = _native.Pool(_native.Program([[_native.GatherFiller(rows, spec)]]), threads)
                order = np.random.default_rng(0).permutation(64).astype(np.int64)
                for _ in range(20):
                    out = np.zeros(64 * 4096, dtype=np.uint8)
                    fields = [(out, out.ctypes.data, out.nbytes, spec)]
                    number = pool.submit(pool.prepare(0, 0, order, order, order, None, None), fields)
                    if not threads:
                        pool.run_here(number)
                    assert pool.wait(number, 60) == "done"
                    failures = pool.retire(number)
                    lost = {{position for position, field, code, *_ in failures if code == "moved" and field == 0}}
                    assert len(failures) == len(lost)
                    assert lost == set(np.flatnonzero(order >= 40).tolist())
                    kept = out.reshape(64, 4096)[sorted(set(range(64)) - lost)]
                    assert (kept == 5).all()
                pool.close()
    """)
