"""The parsers that may read the numbers of a tensor agree: simdjson, orjson with struct, and the tolerant path."""

from decimal import Decimal, localcontext

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.tensors import number_parsing, number_reading
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.tensors.number_parsing import LIST_PIECE_BYTES, read_flat
from gateway.errors import CodecError
from tests.codec.make_pairs import WIRE
from tests.codec.test_properties import NUMERIC, PROFILE
from tests.codec.walk import one_output, only_blob

EDGES = [
    *("0", "-0", "-0.0", "0e5", "1", "-1", "127", "128", "-129", "255", "256", "65504", "65520", "1.0", "1e2", "-2E0"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "1" * 400),
    *("18446744073709551615", "18446744073709551616", "9007199254740993", "9007199254740993.0", "1" * 5000),
    *("3.4028235677973366e38", "1e39", "1e400", "-1e400", "5e-324", "1e-400", "7.038531e-26", "-7.038531e-26"),
]
WRONG = ["true", "false", "null", "NaN", "-Infinity", '"NaN"', '"1"', "1.", "01", "+1", "", "1 2", "]", "[", "[]", "}"]
SPELLINGS = st.one_of(
    st.sampled_from(EDGES),
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-300, 300).map(str),
    st.integers(0, 1).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.sampled_from(WRONG),
)


def outcome(answer: bytes) -> bytes | str:
    """What becomes of the output of *answer*: its bytes, or the error's words."""
    try:
        return only_blob(answer)
    except CodecError as error:
        return str(error)


@pytest.mark.parametrize("datatype", NUMERIC)
@PROFILE
@given(spellings=st.lists(SPELLINGS, min_size=1, max_size=6), rows=st.integers(1, 3), is_nested=st.booleans())
def test_numbers_and_errors_are_the_same_whatever_parser_reads_them(
    datatype: str, spellings: list[str], rows: int, is_nested: bool
) -> None:
    """The same bits or refused by all; with and without simdjson with the same words."""
    row = ",".join(spellings)
    data = "[" + ",".join([f"[{row}]" if is_nested else row] * rows) + "]"
    answer = one_output(data, datatype, f"[{rows},{len(spellings)}]")
    native = outcome(answer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(number_parsing, "_PARSER", None)
        assert outcome(answer) == native
    with pytest.MonkeyPatch.context() as patch:
        for module in (number_parsing, number_reading):
            patch.setattr(module, "parse", lambda text, datatype, can_be_cut=True: None)
        tolerant = outcome(answer)
    assert tolerant == native or (isinstance(tolerant, str) and isinstance(native, str))


@pytest.mark.parametrize("datatype", ["FP64", "INT64", "UINT64", "INT8"])
def test_orjson_reads_what_it_prints_and_struct_refuses_what_the_datatype_cannot_hold(datatype: str) -> None:
    row = DATATYPES[datatype]
    values = np.frombuffer(np.random.default_rng(3).bytes(8000), WIRE[datatype])
    values = values[np.isfinite(values)]
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    for texts in (text, text.replace(b"[", b"[[[").replace(b"]", b"]]]"), b"[" + text.replace(b",", b"],[") + b"]"):
        read = number_parsing._parse_as_list(texts, row)
        assert read is not None
        assert read[0].astype(values.dtype).tobytes() == values.tobytes()
    refused = [b"[1,null]", b"[1,true]", b"[[1],2]", b"[1,[2]]", b"[1e400]", b'["1"]', b"[1,]", b"[NaN]"]
    if datatype != "FP64":
        refused += [b"[1.0]", b"[1e2]", b"[-9223372036854775809]", b"[18446744073709551616]", b"[%b]" % (b"1" * 400)]
    assert [number_parsing._parse_as_list(text, row) for text in refused] == [None] * len(refused)


def test_orjson_rounds_every_decimal_as_python_does() -> None:
    """Long ones, denormals, and those in the middle of two floats or just beside it."""
    dice = np.random.default_rng(9)
    texts = []
    for n_digits in range(1, 60):
        digits = "".join(map(str, dice.integers(0, 10, n_digits)))
        texts += [f"{sign}{digits[0]}.{digits}e{power}" for sign in ("", "-") for power in (-330, -308, -8, 0, 22, 300)]
    with localcontext() as context:
        context.prec = 1200
        for value in dice.integers(0, 0x7FE0 << 48, 1000, dtype="u8").view("f8"):
            middle = (Decimal(float(value)) + Decimal(float(np.nextafter(value, np.inf)))) / 2
            texts += [f"{near:e}" for near in (middle, middle.next_plus(), middle.next_minus())]
    texts += [str(2**64 + near) for near in dice.integers(-(2**12), 2**12, 1000).tolist()]
    texts += [str(2**80 + 2**27 + near) for near in (-1, 0, 1)]
    read = number_parsing._parse_as_list(f"[{','.join(texts)}]".encode(), DATATYPES["FP64"])
    assert read is not None
    assert read[0].tobytes() == np.array([float(text) for text in texts]).tobytes()


def test_a_long_text_with_many_exponents_is_left_to_the_sink_which_takes_it_in_pieces() -> None:
    for n_numbers in (LIST_PIECE_BYTES // 4, LIST_PIECE_BYTES // 2 + 1):
        blob = read_flat(b"[%b]" % b",".join([b"1e0"] * n_numbers), DATATYPES["FP32"], n_numbers)
        assert blob == (b"\0\0\x80?" * n_numbers if n_numbers < LIST_PIECE_BYTES // 2 else None)
