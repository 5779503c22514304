"""Small requests as they are in life, and what a server answers to them.

A model called `life-KIND-NUMBER` has `TENSORS` different requests and answers, which every process makes for itself
from that name. Half of the requests have an `id`, another one each time. Requests are those of tritonclient: models
of even numbers list their outputs, the others do not. Answers are those of MLServer 1.7.1 with its numpy codec, head
and body: the client's id or a new one, `parameters` with `content_type` before the data, numbers as Python prints
them once they are 64 bits wide. Models 2 and 3 answer with blanks after commas and colons, as Python's `json` does
where nobody tells it otherwise.

A model called `repeated-KIND-0` has one request without id, and one answer whose every byte is the same each time.
"""

import functools
import itertools
import json
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tests.bench.cases import WIRE, WrongBytesError

MODELS = 4
TENSORS = 64
SHAPE = (1, 16)
STRINGS = 10

NUMBERS_CODEC, STRINGS_CODEC = "np", "str"
"""The `content_type` of MLServer's codecs."""


@dataclass(frozen=True)
class Part:
    """A tensor: as blob, as the text of its JSON array, and as values of Python."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    blob: bytes
    text: bytes
    values: list[Any]


@dataclass(frozen=True)
class Exchange:
    """A request and its answer. Texts begin behind the place of the `id`: after the opening brace, or the model's name.

    header, blobs            what the client sends; a client of JSON only has no blobs
    backend_request          what the backend gets
    answer                   what it answers
    reply_header, reply      what the client gets
    """

    model: str
    index: int
    """Its place among those of its model."""
    inputs: list[Part]
    outputs: list[Part]
    header: bytes
    blobs: bytes
    backend_request: bytes
    answer_start: bytes
    answer: bytes
    reply_start: bytes
    reply_header: bytes
    reply: bytes

    def request(self, identity: bytes, host: str, extra: bytes = b"") -> bytes:
        """The HTTP request as tritonclient writes it; *identity* is empty for none."""
        header = _with_id(identity) + self.header
        length = b"Inference-Header-Content-Length: %d\r\n" % len(header) if self.blobs else b""
        return (
            b"POST /v2/models/%s/infer HTTP/1.1\r\nUser-Agent: python/gevent-http-client-2.6.1\r\n%s%sHost: %s\r\n"
            b"Content-Length: %d\r\n\r\n%s%s"
        ) % (self.model.encode(), extra, length, host.encode(), len(header) + len(self.blobs), header, self.blobs)

    def sent_on(self, identity: bytes) -> bytes:
        """The JSON that the backend gets."""
        return _with_id(identity) + self.backend_request

    def answered(self, identity: bytes) -> bytes:
        """The JSON that the backend answers."""
        return self.answer_start + identity + self.answer

    def replied(self, identity: bytes) -> tuple[bytes, int]:
        """The body that the client gets, and how much of it is its JSON header; 0 if all of it is JSON."""
        header = self.reply_start + identity + self.reply_header
        return header + self.reply, len(header) if self.reply else 0

    def check_sent_on(self, body: bytes) -> None:
        """Compare what came to the backend. Raises `WrongBytesError`."""
        _check(self.inputs, orjson.loads(body)["inputs"], memoryview(b""))

    def check_reply(self, identity: bytes, header_bytes: int, body: memoryview) -> None:
        """Compare what came to the client. Raises `WrongBytesError`."""
        if bool(header_bytes) != bool(self.blobs):
            raise WrongBytesError(f"{self.model}: a JSON header of {header_bytes} bytes")
        said = orjson.loads(body[: header_bytes or None])
        if identity and said.get("id") != identity.decode():
            raise WrongBytesError(f"{self.model}: id {identity!r} came back as {said.get('id')!r}")
        _check(self.outputs, said["outputs"], body[header_bytes:] if header_bytes else memoryview(b""))


def _with_id(identity: bytes) -> bytes:
    return b'{"id":"%s",' % identity if identity else b"{"


def _check(expected: list[Part], said: list[dict[str, Any]], blobs: memoryview) -> None:
    """Compare tensors, in JSON or behind it. Raises `WrongBytesError`."""
    position = 0
    for part, tensor in zip(expected, said, strict=True):
        for key, right in (("name", part.name), ("datatype", part.datatype), ("shape", list(part.shape))):
            if tensor[key] != right:
                raise WrongBytesError(f"{part.name}: {key} is {tensor[key]!r} instead of {right!r}")
        if "data" in tensor:
            blob = _strings_blob(tensor["data"]) if part.datatype == "BYTES" else _numbers_blob(part, tensor["data"])
        else:
            blob = bytes(blobs[position : position + len(part.blob)])
            position += len(part.blob)
        if blob != part.blob:
            raise WrongBytesError(f"{part.name}: the values are not those that were sent")
    if position != len(blobs):
        raise WrongBytesError(f"{len(blobs) - position} bytes too many")


def _numbers_blob(part: Part, values: list[Any]) -> bytes:
    return np.array(values, WIRE[part.datatype]).tobytes()


def _strings_blob(values: list[str]) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text for text in (value.encode() for value in values))


def _numbers(datatype: str) -> Callable[[np.random.Generator, str], Part]:
    def make(generator: np.random.Generator, name: str) -> Part:
        wire = np.dtype(WIRE[datatype])
        array: npt.NDArray[Any]
        if wire.kind == "f":
            array = generator.standard_normal(SHAPE).astype(wire)
        elif wire.kind == "b":
            array = generator.integers(0, 2, SHAPE).astype(wire)
        else:  # half of them small, as words of a vocabulary are, half of any size
            bounds = (0, 50_000) if generator.integers(2) else (np.iinfo(wire).min, np.iinfo(wire).max)
            array = generator.integers(*bounds, SHAPE, wire.type)
        text = orjson.dumps(array.ravel(), option=orjson.OPT_SERIALIZE_NUMPY)
        return Part(name, datatype, SHAPE, array.tobytes(), text, array.ravel().tolist())

    return make


def _strings(generator: np.random.Generator, name: str) -> Part:
    letters = np.array(list('abcdefghijklmnopqrstuvwxyz 0123456789 ABCDEFGHIJKLMNOPQRSTUVWXYZ .,-\n"é'))
    values = ["".join(generator.choice(letters, length)) for length in generator.integers(5, 60, STRINGS)]
    return Part(name, "BYTES", (STRINGS, 1), _strings_blob(values), orjson.dumps(values), values)


KINDS: dict[str, tuple[Callable[[np.random.Generator, str], Part], ...]] = {
    "fp32": (_numbers("FP32"),),
    "int64": (_numbers("INT64"),),
    "bool": (_numbers("BOOL"),),
    "bytes": (_strings,),
    "fp16": (_numbers("FP16"),),
    "two": (_numbers("FP32"), _numbers("INT64")),
    "json": (_numbers("FP32"),),
}
"""The inputs of a request, which the outputs are like. `json` is a client that sends and gets JSON only."""


def names(kind: str) -> list[str]:
    """The models of a kind."""
    return [f"life-{kind}-{number}" for number in range(MODELS)]


def is_of_traffic(model: str) -> bool:
    """Whether a model is one of these."""
    return model.startswith(("life-", "repeated-"))


@functools.cache
def exchanges(model: str) -> list[Exchange]:
    """All requests and answers of a model, the same in every process."""
    family, kind, number = model.split("-")
    generator = np.random.default_rng([int(number), *kind.encode()])
    return [_exchange(model, index, kind, generator) for index in range(TENSORS if family == "life" else 1)]


def _exchange(model: str, index: int, kind: str, generator: np.random.Generator) -> Exchange:
    number = int(model.rpartition("-")[2])
    makers = KINDS[kind]
    inputs = [make(generator, f"x{index}") for index, make in enumerate(makers)]
    outputs = [make(generator, f"y{index}") for index, make in enumerate(makers)]
    is_binary = kind != "json"
    separators = (", ", ": ") if number >= MODELS // 2 else (",", ":")
    head = json.dumps({"model_name": model, "id": ""}, separators=separators).encode().removesuffix(b'"}')
    answer = json.dumps(
        {"id": "", "parameters": {}, "outputs": [_answered(part, with_data=True) for part in outputs]},
        separators=separators,
        ensure_ascii=False,
    ).encode()
    answer = answer.partition(b'""')[2]
    reply_start, reply_header, blobs = head, b'"' + answer, b"".join(part.blob for part in outputs)
    if is_binary:
        said = {"parameters": {}, "outputs": [_answered(part, with_data=False) for part in outputs]}
        reply_start, reply_header = b'{"model_name":"%s","id":"' % model.encode(), b'",' + orjson.dumps(said)[1:]
    wanted: dict[str, Any] = {"parameters": {"binary_data_output": is_binary}}
    if number % 2 == 0 or not is_binary:
        wanted = {"outputs": [{"name": part.name, "parameters": {"binary_data": is_binary}} for part in outputs]}
    sent = orjson.dumps({"inputs": [_sent(part, is_binary=is_binary) for part in inputs], **wanted})[1:]
    sent_on = b'"inputs":[' + b",".join(_sent_on(part) for part in inputs) + b"]"
    if "outputs" in wanted:
        sent_on += b',"outputs":' + orjson.dumps([{"name": part.name} for part in outputs])
    return Exchange(
        model=model,
        index=index,
        inputs=inputs,
        outputs=outputs,
        header=sent,
        blobs=b"".join(part.blob for part in inputs) if is_binary else b"",
        backend_request=sent_on + b"}" if is_binary else sent,
        answer_start=head,
        answer=b'"' + answer,
        reply_start=reply_start,
        reply_header=reply_header,
        reply=blobs if is_binary else b"",
    )


def _sent(part: Part, *, is_binary: bool) -> dict[str, Any]:
    tensor = {"name": part.name, "shape": part.shape, "datatype": part.datatype}
    if is_binary:
        return {**tensor, "parameters": {"binary_data_size": len(part.blob)}}
    return {**tensor, "data": part.values}


def _sent_on(part: Part) -> bytes:
    tensor = {"name": part.name, "shape": part.shape, "datatype": part.datatype}
    return orjson.dumps(tensor)[:-1] + b',"data":' + part.text + b"}"


def _answered(part: Part, *, with_data: bool) -> dict[str, Any]:
    parameters: dict[str, Any] = {"content_type": STRINGS_CODEC if part.datatype == "BYTES" else NUMBERS_CODEC}
    tensor = {"name": part.name, "shape": part.shape, "datatype": part.datatype, "parameters": parameters}
    if with_data:
        return {**tensor, "data": part.values}
    parameters["binary_data_size"] = len(part.blob)
    return tensor


def answer_head(model: str, identity: str, n_bytes: int) -> bytes:
    """The head that MLServer 1.7.1 sends before an answer of *n_bytes*, line by line."""
    return (
        f"HTTP/1.1 200 OK\r\ndate: {formatdate(usegmt=True)}\r\nserver: uvicorn\r\ncontent-length: {n_bytes}\r\n"
        "content-type: application/json\r\nce-specversion: 0.3\r\nce-source: io.seldon.serving.deployment.mlserver\r\n"
        f"ce-type: io.seldon.serving.inference.response\r\nce-modelid: {model}\r\nce-inferenceservicename: mlserver\r\n"
        f"ce-endpoint: {model}\r\nce-id: {identity}\r\nce-requestid: {identity}\r\n\r\n"
    ).encode()


def new_id() -> str:
    """An id such as a server makes where the client has sent none."""
    return str(uuid.uuid4())


def trace() -> bytes:
    """The lines of a head that name one request, as OpenTelemetry and Envoy write them."""
    bits = random.getrandbits(192)
    trace_id, span_id = bits >> 64, bits & 0xFFFF_FFFF_FFFF_FFFF
    return b"traceparent: 00-%032x-%016x-01\r\nx-request-id: %s\r\n" % (trace_id, span_id, new_id().encode())


def load(models: list[str]) -> Iterator[tuple[Exchange, bytes]]:
    """Requests without end, each with its id or none: the models in turn, all their tensors, half with an id."""
    chance = random.Random(0)
    counter = itertools.count(1)
    while True:
        for rows in zip(*(exchanges(model) for model in models), strict=True):
            for exchange in rows:
                has_id = exchange.model.startswith("life-") and chance.getrandbits(1)
                yield exchange, b"request-%d" % next(counter) if has_id else b""
