"""Numbers from base64: exact, in lists as they come, in pieces; whatever is broken is refused by its element."""

import base64
import json
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.json.sinks import pour
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.tensors.nested_printing import NestedTensor
from gateway.codec.tensors.packed_reading import PackedNumberSink, decoded_together
from gateway.codec.tensors.string_printing import StringForm
from gateway.codec.tensors.string_reading import BLOB_BYTES
from gateway.errors import CodecError
from tests.codec.test_properties import NUMERIC, PROFILE, finite_tensors
from tests.codec.walk import cut, exhaust

ONE = base64.b64encode(np.array([1, 2], "<f4").tobytes()).decode()


def read(data: bytes, datatype: str = "FP32", chunk_bytes: int | None = None) -> PackedNumberSink:
    sink = PackedNumberSink("output 'y'", DATATYPES[datatype])
    exhaust(pour(cut(data + b" }", chunk_bytes), sink))
    return sink


def blob_in(sink: PackedNumberSink) -> bytes:
    return b"".join(map(bytes, sink.blobs()))


def printed(blob: bytes, datatype: str, shape: tuple[int, ...]) -> bytes:
    tensor = NestedTensor(memoryview(blob), DATATYPES[datatype], shape, number_form=StringForm.BASE64)
    return b"".join(tensor.pieces())


@pytest.mark.parametrize("datatype", [name for name in NUMERIC if name != "BOOL"])
@PROFILE
@given(data=st.data())
def test_numbers_cross_in_base64_and_back_without_a_changed_bit(datatype: str, data: st.DataObject) -> None:
    """Any bits -> a text for each row, as Python's own base64 has it -> the same bits, wherever the text is cut."""
    shape, values = data.draw(finite_tensors(datatype))
    if not shape or 0 in shape:
        return
    blob = values.tobytes()
    text = printed(blob, datatype, tuple(shape))
    rows = [base64.b64encode(row.tobytes()).decode() for row in values.reshape(-1, shape[-1])]
    array = np.empty(len(rows), object)
    array[:] = rows
    assert json.loads(text) == array.reshape(shape[:-1]).tolist()
    for chunk_bytes in (1, 5, None):
        sink = read(text, datatype, chunk_bytes)
        assert (sink.shape, blob_in(sink)) == (tuple(shape), blob)
        assert sink.held_bytes == len(blob)
    at = data.draw(st.integers(0, len(text)))
    sink = PackedNumberSink("y", DATATYPES[datatype])
    exhaust(pour([text[:at], text[at:] + b" "], sink))
    assert blob_in(sink) == blob


@pytest.mark.parametrize("n_columns", [1, 3, 50_000])
@pytest.mark.parametrize("datatype", ["FP32", "INT8", "FP64", "BF16"])
def test_long_texts_are_read_part_by_part(datatype: str, n_columns: int) -> None:
    """So is a text with escapes in it: base64 has a slash, which JSON may escape, and Python writes lines."""
    row = DATATYPES[datatype]
    blob = random.Random(1).randbytes(3 * n_columns * row.item_bytes)
    text = printed(blob, datatype, (3, n_columns))
    lines = json.dumps([base64.encodebytes(base64.b64decode(item)).decode() for item in json.loads(text)]).encode()
    for data in (text, text.replace(b"/", b"\\/"), text.replace(b'","', b'" ,\n"'), lines):
        for chunk_bytes in (None, 1000, 65_537):
            sink = read(data, datatype, chunk_bytes)
            assert (sink.shape, blob_in(sink)) == ((3, n_columns), blob)


def test_a_text_alone_is_one_dimension() -> None:
    assert read(b'"AACAPwAAAEA="').shape == (2,)
    assert read(b'"AACAPw=="').shape == (1,)
    assert read(b'""').shape == (0,)
    assert read(b'["",""]').shape == (2, 0)
    assert read(b"[]").shape == (0,)
    assert read(b"[[],[]]").shape == (2, 0)
    blob = random.Random(2).randbytes(3 * BLOB_BYTES + 8)
    text = b'"%b"' % base64.b64encode(blob)
    sink = read(text, "FP64")
    assert (sink.shape, blob_in(sink)) == ((len(blob) // 8,), blob)
    assert all(len(part) % 8 == 0 for part in sink.blobs())
    assert max(map(len, sink.blobs())) < BLOB_BYTES + 65_536


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('["AACAPw==","AAAA"]', "element 1: expected whole elements of FP32, 4 bytes each, in base64, got 3 bytes"),
        (f'["{ONE}","AACAPw=="]', "element 1: expected 2 elements of FP32 as in element 0, got 1"),
        ('["AACAPw==","AACAPw="]', "element 1 is not base64"),
        ('["AACAPw"]', "element 0 is not base64"),
        ('["AACA Pw=="]', "element 0 is not base64"),
        ('["AACAPw==","AACA!w=="]', "element 1 is not base64"),
        ('["AACAPw==","AACA_w=="]', "element 1 is not base64"),
        ('["AACAPw==","é"]', "element 1 is not base64"),
        ('["AACAPw==","AACAPw==AACAPw=="]', "element 1 is not base64"),
        ("[1.5,2.5]", "element 0: expected a text in base64, got 1.5"),
        ('["AACAPw==",null]', "element 1: expected a text in base64, got null"),
        ('["AACAPw==",NaN]', "element 1: expected a text in base64, got NaN"),
        ('[{"b64":"AACAPw=="}]', "element 0: expected a text in base64, got"),
        ("5", "element 0: expected a text in base64, got 5"),
        ('["AACAPw==",["AACAPw=="]]', "ragged"),
        ('[["AACAPw=="],["AACAPw==","AACAPw=="]]', "ragged"),
        ('["AACAPw==" "AACAPw=="]', "not JSON"),
        ('["AACAPw==",]', ""),
        ('["AACAPw=="', "cut off"),
        ('"AACAPw', "cut off"),
    ],
)
def test_other_texts_are_refused_by_output_and_element(data: str, words: str) -> None:
    for chunk_bytes in (None, 1):
        with pytest.raises(CodecError, match=f"output 'y': .*{words}"):
            sink = PackedNumberSink("output 'y'", DATATYPES["FP32"])
            exhaust(pour(cut(data.encode() + b" " * data.isdigit(), chunk_bytes), sink))


@pytest.mark.parametrize(
    ("before", "tail", "words"),
    [
        ('["', 'AAAA"]', "element 0: expected whole elements"),
        ('["AAAA', '"]', "element 0: expected whole elements"),
        ('["', 'AA=="]', "element 0: expected whole elements"),
        ('["', '=AAA"]', "element 0 is not base64"),
        ('["', 'AAA!"]', "element 0 is not base64"),
        ('["', 'A"]', "element 0 is not base64"),
        ('["AACAPw==","', '"]', "element 1: expected 1 elements of FP32 as in element 0, got 48000"),
        ('["', '","AACAPw=="]', "element 1: expected 48000 elements of FP32 as in element 0, got 1"),
        ('[{"a":"', '"}]', "element 0: expected a text in base64"),
        ('["', '\\q"]', "element 0 is not JSON"),
        ('["', '\\ud800"]', ""),
    ],
)
def test_long_texts_are_refused_by_output_and_element(before: str, tail: str, words: str) -> None:
    data = before + "A" * 256_000 + tail
    for chunk_bytes in (None, 1000):
        with pytest.raises(CodecError, match=f"output 'y': .*{words}"):
            read(data.encode(), chunk_bytes=chunk_bytes)


@PROFILE
@given(st.lists(st.binary(max_size=9), min_size=2, max_size=6), st.integers(0, 3), st.data())
def test_texts_that_are_decoded_together_are_what_each_is(
    rows: list[bytes], n_broken: int, data: st.DataObject
) -> None:
    """Together is None, or what strict decoding one by one gives; of sound texts of one length it is not None."""
    texts = [base64.b64encode(row).decode() for row in rows]
    for _ in range(n_broken):
        index = data.draw(st.integers(0, len(texts) - 1))
        if texts[index]:
            at = data.draw(st.integers(0, len(texts[index]) - 1))
            character = data.draw(st.sampled_from("=A!\n"))
            texts[index] = texts[index][:at] + character + texts[index][at + 1 :]
    octets = decoded_together(texts)
    if octets is not None:
        assert octets == b"".join(base64.b64decode(text, validate=True) for text in texts)
        assert all(base64.b64encode(base64.b64decode(text)).rstrip(b"=")[:-1] in text.encode() for text in texts)
    elif not n_broken:
        assert len(set(map(len, rows))) > 1 or not rows[0]


def test_what_is_no_text_is_not_decoded_together() -> None:
    for items in ([1, 2], ["AAAA", None], ["AAAA", "AAAAAAAA"], ["ééé=", "AAAA"], ["AA==", "A==A"], ["A===", "A==="]):
        assert decoded_together(list[Any](items)) is None


def test_steps_over_short_texts_are_bounded() -> None:
    data = bytearray(b"[%b]" % b",".join([b'"AACAPw=="'] * 100_000))
    sink = PackedNumberSink("y", DATATYPES["FP32"])
    while not sink.done:
        taken = sink.step(data)
        assert 0 < taken <= 65_536
        del data[:taken]
    assert (sink.shape, math.prod(sink.shape) * 4) == ((100_000, 1), sink.held_bytes)
