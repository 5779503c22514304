"""Drives the codec as its callers do, and rounds numbers exactly: what the tests of this folder share."""

import json
import struct
from collections.abc import Generator, Iterable
from fractions import Fraction
from typing import Any

from gateway.codec.inference import HeaderLimits, OutputSelection, TensorPolicy
from gateway.codec.json.sinks import TextSink, pour
from gateway.codec.v2.answer import InferAnswer
from gateway.codec.v2.reply import Reply
from gateway.codec.v2.request import InferRequest
from gateway.codec.v2.request_reading import read_request
from gateway.errors import CodecError
from tests.steps import run

MAX_BYTES = 1 << 30
LIMITS = HeaderLimits()

LAYOUTS = {"FP16": (5, 10), "BF16": (8, 7), "FP32": (8, 23), "FP64": (11, 52)}
"""Exponent and fraction bits."""


def parsing(
    body: memoryview,
    header_length: int | None,
    policy: TensorPolicy,
    limits: HeaderLimits = LIMITS,
    *,
    own_id: bytes = b"",
    **options: Any,
) -> Generator[None, None, InferRequest | None]:
    """The steps of parsing *body*; *options* are those of `read_request`."""
    unjudged = None if own_id else policy.leave_out
    return InferRequest.parse(read_request(body, header_length, limits, unjudged=unjudged, **options), policy, own_id)


def parse_request(
    body: bytes,
    header_bytes: int | None,
    policy: TensorPolicy | None = None,
    *,
    recover: bool = True,
    own_id: bytes = b"",
) -> InferRequest | None:
    """What `InferRequest.parse` makes of *body*."""
    policy = policy or TensorPolicy()
    return run(parsing(memoryview(body), header_bytes, policy, recover=recover, own_id=own_id))


def backend_json(
    header: bytes, blobs: bytes = b"", policy: TensorPolicy | None = None, *, own_id: bytes = b""
) -> bytes:
    """The JSON that a request with a header length becomes."""
    request = parse_request(header + blobs, len(header), policy, own_id=own_id)
    assert request is not None
    return b"".join(request.json_pieces())


def read_answer(
    chunks: Iterable[bytes],
    selection: OutputSelection | None = None,
    *,
    model: str = "m",
    request_id: bytes = b"",
    sent_id: bytes = b"",
    max_bytes: int = MAX_BYTES,
) -> Reply:
    """The reply to an answer that comes in *chunks*; by default every output is binary."""
    selection = OutputSelection(binary_by_default=True) if selection is None else selection
    answer = InferAnswer(selection, model=model, request_id=request_id, sent_id=sent_id, max_bytes=max_bytes)
    *beginning, last = [*chunks] or [b""]
    for chunk in beginning:
        exhaust(answer.feed(chunk))
    return run(answer.finish(last))


def one_output(data: str | bytes, datatype: str = "FP32", shape: str = "[1]", *, reversed_keys: bool = False) -> bytes:
    """An answer with the output `y`."""
    text = data.encode() if isinstance(data, str) else data
    if reversed_keys:
        return b'{"outputs":[{"data":%b,"shape":%b,"datatype":"%b","name":"y"}]}' % (
            text,
            shape.encode(),
            datatype.encode(),
        )
    return b'{"outputs":[{"name":"y","datatype":"%b","shape":%b,"data":%b}]}' % (
        datatype.encode(),
        shape.encode(),
        text,
    )


def only_blob(answer: bytes, chunk_bytes: int | None = None) -> bytes:
    """The bytes of the one output of *answer*."""
    reply = read_answer(cut(answer, chunk_bytes))
    assert len(reply.datatypes) == 1
    return b"".join(reply.blobs)


def cut(text: bytes, chunk_bytes: int | None) -> list[bytes]:
    """*text* in chunks of *chunk_bytes*, or whole."""
    if chunk_bytes is None:
        return [text]
    return [text[start : start + chunk_bytes] for start in range(0, len(text), chunk_bytes)]


def alike(left: Any, right: Any) -> bool:
    """Whether two values of `json` are the same, with floats compared by their bits and 1 apart from 1.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    return bool(left == right)


def same_json(left: bytes, right: bytes) -> bool:
    """`alike` for two texts."""
    return alike(json.loads(left), json.loads(right))


def nearest_bits(text: str, datatype: str) -> int:
    """The bits of the float of *datatype* nearest to the decimal *text*, ties to even, by integers alone."""
    exponent_bits, fraction_bits = LAYOUTS[datatype]
    bias = (1 << (exponent_bits - 1)) - 1
    sign = int(text.startswith("-")) << (exponent_bits + fraction_bits)
    value = abs(Fraction(text))
    if value == 0:
        return sign
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if value < Fraction(2) ** exponent:
        exponent -= 1
    exponent = max(exponent, 1 - bias)
    steps = round(value / Fraction(2) ** (exponent - fraction_bits))
    bits = ((exponent + bias - 1) << fraction_bits) + steps
    return sign | min(bits, ((1 << exponent_bits) - 1) << fraction_bits)


def proved(data: bytes, chunk_bytes: int | None = None) -> bytes:
    """What a `TextSink` takes of *data*, behind which a document goes on.

    Raises `CodecError` also for a value that ends before *data* does.
    """
    pieces: list[bytes] = []
    exhaust(pour(cut(data + b" }", chunk_bytes), TextSink("value", pieces)))
    taken = b"".join(pieces)
    if len(taken) < len(data):
        raise CodecError("the value ends before the data")
    return taken


def exhaust(steps: Iterable[None]) -> None:
    for _ in steps:
        pass


def bytes_header(n_elements: int | str, size: int) -> bytes:
    """The header of a request whose only input `t` is *size* bytes of BYTES."""
    return b'{"inputs":[{"name":"t","datatype":"BYTES","shape":[%b],"parameters":{"binary_data_size":%d}}]}' % (
        str(n_elements).encode(),
        size,
    )


MANY_TEXTS = [f"string number {index} of some" for index in range(12_000)]  # several windows
ODD_TEXTS = [
    "\x7f",
    "\x7f___",
    "_",
    "",
    '"',
    "\\",
    '\\"',
    '\\\\",',
    '",',
    '","',
    '", "',
    "\n",
    "\x00",
    "é",
    "\U0001f600",
    "x" * 300,
    "]",
    "},{",
]
"""What may be mistaken for something else between strings or inside them."""


def with_odd_text(odd: str) -> list[str]:
    """*odd* among many that are like each other."""
    return [*MANY_TEXTS[:5000], odd, *MANY_TEXTS[5000:]]
