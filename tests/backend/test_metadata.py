"""What is kept of models' metadata, and how much."""

import sys
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from gateway.backend.metadata import MAX_BYTES, MAX_KEPT_BYTES, Key, ModelMetadata, is_worth_keeping


class Models:
    """A backend whose metadata has *n_bytes*; counts how often it is asked."""

    def __init__(self, n_bytes: int) -> None:
        self.asked = 0
        self._n_bytes = n_bytes

    def fetch(self, *, is_worth_keeping: bool = True) -> Callable[[], Awaitable[tuple[bytes, int]]]:
        async def fetch() -> tuple[bytes, int]:
            self.asked += 1
            return bytes(self._n_bytes), self._n_bytes if is_worth_keeping else 0

        return fetch


def key_of(number: int, value: str = "") -> Key:
    return "main", "/v2/models/m", (("X-Client", str(number)), ("X-Other", value))


async def get(metadata: ModelMetadata, key: Key, fetch: Callable[[], Awaitable[tuple[bytes, int]]]) -> None:
    """Ask what is not known."""
    if metadata.known(key) is None:
        await metadata.ask(key, fetch)


async def n_kept(metadata: ModelMetadata, keys: list[Key]) -> int:
    """How many of *keys* are answered without asking; each is asked for once, from the newest on."""
    models = Models(0)
    for key in keys:
        await get(metadata, key, models.fetch(is_worth_keeping=False))
    return len(keys) - models.asked


@pytest.mark.parametrize(
    ("text_bytes", "value"),
    [(MAX_BYTES, ""), (10, "x" * 800_000), (10, "\U0001f600" * 200_000)],
    ids=["long metadata", "long headers", "long headers of wide characters"],
)
async def test_what_is_kept_of_metadata_has_a_limit_in_bytes(text_bytes: int, value: str) -> None:
    """A thousand clients' headers, or one client that changes a header, kept up to a gigabyte for good."""
    metadata = ModelMetadata()
    models = Models(text_bytes)
    keys = [key_of(number, value) for number in range(40)]
    for key in keys:
        await get(metadata, key, models.fetch())
    each = max(text_bytes, sys.getsizeof(value))
    kept = await n_kept(metadata, keys[::-1])
    assert MAX_KEPT_BYTES // each - 2 <= kept <= MAX_KEPT_BYTES // each
    assert await n_kept(metadata, [keys[-1], keys[0]]) == 1


async def test_metadata_that_is_forgotten_makes_room() -> None:
    metadata = ModelMetadata()
    models = Models(MAX_BYTES)
    for number in range(10):
        await get(metadata, key_of(number), models.fetch())
    metadata.forget("main", "/v2/models/m")
    keys = [key_of(number) for number in range(10, 20)]
    for key in keys:
        await get(metadata, key, models.fetch())
    assert await n_kept(metadata, keys) == 10


async def test_an_answer_that_is_too_old_for_one_is_asked_for_again_and_serves_others_meanwhile() -> None:
    metadata = ModelMetadata()
    models, key = Models(10), key_of(1)
    await get(metadata, key, models.fetch())
    assert metadata.known(key, 60) is not None
    assert metadata.known(key, 0) is None
    question = metadata.ask(key, models.fetch())
    assert metadata.ask(key, models.fetch()) is question
    assert metadata.known(key) is not None
    await question
    assert models.asked == 2


async def test_an_answer_is_not_kept_that_could_not_be_had_again() -> None:
    metadata = ModelMetadata()
    models, key = Models(10), key_of(1)
    await get(metadata, key, models.fetch())
    await metadata.ask(key, models.fetch(is_worth_keeping=False))
    assert metadata.known(key) is None


def test_metadata_is_judged_without_making_objects_of_it() -> None:
    """A mebibyte of empty objects took 30 ms of the loop and 40 MB."""
    text = b'{"inputs":[' + b",".join([b"{}"] * 300_000) + b"]}"
    tracemalloc.start()
    try:
        assert is_worth_keeping(200, text)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 * len(text)


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (200, b'{"name":"m"}', True),
        (200, b' {"name":"\xc3\xa9"} ', True),
        (404, b'{"name":"m"}', False),
        (200, b'["m"]', False),
        (200, b'{"name":', False),
        (200, b'{"name":nope}', False),
        (200, b'{"name":"\xff"}', False),
        (200, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", False),
        (200, b"", False),
    ],
)
def test_only_a_sound_object_of_status_200_is_worth_keeping(status: int, text: bytes, expected: bool) -> None:
    assert is_worth_keeping(status, text) is expected
