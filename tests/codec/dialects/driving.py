"""Drives the dialects as their callers do."""

from collections.abc import Iterable

from gateway.codec import (
    DialectAnswer,
    DialectRequest,
    HeaderLimits,
    ModelDescription,
    OutputSelection,
    TensorPolicy,
    Writer,
    run,
)
from gateway.codec.dialects.mlflow import mlflow_dataframe_split, mlflow_inputs, mlflow_instances
from gateway.codec.dialects.paths import AnswerForm
from gateway.codec.dialects.tensorflow import tensorflow_columnar, tensorflow_row
from gateway.codec.v2.reply import Reply
from gateway.errors import CodecError
from tests.codec.walk import LIMITS, exhaust

WRITERS = [
    tensorflow_columnar(""),
    tensorflow_row("sig"),
    mlflow_inputs(is_unnamed=False),
    mlflow_instances(),
    mlflow_dataframe_split(),
]


def parse_request(
    body: bytes, header_length: int | None, policy: TensorPolicy | None = None, limits: HeaderLimits = LIMITS
) -> DialectRequest:
    """What `DialectRequest.parse` makes of *body*."""
    policy, view = policy or TensorPolicy(), memoryview(body)
    return run(DialectRequest.parse(view, header_length, policy, limits, recover=True))


def json_or_error(request: DialectRequest, writer: Writer) -> bytes | str:
    """What *writer* makes of *request*, or why it cannot."""
    try:
        return b"".join(request.bound(writer).json_pieces())
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
    """The reply to an answer that comes in *chunks*."""
    answer = DialectAnswer(
        form, description, selection, model="m", request_id=request_id, version=version, limits=limits
    )
    for chunk in chunks:
        exhaust(answer.feed(chunk))
    return run(answer.finish())
