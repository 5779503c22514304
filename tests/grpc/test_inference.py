"""Messages of inferences taken apart and put together, without a connection: also those that nobody should send."""

import json

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.client.grpc.frames import Buffers
from gateway.client.grpc.inference import InferMessage, read_request, write_response
from gateway.client.grpc.messages import varint
from gateway.codec.inference import HeaderLimits
from gateway.errors import CodecError, TooLargeError
from tests.grpc.test_clients import in_message
from tests.steps import run

pytestmark = pytest.mark.rule("12.1")

LIMIT = 128 * 1024


def read(message: bytes, limit: int = LIMIT) -> InferMessage:
    return run(read_request(memoryview(message), HeaderLimits(limit), lambda n_bytes: None))


WELL = in_message(np.ones(4, "f4"), "FP32", is_typed=False).SerializeToString()

MALFORMED = {
    "a number that is cut off": b"\x80",
    "a length that is cut off": b"\x0a\x80",
    "a text that is cut off": b"\x0a\x05ab",
    "a field of 4 bytes that is cut off": b"\x0d\x00",
    "a field of 8 bytes that is cut off": b"\x09\x00",
    "a group": b"\x0b",
    "field 0": b"\x02\x00",
    "a number without end": b"\x08" + b"\xff" * 11,
    "a tag that is too long": b"\xba" + b"\x80" * 5 + b"\x00\x01a",
    "a length that is too long": b"\x3a\x81" + b"\x80" * 5 + b"\x00a",
    "text that is no UTF-8": b"\x0a\x02\xff\xff",
    "an input that is cut off": b"\x0a\x01m\x2a\x03\x0a\x05a",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_messages_are_refused(case: str) -> None:
    with pytest.raises(CodecError, match="malformed message"):
        read(MALFORMED[case])


def test_fields_that_nobody_knows_are_left() -> None:
    unknown = b"\xf8\x07\x01" + b"\xfd\x07" + bytes(4) + b"\xf9\x07" + bytes(8) + b"\xfa\x07\x02ab"
    assert read(WELL + unknown) == read(WELL)


@pytest.mark.parametrize("number", [5, 7])  # inputs, raw contents
def test_a_field_with_another_type_than_its_own_is_one_that_nobody_knows(number: int) -> None:
    unknown = bytes([number << 3]) + b"\x01"
    assert read(WELL + unknown) == read(WELL)
    assert pb.ModelInferRequest.FromString(WELL + unknown).raw_input_contents == [np.ones(4, "f4").tobytes()]


def test_values_of_a_long_input_are_not_a_number_in_their_place() -> None:
    entry = pb.ModelInferRequest.InferInputTensor(name="x" * 20_000, datatype="FP32", shape=[1])
    text = entry.SerializeToString() + b"\x28\x01"  # field 5, which is no message there
    with pytest.raises(CodecError, match=r"^input 'x{64}\.\.\.': has no values"):
        read(b"\x0a\x01m\x2a" + varint(len(text)) + text)


def test_a_tag_may_be_longer_than_it_needs_to_be() -> None:
    message = in_message(np.ones(5000, "f4"), "FP32", is_typed=True).SerializeToString()
    short = message.index(b"\x2a")
    longer = message[:short] + b"\xaa\x00" + message[short + 1 :]
    assert read(longer) == read(message)


def test_more_beside_the_values_than_the_limit() -> None:
    message = pb.ModelInferRequest.FromString(WELL)
    message.parameters["x"].string_param = "y" * 1000
    with pytest.raises(TooLargeError, match="limits.header is 500"):
        read(message.SerializeToString(), 500)
    message.ClearField("parameters")
    for number in range(12):  # short in the message, longer in JSON
        message.parameters[str(number)].bool_param = True
    with pytest.raises(TooLargeError, match="limits.header is 200"):
        read(message.SerializeToString(), 200)


def test_many_inputs_are_looked_at_in_steps() -> None:
    message = pb.ModelInferRequest(model_name="m")
    for number in range(600):
        message.inputs.add(name=str(number), datatype="UINT8", shape=[1])
        message.raw_input_contents.append(bytes([number % 256]))
    steps = read_request(memoryview(message.SerializeToString()), HeaderLimits(1024**2), lambda n_bytes: None)
    next(steps)  # the first of several
    assert [bytes(blob) for blob in run(steps).blobs] == [bytes([number % 256]) for number in range(600)]


def test_a_long_entry_must_have_its_values_once() -> None:
    entry = pb.ModelInferRequest.InferInputTensor(name="x" * 20_000, datatype="FP32", shape=[1])
    text = pb.ModelInferRequest(model_name="m", inputs=[entry]).SerializeToString()
    with pytest.raises(CodecError, match="has no values, neither `contents`"):
        read(text)
    assert read(text + b"\x3a\x04abcd").blobs == [b"abcd"]
    twice = entry.SerializeToString() + b"\x2a\x02\x32\x00" * 2
    with pytest.raises(CodecError, match="more than 1 `contents` in an input"):
        read(b"\x0a\x01m\x2a" + varint(len(twice)) + twice)


def test_an_empty_tensor_and_shared_memory_need_no_values() -> None:
    message = pb.ModelInferRequest(model_name="m", model_version="3")
    message.inputs.add(name="empty", datatype="FP32", shape=[0, 4])
    read_empty = read(message.SerializeToString())
    assert read_empty.names == ("m", "3", "")
    assert [bytes(blob) for blob in read_empty.blobs] == [b""]
    region = message.inputs.add(name="region", datatype="FP32", shape=[4])
    region.parameters["shared_memory_region"].string_param = "r"
    message.raw_input_contents.append(b"")
    assert len(read(message.SerializeToString()).blobs) == 1


def test_a_datatype_that_nobody_knows_is_left_to_the_codec() -> None:
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="FP7", shape=[1]).contents.fp32_contents.append(1)
    assert b'"FP7"' in read(message.SerializeToString()).header


def header(**output: object) -> bytes:
    entry = {"name": "y", "datatype": "INT8", "shape": [4], "parameters": {"binary_data_size": 4}, **output}
    return json.dumps({"model_name": "m", "outputs": [entry]}).encode()


def test_values_may_lie_in_several_buffers_and_share_one() -> None:
    parts = run(write_response(header(), Buffers([b"\1\2", memoryview(b"\3\4")]), is_typed=False))
    assert pb.ModelInferResponse.FromString(b"".join(parts)).raw_output_contents == [b"\1\2\3\4"]
    entries = [json.loads(header(name=name))["outputs"][0] for name in "yz"]
    two = json.dumps({"outputs": entries}).encode()
    answer = pb.ModelInferResponse.FromString(
        b"".join(run(write_response(two, Buffers([b"\1\2\3\4\5\6\7\x08"]), is_typed=False)))
    )
    assert list(answer.raw_output_contents) == [b"\1\2\3\4", b"\5\6\7\x08"]


@pytest.mark.parametrize(
    ("text", "blobs", "words"),
    [
        (b"no JSON", [], "cannot be made a message"),
        (b'{"outputs": 5}', [], "cannot be made a message"),
        (header(), [b"\1"], "ends 3 bytes short"),
        (header(data=[1]), [], "came as JSON"),
    ],
)
def test_replies_that_are_none_are_refused(text: bytes, blobs: list[bytes], words: str) -> None:
    with pytest.raises(CodecError, match=words):
        run(write_response(text, Buffers(blobs), is_typed=False))


def test_outputs_in_half_precision_are_raw_even_if_the_inputs_were_typed() -> None:
    text = header(datatype="FP16", shape=[2])
    answer = pb.ModelInferResponse.FromString(
        b"".join(run(write_response(text, Buffers([b"\0\x3c\0\x40"]), is_typed=True)))
    )
    assert list(answer.raw_output_contents) == [b"\0\x3c\0\x40"]


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**21, 2**35])
def test_numbers_are_written_as_protobuf_writes_them(number: int) -> None:
    expected = pb.StatisticDuration(count=number).SerializeToString()[1:] or b"\0"
    assert varint(number) == expected
