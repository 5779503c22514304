"""Answers in other dialects: what of them the client gets, and what makes them unusable."""

import base64
import json
import math
import random
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.codec.dialects.answer import DialectAnswer
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.output import JOINED_BYTES
from gateway.codec.dialects.paths import AnswerForm, members_with_all
from gateway.codec.dialects.walk import Walk
from gateway.codec.inference import HeaderLimits, OutputSelection
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.v2.reply import Reply
from gateway.errors import CodecError
from tests.codec.dialects.driving import read_answer
from tests.codec.make_pairs import WIRE, blob_of, nested
from tests.codec.test_properties import DICE, PROFILE, SHAPES, UNICODE, Number, chunks_of, scrambled
from tests.codec.walk import cut
from tests.steps import run

TENSORFLOW = AnswerForm(members_with_all("outputs", "predictions"), b64_objects=True)
ROWS = AnswerForm(members_with_all("predictions"), b64_objects=True, in_rows=True)
MLFLOW = AnswerForm(members_with_all("predictions"))
BINARY = OutputSelection(binary_by_default=True)
JSON = OutputSelection()


def described(**outputs: str | tuple[str, tuple[int, ...]]) -> ModelDescription:
    """A model with *outputs*: name and datatype, or datatype and shape."""
    tensors = {}
    for name, said in outputs.items():
        datatype, shape = (said, None) if isinstance(said, str) else said
        tensors[name] = TensorDescription(DATATYPES.get(datatype), shape)
    return ModelDescription(outputs=tensors)


def listed(**outputs: str | tuple[str, tuple[int, ...]]) -> ModelDescription:
    """As `described`, by a configuration that lists *outputs* in the order of answers without their names."""
    return structs.replace(described(**outputs), has_output_order=True)


Y = described(y="FP32")
TWO = described(y="FP32", n="INT64")
LISTED = listed(y="FP32", n="INT64")


def read(
    text: str | bytes | Iterable[bytes],
    description: ModelDescription = Y,
    selection: OutputSelection = BINARY,
    form: AnswerForm = TENSORFLOW,
    *,
    limits: HeaderLimits | None = None,
    request_id: bytes = b"",
    version: str | None = None,
) -> Reply:
    """The reply that becomes of an answer, which may come in chunks."""
    chunks = [text.encode()] if isinstance(text, str) else [text] if isinstance(text, bytes) else text
    limits = limits or HeaderLimits()
    return read_answer(chunks, form, description, selection, request_id=request_id, version=version, limits=limits)


def tensors_of(reply: Reply) -> dict[str, tuple[str, list[int], Any]]:
    """Datatype, shape and value of each output: bytes, or the data that stayed JSON."""
    document = json.loads(b"".join(reply.header))
    octets = b"".join(bytes(blob) for blob in reply.blobs)
    tensors = {}
    for entry in document["outputs"]:
        if "data" in entry:
            value = entry["data"]
        else:
            size = entry["parameters"]["binary_data_size"]
            value, octets = octets[:size], octets[size:]
        tensors[entry["name"]] = (entry["datatype"], entry["shape"], value)
    assert not octets
    return tensors


def fp32(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def int64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


FORMS = [
    ('{"predictions":[[0.1,2],[3,4e0]]}', Y, {"y": ("FP32", [2, 2], fp32(0.1, 2, 3, 4))}),
    ('{"outputs":[0.1,2]}', Y, {"y": ("FP32", [2], fp32(0.1, 2))}),
    ('{"outputs":0.5}', Y, {"y": ("FP32", [], fp32(0.5))}),
    ('{"outputs":null,"predictions":[0.5]}', Y, {"y": ("FP32", [1], fp32(0.5))}),
    ('{"predictions":[0.5],"outputs":null}', Y, {"y": ("FP32", [1], fp32(0.5))}),
    ('{"outputs" : -7 }', described(y="INT64"), {"y": ("INT64", [], int64(-7))}),
    ('{"outputs":"a"}', described(y="BYTES"), {"y": ("BYTES", [], b"\1\0\0\0a")}),
    ('{"outputs":{"b64":"YWI="}}', described(y="BYTES"), {"y": ("BYTES", [], b"\2\0\0\0ab")}),
    ('{"outputs":{"b64":[1]}}', described(b64="INT64"), {"b64": ("INT64", [1], int64(1))}),
    (
        '{"predictions":[{"\\u006264":"YWI="},"c",{"b64" : "" }]}',
        described(y="BYTES"),
        {"y": ("BYTES", [3], b"\2\0\0\0ab\1\0\0\0c\0\0\0\0")},
    ),
    ('{"predictions":[true,false]}', described(y="BOOL"), {"y": ("BOOL", [2], b"\1\0")}),
    (
        '{"outputs":{"n":[[9007199254740993]],"y":0.5}}',
        TWO,
        {"n": ("INT64", [1, 1], int64(2**53 + 1)), "y": ("FP32", [], fp32(0.5))},
    ),
    (
        '{"predictions":[{"y":[1,2],"n":-9223372036854775808},{"n":9223372036854775807,"y":[3,4]}]}',
        TWO,
        {"y": ("FP32", [2, 2], fp32(1, 2, 3, 4)), "n": ("INT64", [2], int64(-(2**63), 2**63 - 1))},
    ),
    ('{"predictions":[{"y":0.5}]}', Y, {"y": ("FP32", [1], fp32(0.5))}),
    ('{"predictions":[]}', TWO, {"y": ("FP32", [0], b""), "n": ("INT64", [0], b"")}),
    ('{"predictions":[]}', Y, {"y": ("FP32", [0], b"")}),
    ('{"predictions":[[],[]]}', Y, {"y": ("FP32", [2, 0], b"")}),
    ('{"predictions":[{"y":[]},{"y":[]}]}', Y, {"y": ("FP32", [2, 0], b"")}),
    ('{"other":[1,{"outputs":[]}],"outputs":[1],"error":"no"}', Y, {"y": ("FP32", [1], fp32(1))}),
    ('{"\\u006futputs":{"\\u0079":[1],"n":[2]}}', TWO, {"y": ("FP32", [1], fp32(1)), "n": ("INT64", [1], int64(2))}),
    (
        '\n{ "outputs" :\t{ "y" : [ 1 , 2 ] , "n" : 3 } , "a" : NaN }\r ',
        TWO,
        {"y": ("FP32", [2], fp32(1, 2)), "n": ("INT64", [], int64(3))},
    ),
    ('{"predictions" : [ { "y" : [ 1 ] } , { "y" : [ 2 ] } ] }', Y, {"y": ("FP32", [2, 1], fp32(1, 2))}),
    ('{"predictions" : [ ] }', TWO, {"y": ("FP32", [0], b""), "n": ("INT64", [0], b"")}),
    (
        '{"predictions":[{"y":-Infinity,"n":1},{"y":Infinity,"n":2}]}',
        TWO,
        {"y": ("FP32", [2], fp32(-math.inf, math.inf)), "n": ("INT64", [2], int64(1, 2))},
    ),
    ('{"outputs":{"y":-Infinity}}', Y, {"y": ("FP32", [], fp32(-math.inf))}),
    ('{"outputs":-Infinity}', Y, {"y": ("FP32", [], fp32(-math.inf))}),
    # of two members with one name the last wins (protocol 1.6)
    ('{"outputs":[1,2,3],"outputs":[1]}', Y, {"y": ("FP32", [1], fp32(1))}),
    ('{"outputs":{"y":[1,2],"y":[3]}}', Y, {"y": ("FP32", [1], fp32(3))}),
    ('{"predictions":[{"y":7,"y":1},{"y":2}]}', Y, {"y": ("FP32", [2], fp32(1, 2))}),
]  # fmt: skip


# What MLflow 3.17 prints for a DataFrame, a named column, a dictionary, a text, an array, and an empty DataFrame.
FORMS += [
    (
        '{"predictions": [{"a": 1, "b": 0.1}, {"a": 2, "b": NaN}]}',
        described(a="INT64", b="FP64"),
        {"a": ("INT64", [2], int64(1, 2)), "b": ("FP64", [2], struct.pack("<2d", 0.1, math.nan))},
    ),
    (
        '{"predictions": [{"0": 1.5}, {"0": Infinity}]}',
        described(**{"0": "FP32"}),
        {"0": ("FP32", [2], fp32(1.5, math.inf))},
    ),
    (
        '{"predictions": {"a": [1.0, 2.0], "b": [[1], [2]]}}',
        described(a="FP32", b="INT8"),
        {"a": ("FP32", [2], fp32(1, 2)), "b": ("INT8", [2, 1], b"\1\2")},
    ),
    (
        '{"predictions": [{"NaN": NaN, "x NaN": 1}, {"x NaN": 2, "NaN": 3}]}',
        described(**{"NaN": "FP32", "x NaN": "INT8"}),
        {"NaN": ("FP32", [2], fp32(math.nan, 3)), "x NaN": ("INT8", [2], b"\1\2")},
    ),
    ('{"predictions": "text"}', described(y="BYTES"), {"y": ("BYTES", [], b"\4\0\0\0text")}),
    ('{"predictions": [[0.10000000149011612, NaN]]}', Y, {"y": ("FP32", [1, 2], fp32(0.1, math.nan))}),
    ('{"predictions": []}', described(y="BYTES"), {"y": ("BYTES", [0], b"")}),
]


@pytest.mark.parametrize(("text", "description", "expected"), FORMS)
def test_each_form_in_any_two_or_single_byte_chunks(text: str, description: ModelDescription, expected: Any) -> None:
    octets = text.encode()
    assert tensors_of(read(octets, description)) == expected
    assert tensors_of(read(cut(octets, 1), description)) == expected
    for place in range(1, len(octets)):
        assert tensors_of(read([octets[:place], octets[place:]], description)) == expected


def deep(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


REFUSED = [
    ("", Y, "cut off"),
    (" ", Y, "cut off"),
    ("[1]", Y, "expected a JSON object"),
    ("nope", Y, "expected a JSON object"),
    ("{", Y, "cut off"),
    ('{"outputs"', Y, "cut off"),
    ('{"outputs":', Y, "cut off"),
    ('{"outputs":[1', Y, "output 'y'.*cut off"),
    ('{"outputs":[1]', Y, "cut off"),
    ('{"outputs":{"y":[1]', Y, "cut off"),
    ('{"outputs":{"y":[1}}', Y, "output 'y'"),
    ('{"outputs":[1]}x', Y, "ends after 15 bytes, but more follows"),
    ('{"outputs":[1]} {}', Y, "more follows"),
    ('{"outputs":[1],}', Y, "malformed JSON"),
    ('{,"outputs":[1]}', Y, "expected a member"),
    ('{"outputs" [1]}', Y, "malformed JSON"),
    ('{"outputs":[1]]', Y, "malformed JSON"),
    ('{outputs:[1]}', Y, "expected a member"),
    ('{"outputs":[1,]}', Y, "output 'y'"),
    ('{"outputs":[1 2]}', Y, "output 'y'"),
    ('{"outputs":[[1],[2,3]]}', Y, "output 'y'.*ragged"),
    ('{"outputs":[[1],2]}', Y, "output 'y'.*ragged"),
    ('{"outputs":["a"]}', Y, "output 'y' \\(FP32, at \\$.outputs\\).*element 0"),
    ('{"outputs":"a"}', Y, "output 'y' \\(FP32, at \\$.outputs\\).*element 0"),
    ('{"outputs":nope}', Y, "output 'y'"),
    ('{"outputs":0[}', Y, "output 'y'"),
    ('{"outputs":0[{}', Y, "output 'y' \\(FP32, at \\$.outputs\\): malformed JSON near element 0"),
    ('{"outputs":{"y":0[1}}', Y, "output 'y'"),
    ('{"outputs":{"y":tru}}', Y, "output 'y'"),
    ('{"outputs":[1e39]}', Y, "output 'y'.*FP32 cannot hold 1e\\+39"),
    ('{"outputs":[1.5]}', described(y="INT64"), "output 'y'.*INT64 cannot hold 1.5"),
    ('{"outputs":[18446744073709551616]}', described(y="UINT64"), "output 'y'.*cannot hold"),
    ('{"outputs":[null]}', described(y="INT8"), "output 'y'.*null"),
    ('{"outputs":300}', described(y="UINT8"), "output 'y'.*UINT8 cannot hold 300"),
    ('{"outputs":[1]}', described(y="BYTES"), "output 'y'.*expected a string"),
    ('{"outputs":{"b64":"*"}}', described(y="BYTES"), "output 'y'.*base64"),
    ('{"outputs":["\\ud800"]}', described(y="BYTES"), "output 'y' \\(BYTES, at \\$.outputs\\): element 0 is not JSON"),
    ('{"outputs":{"n":1,"y":"\\ud800"}}', described(y="BYTES", n="INT8"), "output 'y' \\(BYTES\\): element 0 is not"),
    ('{"predictions":[{"y":1},{"y":nul},{"y":2}]}', Y, "output 'y'"),
    ('{"predictions":[{"y":1,"n":2},{"y":1,"n":[x]}]}', TWO, "output 'n'"),
    ('{"outputs":{"y":[1],"n":[2,]}}', TWO, "output 'n'"),
    ('{"outputs":{}}', Y, "output 'y': the answer does not have it$"),
    ('{"predictions":[{},{}]}', Y, "output 'y': the answer does not have it"),
    ('{"predictions":[{"y":1},{"y":1}]}', TWO, "output 'n': the answer does not have it"),
    ('{"outputs":{"n":[1]}}', TWO, "output 'y': the answer does not have it"),
    (f'{{"outputs":[{deep(100)}]}}', Y, "nested deeper than"),
    (f'{{"outputs":{{"y":{deep(100)}}}}}', Y, "nested deeper than"),
    (f'{{"predictions":[{{"y":{deep(100)}}}]}}', Y, "nested deeper than"),
    (f'{{"a":{deep(10_000)},"outputs":[1]}}', Y, "deep"),
    (f'{{"a":{deep(3_000)},"outputs":[1]}}', Y, "deep"),
    ('{"a":1}', Y, "no `outputs` or `predictions`$"),
    ('{"outputs":null}', Y, "no `outputs` or `predictions`$"),
    ('{"outputs":[1],"outputs":null}', Y, "no `outputs` or `predictions`$"),
    ('{"error":"boom","trace":[1]}', Y, "no `outputs` or `predictions`, but an error: boom"),
    ('{"error_code":"X","message":"boom"}', Y, "but an error: boom"),
    (f'{{"message":"{"m" * 9000}","error":"boom","x":"{"x" * 9000}"}}', Y, "but an error: boom"),
    ('{"outputs":{"z":[1]}}', Y, "output 'z': its datatype is not known"),
    ('{"predictions":[{"z":1}]}', Y, "output 'z': its datatype is not known"),
    ('{"outputs":[1]}', described(y=("", (2,))), "output 'y': its datatype is not known"),
    ('{"outputs":[1]}', described(), "an output without a name; `models`"),
    ('{"outputs":[1]}', TWO, "an output without a name, but the model has 2 \\('y', 'n'\\)"),
    ('{"outputs":0.5}', TWO, "an output without a name, but the model has 2"),
    ('{"outputs":{"b64":"YQ=="}}', TWO, "an output without a name, but the model has 2"),
    ('{"predictions":[{"y":1,"n":2},{"y":1}]}', TWO, "output 'n'.*row 1: the answer does not have it"),
    ('{"predictions":[{"y":1},{"y":1,"n":2}]}', TWO, "output 'n': some rows have it, but row 0 does not"),
    ('{"predictions":[{"y":1},{}]}', Y, "output 'y'.*row 1: the answer does not have it"),
    ('{"predictions":[{"y":1},2]}', Y, "xpected .*object"),
    ('{"predictions":[{"y":1},]}', Y, "malformed JSON"),
    ('{"predictions":[{"y":1},{"y":[1]}]}', Y, "output 'y'.*ragged"),
    ('{"predictions":[{"y":[1,2]},{"y":[1]}]}', Y, "output 'y'.*ragged"),
    ('{"predictions":[{"y":1}{"y":1}]}', Y, "."),
    ('{"predictions":[{"y":1}', Y, "cut off"),
    ('{"predictions":[1,{"y":1}]}', Y, "output 'y'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "description", "words"), REFUSED)
@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
def test_answer_that_is_not_what_it_should_be_is_refused(
    text: str, description: ModelDescription, words: str, chunk_bytes: int | None
) -> None:
    with pytest.raises(CodecError, match=words):
        read(cut(text.encode(), chunk_bytes), description)


def test_every_answer_that_is_cut_off_anywhere_is_refused() -> None:
    for text, description, _ in FORMS:
        whole = text.encode().rstrip()
        for place in range(len(whole)):
            with pytest.raises(CodecError):
                read(whole[:place], description)


@pytest.mark.parametrize(
    "text", [b'{"outputs":["a"],"x":"\xff"}', b'{"outputs":{"\xff":1}}', b'{"predictions":[{"y":"\xff"}]}']
)
def test_answer_that_is_not_utf8_is_refused(text: bytes) -> None:
    for chunk_bytes in (None, 1):
        with pytest.raises(CodecError, match="UTF-8"):
            read(cut(text, chunk_bytes), described(y="BYTES"))


def test_object_of_base64_is_an_element_only_where_the_dialect_has_them() -> None:
    for text in ('{"predictions":{"b64":"YQ=="}}', '{"predictions":[{"b64":"YQ=="}]}'):
        assert tensors_of(read(text, described(y="BYTES")))["y"][2] == b"\1\0\0\0a"
        with pytest.raises(CodecError, match="output 'b64': its datatype is not known"):
            read(text, described(y="BYTES"), form=MLFLOW)


def test_only_the_members_of_the_form_have_outputs() -> None:
    assert tensors_of(read('{"outputs":{"b64":[]},"predictions":[1]}', form=MLFLOW)) == {"y": ("FP32", [1], fp32(1))}
    with pytest.raises(CodecError, match="no `predictions`$"):
        read('{"outputs":[1]}', form=MLFLOW)


@pytest.mark.parametrize(
    "text",
    [
        '{"outputs":{"y":[1],"n":[2],"z":[NaN,{"a":"b"}]}}',
        '{"predictions":[{"y":[1],"n":2,"z":{"a":NaN}}]}',
        '{"outputs":{"y":[1],"z":"%s","n":2}}' % ("z" * 10_000),
        '{"predictions":[{"y":[1],"z":[%s9],"n":2}]}' % ("9," * 10_000),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [None, 1000])
def test_outputs_that_nobody_wants_are_passed_over(text: str, chunk_bytes: int | None) -> None:
    for selection, names in (
        (OutputSelection(False, {"y": True}), ["y"]),
        (OutputSelection(True, {"n": False, "y": True}), ["y", "n"]),
    ):
        found = tensors_of(read(cut(text.encode(), chunk_bytes), TWO, selection))
        assert list(found) == names
        assert found["y"][2] == fp32(1)


@pytest.mark.parametrize("text", ['{"outputs":{"y":[1],"z":[tru]}}', '{"outputs":{"y":[1],"z":[%s,}}' % ("1," * 9000)])
def test_output_that_nobody_wants_has_to_be_json_too(text: str) -> None:
    with pytest.raises(CodecError):
        read(text, Y, OutputSelection(True, {"y": True}))


@pytest.mark.parametrize("text", ['{"outputs":{"y":[1]}}', '{"predictions":[{"y":1}]}', '{"predictions":[1]}'])
def test_requested_output_that_is_missing_is_named(text: str) -> None:
    with pytest.raises(CodecError, match="output 'n': the answer does not have it$"):
        read(text, Y, OutputSelection(True, {"y": True, "n": True}))


def test_reply_has_the_members_of_v2_in_their_order() -> None:
    header = b"".join(read('{"outputs":{"y":[[1]],"n":2}}', TWO, request_id=b'"i"', version="3").header)
    assert header == (
        b'{"model_name":"m","model_version":"3","id":"i","outputs":['
        b'{"name":"y","shape":[1,1],"datatype":"FP32","parameters":{"binary_data_size":4}},'
        b'{"name":"n","shape":[],"datatype":"INT64","parameters":{"binary_data_size":8}}]}'
    )
    header = b"".join(read('{"outputs":{"y":[[0.5]],"n":2}}', TWO, JSON).header)
    assert header == (
        b'{"model_name":"m","outputs":['
        b'{"name":"y","shape":[1,1],"datatype":"FP32","data":[0.5]},'
        b'{"name":"n","shape":[],"datatype":"INT64","data":[2]}]}'
    )


@pytest.mark.parametrize(
    ("datatype", "data", "printed"),
    [
        ("FP32", "[0.10000000149011612,1,-0.0]", [0.1, 1.0, -0.0]),
        ("FP32", "[NaN,null,Infinity,-Infinity]", None),
        ("INT64", "[9007199254740993,-9223372036854775808]", [2**53 + 1, -(2**63)]),
        ("UINT64", "[18446744073709551615]", [2**64 - 1]),
        ("BOOL", "[[true],[false]]", [True, False]),
        ("BYTES", '["\\u00e9","]},{",""]', ["é", "]},{", ""]),
        ("BYTES", '[{"b64":"w6k="}]', ["é"]),
        ("FP32", "[]", []),
        ("BYTES", "[]", []),
    ],
)
def test_output_that_is_wanted_in_json_is_printed_flat(datatype: str, data: str, printed: list[Any] | None) -> None:
    reply = read(f'{{"outputs":{data}}}', described(y=datatype), JSON)
    assert not reply.outputs
    (value,) = (value for _, _, value in tensors_of(reply).values())
    if printed is None:
        assert [str(number) for number in value] == ["nan", "nan", "inf", "-inf"]
        assert reply.nonfinite == 4
    else:
        assert value == printed
        assert [str(item) for item in value] == [str(item) for item in printed]


def test_octets_that_are_no_text_are_base64_in_json_where_the_name_says_so() -> None:
    data = '[{"b64":"/w=="},{"b64":"YWI="}]'
    header = json.loads(b"".join(read(f'{{"outputs":{data}}}', described(y_bytes="BYTES"), JSON).header))
    (entry,) = header["outputs"]
    assert (entry["data"], entry["parameters"]) == (["/w==", "YWI="], {"content_type": "base64"})
    with pytest.raises(CodecError, match="output 'y' \\(BYTES, at \\$.outputs\\): an element is not UTF-8"):
        read(f'{{"outputs":{data}}}', described(y="BYTES"), JSON)
    assert tensors_of(read(f'{{"outputs":{data}}}', described(y="BYTES")))["y"][2] == b"\1\0\0\0\xff\2\0\0\0ab"


def base64_of(missing: str | None = None) -> ModelDescription:
    """A model whose output `y` is configured as strings of base64."""
    tensor = TensorDescription(DATATYPES["BYTES"], encoding="base64", missing=missing)
    return ModelDescription(outputs={"y": tensor})


LONG_OCTETS = random.Random(1).randbytes(100_000)


@pytest.mark.parametrize("form", [TENSORFLOW, ROWS])
@pytest.mark.parametrize(
    "values",
    [
        '[{"b64":"YWJjZA=="},"YWJjZA=="]',
        '[{"y":{"b64":"YWJjZA=="}},{"y":"YWJjZA=="}]',
        '[{"b64":"YWJj\\nZA==\\n"},"YWJj\\r\\nZA==\\n"]',
    ],
)
def test_base64_is_decoded_once_whether_it_is_a_string_or_an_object(values: str, form: AnswerForm) -> None:
    for chunks in ([f'{{"predictions":{values}}}'.encode()], cut(f'{{"predictions":{values}}}'.encode(), 1)):
        reply = read(chunks, base64_of(), form=form)
        assert tensors_of(reply) == {"y": ("BYTES", [2], blob_of([b"abcd", b"abcd"]))}


@pytest.mark.parametrize("chunk_bytes", [None, 1000])
@pytest.mark.parametrize("row", ["%s", '{"y":%s}'])
def test_long_base64_is_decoded_once_too(row: str, chunk_bytes: int | None) -> None:
    text = json.dumps(base64.encodebytes(LONG_OCTETS).decode())
    rows = row % f'{{"b64":{text}}}', row % text
    reply = read(cut(f'{{"predictions":[{",".join(rows)}]}}'.encode(), chunk_bytes), base64_of())
    assert tensors_of(reply) == {"y": ("BYTES", [2], blob_of([LONG_OCTETS, LONG_OCTETS]))}


@pytest.mark.parametrize("form", [TENSORFLOW, MLFLOW])
@pytest.mark.parametrize("missing", ["", "none", "n/a \u00e9"])
def test_a_missing_string_of_base64_becomes_the_text_that_the_configuration_says(
    missing: str, form: AnswerForm
) -> None:
    for values in ('["QQ==",null,NaN]', '[{"y":"QQ=="},{"y":null},{"y":NaN}]'):
        answer, elements = f'{{"predictions":{values}}}', [b"A", missing.encode(), missing.encode()]
        assert tensors_of(read(answer, base64_of(missing), form=form)) == {"y": ("BYTES", [3], blob_of(elements))}
        (entry,) = json.loads(b"".join(read(answer, base64_of(missing), JSON, form).header))["outputs"]
        assert entry["parameters"] == {"content_type": "base64"}
        assert [base64.b64decode(text) for text in entry["data"]] == elements
    with pytest.raises(CodecError, match="output 'y' .*element 1: expected a string, got null.*`missing`"):
        read('{"predictions":["QQ==",null]}', base64_of(), form=form)


@pytest.mark.parametrize("value", ['{"b64":"YWI"}', '"YWI"', '{"b64":"\\ud800"}'])
def test_what_is_no_base64_is_refused_in_a_string_and_in_an_object(value: str) -> None:
    with pytest.raises(CodecError, match="output 'y' .*element 1.* is not (base64|JSON)"):
        read(f'{{"outputs":["",{value}]}}', base64_of())


@pytest.mark.parametrize(
    ("data", "shape", "expected"),
    [
        ("[]", (-1, 4), [0, 4]),
        ("[]", (-1,), [0]),
        ("[]", (-1, -1), [0]),
        ("[[],[]]", (-1, -1, 3), [2, 0, 3]),
        ("[[]]", (-1,), [1, 0]),
        ("[1]", (-1, 1), [1]),
    ],
)
def test_empty_tensor_has_the_dimensions_that_only_the_description_can_say(
    data: str, shape: tuple[int, ...], expected: list[int]
) -> None:
    found = tensors_of(read(f'{{"predictions":{data}}}', described(y=("FP32", shape))))
    assert found["y"][1] == expected
    if data == "[]":
        found = tensors_of(read('{"predictions":[]}', described(y=("FP32", shape), n="INT8")))
        assert found["y"][1] == expected and found["n"][1] == [0]


def test_more_outputs_than_allowed_are_refused() -> None:
    limits = HeaderLimits(max_tensors=2)
    for text in ('{"outputs":{"y":1,"n":2,"z":3}}', '{"predictions":[{"y":1,"n":2,"z":3}]}'):
        with pytest.raises(CodecError, match="more than 2 outputs.*limits.tensors"):
            read(text, described(y="INT8", n="INT8", z="INT8"), limits=limits)
    assert len(tensors_of(read('{"outputs":{"y":1,"n":2}}', TWO, limits=limits))) == 2


@pytest.mark.parametrize("member", ['"x":"%s"' % ("x" * 20_000), ",".join(f'"{n}":1' for n in range(5000))])
@pytest.mark.parametrize("chunk_bytes", [None, 1000])
def test_members_beside_the_outputs_are_skipped_however_long_they_are(member: str, chunk_bytes: int | None) -> None:
    text = f'{{{member},"outputs":[1],{member.replace("x", "w", 1)}}}'.encode()
    answer = read(cut(text, chunk_bytes), limits=HeaderLimits(max_header_bytes=100))
    assert tensors_of(answer)["y"][2] == fp32(1)


LONG_ROW = json.dumps({"y": [1.0] * 4000, "n": 1})


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (LONG_ROW + ',{"y":[1]}', "output 'n'.*row 1: the answer does not have it"),
        ('{"y":[1],"n":1},' + LONG_ROW.replace('"n"', '"y"'), "output 'n'.*row 1: the answer does not have it"),
        ('{"y":[1]},' + LONG_ROW, "output 'n': some rows have it, but row 0 does not"),
        (LONG_ROW.replace('"n"', '"y"') + ',{"y":1,"n":1}', "output 'n': some rows have it, but row 0 does not"),
        (LONG_ROW + "," + LONG_ROW[:-1] + ',"z":1}', "output 'z': some rows have it, but row 0 does not"),
        (LONG_ROW[:-1] + ',"z":1}', "output 'z': its datatype is not known"),
        (LONG_ROW[:-1], "cut off|malformed"),
    ],
)
def test_long_rows_have_the_outputs_of_the_first_row(rows: str, words: str) -> None:
    for chunk_bytes in (None, 100):
        with pytest.raises(CodecError, match=words):
            read(cut(f'{{"predictions":[{rows}]}}'.encode(), chunk_bytes), TWO)


def test_rows_may_have_more_that_nobody_wants() -> None:
    rows = f'{{"y":1}},{{"y":2,"z":3}},{{"w":"{"x" * 9000}","y":3,"v":{LONG_ROW}}}'
    for chunk_bytes in (None, 100):
        reply = read(cut(f'{{"predictions":[{rows}]}}'.encode(), chunk_bytes), Y, OutputSelection(False, {"y": True}))
        assert tensors_of(reply) == {"y": ("FP32", [3], fp32(1, 2, 3))}


def test_rows_that_are_short_or_long_keep_their_order() -> None:
    """Short rows wait and are read together; long ones, and long values of them, are read at once."""
    dice = random.Random(7)
    sizes = [dice.choice([1, 1, 1, 30, 4000]) for _ in range(60)]
    rows: list[dict[str, Any]] = [
        {"n": [number, size], "t": "é" * size, "w" * 9000: 0} for number, size in enumerate(sizes)
    ]
    text = json.dumps({"predictions": rows}).encode()
    selection = OutputSelection(True, {"n": True, "t": True})
    expected_n = int64(*(item for row in rows for item in row["n"]))
    for chunk_bytes in (None, 100, 5000, 70_000):
        found = tensors_of(read(cut(text, chunk_bytes), described(n="INT64", t="BYTES"), selection))
        assert found["n"] == ("INT64", [60, 2], expected_n)
        assert found["t"] == ("BYTES", [60], blob_of(["é" * size for size in sizes]))


def test_long_rows_of_another_shape_than_those_before_are_refused() -> None:
    long, short = "[%s1]" % ("1," * 9000), "[1,1]"
    for first, second in ((long, short), (short, long)):
        text = f'{{"predictions":[{{"y":{first}}},{{"y":{second}}}]}}'.encode()
        for chunk_bytes in (None, 100):
            with pytest.raises(CodecError, match="output 'y' \\(FP32\\): rows of different shapes"):
                read(cut(text, chunk_bytes))


@pytest.mark.parametrize("size", [1, 9000])
@pytest.mark.parametrize("lost", [1, 9000])
def test_of_values_with_one_name_in_a_row_the_last_wins(size: int, lost: int) -> None:
    y, other = (json.dumps([2.5] * size), json.dumps([7] * lost))
    row = f'{{"n":2,"y":{other},"n":1,"y":{y}}}'
    for chunk_bytes in (None, 1000):
        answer = DialectAnswer(Walk(TENSORFLOW, TWO, BINARY), model="m", request_id=b"")
        for chunk in cut(f'{{"predictions":[{row},{row}]}}'.encode(), chunk_bytes):
            for _ in answer.feed(chunk):
                pass
        reply = run(answer.finish())
        assert tensors_of(reply) == {
            "n": ("INT64", [2], int64(1, 1)),
            "y": ("FP32", [2, size], fp32(2.5) * 2 * size),
        }
        assert answer.held_bytes == sum(map(len, reply.blobs))


# Outputs without names: of one list, or of rows that are lists.
LISTS = [
    (
        '{"predictions":[[[1,2]],[3]]}',
        LISTED,
        TENSORFLOW,
        {"y": ("FP32", [1, 2], fp32(1, 2)), "n": ("INT64", [1], int64(3))},
    ),
    ('{"outputs":[0.5,7]}', LISTED, TENSORFLOW, {"y": ("FP32", [], fp32(0.5)), "n": ("INT64", [], int64(7))}),
    (
        '{"predictions": [[NaN, -Infinity], 9007199254740993]}',
        LISTED,
        MLFLOW,
        {"y": ("FP32", [2], fp32(math.nan, -math.inf)), "n": ("INT64", [], int64(2**53 + 1))},
    ),
    (
        '\n{ "predictions" :\t[ [ 1 , 2 ] , 3 ] , "a" : NaN }\r ',
        LISTED,
        MLFLOW,
        {"y": ("FP32", [2], fp32(1, 2)), "n": ("INT64", [], int64(3))},
    ),
    (
        '{"outputs":["a",["b","c"]]}',
        listed(y="BYTES", s="BYTES"),
        TENSORFLOW,
        {"y": ("BYTES", [], b"\1\0\0\0a"), "s": ("BYTES", [2], b"\1\0\0\0b\1\0\0\0c")},
    ),
    (
        '{"outputs":[{"b64":"YWI="},[{"b64":""},"]"]]}',
        listed(y="BYTES", s="BYTES"),
        TENSORFLOW,
        {"y": ("BYTES", [], b"\2\0\0\0ab"), "s": ("BYTES", [2], b"\0\0\0\0\1\0\0\0]")},
    ),
    (
        '{"predictions":[[[0.5,2],-9223372036854775808],[[3,4],9223372036854775807]]}',
        LISTED,
        ROWS,
        {"y": ("FP32", [2, 2], fp32(0.5, 2, 3, 4)), "n": ("INT64", [2], int64(-(2**63), 2**63 - 1))},
    ),
    (
        '\n{ "predictions" : [ [ NaN , 1 ] , [ -Infinity , 2 ] ] }',
        LISTED,
        ROWS,
        {"y": ("FP32", [2], fp32(math.nan, -math.inf)), "n": ("INT64", [2], int64(1, 2))},
    ),
    (
        '{"predictions":[[{"b64":"YWI="},[true]],["],[",[false]]]}',
        listed(y="BYTES", b="BOOL"),
        ROWS,
        {"y": ("BYTES", [2], b"\2\0\0\0ab\3\0\0\0],["), "b": ("BOOL", [2, 1], b"\1\0")},
    ),
    ('{"predictions":[[[],1],[[],2]]}', LISTED, ROWS, {"y": ("FP32", [2, 0], b""), "n": ("INT64", [2], int64(1, 2))}),
    (
        '{"predictions":[[1,2]],"predictions":[[3,4]]}',
        LISTED,
        ROWS,
        {"y": ("FP32", [1], fp32(3)), "n": ("INT64", [1], int64(4))},
    ),
    ('{"predictions":[{"n":1,"y":2}]}', LISTED, ROWS, {"n": ("INT64", [1], int64(1)), "y": ("FP32", [1], fp32(2))}),
    *(
        ('{"predictions":[]}', LISTED, form, {"y": ("FP32", [0], b""), "n": ("INT64", [0], b"")})
        for form in (TENSORFLOW, MLFLOW, ROWS)
    ),
    # of one output, what looks like a list of them is its value
    ('{"predictions":[[1,2]]}', listed(y="FP32"), ROWS, {"y": ("FP32", [1, 2], fp32(1, 2))}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "description", "form", "expected"), LISTS)
def test_outputs_without_names_come_in_the_order_of_the_configuration(
    text: str, description: ModelDescription, form: AnswerForm, expected: Any
) -> None:
    octets = text.encode()
    end = len(octets.rstrip())
    assert tensors_of(read(octets, description, form=form)) == expected
    assert tensors_of(read(cut(octets, 1), description, form=form)) == expected
    for place in range(1, len(octets)):
        assert tensors_of(read([octets[:place], octets[place:]], description, form=form)) == expected
        if place < end:
            with pytest.raises(CodecError):
                read(octets[:place], description, form=form)


ONE_EACH = "expected a list with 2 values, one for each output \\('y', 'n'\\), got "


@pytest.mark.parametrize(
    ("text", "form", "words"),
    [
        ('{"outputs":[[1]]}', TENSORFLOW, f"^{ONE_EACH}1 \\(at \\$.outputs\\)$"),
        ('{"outputs":[1,2,3]}', TENSORFLOW, f"^{ONE_EACH}3 "),
        ('{"outputs":[1,2,tru]}', TENSORFLOW, "^\\$.outputs: JSON is cut off"),
        ('{"outputs":0.5}', TENSORFLOW, "^output 'y': nothing at \\$.outputs\\[0\\]; \\$.outputs is 0.5"),
        ('{"outputs":{"b64":"YQ=="}}', TENSORFLOW, '^output .y.: nothing at .*; \\$.outputs is {"b64'),
        ('{"outputs":[[[1],[2,3]],1]}', TENSORFLOW, "^output 'y' \\(FP32, at .*\\[0\\]\\): .*ragged"),
        ('{"outputs":[1,1.5]}', TENSORFLOW, "^output 'n' \\(INT64, at .*\\[1\\]\\): .*INT64 cannot hold 1.5"),
        ('{"outputs":[1,[2,]]}', TENSORFLOW, "^output 'n'"),
        ('{"outputs":[1,2,]}', TENSORFLOW, "malformed JSON"),
        ('{"outputs":[,1]}', TENSORFLOW, "^output 'y'"),
        ('{"outputs":[1 2]}', TENSORFLOW, "malformed JSON"),
        ('{"outputs":[1,2}', TENSORFLOW, "malformed JSON"),
        ('{"outputs":[1,{"y":1}]}', TENSORFLOW, "^output 'n'"),
        ('{"predictions":[[1]]}', ROWS, f"^row 0: {ONE_EACH}1 \\(at \\$.predictions\\[\\*\\]\\)$"),
        ('{"predictions":[[1,2],[]]}', ROWS, f"^row 1: {ONE_EACH}0 "),
        ('{"predictions":[[1,2],[1,2,3]]}', ROWS, f"^row 1: {ONE_EACH}3 "),
        ('{"predictions":[[1,2],3]}', ROWS, "^output 'y': row 1: nothing at \\$.predictions\\[\\*\\]\\[0\\]; .* 3"),
        ('{"predictions":[[1,2],{"y":1,"n":2}]}', ROWS, '^output .y.: row 1: nothing at .*; .* is {"y"'),
        ('{"predictions":[1,2]}', ROWS, "^output 'y': row 0: nothing at .*; .* is 1"),
        ('{"predictions":0.5}', ROWS, "^output 'y': nothing at .*; \\$.predictions is 0.5"),
        ('{"predictions":[[1,2],[[1],2]]}', ROWS, "^output 'y' \\(FP32, at .*\\[0\\]\\): .*ragged"),
        ('{"predictions":[[1,2],[1,"a"]]}', ROWS, "^output 'n' \\(INT64, at .*\\[1\\]\\): .*INT64 cannot hold"),
        ('{"predictions":[[1,2],[1,nul]]}', ROWS, "^output 'n'"),
        ('{"predictions":[[1,2],]}', ROWS, "malformed JSON"),
        ('{"predictions":[[1,2][1,2]]}', ROWS, "malformed JSON"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
def test_a_list_that_does_not_fit_the_outputs_is_refused(
    text: str, form: AnswerForm, words: str, chunk_bytes: int | None
) -> None:
    with pytest.raises(CodecError, match=words):
        read(cut(text.encode(), chunk_bytes), LISTED, form=form)


@pytest.mark.parametrize("form", [TENSORFLOW, ROWS])
def test_without_an_order_that_is_known_a_list_is_refused(form: AnswerForm) -> None:
    for text in ('{"predictions":[[1,2]]}', '{"predictions":[1,2]}', '{"predictions":0.5}'):
        with pytest.raises(CodecError, match="the model has 2 \\('y', 'n'\\); `models` .* can list all of them"):
            read(text, TWO, form=form)


@pytest.mark.parametrize("chunk_bytes", [None, 1000])
def test_of_a_list_only_what_is_wanted_is_kept(chunk_bytes: int | None) -> None:
    ignored, selection = json.dumps([None, {"a": "]"}, *range(9000)]), OutputSelection(True, {"n": True})
    rows = f'[{ignored},7],[0,8],["",9]'
    for text, form, shape, blob in (
        (f'{{"predictions":[{ignored},7]}}', MLFLOW, [], int64(7)),
        (f'{{"predictions":[{rows}]}}', ROWS, [3], int64(7, 8, 9)),
    ):
        found = tensors_of(read(cut(text.encode(), chunk_bytes), LISTED, selection, form))
        assert found == {"n": ("INT64", shape, blob)}


@pytest.mark.parametrize("chunk_bytes", [None, 100, 5000, 70_000])
def test_lists_and_rows_may_be_longer_than_a_step(chunk_bytes: int | None) -> None:
    sizes = [2, 9000, 2, 2, 9000]
    names = [f"y{index}" for index in range(len(sizes))]
    description = listed(**dict.fromkeys(names, "INT64"))
    text = json.dumps({"predictions": [list(range(size)) for size in sizes]}).encode()
    found = tensors_of(read(cut(text, chunk_bytes), description, form=MLFLOW))
    assert found == {name: ("INT64", [size], int64(*range(size))) for name, size in zip(names, sizes, strict=True)}
    rows = [[number, "é" * number] for number in (1, 9000, 2, 3, 9000)]
    text = json.dumps({"predictions": rows}).encode()
    found = tensors_of(read(cut(text, chunk_bytes), listed(n="INT64", t="BYTES"), form=ROWS))
    assert found["n"] == ("INT64", [5], int64(1, 9000, 2, 3, 9000))
    assert found["t"] == ("BYTES", [5], blob_of([text for _, text in rows]))
    for last, got in (([1, "x" * 9000, 0], "3"), ([list(range(9000))], "1")):
        text = json.dumps({"predictions": [*rows, last]}).encode()
        with pytest.raises(CodecError, match=f"^row 5: expected a list with 2 values.* got {got} "):
            read(cut(text, chunk_bytes), listed(n="INT64", t="BYTES"), form=ROWS)


def test_many_tiny_rows_are_few_buffers() -> None:
    count = 200_000
    text = b'{"predictions":[%b]}' % b",".join(b'{"n":%d,"y":0.5}' % number for number in range(count))
    reply = read(cut(text, 65_536), TWO)
    found = tensors_of(reply)
    assert found["n"] == ("INT64", [count], np.arange(count, dtype="<i8").tobytes())
    assert found["y"] == ("FP32", [count], fp32(0.5) * count)
    assert len(reply.blobs) <= 2 + 2 * sum(map(len, reply.blobs)) / JOINED_BYTES


def printed(value: Any, dice: random.Random) -> Any:
    """*value* with BYTES as strings or objects of base64."""
    if isinstance(value, list):
        return [printed(item, dice) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and dice.random() < 0.5:
        return text
    return {"b64": base64.b64encode(value).decode()}


@st.composite
def tensors(draw: st.DrawFn, rows: int | None = None) -> tuple[str, list[int], Any, bytes]:
    """Datatype, shape, values as one flat list, and bytes on the wire; the first dimension is *rows* if it is given."""
    datatype = draw(st.sampled_from(list(DATATYPES)))
    if datatype == "BYTES":
        shape = draw(SHAPES)
        shape = [rows, *shape[:2]] if rows is not None else shape
        elements = draw(
            st.lists(
                st.one_of(st.binary(max_size=20), UNICODE.map(str.encode)),
                min_size=math.prod(shape),
                max_size=math.prod(shape),
            )
        )
        return datatype, shape, elements, blob_of(elements)
    shape = draw(SHAPES)
    shape = [rows, *shape[:2]] if rows is not None else shape
    wire = WIRE[datatype]
    n_bytes = math.prod(shape) * wire.itemsize
    values = np.frombuffer(draw(st.binary(min_size=n_bytes, max_size=n_bytes)), wire).copy()
    if datatype == "BOOL":
        values = values != 0
        return datatype, shape, [bool(value) for value in values], values.astype("u1").tobytes()
    if DATATYPES[datatype].kind.name == "FLOAT":
        with np.errstate(invalid="ignore"):
            values[np.isnan(values)] = np.array(math.nan, "f8").astype(wire)
        return datatype, shape, [Number(literal(float(value))) for value in values], values.tobytes()
    return datatype, shape, [Number(int(value)) for value in values], values.tobytes()


def literal(value: float) -> str:
    """As Python's json prints it."""
    return json.dumps(value)


def shape_of(shape: list[int]) -> list[int]:
    """What nesting shows of *shape*."""
    return shape[: shape.index(0) + 1] if 0 in shape else shape


FORM_NAMES = ["alone", "by name", "rows", "list", "rows of lists"]


@pytest.mark.parametrize("form", FORM_NAMES)
@PROFILE
@given(data=st.data(), dice=DICE)
def test_tensors_in_any_form_come_back_bit_for_bit(form: str, data: st.DataObject, dice: random.Random) -> None:
    """Python's json prints random tensors, in any layout and any chunks -> the same bytes and shapes."""
    rows = data.draw(st.integers(1, 4)) if form.startswith("rows") else None
    names = data.draw(st.lists(UNICODE, min_size=1, max_size=1 if form == "alone" else 4, unique=True))
    drawn = {name: data.draw(tensors(rows)) for name in names if name not in ("b64",)} or {
        "y": data.draw(tensors(rows))
    }
    description = ModelDescription(
        outputs={name: TensorDescription(DATATYPES[tensor[0]]) for name, tensor in drawn.items()},
        has_output_order=True,
    )
    values = {name: printed(whole(flat, shape), dice) for name, (_, shape, flat, _) in drawn.items()}
    value: Any = values
    reading = ROWS if form == "rows of lists" else TENSORFLOW
    if form == "alone" or (len(values) == 1 and form in ("list", "rows of lists")):
        (value,) = values.values()
    elif form == "rows":
        value = [{name: column[row] for name, column in values.items()} for row in range(rows or 0)]
    elif form == "list":
        value = list(values.values())
    elif form == "rows of lists":
        value = [[column[row] for column in values.values()] for row in range(rows or 0)]
    answer = scrambled({dice.choice(list(reading.tree.inside)): value, "model_spec": {"x": [1]}}, dice).encode()
    expected = {name: (datatype, shape_of(shape), blob) for name, (datatype, shape, _, blob) in drawn.items()}
    found = tensors_of(read(chunks_of(answer, dice), description, form=reading))
    assert found == expected


def whole(flat: list[Any], shape: list[int]) -> Any:
    """*flat* nested like *shape*; a scalar without brackets."""
    return nested(flat, shape) if shape else flat[0]
