"""Actors of a Ray cluster that work on tasks, as fillers or packers: what a lost one had is given to others."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.cluster.connection import Facts, check, no_place
from penstock.cluster.option import Ray
from penstock.errors import ClusterError, WorkerDied
from penstock.sample_notes import add_note
from penstock.system.warn_user import warn_user
from penstock.system.words import counted

#: How often a task may be lost with its actor, and how often in a row actors may fail to start.
_LOSSES, _STARTS = 3, 3
#: Seconds of one wait for Ray, in whose end Ctrl-C is seen; and for which the others are waited for once one is there.
_LOOK, _OTHERS = 0.5, 5.0


@dataclass(eq=False)
class Member:
    """An actor."""

    number: int
    actor: Any
    asked: dict[Any, int | None]
    """What it was asked and has not answered, oldest first: Ray's reference to each answer, and the task's key; None:
    whether it is fit for the work."""
    facts: Facts | None = None
    """Once it is at work."""


class Crew:
    """Actors, and tasks that any of them can do. One thread at a time; an interrupt, in any line, loses no task.

    The class of the actors is made with a number. Its `open(*arguments)` returns Facts, and `work(*task)` an answer.

    Args:
        ray: Ray's module, connected.
        cluster: what each actor takes.
        kind: the class of the actors.
        what: an actor is called.
        doing: returns what an actor did with the task of a key, for the error of one that ends its actors.
        each: tasks that an actor has at a time.

    Attributes:
        answers: by the key of the task, as they came; WorkerDied of a task that ends its actors.
        members: the actors, not all of which are at work.
        lost: actors that were at work and ended.
        again: tasks that were given to another actor.
    """

    def __init__(
        self,
        ray: Any,
        cluster: Ray,
        kind: type,
        arguments: tuple[Any, ...],
        count: int,
        *,
        what: str,
        doing: Callable[[int], str],
        each: int = 1,
    ) -> None:
        self._ray, self._cluster, self._kind, self._arguments = ray, cluster, kind, arguments
        self._count, self._what, self._doing, self._each = count, what, doing, each
        self.answers: dict[int, Any] = {}
        self.members: list[Member] = []
        self.lost = self.again = 0
        self._tasks: dict[int, tuple[Any, ...]] = {}
        self._waiting: deque[int] = deque()
        self._losses: dict[int, int] = {}
        self._hired = self._failures = 0
        self._none_since: float | None = time.monotonic()  # no actor is at work
        self._pid, self._closed = os.getpid(), False

    @property
    def at_work(self) -> list[Member]:
        return [member for member in self.members if member.facts is not None]

    def start(self) -> None:
        """Wait until the actors are at work, or some are and the others are late. Raises as `take`."""
        deadline: float | None = None
        while (live := len(self.at_work)) < self._count:
            if live and time.monotonic() > (deadline := deadline or time.monotonic() + _OTHERS):
                warn_user(
                    f"{live} of {counted(self._count, self._what)} started: each needs {self._cluster.demand()} of "
                    "the Ray cluster, and the others will start when the cluster has that much free"
                )
                return
            self.take(_LOOK)

    def give(self, key: int, *task: Any) -> None:
        """Add a task, once however often it is given."""
        if key not in self._tasks and key not in self.answers:
            self._waiting.append(key)
            self._tasks[key] = task
        self._assign()

    def forget(self, *keys: int) -> None:
        """Drop tasks and their answers, of all keys where none is given. What an actor has begun it ends."""
        for key in keys or (*self._tasks, *self.answers):
            self._tasks.pop(key, None)
            self.answers.pop(key, None)

    def take(self, seconds: float) -> None:
        """Wait for an answer for some seconds, at most half a second, and give out tasks.

        Raises:
            ClusterError: no actor starts; one is not fit for the work; Ray was shut down.
            WorkerDied: all actors were lost, and no other one starts.
            Exception: what an actor raised.
        """
        self._check_open()
        while len(self.members) < self._count:
            number = self._hired
            self._hired += 1
            actor = self._ray.remote(self._kind).options(**self._cluster.placement()).remote(number)
            self.members.append(Member(number, actor, {actor.open.remote(*self._arguments): None}))
        asked = {reference: member for member in self.members for reference in member.asked}
        ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=min(seconds, _LOOK)) if asked else ([], None)
        for reference in ready:
            self._answered(asked[reference], reference)
        self._assign()
        if self._none_since is not None and time.monotonic() - self._none_since > self._cluster.start_timeout:
            error: Exception = no_place(self._ray, self._cluster, self._what)
            raise WorkerDied(f"all {self._what}s of the Ray cluster were lost, and {error}") if self.lost else error

    def close(self) -> None:
        """End the actors. In a forked child they are the parent's, and nothing is done."""
        if os.getpid() == self._pid:
            self._closed = True
            for member in self.members:
                self._kill(member)

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(f"the {self._what}s belong to the parent process of this fork")
        if self._closed or not self._ray.is_initialized():  # asked now, Ray would start a cluster
            raise ClusterError(f"the {self._what}s were ended, or the connection to Ray")

    def _assign(self) -> None:
        self._check_open()
        while self._waiting:
            key = self._waiting[0]
            free = [member for member in self.at_work if len(member.asked) < self._each]
            if key in self._tasks and not free:
                return
            if key in self._tasks:
                member = min(free, key=lambda one: len(one.asked))
                member.asked[member.actor.work.remote(*self._tasks[key])] = key
            self._waiting.popleft()

    def _answered(self, member: Member, reference: Any) -> None:
        who = f"{self._what} {member.number}"
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if member.facts is None:
                raise ClusterError(f"{who} cannot work on its node: {error.cause}") from error
            raised = error.cause if isinstance(error.cause, Exception) else error
            add_note(raised, f"in {who} on {member.facts.place}")
            raise raised from error
        except self._ray.exceptions.RayError as error:
            self._leave(member, error)
            return
        if member.facts is None:
            check(answer, who)
            member.facts, self._failures, self._none_since = answer, 0, None
            del member.asked[reference]
        else:
            self._came(member, reference, answer)

    def _came(self, member: Member, reference: Any, answer: Any) -> None:
        key = member.asked[reference]
        assert key is not None
        if key in self._tasks:  # else nobody waits for it
            self.answers[key] = answer
        del member.asked[reference]
        self._tasks.pop(key, None)
        self._losses.pop(key, None)

    def _leave(self, member: Member, error: Exception) -> None:
        """Have what a lost actor was to do done by others; the oldest of it is what the actor was lost by."""
        why = " ".join(str(error).split())[:400]
        for reference in list(member.asked) if member.facts is not None else ():
            with suppress(self._ray.exceptions.RayError):  # what it had done before is here
                self._came(member, reference, self._ray.get(reference, timeout=0))
        again = [key for key in member.asked.values() if key in self._tasks]
        if again:
            losses = self._losses[again[0]] = self._losses.get(again[0], 0) + 1
            if losses >= _LOSSES:
                key = again.pop(0)
                self.answers[key] = WorkerDied(
                    f"{_LOSSES} {self._what}s ended one after the other while they {self._doing(key)}: one of its "
                    f"samples may end its process. The last one: {why}"
                )
                del self._tasks[key]
        self._waiting.extendleft(reversed(again))
        self.members.remove(member)
        self._kill(member)
        self.again += len(again)
        if member.facts is None:
            self._failures += 1
            if self._failures >= _STARTS:
                what = counted(_STARTS, self._what)
                raise ClusterError(f"{what} failed to start, one after the other: {why}") from error
            return
        self.lost += 1
        if not self.at_work:
            self._none_since = time.monotonic()

    def _kill(self, member: Member) -> None:
        with suppress(Exception):  # it is gone, or Ray is
            if self._ray.is_initialized():
                self._ray.kill(member.actor)
