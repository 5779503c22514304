"""What of aiohttp's client is private or undocumented and used by backend/wire.py.

Each test fails when a release of aiohttp has lost or changed what it names, before a backend or a client notices.
"""

import ast
import asyncio
import inspect
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientConnectionError, ClientError, ClientPayloadError, ServerDisconnectedError
from aiohttp.base_protocol import BaseProtocol
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpResponseParser, RawResponseMessage
from aiohttp.streams import EMPTY_PAYLOAD, DataQueue, EofStream, StreamReader

import gateway.backend.wire
from gateway.backend.known_heads import KnownHeads
from gateway.backend.wire import LostError, NotHttpError, Wire

HEAD = b"HTTP/1.1 200 Fine\r\nX-A: \xc3\xa9\r\nContent-Length: 6\r\n\r\n"


@asynccontextmanager
async def handler() -> AsyncIterator[tuple[ResponseHandler, socket.socket]]:
    """aiohttp's own protocol, without `Wire`, and the other end of its connection."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(lambda: ResponseHandler(loop), sock=ours)
    try:
        yield protocol, theirs
    finally:
        transport.abort()
        theirs.close()
        await asyncio.sleep(0)


def listen(protocol: ResponseHandler, *, skip_payload: bool = False) -> None:
    """As `Wire.begin` does."""
    protocol.set_response_params(
        skip_payload=skip_payload, read_until_eof=True, auto_decompress=False, read_bufsize=1024
    )


OVERRIDDEN = {
    "set_exception",
    "connection_made",
    "data_received",
    "eof_received",
    "connection_lost",
    "abort",
    "resume_reading",
}


def methods_of_wire() -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(Path(gateway.backend.wire.__file__).read_text())
    (wire,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Wire")
    return {node.name: node for node in wire.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def attributes(of: Iterable[ast.AST]) -> set[str]:
    return {node.attr for each in of for node in ast.walk(each) if isinstance(node, ast.Attribute)}


def test_wire_uses_no_other_private_names_than_those_that_are_tested_here() -> None:
    methods = methods_of_wire()
    made = set(methods) | attributes([methods["__init__"]])
    used = {name for name in attributes(methods.values()) if name.startswith("_")}
    assert used - made == {
        "_buffer",
        "_drain_helper",
        "_exception",
        "_loop",
        "_parser",
        "_paused",
        "_payload",
        "_reading_paused",
        "_should_close",
        "_upgraded",
        "_wait",
    }


async def test_names_that_wire_makes_are_not_names_of_aiohttp() -> None:
    methods = methods_of_wire()
    ours = (set(methods) | attributes([methods["__init__"]])) - OVERRIDDEN - {"__init__"}
    theirs = set(vars(ResponseHandler(asyncio.get_running_loop())))
    for cls in ResponseHandler.__mro__:
        theirs |= set(vars(cls))
    assert ours & theirs == set()


async def test_reading_is_resumed_after_each_chunk_and_remembers_whether_it_was_paused() -> None:
    async with handler() as (protocol, theirs):
        listen(protocol)
        resumed: list[bool] = []
        protocol.resume_reading = lambda resume_parser=True: resumed.append(protocol._reading_paused)  # type: ignore[method-assign]
        theirs.sendall(HEAD + b"abc")
        _, reader = await protocol.read()
        assert await reader.readany() == b"abc"
        protocol.pause_reading()
        theirs.sendall(b"def")
        assert resumed
        assert not any(resumed)
        assert protocol._reading_paused


def test_the_methods_that_are_called_or_overridden_exist_with_these_arguments() -> None:
    assert issubclass(ResponseHandler, BaseProtocol)
    assert issubclass(ResponseHandler, DataQueue)
    assert list(inspect.signature(ResponseHandler.__init__).parameters) == ["self", "loop"]
    assert list(inspect.signature(ResponseHandler.connection_made).parameters) == ["self", "transport"]
    assert list(inspect.signature(ResponseHandler.data_received).parameters) == ["self", "data"]
    assert list(inspect.signature(ResponseHandler.connection_lost).parameters) == ["self", "exc"]
    for name in ("eof_received", "abort", "force_close"):
        assert list(inspect.signature(getattr(ResponseHandler, name)).parameters) == ["self"]
    parameters = inspect.signature(ResponseHandler.set_response_params).parameters
    assert {"skip_payload", "read_until_eof", "auto_decompress", "read_bufsize"} <= set(parameters)
    assert list(inspect.signature(ResponseHandler.set_exception).parameters) == ["self", "exc", "exc_cause"]
    # `Wire` gives no timeout: the deadlines are the gateway's own
    assert parameters["read_timeout"].default is None
    assert inspect.iscoroutinefunction(BaseProtocol._drain_helper)
    assert inspect.iscoroutinefunction(DataQueue.read)
    assert issubclass(ClientPayloadError, ClientError)


async def test_a_head_is_queued_with_raw_headers_and_a_reader_of_its_body() -> None:
    async with handler() as (protocol, backend):
        listen(protocol)
        assert protocol._parser is not None
        backend.sendall(HEAD + b"abc")
        message, reader = await protocol.read()
        assert isinstance(message, RawResponseMessage)
        assert (message.code, message.reason) == (200, "Fine")
        assert message.raw_headers == ((b"X-A", b"\xc3\xa9"), (b"Content-Length", b"6"))
        assert isinstance(reader, StreamReader)
        assert protocol._payload is reader
        assert (await reader.readany(), reader.is_eof(), protocol.should_close) == (b"abc", False, True)
        backend.sendall(b"def")
        assert (await reader.readany(), await reader.readany()) == (b"def", b"")
        assert (reader.is_eof(), protocol.should_close) == (True, False)


def response_parser() -> HttpResponseParser:
    """As `Wire.begin` makes it."""
    loop = asyncio.get_running_loop()
    return HttpResponseParser(
        ResponseHandler(loop),
        loop,
        1024,
        payload_exception=ClientPayloadError,
        response_with_body=True,
        read_until_eof=True,
        auto_decompress=False,
    )


async def test_the_parser_gives_each_head_with_the_reader_that_its_body_goes_to() -> None:
    parser = response_parser()
    messages, is_upgraded, _ = parser.feed_data(HEAD + b"abc")
    ((message, reader),) = messages
    assert (message.code, message.should_close, is_upgraded) == (200, False, False)
    assert (list(reader._buffer), reader.is_eof()) == ([b"abc"], False)
    assert len(parser.feed_data(b"def")[0]) == 0
    assert (list(reader._buffer), reader.is_eof(), reader.total_bytes) == ([b"abc", b"def"], True, 6)
    assert reader.exception() is None


async def test_the_parser_tells_when_the_connection_ends_and_when_it_speaks_something_else() -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    assert response_parser().feed_data(closing)[0][0][0].should_close
    switching = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nabc"
    messages, is_upgraded, _ = response_parser().feed_data(switching)
    assert (messages[0][0].code, is_upgraded) == (101, True)


@pytest.mark.parametrize("framing", [b"Content-Length: 0", b"Content-Length: 2", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize(
    ("behind", "has_begun"), [(b"", False), (b"\r\n", False), (b"H", True), (HEAD[:10], True), (HEAD[:20], True)]
)
async def test_the_parser_tells_at_the_end_whether_a_part_of_another_head_has_come(
    framing: bytes, behind: bytes, *, has_begun: bool
) -> None:
    body = {b"0": b"", b"2": b"ok", b"d": b"2\r\nok\r\n0\r\n\r\n"}[framing[-1:]]
    parser = response_parser()
    ((_, reader),) = parser.feed_data(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n" + body + behind)[0]
    assert reader.is_eof()
    assert (parser.feed_eof() is not None) == has_begun


async def test_a_head_that_is_not_read_and_an_error_show() -> None:
    async with handler() as (protocol, backend):
        listen(protocol)
        assert (len(protocol._buffer), protocol._should_close, protocol._upgraded) == (0, False, False)
        backend.sendall(HEAD + b"abcdef")
        while not protocol._buffer:
            await asyncio.sleep(0)
        await protocol.read()
        assert (len(protocol._buffer), protocol._should_close) == (0, False)
        error = ClientConnectionError("lost")
        protocol.set_exception(error)
        assert protocol._should_close
        assert protocol._exception is error


async def test_interim_heads_are_queued_like_others_and_the_parser_goes_on() -> None:
    async with handler() as (protocol, backend):
        listen(protocol)
        backend.sendall(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + HEAD)
        assert [(await protocol.read())[0].code for _ in range(3)] == [100, 103, 200]


async def test_an_answer_to_head_has_an_empty_reader_that_has_ended() -> None:
    async with handler() as (protocol, backend):
        listen(protocol, skip_payload=True)
        backend.sendall(HEAD)
        _, reader = await protocol.read()
        assert reader is EMPTY_PAYLOAD
        assert reader.is_eof()
        assert await reader.readany() == b""
        assert not protocol.should_close


async def test_a_forced_close_shows_and_closes_nothing_yet() -> None:
    async with handler() as (protocol, _):
        protocol.force_close()
        assert protocol.should_close
        assert protocol.transport is not None
        assert not protocol.transport.is_closing()


async def test_a_body_is_not_inflated() -> None:
    async with handler() as (protocol, backend):
        listen(protocol)
        backend.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")
        _, reader = await protocol.read()
        assert await reader.readany() == b"abc"


async def test_bytes_behind_an_answer_make_a_connection_that_should_close() -> None:
    # `Wire.end` takes the parser away; without it aiohttp keeps what comes for the next answer
    async with handler() as (protocol, backend):
        listen(protocol)
        backend.sendall(HEAD + b"abcdef")
        await protocol.read()
        protocol._parser = None
        protocol._payload = None
        assert not protocol.should_close
        backend.sendall(HEAD)
        while not protocol.should_close:
            await asyncio.sleep(0)


async def test_a_reader_that_nobody_reads_pauses_the_connection() -> None:
    async with handler() as (protocol, backend):
        listen(protocol)
        backend.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(60_000))
        _, reader = await protocol.read()
        while not protocol._reading_paused:
            await asyncio.sleep(0)
        assert 0 < len(await reader.readany()) < 1_000_000


async def test_writing_is_paused_and_waited_for() -> None:
    async with handler() as (protocol, backend):
        assert protocol.transport is not None
        assert protocol._paused is False
        protocol.transport.write(bytes(4_000_000))
        assert protocol._paused
        waiting = asyncio.ensure_future(protocol._drain_helper())
        await asyncio.sleep(0)
        assert not waiting.done()
        while not waiting.done():
            await asyncio.get_running_loop().sock_recv(backend, 1_000_000)
        assert protocol._paused is False


async def test_waiting_to_write_ends_with_an_error_when_the_connection_does() -> None:
    async with handler() as (protocol, _):
        assert protocol.transport is not None
        protocol.transport.write(bytes(4_000_000))
        waiting = asyncio.ensure_future(protocol._drain_helper())
        await asyncio.sleep(0)
        protocol.transport.abort()
        with pytest.raises((ClientError, OSError)):
            await waiting


async def test_text_that_is_no_http_is_an_error_with_a_message() -> None:
    async with handler() as (protocol, backend):
        listen(protocol)
        backend.sendall(b"SSH-2.0\r\n\r\n")
        with pytest.raises(HttpProcessingError) as caught:
            await protocol.read()
        assert caught.value.message.splitlines()[0]
        assert protocol.exception() is not None


async def test_the_end_before_the_head_is_an_error_of_the_queue() -> None:
    async with handler() as (protocol, backend):
        listen(protocol)
        backend.close()
        with pytest.raises(ServerDisconnectedError):
            await protocol.read()
    assert issubclass(ServerDisconnectedError, ClientError)
    assert issubclass(EofStream, Exception)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
async def test_the_end_within_a_body_is_an_error_of_its_reader(head: bytes) -> None:
    async with handler() as (protocol, backend):
        listen(protocol)
        backend.sendall(head)
        _, reader = await protocol.read()
        assert await reader.readany() == b"abc"
        backend.close()
        with pytest.raises(ClientPayloadError):
            await reader.readany()


@pytest.mark.parametrize("piece", [b"\r\n", b"\r\n3\r\ndef", b"\r\n0\r\n\r\n"], ids=["end of chunk", "data", "end"])
async def test_waiting_for_more_of_a_body_ends_with_a_chunk_data_and_its_end(piece: bytes) -> None:
    async with handler() as (protocol, backend):
        listen(protocol)
        backend.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc")
        _, reader = await protocol.read()
        assert await reader.readany() == b"abc"
        waiting = asyncio.ensure_future(reader._wait("a test"))
        await asyncio.sleep(0)
        backend.sendall(piece)
        await waiting
        assert (reader.read_nowait(), reader.is_eof()) == (
            b"def" if b"def" in piece else b"",
            piece.endswith(b"0\r\n\r\n"),
        )


async def test_a_body_without_length_ends_with_the_connection() -> None:
    async with handler() as (protocol, backend):
        listen(protocol)
        backend.sendall(b"HTTP/1.1 200 OK\r\n\r\nabc")
        _, reader = await protocol.read()
        assert await reader.readany() == b"abc"
        backend.close()
        assert await reader.readany() == b""


async def test_an_abort_forgets_transport_and_body_at_once() -> None:
    # why `Wire.abort` tells the reader first
    async with handler() as (protocol, backend):
        listen(protocol)
        backend.sendall(HEAD + b"abc")
        _, reader = await protocol.read()
        transport = protocol.transport
        assert transport is not None
        closed = protocol.closed
        assert closed is not None
        protocol.abort()
        assert transport.is_closing()
        assert (protocol.transport, protocol._payload) == (None, None)
        await closed
        assert reader.exception() is None
        error = ClientConnectionError("told")
        reader.set_exception(error)
        with pytest.raises(ClientConnectionError, match="told"):
            await reader.readany()


async def test_an_end_of_stream_closes_the_transport() -> None:
    # eof_received gives nothing, which asyncio takes for: close
    async with handler() as (protocol, backend):
        assert protocol.eof_received() is None  # type: ignore[func-returns-value]
        backend.close()
        closed = protocol.closed
        assert closed is not None
        await closed
        assert protocol.transport is None


async def test_broken_chunks_are_an_error_of_the_connection_or_of_the_reader() -> None:
    """`Wire.data_received` passes it to the reader where aiohttp leaves the reader waiting."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(lambda: Wire(loop, lambda lost: None, KnownHeads()), sock=ours)
    wire.begin("GET")
    theirs.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    _, reader = await wire.read_head()
    assert await wire.read_body(reader) == b"abc"
    theirs.sendall(b"zz\r\n")
    with pytest.raises((NotHttpError, LostError)) as caught:
        await wire.read_body(reader)
    assert isinstance(caught.value, NotHttpError)
    assert str(caught.value)
    wire.abort()
    theirs.close()
    await asyncio.sleep(0)
