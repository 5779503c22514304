"""One stream from its head to its end: which method it calls, and the requests that its messages become.

Not here: frames (`connection`), and what a request gets (`gateway.serving`, behind the handler of the server).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from gateway.client.grpc.call import OK_HEAD, GrpcCall
from gateway.client.grpc.frames import Code
from gateway.client.grpc.heads import Head, Status, encoded, status_fields, status_of
from gateway.client.grpc.methods import METHODS, MODEL_INFER, MODEL_STREAM_INFER
from gateway.client.grpc.stream import DEADLINE_WORDS, Message, Stream
from gateway.client.request import ClientRequest
from gateway.errors import ErrorKind, GatewayError

STREAM_CALLS = 16
"""How many inferences of one `ModelStreamInfer` are under way at once; the next is read when one of them has ended."""

_NO_GRPC = encoded([(":status", "415"), ("content-type", "text/plain")])

log = logging.getLogger("gateway")


Ask = Callable[[Message, asyncio.Task[None] | None], ClientRequest]
"""Makes the request of a message; the task, if there is one, serves the message before in the same stream."""


async def serve(stream: Stream) -> None:
    """Serve the call that *stream* is. Ends with the stream."""
    owner, head = stream.connection.owner, stream.head
    deadline_s = timer = None
    if head.timeout_s is not None:  # whatever is still to come of the client's messages comes too late then
        deadline_s = owner.loop.time() + head.timeout_s
        timer = owner.loop.call_at(deadline_s, stream.break_off, GatewayError(ErrorKind.TIMEOUT, DEADLINE_WORDS))
    ask = partial(_request, head, deadline_s)
    try:
        if not head.first.get("content-type", "").startswith("application/grpc") or head.first.get(":method") != "POST":
            stream.finish(_NO_GRPC)
        elif head.path == MODEL_STREAM_INFER:
            await _serve_many(stream, ask)
        else:
            await owner.handler(ask(Message(stream), None))
    except (ConnectionError, asyncio.CancelledError):
        pass  # the client left; what was served has recorded it
    except Exception:
        log.exception("a call of client %s failed", stream.connection.peer)
        stream.close(Code.INTERNAL_ERROR)
    finally:
        if timer is not None:
            timer.cancel()


async def _serve_many(stream: Stream, ask: Ask) -> None:
    """Serve inferences as they come, several at once; their replies go out in the order of the requests."""
    tasks: set[asyncio.Task[None]] = set()
    task = None
    try:
        ending = status_fields(Status.OK)
        try:
            while await (message := Message(stream, is_one_of_many=True)).begin() and not stream.is_closed:
                task = stream.connection.owner.loop.create_task(_serve_next(stream, ask(message, task)))
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
        stream.finish(ending if stream.is_answered else OK_HEAD + ending)


async def _serve_next(stream: Stream, request: ClientRequest) -> None:
    """Serve one inference of a stream."""
    with suppress(ConnectionError):  # the client left, which its handler has recorded
        await stream.connection.owner.handler(request)


def _request(
    head: Head, deadline_s: float | None, message: Message, before: asyncio.Task[None] | None
) -> ClientRequest:
    """The request that *message* becomes; *before* as `GrpcCall` has it."""
    client, method, fault = message.stream.connection, METHODS.get(head.path), head.fault
    if fault is None and method is None and head.path not in (MODEL_INFER, MODEL_STREAM_INFER):
        service, _, name = head.path[:200].rpartition("/")
        words = f"{name}: the gateway has no such call of {service!r}; shared memory, traces and logs are the server's"
        fault = GatewayError(ErrorKind.NO_ROUTE, words, status=501)

    authority = head.first.get(":authority", head.first.get("host", ""))
    request = ClientRequest(
        "POST", head.path, head.headers, authority, client.peer, client.scheme, (2, 0), None, True, message, fault
    )
    request.protocol, request.deadline_s = "grpc", deadline_s
    request.front = partial(GrpcCall, head, method, before)
    return request
