"""The answers of worker processes, as their parent takes them: pinned by a thread, and errors in torch's words."""

from __future__ import annotations

import errno
import queue
import threading
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils.pin_memory import _pin_memory_loop

from penstock.carriers.pipes import Answer, Receivers
from penstock.carriers.post_mortem import note_space
from penstock.carriers.protocol import Status
from penstock.sample_notes import add_note
from penstock.showing import said
from penstock.system.process_events import at_fork

_OUT_OF_FILES = (  # in torch's words
    "Too many open files. Communication with the workers is no longer possible. Please increase the limit using "
    "`ulimit -n` in the shell or change the sharing strategy by calling "
    "`torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code"
)


class PinnedAnswers:
    """Has torch's thread take the answers and pin the batches."""

    def __init__(self, receivers: Receivers) -> None:
        self._receivers, self._done = receivers, threading.Event()
        self._pinned: queue.Queue[tuple[Any, Any]] = queue.Queue()
        device, accelerator = torch.accelerator.current_accelerator(), torch.accelerator
        index = getattr(accelerator, "current_device_index", None) or accelerator.current_device_idx  # torch 2.6
        source, name = _Source(receivers, self._done), device and device.type
        given = source, self._pinned, index(), self._done, name
        self.thread = threading.Thread(target=_pin, args=given, daemon=True)
        at_fork(before=_PINNING.acquire, after_in_parent=_PINNING.release, after_in_child=_PINNING.release)
        self.thread.start()

    def get(self, seconds: float) -> Answer | None:
        """As `Receivers.get`."""
        try:
            answer, pinned = self._pinned.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(pinned, ExceptionWrapper):  # it could not be pinned
            return Answer(answer.worker, Status.ERROR, answer.number, pinned)
        if answer.kind == Status.BATCH:
            answer.value = pinned
        found: Answer = answer
        return found

    def waiting(self) -> list[Answer]:
        """Return the answers that have come and are pinned, which `get` returns one by one."""
        with self._pinned.mutex:
            return [answer for answer, _ in self._pinned.queue]

    def close(self) -> None:
        """Take no more answers."""
        self._done.set()
        self._receivers.stop()
        if self.thread is not threading.current_thread():  # which a garbage collection may have chosen
            self.thread.join()
        self._receivers.close()


#: Held by the threads that pin, one at a time, while they are in torch, and by who forks. A fork while another thread
#: holds a lock of libc, as the first call of torch.set_num_threads() and page-locking do, leaves it taken in the child.
_PINNING = threading.RLock()  # which only its owner releases: a signal may end the wait of who forks


def _pin(source: _Source, pinned: Any, *given: Any) -> None:
    """Pin batches as torch's thread does: out of torch it is only where it waits for a batch."""
    _PINNING.acquire()
    source.holds = True
    try:
        _pin_memory_loop(source, pinned, *given)
    finally:
        if source.holds:
            _PINNING.release()


class _Source:
    """The queue that torch's pinning thread takes batches from: it pins the second item of a pair."""

    holds = False
    """The thread holds _PINNING."""

    def __init__(self, receivers: Receivers, done: threading.Event) -> None:
        self._receivers, self._done = receivers, done

    def get(self, timeout: float) -> tuple[Answer, Any]:
        self.holds = False
        _PINNING.release()
        try:
            answer = self._receivers.get(timeout)
        except OSError:  # the pipes are closed
            if not self._done.is_set():
                raise
            answer = None
        finally:
            _PINNING.acquire()
            self.holds = True
        if answer is None:
            raise queue.Empty
        value = None
        if answer.kind == Status.BATCH:
            value, answer.value = answer.value, None
        return answer, value


def readable(error: Exception) -> Exception:
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
