"""The life of a lease, which is the right to a block of shared memory for one batch: states by events.

A lease is reserved by the parent, sent in a task to a worker process that fills the block, and received with the batch.
It ends with the last object that holds it: the record of the task, or a tensor on the block, in whatever thread that
is. How it ends says whether the block is used again. Pure: nothing here knows of memory, processes or torch.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Who may touch the block of a lease."""

    RESERVED = "reserved"
    """Nobody yet: no task names the block."""
    SENT = "sent"
    """A worker may write to it."""
    RECEIVED = "received"
    """The parent's tensors, and nobody else: the worker has finished with it."""
    RETIRED = "retired"
    """Somebody who gives no notice: the block is never used again."""


class Event(Enum):
    """What happens to a lease."""

    SEND = "send"
    """A task names the block."""
    RECEIVE = "receive"
    """The batch of the task has come, or its error."""
    KEEP = "keep"
    """The code of the user's in the worker has kept a part of the block."""
    FORK = "fork"
    """The parent process has forked: the child has its tensors, too."""


_NEXT = {
    State.RESERVED: {Event.SEND: State.SENT, Event.FORK: State.RESERVED},
    State.SENT: {Event.RECEIVE: State.RECEIVED, Event.KEEP: State.RETIRED, Event.FORK: State.SENT},
    State.RECEIVED: {Event.RECEIVE: State.RECEIVED, Event.KEEP: State.RETIRED, Event.FORK: State.RETIRED},
    State.RETIRED: {Event.RECEIVE: State.RETIRED, Event.KEEP: State.RETIRED, Event.FORK: State.RETIRED},
}
#: States in which the end of a lease frees its block. A worker may still write to one that ends in another state: of a
#: pass that was left, or whose worker was lost.
FREES = frozenset({State.RESERVED, State.RECEIVED})


def state_after(state: State, event: Event, name: object) -> State:
    """Return the state that follows an event. name: of the lease, for the error. Raises RuntimeError."""
    following = _NEXT[state].get(event)
    if following is None:
        raise RuntimeError(f"{name} is {state.value}: it cannot {event.value}")
    return following
