"""Waking the task that waits for a connection's bytes at the moment when they come.

`Future.set_result` lets a task go on in the next turn of the event loop. A small request waits twice, for its body and
for its answer, and took four turns for that. A `Bell` that is rung where no task runs, as in a protocol's
`data_received`, runs the task to its next wait before it returns: two turns are left. Not here: what is waited for.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context


class Bell:
    """Lets one task wait, again and again: `await bell`, which `ring` or `ring_now` ends.

    Tasks take it for a future, because it has the attribute by which `asyncio.isfuture` knows one, and these methods.
    """

    __slots__ = ("_asyncio_future_blocking", "_context", "_is_cancelled", "_loop", "_wake_up")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        self._wake_up: Callable[[Bell], object] | None = None  # while the task waits, and nothing has ended that
        self._context: Context | None = None
        self._is_cancelled = False

    def ring_now(self) -> None:
        """Let the task that waits go on at once. Whatever it does is done when this returns, so call it last."""
        wake_up, context = self._wake_up, self._context
        if wake_up is None or context is None:
            return
        if asyncio.current_task(self._loop) is not None:  # two tasks cannot run at the same time
            self.ring()
            return
        self._wake_up = None
        context.run(wake_up, self)

    def ring(self) -> None:
        """Let the task that waits go on in the next turn of the event loop."""
        wake_up, self._wake_up = self._wake_up, None
        if wake_up is not None:
            self._loop.call_soon(wake_up, self, context=self._context)

    def __await__(self) -> Generator["Bell", None, None]:
        self._is_cancelled = False
        self._asyncio_future_blocking = True
        yield self  # the task asks for the `result` before it goes on, and raises here what that raises

    # What a task asks of a future

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """See asyncio."""
        return self._loop

    def add_done_callback(self, wake_up: Callable[["Bell"], object], *, context: Context) -> None:
        """The task waits, and *wake_up* lets it go on."""
        self._wake_up, self._context = wake_up, context

    def cancel(self, msg: object = None) -> bool:
        """The task is cancelled; False if it goes on already, or does not wait."""
        if self._wake_up is None:
            return False
        self._is_cancelled = True
        self.ring()
        return True

    def result(self) -> None:
        """Raises `CancelledError` if waiting has ended by that."""
        if self._is_cancelled:
            raise asyncio.CancelledError
