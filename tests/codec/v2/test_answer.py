"""Answers: what of them the client gets, and what makes them unusable (protocol section 4, cases 18 to 21)."""

import json
import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

from gateway.codec.inference import HeaderLimits, OutputSelection
from gateway.codec.json.members import HELD_PER_BYTE
from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors.number_reading import NumberSink
from gateway.codec.v2.answer import InferAnswer
from gateway.codec.v2.reply import Reply
from gateway.errors import CodecError, TooLargeError
from tests.codec.walk import MAX_BYTES, cut, one_output, read_answer
from tests.steps import run

TWO = (
    b'{"model_name":"backend","outputs":[{"name":"out0","datatype":"INT8","shape":[2],"data":[1,2]},'
    b'{"name":"out1","datatype":"INT16","shape":[1],"data":[[3]]}]}'
)


def document_of(reply: Reply) -> Any:
    return json.loads(b"".join(reply.header))


def outputs_of(reply: Reply) -> dict[str, Any]:
    return {output["name"]: output for output in document_of(reply)["outputs"]}


def answer_of(*outputs: str, **top: Any) -> bytes:
    members = "".join(f"{json.dumps(key)}:{json.dumps(value)}," for key, value in top.items())
    return f'{{{members}"outputs":[{",".join(outputs)}]}}'.encode()


LONG_DATA = "[" + "1," * 9000 + "1]"


def output(name: str = "y", datatype: str = "INT8", shape: str = "[1]", data: str = "[1]", more: str = "") -> str:
    return f'{{"name":"{name}","datatype":"{datatype}","shape":{shape},"data":{data}{more}}}'


@pytest.mark.rule("4.1", "4.5")
@pytest.mark.parametrize(
    ("selection", "binary", "kept"),
    [
        (OutputSelection(), [], ["out0", "out1"]),
        (OutputSelection(True), ["out0", "out1"], []),
        (OutputSelection(False, {"out0": True, "out1": False}), ["out0"], ["out1"]),
        (OutputSelection(True, {"out0": False, "out1": True}), ["out1"], ["out0"]),
        (OutputSelection(True, {"out1": True}), ["out1"], []),
        (OutputSelection(False, {"out1": False}), [], ["out1"]),
        (OutputSelection(False, {"out1": True, "out0": True}), ["out0", "out1"], []),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_outputs_are_binary_json_or_dropped_as_selected(
    selection: OutputSelection, binary: list[str], kept: list[str], chunk_bytes: int | None
) -> None:
    reply = read_answer(cut(TWO, chunk_bytes), selection)
    outputs = outputs_of(reply)
    blobs = {"out0": b"\1\2", "out1": b"\3\0"}
    assert sorted(outputs) == sorted(binary + kept)
    assert [bytes(blob) for blob in reply.blobs] == [blobs[name] for name in binary]
    assert reply.datatypes == [{"out0": "INT8", "out1": "INT16"}[name] for name in binary]
    assert bool(reply.outputs) == bool(binary)
    for name in binary:
        assert outputs[name]["parameters"] == {"binary_data_size": len(blobs[name])}
        assert "data" not in outputs[name]
    for name in kept:
        assert outputs[name]["data"] == {"out0": [1, 2], "out1": [[3]]}[name]
        assert "parameters" not in outputs[name]


@pytest.mark.rule("4.5")
def test_requested_output_that_is_missing_is_named() -> None:
    for named in ({"y": True}, {"out0": False, "y": False}):
        with pytest.raises(CodecError, match="output 'y' was requested, but the answer does not have it"):
            read_answer([TWO], OutputSelection(False, named))


@pytest.mark.rule("4.6")
@pytest.mark.parametrize(
    ("top", "request_id", "expected"),
    [
        ({}, b'"client"', {"model_name": "m", "id": "client"}),
        ({}, b"", {"model_name": "m"}),
        ({"id": None, "model_name": None}, b'"client"', {"model_name": "m", "id": "client"}),
        ({"id": None}, b"", {"model_name": "m"}),
        ({"id": "own", "model_name": "own"}, b'"client"', {"model_name": "own", "id": "own"}),
        ({"id": "own"}, b"", {"model_name": "m", "id": "own"}),
        ({"id": ""}, b'"client"', {"model_name": "m", "id": "client"}),
        ({"id": ""}, b"", {"model_name": "m", "id": ""}),
        (
            {"model_version": "1", "parameters": {"a": [1]}},
            b"",
            {"model_name": "m", "model_version": "1", "parameters": {"a": [1]}},
        ),
    ],
)
def test_id_and_model_name_are_added_where_the_backend_left_them_out(
    top: dict[str, Any], request_id: bytes, expected: dict[str, Any]
) -> None:
    document = document_of(read_answer([answer_of(output(), **top)], request_id=request_id))
    outputs = document.pop("outputs")
    assert document == expected
    assert len(outputs) == 1


def test_model_name_in_the_path_may_be_any_string() -> None:
    assert document_of(read_answer([answer_of()], model='é"\\'))["model_name"] == 'é"\\'


@pytest.mark.rule("4.4")
@pytest.mark.parametrize("parameters", ["null", "{}", " { } "])
@pytest.mark.parametrize("binary", [True, False])
def test_null_or_empty_parameters_of_an_output_are_dropped(parameters: str, binary: bool) -> None:
    reply = read_answer([answer_of(output(more=f',"parameters":{parameters}'))], OutputSelection(binary))
    expected = {"parameters": {"binary_data_size": 1}} if binary else {"data": [1]}
    assert outputs_of(reply)["y"] == {"name": "y", "datatype": "INT8", "shape": [1], **expected}


@pytest.mark.rule("4.4")
def test_other_parameters_and_members_of_an_output_stay() -> None:
    text = answer_of(output(more=',"parameters":{"k":[1,{"data":2}],"binary_data_size":99},"extra":NaN'))
    for binary, own in ((True, {"binary_data_size": 1}), (False, {})):
        found = outputs_of(read_answer([text], OutputSelection(binary)))["y"]
        assert found["parameters"] == {"k": [1, {"data": 2}], **own}
        assert str(found["extra"]) == "nan"


@pytest.mark.rule("4.4")
@pytest.mark.parametrize(
    "data", ["[1.50, -0,[2e0]]", '["\\u00e9", "]},{" ]', "[NaN,null]", "[]", "null", "5", '{"data":[]}']
)
@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_output_that_stays_json_keeps_the_text_of_its_data(data: str, chunk_bytes: int | None) -> None:
    reply = read_answer(cut(answer_of(output(data=data)), chunk_bytes), OutputSelection())
    assert f'"data":{data}}}'.encode() in b"".join(reply.header)


@pytest.mark.parametrize("data", ["[1,]", "[1", "[1]]", "[tru]", "[1 2]", '["\\x"]', "nope", "[1,}"])
def test_output_that_stays_json_has_to_be_json(data: str) -> None:
    for chunk_bytes in (None, 1):
        with pytest.raises(CodecError):
            read_answer(cut(answer_of(output(data=data)), chunk_bytes), OutputSelection())


@pytest.mark.parametrize("data", ["[1,]", "[1}", "[tru]", '["\\x"]'])
def test_output_that_nobody_wants_has_to_be_json_too(data: str) -> None:
    with pytest.raises(CodecError, match="output 'extra'"):
        read_answer([answer_of(output("extra", data=data), output())], OutputSelection(True, {"y": True}))


@pytest.mark.rule("4.9")
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "null",
        "[]",
        "{}",
        '"x"',
        "<html>",
        '{"error":"no"}',
        '{"outputs":null}',
        '{"outputs":5}',
        '{"outputs":{}}',
        '{"outputs":[5]}',
        '{"outputs":[[]]}',
        '{"outputs":[{"name":"y"}',
        '{"outputs":[]}x',
        '{"outputs":[],}',
        '{"outputs":[] "x":1}',
        '{"outputs":[],"x":"\\x"}',
    ],
)
def test_answer_that_is_not_what_it_should_be_is_refused(text: str) -> None:
    for chunk_bytes in (None, 1):
        with pytest.raises(CodecError):
            read_answer(cut(text.encode(), chunk_bytes))


@pytest.mark.rule("4.7")
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (output(data="[300]", datatype="UINT8"), "output 'y'.*300"),
        (output(data="[1.5]", datatype="INT32"), "output 'y'.*1.5"),
        (output(shape="[2]"), "output 'y'.*expected 2 elements, got 1"),
        (output(data="[1"), "output 'y'.*brackets do not match"),
        (output(datatype="FOO"), "output 'y': datatype must be one of BOOL.*got \"FOO\""),
        (output(datatype="int8"), "output 'y': datatype must be one of.*upper case, got \"int8\""),
        ('{"name":"y","datatype":7,"shape":[1],"data":[1]}', "output 'y': datatype must be one of.*got 7"),
        ('{"name":"y","shape":[1],"data":[1]}', "output 'y': datatype must be one of.*got none"),
        ('{"name":"y","datatype":"INT8","data":[1]}', "output 'y': shape"),
        (output(shape="[-1]"), r"output 'y': shape.*\[-1\]"),
        (output(shape="[1.0]"), "output 'y': shape"),
        (output(shape="1"), "output 'y': shape"),
        (output(shape="null"), "output 'y': shape"),
        ('{"name":"y","datatype":"INT8","shape":[1]}', "output 'y' has no data"),
        ('{"name":"y","datatype":"INT8","shape":[1],"parameters":{}}', "output 'y' has no data"),
        ('{"name":7,"datatype":"INT8","shape":[1],"data":[1]}', "output 0: name must be a string, got 7"),
        ('{"datatype":"INT8","shape":[1],"data":[1]}', "output 0: name must be a string, got none"),
        (output(more=',"parameters":5'), "must be an object"),
        (output(more=',"shape":[2]'), "output 'y'.*expected 2 elements, got 1"),
        (output(data=LONG_DATA, shape="[9001]", more=',"shape":[2]'), "came twice and differ"),
        (output(data=LONG_DATA, shape="[9001]", more=',"datatype":"INT16"'), "came twice and differ"),
    ],
)
def test_broken_output_is_refused_by_name(broken: str, words: str) -> None:
    for chunk_bytes in (None, 1):
        with pytest.raises(CodecError, match=words):
            read_answer(cut(answer_of(broken), chunk_bytes))


@pytest.mark.rule("4.7")
@pytest.mark.parametrize(
    "order",
    [
        ("data", "shape", "datatype", "name"),
        ("shape", "data", "name", "datatype"),
        ("name", "data", "datatype", "shape"),
    ],
)
def test_keys_of_an_output_come_in_any_order(order: tuple[str, ...]) -> None:
    members = {"name": '"y"', "datatype": '"FP32"', "shape": "[2]", "data": '[0.1,"NaN"]', "parameters": "null"}
    text = ",".join(f'"{key}":{members[key]}' for key in (*order, "parameters"))
    for named in ({}, {"y": True}):
        for chunk_bytes in (None, 1):
            reply = read_answer(cut(answer_of(f"{{{text}}}"), chunk_bytes), OutputSelection(True, named))
            assert np.frombuffer(reply.blobs[0], "<f4")[0] == np.float32(0.1)
            assert reply.nonfinite == 1


@pytest.mark.parametrize("name", ["data", "outputs", "NaN", "~0~NaN", "é", ""])
def test_outputs_may_have_any_name(name: str) -> None:
    text = answer_of(output(name), output(name + "2", more=',"NaN":NaN'))
    reply = read_answer([text], OutputSelection(False, {name: True, name + "2": False}))
    assert list(outputs_of(reply)) == [name, name + "2"]
    assert bytes(reply.blobs[0]) == b"\1"


def test_escaped_keys_and_names_are_what_they_stand_for() -> None:
    text = b'{"\\u006futputs":[{"n\\u0061me":"\\u0079","datat\\u0079pe":"INT\\u0038","shape":[1],"d\\u0061ta":[7]}]}'
    assert bytes(read_answer([text], OutputSelection(False, {"y": True})).blobs[0]) == b"\7"


@pytest.mark.rule("4.5")
def test_hundred_outputs_keep_the_order_of_the_backend() -> None:
    text = answer_of(*(output(f"y{i}", data=f"[{i}]") for i in reversed(range(100))))
    named = {f"y{i}": i % 3 == 0 for i in range(100)}
    for chunk_bytes in (None, 64):
        reply = read_answer(cut(text, chunk_bytes), OutputSelection(False, named))
        assert list(outputs_of(reply)) == [f"y{i}" for i in reversed(range(100))]
        assert [bytes(blob) for blob in reply.blobs] == [bytes([i]) for i in reversed(range(100)) if i % 3 == 0]


def test_last_of_two_equal_keys_wins() -> None:
    text = (
        b'{"outputs":5,"outputs":[{"name":"y","datatype":"INT8","shape":[1],"data":[1],"data":[2]}],"id":"a","id":"b"}'
    )
    reply = read_answer([text])
    assert bytes(reply.blobs[0]) == b"\2"
    assert document_of(reply)["id"] == "b"


def test_output_in_shared_memory_has_no_data() -> None:
    text = answer_of('{"name":"y","datatype":"INT8","shape":[1],"parameters":{"shared_memory_region":"r"}}')
    reply = read_answer([text])
    assert outputs_of(reply)["y"]["parameters"] == {"shared_memory_region": "r"}
    assert not reply.outputs


@pytest.mark.rule("4.5")
@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_output_that_the_request_puts_into_shared_memory_crosses_as_it_is(chunk_bytes: int | None) -> None:
    """Triton answers with name, datatype and shape only."""
    selection = OutputSelection(True, {"s": False, "y": True}, frozenset("s"))
    bare = '{"name":"s","datatype":"INT8","shape":[1]}'
    for text, members in (
        (bare, {}),
        (bare.replace("}", ',"parameters":null}'), {}),
        (bare.replace("}", ',"parameters":{"k":1}}'), {"parameters": {"k": 1}}),
        (bare.replace("}", ',"data":[7]}'), {"data": [7]}),
    ):
        reply = read_answer(cut(answer_of(text, output()), chunk_bytes), selection)
        assert outputs_of(reply)["s"] == {"name": "s", "datatype": "INT8", "shape": [1], **members}
        assert [bytes(blob) for blob in reply.blobs] == [b"\1"]


def test_output_in_shared_memory_has_to_be_in_the_answer_and_others_have_to_have_data() -> None:
    selection = OutputSelection(False, {"s": False, "y": True}, frozenset("s"))
    with pytest.raises(CodecError, match="output 's' was requested, but the answer does not have it"):
        read_answer([answer_of(output())], selection)
    with pytest.raises(CodecError, match="output 'y' has no data"):
        read_answer([answer_of('{"name":"s"}', '{"name":"y","datatype":"INT8","shape":[1]}')], selection)


@pytest.mark.rule("4.9")
@pytest.mark.parametrize("chunk_bytes", [None, 1])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"error":"model is not ready"}', "model is not ready"),
        (b'{"error":{"code":7}}', '{"code":7}'),
        (b'{"error":"NaN is bad","x":NaN}', "NaN is bad"),
        (b'{"error":NaN}', "NaN"),
        (b'{"code":503,"message":"out of memory"}', "out of memory"),
        (b'{"detail":"no"}', "no"),
    ],
)
def test_answer_that_is_an_error_is_refused_in_its_own_words(text: bytes, words: str, chunk_bytes: int | None) -> None:
    with pytest.raises(CodecError, match="no `outputs`, but an error: ") as caught:
        read_answer(cut(text, chunk_bytes))
    assert str(caught.value).endswith(words)


def test_words_of_an_error_in_an_answer_stay_readable() -> None:
    with pytest.raises(CodecError, match="the reason$") as caught:
        read_answer([json.dumps({"error": "x" * 100_000 + "the reason"}).encode()])
    assert len(str(caught.value)) < 5000


def test_error_beside_outputs_is_a_member_like_others() -> None:
    assert document_of(read_answer([answer_of(output(), error="none")]))["error"] == "none"


# limits


def limited(limits: HeaderLimits, chunks: list[bytes]) -> Reply:
    answer = InferAnswer(OutputSelection(True), model="m", request_id=b"", max_bytes=MAX_BYTES, limits=limits)
    for chunk in chunks:
        for _ in answer.feed(chunk):
            pass
    return run(answer.finish())


@pytest.mark.parametrize("chunk_bytes", [None, 7, 5000])
def test_more_outputs_than_the_limit_are_refused_with_the_key(chunk_bytes: int | None) -> None:
    for count in (3, 4, 500):
        for text in (
            answer_of(*(output(f"y{index}") for index in range(count))),
            answer_of(*(['{"name":"y","parameters":{"shared_memory_region":"r"}}'] * count)),
        ):
            if count <= 3:
                limited(HeaderLimits(max_tensors=3), cut(text, chunk_bytes))
                continue
            with pytest.raises(CodecError, match="more than 3 .*outputs.*`limits.tensors`"):
                limited(HeaderLimits(max_tensors=3), cut(text, chunk_bytes))


@pytest.mark.parametrize("chunk_bytes", [None, 7, 5000])
def test_more_json_beside_the_data_than_the_limit_is_too_large(chunk_bytes: int | None) -> None:
    for count in (10, 10_000):
        text = answer_of(output(datatype="UINT8", shape=f"[{count}]", data=str([1] * count)), x="y" * 200)
        reply = limited(HeaderLimits(max_header_bytes=400), cut(text, chunk_bytes))
        assert len(reply.blobs[0]) == count
        with pytest.raises(TooLargeError, match="200 bytes.*`limits.header`"):
            limited(HeaderLimits(max_header_bytes=200), cut(text, chunk_bytes))


# memory


def test_what_is_held_is_what_is_filled_and_asking_for_it_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every chunk the corridor asks; with a thousand outputs the sum of all would be quadratic."""
    answer = InferAnswer(OutputSelection(True), model="m", request_id=b"", max_bytes=MAX_BYTES)
    asked = 0
    held = NumberSink.held_bytes.fget  # type: ignore[attr-defined]

    def counting(sink: NumberSink) -> int:
        nonlocal asked
        asked += 1
        return int(held(sink))

    monkeypatch.setattr(NumberSink, "held_bytes", property(counting))
    n_chunks = fed = 0
    for chunk in cut(answer_of(*(output(f"y{index}") for index in range(1000))), 64):
        for _ in answer.feed(chunk):
            pass
        n_chunks += 1
        fed += len(chunk)
        assert answer.held_bytes <= 1000 + HELD_PER_BYTE * fed
    run(answer.finish())
    assert 1000 < answer.held_bytes < 1000 + 2 * fed
    assert asked <= n_chunks + 1001


def test_text_that_waits_for_its_datatype_is_held_until_it_is_read() -> None:
    data = "[" + "1," * 50_000 + "1]"
    late = f'{{"data":{data},"name":"%s","datatype":"INT8","shape":[50001]}}'
    answer = InferAnswer(OutputSelection(True, {"a": True, "b": True}), model="m", request_id=b"", max_bytes=MAX_BYTES)
    text = answer_of(late % "a", late % "b")
    for chunk in cut(text, 1000):
        for _ in answer.feed(chunk):
            pass
    header_bytes = len(text) - 2 * len(data)
    assert len(text) - PIECE_BYTES < answer.held_bytes <= 2 * len(data) + header_bytes * HELD_PER_BYTE
    run(answer.finish())
    assert answer.held_bytes == 2 * 50_001 + header_bytes


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(("datatype", "shape"), [("NaN", "[1]"), ('"FP32"', "[0,NaN]"), ("[-Infinity]", "[1]")])
def test_error_quotes_a_literal_of_the_answer_as_it_was_written(datatype: str, shape: str, is_reversed: bool) -> None:
    members = ['"name":"y"', f'"datatype":{datatype}', f'"shape":{shape}', '"data":[1]']
    text = f'{{"outputs":[{{{",".join(reversed(members) if is_reversed else members)}}}]}}'
    with pytest.raises(CodecError, match=re.escape(f"got {shape if 'NaN' in shape else datatype}")):
        read_answer([text.encode()], OutputSelection(True))


@pytest.mark.slow
@pytest.mark.parametrize("member", ['"%x":0', '"\u0100%x":0', '"%x":NaN', '"%x":{}'])
def test_header_of_an_answer_counts_as_much_as_it_takes_before_it_is_parsed(member: str) -> None:
    """A backend's header of the largest size allowed took 18 MiB, and none of it was counted."""
    members = ",".join(member % number for number in range(9_000))
    text = answer_of(output("y"))[:-1] + f",{members}}}".encode()
    tracemalloc.start()
    try:
        answer = InferAnswer(OutputSelection(True), model="m", request_id=b"", max_bytes=MAX_BYTES)
        for _ in answer.feed(text):
            pass
        counted = answer.held_bytes
        run(answer.finish())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(text) < peak_bytes <= counted
    assert answer.held_bytes < 2 * len(text)


def test_shape_of_gigabytes_without_data_holds_next_to_nothing() -> None:
    answer = InferAnswer(OutputSelection(True), model="m", request_id=b"", max_bytes=MAX_BYTES)
    text = '{"outputs":[{"name":"y","datatype":"FP64","shape":[500000000],"data":[1,2,' + " " * 5000
    for _ in answer.feed(text.encode()):
        pass
    assert answer.held_bytes < 1_000_000


def test_output_that_says_much_before_its_data_is_read_at_the_end() -> None:
    members = ",".join(f'"k{number}":{number}' for number in range(5000))
    text = answer_of(f'{{"name":"y","datatype":"INT8","shape":[2],{members},"data":[1,2]}}')
    for chunk_bytes in (None, 1000):
        reply = read_answer(cut(text, chunk_bytes), OutputSelection(False, {"y": True}))
        assert bytes(reply.blobs[0]) == b"\1\2"
        assert outputs_of(reply)["y"]["k4999"] == 4999


@pytest.mark.rule("4.3")
def test_empty_tensor_is_a_blob_of_no_bytes() -> None:
    reply = read_answer([answer_of(output(shape="[0,3]", data="[]"), output("z"))])
    assert [bytes(blob) for blob in reply.blobs] == [b"", b"\1"]
    assert outputs_of(reply)["y"]["parameters"] == {"binary_data_size": 0}
    assert reply.outputs


def test_blobs_are_read_as_bytes_whatever_the_datatype() -> None:
    for datatype in ("FP16", "UINT64", "BF16", "BOOL"):
        (blob,) = read_answer([answer_of(output(datatype=datatype))]).blobs
        assert (blob.format, blob.ndim, blob.nbytes) == ("B", 1, len(blob))


@pytest.mark.rule("4.3")
def test_answer_of_no_outputs_is_plain_json() -> None:
    reply = read_answer([answer_of()])
    assert document_of(reply) == {"model_name": "m", "outputs": []}
    assert not reply.outputs


def test_elements_that_the_answer_cannot_hold_are_refused_before_they_are_allocated() -> None:
    for datatype, data in (("FP64", "[1]"), ("BYTES", '["a"]')):
        text = answer_of(output(datatype=datatype, shape=f"[{MAX_BYTES}]", data=data))
        with pytest.raises(CodecError, match="cannot be in an answer"):
            read_answer([text])


def test_brackets_without_end_around_data_are_refused() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for text in (answer_of(output(more=f',"x":{deep}')), f'{{"x":{deep},"outputs":[]}}'.encode(), answer_of(deep)):
        with pytest.raises(CodecError):
            read_answer(cut(text, 65536))


def test_literals_outside_data_come_out_as_they_went_in() -> None:
    text = answer_of(output(more=',"parameters":{"a":NaN,"b":"NaN"},"c":[-Infinity]')).replace(
        b'{"o', b'{"t":Infinity,"o', 1
    )
    header = b"".join(read_answer([text]).header)
    for part in (b'"t":Infinity', b'"a":NaN', b'"b":"NaN"', b'"c":[-Infinity]'):
        assert part in header


@pytest.mark.parametrize("tail", [".5", "e1", "7", "E-1"])
@pytest.mark.parametrize("binary", [True, False])
def test_number_behind_data_is_no_json(tail: str, binary: bool) -> None:
    text = answer_of(output("a"), output("b", data="[2]" + tail))
    try:
        read_answer([text], OutputSelection(binary))
    except CodecError:
        return
    raise IndexError("accepted")


def test_number_behind_data_does_not_swap_tensors() -> None:
    """`"data":[2]0` of the second output becomes value 10: that of the eleventh."""
    outputs = [output(f"y{i}", data=f"[{i}]" + ("0" if i == 1 else "")) for i in range(12)]
    with pytest.raises(CodecError):
        read_answer([answer_of(*outputs)])


def test_output_named_twice_is_refused_or_whole() -> None:
    text = answer_of(output("unwanted", more=',"name":"y"'))
    try:
        reply = read_answer([text], OutputSelection(False, {"y": False}))
    except CodecError:
        return
    assert outputs_of(reply)["y"]["data"] == [1]


def test_text_that_looks_like_the_marker_of_literals_stays_in_data() -> None:
    text = answer_of(output(datatype="BYTES", data='["~0~NaN"]', more=',"p":NaN'))
    assert outputs_of(read_answer([text], OutputSelection()))["y"]["data"] == ["~0~NaN"]


@pytest.mark.parametrize(
    "text", ['{NaN:1,"outputs":[]}', '{"outputs":[{"name":NaN,"datatype":"INT8","shape":[1],"data":[1]}]}']
)
def test_literal_is_neither_a_key_nor_a_name(text: str) -> None:
    with pytest.raises(CodecError):
        read_answer([text.encode()])


@pytest.mark.parametrize("glued", [b"NaN0", b"0NaN", b"-NaN", b"1Infinity", b"Infinity.5"])
@pytest.mark.parametrize("is_binary", [True, False])
def test_literal_that_is_glued_to_something_is_no_json(glued: bytes, is_binary: bool) -> None:
    for text in (one_output(b"[" + glued + b"]"), one_output("[1]").replace(b'{"', b'{"id":%b,"' % glued, 1)):
        with pytest.raises(CodecError):
            read_answer([text], OutputSelection(is_binary))


@pytest.mark.parametrize(
    "text",
    [
        b'"data":["x"],"d\\u0061ta":[2]',
        b'"data":[2],"x":"\\"data\\":[3]"',
        b'"data":[2],"x":"\\n","d\\u0061ta":[3]',
        b'"data":[2],"data":["x"]',
        b'"data":[2],"x":{"data":1}',
    ],
)
def test_small_answer_is_judged_alike_whole_and_in_pieces(text: bytes) -> None:
    answer = b'{"outputs":[{"name":"y","datatype":"UINT8","shape":[1],%b}]}' % text
    results = []
    for chunk_bytes in (None, 1):
        try:
            results.append(b"".join(read_answer(cut(answer, chunk_bytes)).header))
        except CodecError as error:
            results.append(str(error).encode())
    assert results[0] == results[1]


def test_many_small_outputs_are_read_in_steps() -> None:
    entry = b'{"name":"%d","datatype":"INT8","shape":[1],"data":[1]}'
    for n_outputs in (20, 1000):
        answer = InferAnswer(OutputSelection(binary_by_default=True), model="m", request_id=b"", max_bytes=MAX_BYTES)
        entries = b",".join(entry % number for number in range(n_outputs))
        steps = sum(1 for _ in answer.feed(b'{"outputs":[%b]}' % entries)) + sum(1 for _ in answer.finish())
        assert steps >= n_outputs - 1  # between them


# a model with another name


@pytest.mark.rule("8.2")
@pytest.mark.parametrize("chunk_bytes", [None, 7])
@pytest.mark.parametrize(
    ("said", "name"),
    [('"own"', "mine"), ("null", "mine"), ("NaN", "mine"), (json.dumps("x" * 9000), "mine"), ("", "mine")],
)
def test_a_renamed_model_has_the_clients_name_whatever_the_backend_says(
    said: str, name: str, chunk_bytes: int | None
) -> None:
    members = f'"model_name":{said},' if said else ""
    text = f'{{{members}"outputs":[{output()}],"model_version":"1"}}'.encode()
    answer = InferAnswer(OutputSelection(True), model=name, is_renamed=True, request_id=b"", max_bytes=MAX_BYTES)
    for chunk in cut(text, chunk_bytes):
        run(answer.feed(chunk))
    document = document_of(run(answer.finish()))
    assert (document["model_name"], document["model_version"]) == (name, "1")


@pytest.mark.rule("4.4")
def test_members_keep_their_order() -> None:
    text = (
        b'{"outputs":[{"data":[1],"own":1,"shape":[1],"datatype":"INT8","parameters":{"a":1},"name":"y"}],"own":2,'
        b'"id":"a","parameters":{}}'
    )
    assert b"".join(read_answer([text], OutputSelection()).header) == (
        b'{"outputs":[{"data":[1],"own":1,"shape":[1],"datatype":"INT8","parameters":{"a":1},"name":"y"}],"own":2,'
        b'"id":"a","parameters":{},"model_name":"m"}'
    )


@pytest.mark.rule("1.6")
@pytest.mark.parametrize("selection", [OutputSelection(), OutputSelection(True)])
def test_of_long_data_that_comes_twice_the_last_counts(selection: OutputSelection) -> None:
    late = f',"data":{LONG_DATA.replace("1", "2")}'
    for more in (late, late * 2):
        text = answer_of(output(data=LONG_DATA, shape="[9001]", more=more))
        answer = InferAnswer(selection, model="m", request_id=b"", max_bytes=MAX_BYTES)
        for chunk in cut(text, 4096):
            for _ in answer.feed(chunk):
                pass
        reply = run(answer.finish())
        if selection.binary_by_default:
            assert b"".join(reply.blobs) == b"\2" * 9001
            assert answer.held_bytes < 9001 + 1000
        else:
            assert json.loads(b"".join(reply.header))["outputs"][0]["data"] == [2] * 9001


def test_name_that_comes_again_behind_long_data_cannot_ask_for_its_text() -> None:
    """The data has become binary, or was passed over, by the name before it."""
    selection = OutputSelection(False, {"y": True, "z": False})
    for first in "yx":
        text = answer_of(output("y"), output(first, data=LONG_DATA, shape="[9001]", more=',"name":"z"'))
        with pytest.raises(CodecError, match="output 'z': its name came twice and differs"):
            read_answer(cut(text, 4096), selection)
