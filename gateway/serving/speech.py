"""How an inference is put to a backend that speaks V2, and its answer understood.

V2 is the dialect whose text may cross unchanged, and in which most models need no description.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

import msgspec

from gateway.backend.attempt import Answer
from gateway.backend.metadata import MAX_BYTES as METADATA_BYTES
from gateway.backend.metadata import is_undescribed, is_worth_keeping
from gateway.codec.dialects.answer import DialectAnswer
from gateway.codec.dialects.description import v2_metadata
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.json.pieced import PiecedJson
from gateway.codec.v2.answer import InferAnswer
from gateway.codec.v2.raw import half_precision_outputs, read_raw
from gateway.codec.v2.reply import Reply as InferReply
from gateway.codec.v2.request import InferRequest
from gateway.codec.v2.request_reading import RequestReading, read_request
from gateway.errors import GatewayError
from gateway.serving.call import Call, Question

Decoder = InferAnswer | DialectAnswer
"""Reads one answer: `feed` its pieces, then `finish`."""


class Prepared(msgspec.Struct, frozen=True):
    """A request that is ready to be sent."""

    request: InferRequest | DialectRequest
    written: PiecedJson
    """The request's JSON."""
    small_json: bytes | None
    """All of the JSON, if it is small."""
    decoder: Callable[[], Decoder]
    """Makes a decoder for the answer to one attempt."""
    refresh: Callable[[], Awaitable[None]] | None = None
    """Awaited when the answer has come, before `decoder` is called. Raises `GatewayError`."""
    other_decoder: Callable[[Answer], Awaitable[Decoder | None]] | None = None
    """Another decoder for an answer that the first one could not read; None where answers describe themselves."""
    target: str = ""
    """The raw path and query for the backend; empty: those of the client."""
    finish: Callable[[Any, bytes], Awaitable[InferReply]] | None = None
    """Finishes a decoder with the last bytes of its answer, in a thread; None: the event loop does it."""


async def prepare(call: Call, body: memoryview) -> Prepared | None:
    """Parse and check the request; None if it crosses unchanged. Raises `GatewayError`."""
    policy = call.backend.tensor_policy
    # the server's log may have this id as well
    own_id = msgspec.json.encode(call.exchange.request_id) if call.backend.settings.ids == "always" else b""
    metadata = await _metadata(call) if call.framing.header_length == 0 else b""
    steps = reading(call, body, metadata, None if own_id else policy.leave_out)
    request = await call.exchange.request_codec.run(InferRequest.parse(steps, policy, own_id))
    if request is None:
        return None
    declared = await _declared_half_precision(call) if request.promotes else {}
    decoder = partial(
        InferAnswer,
        request.selection,
        model=call.match.model or "",
        is_renamed=call.match.is_renamed,
        request_id=request.id,
        sent_id=request.sent_id,
        max_bytes=call.plan.limits.response_body,
        limits=call.plan.header_limits,
        declared=declared,
    )
    return Prepared(request, request, request.small_json, decoder)


def reading(call: Call, body: memoryview, metadata: bytes, unjudged: Collection[str] | None = None) -> RequestReading:
    """The steps that read the request in *body*; *metadata* is for a raw one. *unjudged*: see `read_request`."""
    plan, length = call.plan, call.framing.header_length
    limits, reserve = plan.header_limits, call.body.reserve
    if length == 0:
        return read_raw(body, metadata, limits, reserve)
    recover, blobs = plan.recover_header_length, call.framing.blobs or ()
    return read_request(body, length, limits, reserve, recover=recover, unjudged=unjudged, blobs=blobs)


async def _metadata(call: Call) -> bytes:
    """The model's metadata. Raises `GatewayError`."""

    async def read(answer: Answer) -> tuple[bytes, int]:
        if answer.status >= 300:
            raise await call.backend_error(answer)
        answer.refuse_encoded()
        text = await answer.read_whole(METADATA_BYTES, "the model's metadata")
        return text, len(text) if is_worth_keeping(answer.status, text) else 0

    try:
        said: bytes = await Question(call, call.match.path.removesuffix("/infer"), read).get()
        return said
    except GatewayError as error:
        described = configured_metadata(call) if is_undescribed(error) else None
        if described is None:
            raise
        return described


async def _declared_half_precision(call: Call) -> Mapping[str, str]:
    """Outputs that the model declares as FP16 or BF16; none if the backend does not say. Raises `GatewayError`."""
    try:
        return half_precision_outputs(await _metadata(call), call.plan.header_limits)
    except GatewayError as error:
        if not is_undescribed(error):
            raise
        return {}


def configured_metadata(call: Call) -> bytes | None:
    """A model's metadata by the configuration, with the client's name of it; None if it is not described there."""
    description = call.backend.described(call.match.v2_path.model or "")
    if not (description.inputs or description.outputs):
        return None
    return v2_metadata(call.match.model or "", description)
