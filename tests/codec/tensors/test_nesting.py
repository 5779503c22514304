"""Nested data is nested like its shape, however it is cut."""

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest

from gateway.codec.tensors import number_reading
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.tensors.number_reading import NumberSink
from gateway.codec.tensors.string_reading import BytesSink
from gateway.errors import CodecError


@pytest.fixture(autouse=True, params=[False, True], ids=["", "lists measured"])
def short_lists_are_measured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers in short lists are read as those in long ones, too."""
    if request.param:
        monkeypatch.setattr(number_reading, "MAX_LISTS_PER_ELEMENT", 100.0)


def read(shape: tuple[int, ...], data: Any, chunk: int, as_strings: bool) -> int:
    """Feed *data* in chunks; how many elements came. Raises what the sinks raise."""
    text = json.dumps(data).encode()
    sink = BytesSink("t", shape) if as_strings else NumberSink("t", DATATYPES["INT32"], shape)
    buffer = bytearray()
    for start in range(0, len(text), chunk):
        buffer += text[start : start + chunk]
        if not as_strings:
            sink._window_bytes = max(chunk, 16)  # type: ignore[union-attr]  # cuts where a long text would be cut
        while buffer and not sink.done and (taken := sink.step(buffer)):
            del buffer[:taken]
    assert sink.done
    return int(np.prod(shape))


def stringed(data: Any) -> Any:
    return [stringed(item) for item in data] if isinstance(data, list) else str(data)


@pytest.mark.parametrize("as_strings", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 16, 1000])
@pytest.mark.parametrize("shape", [(2, 2), (3, 1, 2), (1, 1, 1, 4), (2, 3, 4), (1,), (), (5, 7), (0, 3), (2, 0)])
def test_nested_and_flat_data_of_the_shape_are_read(shape: tuple[int, ...], chunk: int, as_strings: bool) -> None:
    nested = np.arange(int(np.prod(shape))).reshape(shape or (1,)).tolist()
    flat = np.arange(int(np.prod(shape))).tolist()
    for data in (nested, flat):
        read(shape, stringed(data) if as_strings else data, chunk, as_strings)


@pytest.mark.parametrize("as_strings", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ((2, 2), [[1, 2, 3], [4]]),
        ((2, 2), [[1], [2, 3, 4]]),
        ((2, 2), [1, 2, [3, 4]]),
        ((2, 2), [[1, 2], 3, 4]),
        ((2, 2), [[1], [2], [3], [4]]),
        ((2, 2), [[1, 2], [], [3, 4]]),
        ((2, 2), [[1, 2, 3, 4], []]),
        ((2, 1), [[], 1, [2]]),
        ((1, 1), [[1, []]]),
        ((), [[], 1]),
        ((4,), [[1, 2], [3, 4]]),
        ((2,), [[1], 2]),
        ((2, 2, 2), [[[1, 2], [3, 4], [5, 6], [7, 8]]]),
        ((2, 2, 2), [[[1, 2], [3, 4]], [5, 6, 7, 8]]),
    ],
)
def test_ragged_data_is_refused(shape: tuple[int, ...], data: Any, chunk: int, as_strings: bool) -> None:
    with pytest.raises(CodecError, match="data is nested, but not like the shape"):
        read(shape, stringed(data) if as_strings else data, chunk, as_strings)


def bracketed(numbers: list[int], dice: random.Random, depth: int = 0) -> list[Any]:
    """*numbers* in lists in lists, any way that JSON allows; some may be empty."""
    data: list[Any] = []
    while numbers or dice.random() < 0.2:
        n_taken = dice.randint(0, len(numbers))
        taken, numbers = numbers[:n_taken], numbers[n_taken:]
        data += [bracketed(taken, dice, depth + 1)] if depth < 3 and dice.random() < 0.5 else taken
    return data


@pytest.mark.parametrize("seed", range(20))
def test_strings_and_numbers_may_be_nested_in_the_same_ways(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(200):
        shape = tuple(dice.choice([1, 1, 2, 3]) for _ in range(dice.randint(0, 3)))
        data = bracketed(list(range(int(np.prod(shape)))), dice)
        refused = []
        for as_strings in (False, True):
            try:
                read(shape, stringed(data) if as_strings else data, 1000, as_strings)
                refused.append(False)
            except CodecError:
                refused.append(True)
        assert refused[0] == refused[1], (shape, data)


def test_rank_32_is_read() -> None:
    shape = tuple([1] * 31 + [3])
    data: Any = [1, 2, 3]
    for _ in itertools.repeat(None, 31):
        data = [data]
    for as_strings in (False, True):
        read(shape, stringed(data) if as_strings else data, 200, as_strings)


@pytest.mark.parametrize("as_strings", [False, True])
def test_long_lists_are_told_from_ragged_ones_wherever_they_are_cut(as_strings: bool) -> None:
    shape = (2, 2, 20)
    nested: Any = np.arange(80).reshape(shape).tolist()
    for chunk in (1, 50, 64, 100, 150, 1000):
        read(shape, stringed(nested) if as_strings else nested, chunk, as_strings)
        for row in range(4):
            for ragged in (nested[row // 2][row % 2][:-1], [nested[row // 2][row % 2]], [*nested[0][0], []]):
                data: Any = [list(plane) for plane in nested]
                data[row // 2][row % 2] = ragged
                with pytest.raises(CodecError, match="expected|nested"):
                    read(shape, stringed(data) if as_strings else data, chunk, as_strings)
