"""The codec in a server's own process: a middleware for ASGI applications that speak V2 in JSON.

A binary inference becomes JSON piece by piece while the application reads its body, and the application's JSON becomes
the binary reply while it is sent. All other requests pass untouched, except that the answer to `GET /v2` names the
extension. Not here: a server, and a gateway's other duties, such as limits for all requests together.
"""

import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, MutableMapping, Set
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from gateway.codec.compression import Inflater, parse_content_encoding
from gateway.codec.inference import BytesPolicy, HalfPrecision, HeaderLimits, NonFinite, TensorPolicy, release
from gateway.codec.v2.answer import InferAnswer
from gateway.codec.v2.error_bodies import error_body
from gateway.codec.v2.framing import HEADER_LENGTH, Framing, parse_framing
from gateway.codec.v2.raw import half_precision_outputs, read_raw
from gateway.codec.v2.reply import Reply
from gateway.codec.v2.request import InferRequest
from gateway.codec.v2.request_reading import read_request
from gateway.codec.v2.server_metadata import with_extension
from gateway.errors import CodecError, ErrorKind, GatewayError, TooLargeError, blamed
from gateway.headers import Headers
from gateway.pacing import Pacer
from gateway.policy.crossing import OF_ONE_ANSWER, OF_THE_BODY, changed_to_client, transcoded_to_client

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
_OF_THE_BODY = frozenset(name.encode() for name in OF_THE_BODY | {"content-length", "transfer-encoding"})
_OF_ONE_ANSWER = frozenset(name.encode() for name in OF_ONE_ANSWER)
_ANSWER_IN_PIECES = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")


class BinaryTensors:
    """Middleware: `BinaryTensors(app)` reads and writes binary tensors on behalf of *app*."""

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

        Raises `ValueError` for a value that the key does not allow.
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
            await self._infer(scope, receive, send, unquote(match["model"]))
        elif path and scope["method"] == "GET" and _is_servers(scope, path):
            await self._describe(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _describe(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer `GET /v2`, and add the extension to its answer; other answers pass unchanged."""
        start: Message | None = None
        text = bytearray()

        async def take(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _may_be_metadata(message):
                start = message
            elif start is None or message["type"] != "http.response.body":
                await send(message)
            else:
                text.extend(message.get("body", b""))
                is_short = len(text) <= ERROR_BYTES
                if is_short and message.get("more_body", False):
                    return
                body = with_extension(bytes(text)) if is_short else bytes(text)
                if body != text:
                    crossing = changed_to_client(_headers(start.get("headers", ())))
                    start = {**start, "headers": _encoded([*crossing, ("Content-Length", str(len(body)))])}
                await send(start)
                await send({**message, "body": body})
                start = None

        await self.app(_read_here(scope), receive, take)

    async def _infer(self, scope: Scope, receive: Receive, send: Send, model: str) -> None:
        pacer = Pacer()
        try:
            headers = _headers(scope["headers"])
            try:
                framing = parse_framing(headers.all(HEADER_LENGTH.lower()), headers.get("content-type"))
                body = await self._read(receive, headers, pacer)
                if body is None:
                    return
                if framing.header_length == 0:
                    reading = read_raw(body, await self._metadata(scope, receive), self._limits)
                else:
                    length = framing.header_length
                    reading = read_request(body, length, self._limits, recover=self._recover, unjudged=())
                request = await pacer.run(InferRequest.parse(reading, self._policy))
            except CodecError as error:
                raise blamed(error, ErrorKind.MALFORMED_REQUEST) from error
            if request is None:
                replayed = _replayed(iter((bytes(body),)), receive, pacer)
                await self.app(_for_application(scope, len(body)), replayed, send)
                return
            answer = _Answer(send, await self._decoder(scope, receive, request, model), framing, pacer)
            text = request.small_json
            pieces = iter((text,)) if text is not None else _read_once(request, body)
            asked = _for_application(_read_here(scope), None if text is None else len(text))
            await self.app(asked, _replayed(pieces, receive, pacer), answer.take)
            if not answer.is_ended:
                raise GatewayError(ErrorKind.MALFORMED_RESPONSE, "the application ended before its answer did")
        except GatewayError as error:
            await _send_error(send, error)

    async def _read(self, receive: Receive, headers: Headers, pacer: Pacer) -> memoryview | None:
        """The client's body, inflated; None if the client left before its end. Raises `CodecError`."""
        try:
            coding = parse_content_encoding(headers.joined("content-encoding"))
        except CodecError as error:
            accepted = [("Accept-Encoding", "gzip, deflate")]
            raise GatewayError(ErrorKind.UNSUPPORTED_ENCODING, str(error), headers=accepted) from error
        inflater = Inflater(coding, self._max_bytes) if coding is not None else None
        announced = headers.get("content-length")
        n_announced = int(announced) if announced.isdecimal() and inflater is None else 0
        body, is_whole = bytearray(), False
        while max(n_announced, len(body)) <= self._max_bytes:
            if is_whole:
                if inflater is not None:
                    inflater.finish()
                return memoryview(body)
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            pieces = iter((chunk,)) if inflater is None else inflater.feed(chunk)
            while (piece := await pacer.next(pieces)) is not None:
                body += piece
            is_whole = not message.get("more_body", False)
        raise TooLargeError(f"the body is larger than {self._max_bytes} bytes, which `request_body` allows")

    async def _metadata(self, scope: Scope, receive: Receive) -> bytes:
        """The application's metadata of the model in *scope*. Raises `GatewayError` if it does not answer with 200."""
        status, text = HTTPStatus.INTERNAL_SERVER_ERROR.value, bytearray()

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif len(text) <= ERROR_BYTES:
                text.extend(message.get("body", b""))

        await self.app(_for_metadata(scope), _replayed(iter(()), receive, Pacer()), send)
        if status != HTTPStatus.OK:
            words = f"the model's metadata is needed, and the server answers {status} to the request for it"
            raise GatewayError(ErrorKind.BACKEND_ERROR, words, status=status)
        return bytes(text)

    async def _decoder(self, scope: Scope, receive: Receive, request: InferRequest, model: str) -> InferAnswer:
        """What reads the application's answer to *request*, which is for *model*. Raises `GatewayError`."""
        declared: Mapping[str, str] = {}
        if request.promotes:
            declared = half_precision_outputs(await self._metadata(scope, receive), self._limits)
        return InferAnswer(
            request.selection,
            model=model,
            is_renamed=False,
            request_id=request.id,
            sent_id=request.sent_id,
            max_bytes=self._max_bytes,
            limits=self._limits,
            declared=declared,
        )


class _Answer:
    """The application's answer to one inference, while it arrives."""

    def __init__(self, send: Send, decoder: InferAnswer, framing: Framing, pacer: Pacer) -> None:
        self._send = send
        self._decoder = decoder
        self._framing = framing
        self._pacer = pacer
        self._status = 0
        self._headers = Headers(())
        self._error = bytearray()
        self.is_ended = False

    async def take(self, message: Message) -> None:
        """The application's `send`. Errors go to the client: raised here they would seem the application's own."""
        if self.is_ended:
            return
        try:
            await self._take(message)
        except (CodecError, GatewayError) as error:
            self.is_ended = True  # the client need not wait for the application to end
            foreign = blamed(error, ErrorKind.MALFORMED_RESPONSE) if isinstance(error, CodecError) else error
            await _send_error(self._send, foreign)

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
            self.is_ended = True
            await self._reply(reply)

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
        kind = self._framing.content_type(reply.header_bytes) if reply.outputs else "application/json"
        headers += [("Content-Type", kind), ("Content-Length", str(reply.n_bytes))]
        if reply.outputs:
            headers.append((HEADER_LENGTH, str(reply.header_bytes)))
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


def _is_servers(scope: Scope, path: str) -> bool:
    """Whether *path* is `/v2`, maybe below a mount: servers differ in whether the path of *scope* begins with that."""
    return not {path, path.removeprefix(quote(scope.get("root_path", "")))}.isdisjoint(("/v2", "/v2/"))


def _may_be_metadata(start: Message) -> bool:
    content_type = _headers(start.get("headers", ())).get("content-type", "json")
    return bool(start["status"] == HTTPStatus.OK and "json" in content_type.lower())


def _for_metadata(scope: Scope) -> Scope:
    """The scope of a request for metadata: of the model whose inference *scope* asks for."""
    asked = _read_here(scope)
    return {
        **asked,
        "method": "GET",
        "path": scope["path"].removesuffix("/infer"),
        "raw_path": raw_path(scope).removesuffix("/infer").encode("latin-1"),
        "query_string": b"",
        "headers": _without(asked["headers"], _OF_THE_BODY | _OF_ONE_ANSWER),
    }


def _read_here(scope: Scope) -> Scope:
    """*scope* changed so that the answer can be read here: neither compressed nor sent from a file."""
    extensions = {name: each for name, each in (scope.get("extensions") or {}).items() if name not in _ANSWER_IN_PIECES}
    return {**scope, "headers": _without(scope["headers"], {b"accept-encoding"}), "extensions": extensions}


def _for_application(scope: Scope, n_bytes: int | None) -> Scope:
    """*scope* for a body of *n_bytes* of JSON; None if the length is not known yet."""
    headers = _without(scope["headers"], _OF_THE_BODY)
    headers.append((b"content-type", b"application/json"))
    headers.append((b"transfer-encoding", b"chunked") if n_bytes is None else (b"content-length", b"%d" % n_bytes))
    return {**scope, "headers": headers}


def _without(headers: Any, dropped: Set[bytes]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if bytes(name).lower() not in dropped]


def _read_once(request: InferRequest, body: memoryview) -> Iterator[Piece]:
    """The JSON of *request*; *body* and the request's views are released when the application has read everything."""
    yield from request.json_pieces()
    release((*request.views, body))


def _replayed(pieces: Iterator[Piece], receive: Receive, pacer: Pacer) -> Receive:
    """A `receive` that gives *pieces* as the body, and then the messages of *receive*: that the client has left."""
    made: list[Piece | None] = []  # pieces not given yet: the application may cancel a `receive` while it waits
    is_over = False

    def make() -> Generator[None, None, None]:
        made.append(next(pieces, None))
        yield

    async def read() -> Message:
        nonlocal is_over
        if is_over:
            return await receive()
        while not made:
            await pacer.run(make())
        piece = made.pop()
        is_over = piece is None
        return {"type": "http.request", "body": b"" if piece is None else bytes(piece), "more_body": not is_over}

    return read


async def _send_error(send: Send, error: GatewayError) -> None:
    text = error.body or msgspec.json.encode({"error": error.message})
    headers = [(name, value) for name, value in error.headers if name.lower() != "content-type"]
    headers += [("Content-Type", "application/json"), ("Content-Length", str(len(text)))]
    await send({"type": "http.response.start", "status": error.status, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": text, "more_body": False})


def _headers(raw: Any) -> Headers:
    return Headers([(bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in raw])


def _encoded(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
