"""How a task waits for what a connection brings, and goes on in the same turn of the event loop.

A future wakes its task in the next turn. For a small request that is two turns more than there are bytes to read, and a
turn costs as much as a tenth of all that the gateway does for such a request. A `Waiter` runs the next step of its task
at once, inside of the protocol's `data_received`.

asyncio lets a task await whatever has the attribute and the methods of a future (`asyncio.isfuture`), and such an
object decides itself when it calls back. Behind TLS, tasks go on in the next turn: asyncio's TLS calls `data_received`
in the middle of its own work, and a task that ended the connection there would end it under its hands.

Not here: who waits for what (`client`, `backend`).
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Waiter:
    """Waits once for one thing, on behalf of one task. It gives nothing; cancelling the task cancels it."""

    __slots__ = ("_asyncio_future_blocking", "_callback", "_context", "_is_cancelled", "_is_done", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False  # by this name asyncio knows a future, and that it is being awaited
        self._callback: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self._is_done = False
        self._is_cancelled = False

    def __await__(self) -> Generator["Waiter", None, None]:
        if not self._is_done:
            self._asyncio_future_blocking = True
            yield self
        self.result()

    def wake(self) -> None:
        """The thing is there: whoever waits goes on before this returns, or in the next turn if a task runs now."""
        if self._is_done:
            return
        self._is_done = True
        callback, context = self._callback, self._context
        if callback is None:
            return
        assert context is not None
        if asyncio.current_task(self._loop) is None:
            context.run(callback, self)
        else:
            self._loop.call_soon(callback, self, context=context)

    def wake_soon(self) -> None:
        """As `wake`, but in the next turn: for callers that have more to do first."""
        if not self._is_done:
            self._is_done = True
            if self._callback is not None:
                self._loop.call_soon(self._callback, self, context=self._context)

    # What asyncio asks of a future

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the task that may wait."""
        return self._loop

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        """The task waits from now on; *callback* runs its next step."""
        self._callback, self._context = callback, context

    def result(self) -> None:
        """Raises `asyncio.CancelledError` if the task was cancelled while it waited."""
        if self._is_cancelled:
            raise asyncio.CancelledError

    def cancel(self, msg: object = None) -> bool:
        """The task is cancelled: it finds out in the next turn. False if it is about to go on anyway."""
        if self._is_done:
            return False
        self._is_cancelled = True
        self.wake_soon()
        return True


def wake(waiter: Waiter | None) -> None:
    """Let whoever awaits *waiter* go on at once, if anybody still does."""
    if waiter is not None:
        waiter.wake()


def wake_soon(waiter: Waiter | None) -> None:
    """Let whoever awaits *waiter* go on in the next turn of the event loop, if anybody still does."""
    if waiter is not None:
        waiter.wake_soon()
