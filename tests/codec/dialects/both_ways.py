"""Drives the short and the long way of dialects as their callers do; both must come to the same."""

from collections.abc import Iterable, Sequence

from gateway.codec import (
    DialectAnswer,
    DialectRequest,
    HeaderLimits,
    ModelDescription,
    OutputSelection,
    TensorPolicy,
    Writer,
    read_short_dialect_answer,
    read_short_dialect_request,
    run,
)
from gateway.codec.dialects.answer import AnswerForm
from gateway.codec.dialects.request import (
    mlflow_dataframe_split,
    mlflow_inputs,
    mlflow_instances,
    tensorflow_columnar,
    tensorflow_row,
)
from gateway.codec.v2.answer import Reply
from gateway.errors import CodecError
from tests.codec.walk import LIMITS, assert_same_reply

WRITERS = [
    tensorflow_columnar(""),
    tensorflow_row("sig"),
    mlflow_inputs(is_unnamed=False),
    mlflow_instances(),
    mlflow_dataframe_split(),
]


def parse_request(
    body: bytes,
    header_length: int | None,
    policy: TensorPolicy | None = None,
    writers: Sequence[Writer] = WRITERS,
    limits: HeaderLimits = LIMITS,
) -> DialectRequest:
    """What `DialectRequest.parse` makes of *body*; the short way must come to the same, or leave it alone."""
    policy, view = policy or TensorPolicy(), memoryview(body)
    short = read_short_dialect_request(view, header_length, policy, limits)
    try:
        request = run(DialectRequest.parse(view, header_length, policy, limits, recover=True))
    except CodecError:
        assert short is None
        raise
    if short is not None:
        assert_same_request(short, request)
        for writer in writers:
            assert json_or_error(short, writer, is_short=True) == json_or_error(request, writer, is_short=False)
    return request


def assert_same_request(short: DialectRequest, request: DialectRequest) -> None:
    """Both ways came to the same."""
    for fact in DialectRequest.__struct_fields__:
        if fact != "inputs":
            assert getattr(short, fact) == getattr(request, fact), fact
    for one, other in zip(short.inputs, request.inputs, strict=True):
        assert (one.name, one.datatype, one.shape) == (other.name, other.datatype, other.shape)
        assert bytes(one.blob) == bytes(other.blob)


def json_or_error(request: DialectRequest, writer: Writer, *, is_short: bool) -> bytes | str:
    """What *writer* makes of *request*, or why it cannot."""
    try:
        return request.whole_json(writer) if is_short else b"".join(request.bound(writer).json_pieces())
    except CodecError as error:
        return str(error)


def read_answer(
    chunks: Iterable[bytes],
    form: AnswerForm,
    description: ModelDescription,
    selection: OutputSelection,
    *,
    request_id: bytes = b"",
    version: str | None = None,
    limits: HeaderLimits = LIMITS,
) -> Reply:
    """The reply to an answer that comes in *chunks*, by both ways."""
    chunks = list(chunks)
    short = read_short_dialect_answer(
        b"".join(chunks),
        form,
        description,
        selection,
        model="m",
        request_id=request_id,
        version=version,
        limits=limits,
    )
    answer = DialectAnswer(
        form, description, selection, model="m", request_id=request_id, version=version, limits=limits
    )
    try:
        for chunk in chunks:
            for _ in answer.feed(chunk):
                pass
        reply = run(answer.finish())
    except CodecError:
        assert short is None
        raise
    if short is not None:
        assert_same_reply(short, reply)
    return reply
