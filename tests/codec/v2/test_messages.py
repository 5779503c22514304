"""The JSON of requests: what is accepted, what the backend gets, what a refusal says (protocol sections 2 to 4)."""

import json
import math
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest

from gateway.codec.inference import BytesPolicy, HalfPrecision, HeaderLimits, NonFinite, TensorPolicy
from gateway.codec.json.members import HELD_PER_BYTE
from gateway.errors import CodecError, TooLargeError
from tests.codec.v2.requests import entry, header_of, parsed, sent
from tests.codec.walk import backend_json, parse_request, parsing
from tests.steps import run

ONLY_ONE = "Input must set only one of the following fields"


# what a binary input has to say


@pytest.mark.rule("2.3")
@pytest.mark.parametrize("size", [12, 0, 15, 17, 32, 2**40])
def test_size_that_is_not_the_shapes_is_refused_with_both(size: int) -> None:
    with pytest.raises(CodecError, match=rf"input 'x' \(FP32, shape \[2, 2\]\).*expected 16, got {size}\b"):
        parsed(header_of(entry(size=size)), bytes(min(size, 100)))


def test_the_published_sample_is_refused_for_its_sizes() -> None:
    """FP16 [2, 2] declared as 16 bytes; it has 8."""
    with pytest.raises(CodecError, match=r"'x' \(FP16, shape \[2, 2\]\).*expected 8, got 16"):
        parsed(header_of(entry(datatype="FP16")), bytes(16))


@pytest.mark.rule("2.3")
@pytest.mark.parametrize("size", [-1, 16.0, "16", True, False, [16], {}, "", 1e2])
def test_size_that_is_no_integer_is_refused_by_input(size: Any) -> None:
    with pytest.raises(CodecError, match="input 'x'.*binary_data_size"):
        parsed(header_of(entry(size=size)), bytes(16))


@pytest.mark.parametrize("size", ["16e0", "-0", "1.6e1", "18446744073709551616", "9" * 5000])
def test_size_spelled_oddly_or_beyond_64_bits_is_refused_by_input(size: str) -> None:
    header = header_of(entry(size=0)).replace(b": 0}", f":{size}}}".encode())
    with pytest.raises(CodecError, match="input 'x'.*binary_data_size"):
        parsed(header, bytes(16))


@pytest.mark.rule("2.2")
@pytest.mark.parametrize(
    "shape", [[-1], [2.0], ["2"], [True], [None], [[2]], 4, "4", None, {}, ..., [2**63], [1] * 65, [2, -0.0]]
)
def test_shape_that_is_no_list_of_integers_is_refused_by_input(shape: Any) -> None:
    with pytest.raises(CodecError, match="input 'x': shape"):
        parsed(header_of(entry(shape=shape, size=8)), bytes(8))


@pytest.mark.rule("2.3")
@pytest.mark.parametrize("shape", [[16, 2**60 + 2], [65536, 65536, 65536], [2**60] * 64, [2**63 - 1] * 2])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BOOL"])
def test_shape_of_astronomic_size_is_refused_without_allocating(shape: list[int], datatype: str) -> None:
    with pytest.raises(CodecError, match=r"input 'x'.*expected ([0-9]{15}|more than 2\^64)"):
        parsed(header_of(entry(datatype=datatype, shape=shape, size=32)), bytes(32))


@pytest.mark.rule("2.2", "2.3")
def test_astronomic_shape_with_a_zero_is_an_empty_tensor() -> None:
    assert sent(header_of(entry(shape=[2**60, 0, 2**60], size=0)))["inputs"][0]["data"] == []


@pytest.mark.rule("2.2")
@pytest.mark.parametrize("datatype", ["FOO", "fp32", "Fp32", "", 7, None, True, [], ..., "FP32 ", "INT128", "STRING"])
def test_datatype_that_is_none_is_refused_by_input(datatype: Any) -> None:
    with pytest.raises(CodecError, match="input 'x': datatype must be one of BOOL"):
        parsed(header_of(entry(datatype=datatype)), bytes(16))


def test_datatype_in_lower_case_gets_the_right_spelling_as_a_hint() -> None:
    with pytest.raises(CodecError, match='upper case, got "fp32"'):
        parsed(header_of(entry(datatype="fp32")), bytes(16))


def test_datatype_with_an_escape_is_the_string_it_stands_for() -> None:
    header = header_of(entry()).replace(b'"FP32"', b'"FP\\u00332"')
    assert sent(header, bytes(16))["inputs"][0]["data"] == [0.0] * 4


@pytest.mark.rule("2.2")
@pytest.mark.parametrize("name", [7, None, True, [], ...])
def test_name_that_is_no_string_is_refused(name: Any) -> None:
    with pytest.raises(CodecError, match="input 0: name must be a string"):
        parsed(header_of(entry(name)), bytes(16))


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity"])
def test_name_that_is_a_literal_is_no_string(literal: bytes) -> None:
    header = header_of(entry("~")).replace(b'"~"', literal)
    with pytest.raises(CodecError, match="name must be a string"):
        parsed(header, bytes(16))


GLUED = [b"NaN0", b"0NaN", b"-NaN", b"NaNNaN", b"1Infinity", b"Infinity.5", b"NaNe5", b"1e-Infinity", b"--Infinity"]


@pytest.mark.parametrize("glued", GLUED)
def test_literal_that_is_glued_to_something_is_no_json(glued: bytes) -> None:
    header = header_of(entry("x", "UINT8", [1], 1), id="~").replace(b'"~"', glued)
    with pytest.raises(CodecError, match="malformed JSON"):
        parsed(header, b"\1")


def test_key_that_is_a_literal_is_no_json() -> None:
    with pytest.raises(CodecError):
        backend_json(b'{NaN:1,"inputs":[]}')


@pytest.mark.rule("2.1")
@pytest.mark.parametrize(
    "item",
    [
        entry(data=[1, 2, 3, 4]),
        entry(parameters={}),
        entry(parameters=...),
        entry(parameters=None),
        entry(parameters={"binary_data_size": None}),
        entry(parameters=..., data=None),
        entry(parameters={"binary_data_size": 16, "shared_memory_region": "r"}),
        entry(parameters={"shared_memory_region": "r"}, data=[1]),
        entry(parameters={"binary_data_size": 16, "shared_memory_region": "r"}, data=[1]),
    ],
)
def test_input_with_no_data_or_with_two_kinds_is_refused_in_tritons_words(item: dict[str, Any]) -> None:
    with pytest.raises(CodecError, match=f"input 'x': {ONLY_ONE}"):
        parsed(header_of(item), bytes(16))


@pytest.mark.parametrize("parameters", [5, "x", [], True])
def test_parameters_that_are_no_object_are_refused(parameters: Any) -> None:
    with pytest.raises(CodecError, match="parameters must be an object"):
        backend_json(header_of(entry(parameters=parameters)))
    with pytest.raises(CodecError, match="parameters must be an object"):
        backend_json(header_of(parameters=parameters))


@pytest.mark.rule("2.1")
def test_null_data_beside_a_size_counts_as_absent() -> None:
    assert sent(header_of(entry(data=None)), bytes(16))["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [0.0] * 4}
    ]


@pytest.mark.rule("2.6")
def test_inputs_of_one_name_are_refused_also_when_spelled_differently() -> None:
    for other in (b'"x"', b'"\\u0078"'):
        header = header_of(entry("x", "INT8", [1], 1), entry("~", "INT8", [1], 1)).replace(b'"~"', other)
        with pytest.raises(CodecError, match="input 'x' is given more than once"):
            parsed(header, b"\1\1")


@pytest.mark.rule("1.6")
def test_last_of_two_equal_keys_wins() -> None:
    header = (
        b'{"inputs":[{"name":"lost","data":[1]}],"inputs":[{"name":"a","name":"x","datatype":"FP64","datatype":"INT8",'
        b'"shape":[9],"shape":[1],"parameters":{"binary_data_size":7,"binary_data_size":1}},{"name":"j","data":[1],"data":[2]}]}'
    )
    assert sent(header, b"\5")["inputs"] == [
        {"name": "x", "datatype": "INT8", "shape": [1], "data": [5]},
        {"name": "j", "data": [2]},
    ]


# outputs


@pytest.mark.rule("4.1")
@pytest.mark.parametrize(
    ("top", "wanted"),
    [
        ({}, {"out0": False, "out1": False}),
        ({"outputs": None, "parameters": None}, {"out0": False, "out1": False}),
        ({"outputs": []}, {"out0": False, "out1": False}),
        ({"parameters": {"binary_data_output": True}}, {"out0": True, "out1": True}),
        ({"parameters": {"binary_data_output": None}}, {"out0": False}),
        (
            {
                "outputs": [
                    {"name": "out0", "parameters": {"binary_data": True}},
                    {"name": "out1", "parameters": {"binary_data": False}},
                ]
            },
            {"out0": True, "out1": False, "other": None},
        ),
        (
            {
                "parameters": {"binary_data_output": True},
                "outputs": [{"name": "out0", "parameters": {"binary_data": False}}, {"name": "out1"}],
            },
            {"out0": False, "out1": True, "other": None},
        ),
        (
            {
                "parameters": {"binary_data_output": True},
                "outputs": [
                    {"name": "out0", "parameters": {"binary_data": None}},
                    {"name": "out1", "parameters": None},
                ],
            },
            {"out0": True, "out1": True},
        ),
        (
            {
                "parameters": {"binary_data_output": False},
                "outputs": [{"name": "o", "parameters": {"binary_data": True}}],
            },
            {"o": True},
        ),
    ],
)
def test_outputs_are_binary_as_they_or_the_request_say(top: dict[str, Any], wanted: dict[str, bool | None]) -> None:
    selection = parsed(header_of(**top)).selection
    for name, binary in wanted.items():
        assert selection.is_wanted(name) == (binary is not None)
        if binary is not None:
            assert selection.is_binary(name) == binary


@pytest.mark.rule("4.2")
@pytest.mark.parametrize("flag", [1, 0, "true", [], {}, 1.0])
def test_flag_that_is_no_boolean_is_refused(flag: Any) -> None:
    with pytest.raises(CodecError, match="binary_data_output: expected true or false"):
        backend_json(header_of(parameters={"binary_data_output": flag}))
    with pytest.raises(CodecError, match="output 'y': binary_data: expected true or false"):
        backend_json(header_of(outputs=[{"name": "y", "parameters": {"binary_data": flag}}]))


@pytest.mark.rule("2.6")
def test_output_requested_twice_is_refused() -> None:
    with pytest.raises(CodecError, match="output 'y' is requested more than once"):
        backend_json(header_of(outputs=[{"name": "y"}, {"name": "y"}]))


@pytest.mark.parametrize("outputs", [5, {}, [1], "y", [[]]])
def test_outputs_that_are_no_list_of_objects_are_refused(outputs: Any) -> None:
    with pytest.raises(CodecError, match="`outputs` must be an array of objects"):
        backend_json(header_of(outputs=outputs))


def test_output_without_a_name_is_refused() -> None:
    with pytest.raises(CodecError, match="output 1: name must be a string"):
        backend_json(header_of(outputs=[{"name": "y"}, {"parameters": {"binary_data": True}}]))


# what the backend gets


@pytest.mark.rule("3.2")
def test_words_of_the_extension_are_removed_and_parameters_that_this_empties() -> None:
    text = sent(
        header_of(
            entry("a", "INT8", [1], 1),
            entry("b", parameters={"binary_data_size": 16, "keep": [1]}),
            parameters={"binary_data_output": True},
            outputs=[
                {"name": "y", "parameters": {"binary_data": True}},
                {"name": "z", "parameters": {"binary_data": False, "k": 1}},
            ],
        ),
        bytes(17),
    )
    assert text == {
        "outputs": [{"name": "y"}, {"name": "z", "parameters": {"k": 1}}],
        "inputs": [
            {"name": "a", "datatype": "INT8", "shape": [1], "data": [0]},
            {"name": "b", "datatype": "FP32", "shape": [2, 2], "parameters": {"keep": [1]}, "data": [0.0] * 4},
        ],
    }


@pytest.mark.rule("2.7")
@pytest.mark.parametrize(
    "data",
    [
        "[1.50,  2e0,-0]",
        "[ [1 ] ,\n[2]]",
        '["\\u00e9", "]},{"]',
        "[NaN]",
        '{"odd":[1,{"data":[]}]}',
        "17",
        "true",
        '"text"',
    ],
)
def test_json_input_and_unknown_members_are_forwarded_as_they_came(data: str) -> None:
    kept = [f'"data":{data}', '"custom":{ "a" : [1.0, NaN] }', '"sequence_id":18446744073709551616', '"big":1.000']
    header = (
        f'{{"id":"é\\u00e9","parameters":{{{kept[2]},{kept[3]}}},{kept[1]},"inputs":[{{"name":"j",{kept[0]}}},'
        '{"name":"b","datatype":"INT8","shape":[1],"parameters":{"binary_data_size":1}}]}'
    ).encode()
    text = backend_json(header, b"\1").decode()
    for member in [*kept, '"id":"é\\u00e9"']:
        assert member in text


@pytest.mark.rule("2.7", "2.8")
@pytest.mark.parametrize(
    ("given", "kept"), [("null", b""), ('""', b""), ('"a"', b'"a"'), ('"\\u00e9"', b'"\\u00e9"'), ("17", b"17")]
)
def test_id_is_kept_as_it_came_and_null_or_empty_is_absent(given: str, kept: bytes) -> None:
    assert parsed(f'{{"id":{given},"inputs":[]}}'.encode()).id == kept
    assert parsed(b'{"inputs":[]}').id == b""


@pytest.mark.parametrize(
    ("shape", "size", "words"),
    [("[0,NaN]", "0", r"shape must be .*, got \[0,NaN\]"), ("[0]", "NaN", "binary_data_size must be .*, got NaN")],
)
def test_literal_is_no_integer(shape: str, size: str, words: str) -> None:
    inputs = f'[{{"name":"t","datatype":"INT8","shape":{shape},"parameters":{{"binary_data_size":{size}}}}}]'
    with pytest.raises(CodecError, match=f"input 't': {words}"):
        parsed(f'{{"inputs":{inputs}}}'.encode())


def test_strings_beside_a_literal_are_what_they_say() -> None:
    """In the text that is split the words of literals have stand-ins, also inside of strings."""
    parameters = {"binary_data_size": 5, "content_type": "NaN"}
    top = {"id": "NaN-1", "more": math.nan, "outputs": [{"name": "Infinity"}]}
    policy = TensorPolicy(bytes=BytesPolicy.BASE64)
    request = parsed(header_of(entry("-Infinity", "BYTES", [1], parameters=parameters), **top), b"\1\0\0\0x", policy)
    assert (request.id, request.sent_id) == (b'"NaN-1"', b'"NaN-1"')
    assert dict(request.selection.named) == {"Infinity": False}
    assert [(tensor.name, tensor.is_base64) for tensor in request.inputs] == [("-Infinity", False)]
    assert b'"id": "NaN-1", "more": NaN' in json.dumps(json.loads(b"".join(request.json_pieces()))).encode()


def test_id_that_is_a_literal_is_itself() -> None:
    assert parsed(b'{"id":NaN,"inputs":[]}').id == b"NaN"


def test_many_members_with_literals_are_forwarded_as_they_came() -> None:
    own = ",".join(f'"NaN{number}":{{"Infinity":[NaN,-Infinity]}}' for number in range(200))
    header = f'{{"inputs":[],{own},"parameters":{{{own}}}}}'.encode()
    assert backend_json(header) == header


@pytest.mark.parametrize("name", ["data", "inputs", "NaN", "Infinity", "~0~NaN", "é😀", 'quote"', "", "\u2028"])
def test_names_may_be_any_string(name: str) -> None:
    header = header_of(entry(name, "INT8", [1], 1), {"name": name + "2", "data": [name]}, x=float("nan"))
    text = sent(header, b"\1")
    assert [item["name"] for item in text["inputs"]] == [name, name + "2"]
    assert text["inputs"][1]["data"] == [name]


def test_hundred_inputs_of_every_kind_keep_their_order() -> None:
    items = [entry(f"b{i}", "INT16", [1], 2) if i % 2 else {"name": f"j{i}", "data": [i]} for i in range(100)]
    blobs = b"".join(struct.pack("<h", i) for i in range(1, 100, 2))
    assert [item["data"] for item in sent(header_of(*items), blobs)["inputs"]] == [[i] for i in range(100)]


@pytest.mark.rule("3.3")
def test_integers_are_integers_and_booleans_are_booleans_in_the_text() -> None:
    assert b"[9007199254740993,-1]" in backend_json(
        header_of(entry(datatype="INT64", shape=[2])), struct.pack("<2q", 2**53 + 1, -1)
    )
    assert b"[18446744073709551615,0]" in backend_json(
        header_of(entry(datatype="UINT64", shape=[2])), struct.pack("<2Q", 2**64 - 1, 0)
    )
    assert b"[false,true,true]" in backend_json(header_of(entry(datatype="BOOL", shape=[3], size=3)), b"\0\1\2")


@pytest.mark.rule("3.3")
def test_floats_are_as_short_as_they_can_be() -> None:
    text = backend_json(header_of(entry()), struct.pack("<4f", 0.1, -0.0, 1.0, 3.4028235e38)).lower()
    data = text.split(b"[")[-1].split(b"]")[0].split(b",")
    assert data[:3] == [b"0.1", b"-0.0", b"1.0"]
    assert data[3].replace(b"+", b"") == b"3.4028235e38"


@pytest.mark.rule("3.4")
@pytest.mark.parametrize(
    ("policy", "value", "words"),
    [
        (NonFinite.REJECT, np.nan, "element 2 is nan.*`nonfinite` is reject"),
        (NonFinite.REJECT, -np.inf, "element 2 is -inf.*`nonfinite` is reject"),
        (NonFinite.AS_NULL, np.inf, "element 2 is inf.*`nonfinite` is as_null"),
    ],
)
@pytest.mark.parametrize("wire", ["<f2", "<f4", "<f8"])
def test_nonfinite_value_is_refused_by_tensor_and_element(
    policy: NonFinite, value: float, words: str, wire: str
) -> None:
    values = np.array([1, 2, value, value], wire)
    header = header_of(entry(datatype=f"FP{values.itemsize * 8}", size=values.nbytes))
    with pytest.raises(CodecError, match=f"input 'x'.*{words}"):
        parsed(header, values.tobytes(), TensorPolicy(policy))


def test_nonfinite_value_far_into_a_large_tensor_is_found_at_its_place() -> None:
    values = np.zeros(1_000_000, "<f4")
    values[777_777] = np.nan
    header = header_of(entry(shape=[1_000_000], size=4_000_000))
    with pytest.raises(CodecError, match="element 777777 is nan"):
        parsed(header, values.tobytes())
    assert parsed(header, values.tobytes(), TensorPolicy(NonFinite.AS_NULL)).nonfinite == 1


def test_promotion_touches_only_binary_halves() -> None:
    header = header_of(
        entry("h", "FP16", [1], 2),
        entry("s", "FP32", [1], 4),
        {"name": "j", "datatype": "FP16", "shape": [1], "data": [1]},
    )
    text = sent(header, bytes(6), TensorPolicy(half_precision=HalfPrecision.PROMOTE))
    assert [item["datatype"] for item in text["inputs"]] == ["FP32", "FP32", "FP16"]


@pytest.mark.rule("3.5")
def test_base64_is_announced_beside_other_parameters_and_only_for_bytes() -> None:
    header = header_of(
        entry("t", "BYTES", [1], 5, parameters={"binary_data_size": 5, "content_type": "base64", "k": 1}),
        entry("n", "INT8", [1], 1),
    )
    first, second = sent(header, b"\1\0\0\0\xff\7", TensorPolicy(bytes=BytesPolicy.BASE64))["inputs"]
    assert first["parameters"] == {"content_type": "base64", "k": 1}
    assert first["data"] == ["/w=="]
    assert "parameters" not in second


@pytest.mark.rule("3.5")
@pytest.mark.parametrize(
    ("of_request", "of_input", "expected"),
    [
        ("str", ..., ...),
        ("pd", None, None),
        ("np", "", ""),
        ("base64", "datetime", "datetime"),
        (..., "str", "str"),
        (..., 5, 5),
    ],
)
def test_a_content_type_that_the_client_names_keeps_text_from_base64(
    of_request: Any, of_input: Any, expected: Any
) -> None:
    text = sent(*request_with_content_types(of_request, of_input, b"now"), TensorPolicy(bytes=BytesPolicy.BASE64))
    assert text["inputs"][0]["data"] == ["now"]
    assert text["inputs"][0].get("parameters", {}).get("content_type", ...) == expected
    assert text.get("parameters", {}).get("content_type", ...) == of_request


@pytest.mark.rule("3.5")
@pytest.mark.parametrize(
    ("of_request", "of_input"),
    [(..., ...), (None, None), ("", ""), ("base64", ...), ("base64", None), ("pd", "base64")],
)
def test_base64_is_for_whoever_names_no_content_type_or_this_one(of_request: Any, of_input: Any) -> None:
    text = sent(*request_with_content_types(of_request, of_input, b"\xff"), TensorPolicy(bytes=BytesPolicy.BASE64))
    assert text["inputs"][0]["data"] == ["/w=="]
    assert text["inputs"][0]["parameters"]["content_type"] == "base64"


@pytest.mark.rule("3.5")
def test_base64_may_be_named_with_an_escape() -> None:
    header, blob = request_with_content_types(..., "base64", b"\xff")
    text = sent(header.replace(b"64", b"\\u00364"), blob, TensorPolicy(bytes=BytesPolicy.BASE64))
    assert text["inputs"][0]["data"] == ["/w=="]


@pytest.mark.rule("3.5")
@pytest.mark.parametrize(("of_request", "of_input"), [("str", ...), (..., "str"), ("base64", "str")])
def test_bytes_that_are_no_text_are_refused_where_the_client_names_a_content_type(
    of_request: Any, of_input: Any
) -> None:
    with pytest.raises(CodecError) as caught:
        sent(*request_with_content_types(of_request, of_input, b"a\xff"), TensorPolicy(bytes=BytesPolicy.BASE64))
    assert str(caught.value) == (
        "input 't' (BYTES, shape [1]): element 0 is not UTF-8 at byte 1, and the content type that the client names, "
        '"str", keeps it from base64: leave `content_type` out, or set it to `base64`'
    )


def request_with_content_types(of_request: Any, of_input: Any, element: bytes) -> tuple[bytes, bytes]:
    """Header and blob; `...` stands for a content type that is not there."""
    blob = len(element).to_bytes(4, "little") + element
    own = {} if of_input is ... else {"content_type": of_input}
    top = {} if of_request is ... else {"parameters": {"content_type": of_request}}
    tensor = entry("t", "BYTES", [1], ..., parameters={"binary_data_size": len(blob), **own})
    return header_of(tensor, **top), blob


# hostile


@pytest.mark.parametrize("tail", [b".5", b"e1", b"0", b"E-1"])
def test_number_behind_data_is_no_json(tail: bytes) -> None:
    first, second = b'{"name":"a","data":[1]}', b'{"name":"b","data":[1]%b}' % tail
    for items in (second, b"%b,%b" % (first, second)):
        try:
            backend_json(b'{"inputs":[%b]}' % items)
        except CodecError:
            continue
        raise IndexError("accepted")


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_brackets_without_end_in_parameters_are_refused(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    deep = opening * 100_000 + b"1" + closing * 100_000
    for header in (
        b'{"parameters":{"x":%b},"inputs":[]}' % deep,
        b'{"inputs":[{"name":"x","parameters":{"x":%b}}]}' % deep,
    ):
        with pytest.raises(CodecError):
            backend_json(header)


def test_deep_json_data_is_the_backends_business() -> None:
    def header(depth: int, closed: int) -> bytes:
        return b'{"inputs":[{"name":"x","data":' + b"[" * depth + b"]" * closed + b"}]}"

    assert backend_json(header(500, 500)) == header(500, 500)
    assert backend_json(header(100_000, 100_000)) == header(100_000, 100_000)
    with pytest.raises(CodecError, match="cut off"):
        backend_json(header(500, 498))


@pytest.mark.parametrize("data", [b"[1]]", b"[1", b'["]', b"]", b"", b"1" * 100_000])
def test_unbalanced_json_data_cannot_move_the_end_of_its_input(data: bytes) -> None:
    with pytest.raises(CodecError):
        backend_json(b'{"inputs":[{"name":"x","data":%b,"shape":[1]}]}' % data)


@pytest.mark.parametrize("data", [b"[1}", b"{]", b"[1,,2]", b"[tru]", b'{"a"}', b"tru"])
def test_json_data_that_is_none_stays_none_at_its_place(data: bytes) -> None:
    header = b'{"inputs":[{"name":"x","data":%b,"shape":[1]}]}' % data
    assert backend_json(header) == header


def test_words_of_errors_stay_short_whatever_is_sent() -> None:
    long = "x" * 1_000_000
    for item in (entry(datatype=long), entry(shape=long), entry(size=long), entry(shape=[1] * 100_000)):
        with pytest.raises(CodecError) as caught:
            parsed(header_of(item))
        assert len(str(caught.value)) < 1000


# the order of members


@pytest.mark.rule("3.2")
def test_members_keep_their_order_and_data_of_blobs_stand_last() -> None:
    header = (
        b'{"outputs":[{"parameters":{"own":1},"name":"y","more":2}],"own":3,"parameters":null,"inputs":[{"data":[1],'
        b'"datatype":"INT8","own":4,"name":"x","shape":[1]},{"parameters":{"binary_data_size":1},"name":"b","shape":[1],'
        b'"datatype":"INT8"}],"id":"a"}'
    )
    assert backend_json(header, b"\5") == (
        b'{"outputs":[{"parameters":{"own":1},"name":"y","more":2}],"own":3,"parameters":null,"inputs":[{"data":[1],'
        b'"datatype":"INT8","own":4,"name":"x","shape":[1]},{"name":"b","shape":[1],"datatype":"INT8","data":[5]}],"id":"a"}'
    )


# outputs in shared memory


@pytest.mark.rule("4.5")
def test_output_that_the_request_puts_into_shared_memory_is_recorded() -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    header = header_of(
        parameters={"binary_data_output": True},
        outputs=[
            {"name": "s", "parameters": region},
            {"name": "b", "parameters": {"binary_data": True, **region}},
            {"name": "n", "parameters": {"shared_memory_region": None}},
            {"name": "y"},
        ],
    )
    request = parsed(header)
    assert request.selection.in_shared_memory == {"s", "b"}
    assert [request.selection.is_binary(name) for name in "sbny"] == [False, False, True, True]
    text = sent(header)["outputs"]
    assert [item.get("parameters") for item in text] == [region, region, {"shared_memory_region": None}, None]


# limits


def with_limits(header: bytes, blobs: bytes, limits: HeaderLimits, header_length: int | None = None) -> Any:
    body = memoryview(header + blobs)
    length = len(header) if header_length is None else header_length
    return run(parsing(body, length if length >= 0 else None, TensorPolicy(), limits, recover=True))


def test_more_inputs_or_outputs_than_the_limit_are_refused_with_the_key() -> None:
    limits = HeaderLimits(max_tensors=3)
    for count in (3, 4, 5000):
        inputs = header_of(*({"name": str(i), "datatype": "INT8", "shape": [1], "data": [1]} for i in range(count)))
        outputs = header_of(outputs=[{"name": str(i)} for i in range(count)])
        for header, key in ((inputs, "inputs"), (outputs, "outputs")):
            if count <= 3:
                assert with_limits(header, b"", limits) is not None
                continue
            with pytest.raises(CodecError, match=rf"more than 3 .*{key}.*`limits.tensors`") as caught:
                with_limits(header, b"", limits)
            assert not isinstance(caught.value, TooLargeError)


def test_empty_objects_beyond_the_limit_are_refused_with_the_key_too() -> None:
    for key in ("inputs", "outputs"):
        header = b'{"inputs":[],"%b":[%b]}' % (key.encode(), b",".join([b"{}"] * 2000))
        with pytest.raises(CodecError, match=rf"more than 1024 .*{key}.*`limits.tensors`"):
            with_limits(header, b"", HeaderLimits())


def test_more_json_beside_the_data_than_the_limit_is_too_large() -> None:
    for padding in ('"x":"' + "y" * 4000 + '",', " " * 4000, "".join(f'"k{i}":{{}},' for i in range(500))):
        header = b"{%b" % padding.encode() + header_of(entry("x", "UINT8", [1], 1))[1:]
        assert with_limits(header, b"\1", HeaderLimits(max_header_bytes=len(header))) is not None
        with pytest.raises(TooLargeError, match=f"{len(header) - 1} bytes.*`limits.header`"):
            with_limits(header, b"\1", HeaderLimits(max_header_bytes=len(header) - 1))
        with pytest.raises(TooLargeError, match="`limits.header`"):
            with_limits(header, b"\1", HeaderLimits(max_header_bytes=len(header) - 1), header_length=-1)


def test_data_in_the_json_does_not_count_as_header() -> None:
    limits = HeaderLimits(max_header_bytes=500)
    data = [1.5] * 100_000
    header = header_of({"name": "x", "datatype": "FP32", "shape": [100_000], "data": data}, entry("b", "INT8", [1], 1))
    request = with_limits(header, b"\1", limits)
    assert request is not None and len(json.loads(b"".join(request.json_pieces()))["inputs"][0]["data"]) == 100_000


def test_pure_json_has_no_limits_because_nobody_reads_it() -> None:
    header = header_of(*({"name": "\u00e9", "data": [index]} for index in range(5000)))
    assert b"\\u00" in header
    assert with_limits(header, b"", HeaderLimits(max_header_bytes=100, max_tensors=2), header_length=-1) is None


def test_memory_of_the_header_is_reserved_once_and_before_it_is_built() -> None:
    header = header_of(entry("x", "UINT8", [1], 1), {"name": "j", "data": "z" * 10_000})
    small = header_of(entry("x", "UINT8", [1], 1))
    for text, beside in ((header, len(header) - 10_000), (small, len(small))):
        asked: list[int] = []
        steps = parsing(memoryview(text + b"\1"), len(text), TensorPolicy(), recover=False, reserve=asked.append)
        assert run(steps) is not None
        assert len(asked) == 1
        assert beside - 10 <= asked[0] // HELD_PER_BYTE <= len(text)


class NoRoomError(Exception):
    """What a budget raises."""


def test_what_the_reservation_raises_passes_through() -> None:
    def reserve(n_bytes: int) -> None:
        raise NoRoomError

    for header in (header_of(entry("x", "UINT8", [1], 1)), header_of(parameters={"binary_data_output": True})):
        for length in (len(header), None):
            with pytest.raises(NoRoomError):
                run(parsing(memoryview(header), length, TensorPolicy(), recover=True, reserve=reserve))


@pytest.mark.slow
@pytest.mark.parametrize("member", [b'"%d":1', b'"%d":NaN', b'"\xf0\x9f\x98\x80%d":{}'])
@pytest.mark.parametrize(
    "header", [b'{"inputs":[],%b}', b'{"inputs":[],"outputs":[{"name":"y","parameters":{"binary_data":true,%b}}]}']
)
def test_parsed_header_takes_no_more_memory_than_was_reserved(header: bytes, member: bytes) -> None:
    text = header % b",".join(member % number for number in range(8_000))
    reserved: list[int] = []
    tracemalloc.start()
    try:
        run(parsing(memoryview(text), len(text), TensorPolicy(), recover=False, reserve=reserved.append))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.2 * reserved[0] < peak < reserved[0]


# without a header length


def test_json_whose_sections_are_no_lists_is_judged_only_where_it_is_binary() -> None:
    lists = '"inputs":[1],"outputs":[{"name":"\\u0079"}]'
    assert parse_request(f"{{{lists}}}".encode(), None) is None
    with pytest.raises(CodecError, match="`inputs` must be an array of objects"):
        parse_request(f'{{{lists},"parameters":{{"binary_data_output":true}}}}'.encode(), None)


def test_header_that_is_cut_off_without_a_length_says_nothing_of_one() -> None:
    with pytest.raises(CodecError, match="cut off") as caught:
        parse_request(header_of(entry())[:-1], None)
    assert "Inference-Header" not in str(caught.value)


# members that the backend does not get


@pytest.mark.rule("11.4")
def test_json_that_cannot_be_read_is_passed_on_with_a_member_that_would_be_left_out() -> None:
    policy = TensorPolicy(leave_out=frozenset({"id"}))
    for body in (b'{"inputs":7,"id":"7"}', b'{"inputs":7,"id":"7","more":NaN}', b'{"inputs":[],"id":"7"'):
        assert parse_request(body, None, policy) is None


@pytest.mark.rule("11.4")
@pytest.mark.parametrize("left_out", [{"id"}, {"outputs"}, {"parameters"}, {"id", "outputs", "parameters"}])
@pytest.mark.parametrize("is_common", [True, False])
def test_members_that_are_left_out_reach_the_client_but_not_the_backend(left_out: set[str], is_common: bool) -> None:
    outputs = [{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}]
    top: dict[str, Any] = {"id": "7", "parameters": {"priority": 1, "binary_data_output": True}, "outputs": outputs}
    kept = {"id": "7", "parameters": {"priority": 1}, "outputs": [{"name": "y"}, {"name": "z"}]}
    if not is_common:
        top["other"] = kept["other"] = {"id": 1}
    header = header_of(entry(), **top)
    policy = TensorPolicy(leave_out=frozenset(left_out))
    body = sent(header, bytes(16), policy)
    assert body.pop("inputs")[0]["data"] == [0.0] * 4
    assert body == {key: value for key, value in kept.items() if key not in left_out}
    request = parsed(header, bytes(16), policy)
    assert request.id == b'"7"'
    assert dict(request.selection.named) == {"y": True, "z": True}


@pytest.mark.rule("11.4")
def test_pure_json_is_written_anew_only_if_something_is_left_out() -> None:
    policy = TensorPolicy(leave_out=frozenset(("id",)))
    body = b'{"id": "7", "inputs": [{"name": "x", "data": [1,  2]}]}'
    request = parse_request(body, None, policy)
    assert request is not None
    assert b"".join(request.json_pieces()) == b'{"inputs":[{"name":"x","data":[1,  2]}]}'
    assert request.id == b'"7"'
    assert parse_request(body, None) is None
    assert parse_request(body.replace(b'"id"', b'"ID"'), None, policy) is None
    assert parse_request(b'{"id": 7, no JSON', None, policy) is None
