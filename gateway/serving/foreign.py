"""How an inference is put to a server of another dialect than V2: described, judged, sent, and its answer labelled.

Answers of such servers have no names, datatypes or shapes. These come from the model's description, which must be a
recent one.
"""

import time
from collections.abc import Collection
from contextlib import suppress
from functools import partial

from msgspec import structs

from gateway.backend.attempt import Answer
from gateway.backend.metadata import LIFE_S, is_undescribed
from gateway.backend.metadata import MAX_BYTES as METADATA_BYTES
from gateway.codec.dialects import DIALECTS
from gateway.codec.dialects.answer import DialectAnswer
from gateway.codec.dialects.body import ModelNames, WrittenRequest
from gateway.codec.dialects.description import (
    ModelDescription,
    Template,
    check_known,
    first_sizes,
    listed,
    missing_datatype,
    v2_metadata,
)
from gateway.codec.dialects.dialect import Dialect
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.dialects.rows import RowOutputs, cut_rows, row_description
from gateway.codec.dialects.walk import Walk
from gateway.errors import CodecError, ErrorKind, GatewayError
from gateway.serving.call import Call, Question
from gateway.serving.row_requests import RowRequests
from gateway.serving.speech import Decoder, Prepared, reading

FRESH_S = 1.0
"""How old a model's description may be when an inference is sent whose answer it labels.

If it is older, the server is asked for it again beside the inference, and the answer waits for the new description.
"""

LACKING = frozenset({404, 405, 501})
"""Statuses by which a server says that it does not have a path, or not with this method."""


async def dialect_of(call: Call) -> Dialect | None:
    """The dialect that the backend speaks; None for V2. Raises `GatewayError`."""
    name = call.backend.settings.dialect
    return DIALECTS.get(name if name != "auto" else (await call.upstream.spoken()).dialect)


class Foreign:
    """A client's request to a backend of another *dialect* than V2."""

    def __init__(self, call: Call, dialect: Dialect) -> None:
        self.call = call
        self.dialect = dialect
        self.path = path = call.match.v2_path
        self.model, self.name, self.version = path.model or "", call.match.model or "", path.version
        """The model as the backend knows it and as the client does."""
        self._configured = call.backend.described(self.model)
        call.words_in = partial(dialect.error_words, description=self._configured)
        self.paths = dialect.paths(self.model, self.version, self._configured)
        if not self.paths.infer and path.model is not None:
            raise GatewayError(ErrorKind.BACKEND_ERROR, self._no_path(), status=404)
        self._question: Question | None = None
        """Asks for the model's description; None if servers of the dialect have none."""
        if self.paths.description:
            asked = path.before + self.paths.description
            # it does not know this request, which would wait for the garbage collector otherwise
            read = partial(_read_description, call, dialect, self._configured, asked)
            self._question = Question(call, asked, read)
        self._described: ModelDescription
        self._sizes: dict[str, int]
        self._first_sizes: set[int]
        self._request: DialectRequest

    def _no_path(self) -> str:
        """Why the model has no path for this version."""
        if self.dialect.is_configured and self._configured.template is None:
            name, known = self.call.backend.name, listed(self.call.backend.models)
            return f"model {self.name!r} is not configured: `backends.{name}.models` has {known}"
        if self.version is None:
            asked = self.call.request.path.partition("?")[0].rstrip("/").removesuffix(self.path.asked)
            return f"model {self.name!r} is asked for with a version: {asked}/versions/VERSION"
        return f"model {self.name!r} has no versions: leave the version out"

    def path_of(self, path: str) -> str:
        """The dialect's *path* behind what the route keeps. Raises `GatewayError` if clients may not use it."""
        path = self.path.before + path
        self.call.plan.check_path(path, self.call.backend)
        return path

    # The request

    async def prepare(self, body: memoryview) -> Prepared | RowRequests:
        """Parse and check the request. Raises `GatewayError`."""
        call, path = self.call, self.path_of(self.paths.infer)
        query = call.match.target[len(call.match.path) :]
        target = path + (query if "?" not in path else query.replace("?", "&", 1))
        # a raw request is cut into values by the description
        is_raw = call.framing.header_length == 0
        described = await self.description(FRESH_S if is_raw else LIFE_S)
        metadata = v2_metadata(self.model, described) if is_raw else b""
        steps, policy = reading(call, body, metadata), call.backend.tensor_policy
        self._request = request = await call.exchange.request_codec.run(
            DialectRequest.parse(steps, policy, call.body.reserve)
        )
        if (template := described.template) is not None and template.rows:
            return await self._in_rows(described, template, target)
        try:
            written = self._written(described)
        except (CodecError, GatewayError):
            if not self._is_old(described):
                raise
            described = await self.description(FRESH_S)
            written = self._written(described)
        self._described = described
        refresh = None
        if self._question is not None and self._is_old(described):
            refresh = partial(self._refresh, self._question)
            await self._question.begin()
            if call.upstream.connections.is_full:  # else an inference on the last connection would wait for itself
                await self._question.answer()
        began_s = time.perf_counter()
        text = written.small_json
        call.exchange.request_codec.seconds += time.perf_counter() - began_s
        return Prepared(request, written, text, self._decoder, refresh, self._other_decoder, target)

    def _written(self, described: ModelDescription) -> WrittenRequest:
        """The request for the model as it is *described*. Raises `GatewayError`, and `CodecError` for a wrong request.

        The model may lack an input or output, the server may change values, or the answer could not be labelled.
        """
        request = self._checked(described)
        return self.dialect.write(request, described, ModelNames(self.model, self.version))

    def _checked(self, described: ModelDescription) -> DialectRequest:
        """The request with the shapes of the model as it is *described*. Raises as `_written`."""
        request, selection, backend = self._request, self._request.selection, self.call.backend.name
        check_known(described, request.inputs, selection, model=self.name)
        request, self._sizes = self.dialect.fitted(request, described, self.name)
        missing = missing_datatype(described, selection, dialect=self.dialect.name, backend=backend, model=self.model)
        if missing is not None:
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, missing, sent=False)
        self._first_sizes = first_sizes(request.inputs, described)
        return request

    async def _in_rows(self, described: ModelDescription, template: Template, target: str) -> RowRequests:
        """The request as several of at most `template.rows` rows each. Raises as `_written`."""
        call, rows = self.call, template.rows
        steps = cut_rows(self._checked(described), described.inputs, rows, call.body.reserve)
        cut = await call.exchange.request_codec.run(steps)
        self._described = row_description(described)

        def write(part: DialectRequest, first_row: int) -> WrittenRequest:
            return self.dialect.write(part, described, ModelNames(self.model, self.version, first_row))

        def decoder(n_rows: int) -> DialectAnswer:
            return self._decoder({n_rows} if n_rows > 1 else ())

        outputs = RowOutputs(described.outputs, rows, self._sizes)
        return RowRequests(cut, write, decoder, outputs, template.parallel, target)

    # The answer

    async def _refresh(self, question: Question) -> None:
        """Wait for a description at most `FRESH_S` old when the request was sent. Raises `GatewayError`."""
        try:
            self._described = self._usable(await question.answer())
        except GatewayError as error:
            # a new error, with `sent`: the inference has been executed, and must not be repeated for the question
            words, body = error.message, error.body
            raise GatewayError(error.kind, words, headers=error.headers, status=error.status, body=body) from error

    async def _other_decoder(self, answer: Answer) -> Decoder | None:
        """A decoder by the model's description of this moment, if it has changed."""
        question, described = self._question, self._described
        if question is None or not described.is_complete:
            return None
        answer.give_up()  # everything is read, and the question may need the answer's connection
        with suppress(GatewayError):  # the client is told what is wrong with the answer
            await question.begin()
            self._described = await question.answer()
        return None if self._described.outputs == described.outputs else self._decoder()

    def _decoder(self, first_sizes: Collection[int] | None = None) -> DialectAnswer:
        """A decoder for one answer; *first_sizes* are those of its request where that has a part of the rows."""
        call, described = self.call, self._described
        form, limits = self.dialect.answer_form(described), call.plan.header_limits
        walk = Walk(
            form,
            described,
            self._request.selection,
            limits=limits,
            sizes=self._sizes,
            first_sizes=self._first_sizes if first_sizes is None else first_sizes,
        )
        return DialectAnswer(walk, model=self.name, request_id=self._request.id, version=self.version)

    # What the server says beside inferences

    async def description(self, max_age_s: float) -> ModelDescription:
        """The model's description by the configuration and the server; it may be empty. Raises `GatewayError`.

        The server was asked less than *max_age_s* ago. If it does not describe the model, the configuration's
        description is used alone. If it does not have the model, its error is raised.
        """
        if self._question is None:
            return self._configured
        try:
            return self._usable(await self._question.get(max_age_s))
        except GatewayError as error:
            if error.status not in LACKING or not await self.is_ready():
                raise
            return self._configured

    def _usable(self, described: ModelDescription) -> ModelDescription:
        """*described* itself. Raises `GatewayError` if it could not be read and the configuration names no outputs."""
        if described.fault and not self._configured.outputs:
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, f"model {self.name!r}: {described.fault}", sent=False)
        return described

    def _is_old(self, described: ModelDescription) -> bool:
        """Whether *described* came from the server, more than `FRESH_S` ago, so that it may have changed."""
        return self._question is not None and described.is_complete and self._question.known(FRESH_S) is None

    @property
    def live_path(self) -> str:
        """The path that tells whether the server runs; empty if there is none."""
        health = self.call.backend.settings.health
        return self.dialect.live_path or (health.path if health is not None else None) or ""

    async def is_ready(self) -> bool:
        """Whether the server says that the model is ready. Raises `GatewayError`, also if there is no such model."""
        asked = self.paths.ready or self.live_path
        if not asked:
            return self.call.upstream.is_usable
        path, dialect = self.path_of(asked), self.dialect

        async def read(answer: Answer) -> bool:
            if answer.status >= 300:
                raise await self.call.backend_error(answer, hint=f" (GET {path})")
            answer.refuse_encoded()
            return dialect.is_ready(await answer.read_whole(METADATA_BYTES, "the model's status"))

        return await self.call.question(path, read)


async def _read_description(
    call: Call, dialect: Dialect, configured: ModelDescription, path: str, answer: Answer
) -> tuple[ModelDescription, int]:
    """Read the *answer* of *path*: the model's description, and how many bytes of memory keeping it takes."""
    if answer.status >= 300:
        error = await call.backend_error(answer, hint=f" (GET {path}, the model's description)")
        if configured.outputs and is_undescribed(error):
            return configured, 1
        raise error
    answer.refuse_encoded()
    text = await answer.read_whole(METADATA_BYTES, "the model's description")
    try:
        said = dialect.read_description(text, configured.signature)
        return said.merged(configured), len(text)
    except CodecError as error:  # no failure of the endpoint: the configuration may name a wrong signature
        return structs.replace(configured, fault=str(error)), 1
