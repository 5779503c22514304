# ruff: noqa: D102  `Speech` says what the methods do
"""How an inference is put to a backend, and how its answer is understood: in V2, or in another dialect.

V2 is the dialect whose text may cross unchanged, and in which most models need no description. Not here: the order of
the steps (`inference`), what the dialects are (`codec`), and what a backend speaks (`backend.speaking`).
"""

import logging
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from gateway.backend.attempt import Answer
from gateway.backend.metadata import MAX_BYTES as METADATA_BYTES
from gateway.backend.metadata import is_undescribed, is_worth_keeping
from gateway.backend.upstream import Upstream
from gateway.codec import (
    DIALECTS,
    Dialect,
    DialectAnswer,
    DialectRequest,
    Framing,
    InferAnswer,
    InferRequest,
    configured_for,
    half_precision_outputs,
    missing_datatype,
    unfit_input,
    unknown_output,
    v2_metadata,
)
from gateway.codec import Reply as InferReply
from gateway.errors import CodecError, ErrorKind, GatewayError, blamed
from gateway.plan import BackendPlan
from gateway.policy.routing import Match
from gateway.serving.call import Call, Described

_UNTOLD = (401, 403)
"""Statuses of servers that may describe a model to other clients."""

T = TypeVar("T")

log = logging.getLogger("gateway")


class Proven(Protocol):
    """A client's request that has been proved right."""

    @property
    def datatypes(self) -> list[str]:
        """Of each binary input."""

    @property
    def header_recovered(self) -> bool:
        """Whether its header length was found out (protocol section 6)."""

    @property
    def nonfinite(self) -> int:
        """How many NaN and infinities are let through by policy."""


class Written(Protocol):
    """The JSON that a request becomes; it is made anew as often as it is asked for."""

    @property
    def is_small(self) -> bool:
        """Whether it can be made and sent in one go."""

    def whole_json(self) -> Generator[None, None, bytes]:
        """All of it; yields after each step of work."""

    def json_bytes(self) -> Generator[None, None, int]:
        """Its length; yields after each step of work."""

    def json_pieces(self) -> Iterator[bytes | bytearray | memoryview]:
        """It, in pieces of bounded size."""


class Decoder(Protocol):
    """Reads one answer: `feed` what arrives, then `finish`. Both yield after each step, and raise `CodecError`."""

    @property
    def held_bytes(self) -> int:
        """What the answer takes so far."""

    def feed(self, chunk: bytes) -> Generator[None, None, None]:
        """Take the next bytes of the JSON."""

    def finish(self) -> Generator[None, None, InferReply]:
        """The reply."""


class Prepared(NamedTuple):
    """A request that may be sent."""

    request: Proven
    written: Written
    decoder: Callable[[], Decoder]
    """Makes what reads the answer of one attempt."""


class Speech(Protocol):
    """How one inference is put to its backend."""

    target: str | None
    """The raw path and query that the backend gets; None: those of the client."""

    async def prepare(self, body: memoryview, framing: Framing) -> Prepared | None:
        """The request, proved right; None for one that crosses as it came. Raises `GatewayError`."""

    async def refusal(self, answer: Answer, json_bytes: int) -> GatewayError:
        """The backend's refusal of *json_bytes* of JSON, in the shape of the protocol."""

    def misunderstood(self) -> None:
        """The answer was not what the model's description says."""


async def speech_to(call: Call, upstream: Upstream, backend: BackendPlan) -> Speech:
    """How *backend* is spoken to. Raises `GatewayError`."""
    dialect = None if backend.dialect == "v2" else await dialect_of(upstream, backend)
    return V2(call, upstream, backend) if dialect is None else Foreign(call, upstream, backend, dialect)


async def dialect_of(upstream: Upstream, backend: BackendPlan) -> Dialect | None:
    """The dialect that *backend* speaks; None for V2. Raises `GatewayError`."""
    name = backend.dialect if backend.dialect != "auto" else (await upstream.spoken()).dialect
    return DIALECTS.get(name)


def configured_metadata(backend: BackendPlan, match: Match) -> bytes | None:
    """A model's metadata, as the configuration describes it, under its name for the client; None if it does not."""
    description = configured_for(backend.models, match.v2_path.model or "")
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
            )
        request = await call.run_parser(steps)
        if request is None:
            return None
        declared = await self._declared_half_precision() if request.promotes else {}

        def decoder() -> Decoder:
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
        """The id, as JSON text, that the backend gets where the client has none; empty: it gets none either.

        It is the value of `X-Request-Id`, which the server's log may have as well.
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
            return await call.ask_once(call.shared.metadata, self._upstream, self._backend, path, read)
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

    def misunderstood(self) -> None:
        """Answers of V2 describe themselves."""


class Foreign:
    """A client's request to a backend of another *dialect*: what is described, sent, and made of the answer."""

    target: str | None = None

    def __init__(self, call: Call, upstream: Upstream, backend: BackendPlan, dialect: Dialect) -> None:
        self.call = call
        self.backend = backend
        self.dialect = dialect
        self.path = call.match.v2_path
        """What the client asks for."""
        self.model, self.version = self.path.model or "", self.path.version
        self._upstream = upstream

    async def prepare(self, body: memoryview, framing: Framing) -> Prepared:
        call, dialect, policy = self.call, self.dialect, self.backend.tensor_policy
        path = self.path_of(dialect.infer_path(self.model, self.version))
        self.target = path + call.match.target[len(call.match.path) :]
        described = await self.description()
        description = described.model
        limits, reserve = call.plan.header_limits, call.body.reserve
        if framing.header_length == 0:
            metadata = v2_metadata(self.model, description)
            steps = DialectRequest.parse_raw(body, metadata, policy, limits, reserve=reserve)
        else:
            recover = call.plan.recover_header_length
            steps = DialectRequest.parse(body, framing.header_length, policy, limits, recover=recover, reserve=reserve)
        request = await call.run_parser(steps)
        self._judge(described, request)
        try:
            written = request.bound(dialect.writer(description))
        except CodecError as error:
            raise blamed(error, ErrorKind.MALFORMED_REQUEST) from error

        def decoder() -> Decoder:
            return DialectAnswer(
                dialect.answer_form(description),
                description,
                request.selection,
                model=call.match.model or "",
                request_id=request.id,
                version=self.version,
                limits=limits,
            )

        return Prepared(request, written, decoder)

    async def description(self) -> Described:
        """What the configuration and the server say of the model; maybe nothing. Raises `GatewayError`.

        What the configuration says is enough where the server says nothing. A server that does not have the model says
        so in its error.
        """
        dialect = self.dialect
        configured = configured_for(self.backend.models, self.model)
        alone = Described(configured, by_server=False)
        described_at = dialect.description_path(self.model, self.version)
        if described_at is None:
            return alone
        asked = self.path.before + described_at

        async def read(answer: Answer) -> tuple[Described, int]:
            if answer.status >= 300:
                error = await self.error(answer, hint=f" (GET {asked}, the model's description)")
                if configured.outputs and is_undescribed(error):
                    return alone, 1
                raise error
            answer.refuse_encoded()
            text = await answer.read_whole(METADATA_BYTES, "the model's description")
            try:
                return Described(dialect.read_description(text, configured.signature).merged(configured)), len(text)
            except CodecError as error:  # no failure of the endpoint: the configuration may name a wrong signature
                return Described(configured, by_server=False, fault=str(error)), 1

        known = self.call.shared.descriptions
        try:
            described = await self.call.ask_once(known, self._upstream, self.backend, asked, read)
        except GatewayError as error:
            if error.kind is not ErrorKind.BACKEND_ERROR or error.status in _UNTOLD or not is_undescribed(error):
                raise
            if not await self.is_ready():
                raise
            return alone
        if described.fault and not configured.outputs:
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, f"model {self.model!r}: {described.fault}", sent=False)
        return described

    def misunderstood(self) -> None:
        """Ask for the description again with the next request: the server may have loaded another version."""
        described_at = self.dialect.description_path(self.model, self.version)
        if described_at is not None:
            self.call.shared.descriptions.forget(self.backend.fingerprint, self.path.before + described_at)

    async def is_ready(self) -> bool:
        """Whether the server says that the model is ready. Raises `GatewayError`, also where there is no such model."""

        async def read(answer: Answer) -> bool:
            if answer.status >= 300:
                raise await self.error(answer)
            answer.refuse_encoded()
            return self.dialect.is_ready(await answer.read_whole(METADATA_BYTES, "the model's status"))

        return await self.question(self.path_of(self.dialect.ready_path(self.model, self.version)), read)

    async def question(self, path: str, read: Callable[[Answer], Awaitable[T]]) -> T:
        """What *read* makes of the server's answer to *path*. Raises `GatewayError`."""
        return await self.call.question(self._upstream, self.backend, path, read)

    def _judge(self, described: Described, request: DialectRequest) -> None:
        """Raise `GatewayError` for a *request* that the model, as it is *described*, cannot be sent.

        It has no such input or output, the server would change the values, or its answer could not be understood.
        """
        selection = request.selection
        unfit = unfit_input(described.model, request.inputs, self.call.match.model or "")
        if unfit is None and described.by_server:
            unfit = unknown_output(described.model, selection)
        if unfit is not None:
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, unfit)
        missing = missing_datatype(
            described.model, selection, dialect=self.dialect.name, backend=self.backend.name, model=self.model
        )
        if missing is not None:
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, missing, sent=False)

    def path_of(self, path: str | None) -> str:
        """*path* of the dialect, behind what the route puts before it.

        Raises `GatewayError` for one that is denied to clients, and for None: the dialect has no such thing.
        """
        if path is None:
            words = f"servers of dialect {self.dialect.name!r} have no versions of a model: leave the version out"
            raise GatewayError(ErrorKind.BACKEND_ERROR, words, status=404)
        path = self.path.before + path
        self.call.plan.check_path(path, self.backend)
        return path

    async def error(
        self, answer: Answer, text: bytes | None = None, *, json_bytes: int | None = None, hint: str = ""
    ) -> GatewayError:
        """A refusal of the backend's, in the shape of the protocol. The arguments are those of `Call.backend_error`."""
        words_in = self.dialect.error_words
        return await self.call.backend_error(answer, text, json_bytes=json_bytes, words_in=words_in, hint=hint)

    async def refusal(self, answer: Answer, json_bytes: int) -> GatewayError:
        return await self.error(answer, json_bytes=json_bytes)
