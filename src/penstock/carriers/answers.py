"""The answers of worker processes, as their parent takes them: at once, or from torch's thread that pins batches."""

from __future__ import annotations

import errno
import queue
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils.pin_memory import _pin_memory_loop, pin_memory

from penstock.carriers.pipes import Receivers
from penstock.carriers.post_mortem import note_space
from penstock.carriers.protocol import Status
from penstock.sample_notes import add_note
from penstock.showing import said

_OUT_OF_FILES = (  # in torch's words
    "Too many open files. Communication with the workers is no longer possible. Please increase the limit using "
    "`ulimit -n` in the shell or change the sharing strategy by calling "
    "`torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code"
)

#: The kind of an answer that tells that the process of its worker has ended.
ENDED = -2


@dataclass(slots=True)
class Answer:
    """A message of a worker, unpickled."""

    worker: int
    kind: int
    """A Status, if it is in order."""
    number: int = -1
    value: Any = None
    error: Exception | None = None
    """What unpickling the value raised."""

    def pin_memory(self) -> Answer:
        """Pin the batch: torch's pinning thread calls this."""
        if self.kind == Status.BATCH and self.error is None:
            self.value = pin_memory(self.value)  # type: ignore[no-untyped-call]
        return self


class Answers:
    """Takes the answers in the thread that waits for them."""

    thread: threading.Thread | None = None
    """That pins the batches."""

    def __init__(self, receivers: Receivers) -> None:
        self._receivers = receivers

    def get(self, seconds: float) -> Answer | None:
        """Return the next answer; None: none came within so many seconds."""
        came = self._receivers.get(seconds)
        if came is None:
            return None
        worker, message = came
        if message is None:
            return Answer(worker, ENDED)
        answer = Answer(worker, message.kind, message.number)
        try:
            answer.value = message.value
        except Exception as error:
            answer.error = _readable(error)
        return answer

    def stop(self) -> None:
        """Take no more answers."""
        self._receivers.close()


class PinnedAnswers:
    """Has torch's thread take the answers and pin the batches."""

    def __init__(self, receivers: Receivers) -> None:
        self._receivers, self._answers = receivers, Answers(receivers)
        self._done = threading.Event()
        self._pinned: queue.Queue[tuple[Any, Any]] = queue.Queue()
        device, accelerator = torch.accelerator.current_accelerator(), torch.accelerator
        index = getattr(accelerator, "current_device_index", None) or accelerator.current_device_idx  # torch 2.6
        given = _Source(self._answers, self._done), self._pinned, index(), self._done, device and device.type
        self.thread = threading.Thread(target=_pin_memory_loop, args=given, daemon=True)
        self.thread.start()

    def get(self, seconds: float) -> Answer | None:
        """As `Answers.get`."""
        try:
            key, found = self._pinned.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(found, ExceptionWrapper):  # it could not be pinned
            worker, number = key
            return Answer(worker, Status.ERROR, number, found)
        answer: Answer = found
        return answer

    def stop(self) -> None:
        self._done.set()
        self._receivers.stop()
        if self.thread is not threading.current_thread():  # which a garbage collection may have chosen
            self.thread.join()
        self._receivers.close()


class _Source:
    """The queue that torch's pinning thread takes batches from."""

    def __init__(self, answers: Answers, done: threading.Event) -> None:
        self._answers, self._done = answers, done

    def get(self, timeout: float) -> tuple[tuple[int, int], Answer]:
        try:
            answer = self._answers.get(timeout)
        except OSError:  # the pipes are closed
            if not self._done.is_set():
                raise
            answer = None
        if answer is None:
            raise queue.Empty
        return (answer.worker, answer.number), answer


def _readable(error: Exception) -> Exception:
    """Return the error of a message that could not be read; where that lacks descriptors, in torch's words."""
    if getattr(error, "errno", None) != errno.EMFILE and "items of ancdata" not in said(error):
        return error
    made = RuntimeError(_OUT_OF_FILES)  # in the middle of a message, or before it
    made.__cause__ = error
    return made


def error_of(sent: ExceptionWrapper) -> Exception:
    """Return torch's error for one of a worker's."""
    try:
        sent.reraise()  # type: ignore[no-untyped-call]
    except Exception as error:
        return _told(error, sent)
    raise AssertionError("it is an error")


def _told(error: Exception, sent: ExceptionWrapper) -> Exception:
    """Return torch's error; another where its class is lost, with a note where its words are."""
    kind: type[Exception] = sent.exc_type
    text: str = sent.exc_msg
    words = f"Caught {kind.__name__} {sent.where}.\nOriginal {text}"
    if isinstance(error, kind) and not isinstance(error, StopIteration):
        if not any(shown in said(error) for shown in (text, repr(text)[1:-1])):  # a KeyError has its repr()
            add_note(error, words)
    # Its class may take other arguments than torch gave, and a StopIteration would end the pass.
    elif isinstance(error, StopIteration) or text not in said(error):
        error = RuntimeError(words)
    note_space(error)
    return error
