"""TLS towards backends: why an endpoint cannot be reached in words, and what is known of a connection above TLS."""

import asyncio
import contextlib
import datetime
import inspect
import os
import socket
import ssl
from asyncio import sslproto
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.backend.asking import Body
from gateway.backend.endpoints import Endpoint, EndpointState
from gateway.backend.upstream import Upstream
from gateway.backend.wire import Wire
from gateway.errors import ErrorKind, GatewayError
from gateway.tls import TlsLayer
from tests.backend.sockets import ANSWER, ask, busy_and_idle, streamed, upstream_to, whole
from tests.certificates import Authority
from tests.system.scripted import RESET

SMALL = b"x" * 100
LARGE = b"y" * 5_000_000


@dataclass
class Peer:
    """One connection that the backend has accepted."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def layer(self) -> Any:
        """asyncio's TLS of this connection."""
        return self.writer.transport._ssl_protocol  # type: ignore[attr-defined]

    async def read_request(self) -> bytes:
        head = await self.reader.readuntil(b"\r\n\r\n")
        if b"chunked" in head:
            body = b""
            while size := int(await self.reader.readline(), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
            return body
        return await self.reader.readexactly(int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or 0))

    async def serve_once(self) -> bytes:
        body = await self.read_request()
        self.writer.write(ANSWER)
        return body

    def end(self, *, by_reset: bool) -> None:
        """End the socket at once, without an alert that says so."""
        sock = self.writer.get_extra_info("socket")
        if by_reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.writer.transport.abort()


@dataclass
class Backend:
    """A TLS server whose connections belong to the test."""

    url: str = ""
    peers: list[Peer] = field(default_factory=list)
    arrived: asyncio.Queue[Peer] = field(default_factory=asyncio.Queue)
    names: list[str | None] = field(default_factory=list)
    """What clients have asked for (SNI), one for each handshake."""

    async def accept(self) -> Peer:
        async with asyncio.timeout(10):
            return await self.arrived.get()

    async def serve(self) -> None:
        """Serve the next connection until it ends."""
        peer = await self.accept()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await peer.serve_once()


@asynccontextmanager
async def tls_backend(context: ssl.SSLContext | None) -> AsyncIterator[Backend]:
    backend = Backend()
    ended = asyncio.Event()

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        backend.peers.append(peer)
        backend.arrived.put_nowait(peer)
        await ended.wait()
        writer.transport.abort()

    if context is not None:
        context.sni_callback = lambda _, name, __: backend.names.append(name)
    listener = await asyncio.start_server(keep, "127.0.0.1", 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    backend.url = f"{'http' if context is None else 'https'}://127.0.0.1:{port}"
    try:
        yield backend
    finally:
        listener.close()
        ended.set()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def upstream(url: str, settings: str = "") -> AsyncIterator[Upstream]:
    made = upstream_to(url, settings)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def every_peer(backend: Backend, do: Callable[[Peer], Awaitable[None]]) -> AsyncIterator[None]:
    """Have *do* done to every connection that comes: a failed attempt may be followed by another."""

    async def serve() -> None:
        while True:
            await do(await backend.arrived.get())

    serving = asyncio.create_task(serve())
    try:
        yield
    finally:
        serving.cancel()


async def failure(upstream: Upstream) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await ask(upstream, "POST", whole(SMALL))
    return caught.value


# Certificates of endpoints


async def test_an_endpoint_that_the_configured_authority_has_signed_is_reached(authority: Authority) -> None:
    async with tls_backend(authority.issue().server_context()) as backend:
        async with upstream(backend.url, f"tls: {{ca: {authority.path}}}") as reached:
            serving = asyncio.create_task(backend.serve())
            assert await ask(reached, "POST", whole(SMALL)) == (b"ok", ["200"])
            assert await ask(reached, "POST", streamed(LARGE)) == (b"ok", ["200"])
            assert len(backend.peers) == 1
        await serving


async def test_ssl_cert_file_names_the_authorities_where_none_is_configured(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    async with tls_backend(authority.issue().server_context()) as backend:
        async with upstream(backend.url) as reached:
            serving = asyncio.create_task(backend.serve())
            assert await ask(reached, "GET", Body()) == (b"ok", ["200"])
        await serving


async def test_without_verify_any_certificate_is_taken(authority: Authority) -> None:
    pair = authority.issue("other.example", not_after=datetime.datetime(2024, 1, 1))
    async with tls_backend(pair.server_context()) as backend:
        async with upstream(backend.url, "tls: {verify: false}") as reached:
            serving = asyncio.create_task(backend.serve())
            assert await ask(reached, "GET", Body()) == (b"ok", ["200"])
        await serving


async def test_server_name_is_asked_for_and_must_be_in_the_certificate(authority: Authority) -> None:
    async with tls_backend(authority.issue("models.example").server_context()) as backend:
        async with upstream(backend.url, f"tls: {{ca: {authority.path}, server_name: models.example}}") as reached:
            serving = asyncio.create_task(backend.serve())
            assert await ask(reached, "GET", Body()) == (b"ok", ["200"])
            assert backend.names == ["models.example"]
        await serving


async def test_an_address_of_a_name_is_asked_for_by_the_name(authority: Authority) -> None:
    async with tls_backend(authority.issue("models.example").server_context()) as backend:
        async with upstream(backend.url, f"tls: {{ca: {authority.path}}}") as reached:
            address = reached.endpoints.states[0].endpoint
            named = replace(address, authority=f"models.example:{address.port}")
            (await reached.connections.connect(named)).abort()
            assert backend.names == ["models.example"]


@pytest.mark.parametrize(
    ("url", "name"),
    [("https://A.example", "a.example"), ("https://[::1]:8443/x", "::1"), ("https://10.0.0.1:1", "10.0.0.1")],
)
def test_the_name_of_an_endpoint_is_the_host_of_its_url(url: str, name: str) -> None:
    assert Endpoint.parse(url, None).name == name


async def test_an_expired_certificate_says_so(authority: Authority) -> None:
    pair = authority.issue("127.0.0.1", not_after=datetime.datetime(2024, 1, 1))
    async with tls_backend(pair.server_context()) as backend:
        async with upstream(backend.url, f"tls: {{ca: {authority.path}}}") as reached:
            error = await failure(reached)
    assert (error.kind, error.sent) == (ErrorKind.UNREACHABLE, False)
    assert str(error) == (
        f"backend 'main' cannot be reached at {backend.url}: its certificate is not accepted: certificate has expired"
    )


async def test_a_certificate_for_other_names_says_what_to_set(authority: Authority) -> None:
    async with tls_backend(authority.issue("a.example", "10.0.0.1").server_context()) as backend:
        async with upstream(backend.url, f"tls: {{ca: {authority.path}}}") as reached:
            error = await failure(reached)
    assert str(error).endswith(
        "its certificate is not accepted: IP address mismatch, certificate is not valid for '127.0.0.1'; "
        "if another name is right, set backends.main.tls.server_name"
    )


@pytest.mark.parametrize("has_ca", [False, True])
async def test_an_authority_that_is_not_trusted_says_what_to_set(
    authority: Authority, tmp_path: Path, has_ca: bool
) -> None:
    settings = f"tls: {{ca: {Authority(tmp_path).path}}}" if has_ca else ""
    async with tls_backend(authority.issue().server_context()) as backend:
        async with upstream(backend.url, settings) as reached:
            error = await failure(reached)
    assert "its certificate is not accepted: " in str(error)
    assert str(error).endswith("; set backends.main.tls.ca to the file of its authority")


async def test_plain_http_behind_https_says_so(authority: Authority) -> None:
    async with tls_backend(None) as backend:
        async with upstream(backend.url.replace("http:", "https:"), f"tls: {{ca: {authority.path}}}") as reached:

            async def refuse(peer: Peer) -> None:
                await peer.reader.read(1)
                peer.writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

            async with every_peer(backend, refuse):
                error = await failure(reached)
    assert (error.kind, error.sent) == (ErrorKind.UNREACHABLE, False)
    assert "it does not speak TLS; if it speaks plain HTTP, write http:// in the endpoint" in str(error)


async def test_tls_behind_http_says_so() -> None:
    async with tls_backend(None) as backend, upstream(backend.url) as reached:
        asked = asyncio.create_task(failure(reached))
        peer = await backend.accept()
        await peer.read_request()
        peer.writer.write(b"\x15\x03\x01\x00\x02\x02\x46")  # protocol_version, as OpenSSL sends it
        error = await asked
    assert error.kind is ErrorKind.MALFORMED_RESPONSE
    assert "it speaks TLS there: write https:// in the endpoint" in str(error)


async def test_an_endpoint_that_closes_in_the_handshake_says_so(authority: Authority) -> None:
    async with tls_backend(None) as backend:
        async with upstream(backend.url.replace("http:", "https:")) as reached:

            async def close(peer: Peer) -> None:
                peer.writer.close()

            async with every_peer(backend, close):
                assert "it closed the connection in the TLS handshake" in str(await failure(reached))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("shown", ["none", "of another authority"])
async def test_a_client_certificate_that_is_required_says_what_to_set(
    authority: Authority, tmp_path: Path, shown: str, version: ssl.TLSVersion
) -> None:
    context = authority.issue().server_context(authority.path)
    context.maximum_version = version
    settings = f"ca: {authority.path}"
    if shown != "none":
        own = Authority(tmp_path).issue("gateway")
        settings += f", certificate: {own.certificate}, key: {own.key}"
    async with alerting(context) as url, upstream(url, f"tls: {{{settings}}}") as reached:
        for _ in range(5):
            error = await failure(reached)
            assert (error.kind, error.sent) == (ErrorKind.UNREACHABLE, False)
            assert f"backend 'main' cannot be reached at {url}: " in str(error)
            assert "backends.main.tls.certificate" in str(error)


@asynccontextmanager
async def alerting(context: ssl.SSLContext) -> AsyncIterator[str]:
    """A server that sends the alert of a handshake that fails, as OpenSSL does and asyncio does not."""

    def shake_hands() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.settimeout(5)
            raw = connection.dup()  # to be closed when the client has read the alert: not by a reset
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
                pass
            with raw, contextlib.suppress(OSError):
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(65536):
                    pass

    listener = socket.create_server(("127.0.0.1", 0))
    shaking = asyncio.create_task(asyncio.to_thread(shake_hands))
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        await shaking


@asynccontextmanager
async def probed(url: str, tls: str, **health: str) -> AsyncIterator[EndpointState]:
    """The state of the endpoint at *url*, which is probed."""
    settings = {"interval": "10ms", "unhealthy_after": "1", "healthy_after": "1", **health}
    flow = ", ".join(f"{key}: {value}" for key, value in settings.items())
    made = upstream_to(url, f"tls: {{{tls}}}, health: {{{flow}}}")
    await made.start()
    try:
        yield made.endpoints.states[0]
    finally:
        await made.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def test_probes_go_over_tls_and_judge_as_requests_would(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    good = authority.issue()
    context = good.server_context()
    async with tls_backend(context) as backend:
        served = 0

        async def serve(peer: Peer) -> None:
            nonlocal served
            served += 1
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await peer.serve_once()

        async with every_peer(backend, serve), probed(backend.url, f"ca: {authority.path}") as state:
            await until(lambda: served >= 3)
            assert state.is_up
            expired = authority.issue(not_after=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
            context.load_cert_chain(expired.certificate, expired.key)
            await until(lambda: not state.is_up)
            context.load_cert_chain(good.certificate, good.key)
            await until(lambda: state.is_up)
    (down,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert down == (
        f"backend 'main': {backend.url} is down: a probe of /v2/health/ready failed, the last: "
        "its certificate is not accepted: certificate has expired"
    )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_probe_without_the_client_certificate_that_is_required_says_what_to_set(
    authority: Authority, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    context = authority.issue().server_context(authority.path)
    context.maximum_version = version
    async with alerting(context) as url, probed(url, f"ca: {authority.path}") as state:
        await until(lambda: not state.is_up)
    (down,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert down.startswith(f"backend 'main': {url} is down: a probe of /v2/health/ready failed, the last: ")
    assert "backends.main.tls.certificate" in down


async def test_a_client_certificate_is_shown(authority: Authority) -> None:
    own = authority.issue("gateway")
    async with tls_backend(authority.issue().server_context(authority.path)) as backend:
        settings = f"tls: {{ca: {authority.path}, certificate: {own.certificate}, key: {own.key}}}"
        async with upstream(backend.url, settings) as reached:
            serving = asyncio.create_task(backend.serve())
            assert await ask(reached, "GET", Body()) == (b"ok", ["200"])
            assert backend.peers[0].writer.get_extra_info("peercert")["subjectAltName"] == (("DNS", "gateway"),)
        await serving


async def test_a_renewed_authority_is_used_for_new_connections_while_others_go_on(
    authority: Authority, tmp_path: Path
) -> None:
    renewed = Authority(tmp_path)
    async with tls_backend(authority.issue().server_context()) as before:
        async with tls_backend(renewed.issue().server_context()) as after:
            async with upstream(before.url, f"tls: {{ca: {authority.path}}}") as reached:
                serving = asyncio.create_task(before.serve())
                assert await ask(reached, "GET", Body()) == (b"ok", ["200"])
                authority.path.write_bytes(renewed.path.read_bytes())
                assert reached.tls is not None
                reached.tls.look()
                reached.tls.look()
                assert await ask(reached, "GET", Body()) == (b"ok", ["200"])
                assert len(before.peers) == 1
                port = int(after.url.rpartition(":")[2])
                moved = replace(reached.endpoints.states[0].endpoint, port=port, authority=f"127.0.0.1:{port}")
                (await reached.connections.connect(moved)).abort()
            await serving


@pytest.mark.parametrize("n_bytes", [10, 3_000_000])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_an_answer_without_length_is_whole_only_if_its_end_is_announced(
    authority: Authority, version: ssl.TLSVersion, n_bytes: int
) -> None:
    context = authority.issue().server_context()
    context.minimum_version = context.maximum_version = version
    async with tls_backend(context) as backend, upstream(backend.url, f"tls: {{ca: {authority.path}}}") as reached:
        for is_announced in (True, False):
            asked = asyncio.create_task(ask(reached, "POST", whole(SMALL)))
            peer = await backend.accept()
            await peer.read_request()
            peer.writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(n_bytes))
            if is_announced:
                peer.writer.close()
                assert await asked == (bytes(n_bytes), ["200"])
                continue
            while peer.writer.transport.get_write_buffer_size() or peer.layer._transport.get_write_buffer_size():
                await asyncio.sleep(0.001)
            peer.end(by_reset=False)
            with pytest.raises(GatewayError) as caught:
                await asked
            assert caught.value.kind is ErrorKind.UPSTREAM_CLOSED


# Kept connections above TLS


@asynccontextmanager
async def kept(authority: Authority, version: ssl.TLSVersion) -> AsyncIterator[tuple[Backend, Upstream, Peer]]:
    """A backend to which one connection is kept, on which one request was served."""
    context = authority.issue().server_context()
    context.minimum_version = context.maximum_version = version
    async with tls_backend(context) as backend:
        async with upstream(backend.url, f"tls: {{ca: {authority.path}}}") as reached:
            first = asyncio.create_task(ask(reached, "POST", whole(SMALL)))
            peer = await backend.accept()
            await peer.serve_once()
            assert await first == (b"ok", ["200"])
            yield backend, reached, peer


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_connection_is_used_again_and_again(authority: Authority, version: ssl.TLSVersion) -> None:
    async with kept(authority, version) as (backend, reached, peer):
        for n in range(100):
            body = whole(SMALL) if n % 2 else streamed(LARGE[: n * 10_000 + 1])
            asked = asyncio.create_task(ask(reached, "POST", body))
            await peer.serve_once()
            assert await asked == (b"ok", ["200"])
        assert len(backend.names) == len(backend.peers) == 1


@pytest.mark.parametrize("n_bytes", [1, 70_000, 5_000_000])
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_connection_whose_answer_was_large_and_read_slowly_is_used_again(
    authority: Authority, version: ssl.TLSVersion, n_bytes: int
) -> None:
    async with kept(authority, version) as (backend, reached, peer):
        for _ in range(3):
            asked = asyncio.create_task(ask(reached, "POST", whole(SMALL)))
            await peer.read_request()
            peer.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % n_bytes + bytes(n_bytes))
            await peer.writer.drain()
            assert await asked == (bytes(n_bytes), ["200"])
        assert len(backend.peers) == 1


def just_before_the_next_request(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    begin = Wire.begin

    def begin_after_it(wire: Wire, method: str, first_bytes: bytes) -> bool:
        if wire.is_reused:
            do()
        return begin(wire, method, first_bytes)

    monkeypatch.setattr(Wire, "begin", begin_after_it)


def end_of_a_stream(peer: Peer) -> None:
    """An alert and the end, in one go, as servers end idle connections."""
    layer = peer.layer
    with contextlib.suppress(ssl.SSLWantReadError):
        layer._sslobj.unwrap()
    os.write(peer.writer.get_extra_info("socket").fileno(), layer._outgoing.read())
    peer.end(by_reset=False)


ENDS: list[Callable[[Peer], None]] = [
    end_of_a_stream,
    lambda peer: peer.writer.get_extra_info("socket").shutdown(socket.SHUT_WR),
    lambda peer: peer.end(by_reset=True),
]


@pytest.mark.parametrize("body", [whole(SMALL), streamed(SMALL), whole(LARGE), streamed(LARGE)])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_connection_that_ended_before_the_request_came_costs_no_client_an_error(
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    version: ssl.TLSVersion,
    end: Callable[[Peer], None],
    body: Body,
) -> None:
    async with kept(authority, version) as (backend, reached, peer):
        just_before_the_next_request(monkeypatch, lambda: _now(end, peer))
        asked = asyncio.create_task(ask(reached, "POST", body))
        served = await (await backend.accept()).serve_once()
        assert await asked == (b"ok", ["200"])
        assert len(served) >= len(SMALL)
        assert len(backend.peers) == 2


def _now(end: Callable[[Peer], None], peer: Peer) -> None:
    """Have *end* done to the socket before this returns: what asyncio closes, it closes one turn later."""
    end(peer)
    if peer.writer.transport.is_closing():
        peer.writer.get_extra_info("socket")._sock.close()


Fate = Callable[[Peer], Awaitable[None]]


async def read_then_end(peer: Peer) -> None:
    await peer.read_request()
    end_of_a_stream(peer)


async def read_then_reset(peer: Peer) -> None:
    await peer.read_request()
    peer.end(by_reset=True)


async def read_a_part_then_close(peer: Peer) -> None:
    await peer.reader.readexactly(10)
    peer.end(by_reset=False)


@pytest.mark.parametrize("body", [whole(SMALL), streamed(SMALL)])
@pytest.mark.parametrize("fate", [read_then_end, read_then_reset, read_a_part_then_close])
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_post_that_may_have_been_read_is_not_sent_again(
    authority: Authority, version: ssl.TLSVersion, fate: Fate, body: Body
) -> None:
    async with kept(authority, version) as (backend, reached, peer):
        asked = asyncio.create_task(ask(reached, "POST", body))
        await fate(peer)
        with pytest.raises(GatewayError) as caught:
            await asked
        assert caught.value.kind is ErrorKind.UPSTREAM_CLOSED
        assert caught.value.sent
        assert len(backend.peers) == 1


@pytest.mark.parametrize("text", [b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nlate", ANSWER, b"x"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_bytes_on_an_idle_connection_close_it(authority: Authority, version: ssl.TLSVersion, text: bytes) -> None:
    async with kept(authority, version) as (backend, reached, peer):
        peer.writer.write(text)
        asked = asyncio.create_task(ask(reached, "POST", whole(SMALL)))
        await (await backend.accept()).serve_once()
        assert await asked == (b"ok", ["200"])
        assert len(backend.peers) == 2


@pytest.mark.parametrize("n_first", [1, 4, 5, 6, 30])
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_part_of_a_record_on_an_idle_connection_closes_it(
    authority: Authority, version: ssl.TLSVersion, n_first: int
) -> None:
    async with kept(authority, version) as (backend, reached, peer):
        layer = peer.layer
        layer._sslobj.write(ANSWER)
        record = layer._outgoing.read()
        sock = peer.writer.get_extra_info("socket")
        os.write(sock.fileno(), record[:n_first])
        (wire,) = reached.connections._open
        assert wire.tls is not None
        while wire.tls.is_at_rest:  # it has been read from the socket, and nothing can be decrypted yet
            await asyncio.sleep(0)
        asked = asyncio.create_task(ask(reached, "POST", whole(SMALL)))
        await (await backend.accept()).serve_once()
        assert await asked == (b"ok", ["200"])
        assert len(backend.peers) == 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_second_answer_in_the_same_record_or_behind_it_closes_the_connection(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    for part in (len(ANSWER), 10):
        async with kept(authority, version) as (backend, reached, peer):
            asked = asyncio.create_task(ask(reached, "POST", whole(SMALL)))
            await peer.read_request()
            layer = peer.layer
            layer._sslobj.write(ANSWER)
            layer._sslobj.write(ANSWER)
            both = layer._outgoing.read()
            os.write(peer.writer.get_extra_info("socket").fileno(), both[: len(both) - len(ANSWER) + part])
            assert await asked == (b"ok", ["200"])
            assert busy_and_idle(reached.endpoints.states[0]) == (0, 0)
            assert len(backend.peers) == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_session_tickets_that_come_with_the_answer_or_later_do_not_break_a_connection(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    context = authority.issue().server_context()
    context.maximum_version = version
    context.num_tickets = 8
    async with tls_backend(context) as backend:
        async with upstream(backend.url, f"tls: {{ca: {authority.path}}}") as reached:
            serving = asyncio.create_task(backend.serve())
            for _ in range(20):
                assert await ask(reached, "POST", whole(SMALL)) == (b"ok", ["200"])
            assert len(backend.peers) == 1
        await serving


# What of asyncio is private and used by gateway/tls.py


def test_asyncios_tls_still_has_what_is_overridden_and_used() -> None:
    private = {
        *("_on_handshake_complete", "_check_shutdown_timeout", "_get_write_buffer_size"),
        *("_process_outgoing", "buffer_updated", "connection_made", "connection_lost"),
    }
    assert private <= set(vars(sslproto.SSLProtocol))
    source = inspect.getsource(sslproto.SSLProtocol)
    for words in (
        "self._ssl_buffer = bytearray(self.max_size)",
        "self._incoming.write(self._ssl_buffer_view[:nbytes])",
        "if len(self._ssl_buffer) < want",
        "self._sslobj.read(self.max_size)",
        "self._outgoing.pending + self._write_buffer_size",
        "if name in self._extra",
    ):
        assert words in source, words
    assert not {"is_at_rest", "on_closing", "version", "_record_head", "_record_left"} & set(vars(sslproto.SSLProtocol))
    assert issubclass(TlsLayer, asyncio.BufferedProtocol)
