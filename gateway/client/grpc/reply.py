"""The reply to one call: an answer as a message, or an error as a status.

What the corridor replies is what it would reply over HTTP; it is made a message here when all of it is there. Not here:
frames (`stream`), and what the statuses are (`statuses`).
"""

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote

from gateway.client.grpc.answers import Blobs, write_response
from gateway.client.grpc.body import GrpcBody, HeaderTooLargeError
from gateway.client.grpc.calls import Call
from gateway.client.grpc.frames import Buffer, Code
from gateway.client.grpc.heads import encoded, encoded_string
from gateway.client.grpc.inference import varint
from gateway.client.grpc.messages import CLASSES
from gateway.client.grpc.statuses import Status, status_of
from gateway.client.grpc.stream import DEADLINE_WORDS, PREFIX_BYTES, Stream
from gateway.codec import HEADER_LENGTH, InferAnswer, OutputSelection
from gateway.errors import CodecError, ErrorKind, GatewayError, TooLargeError, blamed, proxy_status
from gateway.exchange import Exchange
from gateway.headers import Pairs
from gateway.pacing import Pacer
from gateway.plan import Plan

MAX_WORDS = 4096
"""The most bytes of `grpc-message`, as it is encoded: clients refuse answers with more than 8 KiB of fields."""

OK_HEAD = b"\x88" + encoded([("content-type", "application/grpc")])  # of the status 200 the static table of HPACK knows
"""With what every answer of gRPC begins."""

_REQUEST_ID = b"\0" + encoded_string("x-request-id")
_OK_TRAILERS = encoded([("grpc-status", "0")])
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_NO_METADATA = frozenset(
    ("transfer-encoding", "connection", "keep-alive", "trailer", "te", "upgrade", "x-request-id", HEADER_LENGTH.lower())
)
_NO_METADATA_BEGINNINGS = ("content-", "grpc-")
_SAY_NO = (ErrorKind.BACKEND_ERROR, ErrorKind.NO_ROUTE)  # to whether something is ready
_STREAM_ANSWER_TAG = b"\x12"  # `infer_response` of ModelStreamInferResponse

_StreamAnswer = CLASSES["ModelStreamInferResponse"]


class GrpcReply:
    """The reply to one call; with the methods that the corridor knows of `Reply`."""

    _is_one_of_many = False
    """Whether it is one message of a stream, which says of itself that no other answers the same request."""

    def __init__(
        self, stream: Stream, exchange: Exchange, body: GrpcBody, plan: Plan, pacer: Pacer, *, call: Call | None = None
    ) -> None:
        """*call* is None for an inference."""
        self._stream = stream
        self._exchange = exchange
        self._body = body
        self._call = call
        self._plan = plan
        self._pacer = pacer
        self._begun: tuple[int, Pairs] = (0, ())
        self._pieces: list[Buffer] = []
        self._kept_bytes = 0
        self.has_begun = False
        """From here on an error can only reset the stream."""
        self.is_complete = False
        """The whole reply was handed to the connection."""

    # What the corridor calls

    async def whole(self, status: int, headers: Pairs, body: bytes, reason: str = "") -> None:
        """See `Reply.whole`."""
        await self.buffers(status, headers, (body,))

    async def begin(self, status: int, headers: Pairs, length: int | None, reason: str = "", lines: str = "") -> None:
        """See `Reply.begin`. Nothing goes out before `end`, so another attempt may begin again."""
        self._begun = status, tuple(headers)
        self._pieces.clear()
        self._kept_bytes = 0

    async def write(self, piece: bytes | bytearray | memoryview) -> None:
        """See `Reply.write`; what is kept counts as the answer's."""
        self._pieces.append(bytes(piece))
        self._kept_bytes += len(piece)
        self._body.hold_answer(self._kept_bytes)

    async def end(self) -> None:
        """See `Reply.end`."""
        await self.buffers(*self._begun, self._pieces)

    async def buffers(
        self,
        status: int,
        headers: Pairs,
        buffers: Sequence[Buffer],
        lines: str = "",
        reason: str = "",
    ) -> None:
        """Send what HTTP would send as *buffers*, as a message. Raises `GatewayError` for what cannot be made one."""
        exchange = self._exchange
        if status >= 300:  # errors of servers are raised, and do not come here
            words = f"the backend answered {status}, a redirect, which no client of gRPC can follow"
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words)
        self._body.message.check_alone()
        try:
            if self._call is None:
                message = await self._answer(headers, buffers)
            else:
                message = [self._call.answer(b"".join(buffers)).SerializeToString()]
        except TooLargeError as error:
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, str(error)) from error
        except CodecError as error:
            raise blamed(error, ErrorKind.MALFORMED_RESPONSE) from error
        exchange.status, exchange.rpc_status = status, Status.OK.name
        exchange.client_response_bytes = await self.send(headers, message, lines)
        self.is_complete = True

    async def error(self, error: GatewayError) -> None:
        """Send *error* as a status; if a reply has begun, cut it off with a reset."""
        exchange, call = self._exchange, self._call
        exchange.detail = error.message
        if self.is_complete:
            return
        exchange.error = error.kind
        if self.has_begun:
            self._stream.reset(Code.INTERNAL_ERROR)
            return
        exchange.status = error.status
        if call is not None and call.refused is not None and error.kind in _SAY_NO:
            exchange.rpc_status = Status.OK.name
            exchange.client_response_bytes = await self.send(error.headers, [call.refused().SerializeToString()])
            self.is_complete = True
            return
        words = error.message
        if error.kind is ErrorKind.TIMEOUT and self._body.is_too_late:
            words = exchange.detail = DEADLINE_WORDS
        status = status_of(error.kind, error.status)
        if isinstance(error, HeaderTooLargeError):
            status = Status.INVALID_ARGUMENT
        exchange.rpc_status = status.name
        await self.send_status(status, words, [*error.headers, proxy_status(error)])
        self.is_complete = True

    def client_left(self) -> None:
        """See `Reply.client_left`."""
        exchange = self._exchange
        if exchange.error is None and not self.is_complete:
            exchange.error = ErrorKind.CLIENT_CLOSED
            exchange.rpc_status = Status.CANCELLED.name
            exchange.status = ErrorKind.CLIENT_CLOSED.status
            exchange.detail = self._stream.connection.out.cut_reason

    # How a message is made

    async def _answer(self, headers: Pairs, buffers: Sequence[Buffer]) -> list[Buffer]:
        """The answer to an inference, whose JSON and blobs are in *buffers*. Raises `CodecError`."""
        asked, pacer = self._body.infer, self._pacer
        assert asked is not None
        length = next((value for name, value in headers if name.lower() == HEADER_LENGTH.lower()), "")
        blobs = Blobs(buffers)
        header_bytes = int(length) if length.isdecimal() else blobs.n_bytes
        if header_bytes > blobs.n_bytes:
            raise CodecError(f"the answer ends inside of its JSON, which has {length} bytes ({HEADER_LENGTH})")
        header = b"".join(blobs.take(header_bytes))
        if b'"data"' in header and not length:  # of a server that does not do what it is asked
            decoder = InferAnswer(
                OutputSelection(binary_by_default=True),
                model=self._exchange.model or "",
                request_id=b"",
                limits=self._plan.header_limits,
                max_bytes=int(self._plan.limits.response_body),
            )
            await pacer.run(decoder.feed(header))
            found = await pacer.run(decoder.finish())
            header, blobs = b"".join(found.header), Blobs(found.blobs)
        steps = write_response(header, blobs, is_typed=asked.is_typed, is_final=self._is_one_of_many)
        message = await pacer.run(steps)
        self._exchange.response_codec_s += pacer.take_seconds()
        return message

    # How it goes out

    async def send(self, headers: Pairs, message: list[Buffer], lines: str = "") -> int:
        """Send *message* and the status OK; how many bytes it has. Raises `ConnectionError` when the client left."""
        stream = self._stream
        n_bytes = sum(map(len, message))
        self.has_begun = True
        stream.begin(OK_HEAD + self._metadata(headers, lines))
        await stream.write([b"\0" + n_bytes.to_bytes(PREFIX_BYTES - 1), *message], self._pacer)
        stream.finish(_OK_TRAILERS)
        return n_bytes

    async def send_status(self, status: Status, words: str, headers: Pairs) -> None:
        """Send nothing but *status* and *words*. Raises `ConnectionError` when the client left."""
        self.has_begun = True
        self._stream.finish(OK_HEAD + self._metadata(headers) + status_fields(status, words))

    def _metadata(self, headers: Pairs, lines: str = "") -> bytes:
        """What crosses of *headers* and *lines* as metadata, and what every reply has, as HPACK."""
        said = [f"{name}: {value}" for name, value in headers]
        if lines:
            said += lines.split("\r\n")
        own = [_REQUEST_ID, encoded_string(self._exchange.request_id)]
        if self._plan.timing is not None:
            own.append(encoded([("server-timing", self._plan.timing(self._exchange))]))
        return b"".join([*map(_field, said), *own])


@lru_cache(maxsize=128)
def _field(line: str) -> bytes:
    """The field in a *line* of an answer's head, as HPACK; empty if it does not cross.

    Eight of MLServer's eleven are the same in all of its answers.
    """
    name, _, value = line.partition(":")
    name, value = name.lower(), value.strip()
    is_left_out = name in _NO_METADATA or name.startswith(_NO_METADATA_BEGINNINGS) or name.endswith("-bin")
    return b"" if is_left_out or not value.isascii() or not value.isprintable() else encoded([(name, value)])


class StreamedReply(GrpcReply):
    """The reply to one message of `ModelStreamInfer`: one message of several, in the order of the requests."""

    _is_one_of_many = True

    def __init__(
        self,
        stream: Stream,
        exchange: Exchange,
        body: GrpcBody,
        plan: Plan,
        pacer: Pacer,
        *,
        before: "asyncio.Task[None] | None",
        ends_with_errors: bool,
    ) -> None:
        """*before* serves the message before, whose reply goes out first.

        *ends_with_errors*: an error ends the stream with a status (metadata `triton_grpc_error`).
        """
        super().__init__(stream, exchange, body, plan, pacer)
        self._before = before
        self._ends_with_errors = ends_with_errors

    async def send(self, headers: Pairs, message: list[Buffer], lines: str = "") -> int:
        """Send *message* as one of the stream."""
        n_bytes = sum(map(len, message))
        return await self._send_next(headers, [_STREAM_ANSWER_TAG, varint(n_bytes), *message], lines)

    async def send_status(self, status: Status, words: str, headers: Pairs) -> None:
        """Send *words* as one message of the stream, or end it with *status*."""
        if not self._ends_with_errors:
            answer = _StreamAnswer(error_message=words)
            if self._body.infer is not None:  # as Triton does it, so that the client knows which request it was
                answer.infer_response.id = self._body.infer.id
            await self._send_next(headers, [answer.SerializeToString()])
            return
        await self._turn()
        if not self._stream.is_closed:
            head = b"" if self._stream.is_answered else OK_HEAD + self._metadata(headers)
            self._stream.finish(head + status_fields(status, words))

    async def _send_next(self, headers: Pairs, message: list[Buffer], lines: str = "") -> int:
        await self._turn()
        stream = self._stream
        n_bytes = sum(map(len, message))
        self.has_begun = True
        if not stream.is_answered:
            stream.begin(OK_HEAD + self._metadata(headers, lines))
        await stream.write([b"\0" + n_bytes.to_bytes(PREFIX_BYTES - 1), *message], self._pacer)
        stream.connection.flush()
        return n_bytes

    async def _turn(self) -> None:
        if self._before is not None:
            await asyncio.wait((self._before,))


def status_fields(status: Status, words: str) -> bytes:
    """The trailers that say *status*, as HPACK."""
    words = words[:MAX_WORDS]
    while len(message := quote(words.encode(errors="replace"), safe=_PRINTABLE)) > MAX_WORDS:
        words = words[: len(words) * MAX_WORDS // len(message)]
    return encoded([("grpc-status", str(int(status))), ("grpc-message", message)])
