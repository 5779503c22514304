"""The requests of `cases` and `traffic` as messages of gRPC, and the replies to them."""

from typing import Any

import orjson
from tritonclient.grpc import service_pb2 as pb

from tests.bench.cases import Case, WrongBytesError
from tests.bench.traffic import Exchange, Part

Buffer = bytes | memoryview

_RAW_TAG, _RAW_OUTPUT_TAG = b"\x3a", b"\x32"
_PREFIX_BYTES = 5


def request_of_case(case: Case) -> list[Buffer]:
    """The message that asks for *case*, as tritonclient writes it; the tensor is a view of the case's file."""
    inside = pb.ModelInferRequest(model_name=case.name)
    inside.inputs.add(name="x", **_described(case.client_request, case.header_bytes[0], "inputs"))
    inside.outputs.add(name="y")
    blob = case.client_request[case.header_bytes[0] :]
    return _framed(inside.SerializeToString(), _RAW_TAG + _varint(len(blob)), blob)


def reply_to_case(case: Case) -> bytes:
    """The message that answers *case*, without its prefix."""
    inside = pb.ModelInferResponse(model_name=case.name)
    inside.outputs.add(name="y", **_described(case.client_reply, case.header_bytes[1], "outputs"))
    blob = case.client_reply[case.header_bytes[1] :]
    return b"".join((inside.SerializeToString(), _RAW_OUTPUT_TAG, _varint(len(blob)), blob))


def check_reply_to_case(case: Case, message: memoryview) -> None:
    """Compare a reply, without its prefix, with what the case expects. Raises `WrongBytesError`."""
    blob = case.client_reply[case.header_bytes[1] :]
    tag = _RAW_OUTPUT_TAG + _varint(len(blob))
    inside, values = message[: -len(blob) - len(tag)], message[-len(blob) :]
    found = pb.ModelInferResponse.FromString(bytes(inside))
    expected = pb.ModelInferResponse.FromString(reply_to_case(case)[: -len(blob) - len(tag)])
    for said, wanted in zip(found.outputs, expected.outputs, strict=True):
        if (said.name, said.datatype, list(said.shape)) != (wanted.name, wanted.datatype, list(wanted.shape)):
            raise WrongBytesError(f"{case.name}: the output is {said.name!r}, {said.datatype} {list(said.shape)}")
    if values != blob:
        raise WrongBytesError(f"{case.name}: the reply's numbers are not those of the backend")


def request_of_exchange(exchange: Exchange, identity: bytes) -> list[Buffer]:
    """The message that asks for *exchange*; *identity* is empty for none."""
    inside = pb.ModelInferRequest()
    for part in exchange.inputs:
        inside.inputs.add(name=part.name, datatype=part.datatype, shape=part.shape)
        inside.raw_input_contents.append(part.blob)
    if int(exchange.model.rpartition("-")[2]) % 2 == 0:
        for part in exchange.outputs:
            inside.outputs.add(name=part.name)
    head = pb.ModelInferRequest(model_name=exchange.model, id=identity.decode())
    return _framed(head.SerializeToString(), inside.SerializeToString())


def reply_to_exchange(exchange: Exchange, identity: bytes) -> bytes:
    """The message that answers *exchange*, without its prefix."""
    message = pb.ModelInferResponse(model_name=exchange.model, id=identity.decode())
    for part in exchange.outputs:
        message.outputs.add(name=part.name, datatype=part.datatype, shape=part.shape)
        message.raw_output_contents.append(part.blob)
    return bytes(message.SerializeToString())


def check_reply_to_exchange(exchange: Exchange, identity: bytes, message: memoryview) -> None:
    """Compare a reply, without its prefix, with the exchange's answer. Raises `WrongBytesError`."""
    found = pb.ModelInferResponse.FromString(bytes(message))
    if identity and found.id != identity.decode():
        raise WrongBytesError(f"{exchange.model}: id {identity!r} came back as {found.id!r}")
    for part, said, blob in zip(exchange.outputs, found.outputs, found.raw_output_contents, strict=True):
        _check(part, said, blob)


def model_of(message: bytes) -> str:
    """The model that a request names, which is its first field here."""
    return message[2 : 2 + message[1]].decode()


def _check(part: Part, said: pb.ModelInferResponse.InferOutputTensor, blob: bytes) -> None:
    if (said.name, said.datatype, tuple(said.shape)) != (part.name, part.datatype, part.shape):
        raise WrongBytesError(f"{part.name}: the output is {said.name!r}, {said.datatype} {list(said.shape)}")
    if blob != part.blob:
        raise WrongBytesError(f"{part.name}: the values are not those that were sent")


def _described(body: memoryview, header_bytes: int, key: str) -> dict[str, Any]:
    """Datatype and shape of the only tensor in the JSON header of *body*."""
    tensor = orjson.loads(body[:header_bytes])[key][0]
    return {"datatype": tensor["datatype"], "shape": tensor["shape"]}


def _framed(*parts: Buffer) -> list[Buffer]:
    return [b"\0" + sum(map(len, parts)).to_bytes(_PREFIX_BYTES - 1), *parts]


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
