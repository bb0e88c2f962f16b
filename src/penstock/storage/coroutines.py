"""Coroutines that are waited for by threads that may have an event loop already."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_alone(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, run in a thread of its own, because the caller's may have an event loop."""
    outcome: list[T] = []
    failed: list[BaseException] = []
    done = threading.Event()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def main() -> None:
        task = asyncio.ensure_future(work)
        running.append((asyncio.get_running_loop(), task))
        outcome.append(await task)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="penstock-fetch", daemon=True)
    thread.start()
    try:
        while not done.wait(0.05):  # in slices, in which Ctrl-C is seen
            pass
    except BaseException:
        if running:
            loop, task = running[0]
            loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        thread.join(timeout=2.0)
    if failed:
        raise failed[0]
    return outcome[0]
