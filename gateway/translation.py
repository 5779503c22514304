"""Requests to backends that speak another dialect than V2: what is described, sent, and made of the answer.

Here: the order of these steps. Not here: what the dialects are (`codec.dialects`), and what a backend speaks
(`backend.speaking`).
"""

from collections.abc import Generator

from gateway.backend.attempt import Answer
from gateway.backend.metadata import MAX_BYTES as METADATA_BYTES
from gateway.backend.metadata import is_undescribed
from gateway.backend.upstream import Upstream
from gateway.call import Call, Described
from gateway.codec import (
    Dialect,
    DialectAnswer,
    DialectRequest,
    Framing,
    ModelDescription,
    OutputSelection,
    configured_for,
    missing_datatype,
    unknown_output,
    v2_metadata,
)
from gateway.codec import Reply as InferReply
from gateway.errors import CodecError, ErrorKind, GatewayError, blaming
from gateway.headers import HeaderLines
from gateway.plan import BackendPlan
from gateway.policy.crossing import Fields

_UNTOLD = (401, 403)
"""Statuses of servers that may describe a model to other clients."""


class Translation:
    """One request of a client to a backend of a *dialect*."""

    def __init__(self, call: Call, upstream: Upstream, backend: BackendPlan, dialect: Dialect) -> None:
        self.call = call
        self.upstream = upstream
        self.backend = backend
        self.dialect = dialect
        self.path = call.match.v2_path
        """What the client asks for."""

    async def infer(self, body: memoryview, framing: Framing) -> None:
        """Describe, parse, send, decode, reply. Raises `GatewayError`."""
        call, dialect = self.call, self.dialect
        path = self.path_of(dialect.infer_path(self.path.model or "", self.path.version))
        described = await self.description()
        description = described.model
        writer = dialect.writer(description)
        request = await self._parse(body, framing, description)
        self._require_datatypes(described, request.selection)
        with blaming(ErrorKind.MALFORMED_REQUEST):
            json_body = await call.json_body(request.bound(writer), self.backend)
        call.note(request)
        fields = call.transcoded_headers(self.backend)
        target = path + call.match.target[len(call.match.path) :]

        async def read(answer: Answer) -> tuple[InferReply, HeaderLines | Fields]:
            if answer.status >= 300:
                raise await self.error(answer, json_bytes=call.exchange.attempts[-1].request_bytes)
            return await self._decode(answer, request, description), answer.transcoded_lines()

        answered, crossing = await call.ask(self.upstream, fields, json_body, read, target=target, is_read_whole=True)
        await call.answer_inference(answered, crossing, framing)

    async def _parse(self, body: memoryview, framing: Framing, description: ModelDescription) -> DialectRequest:
        """The request, proved right. Raises `GatewayError`."""
        call = self.call
        limits, reserve, policy = call.plan.header_limits, call.body.reserve, self.backend.tensor_policy
        steps: Generator[None, None, DialectRequest]
        if framing.header_length == 0:
            metadata = v2_metadata(self.path.model or "", description)
            steps = DialectRequest.parse_raw(body, metadata, policy, limits, reserve=reserve)
        else:
            recover = call.plan.recover_header_length
            steps = DialectRequest.parse(body, framing.header_length, policy, limits, recover=recover, reserve=reserve)
        return await call.run_parser(steps)

    async def _decode(self, answer: Answer, request: DialectRequest, description: ModelDescription) -> InferReply:
        """The reply, made of *answer*. Raises `GatewayError`."""
        call = self.call
        decoder = DialectAnswer(
            self.dialect.answer_form(description),
            description,
            request.selection,
            model=call.match.model or "",
            request_id=request.id,
            version=self.path.version,
            limits=call.plan.header_limits,
        )
        try:
            return await call.decode(answer, decoder)
        except GatewayError as error:
            if error.kind is ErrorKind.MALFORMED_RESPONSE:
                self._forget_description()
            raise

    async def description(self) -> Described:
        """What the configuration and the server say of the model; maybe nothing. Raises `GatewayError`.

        What the configuration says is enough where the server says nothing. A server that does not have the model says
        so in its error.
        """
        dialect, path = self.dialect, self.path
        configured = configured_for(self.backend.models, path.model or "")
        alone = Described(configured, by_server=False)
        described_at = dialect.description_path(path.model or "", path.version)
        if described_at is None:
            return alone
        asked = path.before + described_at

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

        try:
            described = await self.call.ask_once(
                self.call.shared.descriptions, self.upstream, self.backend, asked, read
            )
        except GatewayError as error:
            if error.kind is not ErrorKind.BACKEND_ERROR or error.status in _UNTOLD or not is_undescribed(error):
                raise
            if not await self.is_ready():
                raise
            return alone
        if described.fault and not configured.outputs:
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, f"model {path.model!r}: {described.fault}", sent=False)
        return described

    def _forget_description(self) -> None:
        """Ask for it again with the next request: the server may have loaded another version of the model."""
        described_at = self.dialect.description_path(self.path.model or "", self.path.version)
        if described_at is not None:
            self.call.shared.descriptions.forget(self.backend.fingerprint, self.path.before + described_at)

    async def is_ready(self) -> bool:
        """Whether the server says that the model is ready. Raises `GatewayError`, also where there is no such model."""
        dialect = self.dialect
        asked = self.path_of(dialect.ready_path(self.path.model or "", self.path.version))

        async def read(answer: Answer) -> bool:
            if answer.status >= 300:
                raise await self.error(answer)
            answer.refuse_encoded()
            return dialect.is_ready(await answer.read_whole(METADATA_BYTES, "the model's status"))

        return await self.call.question(self.upstream, self.backend, asked, read)

    def _require_datatypes(self, described: Described, selection: OutputSelection) -> None:
        """Raise `GatewayError` if the answer could not be understood, or has no such output: nothing is sent then."""
        model, dialect, backend = self.path.model or "", self.dialect.name, self.backend.name
        unknown = unknown_output(described.model, selection) if described.by_server else None
        if unknown is not None:
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, unknown)
        missing = missing_datatype(described.model, selection, dialect=dialect, backend=backend, model=model)
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
        return await self.call.backend_error(
            answer, text, json_bytes=json_bytes, words_in=self.dialect.error_words, hint=hint
        )
