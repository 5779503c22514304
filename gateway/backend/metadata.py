"""Keeps the backends' answers about their models (`GET` on a model).

A model's metadata is needed for raw binary requests, for promoted outputs, and for every request to servers whose
answers do not describe themselves. An answer is kept for a short time, for clients that send the same headers. Requests
that need the same answer at the same time wait for one call. Callers say how old an answer may be.
"""

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from gateway.errors import ErrorKind, GatewayError

LIFE_S = 30.0
"""How long an answer is kept."""

MAX_KEPT_BYTES = 16 * 1024 * 1024
"""The most bytes for all kept answers and the headers of their questions."""

KEPT_BYTES = 16 * 1024
"""How many bytes a kept answer counts beside its text and its question, so that a thousand are kept at most."""

MAX_BYTES = 1024 * 1024
"""How many bytes of a server's (`GET /v2`) or a model's metadata are read."""

_LATER = frozenset({408, 425, 429})  # statuses of 4xx that say that the same question may be answered later


class _Object(msgspec.Struct):
    """A JSON object whose members are skipped: to decode those of a mebibyte would hold the loop for 30 ms."""


Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""Fingerprint of the backend, raw path of the model, and the headers of the question: servers may answer clients
differently."""


def is_worth_keeping(status: int, text: bytes) -> bool:
    """Whether other requests may use this answer: a 200 that holds a JSON object."""
    if status != 200:
        return False
    try:
        text.decode()  # msgspec does not check the strings that it skips
        msgspec.json.decode(text, type=_Object)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def is_undescribed(error: GatewayError) -> bool:
    """Whether *error* says that the backend has no such metadata, or none that can be used.

    After any other error the backend may describe the model to the next request.
    """
    if error.kind is ErrorKind.BACKEND_ERROR:
        return error.status == 501 or (error.status < 500 and error.status not in _LATER)
    return error.kind is ErrorKind.MALFORMED_RESPONSE


class ModelMetadata:
    """Values made of answers, by model, version and headers. Each is asked for again after `LIFE_S` at the latest.

    They are texts of V2, and descriptions of other dialects.
    """

    def __init__(self) -> None:
        self._kept: dict[Key, tuple[float, Any, int]] = {}
        """The time of each question by the event loop's clock, its answer, and how many bytes keeping it takes."""
        self._asking: dict[Key, asyncio.Task[tuple[Any, int]]] = {}
        """Questions without an answer yet."""

    def known(self, key: Key, max_age_s: float = LIFE_S) -> Any:
        """The answer for *key* if it was asked for less than *max_age_s* ago; else None."""
        asked_s, answer, _ = self._kept.get(key, (-math.inf, None, 0))
        return answer if asked_s + max_age_s > asyncio.get_running_loop().time() else None

    def ask(self, key: Key, fetch: Callable[[], Awaitable[tuple[Any, int]]]) -> asyncio.Task[tuple[Any, int]]:
        """The running question for *key*, or a new one, which calls *fetch*.

        Its result is the answer and the bytes that it takes to keep it; 0 if it is not worth keeping. Callers shield
        the task (`asyncio.shield`): a client that leaves must not cancel the question of others.
        """
        task = self._asking.get(key)
        if task is None:
            asked_s = asyncio.get_running_loop().time()
            self._asking[key] = task = asyncio.ensure_future(fetch())
            task.add_done_callback(lambda done: self._keep(key, asked_s, done))
        return task

    def forget(self, backend: str, model_path: str) -> None:
        """Forget all versions of a model, because it was loaded or unloaded."""
        for key in (*self._kept, *self._asking):
            if key[0] == backend and f"{key[1]}/".startswith(f"{model_path}/"):
                self._kept.pop(key, None)
                self._asking.pop(key, None)

    def _keep(self, key: Key, asked_s: float, task: asyncio.Task[tuple[Any, int]]) -> None:
        """Keep the answer of *task* if it is worth keeping, and forget the oldest answers if there is no room."""
        answer, n_bytes = (None, 0) if task.cancelled() or task.exception() is not None else task.result()
        if self._asking.get(key) is not task:
            return
        del self._asking[key]
        self._kept.pop(key, None)
        if answer is not None and n_bytes:
            n_bytes += KEPT_BYTES + len(key[1]) + sum(sys.getsizeof(text) for field in key[2] for text in field)
            self._kept[key] = asked_s, answer, n_bytes
        while sum([kept[2] for kept in self._kept.values()]) > MAX_KEPT_BYTES:
            del self._kept[next(iter(self._kept))]

    async def close(self) -> None:
        """Cancel all questions, and forget all answers."""
        for task in self._asking.values():
            task.cancel()
        self._asking.clear()
        self._kept.clear()
