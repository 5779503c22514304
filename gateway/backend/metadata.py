"""What backends say about their models (`GET` on a model).

Raw binary requests need it, promoted outputs, and every request to servers whose answers do not say it. An answer is
kept for a short time, for clients that send the same headers; requests that need the same answer at the same time wait
for one call. Not here: what it means (`codec`).
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec

from gateway.errors import ErrorKind, GatewayError

LIFE_S = 30.0
"""How long an answer is kept."""

MAX_ANSWERS = 1000
"""How many answers are kept."""

MAX_KEPT_BYTES = 16 * 1024 * 1024
"""The most that the answers that are kept and the headers of their questions take together."""

KEPT_BYTES = 1024
"""What keeping one answer takes beside its text and its question."""

MAX_BYTES = 1024 * 1024
"""How much metadata, of a server (`GET /v2`) or of a model, is read."""


T = TypeVar("T")

_LATER = frozenset({408, 425, 429})  # statuses of 4xx that say that the same question may be answered later


class _Object(msgspec.Struct):
    """A JSON object; its members are passed over, not kept."""


_OBJECT = msgspec.json.Decoder(_Object)

Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""Fingerprint of the backend, raw path of the model, and the headers of the question, because what one client may read
is not for all."""


def is_worth_keeping(status: int, text: bytes) -> bool:
    """Whether other requests may use this answer: a 200 that holds a JSON object."""
    if status != 200:
        return False
    try:
        text.decode()  # msgspec does not look into the strings of a Raw
        # nothing is made of the members: those of a mebibyte of metadata would hold the loop for 30 ms
        _OBJECT.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def is_undescribed(error: GatewayError) -> bool:
    """Whether *error* is the backend's answer that there is no such metadata, or none that can be used.

    Otherwise it could not be asked, and may describe the model to the next request.
    """
    if error.kind is ErrorKind.BACKEND_ERROR:
        return error.status == 501 or (error.status < 500 and error.status not in _LATER)
    return error.kind is ErrorKind.MALFORMED_RESPONSE


class ModelMetadata(Generic[T]):
    """What is made of answers, by model, version and headers; each is asked for once in `LIFE_S`."""

    def __init__(self) -> None:
        self._answers: dict[Key, tuple[float, asyncio.Task[tuple[T, int]]]] = {}
        self._kept_bytes: dict[Key, int] = {}
        """What each answer that has come takes, and its question."""
        self._sum_bytes = 0

    def known(self, key: Key) -> T | None:
        """The answer for *key*; None if it has to be asked for or waited for."""
        expires_s, task = self._answers.get(key, (0.0, None))
        if task is None or not task.done() or expires_s <= asyncio.get_running_loop().time():
            return None
        return None if task.cancelled() or task.exception() is not None else task.result()[0]

    async def get(self, key: Key, fetch: Callable[[], Awaitable[tuple[T, int]]]) -> T:
        """The answer for *key*, from *fetch* unless it is known or on its way. Raises what *fetch* raises.

        *fetch* gives it and the bytes that it takes; 0 if it is not worth keeping.
        """
        now = asyncio.get_running_loop().time()
        known = self._answers.get(key)
        if known is None or known[0] <= now:
            self._drop(key)
            while len(self._answers) >= MAX_ANSWERS:
                self._drop(next(iter(self._answers)))
            task = asyncio.ensure_future(fetch())
            task.add_done_callback(lambda done: self._keep(key, done))
            known = self._answers[key] = (now + LIFE_S, task)
        # shielded: a client that leaves must not take the answer away from the others
        answer, _ = await asyncio.shield(known[1])
        return answer

    def forget(self, backend: str, model_path: str) -> None:
        """Forget all versions of a model: it was loaded or unloaded."""
        for key in list(self._answers):
            if key[0] == backend and f"{key[1]}/".startswith(f"{model_path}/"):
                self._drop(key)

    def _keep(self, key: Key, task: asyncio.Task[tuple[T, int]]) -> None:
        """Keep the answer that *task* has brought if it is worth it, and forget the oldest ones that leave no room."""
        is_useless = task.cancelled() or task.exception() is not None or not task.result()[1]
        if self._answers.get(key, (0, None))[1] is not task:
            return
        if is_useless:
            self._drop(key)
            return
        question_bytes = len(key[1]) + sum(sys.getsizeof(name) + sys.getsizeof(value) for name, value in key[2])
        self._kept_bytes[key] = KEPT_BYTES + question_bytes + task.result()[1]
        self._sum_bytes += self._kept_bytes[key]
        while self._sum_bytes > MAX_KEPT_BYTES:
            self._drop(next(iter(self._kept_bytes)))

    def _drop(self, key: Key) -> None:
        self._answers.pop(key, None)
        self._sum_bytes -= self._kept_bytes.pop(key, 0)

    async def close(self) -> None:
        """Cancel what is on its way."""
        for _, task in self._answers.values():
            task.cancel()
        self._answers.clear()
        self._kept_bytes.clear()
        self._sum_bytes = 0
