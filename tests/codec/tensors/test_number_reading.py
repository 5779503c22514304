"""Numbers from JSON text: what is read, what is refused and with which words, with simdjson and without."""

import json
import os
import random
import struct
from collections.abc import Callable
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors import number_parsing, number_reading
from gateway.codec.tensors.datatypes import DATATYPES, Array, Datatype
from gateway.codec.tensors.number_parsing import LIST_BYTES, LIST_PIECE_BYTES, NATIVE_PIECE_BYTES, TIED_PIECE_BYTES
from gateway.codec.tensors.number_reading import TOLERANT_PIECE_BYTES, NumberSink
from gateway.errors import CodecError
from tests.codec.make_pairs import WIRE
from tests.codec.walk import cut, nearest_bits, one_output, only_blob, read_answer

FP32_READ_TWICE = "7.038531e-26"  # the one positive FP32 whose shortest text is wrong by way of float64

FP32_READ_TWICE_BITS = 0x15AE43FD


PARSE = number_parsing.parse


def parse_empty_lists(text: bytes, datatype: Datatype, *, can_be_cut: bool = True) -> tuple[Array, Any] | None:
    """What `parse` returns for lists without numbers; None for all others."""
    return None if text.translate(None, b"[], \t\r\n") else PARSE(text, datatype)


PIECES = {"simdjson": NATIVE_PIECE_BYTES, "list": LIST_PIECE_BYTES, "tolerant": TOLERANT_PIECE_BYTES}
"""How much text each parser gets at once."""


@pytest.fixture(params=PIECES, autouse=True)
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Every test here holds with simdjson, without it, and where the tolerant path does all: what its pieces have."""
    if request.param == "tolerant":
        for module in (number_parsing, number_reading):
            monkeypatch.setattr(module, "parse", parse_empty_lists)
    elif request.param == "list":
        monkeypatch.setattr(number_parsing, "_PARSER", None)
    elif find_spec("simdjson") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("pysimdjson is not installed")
    else:
        assert number_parsing._PARSER is not None
    return PIECES[request.param]


def values_of(data: str, datatype: str, shape: str) -> list[float]:
    for chunk_bytes in (1, 7, 1000):
        assert only_blob(one_output(data, datatype, shape), chunk_bytes) == only_blob(one_output(data, datatype, shape))
    blob = only_blob(one_output(data, datatype, shape))
    assert blob == only_blob(one_output(data, datatype, shape, reversed_keys=True))
    return [value.item() for value in np.frombuffer(blob, WIRE[datatype])]


@pytest.mark.rule("4.7")
@pytest.mark.parametrize(
    ("data", "datatype", "expected"),
    [
        ("[1,2.5,-3e2]", "FP32", [1, 2.5, -300]),
        ("[[1,2],[3,4]]", "INT8", [1, 2, 3, 4]),
        ("[ [ 1 ] ,\r\n\t[ 2 ] ]", "UINT64", [1, 2]),
        ("[1.0,-2.0,1e2,2.50e1]", "INT32", [1, -2, 100, 25]),
        ("[-0,-0.0,0]", "INT16", [0, 0, 0]),
        ("[true,false,1,0]", "BOOL", [1, 0, 1, 0]),
        ("[[true],[false]]", "BOOL", [1, 0]),
        ("[true,1.0]", "BOOL", [1, 1]),
        ("[18446744073709551615,0]", "UINT64", [2**64 - 1, 0]),
        ("[9007199254740993,-9007199254740993]", "INT64", [2**53 + 1, -(2**53) - 1]),
        ("[9223372036854775807,-9223372036854775808]", "INT64", [2**63 - 1, -(2**63)]),
        ("[9007199254740993,1.0]", "INT64", [2**53 + 1, 1]),
        ("[18446744073709551616,1e30]", "FP64", [2.0**64, 1e30]),
        ("[1e-400,5e-324,1.7976931348623157e308]", "FP64", [0.0, 5e-324, 1.7976931348623157e308]),
        ("[65504,65519.99]", "FP16", [65504, 65504]),
        ("[3.4028235677973362e38]", "FP32", [3.4028234663852886e38]),
        ("[]", "FP32", []),
        ("[ ]", "INT64", []),
        ("[[],[]]", "UINT8", []),
        ("[[[]]]", "BOOL", []),
    ],
)
def test_numbers_are_read_in_every_spelling(data: str, datatype: str, expected: list[float]) -> None:
    shape = "[2,2]" if data == "[[1,2],[3,4]]" else f"[{len(expected)}]"
    assert values_of(data, datatype, shape) == expected


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
@pytest.mark.parametrize("text", ["-0", "-0.0", "-0e5", "-0.000", "-0E-1"])
def test_negative_zero_keeps_its_sign_in_floats(datatype: str, text: str) -> None:
    for layout in ("[{}]", "[1,{},2]", "[{} ,1]", "[1,\n{}\n]", "[[{}],[1]]", "[{}\t,1]", "[{}\r,1]"):
        data = layout.format(text)
        n_elements = data.count(",") + 1
        read = values_of(data, datatype, f"[{n_elements}]")
        assert [struct.pack("<d", value) for value in read].count(struct.pack("<d", -0.0)) == 1


@pytest.mark.rule("4.7")
@pytest.mark.parametrize(
    "data", ["[NaN,1,-Infinity,Infinity]", '["NaN",1,"-Infinity","Infinity"]', '[null,1,"-Infinity" , Infinity]']
)
@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
def test_nonfinite_floats_are_read_in_every_spelling_and_counted(data: str, datatype: str) -> None:
    expected = [float("nan"), 1.0, float("-inf"), float("inf")]
    assert np.array_equal(values_of(data, datatype, "[4]"), expected, equal_nan=True)
    for answer in (one_output(data, datatype, "[4]"), one_output(data, datatype, "[2,2]", reversed_keys=True)):
        assert read_answer([answer]).nonfinite == 3


@pytest.mark.rule("4.7")
@pytest.mark.parametrize(
    ("data", "datatype", "words"),
    [
        ("[300]", "UINT8", "element 0: UINT8 cannot hold 300"),
        ("[0,-1]", "UINT8", "element 1: UINT8 cannot hold -1"),
        ("[0,0,128]", "INT8", "element 2: INT8 cannot hold 128"),
        ("[65536]", "UINT16", "UINT16 cannot hold 65536"),
        ("[-32769]", "INT16", "INT16 cannot hold -32769"),
        ("[4294967296]", "UINT32", "UINT32 cannot hold 4294967296"),
        ("[2147483648]", "INT32", "INT32 cannot hold 2147483648"),
        ("[18446744073709551616]", "UINT64", "UINT64 cannot hold 18446744073709551616"),
        ("[-1]", "UINT64", "UINT64 cannot hold -1"),
        ("[9223372036854775808]", "INT64", "INT64 cannot hold 9223372036854775808"),
        ("[-9223372036854775809]", "INT64", "INT64 cannot hold -9223372036854775809"),
        ("[300.0]", "UINT8", "UINT8 cannot hold 300"),
        ("[1e300]", "INT64", "INT64 cannot hold 1E\\+300"),
        ("[1,1.5]", "INT32", "element 1: INT32 cannot hold 1.5"),
        ("[1e400]", "INT32", "INT32"),
        ("[1e-1]", "UINT64", "UINT64 cannot hold 0.1"),
        ("[null]", "INT32", "INT32 cannot hold null"),
        ("[NaN]", "INT32", "INT32 cannot hold"),
        ('["NaN"]', "INT32", "INT32 cannot hold"),
        ("[true]", "INT32", "INT32 cannot hold true"),
        ("[true]", "FP32", "FP32 cannot hold true"),
        ("[false]", "UINT64", "UINT64 cannot hold false"),
        ('["1"]', "FP32", 'element 0: FP32 cannot hold "1"'),
        ('[1,2,"3"]', "INT32", 'element 2: INT32 cannot hold "3"'),
        ('[1,2,"3.5"]', "INT64", 'element 2: INT64 cannot hold "3.5"'),
        ('[1,"2,3"]', "UINT64", 'element 1: UINT64 cannot hold "2,3"'),
        ('["nan"]', "FP32", 'FP32 cannot hold "nan"'),
        (f'[1,"{"x" * 5000}"]', "FP32", "element 1: FP32 cannot hold a long string"),
        ("[-0]", "BOOL", ""),
        ('["NaN" "NaN"]', "FP32", ""),
        ('[-"Infinity"]', "FP32", ""),
        ('[1"NaN"]', "FP32", ""),
        ('[- "Infinity"]', "FP32", ""),
        ('["NaN"1]', "FP32", ""),
        ("[-NaN]", "FP32", ""),
        ("[+1]", "FP32", ""),
        ("[nan]", "FP32", ""),
        ("[inf]", "FP32", ""),
        ("[2]", "BOOL", "BOOL cannot hold 2"),
        ("[-1]", "BOOL", "BOOL"),
        ("[null]", "BOOL", "BOOL cannot hold null"),
        ("[0.5]", "BOOL", "BOOL cannot hold 0.5"),
        ("[NaN]", "BOOL", "BOOL cannot hold"),
        ("[1true]", "BOOL", ""),
        ("[truefalse]", "BOOL", ""),
        ("[-true]", "BOOL", ""),
        ("[0true]", "BOOL", ""),
        ("[1e400]", "FP64", "FP64"),
        ("[-1e400]", "FP32", "FP32"),
        ("[1e39]", "FP32", "element 0: FP32 cannot hold 1e\\+39"),
        ("[3.4028235677973367e38]", "FP32", "FP32 cannot hold"),
        ("[65520]", "FP16", "FP16 cannot hold 65520"),
        ("[3.3961775292304601e38]", "BF16", "BF16 cannot hold"),
        ("[1" + "0" * 400 + "]", "FP64", "FP64 cannot hold such a number"),
        ("[1" + "0" * 5000 + "]", "FP64", ""),
        ("[{}]", "FP32", ""),
        ('[{"a":1}]', "FP32", ""),
        ("5", "FP32", "data must be an array, got 5"),
        ("null", "FP32", "data must be an array"),
        ('"x"', "INT32", "data must be an array"),
        ("{}", "INT32", "data must be an array"),
        ("true", "BOOL", "data must be an array"),
    ],
)
def test_value_that_does_not_fit_is_refused_by_output_and_element(data: str, datatype: str, words: str) -> None:
    shape = f"[{data.count(',') + 1}]"
    for chunk_bytes in (None, 1):
        with pytest.raises(CodecError, match=f"output 'y' \\({datatype}, shape .*{words}"):
            only_blob(one_output(data, datatype, shape), chunk_bytes)
    with pytest.raises(CodecError, match=words or "output"):
        only_blob(one_output(data, datatype, shape, reversed_keys=True))


@pytest.mark.parametrize(
    "data",
    [
        "[1],[2]",
        "[,1,2]",
        "[1,2,]",
        "[1,,2]",
        "[[1,],[2]]",
        "[[,1],[2]]",
        "[[1][2]]",
        "[[1] [2]]",
        "[1 2]",
        "[1,2]]",
        "[[1,2]",
        "[1,2",
        "[1]2,3]",
        "[1,[2]",
        "[1,2}",
        "]1,2[",
        "[[1,2],]",
        "[1,2],",
        "[01,2]",
        "[1.,2]",
        "[.5,2]",
        "[1,0x2]",
        "[1,2\x00]",
        "[1,\x0b2]",
        "[1,/*x*/2]",
    ],
)
def test_brackets_and_commas_out_of_place_are_refused(data: str) -> None:
    for datatype in ("FP32", "INT64", "BOOL"):
        for chunk_bytes in (None, 1):
            with pytest.raises(CodecError):
                only_blob(one_output(data, datatype, "[2]"), chunk_bytes)


@pytest.mark.parametrize("broken", ["1,]", "],1]", ",1]", "}]", "1,,1]", "[1,],1]", "[,1],1]", "1]]", "1],[1]"])
def test_brackets_and_commas_out_of_place_are_refused_also_where_a_piece_is_cut(broken: str, piece_bytes: int) -> None:
    n_filler = piece_bytes // 2 - 4
    n_elements = n_filler + broken.count("1")  # so that their number is not what is refused
    for blanks in range(11):  # the piece ends at each byte of what is broken
        data = "[" + "1," * n_filler + " " * blanks + broken
        with pytest.raises(CodecError):
            only_blob(one_output(data, "INT8", f"[{n_elements}]"))


@pytest.mark.parametrize(
    ("item", "shape", "values"),
    [
        ("[[1],[2]]", "[{},2,1]", [1.0, 2.0]),
        ("  [ 1 ,\n  2 ] ", "[{},2]", [1.0, 2.0]),
        ('["NaN",1]', "[{},2]", [np.nan, 1.0]),
        ("[[null,-0]]", "[{},1,2]", [np.nan, -0.0]),
    ],
)
def test_nested_data_is_cut_anywhere_and_read_the_same(
    item: str, shape: str, values: list[float], piece_bytes: int
) -> None:
    n_items = piece_bytes * 5 // 4 // len(item)
    expected = np.tile(np.array(values, "<f4"), n_items)
    for shift in range(len(item) + 1):  # as many bytes as an item and its comma have
        data = "[" + " " * shift + ",".join([item] * n_items) + "]"
        read = np.frombuffer(only_blob(one_output(data, "FP32", shape.format(n_items))), "<f4")
        assert np.array_equal(read, expected, equal_nan=True)
        assert np.array_equal(np.signbit(read[1::2]), np.signbit(expected[1::2]))


@pytest.mark.rule("4.7")
@pytest.mark.parametrize(
    "data",
    [
        "[[1,2,3],[4]]",
        "[[1],[2,3,4]]",
        "[[1,2],3,4]",
        "[1,2,[3,4]]",
        "[[1,2],[3,4],[]]",
        "[[],[1,2],[3,4]]",
        "[[1,2,3,4]]",
        "[[1],[2],[3],[4]]",
        "[[[1,2],[3,4]]]",
    ],
)
def test_ragged_data_is_refused_by_output(data: str) -> None:
    for chunk_bytes in (None, 1):
        with pytest.raises(CodecError, match="output 'y'"):
            only_blob(one_output(data, "INT32", "[2,2]"), chunk_bytes)


@pytest.mark.rule("4.7")
@pytest.mark.parametrize(
    ("data", "n_elements", "words"),
    [
        ("[1,2,3]", 4, "expected 4 elements, got 3"),
        ("[1,2,3]", 2, "expected 2 elements, got more"),
        ("[]", 1, "expected 1 elements, got 0"),
        ("[1]", 0, "expected 0 elements, got more"),
        ("[" + "1," * 100_000 + "1]", 3, "expected 3 elements, got more"),
    ],
)
def test_wrong_number_of_elements_is_refused_with_both_numbers(data: str, n_elements: int, words: str) -> None:
    with pytest.raises(CodecError, match=f"output 'y'.*{words}"):
        only_blob(one_output(data, "FP64", f"[{n_elements}]"))


def test_text_that_float64_reads_to_the_wrong_side_is_read_to_the_right_one() -> None:
    assert nearest_bits(FP32_READ_TWICE, "FP32") == FP32_READ_TWICE_BITS
    assert int(np.float32(float(FP32_READ_TWICE)).view("u4")) == FP32_READ_TWICE_BITS + 1  # why it is here
    for text, sign in ((FP32_READ_TWICE, 0), ("-" + FP32_READ_TWICE, 1 << 31)):
        for layout in ("[{}]", "[[1],[ {} ]]", "[null,{}]", "[[1],\n[{}],[3]]"):
            data = layout.format(text)
            n_elements = data.count(",") + 1
            words = np.frombuffer(only_blob(one_output(data, "FP32", f"[{n_elements}]")), "<u4")
            assert sign | FP32_READ_TWICE_BITS in words


@pytest.mark.parametrize("data", [f"[[],[{FP32_READ_TWICE}]]", f"[1,[],{FP32_READ_TWICE}]"])
def test_tie_beside_an_empty_list_is_refused_like_any_other_number(data: str) -> None:
    with pytest.raises(CodecError, match="output 'y'"):
        only_blob(one_output(data, "FP32", "[2]" if "1," in data else "[1]"))


ABOVE_TIE = {
    "FP32": "1.00000005960464477539062500000000001",
    "FP16": "1.00048828125000000000000000000000001",
    "BF16": "1.00390625000000000000000000000000001",
}


@pytest.mark.parametrize(
    "datatype",
    [
        "FP32",
        "FP16",
        "BF16",
    ],
)
def test_decimal_just_above_a_tie_is_rounded_up(datatype: str) -> None:
    text = ABOVE_TIE[datatype]
    bits = nearest_bits(text, datatype)
    assert int.from_bytes(only_blob(one_output(f"[{text}]", datatype)), "little") == bits


def test_decimal_just_above_a_tie_of_denormals_is_rounded_up() -> None:
    text = (
        "7.0064923216240853546186479164495806564013097093825788587853414194489554134293030074331909418106079101563e-46"
    )
    assert nearest_bits(text, "FP32") == 1
    assert int.from_bytes(only_blob(one_output(f"[{text}]", "FP32")), "little") == 1


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize(
    ("datatype", "tie", "above"),
    [("BF16", "257", "257.0000000000000000001"), ("FP32", "16777217", "16777217.0000000001")],
)
def test_many_ties_are_looked_up_a_few_at_a_time(
    datatype: str, tie: str, above: str, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[int] = []
    look_up = number_parsing._moved_off_ties

    def counted(values: Array, tied: Array, text: bytes) -> Array:
        looked_up.append(len(tied))
        return look_up(values, tied, text)

    monkeypatch.setattr(number_parsing, "_moved_off_ties", counted)
    count = 20_000
    numbers = [above if index % 7 == 0 else tie for index in range(count)]
    data = "[" + ",".join(f"[{number}]" if nested else number for number in numbers) + "]"
    blob = only_blob(one_output(data, datatype, f"[{count},1]"))
    bits = np.frombuffer(blob, "<u2" if datatype == "BF16" else "<u4")
    assert all(bits[::7] == bits[1] + 1)  # the ties go to the even neighbour, which is the lower one
    assert sum(looked_up) == count
    assert max(looked_up) <= 2 * number_parsing.TIED_PIECE_BYTES / len(tie)


@pytest.mark.parametrize(("datatype", "smallest"), [("FP16", 2.0**-24), ("BF16", 2.0**-133), ("FP32", 2.0**-149)])
@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("spelling", ["f", "e"])
def test_tie_of_denormals_is_seen_in_every_spelling(datatype: str, smallest: float, sign: str, spelling: str) -> None:
    exact = format(Decimal(smallest * 2.5), spelling)
    above = exact.replace("e", "0001e") if "e" in exact else exact + "0001"
    for text, steps in ((exact, 2), (above, 3)):
        assert nearest_bits(text, datatype) == steps
        data = f"[0,{sign}{text},0.5,0]"
        blob = only_blob(one_output(data, datatype, "[4]"))
        bits = np.frombuffer(blob, f"<u{len(blob) // 4}")
        assert int(bits[1]) == steps | (bool(sign) << (len(blob) * 2 - 1))


@pytest.mark.parametrize("zero", ["0", "0.0", "-0.0", "0e5"])
@pytest.mark.parametrize("other", ["-0.5", "-1", "-0.0", "-0e0"])
def test_zeros_beside_negative_numbers_keep_their_signs(zero: str, other: str) -> None:
    read = np.frombuffer(only_blob(one_output(f"[{zero},{other},{zero}]", "FP32", "[3]")), "<f4")
    assert np.signbit(read).tolist() == [zero.startswith("-"), True, zero.startswith("-")]


@pytest.mark.parametrize(("text", "datatype"), [("9007199254740993.0", "INT64"), ("18446744073709551615.0", "UINT64")])
def test_whole_number_with_a_point_keeps_its_64_bits(text: str, datatype: str) -> None:
    assert int.from_bytes(only_blob(one_output(f"[{text}]", datatype)), "little") == int(text[:-2])


def test_fraction_beyond_the_digits_of_float64_is_still_a_fraction() -> None:
    with pytest.raises(CodecError, match="INT32 cannot hold"):
        only_blob(one_output("[0.99999999999999999999]", "INT32"))


@pytest.mark.parametrize(("depth", "leaf"), [(20_000, "1"), (20_000, ""), (20_000, "1,1"), (100_000, "null")])
def test_brackets_without_end_are_refused(depth: int, leaf: str) -> None:
    for closing in ("", "]" * depth):
        for reversed_keys in (False, True):
            with pytest.raises(CodecError):
                only_blob(one_output("[" * depth + leaf + closing, "FP32", reversed_keys=reversed_keys), 65536)


@pytest.mark.parametrize("depth", [1100, 3000])
def test_brackets_that_open_and_close_within_a_piece_are_counted_too(depth: int) -> None:
    with pytest.raises(CodecError, match="nested"):
        only_blob(one_output("[" * depth + "null" + "]" * depth))


def test_limit_of_depth_does_not_depend_on_the_datatype() -> None:
    for data, datatype in (('"a"', "BYTES"), ("1", "FP32")):
        with pytest.raises(CodecError, match="nested deeper than 64"):
            only_blob(one_output("[" * 65 + data + "]" * 65, datatype))


def test_sixty_four_brackets_are_allowed() -> None:
    assert only_blob(one_output("[" * 64 + "1" + "]" * 64, "INT8")) == b"\1"


def test_impossible_number_of_elements_is_refused_before_it_is_allocated() -> None:
    for shape in ("[65536,65536,65536]", json.dumps([2**60] * 64), "[9223372036854775807]"):
        with pytest.raises(CodecError, match="output 'y'.*cannot be in an answer of at most"):
            only_blob(one_output("[1]", "FP64", shape))


def test_as_many_elements_as_the_text_can_hold_are_allowed() -> None:
    answer = one_output("[1,2,3]", "UINT8", "[3]")
    assert bytes(read_answer([answer], max_bytes=len(answer)).blobs[0]) == b"\1\2\3"


def test_large_answers_are_the_same_in_chunks_of_any_size() -> None:
    values = np.random.default_rng(5).standard_normal(50_000).astype("<f4")
    answer = one_output(json.dumps(values.reshape(-1, 4).tolist()), "FP32", "[12500,4]")
    for chunk_bytes in (None, 100, 4096, 65536, PIECE_BYTES, PIECE_BYTES + 1):
        assert only_blob(answer, chunk_bytes) == values.tobytes()


SLOW_FOR_SIMDJSON: dict[str, Callable[[float], str]] = {
    **{f"e{exponent}": f"{{:.18f}}e{exponent}".format for exponent in (-300, -37, 0, 280)},
    "e and E": lambda number: f"{number:.18f}{'eE'[int(number * 1e9) % 2]}0",
    "20 places": "{:.20f}".format,
    "12 places": lambda number: f"{number * 1e9:.12f}",
    "300 digits": lambda number: f"{int(number * 1e15)}{'7' * 285}.5",
    "far below 1": lambda number: f"0.{'0' * 300}{int(number * 1e15)}1234567",
}


@pytest.mark.parametrize("form", SLOW_FOR_SIMDJSON)
@pytest.mark.parametrize("rank", [1, 2, 6])
def test_numbers_that_simdjson_reads_slowly_are_read_exactly_in_shorter_steps(form: str, rank: int) -> None:
    """simdjson takes up to 25 us for each; orjson does not, but makes an object of each list."""
    dice = random.Random(1)
    texts = [SLOW_FOR_SIMDJSON[form](dice.random() + 1) for _ in range(5_000)]
    between = "]" * (rank - 1) + "," + "[" * (rank - 1)
    buffer = bytearray(f"{'[' * rank}{between.join(texts)}{']' * rank}".encode())
    sink = NumberSink("x", DATATYPES["FP64"], (len(texts), *[1] * (rank - 1)))
    taken = [0]
    while not sink.done:
        taken.append(sink.step(buffer))
        assert taken[-1]
        del buffer[: taken[-1]]
    assert np.frombuffer(sink.blobs()[0], "<f8").tolist() == list(map(float, texts))
    of_list = len(texts[0]) + 2 * rank
    most_bytes = 2 * LIST_PIECE_BYTES * of_list / (of_list + (rank > 1) * (rank - 1) * LIST_BYTES)
    assert max(taken) <= max(most_bytes, 2 * TIED_PIECE_BYTES)


@pytest.mark.parametrize("words", [["1e0", "null"], ["1"] * 50 + ["null"], ["16777217.0e0", "NaN"]])
@pytest.mark.parametrize("rank", [2, 30])
def test_values_for_the_tolerant_path_among_numbers_in_lists_of_their_own(words: list[str], rank: int) -> None:
    """A piece that is too long for its lists is read in shorter ones, on either path."""
    texts = words * (1500 // len(words))
    between = "]" * (rank - 1) + "," + "[" * (rank - 1)
    answer = one_output(f"{'[' * rank}{between.join(texts)}{']' * rank}", "FP32", str([len(texts), *[1] * (rank - 1)]))
    expected = np.array([np.nan if text in ("null", "NaN") else float(text) for text in texts], "<f4")
    assert only_blob(answer, 65536) == expected.tobytes()


@pytest.mark.parametrize("shape", [(3,), None])
@pytest.mark.parametrize(
    "number", [f"0.{'1' * 65_000}", f"0.{'0' * 65_000}1", f"1.23456789012345678901234{' ' * 65_000}"]
)
def test_a_number_that_no_piece_can_be_cut_in_is_read_as_any_other(number: str, shape: tuple[int, ...] | None) -> None:
    """What orjson takes too long for is read in shorter pieces, but only where there is a comma."""
    sink = NumberSink("x", DATATYPES["FP64"], shape)
    buffer = bytearray(f"[1,{number},1]".encode())
    while not sink.done:
        taken = sink.step(buffer)
        assert taken
        del buffer[:taken]
    values = np.concatenate([np.frombuffer(blob, "<f8") for blob in sink.blobs()])
    assert values.tolist() == [1, float(number), 1]


@pytest.mark.parametrize("n_digits", [60_000, 65_470, 65_500, 65_530])
def test_a_bare_number_is_read_up_to_the_largest_piece(n_digits: int) -> None:
    sink = NumberSink("x", DATATYPES["FP64"], None)
    assert sink.step(bytearray(f"0.{'1' * (n_digits - 2)}}}".encode())) == n_digits
    assert np.frombuffer(sink.blobs()[0], "<f8").tolist() == [float("0." + "1" * 30)]


@pytest.mark.parametrize("scale", [1, 0.03, 1e-3])
@pytest.mark.parametrize("datatype", ["<f4", "<f8"])
def test_numbers_as_python_prints_them_are_read_in_the_longest_pieces(
    scale: float, datatype: str, piece_bytes: int
) -> None:
    """Those have 17 significant digits at most, whatever zeros are before them."""
    values = (np.random.default_rng(1).random(30_000) * scale + 1e-4).astype(datatype).tolist()
    buffer = bytearray(json.dumps(values).encode())
    sink = NumberSink("x", DATATYPES["FP64"], (len(values),))
    assert piece_bytes - 100 < sink.step(buffer) <= piece_bytes


@pytest.mark.parametrize("rank", [9, 31, 63])
@pytest.mark.parametrize("is_shape_known", [True, False])
def test_steps_with_many_lists_around_each_number_read_less_text(
    rank: int, is_shape_known: bool, piece_bytes: int
) -> None:
    """Each list around a number is counted, which takes a pass over the text of its own."""
    shape = (300_000 // (2 * rank), *[1] * (rank - 1))
    values = np.arange(shape[0], dtype="<f4")
    buffer = bytearray(json.dumps(values.reshape(-1).tolist()).encode().replace(b", ", b",")[1:-1])
    buffer = bytearray(buffer.replace(b",", b"]" * (rank - 1) + b"," + b"[" * (rank - 1)))
    buffer = bytearray(b"[" * rank + buffer + b"]" * rank)
    sink = NumberSink("x", DATATYPES["FP32"], shape if is_shape_known else None)
    taken = [0]
    while not sink.done:
        taken.append(sink.step(buffer))
        assert taken[-1]
        del buffer[: taken[-1]]
    assert (b"".join(sink.blobs()), sink.shape) == (values.tobytes(), shape)
    assert max(taken) <= max(piece_bytes // (1 + rank // 5), TOLERANT_PIECE_BYTES)


def test_quoted_nan_beside_keys_named_nan_touches_only_the_values() -> None:
    answer = (
        b'{"outputs":[{"NaN":"NaN","name":"y","datatype":"FP32","shape":[2],"data":["NaN","Infinity"],"NaN":"Infinity",'
        b'"Infinity":["NaN"]},{"name":"z","datatype":"FP32","shape":[1],"data":["-Infinity"]}],"NaN":"NaN"}'
    )
    for chunk_bytes in (None, 1, 5):
        reply = read_answer(cut(answer, chunk_bytes))
        document = json.loads(b"".join(reply.header), parse_constant=pytest.fail)
        assert document["NaN"] == "NaN"
        assert document["outputs"][0]["NaN"] == "Infinity"
        assert document["outputs"][0]["Infinity"] == ["NaN"]
        first, second = (np.frombuffer(blob, "<f4") for blob in reply.blobs)
        assert np.isnan(first[0])
        assert list(first[1:]) + list(second) == [np.inf, -np.inf]


@pytest.mark.parametrize("number", ["1e99999999999999999999", "-1E+1000000000000000000", "1e-99999999999999999999999"])
@pytest.mark.parametrize("datatype", ["INT32", "UINT8", "UINT64", "BOOL"])
def test_exponents_beyond_all_measure_are_refused_by_output(number: str, datatype: str) -> None:
    for chunk_bytes in (None, 1):
        with pytest.raises(CodecError, match="output 'y'.*element 1"):
            only_blob(one_output(f"[1,{number}]", datatype, "[2]"), chunk_bytes)


def test_piece_of_nothing_but_blanks_between_two_commas_is_refused() -> None:
    data = b"[1," + b" " * (PIECE_BYTES - 2) + b",2]"
    with pytest.raises(CodecError, match="without a"):
        only_blob(one_output(data, "INT32", "[2]"))


def test_list_that_is_first_nested_behind_a_piece_is_refused() -> None:
    data = b"[" + b"1," * PIECE_BYTES + b"[2]," + b"3," * PIECE_BYTES + b"4]"
    with pytest.raises(CodecError, match="nested"):
        only_blob(one_output(data, "INT32", f"[{2 * PIECE_BYTES + 2}]"))


@pytest.mark.parametrize("distance", [100, 1000, 20_000])
def test_values_that_only_the_tolerant_path_reads_may_be_far_apart(distance: int) -> None:
    numbers_with_null = [None if index % distance == 7 else float(index) for index in range(60_000)]
    expected = np.array([np.nan if number is None else number for number in numbers_with_null], "<f4")
    answer = one_output(json.dumps(numbers_with_null), "FP32", "[60000]")
    assert np.array_equal(np.frombuffer(only_blob(answer, 100_000), "<f4"), expected, equal_nan=True)


def test_array_is_held_as_far_as_it_is_filled() -> None:
    sink = NumberSink("output 'y'", DATATYPES["FP64"], (500_000_000,))
    assert sink.held_bytes == 0
    buffer = bytearray(b"[" + b"1.5," * PIECE_BYTES)
    while taken := sink.step(buffer):
        del buffer[:taken]
    assert 8 * PIECE_BYTES * 0.9 < sink.held_bytes <= 8 * PIECE_BYTES


@pytest.mark.parametrize("shape", [(2**60,), (2**62, 2**62)])
def test_array_that_the_machine_has_no_room_for_is_refused_by_name(shape: tuple[int, ...]) -> None:
    with pytest.raises(CodecError, match="^output 'y': there is no memory for [0-9]+ elements of 8 bytes$"):
        NumberSink("output 'y'", DATATYPES["FP64"], shape)


@pytest.mark.parametrize("shape", [None, (20_001, 0), (0,)])
@pytest.mark.parametrize("lists", [b"[]", b"[ ]", b"[[],[]]"])
def test_lists_without_elements_are_read_many_at_a_time(lists: bytes, shape: tuple[int, ...] | None) -> None:
    n_lists = 20_000
    buffer = bytearray(b"[" + (lists + b",") * n_lists + lists + b"]}")
    sink = NumberSink("output 'y'", DATATYPES["FP32"], shape)
    steps = 0
    while not sink.done:
        del buffer[: sink.step(buffer)]
        steps += 1
    assert sink.shape == (shape or (n_lists + 1, *[2] * lists.count(b","), 0))
    assert steps < n_lists / 200


def test_a_nan_among_many_ties_is_counted_once() -> None:
    """Ties make a piece start again with less text."""
    tie = "1.00390625"  # halfway between two numbers of BF16
    data = "[" + ",".join(["NaN", *[tie] * 4000]) + "]"
    assert read_answer([one_output(data, "BF16", "[4001]")]).nonfinite == 1
