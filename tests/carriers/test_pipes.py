"""The pipes between a loader and its worker processes."""

from __future__ import annotations

import os
import pickle
import select
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Pipe
from typing import Any

import pytest

import penstock
from penstock.carriers.pipes import NO_MESSAGE, Receiver, Sender
from tests.data import Made
from tests.same import assert_passes

SMALL, LARGE, HUGE = 10, select.PIPE_BUF, 300_000


@pytest.fixture
def ends() -> Iterator[tuple[Sender, Receiver]]:
    reader, writer = Pipe(duplex=False)
    sender, receiver = Sender(writer), Receiver(reader)
    yield sender, receiver
    receiver.close()
    sender.close()


@pytest.mark.parametrize(
    "sizes",
    [[SMALL] * 5, [LARGE, SMALL], [HUGE, SMALL, LARGE, SMALL], [SMALL, HUGE, SMALL], [400] * 1000],
    ids=["small", "large", "huge", "small and huge", "several times what a pipe holds"],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_messages_come_whole_and_in_order(ends: Any, sizes: list[int], at_once: bool) -> None:
    sender, receiver = ends
    sent = [(number % 256, -number, bytes([number % 256]) * size) for number, size in enumerate(sizes)]
    for one in sent:
        sender.send(*one, at_once=at_once)
    sender.send(0, 1, "behind them")
    found = [receiver.get() for _ in range(len(sent) + 1)]
    assert [(kind, number, message.value) for message in found for kind, number, _ in [message]] == [
        *sent,
        (0, 1, "behind them"),
    ]


@pytest.mark.parametrize("size", [SMALL, LARGE, HUGE])
def test_what_is_changed_behind_send_reaches_nobody(ends: Any, size: int) -> None:
    sender, receiver = ends
    sent = [0] * size
    sender.send(0, 0, sent)
    sent[:] = [1] * size
    assert receiver.get().value == [0] * size


def test_a_message_that_cannot_be_pickled_is_an_error_of_send(ends: Any) -> None:
    sender, receiver = ends
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):  # the last from Python 3.14 on
        sender.send(0, 0, lambda: None)
    sender.send(0, 0, "the next one")
    assert receiver.get().value == "the next one"


def test_what_is_unsent_is_sent_before_the_end_where_that_is_asked_for(ends: Any) -> None:
    sender, receiver = ends
    sender.send(0, 0, bytes(HUGE))
    closing = threading.Thread(target=sender.close, kwargs={"unsent": True})
    closing.start()
    assert len(receiver.get().value) == HUGE
    closing.join()
    with pytest.raises(EOFError):
        receiver.get()


def test_nobody_waits_for_a_reader_that_is_gone(ends: Any) -> None:
    sender, receiver = ends
    receiver.close()
    sender.send(0, 0, bytes(HUGE))
    sender.close(unsent=True)
    assert sender.broken


def test_bytes_that_are_no_message_are_said_to_be_none() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"\xff" * 100)
    with os.fdopen(reader, "rb") as file:
        assert Receiver(file).get() is NO_MESSAGE
    os.close(writer)


def text(index: int) -> str:
    return str(index) * (SMALL, LARGE, HUGE)[index % 3]


@pytest.mark.parametrize(("context", "persistent"), [("fork", False), ("fork", True), ("spawn", True)])
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
