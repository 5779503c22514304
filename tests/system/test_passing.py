"""`binary: auto | always`: inferences pass through to servers that speak the binary extension themselves."""

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest

from gateway.backend import endpoints, speaking
from gateway.backend.speaking import Spoken
from gateway.backend.upstream import Upstream
from gateway.serving.relaying import UPLOAD_BYTES
from tests.conftest import HEADER_LENGTH, Client, Connection, Liar, Reply, lying, running, tensor
from tests.system.scripted import head_of, wire

ARRAY = np.arange(4, dtype=np.float32)
IMAGE = np.arange(3 * 224 * 224, dtype=np.float32)
LARGE = np.arange(1_000_000, dtype=np.float32)
PATH = "/v2/models/m/infer"
DEADLINE_S = 20


def request(array: Any = ARRAY, **members: Any) -> bytes:
    """The JSON of a request with one binary input."""
    return json.dumps({"inputs": [tensor("x", array, "FP32")], **members}).encode()


@dataclass
class Asked:
    """A request that the server got."""

    head: str
    body: bytes

    @property
    def is_inference(self) -> bool:
        return self.head.startswith("POST ")

    def values(self, name: str) -> list[str]:
        lines = (line.partition(": ") for line in self.head.split("\r\n")[1:])
        return [value for key, _, value in lines if key.lower() == name.lower()]


@dataclass
class Server:
    """A stand-in for a server: an identity model that takes binary bodies, or JSON alone."""

    is_binary: bool = True
    metadata: Callable[[], bytes | None] | None = None
    """What it answers to `GET /v2`; None: nothing, ever."""
    asked: list[Asked] = field(default_factory=list)
    in_chunks: bool = False
    is_dead: bool = False
    """Whether it closes every connection at once."""
    dies_at: int = 0
    """The number of the inference that it reads and at which it dies, with all its connections; 0: it does not."""
    connections: list[Connection] = field(default_factory=list)

    def die(self) -> None:
        self.is_dead = True
        for connection in self.connections:
            connection.writer.transport.abort()

    async def serve(self, connection: Connection) -> None:
        self.connections.append(connection)
        while not self.is_dead:
            await connection.read_request()
            asked = Asked(connection.head.decode(), connection.body)
            connection.body = b""
            self.asked.append(asked)
            if asked.is_inference:
                if len(self.inferences) == self.dies_at:
                    self.die()
                    return
                await self._infer(connection, asked)
                continue
            text = self._describe() if self.metadata is None else self.metadata()
            if text is None:
                await connection.reader.read()
                return
            await connection.answer(text)

    def _describe(self) -> bytes:
        extensions = ["binary_tensor_data"] if self.is_binary else []
        return json.dumps({"name": "stand-in", "version": "1", "extensions": extensions}).encode()

    async def _infer(self, connection: Connection, asked: Asked) -> None:
        lengths = asked.values(HEADER_LENGTH)
        if lengths and not self.is_binary:
            await connection.answer(b'{"error": "this is no JSON"}', "400 Bad Request")
            return
        n_bytes = int(lengths[0]) if lengths else len(asked.body)
        header, blobs = asked.body[:n_bytes], asked.body[n_bytes:]
        entry = json.loads(header)["inputs"][0] if header else tensor("x", ARRAY, "FP32")
        outputs = [{key: value for key, value in entry.items() if key in ("name", "datatype", "shape", "data")}]
        if blobs:
            outputs[0]["parameters"] = {"binary_data_size": len(blobs)}
        answer = json.dumps({"model_name": "m", "outputs": outputs}).encode()
        said = f"{HEADER_LENGTH}: {len(answer)}\r\nContent-Type: application/octet-stream\r\n" if blobs else ""
        said = said or "Content-Type: application/json\r\n"
        if self.in_chunks:
            await connection.send(f"HTTP/1.1 200 OK\r\n{said}Transfer-Encoding: chunked\r\n\r\n".encode())
            for part in (answer[:3], answer[3:] + blobs[:2], blobs[2:]):
                if part:
                    await connection.send(b"%x\r\n%b\r\n" % (len(part), part))
            await connection.send(b"0\r\n\r\n")
        else:
            await connection.answer(answer + blobs, headers=said + 'ETag: "x"\r\n')

    @property
    def inferences(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.is_inference]

    @property
    def questions(self) -> int:
        return len(self.asked) - len(self.inferences)


@asynccontextmanager
async def passing(*servers: Server, backend: str = "binary: auto", extra: str = "") -> AsyncIterator[Client]:
    """A gateway in front of *servers*, and a client of it."""
    async with AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(lying(server.serve))).url for server in servers]
        more = "".join(f"', '{url}" for url in urls[1:])
        yield await stack.enter_async_context(running(urls[0] + more, extra, backend))


async def until(condition: Callable[[], object]) -> None:
    """Wait until *condition* holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def is_binary(reply: Reply) -> bool:
    return reply.status == 200 and HEADER_LENGTH in reply.headers


# Whether and how a request passes


@pytest.mark.rule("11.5")
@pytest.mark.parametrize("binary", ["auto", "always"])
async def test_a_binary_request_passes_as_it_came(binary: str) -> None:
    server, header = Server(), request()
    async with passing(server, backend=f"binary: {binary}") as client:
        for _ in range(3):  # the heads of later ones are known
            reply = await client.infer(
                header + ARRAY.tobytes(), len(header), headers={"Content-Type": "a/b", "X-A": "b"}
            )
            assert (reply.status, reply.binary) == (200, ARRAY.tobytes())
            assert reply.headers["Content-Type"] == "application/octet-stream"
            assert reply.headers["ETag"] == '"x"'
        metrics = await client.metrics()
    assert len(server.inferences) == 3
    for asked in server.inferences:
        assert asked.body == header + ARRAY.tobytes()
        assert asked.values(HEADER_LENGTH) == [str(len(header))]
        assert asked.values("Content-Type") == ["a/b"]
        assert asked.values("X-A") == ["b"]
        assert asked.values("Content-Length") == [str(len(asked.body))]
    assert server.questions == (1 if binary == "auto" else 0)
    for name in ("client_request", "client_response", "upstream_request", "upstream_response"):
        assert metrics[f'tensor_gateway_{name}_bytes_count{{format="binary",route="main"}}'] == 3, name
    assert metrics['tensor_gateway_transcode_seconds_count{direction="request"}'] == 0


async def test_the_upstreams_binary_series_begin_with_zero() -> None:
    async with passing(Server()) as client:
        metrics = await client.metrics()
    assert metrics['tensor_gateway_upstream_request_bytes_count{format="binary",route="main"}'] == 0


@pytest.mark.rule("11.5")
async def test_json_passes_as_json() -> None:
    server = Server()
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}).encode()
    async with passing(server) as client:
        reply = await client.infer(body)
        metrics = await client.metrics()
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [1, 2])
    assert server.inferences[0].body == body
    assert server.inferences[0].values(HEADER_LENGTH) == []
    assert metrics['tensor_gateway_upstream_request_bytes_count{format="json",route="main"}'] == 1


async def test_a_raw_request_passes_without_asking_for_metadata() -> None:
    server = Server()
    async with passing(server, backend="binary: always") as client:
        reply = await client.infer(ARRAY.tobytes(), 0)
    assert (reply.status, reply.binary) == (200, ARRAY.tobytes())
    assert [asked.values(HEADER_LENGTH) for asked in server.asked] == [["0"]]


@pytest.mark.rule("11.5")
@pytest.mark.parametrize(
    ("length", "said", "arrives"),
    [
        (2, "application/octet-stream", "application/octet-stream"),
        (2, "application/json", "application/octet-stream"),
        (2, "", "application/octet-stream"),
        (2, "text/plain", "text/plain"),
        (None, "", "application/json"),
        (None, "application/octet-stream", "application/json"),
        (None, "text/plain", "text/plain"),
    ],
)
async def test_the_content_type_is_put_right_for_servers_that_decide_by_it(
    length: int | None, said: str, arrives: str
) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.answer(b"{}")

    async with lying(script) as liar, running(liar.url, "", "binary: always") as client:
        await client.infer(b"{}", length, headers={"Content-Type": said} if said else {})
    head = liar.connections[0].head.decode().lower()
    assert head.count("content-type: ") == 1
    assert f"\r\ncontent-type: {arrives}\r\n" in head


async def test_names_that_some_servers_take_for_those_of_the_gateway_do_not_pass() -> None:
    server, header = Server(), request()
    headers = {"Inference_Header_Content_Length": "3", "Content_Type": "text/plain", "X_A": "b"}
    async with passing(server) as client:
        await client.infer(header + ARRAY.tobytes(), len(header), headers=headers)
    (asked,) = server.inferences
    assert asked.values("Inference_Header_Content_Length") == asked.values("Content_Type") == []
    assert asked.values("X_A") == ["b"]


@pytest.mark.rule("6", "11.5")
@pytest.mark.parametrize("array", [ARRAY, LARGE])
async def test_a_missing_header_length_is_put_right(array: Any) -> None:
    server, header = Server(), request(array)
    async with passing(server) as client:
        reply = await client.infer(header + array.tobytes(), headers={"Content-Type": "application/json"})
        metrics = await client.metrics()
    assert is_binary(reply)
    assert server.inferences[0].values(HEADER_LENGTH) == [str(len(header))]
    assert server.inferences[0].body == header + array.tobytes()
    assert metrics["tensor_gateway_header_recovered_total"] == 1


async def test_a_body_whose_missing_header_length_cannot_be_found_is_refused() -> None:
    server = Server()
    async with passing(server) as client:
        reply = await client.infer(request() + b"\0" * 3)
    assert reply.status == 400
    assert HEADER_LENGTH in reply.error
    assert server.inferences == []


async def test_without_recovery_a_body_without_header_length_is_the_servers_business() -> None:
    server = Server(is_binary=True)
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()
    async with passing(server, extra="recover_header_length: false\n") as client:
        assert (await client.infer(body)).status == 200
    assert server.inferences[0].body == body


async def test_two_equal_header_lengths_go_on_as_one() -> None:
    server, header = Server(), request()
    headers = [(HEADER_LENGTH, str(len(header))), (HEADER_LENGTH, f" {len(header)}")]
    async with passing(server) as client:
        reply = await client.request("POST", PATH, data=header + ARRAY.tobytes(), headers=headers)
    assert is_binary(reply)
    assert server.inferences[0].values(HEADER_LENGTH) == [str(len(header))]


@pytest.mark.parametrize("n_bytes", [2, 2_000_000])
@pytest.mark.parametrize("more", [None, 1, 10**12])
async def test_a_header_length_that_cannot_be_is_refused(n_bytes: int, more: int | None) -> None:
    server = Server()
    async with passing(server) as client:
        reply = await client.infer(b"{" * n_bytes, "abc" if more is None else n_bytes + more)
        assert reply.status == 400
        assert HEADER_LENGTH in reply.error
    assert server.inferences == []


@pytest.mark.parametrize("vendor", ["sagemaker", "vertex-ai"])
async def test_a_vendors_content_type_is_understood_and_answered(vendor: str) -> None:
    server, header = Server(), request()
    type_ = f"application/vnd.{vendor}-triton.binary+json"
    async with passing(server) as client:
        headers = {"Content-Type": f"{type_};json-header-size={len(header)}"}
        reply = await client.infer(header + ARRAY.tobytes(), headers=headers)
    assert reply.binary == ARRAY.tobytes()
    assert reply.headers["Content-Type"] == f"{type_};json-header-size={reply.headers[HEADER_LENGTH]}"
    assert server.inferences[0].values(HEADER_LENGTH) == [str(len(header))]


@pytest.mark.rule("7", "11.5")
async def test_a_compressed_body_arrives_inflated() -> None:
    server, header = Server(), request()
    async with passing(server) as client:
        body = gzip.compress(header + ARRAY.tobytes())
        headers = {"Content-Encoding": "gzip", "Digest": "sha-256=x"}
        reply = await client.infer(body, len(header), headers=headers)
        assert is_binary(reply)
        broken = await client.infer(body[:-9], len(header), headers=headers)
        unknown = await client.infer(body, len(header), headers={"Content-Encoding": "br"})
    (asked,) = server.inferences
    assert asked.body == header + ARRAY.tobytes()
    assert asked.values("Content-Encoding") == asked.values("Digest") == []
    assert (broken.status, unknown.status) == (400, 415)


async def test_the_clients_coding_of_answers_is_the_servers_business() -> None:
    server, header = Server(), request()
    async with passing(server) as client:
        await client.infer(header + ARRAY.tobytes(), len(header), headers={"Accept-Encoding": "gzip"})
        await client.infer(header + ARRAY.tobytes(), len(header), headers={"Accept-Encoding": "identity"})
    assert [asked.values("Accept-Encoding") for asked in server.inferences] == [["gzip"], ["identity"]]


async def test_requests_of_a_sequence_stay_together_and_pass() -> None:
    servers = [Server(), Server()]
    header = request(parameters={"sequence_id": 7})
    async with passing(*servers, backend="binary: auto\nsticky: sequence_id") as client:
        for _ in range(6):
            assert is_binary(await client.infer(header + ARRAY.tobytes(), len(header)))
    assert sorted(len(server.inferences) for server in servers) == [0, 6]


RENAMING = "routes: [{name: r, backend: main, rename: {public: m}}]\n"


@pytest.mark.parametrize("in_chunks", [False, True])
@pytest.mark.parametrize("array", [ARRAY, LARGE])
async def test_a_renamed_model_keeps_the_clients_name(array: Any, in_chunks: bool) -> None:
    server, header = Server(in_chunks=in_chunks), request(array)
    async with passing(server, extra=RENAMING) as client:
        reply = await client.infer(
            header + array.tobytes(), len(header), model="public", headers={"Accept-Encoding": "gzip"}
        )
    assert server.inferences[0].head.startswith("POST /v2/models/m/infer ")
    assert server.inferences[0].values("Accept-Encoding") == ["identity"]
    assert reply.json["model_name"] == "public"
    assert reply.binary == array.tobytes()
    assert "ETag" not in reply.headers


async def test_an_answer_that_ends_inside_of_its_json_is_no_answer() -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.answer(b'{"model_name": "m"}', headers=f"{HEADER_LENGTH}: 99\r\n")

    async with lying(script) as liar, running(liar.url, RENAMING, "binary: always") as client:
        reply = await client.infer(b"{}", 2, model="public")
    assert reply.status == 502
    assert "ends inside of its JSON" in reply.error


@pytest.mark.parametrize("status", ["400 Bad Request", "500 Internal Server Error"])
async def test_errors_keep_their_status_and_get_the_protocols_shape(status: str) -> None:
    async def script(connection: Connection) -> None:
        while True:
            await connection.read_request()
            await connection.answer(b"<p>broken</p>", status, "Content-Type: text/html\r\n")

    async with lying(script) as liar, running(liar.url, "", "binary: always") as client:
        reply = await client.infer(b"{}", 2)
    assert (str(reply.status), reply.error) == (status[:3], f'backend "main" answered {status[:3]}: broken')


async def test_a_redirect_is_no_answer() -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.answer(b"", "307 Temporary Redirect", "Location: /x\r\n")

    async with lying(script) as liar, running(liar.url, "", "binary: always") as client:
        assert (await client.infer(b"{}", 2)).status == 502


# Bodies that stream, and their limits


class Slowly:
    """A body that goes on when it is told to."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts
        self.may_go_on = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._parts[0]
        await self.may_go_on.wait()
        for part in self._parts[1:]:
            yield part


async def test_both_bodies_stream_and_hold_little_memory() -> None:
    header = request(LARGE)
    whole = header + LARGE.tobytes()
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        connection.head = await connection.reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: %d\r\n" % len(whole) in connection.head
        got = await connection.reader.readexactly(1000)
        has_begun.set()
        got += await connection.reader.readexactly(len(whole) - 1000)
        assert got == whole
        await connection.send(
            f"HTTP/1.1 200 OK\r\n{HEADER_LENGTH}: {len(header)}\r\nContent-Length: {len(whole)}\r\n\r\n".encode()
        )
        await connection.send(whole[:200_000])
        await may_end.wait()
        await connection.send(whole[200_000:])

    async with lying(script) as liar, running(liar.url, "", "binary: always") as client:
        admission = client.gateway.data_plane.gateway.admission
        body = Slowly(whole[:200_000], whole[200_000:])
        headers = {HEADER_LENGTH: str(len(header)), "Content-Length": str(len(whole))}
        async with asyncio.timeout(DEADLINE_S):
            posting = asyncio.ensure_future(client.session.post(client.url + PATH, data=body, headers=headers))
            await has_begun.wait()
            assert 0 < admission.held_bytes <= UPLOAD_BYTES
            body.may_go_on.set()
            async with await posting as response:
                assert await response.content.readexactly(100_000) == whole[:100_000]
                assert 0 < admission.held_bytes <= UPLOAD_BYTES
                may_end.set()
                assert await response.read() == whole[100_000:]
        await until(lambda: admission.held_bytes == 0)


async def test_a_request_that_is_announced_too_large_is_refused_unsent() -> None:
    server = Server()
    async with passing(server, extra="limits: {request_body: 1MiB}\n") as client:
        reply = await client.infer(request(LARGE) + LARGE.tobytes(), len(request(LARGE)))
        assert reply.status == 413
        assert "limits.request_body" in reply.error
    assert server.inferences == []


@pytest.mark.parametrize("n_bytes", [200_000, 4_000_000])
async def test_a_request_that_grows_too_large_is_refused(n_bytes: int) -> None:
    server = Server()

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(n_bytes // 10_000):
            yield bytes(10_000)

    async with passing(server, extra="limits: {request_body: 100KiB}\n") as client:
        reply = await client.request("POST", PATH, data=chunks(), headers={HEADER_LENGTH: "0"})
        assert reply.status == 413
        assert "limits.request_body" in reply.error
        metrics = await client.metrics()
    assert server.inferences == []
    assert metrics['tensor_gateway_errors_total{blame="client",reason="body_too_large",route="main"}'] == 1


async def test_an_answer_that_is_announced_too_large_is_a_502() -> None:
    server, header = Server(), request(LARGE)
    async with passing(server, extra="limits: {response_body: 1MiB}\n") as client:
        reply = await client.infer(header + LARGE.tobytes(), len(header))
    assert reply.status == 502
    assert "limits.response_body" in reply.error


async def test_an_answer_that_grows_too_large_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    server, header = Server(in_chunks=True), request(LARGE)
    async with passing(server, extra="limits: {response_body: 1MiB}\n") as client:
        with pytest.raises(Exception, match=r".") as raised:
            await client.infer(header + LARGE.tobytes(), len(header))
        metrics = await client.metrics()
    assert type(raised.value).__name__ in ("ClientPayloadError", "ClientOSError", "ServerDisconnectedError")
    assert metrics['tensor_gateway_errors_total{blame="backend",reason="malformed_response",route="main"}'] == 1


async def test_a_client_that_leaves_while_it_sends_leaves_nothing_behind() -> None:
    has_begun = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.reader.readexactly(1000)
        has_begun.set()
        await connection.reader.read(-1)

    async with lying(script) as liar, running(liar.url, "", "binary: always") as client:
        gateway = client.gateway.data_plane.gateway
        host, port = client.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n{HEADER_LENGTH}: 0\r\nContent-Length: 4000000\r\n\r\n"
        writer.write(head.encode() + bytes(500_000))
        async with asyncio.timeout(DEADLINE_S):
            await has_begun.wait()
            writer.transport.abort()
            await liar.connections[0].ended.wait()
        await until(lambda: (gateway.in_flight, gateway.admission.held_bytes) == (0, 0))
        metrics = await client.metrics()
    assert metrics['tensor_gateway_errors_total{blame="client",reason="client_closed",route="main"}'] == 1


async def test_a_client_that_sends_nothing_takes_no_connection() -> None:
    server = Server()
    async with passing(server, backend="binary: always\ntimeouts: {total: 300ms}") as client:
        reply = await client.request("POST", PATH, data=Slowly(b""), headers={HEADER_LENGTH: "0"})
    assert reply.status == 408
    assert server.asked == []


async def test_the_connections_of_uploads_do_not_pile_up() -> None:
    server, header = Server(), request(LARGE)
    async with lying(server.serve) as liar, running(liar.url, "", "binary: always") as client:
        for _ in range(3):
            await asyncio.gather(*(client.infer(header + LARGE.tobytes(), len(header)) for _ in range(2)))
        (state,) = client.gateway.data_plane.gateway.serving.upstreams["main"].endpoints.states
        assert (state.busy, len(state.idle)) == (0, 2)
        await until(lambda: sum(not each.ended.is_set() for each in liar.connections) == 2)


@pytest.mark.parametrize(("array", "n_connections"), [(ARRAY, 1), (IMAGE, 1), (LARGE, 3)])
async def test_only_what_is_streamed_needs_new_connections(array: Any, n_connections: int) -> None:
    server, header = Server(), request(array)
    async with lying(server.serve) as liar, running(liar.url, "", "binary: always") as client:
        for _ in range(3):
            assert (await client.infer(header + array.tobytes(), len(header))).binary == array.tobytes()
        assert len(liar.connections) == n_connections
        assert client.gateway.data_plane.gateway.admission.held_bytes == 0


async def test_expect_is_answered_by_the_gateway() -> None:
    server, header = Server(), request()
    async with passing(server) as client:
        reply = await client.request(
            "POST", PATH, data=header + ARRAY.tobytes(), headers={HEADER_LENGTH: str(len(header))}, expect100=True
        )
    assert is_binary(reply)
    assert server.inferences[0].values("Expect") == []


# What is tried again


class Closing:
    """Reads so much of each inference, and closes."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self.n_requests = 0

    async def serve(self, connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        self.n_requests += 1
        await connection.reader.readexactly(self.n_bytes)


@pytest.mark.parametrize(("array", "is_repeated"), [(ARRAY, True), (IMAGE, True), (LARGE, False)])
async def test_only_a_body_that_was_read_whole_is_sent_again(array: Any, is_repeated: bool) -> None:
    closing, server, header = Closing(10), Server(), request(array)
    backend = "binary: always\nretry: {attempts: 2, resend_after_sent: true}\nbalance: round_robin"
    async with lying(closing.serve) as liar, lying(server.serve) as other:
        async with running(f"{liar.url}', '{other.url}", "", backend) as client:
            replies = [await client.infer(header + array.tobytes(), len(header)) for _ in range(2)]
    assert closing.n_requests == 1
    assert sorted(reply.status for reply in replies) == ([200, 200] if is_repeated else [200, 502])


async def test_a_stream_that_has_not_begun_goes_to_another_endpoint(unused_tcp_port: int) -> None:
    server, header = Server(), request(LARGE)
    backend = "binary: always\nretry: {attempts: 2}\nbalance: round_robin"
    async with lying(server.serve) as liar:
        async with running(f"http://127.0.0.1:{unused_tcp_port}', '{liar.url}", "", backend) as client:
            for _ in range(2):
                assert is_binary(await client.infer(header + LARGE.tobytes(), len(header)))


# Attempts that go to an endpoint that has not said that it reads binary


RETRYING = "retry: {attempts: 3, budget: 1, resend_after_sent: true}\neject: {failures: 1, for: 60s}\n"


@asynccontextmanager
async def one_of_two_passing(backend: str = "") -> AsyncIterator[tuple[Client, Server, Server, Liar]]:
    """A gateway that passes to the first server; the other, which reads JSON alone, was ejected and works again.

    The last value runs the first server's connections.
    """
    binary, other = Server(), Server(is_binary=False, is_dead=True)
    header = request()
    async with lying(binary.serve) as first, lying(other.serve) as second:
        urls = f"{first.url}', '{second.url}"
        async with running(urls, "", f"binary: auto\nbalance: round_robin\n{RETRYING}{backend}") as client:
            async with asyncio.timeout(DEADLINE_S):
                while not is_binary(await client.infer(header + ARRAY.tobytes(), len(header))):
                    pass
            other.is_dead = False
            yield client, binary, other, first


def is_right(reply: Reply, array: Any) -> bool:
    """Whether the reply has the values of *array*, which were not asked for in binary."""
    if reply.status != 200:
        return False
    if HEADER_LENGTH in reply.headers:
        return bool(reply.binary == array.tobytes())
    return bool(np.array(reply.json["outputs"][0]["data"], np.float32).tobytes() == array.tobytes())


@pytest.mark.rule("11.5")
@pytest.mark.parametrize("n_read", [1, 4, 8])
async def test_no_octets_reach_an_endpoint_that_has_not_said_that_it_reads_them(n_read: int) -> None:
    """It dies at any moment. Two retries of each of so few requests are always within the budget (`RETRIES_PER_S`)."""
    async with one_of_two_passing() as (client, binary, other, _):
        binary.dies_at = len(binary.inferences) + n_read
        arrays = [ARRAY, ARRAY, IMAGE, LARGE] * 3
        headers = [request(array) for array in arrays]
        asked = (
            client.infer(header + array.tobytes(), len(header)) for header, array in zip(headers, arrays, strict=True)
        )
        replies = await asyncio.gather(*asked)
        metrics = await client.metrics()
    assert binary.is_dead
    assert len(other.inferences) >= sum(array is not LARGE for array in arrays) - (n_read - 1)
    assert [asked.head for asked in other.inferences if asked.values(HEADER_LENGTH)] == []
    wrong = [
        (reply.status, reply.body[:200])
        for reply, array in zip(replies, arrays, strict=True)
        if not is_right(reply, array) and not (array is LARGE and reply.status == 503)  # its upload was under way
    ]
    assert wrong == []
    errors = {name: value for name, value in metrics.items() if "errors_total" in name and value}
    assert set(errors) <= {'tensor_gateway_errors_total{blame="backend",reason="unreachable",route="main"}'}


@pytest.mark.rule("11.5")
async def test_an_attempt_that_cannot_pass_is_transcoded_within_the_same_call() -> None:
    async with one_of_two_passing() as (client, binary, other, _):
        before = await client.metrics()
        binary.die()
        header = request(parameters={"binary_data_output": True})
        reply = await client.infer(header + ARRAY.tobytes(), len(header))
        metrics = await client.metrics()
    assert reply.binary == ARRAY.tobytes()
    (asked,) = other.inferences
    assert json.loads(asked.body)["inputs"][0]["data"] == ARRAY.tolist()
    new = {name: value - before.get(name, 0) for name, value in metrics.items() if value != before.get(name, 0)}
    assert sum(value for name, value in new.items() if "_retries_total" in name) == 1
    assert new['tensor_gateway_upstream_request_bytes_count{format="json",route="main"}'] >= 1
    assert not any('upstream_request_bytes_count{format="binary"' in name for name in new)
    assert new['tensor_gateway_transcode_seconds_count{direction="request"}'] == 1
    assert new['tensor_gateway_requests_total{code="200",model="identity",protocol="http",route="main"}'] == 1


@pytest.mark.parametrize("array", [ARRAY, IMAGE, LARGE])
async def test_a_body_that_was_not_sent_yet_becomes_json_if_the_endpoint_is_doubted_meanwhile(array: Any) -> None:
    server, header = Server(), request(array)
    whole = header + array.tobytes()
    async with passing(server) as client:
        assert is_binary(await client.infer(whole, len(header)))
        upstream = client.gateway.data_plane.gateway.serving.upstreams["main"]
        admission = client.gateway.data_plane.gateway.admission
        body = Slowly(whole[:10], whole[10:])
        headers = {HEADER_LENGTH: str(len(header)), "Content-Length": str(len(whole))}
        posting = asyncio.ensure_future(client.request("POST", "/v2/models/identity/infer", data=body, headers=headers))
        await until(lambda: admission.held_bytes)
        server.is_binary = False
        upstream.endpoints.states[0].speech.doubt(asyncio.get_running_loop().time())
        body.may_go_on.set()
        assert is_right(await posting, array)
        await until(lambda: admission.held_bytes == 0)
    assert [asked.values(HEADER_LENGTH) for asked in server.inferences] == [[str(len(header))], []]


async def test_a_body_that_waited_for_a_connection_becomes_json_if_nobody_reads_binary_any_more() -> None:
    queue = "max_connections: 1\nqueue: {length: 9, timeout: 20s}"
    server, header = Server(), request()
    whole = header + ARRAY.tobytes()
    async with passing(server, backend=f"binary: auto\n{queue}") as client:
        assert is_binary(await client.infer(whole, len(header)))
        upstream = client.gateway.data_plane.gateway.serving.upstreams["main"]
        assert upstream.connections.take_slot()
        asked = [asyncio.ensure_future(client.infer(whole, len(header))) for _ in range(4)]
        raw = asyncio.ensure_future(client.infer(ARRAY.tobytes(), 0))
        now_s = asyncio.get_running_loop().time
        await until(lambda: upstream.recent_calls.totals(now_s())[0] == 6)
        server.is_binary = False
        described = {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [4]}]}
        server.metadata = lambda: json.dumps(described).encode()
        upstream.endpoints.states[0].speech.doubt(asyncio.get_running_loop().time())
        upstream.connections.release_slot()
        async with asyncio.timeout(DEADLINE_S):
            assert all(is_right(reply, ARRAY) for reply in await asyncio.gather(*asked, raw))
    assert sum(bool(each.values(HEADER_LENGTH)) for each in server.inferences) == 1


@pytest.mark.rule("11.5")
async def test_an_upload_that_is_partly_gone_gets_503_and_not_a_foreign_refusal() -> None:
    header, small = request(LARGE), request()
    whole = header + LARGE.tobytes()
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def serve(connection: Connection) -> None:
        head = await connection.reader.readuntil(b"\r\n\r\n")
        if b"Content-Length: %d\r\n" % len(whole) in head:
            await connection.reader.readexactly(100_000)
            has_begun.set()
            await may_end.wait()

    async with one_of_two_passing() as (client, binary, other, liar), wire(client.url) as uploading:
        for connection in binary.connections:
            connection.writer.close()
        liar.script = serve
        headers = {HEADER_LENGTH: len(header)}
        await uploading.send(head_of("POST", "/v2/models/identity/infer", len(whole), headers) + whole[:200_000])
        async with asyncio.timeout(DEADLINE_S):
            await has_begun.wait()
            assert is_right(await client.infer(small + ARRAY.tobytes(), len(small)), ARRAY)
            may_end.set()
            reply = await uploading.reply()
    assert reply.status == 503
    assert b"no endpoint is left that has said that it reads binary" in reply.body
    assert [asked.values(HEADER_LENGTH) for asked in other.inferences] == [[]]


# Servers that change their mind, differ, or say nothing


async def test_a_server_that_stops_saying_so_gets_json_after_the_first_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    server, header = Server(), request()
    async with passing(server) as client:
        assert is_binary(await client.infer(header + ARRAY.tobytes(), len(header)))
        server.is_binary = False
        refused = await client.infer(header + ARRAY.tobytes(), len(header))
        assert (refused.status, refused.error) == (400, "this is no JSON")
        for _ in range(3):
            reply = await client.infer(header + ARRAY.tobytes(), len(header))
            assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [0, 1, 2, 3])
        assert server.questions == 2
        server.is_binary = True
    assert "backend 'main' speaks V2 in binary" in caplog.text
    assert "does not say binary_tensor_data" in caplog.text


@asynccontextmanager
async def at_port(server: Server, port: int) -> AsyncIterator[None]:
    """The *server* listens on *port*; at the end nobody does, and its connections are gone."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await server.serve(Connection(reader, writer))
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", port):
        yield
        server.die()
    server.is_dead = False


async def test_a_server_that_was_not_there_gets_no_octets_before_it_was_asked(unused_tcp_port: int) -> None:
    """Also if the one before had been doubted, and had said again that it reads them."""
    server, header = Server(), request()
    async with running(f"http://127.0.0.1:{unused_tcp_port}", "", "binary: auto\neject: {failures: 0}") as client:
        async with at_port(server, unused_tcp_port):
            assert is_binary(await client.infer(header + ARRAY.tobytes(), len(header)))
            server.is_binary = False
            server.metadata = lambda: b'{"name": "stand-in", "version": "1", "extensions": ["binary_tensor_data"]}'
            assert (await client.infer(header + ARRAY.tobytes(), len(header))).status == 400
            server.is_binary = True
            assert is_binary(await client.infer(header + ARRAY.tobytes(), len(header)))
            assert server.questions == 2
        assert (await client.infer(header + ARRAY.tobytes(), len(header))).status == 503
        server.is_binary, server.metadata = False, None
        async with at_port(server, unused_tcp_port):
            reply = await client.infer(header + ARRAY.tobytes(), len(header))
            assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [0, 1, 2, 3])
    assert server.inferences[-1].values(HEADER_LENGTH) == []


async def test_a_failure_while_others_are_in_flight_does_not_touch_them() -> None:
    """A server that is replaced: streams that have begun end well, and what comes later becomes JSON."""
    server, header = Server(), request(LARGE)
    whole = header + LARGE.tobytes()
    async with passing(server) as client:
        assert is_binary(await client.infer(whole, len(header)))
        body = Slowly(whole[:300_000], whole[300_000:])
        headers = {HEADER_LENGTH: str(len(header)), "Content-Length": str(len(whole))}
        posting = asyncio.ensure_future(client.request("POST", PATH, data=body, headers=headers))
        upstream = client.gateway.data_plane.gateway.serving.upstreams["main"]
        await until(lambda: upstream.endpoints.states[0].in_flight)
        server.metadata = lambda: b'{"name": "old", "extensions": []}'
        upstream.endpoints.states[0].speech.doubt(asyncio.get_running_loop().time())
        small = request()
        reply = await client.infer(small + ARRAY.tobytes(), len(small))
        assert server.inferences[-1].values(HEADER_LENGTH) == []
        assert (reply.status, is_binary(reply)) == (200, False)
        body.may_go_on.set()
        assert (await posting).binary == LARGE.tobytes()


async def test_what_a_server_says_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "DUE_S", 0.0)
    monkeypatch.setattr(speaking, "BELIEVED_S", 0.2)
    server, header = Server(is_binary=False), request()
    async with passing(server) as client:
        assert not is_binary(await client.infer(header + ARRAY.tobytes(), len(header)))
        server.is_binary = True
        async with asyncio.timeout(DEADLINE_S):
            while not is_binary(await client.infer(header + ARRAY.tobytes(), len(header))):
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)  # longer than it is believed
        server.metadata = lambda: b'{"name": "old"}'
        assert not is_binary(await client.infer(header + ARRAY.tobytes(), len(header)))


@pytest.mark.rule("11.5")
async def test_endpoints_that_differ_all_get_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    servers, header = [Server(), Server(is_binary=False)], request()
    async with passing(*servers, backend="binary: auto\nbalance: round_robin") as client:
        for _ in range(4):
            reply = await client.infer(header + ARRAY.tobytes(), len(header))
            assert (reply.status, is_binary(reply)) == (200, False)
        assert [len(server.inferences) for server in servers] == [2, 2]
        servers[1].is_binary = True
        upstream = client.gateway.data_plane.gateway.serving.upstreams["main"]
        url = upstream.endpoints.states[1].url
        assert f"backend 'main' speaks V2 in JSON: {url} does not say binary_tensor_data" in caplog.text
        upstream.endpoints.states[1].speech.doubt(asyncio.get_running_loop().time())
        assert is_binary(await client.infer(header + ARRAY.tobytes(), len(header)))


async def test_an_endpoint_that_is_ejected_has_no_say(unused_tcp_port: int) -> None:
    server, header = Server(), request()
    backend = "binary: auto\nretry: {attempts: 2}\neject: {failures: 1}\nbalance: round_robin"
    async with lying(server.serve) as liar:
        async with running(f"{liar.url}', 'http://127.0.0.1:{unused_tcp_port}", "", backend) as client:
            replies = [await client.infer(header + ARRAY.tobytes(), len(header)) for _ in range(4)]
    assert [reply.status for reply in replies] == [200] * 4
    assert not is_binary(replies[0])  # the other has not said that it takes binary bodies
    assert is_binary(replies[-1])


@pytest.mark.parametrize("delay_s", [0.0, 0.25])
async def test_an_endpoint_that_comes_back_from_ejection_gets_no_binary_unless_it_says_so(
    delay_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it comes back after what the backend speaks was found out, and before an endpoint is picked."""
    servers, header = [Server(), Server(is_binary=False)], request()
    is_broken = True
    find_out = Upstream.spoken

    async def late(upstream: Upstream) -> Spoken:
        spoken = await find_out(upstream)
        await asyncio.sleep(delay_s)
        return spoken

    monkeypatch.setattr(Upstream, "spoken", late)

    async def serve(connection: Connection) -> None:
        if is_broken:
            await connection.read_request()
        else:
            await servers[1].serve(connection)

    backend = "binary: auto\nretry: {attempts: 2, resend_after_sent: true}\neject: {failures: 1, for: 200ms}"
    async with lying(servers[0].serve) as one, lying(serve) as other:
        async with running(f"{one.url}', '{other.url}", "", f"{backend}\nbalance: round_robin") as client:
            for _ in range(4):
                assert (await client.infer(header + ARRAY.tobytes(), len(header))).status == 200
            is_broken = False
            async with asyncio.timeout(DEADLINE_S):
                while not servers[1].inferences:
                    assert (await client.infer(header + ARRAY.tobytes(), len(header))).status == 200
                    await asyncio.sleep(0.02)
    assert servers[1].inferences[0].values(HEADER_LENGTH) == []


@pytest.mark.slow
async def test_a_detection_that_hangs_delays_one_request_and_then_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "ASK_S", 2.0)
    monkeypatch.setattr(speaking, "AGAIN_S", 0.0)
    server, header = Server(metadata=lambda: None), request()
    loop = asyncio.get_running_loop()
    async with passing(server) as client:
        began_s = loop.time()
        assert (await client.infer(header + ARRAY.tobytes(), len(header))).status == 200
        assert loop.time() - began_s >= speaking.ASK_S
        questions = server.questions
        for _ in range(5):  # they are asked for again, but not waited for
            assert (await client.infer(header + ARRAY.tobytes(), len(header))).status == 200
        assert server.questions == questions + 1
        server.metadata = None
        async with asyncio.timeout(DEADLINE_S):
            while not is_binary(await client.infer(header + ARRAY.tobytes(), len(header))):
                await asyncio.sleep(0.05)


async def test_many_requests_wait_for_one_question() -> None:
    server, header = Server(), request()
    async with passing(server) as client:
        requests = [client.infer(header + ARRAY.tobytes(), len(header)) for _ in range(20)]
        assert all(map(is_binary, await asyncio.gather(*requests)))
    assert server.questions == 1


# `dialect: auto`


async def test_a_server_of_v2_is_found() -> None:
    server, header = Server(), request()
    async with passing(server, backend="dialect: auto") as client:
        reply = await client.infer(header + ARRAY.tobytes(), len(header))
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [0, 1, 2, 3])
    assert server.questions == 1


async def test_with_dialect_and_binary_both_auto_one_question_finds_both() -> None:
    server, header = Server(), request()
    async with passing(server, backend="dialect: auto\nbinary: auto") as client:
        assert is_binary(await client.infer(header + ARRAY.tobytes(), len(header)))
    assert server.questions == 1


async def test_a_server_that_speaks_nothing_known_is_named_with_all_that_it_said() -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.answer(b"<html>", "404 Not Found", "Content-Type: text/html\r\n")

    async with lying(script) as liar, running(liar.url, "", "dialect: auto") as client:
        reply = await client.infer(b"{}", 2)
    assert reply.status == 502
    assert "`dialect: auto`" in reply.error
    for said in ("GET /v2 got 404 Not Found", "GET /v1/models 404 Not Found", "GET /ping 404 Not Found"):
        assert said in reply.error


async def test_a_server_that_comes_up_later_is_found_by_the_first_request_then(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speaking, "AGAIN_S", 0.0)
    server, header = Server(), request()
    async with running(f"http://127.0.0.1:{unused_tcp_port}", "", "dialect: auto\nbinary: auto") as client:
        reply = await client.infer(header + ARRAY.tobytes(), len(header))
        assert (reply.status, "cannot be reached" in reply.error) == (503, True)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await server.serve(Connection(reader, writer))
            except (ConnectionError, asyncio.IncompleteReadError):
                writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", unused_tcp_port):
            assert is_binary(await client.infer(header + ARRAY.tobytes(), len(header)))


async def test_another_kind_of_server_at_the_same_address_is_found_after_the_first_failure() -> None:
    described = "models: {'*': {inputs: {x: {datatype: FP32, shape: [4]}}, outputs: {x: {datatype: FP32}}}}"
    server, header = Server(is_binary=False), request()
    is_mlflow = False

    async def serve(connection: Connection) -> None:
        if not is_mlflow:
            await server.serve(connection)
        await connection.read_request()
        found = {"/ping": b"\n", "/version": b"3.17.0", "/invocations": b'{"predictions": [0, 1, 2, 3]}'}.get(
            connection.head.decode().split()[1]
        )
        await connection.answer(found or b'{"detail": "Not Found"}', "404 Not Found" if found is None else "200 OK")

    async with lying(serve) as liar, running(liar.url, "", f"dialect: auto\nkeep_alive: 1ms\n{described}") as client:
        assert (await client.infer(header + ARRAY.tobytes(), len(header))).status == 200
        is_mlflow = True
        await asyncio.sleep(0.01)  # longer than connections are kept
        assert (await client.infer(header + ARRAY.tobytes(), len(header))).status == 404
        reply = await client.infer(header + ARRAY.tobytes(), len(header))
        assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [0, 1, 2, 3])


async def test_a_detection_that_hangs_ends_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "ASK_S", 0.3)
    async with passing(Server(metadata=lambda: None), backend="dialect: auto") as client:
        replies = [await client.infer(b"{}", 2) for _ in range(2)]  # the second does not wait again
    assert [reply.status for reply in replies] == [504, 504]
    assert "no answer to GET /v2 within 0.3 s" in replies[1].error


async def test_endpoints_of_different_dialects_are_named() -> None:
    async def mlflow(connection: Connection) -> None:
        await connection.read_request()
        found = {"/ping": b"\n", "/version": b"3.17.0"}.get(connection.head.decode().split()[1])
        await connection.answer(found or b"{}", "404 Not Found" if found is None else "200 OK")

    async with lying(Server().serve) as one, lying(mlflow) as other:
        async with running(f"{one.url}', '{other.url}", "", "dialect: auto") as client:
            reply = await client.infer(b"{}", 2)
    assert reply.status == 502
    assert f"{one.url} v2" in reply.error
    assert f"{other.url} mlflow" in reply.error


async def test_failures_do_not_become_a_flood_of_questions() -> None:
    async def script(connection: Connection) -> None:
        while True:
            await connection.read_request()
            if connection.head.startswith(b"GET "):
                asked.append(connection)
                await connection.answer(b'{"name": "triton", "extensions": ["binary_tensor_data"]}')
            else:
                connection.body = b""
                await connection.answer(b'{"error": "bad request"}', "400 Bad Request")

    asked: list[Connection] = []
    loop = asyncio.get_running_loop()
    async with lying(script) as liar, running(liar.url, "", "binary: auto") as client:
        began_s = loop.time()
        for _ in range(100):
            assert (await client.infer(b"{}", 2)).error == "bad request"
        most = 2 + (loop.time() - began_s) / endpoints.DOUBT_S
    assert 2 <= len(asked) <= most


async def test_no_request_waits_for_questions_longer_than_it_may_take() -> None:
    backend = "dialect: auto\ntimeouts: {total: 300ms}"
    async with passing(Server(metadata=lambda: None), backend=backend) as client:
        reply = await client.infer(b"{}", 2)
    assert reply.status == 504
    assert "within 0.3 s" in reply.error


async def test_a_reload_turns_it_on_and_off() -> None:
    server, header = Server(), request()
    async with lying(server.serve) as liar, running(liar.url) as client:
        plane = client.gateway.data_plane

        async def reload(binary: str) -> None:
            main = msgspec.structs.replace(plane.config.backends["main"], binary=binary)
            await plane.replace(msgspec.structs.replace(plane.config, backends={"main": main}))

        for binary, passes in (("auto", True), ("never", False), ("always", True), ("never", False), ("auto", True)):
            await reload(binary)
            reply = await client.infer(header + ARRAY.tobytes(), len(header))
            assert (reply.status, is_binary(reply)) == (200, passes)
            assert bool(server.inferences[-1].values(HEADER_LENGTH)) is passes
