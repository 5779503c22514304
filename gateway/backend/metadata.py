"""What backends say about their models (`GET` on a model).

Raw binary requests need it, and promoted outputs. An answer is kept for a short time, for clients that send the same
headers; requests that need the same answer at the same time wait for one call. Not here: what it means (`codec`).
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

LIFE_S = 30.0
"""How long an answer is kept."""

MAX_ANSWERS = 1000
"""How many answers are kept."""

MAX_BYTES = 1024 * 1024
"""How much metadata, of a server (`GET /v2`) or of a model, is read."""

Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""Backend, raw path of the model, and the headers of the question: what one client may read is not for all."""


def is_worth_keeping(status: int, text: bytes) -> bool:
    """Whether other requests may use this answer: a 200 that holds a JSON object."""
    if status != 200:
        return False
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


class ModelMetadata:
    """Answers by model, version and headers; each is asked for once in `LIFE_S`."""

    def __init__(self) -> None:
        self._answers: dict[Key, tuple[float, asyncio.Task[tuple[bytes, bool]]]] = {}

    async def get(self, key: Key, fetch: Callable[[], Awaitable[tuple[bytes, bool]]]) -> bytes:
        """The answer for *key*, from *fetch* unless it is known or on its way. Raises what *fetch* raises.

        *fetch* gives the text and whether it is worth keeping.
        """
        now = asyncio.get_running_loop().time()
        known = self._answers.get(key)
        if known is None or known[0] <= now:
            self._answers.pop(key, None)
            while len(self._answers) >= MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
            task = asyncio.ensure_future(_call(fetch))
            task.add_done_callback(lambda done: self._forget_if_useless(key, done))
            known = self._answers[key] = (now + LIFE_S, task)
        # shielded: a client that leaves must not take the answer away from the others
        text, _ = await asyncio.shield(known[1])
        return text

    def forget(self, backend: str, model_path: str) -> None:
        """Forget all versions of a model: it was loaded or unloaded."""
        for key in list(self._answers):
            if key[0] == backend and f"{key[1]}/".startswith(f"{model_path}/"):
                del self._answers[key]

    def _forget_if_useless(self, key: Key, task: asyncio.Task[tuple[bytes, bool]]) -> None:
        is_useless = task.cancelled() or task.exception() is not None or not task.result()[1]
        if is_useless and self._answers.get(key, (0, None))[1] is task:
            del self._answers[key]

    async def close(self) -> None:
        """Cancel what is on its way."""
        for _, task in self._answers.values():
            task.cancel()
        self._answers.clear()


async def _call(fetch: Callable[[], Awaitable[tuple[bytes, bool]]]) -> tuple[bytes, bool]:
    return await fetch()
