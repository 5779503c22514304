"""Numbers written as texts: which texts are numbers, and that no two texts, or half of one, ever become another."""

import json
import random
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.json.sinks import step_of
from gateway.codec.tensors import number_parsing
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.tensors.nested_printing import NestedTensor
from gateway.codec.tensors.number_reading import NumberSink
from gateway.codec.tensors.number_texts import unquoted
from gateway.codec.tensors.string_printing import StringForm
from gateway.codec.values import short_value
from gateway.errors import CodecError
from tests.codec.make_pairs import WIRE
from tests.codec.test_properties import DICE, FLOATS, NUMERIC, PROFILE, finite_tensors
from tests.codec.walk import cut, nearest_bits

TEXTUAL = [name for name in NUMERIC if name != "BOOL"]


@pytest.fixture(params=["simdjson", "list"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here holds with simdjson and without it."""
    if request.param == "list":
        monkeypatch.setattr(number_parsing, "_PARSER", None)


def read(
    data: bytes, datatype: str, shape: tuple[int, ...] | None = None, chunk_bytes: int | None = None, **options: Any
) -> NumberSink:
    """The sink that has read *data*, behind which a document goes on."""
    sink = NumberSink("output 'y'", DATATYPES[datatype], shape, **{"takes_texts": True, **options})
    drive(sink, cut(data + b" ", chunk_bytes))
    return sink


def drive(sink: NumberSink, chunks: list[bytes]) -> None:
    """Feed *chunks* to *sink*. Raises `CodecError` also for what follows the value, and for one that goes on."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while buffer and not sink.done and (taken := step_of(sink, buffer)):
            del buffer[:taken]
    if not sink.done or buffer.strip():
        raise CodecError("output 'y': the data is cut off, or more follows")


def blob_in(sink: NumberSink) -> bytes:
    return b"".join(map(bytes, sink.blobs()))


@pytest.mark.parametrize("datatype", TEXTUAL)
@PROFILE
@given(data=st.data())
def test_numbers_cross_as_texts_and_back_without_a_changed_bit(datatype: str, data: st.DataObject) -> None:
    """Any bits -> a text for each, the shortest, in lists like the shape -> the same bits, wherever the text is cut."""
    shape, values = data.draw(finite_tensors(datatype))
    if not values.size:
        return
    blob = memoryview(values.tobytes())
    plain = NestedTensor(blob, DATATYPES[datatype], tuple(shape))
    texts = b"".join(NestedTensor(blob, DATATYPES[datatype], tuple(shape), number_form=StringForm.TEXT).pieces())
    assert json.loads(texts) == in_texts(json.loads(b"".join(plain.pieces()), parse_float=str, parse_int=str))
    short = short_value(texts, DATATYPES[datatype], takes_texts=True)
    assert short is None or (short.shape, b"".join(short.blobs)) == (tuple(shape), bytes(blob))
    for chunk_bytes in (1, 2, 7, None):
        sink = read(texts, datatype, chunk_bytes=chunk_bytes)
        assert (sink.shape, blob_in(sink)) == (tuple(shape), bytes(blob))
        assert not sink.nonfinite
    at = data.draw(st.integers(0, len(texts)))
    sink = NumberSink("y", DATATYPES[datatype], tuple(shape) or None, takes_texts=True)
    drive(sink, [texts[:at], texts[at:] + b" "])
    assert blob_in(sink) == blob


def in_texts(tree: Any) -> Any:
    return [in_texts(item) for item in tree] if isinstance(tree, list) else str(tree)


def test_every_cut_of_long_texts_in_lists_reads_the_same() -> None:
    values = np.random.default_rng(3).standard_normal((40, 3, 2)).astype("f4")
    blob = memoryview(values.tobytes())
    texts = b"".join(NestedTensor(blob, DATATYPES["FP32"], values.shape, number_form=StringForm.TEXT).pieces())
    for at in range(len(texts)):
        sink = NumberSink("y", DATATYPES["FP32"], None, takes_texts=True)
        drive(sink, [texts[:at], texts[at:]])
        assert (sink.shape, blob_in(sink)) == (values.shape, bytes(blob))


@pytest.mark.parametrize(
    ("text", "datatype", "expected"),
    [
        ("9007199254740993", "INT64", 9007199254740993),
        ("-9223372036854775808", "INT64", -(2**63)),
        ("18446744073709551615", "UINT64", 2**64 - 1),
        ("1.0", "INT32", 1),
        ("1e2", "UINT8", 100),
        ("+7", "INT8", 7),
        ("-0", "INT8", 0),
        (" 12 ", "UINT16", 12),
        ("1.0E-5", "FP64", 1e-5),  # Java
        ("1e+21", "FP64", 1e21),  # JavaScript
        ("1.500000", "FP32", 1.5),  # C
        ("1.", "FP64", 1.0),  # numpy
        (".5", "FP64", 0.5),
        ("-.5", "FP16", -0.5),
        ("+2.5", "BF16", 2.5),
        ("0.50", "FP32", 0.5),
        ("-0", "FP64", -0.0),
        ("-0.0", "FP32", -0.0),
        ("NaN", "FP32", np.nan), ("nan", "FP64", np.nan), ("-nan", "FP64", np.nan),
        ("Infinity", "FP16", np.inf), ("inf", "FP64", np.inf), ("+Inf", "FP32", np.inf), ("INF", "BF16", np.inf),
        ("-Infinity", "FP32", -np.inf), ("-inf", "FP32", -np.inf),
    ],
)  # fmt: skip
def test_texts_that_servers_write_for_numbers_are_read(text: str, datatype: str, expected: float) -> None:
    wanted = np.array([expected]).astype(WIRE[datatype])
    for data, n_elements in ((f'"{text}"', 1), (f'["{text}"]', 1), (f'[["1","{text}"],["{text}","1"]]', 4)):
        for chunk_bytes in (None, 1):
            sink = read(data.encode(), datatype, chunk_bytes=chunk_bytes)
            found = np.frombuffer(blob_in(sink), WIRE[datatype])
            assert len(found) == n_elements
            mine = found[[1, 2]] if n_elements == 4 else found
            if np.isnan(expected):
                assert np.isnan(mine.astype("f8")).all()
            else:
                assert mine.tobytes() == wanted.tobytes() * len(mine)
            assert sink.nonfinite == (0 if np.isfinite(expected) else len(mine))


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "1,2", "1, 2", "1,", ",1", "[1]", "1]", "[1", "1],[2", "abc", "0x10", "007", "00", "-01", "1_000",
        "1 2", "--1", "+-1", "- 1", "1e", "e5", "1e5.0", ".", "+", "-", "-.", "1.5.2", "true", "null", "None", "1f",
        "1L", "1%", "\\u0031", "1\\n", "1\\t", "½", "１", "∞", "1'000", "nan1", "in", "infinit",
        "1e400", "-1e400",
    ],
)  # fmt: skip
def test_other_texts_are_refused_by_output_element_and_text(text: str) -> None:
    for before in ([], ["1.5"] * 5, ["1.5"] * 4000):
        data = "[" + ",".join(f'"{item}"' for item in [*before, text, "2", "3"]) + "]"
        for chunk_bytes in (None, 1) if len(before) < 100 else (None,):
            with pytest.raises(CodecError, match="output 'y': element .*") as raised:
                read(data.encode(), "FP64", chunk_bytes=chunk_bytes)
            if "\\" not in text and "e400" not in text:
                assert f"element {len(before)}: FP64 cannot hold {json.dumps(text)}" in str(raised.value)
        if len(before) < 100:
            assert short_value(data.encode(), DATATYPES["FP64"], takes_texts=True) is None


@pytest.mark.parametrize("datatype", ["INT8", "UINT8", "INT16", "INT32", "UINT32", "INT64", "UINT64"])
def test_texts_of_no_integer_or_a_larger_one_are_refused(datatype: str) -> None:
    row = DATATYPES[datatype]
    for text in ("1.5", "NaN", "inf", str(int(row.highest) + 1), str(row.lowest - 1), "1e99999999999999999999", "1e-5"):
        for data in (f'["1","{text}"]', f'["1",["{text}"]]'[:0] + f'[["1"],["{text}"]]'):
            with pytest.raises(CodecError, match=f"output 'y': element 1: {datatype} cannot hold"):
                read(data.encode(), datatype)
            assert short_value(data.encode(), row, takes_texts=True) is None


@pytest.mark.parametrize(
    "data",
    [
        '["1"2"3"]', '["1""2"]', '["1" "2"]', '[["1"]","[2]]', '["1,2",""]', '["1"],"["2"]', '["1",]', '[,"1"]',
        '["1"', '["1]', '[""1""]', '["1","2]', '["1"]"]', '[["1"],"2"]', '["2",["1"]]', '[["1","2"],["3"]]',
        '["1":"2"]',        '{"1":"2"}', '["1",{"a":"2"}]', '["1",true]', '["1","2"3]', "['1']", '["1"-1]', '[-"1"]',
    ],
)  # fmt: skip
def test_texts_that_are_not_in_lists_as_json_has_them_are_refused(data: str) -> None:
    for text in (data, data.replace('"1"', ",".join(['"1"'] * 3000))):
        for chunk_bytes in (None, 1) if text is data else (None,):
            with pytest.raises(CodecError):
                read(text.encode(), "INT32", chunk_bytes=chunk_bytes)
    assert short_value(data.encode(), DATATYPES["INT32"], takes_texts=True) is None


NUMBER = re.compile(r" *[+-]?(0|[1-9]\d*)(\.\d*)? *", re.ASCII)


@PROFILE
@given(
    inside=st.lists(
        st.sampled_from(['"1"', '"-2.5"', ",", "[", "]", '"', "3", "0", " ", '","', '"],["', "-", "."]), max_size=14
    ),
    dice=DICE,
)
def test_whatever_is_read_is_what_json_says(inside: list[str], dice: random.Random) -> None:
    """A text is refused, or JSON whose every leaf is a number, or a text that is one, in lists of equal lengths."""
    data = "[" + "".join(inside) + "]"
    chunk_bytes = dice.choice([None, 1, 2, 5])
    outcomes = []
    for way in ("sink", "short"):
        try:
            if way == "sink":
                sink = read(data.encode(), "FP64", chunk_bytes=chunk_bytes)
                outcomes.append((sink.shape, blob_in(sink)))
            elif (value := short_value(data.encode(), DATATYPES["FP64"], takes_texts=True)) is not None:
                outcomes.append((value.shape, b"".join(value.blobs)))
        except CodecError:
            assert not outcomes
    if not outcomes:
        return
    assert len(set(outcomes)) == 1
    shape, blob = outcomes[0]
    tree = np.array(json.loads(data, parse_float=str, parse_int=str), dtype=object)
    assert tree.shape == shape
    assert all(NUMBER.fullmatch(leaf) for leaf in tree.flat)
    assert blob == np.array([float(leaf) for leaf in tree.flat], "<f8").tobytes()


@pytest.mark.parametrize("datatype", [name for name in FLOATS if name != "FP64"])
@PROFILE
@given(data=st.data())
def test_a_text_is_rounded_once(datatype: str, data: st.DataObject) -> None:
    """The decimal just beside the middle of two neighbours becomes the one on its side, with NaN beside it or not."""
    _, values = data.draw(finite_tensors(datatype))
    row = DATATYPES[datatype]
    texts = []
    for value in row.widen(row.view(memoryview(values.tobytes()))).astype("f8").tolist()[:20]:
        if abs(value) * 2 < row.highest:
            step = Fraction(max(abs(value), row.smallest_normal)) * Fraction(1, 2 ** (53 - 29))
            texts += [decimal(Fraction(value)), decimal(Fraction(value) + step), decimal(Fraction(value) - step)]
    if not texts:
        return
    expected = b"".join(nearest_bits(text, datatype).to_bytes(row.item_bytes, "little") for text in texts)
    assert blob_in(read(json.dumps(texts).encode(), datatype)) == expected
    assert blob_in(read(json.dumps([*texts, "NaN"]).encode(), datatype))[: len(expected)] == expected


def decimal(value: Fraction) -> str:
    """*value*, whose denominator is a power of two, in all its digits."""
    digits = value.denominator.bit_length() - 1
    whole = str(abs(value.numerator) * 5**digits).rjust(digits + 1, "0")
    text = f"{whole[: len(whole) - digits]}.{whole[len(whole) - digits :]}0"
    return f"-{text}" if value < 0 else text


def test_texts_and_bare_numbers_may_stand_beside_each_other() -> None:
    items = [number if number % 3 else str(number) for number in range(20_000)]
    for data in (items, [[item] for item in items]):
        for options in ({"separators": (",", ":")}, {}):
            sink = read(json.dumps(data, **options).encode(), "INT32")  # type: ignore[arg-type]
            assert blob_in(sink) == np.arange(20_000, dtype="<i4").tobytes()


def test_64_bit_integers_as_texts_are_read_without_being_told() -> None:
    """proto3's JSON writes them so (protocol 4.7)."""
    for datatype, numbers in (("INT64", [2**53 + 1, -(2**63)]), ("UINT64", [2**64 - 1, 0])):
        text = json.dumps([str(number) for number in numbers]).encode()
        wanted = np.array(numbers, WIRE[datatype]).tobytes()
        assert blob_in(read(text, datatype, takes_texts=False)) == wanted
        value = short_value(text, DATATYPES[datatype])
        assert value is not None
        assert b"".join(value.blobs) == wanted
    assert short_value(b'["1"]', DATATYPES["FP64"]) is None


def test_who_does_not_take_texts_says_what_to_set_for_those_that_are_numbers() -> None:
    options: dict[str, Any] = {"takes_texts": False, "texts_hint": "; set it"}
    for text, words in (('["1.5"]', 'element 0: FP32 cannot hold "1.5"; set it$'), ('["a"]', 'cannot hold "a"$')):
        with pytest.raises(CodecError, match=words):
            read(text.encode(), "FP32", **options)
    assert read(b'["NaN",1,NaN,null]', "FP32", **options).nonfinite == 3


def test_only_quotes_of_numbers_are_taken_away() -> None:
    text = bytearray(b'"1","-2.5"],[ "3" , "b","4"')
    plain, limit, quotes = unquoted(text, len(text))
    assert plain[:limit] == b" 1 , -2.5 ],[  3  , "
    assert plain[limit:] == text[limit:]
    assert [text[at : at + 1] for at in quotes] == [b'"'] * 6
    assert unquoted(bytearray(b'["'), 2)[1] == 2
    plain, limit, quotes = unquoted(bytearray(b'["1","2"'), 8)
    assert (bytes(plain), limit, quotes.tolist()) == (b'[ 1 ,"2"', 8, [1, 3])


def test_steps_over_texts_stay_small() -> None:
    text = b"[%b]" % b",".join([b'"1"'] * 200_000)
    sink = NumberSink("y", DATATYPES["FP32"], None, takes_texts=True)
    buffer = bytearray(text)
    while not sink.done:
        taken = sink.step(buffer)
        assert 0 < taken <= 128 * 1024
        del buffer[:taken]
    assert sink.shape == (200_000,)
