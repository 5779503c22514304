"""The codec in a server's own process: a middleware for ASGI applications that speak V2 in JSON.

Inferences with binary tensors become JSON piece by piece while the application reads its body, and its JSON becomes the
binary reply while it is sent. All other requests pass untouched, but that `GET /v2` says the extension. Not here: any
server, and what a gateway has beside its codec, such as limits for all requests together.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec

from gateway.codec import (
    HEADER_LENGTH,
    BytesPolicy,
    Framing,
    HalfPrecision,
    HeaderLimits,
    InferAnswer,
    InferRequest,
    Inflater,
    NonFinite,
    Reply,
    TensorPolicy,
    error_body,
    half_precision_outputs,
    parse_content_encoding,
    parse_framing,
    release,
    with_extension,
)
from gateway.errors import CodecError, ErrorKind, GatewayError, TooLargeError, blamed
from gateway.headers import Headers
from gateway.pacing import LOAD, Pacer
from gateway.policy.crossing import transcoded_to_client

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Piece = bytes | bytearray | memoryview

SENT_BYTES = 256 * 1024
"""The size of the pieces in which blobs are sent: ASGI wants bytes, which are copies."""

ERROR_BYTES = 1024 * 1024
"""How much of an application's error, and of its metadata, is read."""

_INFER = re.compile(r".*/v2/models/(?P<model>[^/]+)(?:/versions/[^/]+)?/infer")
_SERVER = re.compile(r".*/v2/?")
# They describe the client's body, which the application does not get.
_OF_THE_BODY = frozenset(
    (b"content-encoding", b"content-length", b"content-type", b"transfer-encoding", b"content-md5",
     b"digest", b"content-digest", b"repr-digest", HEADER_LENGTH.lower().encode())
)  # fmt: skip
_ANSWER_IN_PIECES = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")


class ClientLeftError(Exception):
    """The client is gone before its body was."""


class BinaryTensors:
    """Middleware: `BinaryTensors(app)` is *app* that reads and writes binary tensors as well."""

    def __init__(
        self,
        app: Application,
        *,
        nonfinite: str = "reject",
        bytes: str = "utf8",  # noqa: A002  as the key of the configuration
        half_precision: str = "native",
        request_body: int = 1024**3,
        header: int = 128 * 1024,
        tensors: int = 1024,
        recover_header_length: bool = True,
    ) -> None:
        """The options are the keys of a backend and of `limits` in the gateway's configuration; sizes are bytes.

        Raises `ValueError` for a value that is none of a key's.
        """
        self.app = app
        self._policy = TensorPolicy(NonFinite(nonfinite), BytesPolicy(bytes), HalfPrecision(half_precision))
        self._limits = HeaderLimits(header, tensors)
        self._max_bytes = request_body
        self._recover = recover_header_length

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of ASGI 3."""
        path = raw_path(scope) if scope["type"] == "http" else ""
        match = _INFER.fullmatch(path) if path else None
        if match is not None and scope["method"] == "POST":
            LOAD.requests += 1
            try:
                await self._infer(scope, receive, send, match["model"])
            finally:
                LOAD.requests -= 1
        elif path and scope["method"] == "GET" and _SERVER.fullmatch(path):
            status, headers, text = await self._answer_to(scope)
            await _send_whole(send, status, headers, with_extension(text) if status == HTTPStatus.OK else text)
        else:
            await self.app(scope, receive, send)

    async def _infer(self, scope: Scope, receive: Receive, send: Send, model: str) -> None:
        pacer = Pacer()
        try:
            headers = _headers(scope["headers"])
            try:
                framing = parse_framing(headers.all(HEADER_LENGTH.lower()), headers.get("content-type"))
                body = await self._read(receive, headers)
                request = await self._parsed(scope, pacer, body, framing)
            except CodecError as error:
                raise blamed(error, ErrorKind.MALFORMED_REQUEST) from error
            if request is None:
                asked = _for_application(scope, len(body))
                await self.app(asked, _replayed(iter((bytes(body),)), receive), send)
                return
            await self._transcode(scope, receive, send, (request, model, framing, body), pacer)
        except ClientLeftError:
            return
        except GatewayError as error:
            await _send_error(send, error)

    async def _read(self, receive: Receive, headers: Headers) -> memoryview:
        """The client's body, inflated. Raises `CodecError` and `ClientLeftError`."""
        try:
            coding = parse_content_encoding(headers.joined("content-encoding"))
        except CodecError as error:
            raise GatewayError(ErrorKind.UNSUPPORTED_ENCODING, str(error)) from error
        inflater = Inflater(coding, self._max_bytes) if coding is not None else None
        announced = headers.get("content-length")
        if announced.isdecimal() and int(announced) > self._max_bytes and inflater is None:
            raise TooLargeError(f"the body has {announced} bytes, and `request_body` allows {self._max_bytes}")
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            chunk = message.get("body", b"")
            for piece in inflater.feed(chunk) if inflater is not None else (chunk,):
                body += piece
            if len(body) > self._max_bytes:
                raise TooLargeError(f"the body is larger than {self._max_bytes} bytes, which `request_body` allows")
            if not message.get("more_body", False):
                if inflater is not None:
                    inflater.finish()
                return memoryview(body)

    async def _parsed(self, scope: Scope, pacer: Pacer, body: memoryview, framing: Framing) -> InferRequest | None:
        if framing.header_length == 0:
            metadata = await self._metadata(scope)
            return await pacer.run(InferRequest.parse_raw(body, metadata, self._policy, self._limits))
        steps = InferRequest.parse(body, framing.header_length, self._policy, self._limits, recover=self._recover)
        return await pacer.run(steps)

    async def _metadata(self, scope: Scope) -> bytes:
        """What the application says of the model that *scope* is about. Raises `GatewayError` if it says nothing."""
        status, _, text = await self._answer_to({**scope, "method": "GET", **_of_the_model(scope), "headers": []})
        if status != HTTPStatus.OK:
            words = f"the model's metadata is needed, and the server answers {status} to the request for it"
            raise GatewayError(ErrorKind.BACKEND_ERROR, words, status=status)
        return text

    async def _transcode(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        asked: tuple[InferRequest, str, Framing, memoryview],
        pacer: Pacer,
    ) -> None:
        """Let the application answer a request in JSON, and send its answer as the client wants it."""
        request, model, framing, body = asked
        declared: Mapping[str, str] = {}
        if request.promotes:
            declared = half_precision_outputs(await self._metadata(scope), self._limits)
        decoder = InferAnswer(
            request.selection,
            model=model,
            is_renamed=False,
            request_id=request.id,
            sent_id=request.sent_id,
            max_bytes=self._max_bytes,
            limits=self._limits,
            declared=declared,
        )
        answer = _Answer(send, decoder, framing, pacer)
        text = request.small_json
        pieces = iter((text,)) if text is not None else _read_once(request, body)
        n_bytes = None if text is None else len(text)
        try:
            asked_in_json = _for_application(_unaccepting(scope), n_bytes)
            await self.app(asked_in_json, _replayed(pieces, receive, pacer), answer.take)
        except Exception:  # which is the server's to log
            if answer.failure is not None:
                await _send_error(send, answer.failure)
            raise
        answer.check_ended()

    async def _answer_to(self, scope: Scope) -> tuple[int, list[tuple[str, str]], bytes]:
        """Status, headers and body of the application's answer to a request without a body."""
        status, headers, text = HTTPStatus.INTERNAL_SERVER_ERROR.value, [], bytearray()

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], _pairs(message.get("headers", ()))
            elif len(text) <= ERROR_BYTES:
                text.extend(message.get("body", b""))

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        await self.app({**_unaccepting(scope), "extensions": {}}, receive, send)
        kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
        return status, kept, bytes(text)


class _Answer:
    """The application's answer to one inference, while it comes."""

    def __init__(self, send: Send, decoder: InferAnswer, framing: Framing, pacer: Pacer) -> None:
        self._send = send
        self._decoder = decoder
        self._framing = framing
        self._pacer = pacer
        self._status = 0
        self._headers = Headers(())
        self._error = bytearray()
        self._is_ended = False
        self.failure: GatewayError | None = None
        """Why the client gets an error. It is not raised in the application, which could take it for its own."""

    async def take(self, message: Message) -> None:
        """The application's `send`."""
        if self._is_ended:
            return
        try:
            await self._take(message)
        except CodecError as error:
            self.failure = blamed(error, ErrorKind.MALFORMED_RESPONSE)
        except GatewayError as error:
            self.failure = error
        self._is_ended = self._is_ended or self.failure is not None

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], _headers(message.get("headers", ()))
            coding = self._headers.get("content-encoding")
            if coding and coding.lower() != "identity":
                raise GatewayError(ErrorKind.MALFORMED_RESPONSE, f"the answer has Content-Encoding {coding[:64]!r}")
        elif message["type"] == "http.response.body":
            chunk, is_last = bytes(message.get("body", b"")), not message.get("more_body", False)
            if self._status // 100 != 2:
                self._error += chunk[: ERROR_BYTES - len(self._error)]
                if is_last:
                    raise self._refusal()
                return
            if not is_last:
                await self._pacer.run(self._decoder.feed(chunk))
                return
            reply = await self._pacer.run(self._decoder.finish(chunk))
            self._is_ended = True
            await self._reply(reply)

    def check_ended(self) -> None:
        """Raise `GatewayError` if the application's answer is none, or an error."""
        if self.failure is not None:
            raise self.failure
        if not self._is_ended:
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, "the application ended before its answer did")

    def _refusal(self) -> GatewayError:
        """An error of the application in the shape of the protocol (protocol 4.9)."""
        status = self._status
        if status < HTTPStatus.BAD_REQUEST:
            return GatewayError(ErrorKind.MALFORMED_RESPONSE, f"the application answered {status} to an inference")
        reason = next((each.phrase for each in HTTPStatus if each == status), "")
        body, words = error_body(bytes(self._error), status, reason)
        headers = transcoded_to_client(self._headers)
        return GatewayError(ErrorKind.BACKEND_ERROR, words, headers=headers, status=status, body=body)

    async def _reply(self, reply: Reply) -> None:
        headers = transcoded_to_client(self._headers)
        if reply.is_binary:
            headers.append(("Content-Type", self._framing.content_type(reply.header_bytes)))
            headers.append((HEADER_LENGTH, str(reply.header_bytes)))
        else:
            headers.append(("Content-Type", "application/json"))
        headers.append(("Content-Length", str(reply.n_bytes)))
        await self._send({"type": "http.response.start", "status": 200, "headers": _encoded(headers)})
        buffers: list[bytes | memoryview] = [*reply.header, *reply.blobs]
        for buffer in buffers:
            view = memoryview(buffer)
            for start in range(0, len(view), SENT_BYTES):
                piece = bytes(view[start : start + SENT_BYTES])
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def raw_path(scope: Scope) -> str:
    """The path of *scope* as it was sent, percent-encoded and without the query."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(scope["path"])
    return path.partition("?")[0]


def _of_the_model(scope: Scope) -> dict[str, Any]:
    """The paths of the metadata of the model whose inference *scope* is."""
    return {
        "path": scope["path"].removesuffix("/infer"),
        "raw_path": raw_path(scope).removesuffix("/infer").encode("latin-1"),
        "query_string": b"",
    }


def _unaccepting(scope: Scope) -> Scope:
    """*scope* of a request whose answer must not be compressed, because it is read here."""
    return {**scope, "headers": [field for field in scope["headers"] if field[0].lower() != b"accept-encoding"]}


def _for_application(scope: Scope, n_bytes: int | None) -> Scope:
    """*scope* of a request whose body is *n_bytes* of JSON; None: nobody knows how many."""
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _OF_THE_BODY]
    headers.append((b"content-type", b"application/json"))
    headers.append((b"transfer-encoding", b"chunked") if n_bytes is None else (b"content-length", b"%d" % n_bytes))
    extensions = {name: each for name, each in (scope.get("extensions") or {}).items() if name not in _ANSWER_IN_PIECES}
    return {**scope, "headers": headers, "extensions": extensions}


def _read_once(request: InferRequest, body: memoryview) -> Iterator[Piece]:
    """The JSON of *request*, whose *body* is let go when the application has read all of it."""
    yield from request.json_pieces()
    release((*request.views, body))


def _replayed(
    pieces: Iterator[bytes | bytearray | memoryview], receive: Receive, pacer: Pacer | None = None
) -> Receive:
    """A `receive` that gives *pieces* as the body, and afterwards what *receive* says: that the client has left."""
    pacer = pacer or Pacer()
    is_over = False

    async def read() -> Message:
        nonlocal is_over
        if is_over:
            return await receive()
        piece = await pacer.next(pieces)
        is_over = piece is None
        return {"type": "http.request", "body": b"" if piece is None else bytes(piece), "more_body": not is_over}

    return read


async def _send_error(send: Send, error: GatewayError) -> None:
    text = error.body or msgspec.json.encode({"error": error.message})
    kept = [(name, value) for name, value in error.headers if name.lower() != "content-type"]
    await _send_whole(send, error.status, [*kept, ("Content-Type", "application/json")], text)


async def _send_whole(send: Send, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
    fields = _encoded([*headers, ("Content-Length", str(len(body)))])
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _headers(raw: Any) -> Headers:
    return Headers(_pairs(raw))


def _pairs(raw: Any) -> list[tuple[str, str]]:
    return [(bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in raw]


def _encoded(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
