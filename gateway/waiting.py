"""Lets a task wait for bytes of a connection and go on in the same turn of the event loop.

A future wakes its task in the next turn. For a small request this costs two extra turns, and a turn takes a tenth of
the gateway's whole time for such a request. A `Waiter` runs the next step of its task at once, inside of the protocol's
`data_received`.

asyncio lets a task await any object with the attributes and methods of a future (`asyncio.isfuture`), and the object
decides when it calls the task back. With TLS, tasks go on in the next turn: asyncio's TLS calls `data_received` in the
middle of its own work, and must not find the connection ended by a task when the call returns.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Waiter:
    """Waits once, on behalf of one task, and has no result. Cancelling the task cancels it."""

    _asyncio_future_blocking = False  # asyncio recognizes futures by this name, and sets it
    _callback: Callable[[Any], object] | None = None  # set with the context in which it runs
    _context: Context
    _is_done = False
    _is_cancelled = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop  # asyncio looks for this name to learn the future's event loop

    def __await__(self) -> Generator["Waiter", None, None]:
        if not self._is_done:
            self._asyncio_future_blocking = True
            yield self  # asyncio asks for the result before the task goes on

    def wake(self) -> None:
        """End the wait: the task goes on before this returns, or in the next turn if another task runs now."""
        if self._is_done or self._callback is None or asyncio.current_task(self._loop) is not None:
            self.wake_soon()
            return
        self._is_done = True
        self._context.run(self._callback, self)

    def wake_soon(self) -> None:
        """End the wait, but let the task go on in the next turn: for callers that have more to do first."""
        if not self._is_done:
            self._is_done = True
            if self._callback is not None:
                self._loop.call_soon(self._callback, self, context=self._context)

    # The methods that asyncio calls on a future

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        """Remember *callback*, which runs the next step of the task that waits from now on."""
        self._callback, self._context = callback, context

    def result(self) -> None:
        """Raise `asyncio.CancelledError` if the task was cancelled while it waited."""
        if self._is_cancelled:
            raise asyncio.CancelledError

    def cancel(self, msg: object = None) -> bool:
        """Cancel the wait: the task learns it in the next turn. False if the task is about to go on anyway."""
        if self._is_done:
            return False
        self._is_cancelled = True
        self.wake_soon()
        return True


def wake_soon(waiter: Waiter | None) -> None:
    """Let the task that awaits *waiter* go on in the next turn of the event loop, if there is one."""
    if waiter is not None:
        waiter.wake_soon()
