"""One stream from its fields to its end: which call it is, and the request that it becomes.

Not here: frames (`connection`), and what a request gets (`gateway.serving`, behind the handler of the server).
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gateway.client.grpc.body import GrpcBody
from gateway.client.grpc.calls import CALLS, HEALTH, MODEL_INFER, MODEL_STREAM_INFER, SERVICE, Call
from gateway.client.grpc.reply import CONTENT_TYPE, GrpcReply, StreamedReply, status_fields
from gateway.client.grpc.statuses import Status, status_of
from gateway.client.grpc.stream import DEADLINE_WORDS, Message, Stream
from gateway.client.request import ClientRequest, find_encoding_fault
from gateway.codec import HEADER_LENGTH
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Exchange
from gateway.headers import Headers
from gateway.pacing import Pacer
from gateway.plan import Plan
from gateway.policy.admission import Admission

if TYPE_CHECKING:
    from gateway.client.grpc.connection import GrpcConnection

MAX_FIELDS = 128
"""The most fields of a call, as of a request of HTTP/1.1."""

STREAM_CALLS = 16
"""How many inferences of one `ModelStreamInfer` are under way at once; the next is read when one of them has ended."""

_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])", re.ASCII)
_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_DROPPED = frozenset(("te", "user-agent", "accept-encoding", "expect", HEADER_LENGTH.lower()))
_DROPPED_BEGINNINGS = (":", "grpc-", "content-")

_TOO_MUCH = (Status.RESOURCE_EXHAUSTED, "a message was refused before it was read, and is too long to be skipped")

log = logging.getLogger("gateway")


class HasAdmission(Protocol):
    """What all requests of a process share."""

    admission: Admission


class Head(NamedTuple):
    """The fields of a call."""

    method: str
    path: str
    authority: str
    headers: Headers
    """What may cross to a backend, and what the gateway reads."""
    content_type: str
    encoding: str
    """Of compressed messages."""
    deadline_s: float | None
    """When the client gives up, by the loop's clock."""
    ends_with_errors: bool
    """Whether an error ends a stream of inferences with a status."""
    fault: GatewayError | None
    """Why the call is refused whatever it asks for."""


def read_head(fields: Iterable[tuple[bytes, bytes]], now_s: float) -> Head:
    """The head that *fields* are, which came at *now_s* of the loop's clock."""
    first: dict[str, str] = {}
    crossing: list[tuple[str, str]] = []
    count = 0
    for name_bytes, value_bytes in fields:
        count += 1
        name = name_bytes.decode("ascii", "replace")
        value = value_bytes.decode("utf-8", "surrogateescape")
        first.setdefault(name, value)
        if name not in _DROPPED and not name.startswith(_DROPPED_BEGINNINGS) and not name.endswith("-bin"):
            crossing.append((name, value))
    headers = Headers(crossing)
    fault = find_encoding_fault(first.get(":path", ""), headers)
    if count > MAX_FIELDS:
        fault = GatewayError(ErrorKind.MALFORMED_REQUEST, f"more than {MAX_FIELDS} fields", status=431)
    deadline_s = None
    if (timeout := first.get("grpc-timeout")) is not None:
        match = _TIMEOUT.fullmatch(timeout)
        if match is None:
            words = f"grpc-timeout: expected digits and a unit, got {timeout[:20]!r}"
            fault = GatewayError(ErrorKind.MALFORMED_REQUEST, words)
        else:
            deadline_s = now_s + int(match[1]) * _SECONDS[match[2]]
    return Head(
        first.get(":method", ""),
        first.get(":path", "").encode(errors="backslashreplace").decode(),
        first.get(":authority", first.get("host", "")),
        headers,
        first.get("content-type", ""),
        first.get("grpc-encoding", "identity"),
        deadline_s,
        first.get("triton_grpc_error", "").lower() == "true",
        fault,
    )


async def serve(connection: "GrpcConnection", stream: Stream, fields: Iterable[tuple[bytes, bytes]]) -> None:
    """Serve the call that *stream* is, whose head has these *fields*. Ends with the stream."""
    loop = connection.owner.loop
    head = read_head(fields, loop.time())
    timer = None
    if head.deadline_s is not None:  # whatever is still to come of the client's messages comes too late then
        timer = loop.call_at(head.deadline_s, stream.fail, GatewayError(ErrorKind.TIMEOUT, DEADLINE_WORDS))
    try:
        if not head.content_type.startswith("application/grpc") or head.method != "POST":
            stream.finish([(":status", "415"), ("content-type", "text/plain")])
        elif head.path == MODEL_INFER:
            await _serve_one(connection, stream, head, None)
        elif head.path == MODEL_STREAM_INFER:
            await _serve_many(connection, stream, head)
        elif (call := CALLS.get(head.path)) is not None:
            await _serve_one(connection, stream, head, call)
        else:
            refusal = GatewayError(ErrorKind.NO_ROUTE, _unknown(head.path), status=501)
            await _serve_one(connection, stream, head._replace(fault=head.fault or refusal), None)
    except (ConnectionError, asyncio.CancelledError):
        pass  # the client left; what was served has recorded it
    except Exception:
        log.exception("a call of client %s failed", connection.peer.address)
        connection.reset(stream)
    finally:
        if timer is not None:
            timer.cancel()


def _unknown(path: str) -> str:
    """What is said of a call that the gateway does not have."""
    service, _, name = path.removeprefix("/").rpartition("/")
    if service in (SERVICE, HEALTH):
        return f"{name[:100]}: the gateway has no such call: shared memory, traces and log settings are the server's"
    return f"there is no service {service[:100]!r} here, only {SERVICE} and {HEALTH}"


async def _serve_one(connection: "GrpcConnection", stream: Stream, head: Head, call: Call | None) -> None:
    """Serve a call of one message; *call* is None for an inference."""
    message = Message(stream)

    def front(request: ClientRequest, exchange: Exchange, plan: Plan, body: GrpcBody) -> GrpcReply:
        return GrpcReply(stream, exchange, body, call=call, deadline_s=head.deadline_s, plan=plan)

    await connection.owner.handler(_request(connection, head, message, call, front))


async def _serve_many(connection: "GrpcConnection", stream: Stream, head: Head) -> None:
    """Serve inferences as they come, several at once; their replies go out in the order of the requests."""
    loop = connection.owner.loop
    room = asyncio.Semaphore(STREAM_CALLS)
    tasks: set[asyncio.Task[None]] = set()
    before: asyncio.Future[None] | None = None
    try:
        while not stream.is_closed:
            await room.acquire()
            message = Message(stream, is_one_of_many=True)
            if not await message.begin() or stream.is_closed:
                break
            done = loop.create_future()
            task = loop.create_task(_serve_next(connection, head, message, before, done))
            task.add_done_callback(lambda _: room.release())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            before = done
            # the next message is behind this one, also where this one is refused before it is read
            await asyncio.wait((task, message.wait_until_read()), return_when=asyncio.FIRST_COMPLETED)
            if not message.is_read and not await message.skip():
                break
        while tasks and not stream.is_closed:  # an error may end the stream before all are answered
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ending = (Status.OK, "") if stream.is_ended else _TOO_MUCH
    except GatewayError as error:  # between two messages
        ending = status_of(error.kind, error.status), error.message
    finally:
        for task in tasks:
            task.cancel()
    _finish(stream, *ending)


def _finish(stream: Stream, status: Status, words: str) -> None:
    """End *stream* with *status*, whether or not messages have gone out. Raises `ConnectionError`."""
    fields = status_fields(status, words)
    if not stream.is_closed:
        stream.finish(fields if stream.is_answered else [(":status", "200"), CONTENT_TYPE, *fields])


async def _serve_next(
    connection: "GrpcConnection",
    head: Head,
    message: Message,
    before: "asyncio.Future[None] | None",
    done: "asyncio.Future[None]",
) -> None:
    """Serve one inference of a stream, whose reply goes out behind that of *before*; *done* says that it has."""

    def front(request: ClientRequest, exchange: Exchange, plan: Plan, body: GrpcBody) -> GrpcReply:
        reply = StreamedReply(message.stream, exchange, body, call=None, deadline_s=head.deadline_s, plan=plan)
        reply.before, reply.ends_with_errors = before, head.ends_with_errors
        return reply

    try:
        await connection.owner.handler(_request(connection, head, message, None, front))
    except ConnectionError:
        pass  # the client left, which its handler has recorded
    finally:
        if not done.done():
            done.set_result(None)


def _request(
    connection: "GrpcConnection",
    head: Head,
    message: Message,
    call: Call | None,
    reply: Callable[[ClientRequest, Exchange, Plan, GrpcBody], GrpcReply],
) -> ClientRequest:
    """The request that a message of the call with *head* becomes, and whose reply is made by *reply*."""

    def front(
        request: ClientRequest, exchange: Exchange, shared: HasAdmission, plan: Plan, pacer: Pacer
    ) -> tuple[GrpcBody, GrpcReply]:
        body = GrpcBody(request, exchange, shared.admission, plan, pacer, call=call, encoding=head.encoding)
        request.begin = body.find_target
        return body, reply(request, exchange, plan, body)

    peer = connection.peer
    return ClientRequest(
        "POST",
        head.path,
        head.headers,
        head.authority,
        peer.address,
        peer.scheme,
        (2, 0),
        None,
        True,
        message,
        head.fault,
        protocol="grpc",
        front=front,
        deadline_s=head.deadline_s,
    )
