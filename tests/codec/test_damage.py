"""Lists that are damaged at random are read as Python's parser reads them, or refused, however they are cut.

The damage is near the list's beginning, or where a piece of the codec's work ends.
"""

import json
import random
from typing import NamedTuple

import numpy as np
import pytest

from gateway.codec.inference import OutputSelection
from gateway.codec.json.arriving import RUN_BYTES
from gateway.codec.json.pieces import PIECE_BYTES, WALK_BYTES
from gateway.codec.tensors.number_parsing import LIST_PIECE_BYTES, NATIVE_PIECE_BYTES
from gateway.codec.tensors.number_reading import TOLERANT_PIECE_BYTES
from gateway.codec.tensors.string_reading import RUN_BYTES as STRINGS_BYTES
from gateway.errors import CodecError

from .make_pairs import WIRE, blob_of
from .walk import cut, one_output, only_blob, read_answer

DAMAGE = [
    b"",
    b'"',
    b",",
    b"[",
    b"]",
    b"{",
    b"}",
    b":",
    b"\\",
    b" ",
    b"a",
    b"\0",
    b"\xc3",
    b"1",
    b"-",
    b".",
    b"e",
    b"null",
]
ODD = ["\x7f", "\x7f___", "", '"', "\\", '",', '","', '", "', "\n", "é", "\U0001f600", "]", "},{"]
LONG = "\U0001f600é\\" * 15
# How much text the readers of strings, numbers and other values work on in one step.
ENDS = [TOLERANT_PIECE_BYTES, RUN_BYTES, WALK_BYTES, LIST_PIECE_BYTES, STRINGS_BYTES, PIECE_BYTES, NATIVE_PIECE_BYTES]


class Place(NamedTuple):
    """Where lists are damaged, and how often and in which chunks they are read there."""

    is_at_beginning: bool

    @property
    def n_lists(self) -> int:
        return 50 if self.is_at_beginning else 15

    @property
    def chunks(self) -> tuple[int | None, ...]:
        return (None, 97, 1) if self.is_at_beginning else (None, 4093)

    def move(self, dice: random.Random, data: bytes, filler: str) -> bytes:
        """*data* itself, or behind so many sound elements that the end of a piece lies in it."""
        if self.is_at_beginning or not data.startswith(b"["):
            return data
        n_fillers = (dice.choice(ENDS) - dice.randrange(len(data))) // (len(filler) + 1)
        return b"[%b%b" % (f"{filler},".encode() * n_fillers, data[1:])


@pytest.fixture(params=["beginning", "end of a piece"])
def place(request: pytest.FixtureRequest) -> Place:
    """Where the damage is."""
    return Place(is_at_beginning=request.param == "beginning")


def damaged(dice: random.Random, texts: list[str]) -> bytes:
    separator = dice.choice([",", ",", ", ", ",\n", " , "])
    data = bytearray(f"[{separator.join(texts)}]".encode())
    for _ in range(dice.randrange(3)):
        position = dice.randrange(len(data))
        data[position : position + dice.randrange(2)] = dice.choice(DAMAGE)
    return bytes(data)


def judge(data: bytes, datatype: str, count: int, expected: bytes | None, chunks: tuple[int | None, ...]) -> None:
    """Read *data* whole and in *chunks*: *expected*, or refused where that is None."""
    answer = one_output(data, datatype, f"[{count}]")
    for chunk_bytes in chunks:
        try:
            assert only_blob(answer, chunk_bytes) == expected, data
        except CodecError:
            assert expected is None, data


@pytest.mark.parametrize("seed", range(4))
def test_damaged_strings(place: Place, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(place.n_lists):
        texts = ["".join(dice.choices(["a", "bc", *ODD], [30, 30, *[1] * len(ODD)], k=6)) for _ in range(100)]
        is_ascii = dice.random() < 0.5
        data = damaged(dice, [json.dumps(text, ensure_ascii=is_ascii) for text in texts])
        data = place.move(dice, data, '"abc"')
        try:
            read = json.loads(data)
            expected = blob_of(read) if all(isinstance(element, str) for element in read) else None
        except ValueError:
            read, expected = texts, None
        judge(data, "BYTES", len(read), expected, place.chunks)


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT32", "UINT8"])
@pytest.mark.parametrize("seed", range(2))
def test_damaged_numbers(place: Place, datatype: str, seed: int) -> None:
    dice = random.Random(seed)
    wire = WIRE[datatype]
    for _ in range(place.n_lists):
        values = np.frombuffer(dice.randbytes(60 * wire.itemsize), wire)
        if wire.kind == "f":
            values = np.array([dice.uniform(-1e6, 1e6) for _ in range(60)], wire)
        data = place.move(dice, damaged(dice, [repr(value) for value in values.tolist()]), "12")
        judge(data, datatype, *read_by_python(data, wire), place.chunks)


def read_by_python(data: bytes, wire: np.dtype) -> tuple[int, bytes | None]:
    """How many elements *data* has, and their bytes; None if it is not a flat list of what *wire* can hold."""
    is_float = wire.kind == "f"
    try:
        read = json.loads(
            data, parse_constant=refuse, parse_int=lambda text: -0.0 if is_float and text == "-0" else int(text)
        )
        if is_float:
            read = [float("nan") if value is None else value for value in read]
        if not all(type(value) in (int, float) and (is_float or value == int(value)) for value in read):
            return len(read), None
        with np.errstate(over="ignore"):
            array = np.array(read, np.float64).astype(wire) if is_float else np.array([int(v) for v in read], wire)
        expected = None if np.isinf(array).any() else array.tobytes()
        return len(read), expected
    except (ValueError, TypeError, OverflowError):
        return 60, None


def refuse(constant: str) -> None:
    raise ValueError(constant)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_text_that_stays_json(place: Place, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(place.n_lists):
        values = [
            dice.choice([1, -2.5, None, True, "a", LONG, "long" * 30, [], {}, [1, [2]], {"k": "v", "long" * 20: [3]}])
            for _ in range(20)
        ]
        data = place.move(dice, damaged(dice, [json.dumps(value) for value in values]), '["a"]')
        text = b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":%b}]}' % data
        try:
            # Python reads lone surrogates, but cannot encode them
            json.dumps(json.loads(text, parse_constant=refuse), ensure_ascii=False).encode()
            has_no_error = json.loads(text)["outputs"][0].keys() == {"name", "datatype", "shape", "data"}
        except ValueError:
            has_no_error = False
        for chunk_bytes in place.chunks:
            try:
                reply = read_answer(cut(text, chunk_bytes), OutputSelection())
            except CodecError:
                assert not has_no_error, data
            else:
                assert has_no_error and data.strip() in b"".join(reply.header), data
