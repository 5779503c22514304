"""Nested data is nested like its shape, however it is cut."""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.tensors.number_reading import SHORT_LIST_BYTES, NumberSink
from gateway.codec.tensors.string_reading import BytesSink
from gateway.errors import CodecError
from tests.codec.make_pairs import blob_of
from tests.codec.test_properties import DICE, NUMERIC, PROFILE, finite_tensors

LONG_LIST = SHORT_LIST_BYTES // 2

LENGTHS = {"short lists": 1, "short and long lists": LONG_LIST * 2 // 3, "long lists": LONG_LIST}
"""How many numbers stand in the place of each: of short lists, commas are looked for, long ones are measured."""


@pytest.fixture(params=LENGTHS)
def length(request: pytest.FixtureRequest) -> int:
    return LENGTHS[request.param]


def stretched(data: Any, length: int) -> Any:
    """*data* with *length* numbers in the place of each."""
    if not isinstance(data, list):
        return [data] * length
    return [
        part
        for item in data
        for part in ([stretched(item, length)] if isinstance(item, list) else stretched(item, length))
    ]


def read(shape: tuple[int, ...], data: Any, chunk: int, length: int, *, as_strings: bool = False) -> int:
    """Feed *data*, with *length* numbers or strings for each, in chunks; how many elements came.

    Raises what the sinks raise.
    """
    data = stretched(data, length)
    shape = (*shape[:-1], shape[-1] * length) if shape else (length,) * (length > 1)
    sink = BytesSink("t", shape) if as_strings else NumberSink("t", DATATYPES["INT32"], shape)
    if as_strings:
        data = stringed(data)
    text = json.dumps(data).encode()
    buffer = bytearray()
    for start in range(0, len(text), chunk):
        buffer += text[start : start + chunk]
        if isinstance(sink, NumberSink):
            sink._window_bytes = max(chunk, 16)  # cuts where a long text would be cut
        while buffer and not sink.done and (taken := sink.step(buffer)):
            del buffer[:taken]
    assert sink.done
    return int(np.prod(shape))


def stringed(data: Any) -> Any:
    return [stringed(item) for item in data] if isinstance(data, list) else str(data)


@pytest.mark.parametrize("as_strings", [False, True])
@pytest.mark.parametrize("shape", [(2, 2), (3, 1, 2), (1, 1, 1, 4), (2, 3, 4), (1,), (), (5, 7), (0, 3), (2, 0)])
def test_nested_and_flat_data_of_the_shape_are_read(shape: tuple[int, ...], as_strings: bool, length: int) -> None:
    nested = np.arange(int(np.prod(shape))).reshape(shape or (1,)).tolist()
    flat = np.arange(int(np.prod(shape))).tolist()
    for data in (nested, flat):
        for chunk in (1, 7, 16, 1000):
            read(shape, data, chunk, length, as_strings=as_strings)


@pytest.mark.parametrize("as_strings", [False, True])
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
def test_ragged_data_is_refused(shape: tuple[int, ...], data: Any, as_strings: bool, length: int) -> None:
    for chunk in (1, 7, 1000):
        with pytest.raises(CodecError, match="data is nested, but not like the shape"):
            read(shape, data, chunk, length, as_strings=as_strings)


def bracketed(numbers: list[int], dice: random.Random, depth: int = 0) -> list[Any]:
    """*numbers* in lists in lists, any way that JSON allows; some may be empty."""
    data: list[Any] = []
    while numbers or dice.random() < 0.2:
        n_taken = dice.randint(0, len(numbers))
        taken, numbers = numbers[:n_taken], numbers[n_taken:]
        data += [bracketed(taken, dice, depth + 1)] if depth < 3 and dice.random() < 0.5 else taken
    return data


@pytest.mark.parametrize("seed", range(20))
def test_strings_and_numbers_may_be_nested_in_the_same_ways(seed: int, length: int) -> None:
    dice = random.Random(seed)
    for _ in range(200):
        shape = tuple(dice.choice([1, 1, 2, 3]) for _ in range(dice.randint(0, 3)))
        data = bracketed(list(range(int(np.prod(shape)))), dice)
        refused = []
        for as_strings in (False, True):
            try:
                read(shape, data, 1000, length, as_strings=as_strings)
                refused.append(False)
            except CodecError:
                refused.append(True)
        assert refused[0] == refused[1], (shape, data)


def test_rank_32_is_read(length: int) -> None:
    shape = tuple([1] * 31 + [3])
    data: Any = [1, 2, 3]
    for _ in itertools.repeat(None, 31):
        data = [data]
    for as_strings in (False, True):
        read(shape, data, 200, length, as_strings=as_strings)


@pytest.mark.parametrize("as_strings", [False, True])
@pytest.mark.parametrize("length", [1, 4])
def test_long_lists_are_told_from_ragged_ones_wherever_they_are_cut(length: int, as_strings: bool) -> None:
    shape = (2, 2, 20)
    nested: Any = np.arange(80).reshape(shape).tolist()
    for chunk in (1, 50, 64, 100, 150, 1000):
        read(shape, nested, chunk, length, as_strings=as_strings)
        for row in range(4):
            for ragged in (nested[row // 2][row % 2][:-1], [nested[row // 2][row % 2]], [*nested[0][0], []]):
                data: Any = [list(plane) for plane in nested]
                data[row // 2][row % 2] = ragged
                with pytest.raises(CodecError, match="expected|nested"):
                    read(shape, data, chunk, length, as_strings=as_strings)


def learned(data: Any) -> tuple[int, ...] | None:
    """The shape of *data*, or None if it is ragged."""
    if not isinstance(data, list):
        return ()
    shapes = {learned(item) for item in data} or {()}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(data), *inner)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("[]", (0,)),
        ("[[],[]]", (2, 0)),
        ("[[[]]]", (1, 1, 0)),
        ("[[[],[]]]", (1, 2, 0)),
        ("[1]", (1,)),
        ("[[1,2],[3,4],[5,6]]", (3, 2)),
        (" [ [ [ 1 ] , [ 2 ] ] ]", (1, 2, 1)),
        ("[[],[[]]]", None),
        ("[[[]],[]]", None),
        ("[[],[1]]", None),
        ("[[1],[]]", None),
        ("[[1],[],[2]]", None),
        ("[1,[2]]", None),
        ("[[1],2]", None),
        ("[[1,2],3,[4]]", None),
        ("[[1,2],3,4,[5,6]]", None),
        ("[[1,2],[3]]", None),
        ("[[1],[2,3]]", None),
        ("[[[1],[2]],[[3]]]", None),
        ("[[[1],[2]],[3,4]]", None),
    ],
)
def test_a_shape_is_learned_from_the_nesting(text: str, shape: tuple[int, ...] | None) -> None:
    for cut in range(len(text) + 1):
        sink = NumberSink("t", DATATYPES["INT32"], None)
        buffer = bytearray()
        try:
            for part in (text[:cut], text[cut:]):
                buffer += part.encode()
                while buffer and not sink.done and (taken := sink.step(buffer)):
                    del buffer[:taken]
        except CodecError as error:
            assert shape is None and "ragged" in str(error)
        else:
            assert sink.done and sink.shape == shape == learned(json.loads(text))
            numbers = np.frombuffer(b"".join(sink.blobs()), "<i4")
            assert numbers.tolist() == list(range(1, int(np.prod(shape)) + 1))


def pour(chunks: list[bytes], datatype: str, shape: tuple[int, ...] | None, window_bytes: int) -> NumberSink:
    """A sink that was fed *chunks*, as if pieces were of *window_bytes* at most."""
    sink = NumberSink("t", DATATYPES[datatype], shape)
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        sink._window_bytes = window_bytes
        while buffer and not sink.done and (taken := sink.step(buffer)):
            del buffer[:taken]
            sink._window_bytes = window_bytes
    assert sink.done
    return sink


@pytest.mark.parametrize("datatype", NUMERIC)
@PROFILE
@given(data=st.data(), dice=DICE)
def test_flat_nested_and_learned_are_the_same_bytes(datatype: str, data: st.DataObject, dice: random.Random) -> None:
    """Whatever the shape, the separators, the cuts and the sizes of pieces."""
    shape, values = data.draw(finite_tensors(datatype))
    row = DATATYPES[datatype]
    printable = row.widen(row.view(memoryview(blob_of(values))))
    expected = np.not_equal(values, 0).tobytes() if datatype == "BOOL" else blob_of(values)
    texts = [orjson.dumps(value) for value in printable.tolist()]
    separator = dice.choice([b",", b", ", b" ,\n"])
    nested_text = text_of(np.array(texts, object).reshape(shape or (1,)).tolist(), separator)
    flat_text = text_of(texts, separator)
    for text, known in ((flat_text, tuple(shape)), (nested_text, tuple(shape)), (nested_text, None)):
        length = dice.choice([1, 7, 40, 100_000])
        chunks = [text[start : start + length] for start in range(0, len(text), length)]
        sink = pour(chunks, datatype, known, dice.choice([64, 100, 300, 100_000]))
        assert b"".join(sink.blobs()) == expected
        if known is None and 0 not in shape:
            assert sink.shape == tuple(shape or (1,))


@pytest.mark.parametrize("form", [{"separators": (",", ":")}, {}, {"indent": 2}])
@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BOOL"])
@pytest.mark.parametrize(
    "shape",
    [(300,), (1, 200), (100, 1), (2, 100, 1), (50, 4), (3, 20, 5), (2, 3, 4, 6), (1, 2, 9, 1), (3, 70), (2, 3, 64)],
)
def test_lists_of_equal_lengths_are_read_whole_pieces_at_a_time(
    shape: tuple[int, ...], datatype: str, form: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with a look at every bracket, which costs several times as much; with the blanks of `json.dumps` too."""
    monkeypatch.setattr(NumberSink, "_judge", None)
    numbers = np.arange(np.prod(shape)).reshape(shape) % 2
    values = (numbers > 0).tolist() if datatype == "BOOL" else numbers.tolist()
    text = json.dumps(values, **form).encode()
    for known in (shape, None):
        for window_bytes in (150, 100_000):
            sink = pour([text], datatype, known, window_bytes)
            assert sink.shape == shape
            assert b"".join(sink.blobs()) == numbers.astype(DATATYPES[datatype].wire).tobytes()


def text_of(data: Any, separator: bytes) -> bytes:
    """*data*, lists of texts of numbers, as JSON."""
    return b"[%b]" % separator.join(text_of(item, separator) for item in data) if isinstance(data, list) else data


@pytest.mark.parametrize("shape", [(2, 2), (2, 1), (2, 1, 2), (2, 2, 1)])
def test_every_list_that_is_moved_lost_or_doubled_is_refused_wherever_the_text_is_cut(shape: tuple[int, ...]) -> None:
    """With a shape and without; in two chunks cut at every place, and in pieces of a few bytes."""
    text = json.dumps(np.arange(int(np.prod(shape))).reshape(shape).tolist(), separators=(",", ":"))
    for damaged in {*damaged_brackets(text, range(len(text)))} - {text}:
        for known in (shape, None):
            for cut in range(len(damaged) + 1):
                for window_bytes in (16, 100_000):
                    expect_refusal([damaged[:cut].encode(), damaged[cut:].encode()], known, window_bytes, damaged)


@pytest.mark.parametrize("shape", [(2, LONG_LIST), (2, 1, LONG_LIST + 1)])
def test_every_long_list_that_is_moved_lost_or_doubled_is_refused(shape: tuple[int, ...]) -> None:
    """Brackets move to where others are, and beside some numbers; the text is cut there, too."""
    text = json.dumps(np.arange(int(np.prod(shape))).reshape(shape).tolist(), separators=(",", ":"))
    places = [
        place
        for place in range(len(text))
        if place % 250 == 0 or not {"[", "]"}.isdisjoint(text[place - 1 : place + 2])
    ]
    for damaged in {*damaged_brackets(text, places)} - {text}:
        for known in (shape, None):
            for cut in (*places, len(damaged)):
                parts = [damaged[:cut].encode(), damaged[cut:].encode()]
                expect_refusal(parts, known, 100_000, damaged)
            expect_refusal([damaged.encode()], known, 100, damaged)


def damaged_brackets(text: str, places: Sequence[int]) -> Iterator[str]:
    """*text* with one bracket moved to, taken away from or added at one of *places*."""
    for place in places:
        character = text[place]
        if character in "[]":
            without = text[:place] + text[place + 1 :]
            yield without
            for other in places:
                yield without[:other] + character + without[other:]
        for bracket in "[]", "[", "]":
            yield text[:place] + bracket + text[place:]


def expect_refusal(parts: list[bytes], shape: tuple[int, ...] | None, window_bytes: int, text: str) -> None:
    """*parts* are refused, or read as Python's parser reads *text*, of the shape that it has there."""
    try:
        read = json.loads(text)
    except ValueError:
        read = None
    sink = NumberSink("t", DATATYPES["INT32"], shape)
    buffer = bytearray()
    try:
        for part in parts:
            buffer += part
            sink._window_bytes = window_bytes
            while buffer and not sink.done and (taken := sink.step(buffer)):
                del buffer[:taken]
                sink._window_bytes = window_bytes
    except CodecError as error:
        assert str(error)
        return
    if sink.done and not buffer:
        got = learned(read) if isinstance(read, list) else None
        assert got is not None and (shape is None or np.prod(got) == np.prod(shape)), text
        assert sink.shape == (got if shape is None else shape), text
