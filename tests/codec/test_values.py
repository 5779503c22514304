"""Values that are there as a whole: what is read in a few calls is what a sink makes of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.output import Output
from gateway.codec.json.arriving import ArrivingText
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.tensors.number_parsing import read_few
from gateway.codec.values import SHORT_BYTES, shaped_blob, short_value
from gateway.errors import CodecError
from tests.codec.test_properties import PROFILE


@PROFILE
@given(
    datatype=st.sampled_from(list(DATATYPES)),
    text=st.one_of(
        st.text('[],-01.eE"auefl \\', max_size=20),
        st.lists(
            st.sampled_from(["[", "]", "[1,2]", "1", "-0", "1.5", '"a"', "true", ",", "null", "1e39"]), max_size=12
        ).map("".join),
    ),
)
def test_short_value_is_what_a_sink_makes_of_it_or_left_to_the_sink(datatype: str, text: str) -> None:
    text = f"[{text}]"
    short = short_value(text.encode(), DATATYPES[datatype])
    sink = Output("y", TensorDescription(), DATATYPES[datatype]).new_sink()
    try:
        for _ in ArrivingText.of_value(bytearray(text.encode())).pour(sink):
            pass
    except CodecError:
        assert short is None
        return
    assert short is None or (short.shape, b"".join(short.blobs)) == (sink.shape, b"".join(sink.blobs()))


@pytest.mark.parametrize("datatype", DATATYPES)
def test_short_values_of_every_datatype_are_read_in_a_few_calls(datatype: str) -> None:
    item = {"BYTES": '"é"', "BOOL": "true"}.get(datatype, "1")
    for shape, text in (((), item), ((1, 2), f"[[{item}, {item}]]"), ((2, 1, 1), f"[[[{item}]],[[{item}]]]")):
        value = short_value(text.encode(), DATATYPES[datatype])
        assert value is not None and value.shape == shape
    assert short_value(b"[[1],[1,1]]", DATATYPES[datatype]) is None
    assert short_value(b"[]", DATATYPES[datatype]) is None


def test_value_of_a_shape_may_be_nested_like_it_or_flat() -> None:
    for text in (b"[1,2,3,4]", b"[[1,2],[3,4]]", b"[ [1, 2], [3, 4]]"):
        blob = shaped_blob(text, DATATYPES["INT8"], (2, 2))
        assert blob is not None and bytes(blob) == b"\1\2\3\4"
    for text in (b"[[1,2,3,4]]", b"[[1],[2],[3],[4]]", b"[[1,2],[3]]", b"[1,2,3]", b"4", b"{}", b'"x"', b"null"):
        assert shaped_blob(text, DATATYPES["INT8"], (2, 2)) is None


def test_only_flat_numbers_are_read_at_any_length() -> None:
    count = SHORT_BYTES
    assert shaped_blob(b"[%b1]" % (b"1," * (count - 1)), DATATYPES["UINT8"], (count,)) is not None
    assert shaped_blob(b"[[%b1]]" % (b"1," * (count - 1)), DATATYPES["UINT8"], (1, count)) is None
    assert shaped_blob(b'["%b"]' % (b"x" * count), DATATYPES["BYTES"], (1,)) is None


@pytest.mark.parametrize("datatype", ["FP16", "FP32"])
def test_zero_and_one_among_rounded_numbers_are_read_in_a_few_calls_and_ties_are_not(datatype: str) -> None:
    wire = DATATYPES[datatype].wire
    assert read_few(b"[0.0,0.1,1,0.5]", DATATYPES[datatype], 4) == np.array([0, 0.1, 1, 0.5], wire).tobytes()
    tie = float(np.nextafter(wire.type(1), wire.type(2))) / 2 + 0.5
    assert read_few(b"[0.0,0.1,1,%.30f]" % tie, DATATYPES[datatype], 4) is None
