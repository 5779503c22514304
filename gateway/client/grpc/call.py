"""One call of gRPC from its head to its end: its messages become requests, and the replies to these become messages.

A message is the body that the corridor reads, as it reads a body of HTTP, and the corridor replies what it would reply
over HTTP; the reply is made a message when all of it is there, or a status.
"""

import asyncio
import logging
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from gateway.client.grpc.frames import Buffer, Buffers, Code
from gateway.client.grpc.heads import CROSSING, Status, encoded, encoded_string, status_fields, status_of
from gateway.client.grpc.inference import InferMessage, find_id, read_request, write_response
from gateway.client.grpc.messages import CLASSES, parsed, path_of, varint
from gateway.client.grpc.methods import METHODS, MODEL_INFER, MODEL_STREAM_INFER, Method
from gateway.client.grpc.stream import DEADLINE_WORDS, PREFIX_BYTES, Message, Stream
from gateway.client.peers import client_left
from gateway.client.reply import Reply
from gateway.client.request import ClientRequest
from gateway.codec.compression import Coding, parse_content_encoding
from gateway.codec.v2.framing import HEADER_LENGTH, Framing
from gateway.errors import CodecError, ErrorKind, GatewayError, TooLargeError, blamed, proxy_status
from gateway.exchange import Exchange
from gateway.headers import Pairs
from gateway.pacing import Pacer
from gateway.plan import Plan

STREAM_CALLS = 16
"""How many inferences of one `ModelStreamInfer` are under way at once; the next is read when one of them has ended."""

SMALL_BYTES = 64 * 1024
"""The longest message without tensors: it is read in one step, and needs no admission, as a request without a body."""

MAX_MESSAGE_BYTES = 2**31 - 1
"""The longest message that protobuf knows."""

_MAX_ANSWER_BYTES = 1024 * 1024  # of JSON for a message without tensors: its parts are told apart in one step, of 2 ms
_OF_TIME = (ErrorKind.TIMEOUT, ErrorKind.OVERLOADED, ErrorKind.SLOW_CLIENT)
_NOT_READY = (400, 404, 405, 501, 503)  # or not there; a server says something else with any other refusal
_OK = Status.OK.name
_HEADER_LENGTH = HEADER_LENGTH.lower()
_OK_HEAD = b"\x88" + encoded([("content-type", "application/grpc")])  # HPACK's static table has the status 200
_OK_TRAILERS = encoded([("grpc-status", "0")])
_NO_GRPC = encoded([(":status", "415"), ("content-type", "text/plain")])
_REQUEST_ID = b"\0" + encoded_string("x-request-id")
_NO_METADATA = frozenset(
    ("transfer-encoding", "connection", "keep-alive", "trailer", "te", "upgrade", "x-request-id", _HEADER_LENGTH)
)
_STREAM_ANSWER_TAG = b"\x12"  # `infer_response` of ModelStreamInferResponse

log = logging.getLogger("gateway")


async def serve(stream: Stream) -> None:
    """Serve the call that *stream* is. Ends with the stream."""
    owner, head = stream.connection.owner, stream.head
    deadline_s = timer = None
    if head.timeout_s is not None:  # whatever is still to come of the client's messages comes too late then
        deadline_s = owner.loop.time() + head.timeout_s
        timer = owner.loop.call_at(deadline_s, stream.break_off, GatewayError(ErrorKind.CLIENT_CLOSED, DEADLINE_WORDS))
    try:
        if not head.first.get("content-type", "").startswith("application/grpc") or head.first.get(":method") != "POST":
            stream.finish(_NO_GRPC)
        elif head.path == MODEL_STREAM_INFER:
            await _serve_many(stream, deadline_s)
        else:
            await owner.handler(_request(Message(stream), deadline_s))
    except (ConnectionError, asyncio.CancelledError):
        pass  # the client left; what was served has recorded it
    except Exception:
        log.exception("a call of client %s failed", stream.connection.peer)
        stream.close(Code.INTERNAL_ERROR)
    finally:
        if timer is not None:
            timer.cancel()
        stream.break_off(client_left())  # the traceback of an error that was raised would keep the message in memory


async def _serve_many(stream: Stream, deadline_s: float | None) -> None:
    """Serve inferences as they come, several at once; their replies go out in the order of the requests."""
    tasks: set[asyncio.Task[None]] = set()
    task = None
    try:
        ending = _OK_TRAILERS
        try:
            while await (message := Message(stream, task, is_one_of_many=True)).begin() and not stream.is_closed:
                task = stream.connection.owner.loop.create_task(_serve_next(stream, _request(message, deadline_s)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                # the next message is behind this one, also where this one is refused before it is read
                await asyncio.wait((task, message.read), return_when=asyncio.FIRST_COMPLETED)
                await message.skip()
                while len(tasks) >= STREAM_CALLS:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except GatewayError as error:  # between two messages
            ending = status_fields(status_of(error), error.message)
        while tasks and not stream.is_closed:  # an error may end the stream before all are answered
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
    if not stream.is_closed:
        stream.finish(ending if stream.is_answered else _OK_HEAD + ending)


async def _serve_next(stream: Stream, request: ClientRequest) -> None:
    """Serve one inference of a stream."""
    with suppress(ConnectionError):  # the client left, which its handler has recorded
        await stream.connection.owner.handler(request)


def _request(message: Message, deadline_s: float | None) -> ClientRequest:
    """The request that *message* becomes."""
    head, client = message.stream.head, message.stream.connection
    fault = head.fault
    if fault is None and head.path not in METHODS and head.path not in (MODEL_INFER, MODEL_STREAM_INFER):
        service, _, name = head.path[:200].rpartition("/")
        words = f"{name}: the gateway has no such call of {service!r}; shared memory, traces and logs are the server's"
        fault = GatewayError(ErrorKind.NO_ROUTE, words, status=501)
    authority = head.first.get(":authority", head.first.get("host", ""))
    request = ClientRequest(
        "POST", head.path, head.headers, authority, client.peer, client.scheme, (2, 0), None, True, message, fault
    )
    request.protocol, request.deadline_s, request.front = "grpc", deadline_s, GrpcCall
    return request


class GrpcCall(Reply):
    """Body and reply of one request."""

    _asked = b""  # the JSON of a request without tensors
    _infer: InferMessage | None = None  # what an inference asks for, once it was read
    _id = ""  # of an inference of a stream, so that the client knows which request an error is about, as with Triton
    _begun: tuple[int, Pairs] = (0, ())
    _kept_bytes = 0

    def __init__(self, request: ClientRequest, exchange: Exchange, shared: Any, plan: Plan) -> None:
        """The body of *request*, whose connection is a `Message`."""
        super().__init__(request, exchange, shared, plan)
        request.begin = self.find_target
        assert isinstance(request.connection, Message)
        self._message = request.connection
        self._stream = request.connection.stream
        self._method = METHODS.get(self._stream.head.path)  # None: it is an inference
        self._kept: list[Buffer] = []

    # The message, as the corridor reads it: the JSON of the request, with the blobs in buffers of their own

    async def find_target(self) -> None:
        """Read the message, and say in the request what it asks for. Raises `GatewayError` and `CodecError`."""
        method, message = self._method, self._message
        if message.length < 0 and not await message.begin():
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, "the call has no message")
        length = self._request.content_length = message.length
        said = None if message.is_one_of_many else self._stream.head.first.get("content-length")
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

    async def _take_other(self, method: Method, message: memoryview) -> None:
        """Take a *message* without tensors. Raises `CodecError`."""
        request = self._request
        if len(message) > SMALL_BYTES:
            words = f"a message without tensors has at most {SMALL_BYTES} bytes; files of a model are loaded over HTTP"
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, words)
        asked = parsed(CLASSES[f"{method.name}Request"], message)
        request.path = method.path(asked, self._plan.limits.head)
        request.method, request.has_body = method.verb, method.verb == "POST"
        self._asked = method.body(asked) if request.has_body else b""
        request.content_length = len(self._asked) if request.has_body else None

    async def _take_inference(self, message: memoryview) -> None:
        if self._message.is_one_of_many:
            self._id = find_id(message, self._plan.header_limits)
        steps = read_request(message, self._plan.header_limits, self.reserve)
        self._infer = infer = await self._exchange.request_codec.run(steps)
        self._request.path = path_of("/v2{model}/infer", self._plan.limits.head, *infer.names)
        if infer.is_of_sequence and self._message.before is not None:
            await asyncio.wait((self._message.before,))  # two connections to the server would not keep their order

    def _find_coding(self) -> Coding | None:
        if not self._message.is_compressed:
            return None
        try:
            coding = parse_content_encoding(self._stream.head.first.get("grpc-encoding", "identity"))
        except CodecError as error:
            words = str(error).replace("Content-Encoding", "grpc-encoding")
            raise GatewayError(ErrorKind.UNSUPPORTED_ENCODING, words, status=501) from None
        if coding is None:
            raise CodecError("malformed message: it is marked as compressed, but grpc-encoding does not say how")
        return coding

    def framing(self) -> Framing:
        """Where the JSON ends, and the blobs."""
        assert self._infer is not None
        return Framing(len(self._infer.header), blobs=self._infer.blobs)

    async def read(self) -> memoryview:
        """The JSON."""
        return memoryview(self._asked if self._infer is None else self._infer.header)

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
        if self._method is not None and self._kept_bytes > _MAX_ANSWER_BYTES:
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, f"the answer has more than {_MAX_ANSWER_BYTES} bytes of JSON")

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
                message = await self._exchange.response_codec.run(self._answer(headers, buffers))
            else:
                message = [(await Pacer().run(self._method.answer(b"".join(buffers)))).SerializeToString()]
        except CodecError as error:
            raise blamed(error, ErrorKind.MALFORMED_RESPONSE) from error
        if self._message.is_one_of_many:
            message = [_STREAM_ANSWER_TAG, varint(sum(map(len, message))), *message]
        self._exchange.status, self._exchange.rpc_status = status, _OK
        await self._send(headers, message, lines)

    async def error(self, error: GatewayError) -> None:
        """See `Reply.error`; the call's own deadline is the client's, which leaves over HTTP when it has no time."""
        deadline_s = self._request.deadline_s
        if error.kind in _OF_TIME and deadline_s and asyncio.get_running_loop().time() >= deadline_s:
            error = GatewayError(ErrorKind.CLIENT_CLOSED, DEADLINE_WORDS)
        await super().error(error)

    def _cut_off(self) -> None:
        self._stream.close(Code.INTERNAL_ERROR)

    async def _refuse(self, error: GatewayError) -> None:
        """Send *error* as a status."""
        exchange, method = self._exchange, self._method
        exchange.status = error.status
        is_answer = error.kind in (ErrorKind.BACKEND_ERROR, ErrorKind.NO_ROUTE) and error.status in _NOT_READY
        if method is not None and method.flag and is_answer:
            exchange.rpc_status = _OK
            await self._send(error.headers, [method.said(False).SerializeToString()])
            return
        status = status_of(error)
        exchange.rpc_status = status.name
        headers = [*error.headers, proxy_status(error)]
        if self._message.is_one_of_many and self._stream.head.first.get("triton_grpc_error", "").lower() != "true":
            answer = CLASSES["ModelStreamInferResponse"](error_message=exchange.detail, infer_response={"id": self._id})
            await self._send(headers, [answer.SerializeToString()])
            return
        self._stream.finish(await self._begin(headers) + status_fields(status, exchange.detail))
        self.is_complete = True

    def client_left(self) -> None:
        """See `Reply.client_left`."""
        if self._exchange.error is None and not self.is_complete:
            self._exchange.rpc_status = Status.CANCELLED.name
        super().client_left()

    def _answer(self, headers: Pairs, buffers: Sequence[Buffer]) -> Generator[None, None, list[Buffer]]:
        """The steps that make a message of the answer whose JSON and blobs are in *buffers*. Raises `CodecError`."""
        infer = self._infer
        assert infer is not None
        length = next((value for name, value in headers if name.lower() == _HEADER_LENGTH), "")
        blobs = Buffers(buffers)
        header_bytes = int(length) if length.isdecimal() else blobs.n_bytes
        header = b"".join(blobs.take(header_bytes))
        return write_response(header, blobs, is_typed=infer.is_typed, is_final=self._message.is_one_of_many)

    async def _send(self, headers: Pairs, message: list[Buffer], lines: str = "") -> None:
        """Send *message*, and the status OK behind the only one. Raises `ConnectionError` when the client left."""
        stream, n_bytes = self._stream, sum(map(len, message))
        if n_bytes > MAX_MESSAGE_BYTES:
            words = f"the reply has {n_bytes} bytes, a message of gRPC has at most 2^31 - 1"
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, words)
        begun = await self._begin(headers, lines)
        buffers = [b"\0" + n_bytes.to_bytes(PREFIX_BYTES - 1), *message]
        await stream.write(buffers, self._exchange.response_codec, begun)
        if self._message.is_one_of_many:
            stream.connection.flush()
        else:
            stream.finish(_OK_TRAILERS)
        self._exchange.client_response_bytes = n_bytes
        self.is_complete = True

    async def _begin(self, headers: Pairs, lines: str = "") -> bytes:
        """Wait for the turn of this reply; the fields that begin the answer, none if another reply has begun it.

        They have what crosses of *headers* and *lines* as metadata, and what every reply has.
        """
        if self._message.before is not None:
            await asyncio.wait((self._message.before,))
        self.has_begun = True
        if self._stream.is_answered:
            return b""
        said = [f"{name}: {value}" for name, value in headers]
        if lines:
            said += lines.split("\r\n")
        own = [_REQUEST_ID, encoded_string(self._exchange.request_id)]
        if self._plan.timing is not None:
            own.append(encoded([("server-timing", self._plan.timing(self._exchange))]))
        return b"".join([_OK_HEAD, *map(_field, said), *own])


@lru_cache(maxsize=128)
def _field(line: str) -> bytes:
    """The field in a *line* of an answer's head, as HPACK; empty if it does not cross.

    Eight of MLServer's eleven are the same in all of its answers.
    """
    name, _, value = line.partition(":")
    said, value = _named(name.lower()), value.strip()
    return said + encoded_string(value) if said and value.isascii() and value.isprintable() else b""


@lru_cache(maxsize=128)
def _named(name: str) -> bytes:
    """The field with *name* as HPACK, but for its value; empty if it does not cross."""
    return b"\0" + encoded_string(name) if name not in _NO_METADATA and CROSSING.fullmatch(name) else b""
