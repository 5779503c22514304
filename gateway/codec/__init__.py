"""Bytes to meaning and back, without I/O, clock or HTTP.

`datatypes` is the table of the fourteen datatypes, `framing` cuts a body into JSON and
blobs, `scanner` reads JSON that arrives in pieces, `numbers` and `strings` convert tensors,
`request` and `answer` put them together.

Long work is a generator that yields after every bounded step, so that a caller on an event
loop can let others run; `run` drives such a generator to its end.
"""

from collections.abc import Generator
from typing import TypeVar

from gateway.codec.answer import InferAnswer, Reply
from gateway.codec.datatypes import DATATYPES, Datatype
from gateway.codec.framing import HEADER_LENGTH, parse_header_length
from gateway.codec.request import BytesPolicy, HalfPrecision, InferRequest, NonFinite, OutputSelection, TensorPolicy

T = TypeVar("T")

__all__ = [
    "DATATYPES",
    "HEADER_LENGTH",
    "BytesPolicy",
    "Datatype",
    "HalfPrecision",
    "InferAnswer",
    "InferRequest",
    "NonFinite",
    "OutputSelection",
    "Reply",
    "TensorPolicy",
    "parse_header_length",
    "run",
]


def run(steps: Generator[None, None, T]) -> T:
    """Drive *steps* to the end without a pause and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            value: T = stop.value
            return value
