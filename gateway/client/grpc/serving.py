"""One stream from its head to its end: which call it is, and the request that it becomes.

Not here: frames (`connection`), and what a request gets (`gateway.serving`, behind the handler of the server).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gateway.client.grpc.body import GrpcBody
from gateway.client.grpc.calls import CALLS, HEALTH, MODEL_INFER, MODEL_STREAM_INFER, SERVICE, Call
from gateway.client.grpc.frames import Code
from gateway.client.grpc.heads import Head, encoded
from gateway.client.grpc.reply import OK_HEAD, GrpcReply, StreamedReply, status_fields
from gateway.client.grpc.statuses import Status, status_of
from gateway.client.grpc.stream import DEADLINE_WORDS, Message, Stream
from gateway.client.request import ClientRequest
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Exchange
from gateway.pacing import Pacer
from gateway.plan import Plan
from gateway.policy.admission import Admission

if TYPE_CHECKING:
    from gateway.client.grpc.connection import GrpcConnection

STREAM_CALLS = 16
"""How many inferences of one `ModelStreamInfer` are under way at once; the next is read when one of them has ended."""

_TOO_MUCH = (Status.RESOURCE_EXHAUSTED, "a message was refused before it was read, and is too long to be skipped")

_NO_GRPC = encoded([(":status", "415"), ("content-type", "text/plain")])

log = logging.getLogger("gateway")


class HasAdmission(Protocol):
    """What all requests of a process share."""

    admission: Admission


async def serve(connection: "GrpcConnection", stream: Stream, head: Head) -> None:
    """Serve the call that *stream* is. Ends with the stream."""
    call = _Call(connection, stream, head)
    timer = None
    if call.deadline_s is not None:  # whatever is still to come of the client's messages comes too late then
        deadline = GatewayError(ErrorKind.TIMEOUT, DEADLINE_WORDS)
        timer = connection.owner.loop.call_at(call.deadline_s, stream.break_off, deadline)
    try:
        await call.serve()
    except (ConnectionError, asyncio.CancelledError):
        pass  # the client left; what was served has recorded it
    except Exception:
        log.exception("a call of client %s failed", connection.peer.address)
        stream.reset(Code.INTERNAL_ERROR)
    finally:
        if timer is not None:
            timer.cancel()


class _Call:
    """A stream while it is served."""

    def __init__(self, connection: "GrpcConnection", stream: Stream, head: Head) -> None:
        self._connection = connection
        self._stream = stream
        self._head = head
        self.deadline_s = None if head.timeout_s is None else connection.owner.loop.time() + head.timeout_s
        """When the client gives up, by the loop's clock."""

    async def serve(self) -> None:
        """Serve what the head asks for. Raises `ConnectionError` when the client left."""
        head = self._head
        if not head.content_type.startswith("application/grpc") or head.method != "POST":
            self._stream.finish(_NO_GRPC)
        elif head.path == MODEL_INFER:
            await self._serve_one(None, head.fault)
        elif head.path == MODEL_STREAM_INFER:
            await self._serve_many()
        elif (call := CALLS.get(head.path)) is not None:
            await self._serve_one(call, head.fault)
        else:
            refusal = GatewayError(ErrorKind.NO_ROUTE, _unknown(head.path), status=501)
            await self._serve_one(None, head.fault or refusal)

    async def _serve_one(self, call: Call | None, fault: GatewayError | None) -> None:
        """Serve a call of one message; *call* is None for an inference."""
        reply = partial(GrpcReply, self._stream, call=call)
        message = Message(self._stream, content_length=self._head.content_length)
        await self._connection.owner.handler(self._request(message, call, fault, None, reply))

    async def _serve_many(self) -> None:
        """Serve inferences as they come, several at once; their replies go out in the order of the requests."""
        loop, stream = self._connection.owner.loop, self._stream
        room = asyncio.Semaphore(STREAM_CALLS)
        tasks: set[asyncio.Task[None]] = set()
        before: asyncio.Task[None] | None = None
        try:
            while not stream.is_closed:
                await room.acquire()
                message = Message(stream, is_one_of_many=True)
                if not await message.begin() or stream.is_closed:
                    break
                before = task = loop.create_task(self._serve_next(message, before))
                task.add_done_callback(lambda _: room.release())
                tasks.add(task)
                task.add_done_callback(tasks.discard)
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
        if not stream.is_closed:
            fields = status_fields(*ending)
            stream.finish(fields if stream.is_answered else OK_HEAD + fields)

    async def _serve_next(self, message: Message, before: "asyncio.Task[None] | None") -> None:
        """Serve one inference of a stream, whose reply goes out when that of *before* has."""
        head = self._head
        reply = partial(StreamedReply, self._stream, before=before, ends_with_errors=head.ends_with_errors)
        with suppress(ConnectionError):  # the client left, which its handler has recorded
            await self._connection.owner.handler(self._request(message, None, head.fault, before, reply))

    def _request(
        self,
        message: Message,
        call: Call | None,
        fault: GatewayError | None,
        before: asyncio.Task[None] | None,
        reply: Callable[[Exchange, GrpcBody, Plan, Pacer], GrpcReply],
    ) -> ClientRequest:
        """The request that *message* becomes, and whose reply is made by *reply*; *before* as `GrpcBody` has it."""
        head, peer = self._head, self._connection.peer

        def front(
            request: ClientRequest, exchange: Exchange, shared: HasAdmission, plan: Plan, pacer: Pacer
        ) -> tuple[GrpcBody, GrpcReply]:
            body = GrpcBody(
                request, exchange, shared.admission, plan, pacer, call=call, encoding=head.encoding, before=before
            )
            request.begin = body.find_target
            return body, reply(exchange, body, plan, pacer)

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
            fault,
            protocol="grpc",
            front=front,
            deadline_s=self.deadline_s,
        )


def _unknown(path: str) -> str:
    """What is said of a call that the gateway does not have."""
    service, _, name = path.removeprefix("/").rpartition("/")
    if service in (SERVICE, HEALTH):
        return f"{name[:100]}: the gateway has no such call: shared memory, traces and log settings are the server's"
    return f"there is no service {service[:100]!r} here, only {SERVICE} and {HEALTH}"
