"""What a program does with batches on a device: CUDA graphs, nn.DataParallel, work that overlaps with the copies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import penstock
from tests.gpu.on_device import DEVICE, numbered, random_words


def test_static_buffers_replayed_in_a_graph() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(96, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
    model = model.to(DEVICE).eval()

    static = torch.zeros(8, 3, 8, 4, device=DEVICE)
    side = torch.cuda.Stream(DEVICE)
    side.wait_stream(torch.cuda.current_stream(DEVICE))
    with torch.no_grad():
        with torch.cuda.stream(side):
            for _ in range(3):
                model(static / 1000)
        torch.cuda.current_stream(DEVICE).wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = static * 2 + 1
            result = model(static / 1000)
        options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 1, "num_workers": 2, "drop_last": True}
        loader = penstock.DataLoader(numbered(64), device="cuda", **options)
        seen: list[torch.Tensor] = []
        for _ in range(3):
            for x, y in loader:
                static.copy_(x)
                graph.replay()
                assert torch.equal(doubled, x * 2 + 1)
                torch.testing.assert_close(result, model(x / 1000), rtol=1e-3, atol=1e-4)
                seen.append(y)
    assert sorted(torch.cat(seen).tolist()) == sorted(3 * list(range(64)))


def test_data_parallel_takes_batches_as_they_are() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(96, 40)).to(DEVICE)
    parallel = torch.nn.DataParallel(network)
    seen = []
    for x, y in penstock.DataLoader(numbered(), batch_size=8, num_workers=2, device="cuda:0"):
        output = parallel(x / 1000)
        assert output.device == DEVICE and output.shape == (len(y), 40)
        torch.nn.functional.cross_entropy(output, y).backward()
        torch.testing.assert_close(output, network(x / 1000), rtol=1e-3, atol=1e-4)
        seen += y.tolist()
    assert seen == list(range(40))


@pytest.mark.parametrize("kind", ["prefetch", "loader"])
def test_copies_overlap_with_kernels(kind: str, tmp_path: Path) -> None:
    words = random_words(16, 4 << 20)
    size = words[0].nbytes
    batches: Any = penstock.prefetch([batch.pin_memory() for batch in words], "cuda")
    if kind == "loader":
        dataset = torch.utils.data.TensorDataset(torch.stack(words))
        batches = penstock.DataLoader(dataset, batch_size=1, num_workers=2, device="cuda")
    weights = torch.randn(4096, 4096, device=DEVICE)
    torch.cuda.synchronize()

    def train() -> None:
        for _batch in batches:
            for _ in range(20):
                torch.mm(weights, weights)
        torch.cuda.synchronize()

    train()  # whatever is set up once
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        train()
    trace.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [event for event in events if event.get("ph") == "X" and event.get("cat") == "kernel"]
    if not kernels:
        pytest.skip("the profiler records nothing of this device")
    copies = [event for event in events if event.get("cat") == "gpu_memcpy" and "HtoD" in event["name"]]
    large = [event for event in copies if int(event["args"]["bytes"]) >= size]
    assert len(large) == len(words) and all("Pinned" in event["name"] for event in large)
    (stream,) = {event["args"]["stream"] for event in large}
    beside = [event for event in kernels if event["args"]["stream"] != stream]
    assert any(overlap(copy, kernel) > 0 for copy in large for kernel in beside)


def overlap(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Return for how many microseconds two events of a trace were under way at once."""
    begin = max(float(a["ts"]), float(b["ts"]))
    end = min(float(a["ts"]) + float(a["dur"]), float(b["ts"]) + float(b["dur"]))
    return end - begin


def test_a_compiled_step_takes_batches() -> None:
    """mode="reduce-overhead" records CUDA graphs, whose memory is a pool's of their own."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(96, 5)).to(DEVICE)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x / 1000), y % 5)

    try:
        compiled: Any = torch.compile(step, mode="reduce-overhead")
        compiled(torch.zeros(8, 3, 8, 4, device=DEVICE), torch.zeros(8, dtype=torch.int64, device=DEVICE)).backward()
    except Exception as error:  # there is no C compiler, or no Triton
        pytest.skip(f"torch.compile does not work here: {type(error).__name__}")
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 1, "num_workers": 2, "drop_last": True}
    for x, y in (batch for _ in range(6) for batch in penstock.DataLoader(numbered(64), device="cuda", **options)):
        torch.compiler.cudagraph_mark_step_begin()
        loss = compiled(x, y)
        torch.testing.assert_close(loss, step(x, y), rtol=1e-4, atol=1e-5)
        loss.backward()
