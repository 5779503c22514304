# ruff: noqa: D102  `Speech` says what the methods do
"""How an inference is put to a server of another dialect than V2: described, judged, sent, and its answer labelled.

Answers of such servers have no names, datatypes or shapes. These come from the model's description, which must be a
recent one. Not here: the dialects (`codec`), and the gateway's answers in place of such servers (`own_answers`).
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from gateway.backend.attempt import Answer
from gateway.backend.metadata import LIFE_S, is_undescribed
from gateway.backend.metadata import MAX_BYTES as METADATA_BYTES
from gateway.backend.upstream import Upstream
from gateway.codec import (
    DIALECTS,
    Dialect,
    DialectAnswer,
    DialectRequest,
    Framing,
    missing_datatype,
    unfit_input,
    unknown_output,
    v2_metadata,
)
from gateway.errors import CodecError, ErrorKind, GatewayError, blamed
from gateway.plan import BackendPlan
from gateway.serving.call import Call, Described, Question
from gateway.serving.speech import Decoder, Prepared

FRESH_S = 1.0
"""How old a model's description may be when an inference is sent whose answer it labels.

If it is older, the server is asked for it again beside the inference, and the answer waits for the new description.
"""

MAX_NAMED = 20
"""How many models of a configuration an error names."""

_UNTOLD = (401, 403)
"""Statuses of servers that may describe a model to other clients."""

T = TypeVar("T")

log = logging.getLogger("gateway")


async def dialect_of(upstream: Upstream, backend: BackendPlan) -> Dialect | None:
    """The dialect that *backend* speaks; None for V2. Raises `GatewayError`."""
    name = backend.settings.dialect
    return DIALECTS.get(name if name != "auto" else (await upstream.spoken()).dialect)


class Foreign:
    """A client's request to a backend of another *dialect* than V2; implements `Speech` for inferences."""

    target: str | None = None

    def __init__(self, call: Call, upstream: Upstream, backend: BackendPlan, dialect: Dialect) -> None:
        self.call = call
        self.backend = backend
        self.dialect = dialect
        self.path = call.match.v2_path
        """The path for the backend in V2, taken apart."""
        self.model, self.version = self.path.model or "", self.path.version
        self._upstream = upstream
        self._configured = backend.described(self.model)
        self._infer_path = dialect.infer_path(self.model, self.version, self._configured)
        if dialect.is_configured and self.path.model is not None:
            self._check_configured()
        described_at = dialect.description_path(self.model, self.version)
        self._asked = self.path.before + (described_at or "")
        self._question: Question[Described] | None = None
        """Asks for the model's description; None if servers of the dialect have none."""
        if described_at is not None:
            answers = call.shared.descriptions
            self._question = Question(call, answers, upstream, backend, self._asked, self._read_description)
        self._is_asking = False  # whether the description is asked for beside the inference
        self._described: Described
        self._request: DialectRequest

    def _check_configured(self) -> None:
        """Raise `GatewayError` unless the configuration has the client's model, and a path for its version."""
        name, model, models = self.backend.name, self.model, self.backend.models
        if self._configured.template is None:
            known = ", ".join(map(repr, list(models)[:MAX_NAMED]))
            words = f"model {model!r} is not configured: `backends.{name}.models` has {known}"
        elif self._infer_path is not None:
            return
        elif self.version is None:
            words = f"model {model!r} is asked for with a version: /v2/models/{model}/versions/VERSION"
        else:
            words = f"model {model!r} has no versions: leave the version out"
        raise GatewayError(ErrorKind.BACKEND_ERROR, words, status=404)

    @property
    def live_path(self) -> str:
        """The path that tells whether the server runs; empty if there is none."""
        health = self.backend.settings.health
        configured = health.path if health is not None else None
        return self.dialect.live_path or configured or ""

    @property
    def live_hint(self) -> str:
        """Words for a server's refusal of `live_path`: what was asked, and which key names it."""
        key = f", the path in `backends.{self.backend.name}.health`" if self.dialect.is_configured else ""
        return f" (GET {self.live_path}{key})"

    @property
    def is_usable(self) -> bool:
        """Whether an endpoint is not known to be down."""
        return self._upstream.is_usable

    async def prepare(self, body: memoryview, framing: Framing) -> Prepared:
        call, dialect, policy = self.call, self.dialect, self.backend.tensor_policy
        path = self.path_of(self._infer_path)
        query = call.match.target[len(call.match.path) :]
        self.target = path + (query if "?" not in path else query.replace("?", "&", 1))
        # a raw request is cut into values by the description
        described = await self.description(FRESH_S if framing.header_length == 0 else LIFE_S)
        limits, reserve = call.plan.header_limits, call.body.reserve
        if framing.header_length == 0:
            metadata = v2_metadata(self.model, described.model)
            steps = DialectRequest.parse_raw(body, metadata, policy, limits, reserve=reserve)
        else:
            recover = call.plan.recover_header_length
            steps = DialectRequest.parse(
                body,
                framing.header_length,
                policy,
                limits,
                recover=recover,
                blobs=framing.blobs or (),
                reserve=reserve,
            )
        request = await call.run_parser(steps)
        fault = self._fault(described, request)
        if fault is not None and self._is_old(described):
            described = await self.description(FRESH_S)
            fault = self._fault(described, request)
        if fault is not None:
            raise fault
        try:
            written = request.bound(dialect.writer(described.model))
        except CodecError as error:
            raise blamed(error, ErrorKind.MALFORMED_REQUEST) from error
        self._described, self._request = described, request
        if self._question is not None and self._is_old(described):
            self._is_asking = True
            await self._question.begin()
            if self._upstream.connections.is_full:  # else an inference on the last connection would wait for itself
                await self._question.answer()
        return Prepared(request, written, self._decoder)

    async def _decoder(self) -> Decoder:
        """A decoder for the answer, with a description at most `FRESH_S` old when the request was sent."""
        if self._question is not None and self._is_asking:
            try:
                self._described = self._usable(await self._question.answer())
            except GatewayError as error:
                # a new error, with `sent`: the inference has been executed, and must not be repeated for the question
                words, body = error.message, error.body
                raise GatewayError(error.kind, words, headers=error.headers, status=error.status, body=body) from error
        return self._decoder_by(self._described)

    async def other_decoder(self, answer: Answer) -> Decoder | None:
        question, described = self._question, self._described
        if question is None or not described.by_server:
            return None
        answer.give_up()  # everything is read, and the question may need the answer's connection
        newer = question.known()
        if newer is None or newer is described:
            try:
                await question.begin()
                newer = await question.answer()
            except GatewayError as error:
                log.debug("no description of %s: %s", self.call.exchange.path, error.message)
                return None
        return None if newer.model.outputs == described.model.outputs else self._decoder_by(newer)

    def _decoder_by(self, described: Described) -> Decoder:
        call, request = self.call, self._request
        return DialectAnswer(
            self.dialect.answer_form(described.model),
            described.model,
            request.selection,
            model=call.match.model or "",
            request_id=request.id,
            version=self.version,
            limits=call.plan.header_limits,
            lists_all=described.by_server,
        )

    async def description(self, max_age_s: float) -> Described:
        """The model's description by the configuration and the server; it may be empty. Raises `GatewayError`.

        The server was asked less than *max_age_s* ago. If it does not describe the model, the configuration's
        description is used alone. If it does not have the model, its error is raised.
        """
        alone = Described(self._configured, by_server=False)
        if self._question is None:
            return alone
        try:
            return self._usable(await self._question.get(max_age_s))
        except GatewayError as error:
            if error.kind is not ErrorKind.BACKEND_ERROR or error.status in _UNTOLD or not is_undescribed(error):
                raise
            if not await self.is_ready():
                raise
            return alone

    async def _read_description(self, answer: Answer) -> tuple[Described, int]:
        """Read the answer to the question for the description; how many bytes it takes to keep it comes second."""
        configured = self._configured
        if answer.status >= 300:
            error = await self.error(answer, hint=f" (GET {self._asked}, the model's description)")
            if configured.outputs and is_undescribed(error):
                return Described(configured, by_server=False), 1
            raise error
        answer.refuse_encoded()
        text = await answer.read_whole(METADATA_BYTES, "the model's description")
        try:
            said = self.dialect.read_description(text, configured.signature)
            return Described(said.merged(configured)), len(text)
        except CodecError as error:  # no failure of the endpoint: the configuration may name a wrong signature
            return Described(configured, by_server=False, fault=str(error)), 1

    def _usable(self, described: Described) -> Described:
        """*described* itself. Raises `GatewayError` if it could not be read and the configuration names no outputs."""
        if described.fault and not self._configured.outputs:
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, f"model {self.model!r}: {described.fault}", sent=False)
        return described

    def _is_old(self, described: Described) -> bool:
        """Whether *described* came from the server, more than `FRESH_S` ago, so that it may have changed."""
        return self._question is not None and described.by_server and self._question.known(FRESH_S) is None

    async def is_ready(self) -> bool:
        """Whether the server says that the model is ready. Raises `GatewayError`, also if there is no such model."""

        async def read(answer: Answer) -> bool:
            if answer.status >= 300:
                raise await self.error(answer, hint=self.live_hint if self.dialect.is_configured else "")
            answer.refuse_encoded()
            return self.dialect.is_ready(await answer.read_whole(METADATA_BYTES, "the model's status"))

        if self.dialect.is_configured and not self.live_path:
            return self.is_usable
        path = self.live_path if self.dialect.is_configured else self.dialect.ready_path(self.model, self.version)
        return await self.question(self.path_of(path), read)

    async def question(self, path: str, read: Callable[[Answer], Awaitable[T]]) -> T:
        """Ask the server for *path* and *read* the answer. Raises `GatewayError`."""
        return await self.call.question(self._upstream, self.backend, path, read)

    def _fault(self, described: Described, request: DialectRequest) -> GatewayError | None:
        """Why the model, as it is *described*, cannot get *request*; None if it can.

        The model may lack an input or output, the server may change values, or the answer could not be labelled.
        """
        selection = request.selection
        unfit = unfit_input(described.model, request.inputs, self.call.match.model or "")
        if unfit is None and (described.by_server or self.dialect.is_configured):
            unfit = unknown_output(described.model, selection)
        if unfit is not None:
            return GatewayError(ErrorKind.MALFORMED_REQUEST, unfit)
        missing = missing_datatype(
            described.model, selection, dialect=self.dialect.name, backend=self.backend.name, model=self.model
        )
        return None if missing is None else GatewayError(ErrorKind.MALFORMED_RESPONSE, missing, sent=False)

    def path_of(self, path: str | None) -> str:
        """The dialect's *path* after the part that the route keeps before it.

        Raises `GatewayError` if clients may not use the path, or if it is None: the dialect has no versions.
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
        """The backend's refusal in the shape of the protocol; see `Call.backend_error` for the arguments."""
        words_in = partial(self.dialect.error_words, description=self._configured)
        return await self.call.backend_error(answer, text, json_bytes=json_bytes, words_in=words_in, hint=hint)

    async def refusal(self, answer: Answer, json_bytes: int) -> GatewayError:
        return await self.error(answer, json_bytes=json_bytes)
