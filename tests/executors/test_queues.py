"""The queues between a loader and its worker processes."""

from __future__ import annotations

import queue
import select
from collections.abc import Iterator
from typing import Any

import pytest
import torch.multiprocessing
from torch.utils.data import DataLoader

import penstock
from penstock.executors.workers.queues import WorkerQueue

SMALL, LARGE, HUGE = 10, select.PIPE_BUF, 300_000


@pytest.fixture
def messages() -> Iterator[WorkerQueue]:
    made = WorkerQueue(ctx=torch.multiprocessing.get_context())
    yield made
    made.cancel_join_thread()
    made.close()


@pytest.mark.parametrize("sizes", [[SMALL] * 5, [LARGE, SMALL], [HUGE, SMALL, LARGE, SMALL], [SMALL, HUGE, SMALL]])
def test_messages_come_whole_and_in_order(messages: WorkerQueue, sizes: list[int]) -> None:
    sent = [bytes([number]) * size for number, size in enumerate(sizes)]
    for one in sent:
        messages.put(one)
    assert [messages.get(timeout=20) for _ in sent] == sent
    with pytest.raises(queue.Empty):
        messages.get(timeout=0.01)


def test_a_full_pipe_keeps_nobody(messages: WorkerQueue) -> None:
    sent = [(number, "text" * 100) for number in range(1000)]  # several times what a pipe holds
    for one in sent:
        messages.put(one)
    assert [messages.get(timeout=20) for _ in sent] == sent
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


class Texts:
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> str:
        return str(index) * (SMALL, LARGE, HUGE)[index % 3]


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_of_all_sizes(context: str, persistent: bool) -> None:
    options: dict[str, Any] = dict(num_workers=2, multiprocessing_context=context, persistent_workers=persistent)
    texts: Any = Texts()
    ours: Any = penstock.DataLoader(texts, batch_size=None, **options)
    theirs: Any = DataLoader(texts, batch_size=None, **options)
    for _ in range(2):
        assert list(ours) == list(theirs)
