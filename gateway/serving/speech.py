# ruff: noqa: D102  `Speech` says what the methods do
"""How an inference is put to a backend and its answer understood: the steps that every dialect has, and those of V2.

V2 is the dialect whose text may cross unchanged, and in which most models need no description. Not here: the order of
the steps (`inference`), the other dialects (`foreign`), and which dialect a backend speaks (`backend.speaking`).
"""

import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from gateway.backend.attempt import Answer
from gateway.backend.metadata import MAX_BYTES as METADATA_BYTES
from gateway.backend.metadata import is_undescribed, is_worth_keeping
from gateway.backend.upstream import Upstream
from gateway.codec import (
    Framing,
    InferAnswer,
    InferRequest,
    Tensor,
    half_precision_outputs,
    v2_metadata,
)
from gateway.codec import Reply as InferReply
from gateway.errors import GatewayError
from gateway.plan import BackendPlan
from gateway.policy.routing import Match
from gateway.serving.call import Call, Question

log = logging.getLogger("gateway")


class Proven(Protocol):
    """A client's request that has been parsed and checked."""

    @property
    def datatypes(self) -> list[str]:
        """The datatype of each binary input."""

    @property
    def header_recovered(self) -> bool:
        """Whether the gateway had to find the header length (protocol section 6)."""

    @property
    def nonfinite(self) -> int:
        """How many NaNs and infinities the policy has let through."""

    @property
    def inputs(self) -> Sequence[Tensor]:
        """The inputs whose values are known."""

    @property
    def views(self) -> Iterable[memoryview]:
        """All views of the client's bytes that the request holds."""


class Written(Protocol):
    """The JSON of a request for its backend; each call makes it anew."""

    @property
    def small_json(self) -> bytes | None:
        """The whole JSON, if it is so small that it can be made and sent in one go; else None."""

    def json_bytes(self) -> Generator[None, None, int]:
        """The length of the JSON; yields after each step of work."""

    def json_pieces(self) -> Iterator[bytes | bytearray | memoryview]:
        """The JSON in pieces of bounded size."""


class Decoder(Protocol):
    """Reads one answer: `feed` its pieces, then `finish`. Both yield after each step, and may raise `CodecError`."""

    @property
    def held_bytes(self) -> int:
        """How many bytes of memory the answer takes so far."""

    def feed(self, chunk: bytes) -> Generator[None, None, None]:
        """Take the next bytes of the JSON."""

    def finish(self, last: bytes = b"") -> Generator[None, None, InferReply]:
        """Take the *last* bytes of the JSON, and return the reply."""


class Prepared(NamedTuple):
    """A request that is ready to be sent."""

    request: Proven
    written: Written
    decoder: Callable[[], Awaitable[Decoder]]
    """Makes a decoder for the answer to one attempt. Raises `GatewayError`."""


class Speech(Protocol):
    """How one inference is put to its backend."""

    target: str | None
    """The raw path and query for the backend; None: those of the client."""

    async def prepare(self, body: memoryview, framing: Framing) -> Prepared | None:
        """Parse and check the request; None if it crosses unchanged. Raises `GatewayError`."""

    async def refusal(self, answer: Answer, json_bytes: int) -> GatewayError:
        """The backend's refusal of a request of *json_bytes* of JSON, in the shape of the protocol."""

    async def other_decoder(self, answer: Answer) -> Decoder | None:
        """Another decoder for an *answer* that the first one could not read, if the model's description has changed."""


def configured_metadata(backend: BackendPlan, match: Match) -> bytes | None:
    """A model's metadata by the configuration, with the client's name of it; None if it is not described there."""
    description = backend.described(match.v2_path.model or "")
    if not (description.inputs or description.outputs):
        return None
    return v2_metadata(match.model or "", description)


class V2:
    """An inference to a backend that speaks V2."""

    target: str | None = None

    def __init__(self, call: Call, upstream: Upstream, backend: BackendPlan) -> None:
        self._call = call
        self._upstream = upstream
        self._backend = backend

    async def prepare(self, body: memoryview, framing: Framing) -> Prepared | None:
        call, policy = self._call, self._backend.tensor_policy
        plan, own_id, reserve = call.plan, self._own_id(), call.body.reserve
        steps: Generator[None, None, InferRequest | None]
        if framing.header_length == 0:
            metadata = await self._metadata()
            steps = InferRequest.parse_raw(body, metadata, policy, plan.header_limits, own_id=own_id, reserve=reserve)
        else:
            steps = InferRequest.parse(
                body,
                framing.header_length,
                policy,
                plan.header_limits,
                own_id=own_id,
                reserve=reserve,
                recover=plan.recover_header_length,
                blobs=framing.blobs or (),
            )
        request = await call.run_parser(steps)
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
                max_bytes=plan.limits.response_body,
                limits=plan.header_limits,
                declared=declared,
            )

        return Prepared(request, request, decoder)

    def _own_id(self) -> bytes:
        """The id, as JSON text, for a request to which the client gave none; empty if the backend gets none either.

        This id is the value of `X-Request-Id`, which the server may log as well.
        """
        return msgspec.json.encode(self._call.exchange.request_id) if self._backend.settings.ids == "always" else b""

    async def _metadata(self) -> bytes:
        """The model's metadata. Raises `GatewayError`."""
        call = self._call

        async def read(answer: Answer) -> tuple[bytes, int]:
            if answer.status >= 300:
                raise await call.backend_error(answer)
            answer.refuse_encoded()
            text = await answer.read_whole(METADATA_BYTES, "the model's metadata")
            return text, len(text) if is_worth_keeping(answer.status, text) else 0

        path = call.match.path.removesuffix("/infer")
        try:
            return await Question(call, call.shared.metadata, self._upstream, self._backend, path, read).get()
        except GatewayError as error:
            described = configured_metadata(self._backend, call.match) if is_undescribed(error) else None
            if described is None:
                raise
            return described

    async def _declared_half_precision(self) -> Mapping[str, str]:
        """Outputs that the model declares as FP16 or BF16; none if the backend does not say. Raises `GatewayError`."""
        call = self._call
        try:
            return half_precision_outputs(await self._metadata(), call.plan.header_limits)
        except GatewayError as error:
            if not is_undescribed(error):
                raise
            log.debug("no metadata for %s: %s", call.exchange.path, error.message)
            return {}

    async def refusal(self, answer: Answer, json_bytes: int) -> GatewayError:
        return await self._call.backend_error(answer, json_bytes=json_bytes)

    async def other_decoder(self, answer: Answer) -> Decoder | None:
        """None: answers of V2 describe themselves."""
