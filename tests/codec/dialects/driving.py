"""Drives the dialects as their callers do."""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import structs

from gateway.codec.dialects import DIALECTS
from gateway.codec.dialects.answer import DialectAnswer
from gateway.codec.dialects.body import WrittenRequest
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.dialect import Dialect
from gateway.codec.dialects.paths import AnswerForm
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.dialects.walk import Walk
from gateway.codec.inference import HeaderLimits, OutputSelection, TensorPolicy
from gateway.codec.v2.reply import Reply
from gateway.codec.v2.request_reading import Reserve, read_request, reserve_nothing
from gateway.errors import CodecError
from tests.codec.walk import LIMITS, exhaust
from tests.steps import run

Writer = Callable[[DialectRequest], WrittenRequest]
"""What a dialect makes of requests to one model."""

TENSORFLOW, MLFLOW = DIALECTS["tensorflow"], DIALECTS["mlflow"]


def writer(dialect: Dialect, description: ModelDescription) -> Writer:
    return lambda request: dialect.write(request, description)


def tensorflow_columnar(signature: str = "") -> Writer:
    return writer(TENSORFLOW, ModelDescription(signature=signature))


def tensorflow_row(signature: str = "") -> Writer:
    return writer(TENSORFLOW, ModelDescription(signature=signature, format="row"))


def mlflow_inputs(is_unnamed: bool = False) -> Writer:
    return writer(MLFLOW, ModelDescription({"": TensorDescription()} if is_unnamed else {}))


def mlflow_instances() -> Writer:
    return writer(MLFLOW, ModelDescription(format="instances"))


def mlflow_dataframe_split() -> Writer:
    return writer(MLFLOW, ModelDescription(format="dataframe_split"))


WRITERS = [
    tensorflow_columnar(),
    tensorflow_row("sig"),
    mlflow_inputs(),
    mlflow_instances(),
    mlflow_dataframe_split(),
]


def parsing(
    body: bytes | bytearray,
    header_length: int | None = None,
    policy: TensorPolicy | None = None,
    limits: HeaderLimits = LIMITS,
    *,
    reserve: Reserve = reserve_nothing,
    **options: Any,
) -> Generator[None, None, DialectRequest]:
    """The steps of parsing *body*; *options* are those of `read_request`."""
    reading = read_request(memoryview(body), header_length, limits, reserve, **options)
    return DialectRequest.parse(reading, policy or TensorPolicy(), reserve)


def parse_request(
    body: bytes, header_length: int | None, policy: TensorPolicy | None = None, limits: HeaderLimits = LIMITS
) -> DialectRequest:
    """What `DialectRequest.parse` makes of *body*."""
    return run(parsing(body, header_length, policy, limits, recover=True))


def json_or_error(request: DialectRequest, writer: Writer) -> bytes | str:
    """What *writer* makes of *request*, or why it cannot."""
    try:
        return b"".join(writer(request).json_pieces())
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
    first_sizes: Collection[int] = (),
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Reply:
    """The reply to an answer that comes in *chunks*, the last of which is known to be the last, as in the gateway."""
    described = structs.replace(description, is_complete=True)
    walk = Walk(form, described, selection, limits=limits, first_sizes=first_sizes, sizes=sizes)
    answer = DialectAnswer(walk, model="m", request_id=request_id, version=version)
    *beginning, last = [*chunks] or [b""]
    for chunk in beginning:
        exhaust(answer.feed(chunk))
    return run(answer.finish(last))
