"""How an inference is put to a backend that speaks V2, and its answer understood.

V2 is the dialect whose text may cross unchanged, and in which most models need no description. Not here: the order of
the steps (`inference`), the other dialects (`foreign`), and which dialect a backend speaks (`backend.speaking`).
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from gateway.backend.attempt import Answer
from gateway.backend.metadata import MAX_BYTES as METADATA_BYTES
from gateway.backend.metadata import is_undescribed, is_worth_keeping
from gateway.codec import (
    DialectAnswer,
    DialectRequest,
    Framing,
    InferAnswer,
    InferRequest,
    RequestReading,
    WrittenRequest,
    half_precision_outputs,
    read_raw,
    read_request,
    v2_metadata,
)
from gateway.errors import GatewayError
from gateway.serving.call import Call, Question

Decoder = InferAnswer | DialectAnswer
"""Reads one answer: `feed` its pieces, then `finish`."""

log = logging.getLogger("gateway")


class Prepared(NamedTuple):
    """A request that is ready to be sent."""

    request: InferRequest | DialectRequest
    written: InferRequest | WrittenRequest
    """The request's JSON."""
    decoder: Callable[[], Awaitable[Decoder]]
    """Makes a decoder for the answer to one attempt. Raises `GatewayError`."""


class V2:
    """How one inference is put to its backend."""

    target = ""
    """The raw path and query for the backend; empty: those of the client."""

    def __init__(self, call: Call) -> None:
        self.call = call

    async def prepare(self, body: memoryview, framing: Framing) -> Prepared | None:
        """Parse and check the request; None if it crosses unchanged. Raises `GatewayError`."""
        call, policy = self.call, self.call.backend.tensor_policy
        # the server's log may have this id as well
        is_own = call.backend.settings.ids == "always"
        own_id = msgspec.json.encode(call.exchange.request_id) if is_own else b""
        metadata = await self._metadata() if framing.header_length == 0 else b""
        reading = self._reading(body, framing, metadata, None if own_id else policy.leave_out)
        request = await call.run_parser(InferRequest.parse(reading, policy, own_id))
        if request is None:
            return None
        declared = await self._declared_half_precision() if request.promotes else {}

        async def decoder() -> Decoder:
            return InferAnswer(
                request.selection,
                model=call.match.model or "",
                is_renamed=call.match.is_renamed,
                request_id=request.id,
                sent_id=request.sent_id,
                max_bytes=call.plan.limits.response_body,
                limits=call.plan.header_limits,
                declared=declared,
            )

        return Prepared(request, request, decoder)

    def _reading(
        self, body: memoryview, framing: Framing, metadata: bytes, unjudged: Collection[str] | None = None
    ) -> RequestReading:
        """The steps that read the request; a raw one by the model's *metadata*. *unjudged*: see `read_request`."""
        plan, length = self.call.plan, framing.header_length
        limits, reserve = plan.header_limits, self.call.body.reserve
        if length == 0:
            return read_raw(body, metadata, limits, reserve)
        recover, blobs = plan.recover_header_length, framing.blobs or ()
        return read_request(body, length, limits, reserve, recover=recover, unjudged=unjudged, blobs=blobs)

    async def other_decoder(self, answer: Answer) -> Decoder | None:
        """Another decoder for an *answer* that the first one could not read; none, as answers describe themselves."""
        return None

    async def _metadata(self) -> bytes:
        """The model's metadata. Raises `GatewayError`."""
        call = self.call

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

    async def _declared_half_precision(self) -> Mapping[str, str]:
        """Outputs that the model declares as FP16 or BF16; none if the backend does not say. Raises `GatewayError`."""
        try:
            return half_precision_outputs(await self._metadata(), self.call.plan.header_limits)
        except GatewayError as error:
            if not is_undescribed(error):
                raise
            log.debug("no metadata for %s: %s", self.call.exchange.path, error.message)
            return {}


def configured_metadata(call: Call) -> bytes | None:
    """A model's metadata by the configuration, with the client's name of it; None if it is not described there."""
    description = call.backend.described(call.match.v2_path.model or "")
    if not (description.inputs or description.outputs):
        return None
    return v2_metadata(call.match.model or "", description)
