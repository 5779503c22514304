"""Tasks that run beside the requests: look-ups, probes, questions."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks(set["asyncio.Task[Any]"]):
    """The tasks that run now; a task that ends is forgotten."""

    def begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run *work* in a task."""
        task = asyncio.ensure_future(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def close(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in self:
            task.cancel()
        await asyncio.gather(*self, return_exceptions=True)
