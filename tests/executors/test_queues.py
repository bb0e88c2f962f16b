"""The queues between a loader and its worker processes."""

from __future__ import annotations

import queue
import select
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch.multiprocessing

import penstock
from penstock.executors.workers.queues import WorkerQueue
from tests.same import assert_passes
from tests.sample_datasets import Made

SMALL, LARGE, HUGE = 10, select.PIPE_BUF, 300_000


@pytest.fixture
def messages() -> Iterator[WorkerQueue]:
    made = WorkerQueue(ctx=torch.multiprocessing.get_context())
    yield made
    made.cancel_join_thread()
    made.close()


@pytest.mark.parametrize(
    "sizes",
    [[SMALL] * 5, [LARGE, SMALL], [HUGE, SMALL, LARGE, SMALL], [SMALL, HUGE, SMALL], [400] * 1000],
    ids=["small", "large", "huge", "small and huge", "several times what a pipe holds"],
)
def test_messages_come_whole_and_in_order(messages: WorkerQueue, sizes: list[int]) -> None:
    sent = [(number, bytes([number % 256]) * size) for number, size in enumerate(sizes)]
    for one in sent:
        messages.put(one)
    assert [messages.get(timeout=20) for _ in sent] == sent
    with pytest.raises(queue.Empty):
        messages.get(timeout=0.01)
    messages.put("behind them")
    assert messages.get(timeout=20) == "behind them"


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_what_is_changed_behind_put_reaches_nobody(messages: WorkerQueue, size: int) -> None:
    sent = [0] * size
    messages.put(sent)
    sent[:] = [1] * size
    assert messages.get(timeout=20) == [0] * size


def test_a_message_that_cannot_be_pickled_is_an_error_of_put(messages: WorkerQueue) -> None:
    with pytest.raises((AttributeError, TypeError)):
        messages.put(lambda: None)
    messages.put("the next one")
    assert messages.get(timeout=20) == "the next one"


def text(index: int) -> str:
    return str(index) * (SMALL, LARGE, HUGE)[index % 3]


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_of_all_sizes(context: str, persistent: bool) -> None:
    options: dict[str, Any] = dict(num_workers=2, multiprocessing_context=context, persistent_workers=persistent)
    assert_passes(penstock.DataLoader(Made(text, 60), batch_size=None, **options), [text(i) for i in range(60)])


def threads_behind_work(index: int) -> int:
    end = time.thread_time() + 2e-3
    while time.thread_time() < end:
        pass
    return threading.active_count()


def test_a_thread_sends_batches_that_take_long() -> None:
    (*_, last) = penstock.DataLoader(Made(threads_behind_work, 8), 1, num_workers=1)
    assert last.item() == 2
