"""What the native pool counts of each stage: samples exactly, seconds within what its threads had."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import penstock._native as _native
from tests.data import tensor_files
from tests.native_pool import SECONDS, pool_of, submit, table_of
from tests.recipe.against_torchvision import recipe_of

pytestmark = pytest.mark.native

PIXELS, SPEC = _native.Spec("uint8", [3, 8, 8]), _native.Spec("uint8", [16])


def gathering(rows=1000):
    return _native.GatherFiller(np.zeros((rows, 16), np.uint8), SPEC)


def converting(geometry):
    return recipe_of(v2.Compose([geometry, v2.PILToTensor()])).native


def fill(pool, size, spec=SPEC, names=None, fields=1):
    number, memory = submit(pool, range(size), spec, names, fields)
    pool.run_here(number)
    assert pool.wait(number, SECONDS) in ("done", "python")
    del memory
    return number


def samples(pool):
    found = pool.stages()
    assert all(seconds >= on_cpu >= 0 for _, seconds, _, on_cpu, *_ in found)
    return {name: count for name, _, count, *_ in found}


def files(folder, images):
    for name, image in images.items():
        image.save(folder / name)
    return b"".join(os.fsencode(folder / name) + b"\0" for name in images)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_rows_in_memory(threads):
    pool = pool_of(gathering(), gathering(), threads=threads)
    counted = [samples(pool)]
    for _ in range(3):
        pool.retire(fill(pool, 1000, fields=2))
        counted.append(samples(pool))
    pool.close()
    assert [*counted, samples(pool)] == [{}, *({"gather": n} for n in (2000, 4000, 6000, 6000))]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_timelines(threads):
    began, pool = time.perf_counter(), pool_of(gathering(), threads=threads, recorded=True)
    for _ in range(3):
        pool.retire(fill(pool, 1000))
    pool.close()  # threads that are done with the last batch have said so
    spans = pool.take_spans()
    assert pool.take_spans() == [] and sum(count for *_, count in spans) == 3000
    assert {stage for _, stage, *_ in spans} == {"gather"}
    names = ["calling thread", *(f"penstock-native-{worker}" for worker in range(threads))]
    assert {name for name, *_ in spans} <= set(names)
    for name in names:
        times = [moment for one, _, begin, end, _ in spans if one == name for moment in (begin, end)]
        assert times == sorted(times) and all(began <= moment <= time.perf_counter() for moment in times)


def test_a_timeline_that_nobody_reads_is_bounded():
    pool = pool_of(gathering(1), recorded=True)
    for _ in range(16_400):
        pool.retire(fill(pool, 1))
    assert len(pool.take_spans()) == 16_384
    pool.retire(fill(pool, 1))
    assert len(pool.take_spans()) == 1
    plain = pool_of(gathering(1))
    plain.retire(fill(plain, 1))
    assert plain.take_spans() == []


@pytest.mark.parametrize("threads", [0, 2])
def test_tensor_files(tmp_path, threads):
    tensor_files(tmp_path, 20, (3, 5))
    names = [f"{number:02}" for number in range(20)]
    pool = pool_of(_native.TensorFileFiller(table_of(tmp_path, *names)), threads=threads)
    pool.retire(fill(pool, 20, _native.Spec("float32", [3, 5])))
    # A thread reads its first file aside, and the others, which look alike, straight into their rows.
    found = samples(pool)
    assert 1 <= found.pop("write") <= threads + 1 and found == {"open": 20, "read": 20, "check": 20}
    # Rows of another shape: the elements are neither read on their own nor checked.
    pool.retire(fill(pool, 20, _native.Spec("float32", [5, 3])))
    assert samples(pool)["open"] == 40 and samples(pool)["check"] == 20


def test_tensor_files_in_parts(tmp_path):
    """A file of over 1 MiB is read in parts; what is not in C order is read aside and copied."""
    for name, tensor in {"a": torch.zeros(400, 1000), "b": torch.zeros(1000, 400).t()}.items():
        torch.save(tensor, tmp_path / f"{name}.pt")
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(torch.zeros(400, 1000), tmp_path / "c.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    pool = pool_of(_native.TensorFileFiller(table_of(tmp_path, "a", "b", "c")))
    pool.retire(fill(pool, 3, _native.Spec("float32", [400, 1000])))
    assert samples(pool) == {"open": 3, "read": 3, "check": 2, "write": 1}


GEOMETRIES = pytest.mark.parametrize(
    ("geometry", "stages"), [(v2.CenterCrop(8), ["convert"]), (v2.Resize((8, 8)), ["convert", "resize"])]
)


@pytest.mark.parametrize("threads", [0, 2])
@GEOMETRIES
def test_image_files(tmp_path, threads, geometry, stages):
    names = files(tmp_path, {f"{i}.jpg": Image.new("RGB", (16, 16)) for i in range(10)})
    pool = pool_of(_native.ImageFileFiller(None, converting(geometry), 0), threads=threads)
    pool.retire(fill(pool, 10, PIXELS, names))
    assert samples(pool) == dict.fromkeys(["open", "read", "decode", *stages], 10)


@GEOMETRIES
def test_images_in_memory(geometry, stages):
    pool = pool_of(_native.ImageArrayFiller(np.zeros((300, 16, 16, 3), np.uint8), converting(geometry)), threads=2)
    pool.retire(fill(pool, 300, PIXELS))
    assert samples(pool) == dict.fromkeys(stages, 300)


def test_what_fails_and_what_python_decodes(tmp_path):
    image = Image.new("RGB", (16, 16))
    names = files(tmp_path, {"a.jpg": image, "b.png": image, "c.jpg": image})
    (tmp_path / "c.jpg").unlink()
    pool = pool_of(_native.ImageFileFiller(None, converting(v2.Resize((8, 8))), 0))
    number = fill(pool, 3, PIXELS, names)  # with no threads, all that is native is done when run_here() returns
    counted = {"open": 2, "read": 2, "decode": 1, "resize": 1, "convert": 1}
    assert samples(pool) == counted
    job: Any = pool.take_python(False)
    assert pool.finish_pixels(job, np.asarray(image)) is None
    assert [failure[2] for failure in pool.retire(number)] == ["io"]
    assert samples(pool) == counted | {"resize": 2, "convert": 2}


def test_only_a_filler_of_images_takes_pixels(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"nothing")
    pool = pool_of(_native.TensorFileFiller(table_of(tmp_path, "a")))
    fill(pool, 1, PIXELS)
    job: Any = pool.take_python(False)
    assert pool.finish_pixels(job, np.zeros((8, 8, 3), np.uint8)) == "not an image field"
    pool.fail_python(job)


@pytest.mark.parametrize("threads", [1, 3])
def test_seconds_are_those_of_the_threads(tmp_path, threads):
    noise = np.random.default_rng(0).integers(0, 256, (125, 500, 3), dtype=np.uint8)
    names = files(tmp_path, {"a.jpg": Image.fromarray(noise).resize((1000, 1000))})
    began = time.perf_counter()
    pool = pool_of(_native.ImageFileFiller(None, converting(v2.Resize((8, 8))), 0), threads=threads)
    for _ in range(3):
        pool.retire(fill(pool, 4, PIXELS, names * 4))
    pool.close()
    wall = time.perf_counter() - began
    found = {name: seconds for name, seconds, *_ in pool.stages()}
    assert all(seconds > 0 for seconds in found.values()) and found["decode"] > found["open"]
    assert sum(found.values()) <= (threads + 1) * wall  # run_here is the one more


def test_any_thread_may_look_while_others_work():
    pool, stop = pool_of(gathering(4096), threads=2), threading.Event()
    seen = [0]

    def look():
        while not stop.is_set():
            seen.append(samples(pool).get("gather", 0))

    looker = threading.Thread(target=look)
    looker.start()
    for _ in range(200):
        pool.retire(fill(pool, 4096))
    stop.set()
    looker.join()
    assert seen == sorted(seen) and samples(pool) == {"gather": 200 * 4096}
