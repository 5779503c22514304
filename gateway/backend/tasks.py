"""Tasks that run beside the requests: look-ups, probes, questions."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("gateway")


class Tasks(set["asyncio.Task[Any]"]):
    """The tasks that run now; a task that ends is forgotten, and a defect that ended it is logged."""

    def begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run *work* in a task."""
        task = asyncio.ensure_future(work)
        self.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work beside the requests failed inside the gateway", exc_info=error)

    async def close(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in self:
            task.cancel()
        await asyncio.gather(*self, return_exceptions=True)
