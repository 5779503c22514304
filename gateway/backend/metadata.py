"""What backends say of their models (`GET` on a model), asked rarely.

Needed for raw binary requests and for promoted outputs. An answer lives for a short time; requests that need the same
one at the same time wait for one call. Not here: what it means (`codec/raw.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable

LIFE_S = 30.0
"""How long an answer is believed."""

MAX_ANSWERS = 1000
"""The most that are kept."""

Key = tuple[str, str, str]
"""Backend, raw path of the model, and the client's `Authorization`: what one client may read is not for others."""


class ModelMetadata:
    """Answers by model and version, each asked for once in its life."""

    def __init__(self) -> None:
        self._answers: dict[Key, tuple[float, asyncio.Task[bytes]]] = {}

    async def get(self, key: Key, fetch: Callable[[], Awaitable[bytes]]) -> bytes:
        """The answer for *key*, from *fetch* unless it is known or on its way. Raises what *fetch* raises."""
        now = asyncio.get_running_loop().time()
        known = self._answers.get(key)
        if known is None or known[0] <= now:
            self._answers.pop(key, None)
            while len(self._answers) >= MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
            task = asyncio.ensure_future(_call(fetch))
            task.add_done_callback(lambda done: self._settle(key, done))
            known = self._answers[key] = (now + LIFE_S, task)
        # shielded: a client that leaves must not take the answer away from the others
        return await asyncio.shield(known[1])

    def forget(self, backend: str, model_path: str) -> None:
        """Forget all versions of a model: it was loaded or unloaded."""
        for key in list(self._answers):
            if key[0] == backend and f"{key[1]}/".startswith(f"{model_path}/"):
                del self._answers[key]

    def _settle(self, key: Key, task: asyncio.Task[bytes]) -> None:
        failed = task.cancelled() or task.exception() is not None
        if failed and self._answers.get(key, (0, None))[1] is task:
            del self._answers[key]

    async def close(self) -> None:
        """Cancel what is on its way."""
        for _, task in self._answers.values():
            task.cancel()
        self._answers.clear()


async def _call(fetch: Callable[[], Awaitable[bytes]]) -> bytes:
    return await fetch()
