"""Everything that is no inference: relayed as it streams, and `GET /v2`, which advertises the extension."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.demo import JsonServer
from tests.conftest import Client, Connection, answering, lying, running


@pytest.mark.rule("8")
@pytest.mark.parametrize("path", ["/v2", "/v2/"])
async def test_server_metadata_names_the_extension(client: Client, path: str) -> None:
    reply = await client.request("GET", path)
    assert reply.status == 200
    assert reply.json == {"name": "embedded", "version": "1", "extensions": ["binary_tensor_data"]}


@pytest.mark.rule("8")
@pytest.mark.parametrize(
    ("metadata", "extensions"),
    [
        ({"extensions": ["a"]}, ["a", "binary_tensor_data"]),
        ({"extensions": None}, ["binary_tensor_data"]),
        ({}, ["binary_tensor_data"]),
        ({"extensions": ["binary_tensor_data", "a"]}, ["binary_tensor_data", "a"]),
        ({"extensions": ["binary_tensor_data", "a", "binary_tensor_data"]}, ["a", "binary_tensor_data"]),
    ],
)
async def test_extension_is_named_exactly_once(metadata: dict[str, Any], extensions: list[str]) -> None:
    async with lying(answering(json.dumps(metadata).encode())) as liar, running(liar.url) as client:
        assert (await client.request("GET", "/v2")).json["extensions"] == extensions


@pytest.mark.rule("8")
@pytest.mark.parametrize("body", [b"<html>", b"[]", b""])
async def test_other_answers_for_server_metadata_are_untouched(body: bytes) -> None:
    async with lying(answering(body, "200 OK", "Content-Type: text/x\r\n")) as liar, running(liar.url) as client:
        reply = await client.request("GET", "/v2")
    assert (reply.status, reply.body, reply.headers["Content-Type"]) == (200, body, "text/x")


@pytest.mark.rule("8")
@pytest.mark.parametrize(
    "target",
    [
        "/v2/models/a%20b/config?x=%2Fy&z=../1+2",
        "//double//slash",
        "/v2/models/m/versions/1/ready",
        "/a%2Fb/..c/.d",
        "/%7e?a=b?c",
    ],
)
async def test_path_and_query_arrive_as_they_were_written(target: str) -> None:
    async with lying(answering(b"ok")) as liar, running(liar.url) as client:
        host, port = client.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert (await reader.read()).endswith(b"\r\n\r\nok")
        writer.close()
        assert liar.connections[0].head.startswith(f"GET {target} HTTP/1.1\r\n".encode())


@pytest.mark.rule("8")
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("size", [0, 5, 1_000_000])
async def test_methods_and_bodies_cross(method: str, size: int) -> None:
    async with lying(answering(b"ok", "202 Accepted", "X-A: b\r\n")) as liar, running(liar.url) as client:
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)

        async def stream() -> AsyncIterator[bytes]:
            yield body

        reply = await client.request(method, "/anything", data=stream() if size > 5 else body or None)
        assert (reply.status, reply.body, reply.headers["X-A"]) == (202, b"ok", "b")
        assert liar.connections[0].body == body
        assert liar.connections[0].head.startswith(method.encode())


async def test_nothing_computed_from_a_servers_metadata_crosses_when_the_extension_is_added() -> None:
    said = 'ETag: "1"\r\nDigest: x\r\nX-A: b\r\n'

    async def script(connection: Connection) -> None:
        for metadata in (b'{"name": "m"}', b'{"extensions": ["binary_tensor_data"]}'):
            await connection.read_request()
            await connection.answer(metadata, headers=said)

    async with lying(script) as liar, running(liar.url) as client:
        changed, unchanged = [(await client.request("GET", "/v2")).headers for _ in range(2)]
    assert ("ETag" in unchanged, "Digest" in unchanged, unchanged["X-A"]) == (True, True, "b")
    assert ("ETag" in changed, "Digest" in changed, changed["X-A"]) == (False, False, "b")


async def test_head_and_204_and_304_have_no_body() -> None:
    answers = iter((b"200 OK\r\nContent-Length: 7", b"204 No Content", b'304 Not Modified\r\nETag: "1"'))

    async def script(connection: Connection) -> None:
        while True:
            await connection.read_request()
            await connection.send(b"HTTP/1.1 " + next(answers) + b"\r\n\r\n")

    async with lying(script) as liar, running(liar.url) as client:
        head = await client.request("HEAD", "/v2/health/live")
        assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", "7")
        assert (await client.request("GET", "/x")).status == 204
        fresh = await client.request("GET", "/x")
        assert (fresh.status, fresh.headers["ETag"]) == (304, '"1"')
        # the first answer announced a body, which some servers send late: its connection is not used again
        assert len(liar.connections) == 2


@pytest.mark.rule("8")
async def test_events_arrive_one_by_one() -> None:
    proceed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await connection.send(b"9\r\ndata: 1\n\n\r\n")
        await proceed.wait()
        await connection.send(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")

    async with lying(script) as liar, running(liar.url) as client:
        async with client.session.post(f"{client.url}/v2/models/m/generate_stream", json={"a": 1}) as response:
            assert await response.content.readany() == b"data: 1\n\n"
            proceed.set()
            assert await response.content.readany() == b"data: 2\n\n"


@pytest.mark.rule("7")
async def test_compressed_bodies_cross_compressed() -> None:
    answer = answering(b"\x1f\x8bzipped", headers="Content-Encoding: gzip\r\nContent-Type: text/plain\r\n")
    async with lying(answer) as liar, running(liar.url) as client:
        reply = await client.request("POST", "/x", data=b"\x1f\x8bmine", headers={"Content-Encoding": "gzip"})
        assert (reply.body, reply.headers["Content-Encoding"]) == (b"\x1f\x8bzipped", "gzip")
        assert liar.connections[0].body == b"\x1f\x8bmine"
        assert b"Content-Encoding: gzip" in liar.connections[0].head


async def test_an_answer_that_breaks_off_is_cut_off_for_the_client_too() -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    async with lying(script) as liar, running(liar.url) as client:
        host, port = client.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(100)
        writer.close()
        metrics = await client.metrics()
        assert metrics['tensor_gateway_errors_total{blame="backend",reason="upstream_closed",route="main"}'] == 1


@pytest.mark.rule("8")
async def test_methods_other_than_post_on_the_infer_path_are_relayed(client: Client) -> None:
    reply = await client.request("GET", "/v2/models/identity/infer")
    assert reply.status == 405


@pytest.mark.rule("8")
async def test_infer_paths_are_two_and_model_names_may_be_encoded(server: JsonServer, client: Client) -> None:
    header = {"inputs": [{"name": "x", "shape": [1], "datatype": "UINT8", "parameters": {"binary_data_size": 1}}]}
    text = json.dumps(header).encode()
    for path in (
        "/v2/models/identity/infer",
        "/v2/models/identity/versions/1/infer",
        "/v2/models/%69dentity/infer?a=b",
    ):
        reply = await client.request(
            "POST", path, data=text + b"\x07", headers={"Inference-Header-Content-Length": str(len(text))}
        )
        assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [7])
    other = await client.request("POST", "/v2/models/identity/versions/1/2/infer", data=text)
    assert other.status == 404


@pytest.mark.rule("8")
async def test_routes_choose_the_backend_and_everything_else_is_a_404(server: JsonServer) -> None:
    routes = (
        "routes:\n"
        "  - {name: ids, models: ['ident*'], backend: main}\n"
        "  - {name: staging, path_prefix: /staging, host: '*.example.com', backend: main}\n"
    )
    async with running(server.url, routes) as client:
        assert (await client.request("GET", "/v2/models/identity")).status == 200
        refused = await client.request("GET", "/v2/models/simple")
        assert (refused.status, "no route" in refused.error) == (404, True)
        assert (await client.request("POST", "/v2/models/simple/infer", data=b"x")).status == 404
        staged = await client.request("GET", "/staging/v2", headers={"Host": "api.Example.com:80"})
        assert staged.status == 404  # the backend's: the prefix is not stripped
        assert b"no route" not in staged.body
        metrics = await client.metrics()
        assert metrics['tensor_gateway_requests_total{code="404",model="other",protocol="http",route="none"}'] == 2
        assert metrics['tensor_gateway_requests_total{code="200",model="other",protocol="http",route="ids"}'] == 1
        assert metrics['tensor_gateway_requests_total{code="404",model="other",protocol="http",route="staging"}'] == 1


async def test_a_refusal_that_is_relayed_as_it_came_is_the_backends_answer_to_a_clients_error() -> None:
    async with lying(answering(b"no", "404 Nothing")) as liar, running(liar.url) as client:
        assert (await client.request("GET", "/other")).body == b"no"
        metrics = await client.metrics()
        assert metrics['tensor_gateway_errors_total{blame="client",reason="backend_error",route="main"}'] == 1
