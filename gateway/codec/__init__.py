"""Bytes to meaning and back, without I/O, clock or HTTP.

`tensors` converts the values of tensors to JSON and back, `json` reads documents that arrive in pieces, `inference` is
what an inference is in every dialect, `v2` reads and writes it as requests and answers of the V2 protocol, `dialects`
writes and reads it for servers that speak something else.
`compression` is what a body may be wrapped in.

Long work is a generator that yields after every bounded step, so that a caller on an event loop can let others run;
`run` drives such a generator to its end. What others use of the codec is imported here.
"""

from collections.abc import Generator
from typing import TypeVar

from gateway.codec.compression import (
    Coding,
    Inflater,
    choose_coding,
    compressed,
    inflated_beginning,
    parse_content_encoding,
)
from gateway.codec.dialects import DIALECTS
from gateway.codec.dialects.answer import DialectAnswer
from gateway.codec.dialects.body import Body, WrittenRequest
from gateway.codec.dialects.description import (
    NAMELESS_INPUT,
    ModelDescription,
    Template,
    TensorDescription,
    check_known,
    listed,
    missing_datatype,
    v2_metadata,
)
from gateway.codec.dialects.dialect import Dialect
from gateway.codec.dialects.paths import AnswerForm, steps_of, tree_of
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.dialects.walk import Walk
from gateway.codec.inference import (
    BytesPolicy,
    HalfPrecision,
    HeaderLimits,
    NonFinite,
    OutputSelection,
    TensorPolicy,
    label_of,
    release,
)
from gateway.codec.json.member_finder import MemberReplacer
from gateway.codec.tensors.datatypes import DATATYPES, Datatype, Kind
from gateway.codec.v2.answer import WHOLE_BYTES, InferAnswer
from gateway.codec.v2.batches import Share, divided, joined, read_share
from gateway.codec.v2.error_bodies import error_body
from gateway.codec.v2.framing import HEADER_LENGTH, Framing, parse_framing
from gateway.codec.v2.messages import MAX_RANK
from gateway.codec.v2.raw import half_precision_outputs, read_raw
from gateway.codec.v2.reply import Reply
from gateway.codec.v2.request import InferRequest
from gateway.codec.v2.request_reading import RequestReading, find_header_length, find_sequence_id, read_request
from gateway.codec.v2.server_metadata import with_extension

T = TypeVar("T")


def run(steps: Generator[None, None, T]) -> T:
    """Drive *steps* to the end without a pause and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            value: T = stop.value
            return value
