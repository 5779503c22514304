"""One request of a client of gRPC: its message is the body that the corridor reads, and the reply becomes a message.

The corridor knows it as it knows body and reply of HTTP (`ClientBody`, `Reply`), and replies what it would reply over
HTTP; that is made a message when all of it is there, or a status. Not here: how bytes come and go (`stream`), and what
messages say (`inference`, `answers`, `methods`).
"""

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gateway.client.body import ClientBody
from gateway.client.grpc.frames import Buffer, Buffers, Code
from gateway.client.grpc.heads import Head, Status, encoded, encoded_string, status_fields, status_of
from gateway.client.grpc.inference import InferMessage, read_request, write_response
from gateway.client.grpc.messages import CLASSES, check_fields, parsed, varint
from gateway.client.grpc.methods import Method
from gateway.client.grpc.stream import DEADLINE_WORDS, PREFIX_BYTES, Message
from gateway.client.request import ClientRequest
from gateway.codec import HEADER_LENGTH, Coding, Framing, parse_content_encoding
from gateway.errors import CodecError, ErrorKind, GatewayError, TooLargeError, blamed, proxy_status
from gateway.exchange import Exchange
from gateway.headers import Pairs
from gateway.plan import Plan

SMALL_BYTES = 64 * 1024
"""A message without tensors that is no longer needs no admission, as a request of HTTP without a body."""

CALL_COPIES = 5
"""How often a message without tensors is in memory, beside itself, while it becomes JSON with base64."""

OK_HEAD = b"\x88" + encoded([("content-type", "application/grpc")])  # of the status 200 the static table of HPACK knows
"""With what every answer of gRPC begins."""

_REQUEST_ID = b"\0" + encoded_string("x-request-id")
_OK_TRAILERS = encoded([("grpc-status", "0")])
_NO_METADATA = frozenset(
    ("transfer-encoding", "connection", "keep-alive", "trailer", "te", "upgrade", "x-request-id", HEADER_LENGTH.lower())
)
_NO_METADATA_BEGINNINGS = ("content-", "grpc-")
_SAY_NO = (ErrorKind.BACKEND_ERROR, ErrorKind.NO_ROUTE)  # to whether something is ready
_STREAM_ANSWER_TAG = b"\x12"  # `infer_response` of ModelStreamInferResponse

_StreamAnswer = CLASSES["ModelStreamInferResponse"]


class GrpcCall(ClientBody):
    """Body and reply of one request."""

    def __init__(
        self,
        head: Head,
        method: Method | None,
        before: asyncio.Task[None] | None,
        request: ClientRequest,
        exchange: Exchange,
        shared: Any,
        plan: Plan,
    ) -> None:
        """*method* is None for an inference. *before* serves the message before in the same stream, if there is one."""
        super().__init__(request, exchange, shared, plan)
        request.begin = self.find_target
        assert isinstance(request.connection, Message)
        self._message = request.connection
        self._stream = request.connection.stream
        self._head = head
        self._method = method
        self._before = before
        self._plan = plan
        self._asked = b""
        self._infer: InferMessage | None = None  # what an inference asks for, once it was read
        self._begun: tuple[int, Pairs] = (0, ())
        self._kept: list[Buffer] = []
        self._kept_bytes = 0
        self.has_begun = False
        """From here on an error can only reset the stream."""
        self.is_complete = False
        """The whole reply was handed to the connection."""

    # The message, as the corridor reads it: the JSON of the request, with the blobs in buffers of their own

    async def find_target(self) -> None:
        """Read the message, and say in the request what it asks for. Raises `GatewayError`."""
        method, message = self._method, self._message
        if message.length < 0 and not await message.begin():
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, "the call has no message")
        length = self._request.content_length = message.length
        said = None if message.is_one_of_many else self._head.first.get("content-length")
        if said and int(said) != PREFIX_BYTES + length:  # RFC 9113 section 8.1.1
            words = f"its message takes {PREFIX_BYTES + length} bytes, and its content-length is {said}"
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, f"malformed call: {words}")
        if method is not None and length <= SMALL_BYTES and not message.is_compressed:
            data = memoryview(b"".join([chunk async for chunk in self.chunks()]))
        else:
            data = await super().read()
        try:
            await (self._take_inference(data) if method is None else self._take_other(method, data))
        except TooLargeError as error:
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, str(error), status=431) from error  # beside the tensors' data
        except CodecError as error:
            raise blamed(error, ErrorKind.MALFORMED_REQUEST) from error

    async def _take_other(self, method: Method, message: memoryview) -> None:
        """Take a *message* without tensors. Raises `CodecError`."""
        request = self._request
        check_fields(message)
        if len(message) > SMALL_BYTES:
            self.reserve(len(message) * CALL_COPIES)
        asked = parsed(CLASSES[f"{method.name}Request"], message)
        request.path, request.method, request.has_body = method.path(asked), method.verb, method.verb == "POST"
        self._asked = method.body(asked) if request.has_body else b""
        request.content_length = len(self._asked) if request.has_body else None

    async def _take_inference(self, message: memoryview) -> None:
        steps = read_request(message, self._plan.header_limits, self.reserve)
        self._infer = infer = await self._exchange.request_codec.run(steps)
        self._request.path = infer.target
        if infer.is_of_sequence and self._before is not None:
            await asyncio.wait((self._before,))  # two connections to the server would not keep their order

    def _find_coding(self) -> Coding | None:
        if not self._message.is_compressed:
            return None
        try:
            return parse_content_encoding(self._head.first.get("grpc-encoding", "identity"))
        except CodecError as error:
            words = str(error).replace("Content-Encoding", "grpc-encoding")
            raise GatewayError(ErrorKind.UNSUPPORTED_ENCODING, words, status=501) from None

    def framing(self) -> Framing:
        """Where the JSON ends, and the blobs."""
        assert self._infer is not None
        return Framing(len(self._infer.header), blobs=self._infer.blobs)

    async def read(self) -> memoryview:
        """The JSON of an inference."""
        assert self._infer is not None
        return memoryview(self._infer.header)

    async def read_first(self, n_bytes: int) -> bytes:
        """All of a request without tensors."""
        return self._asked

    def release(self) -> None:
        """Give back everything that was reserved, and let go of it: the request and its body refer to each other."""
        super().release()
        self._infer = self._request.begin = None
        self._asked = b""

    async def admit(self, n_bytes: int) -> None:
        """Reserve *n_bytes*, unless the message was admitted."""
        if not self.n_slots:
            await super().admit(n_bytes)

    # The reply

    async def begin(self, status: int, headers: Pairs, length: int | None, lines: str = "") -> None:
        """See `Reply.begin`. Nothing goes out before `end`, so another attempt may begin again."""
        self._begun = status, tuple(headers)
        self._kept.clear()
        self._kept_bytes = 0

    async def write(self, piece: bytes | bytearray | memoryview) -> None:
        """See `Reply.write`; what is kept counts as the answer's."""
        self._kept.append(bytes(piece))
        self._kept_bytes += len(piece)
        self.hold_answer(self._kept_bytes)

    async def end(self) -> None:
        """See `Reply.end`."""
        await self.whole(*self._begun, self._kept)

    async def whole(self, status: int, headers: Pairs, buffers: Sequence[Buffer], lines: str = "") -> None:
        """Send what HTTP would send as *buffers*, as a message. Raises `GatewayError` for what cannot be made one."""
        if status >= 300:  # errors of servers are raised, and do not come here
            words = f"the backend answered {status}, a redirect, which no client of gRPC can follow"
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words)
        try:
            if self._method is None:
                message = await self._answer(headers, buffers)
            else:
                message = [self._method.answer(b"".join(buffers)).SerializeToString()]
        except TooLargeError as error:
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, str(error)) from error
        except CodecError as error:
            raise blamed(error, ErrorKind.MALFORMED_RESPONSE) from error
        if self._message.is_one_of_many:
            message = [_STREAM_ANSWER_TAG, varint(sum(map(len, message))), *message]
        self._exchange.status, self._exchange.rpc_status = status, Status.OK.name
        await self._send(headers, message, lines)

    async def error(self, error: GatewayError) -> None:
        """Send *error* as a status; if a reply has begun, cut it off with a reset."""
        exchange, method = self._exchange, self._method
        exchange.detail = error.message
        if self.is_complete:
            return
        exchange.error = error.kind
        if self.has_begun:
            self._stream.close(Code.INTERNAL_ERROR)
            return
        exchange.status = error.status
        if method is not None and method.flag and error.kind in _SAY_NO:
            exchange.rpc_status = Status.OK.name
            await self._send(error.headers, [method.said(False).SerializeToString()])
            return
        deadline_s = self._request.deadline_s
        if error.kind is ErrorKind.TIMEOUT and deadline_s and asyncio.get_running_loop().time() >= deadline_s:
            exchange.detail = DEADLINE_WORDS
        status = status_of(error)
        exchange.rpc_status = status.name
        headers = [*error.headers, proxy_status(error)]
        if self._message.is_one_of_many and self._head.first.get("triton_grpc_error", "").lower() != "true":
            answer = _StreamAnswer(error_message=exchange.detail)
            if self._infer is not None:  # as Triton does it, so that the client knows which request it was
                answer.infer_response.id = self._infer.id
            await self._send(headers, [answer.SerializeToString()])
            return
        await self._turn()
        self.has_begun = True
        begun = b"" if self._stream.is_answered else OK_HEAD + self._metadata(headers)
        self._stream.finish(begun + status_fields(status, exchange.detail))
        self.is_complete = True

    def client_left(self) -> None:
        """See `Reply.client_left`."""
        exchange = self._exchange
        if exchange.error is None and not self.is_complete:
            exchange.error = ErrorKind.CLIENT_CLOSED
            exchange.rpc_status = Status.CANCELLED.name
            exchange.status = ErrorKind.CLIENT_CLOSED.status
            exchange.detail = self._stream.connection.cut_reason

    async def _answer(self, headers: Pairs, buffers: Sequence[Buffer]) -> list[Buffer]:
        """The answer to an inference, whose JSON and blobs are in *buffers*, as a message. Raises `CodecError`."""
        infer = self._infer
        assert infer is not None
        length = next((value for name, value in headers if name.lower() == HEADER_LENGTH.lower()), "")
        blobs = Buffers(buffers)
        header_bytes = int(length) if length.isdecimal() else blobs.n_bytes
        if header_bytes > blobs.n_bytes:
            raise CodecError(f"the answer ends inside of its JSON, which has {length} bytes ({HEADER_LENGTH})")
        header = b"".join(blobs.take(header_bytes))
        steps = write_response(header, blobs, is_typed=infer.is_typed, is_final=self._message.is_one_of_many)
        return await self._exchange.response_codec.run(steps)

    async def _send(self, headers: Pairs, message: list[Buffer], lines: str = "") -> None:
        """Send *message*, and the status OK behind the only one. Raises `ConnectionError` when the client left."""
        stream = self._stream
        await self._turn()
        self.has_begun = True
        if not stream.is_answered:
            stream.begin(OK_HEAD + self._metadata(headers, lines))
        n_bytes = sum(map(len, message))
        await stream.write([b"\0" + n_bytes.to_bytes(PREFIX_BYTES - 1), *message], self._exchange.response_codec)
        if self._message.is_one_of_many:
            stream.connection.flush()
        else:
            stream.finish(_OK_TRAILERS)
        self._exchange.client_response_bytes = n_bytes
        self.is_complete = True

    async def _turn(self) -> None:
        """Wait until the reply to the message before has gone out."""
        if self._before is not None:
            await asyncio.wait((self._before,))

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
