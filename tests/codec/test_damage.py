"""Lists that are damaged at random are read as Python's parser reads them, or refused, however they are cut.

With the pieces of every day, and with pieces of a few bytes, so that every place is the end of one.
"""

import json
import random
import sys

import numpy as np
import pytest

from gateway.codec import OutputSelection
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
TINY = {
    "PIECE_BYTES": 48,
    "PARSED_BYTES": 48,
    "STEP_TOKENS": 16,
    "WALK_BYTES": 32,
    "RUN_BYTES": 24,
    "WHOLE_BYTES": 8,
    "NATIVE_PIECE_BYTES": 96,
    "BRACKETED_PIECE_BYTES": 48,
    "LIST_PIECE_BYTES": 48,
    "TOLERANT_PIECE_BYTES": 24,
    "KNOWN_PIECE_BYTES": 1,
    "WINDOW_BYTES": 96,
    "RUN_ELEMENTS": 2,
    "SHORT_BYTES": 8,
    "FEW_MEMBERS": 1,
}


@pytest.fixture(params=["real", "tiny"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "tiny":
        for name, module in list(sys.modules.items()):
            for constant, tiny in TINY.items():
                if name.startswith("gateway.codec.") and hasattr(module, constant):
                    monkeypatch.setattr(module, constant, tiny)
    return str(request.param)


def damaged(dice: random.Random, texts: list[str]) -> bytes:
    separator = dice.choice([",", ",", ", ", ",\n", " , "])
    data = bytearray(f"[{separator.join(texts)}]".encode())
    for _ in range(dice.randrange(3)):
        position = dice.randrange(len(data))
        data[position : position + dice.randrange(2)] = dice.choice(DAMAGE)
    return bytes(data)


def judge(data: bytes, datatype: str, count: int, expected: bytes | None) -> None:
    """Read *data* whole and in pieces: *expected*, or refused where that is None."""
    answer = one_output(data, datatype, f"[{count}]")
    for chunk_bytes in (None, 97, 1):
        try:
            assert only_blob(answer, chunk_bytes) == expected, data
        except CodecError:
            assert expected is None, data


@pytest.mark.parametrize("seed", range(4))
def test_damaged_strings(pieces: str, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(50):
        texts = ["".join(dice.choices(["a", "bc", *ODD], [30, 30, *[1] * len(ODD)], k=6)) for _ in range(100)]
        is_ascii = dice.random() < 0.5
        data = damaged(dice, [json.dumps(text, ensure_ascii=is_ascii) for text in texts])
        try:
            read = json.loads(data)
            expected = blob_of(read) if all(isinstance(element, str) for element in read) else None
        except ValueError:
            read, expected = texts, None
        judge(data, "BYTES", len(read), expected)


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT32", "UINT8"])
@pytest.mark.parametrize("seed", range(2))
def test_damaged_numbers(pieces: str, datatype: str, seed: int) -> None:
    dice = random.Random(seed)
    wire = WIRE[datatype]
    for _ in range(50):
        values = np.frombuffer(dice.randbytes(60 * wire.itemsize), wire)
        if wire.kind == "f":
            values = np.array([dice.uniform(-1e6, 1e6) for _ in range(60)], wire)
        data = damaged(dice, [repr(value) for value in values.tolist()])
        judge(data, datatype, *read_by_python(data, wire))


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
def test_damaged_text_that_stays_json(pieces: str, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(50):
        values = [
            dice.choice([1, -2.5, None, True, "a", LONG, "long" * 30, [], {}, [1, [2]], {"k": "v", "long" * 20: [3]}])
            for _ in range(20)
        ]
        data = damaged(dice, [json.dumps(value) for value in values])
        text = b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":%b}]}' % data
        try:
            # Python reads lone surrogates, but cannot encode them
            json.dumps(json.loads(text, parse_constant=refuse), ensure_ascii=False).encode()
            has_no_error = json.loads(text)["outputs"][0].keys() == {"name", "datatype", "shape", "data"}
        except ValueError:
            has_no_error = False
        for chunk_bytes in (None, 97, 1):
            try:
                reply = read_answer(cut(text, chunk_bytes), OutputSelection())
            except CodecError:
                assert not has_no_error, data
            else:
                assert has_no_error and data.strip() in b"".join(reply.header), data
