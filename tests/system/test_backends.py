"""Backends that fail or lie, rule by rule of protocol section 4: what the client gets instead."""

import asyncio
import json
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import pytest

from tests.conftest import HEADER_LENGTH, Connection, answering, lying, running, tensor

X = np.array([1, 2], np.int32)
ASK = {"inputs": [tensor("x", X, "INT32")], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}


def output(**members: Any) -> bytes:
    return json.dumps(
        {"outputs": [{"name": "y", "datatype": "INT32", "shape": [2], "data": [1, 2], **members}]}
    ).encode()


async def ask(body: bytes, header: dict[str, Any] = ASK, *, status: str = "200 OK", **options: Any) -> Any:
    async with lying(answering(body, status, **options)) as liar, running(liar.url) as client:
        return await client.infer_binary(header, X.tobytes())


@pytest.mark.rule("4.7")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (output(), np.array([1, 2], np.int32)),
        (output(data=[[1], [2]]), np.array([1, 2], np.int32)),
        (output(data=[1.0, 2e0]), np.array([1, 2], np.int32)),
        (json.dumps(json.loads(output()), indent=4).encode(), np.array([1, 2], np.int32)),
        (
            b'{"outputs":[{"data":[1,2],"shape":[2],"parameters":null,"datatype":"INT32","name":"y"}]}',
            np.array([1, 2], np.int32),
        ),
        (output(datatype="FP32", data=[1, 2]), np.array([1, 2], np.float32)),
        (output(datatype="FP16", data=[0.1, None]), np.array([0.1, np.nan], np.float16)),
        (output(datatype="FP32", data=["Infinity", "-Infinity"]), np.array([np.inf, -np.inf], np.float32)),
        (output(datatype="FP64", data=[float("nan"), 1e308]), np.array([np.nan, 1e308])),
        (output(datatype="BOOL", data=[1, False]), np.array([True, False])),
        (output(datatype="UINT8", shape=[0], data=[]), np.array([], np.uint8)),
        (output(datatype="UINT8", shape=[], data=[7]), np.array(7, np.uint8)),
    ],
)
async def test_answers_that_are_well_meant_are_read(answer: bytes, expected: npt.NDArray[Any]) -> None:
    reply = await ask(answer)
    assert reply.status == 200
    assert reply.binary == expected.tobytes()
    assert reply.json["outputs"][0]["parameters"] == {"binary_data_size": expected.nbytes}


@pytest.mark.rule("4.4", "4.8")
async def test_base64_outputs_are_decoded_and_other_parameters_stay() -> None:
    reply = await ask(
        output(datatype="BYTES", shape=[1], data=["/wA="], parameters={"content_type": "base64", "more": 1})
    )
    assert reply.binary == b"\x02\x00\x00\x00\xff\x00"
    assert reply.json["outputs"][0]["parameters"]["more"] == 1


@pytest.mark.rule("4.5", "4.6")
async def test_outputs_that_were_not_asked_for_are_dropped_and_the_backends_order_stays() -> None:
    extra = {"datatype": "INT32", "shape": [1], "data": [9]}
    answer = json.dumps(
        {"outputs": [{"name": "z", **extra}, {"name": "b", **extra}, {"name": "a", **extra}], "id": "of the backend"}
    ).encode()
    header = {**ASK, "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in ("a", "b")]}
    reply = await ask(answer, header)
    assert [item["name"] for item in reply.json["outputs"]] == ["b", "a"]
    assert reply.json["id"] == "of the backend"
    assert reply.json["model_name"] == "identity"


@pytest.mark.rule("4.5", "4.7", "4.9")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (output(datatype="UINT8", data=[1, 300]), ["output 'y'", "element 1", "UINT8 cannot hold 300"]),
        (output(data=[1, 1.5]), ["output 'y'", "element 1", "1.5"]),
        (output(data=[1, None]), ["output 'y'", "null"]),
        (output(data=[1, "2"]), ["output 'y'", 'INT32 cannot hold "2"']),
        (output(data=[1]), ["output 'y'", "expected 2 elements, got 1"]),
        (output(data=[1, 2, 3]), ["output 'y'", "expected 2 elements"]),
        (output(data=None), ["output 'y'", "data must be an array"]),
        (output(datatype="FP32", data=[1, 1e39]), ["output 'y'", "cannot hold 1e+39"]),
        (output(datatype="BYTES", data=["a", 1]), ["output 'y'", "expected a string"]),
        (output(datatype="BYTES", data=["a", "!"], parameters={"content_type": "base64"}), ["output 'y'", "base64"]),
        (output(datatype="NEW"), ["output 'y'", "datatype must be one of", '"NEW"']),
        (output(shape=[-1]), ["output 'y'", "shape"]),
        (output(shape=[2**62]), ["output 'y'", "elements cannot be in an answer"]),
        (output(name="z"), ["output 'y' was requested"]),
        (output(name=5), ["output 0", "name"]),
        (b'{"outputs":[{"name":"y","datatype":"INT32","shape":[2],"data":[1,2}]}', ["output 'y'", "bracket"]),
        (b'{"outputs":[{"name":"y","datatype":"INT32","shape":[2],"data":[1,2', ["output 'y'", "cut off"]),
        (b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":["\\ud800"]}]}', ["output 'y'", "surrogate"]),
        (b'{"outputs":[{"name":"y","datatype":"INT32","shape":[2]}]}', ["output 'y' has no data"]),
        (b'{"model_name":"m"}', ["no `outputs` array"]),
        (b"<html>hello</html>", ["the backend's answer: expected a JSON object, got '<html>hello</ht"]),
        (b"[1]", ["expected a JSON object"]),
        (output() + b"x", ["trailing characters"]),
        (b"", ["200 without a body"]),
    ],
)
async def test_broken_answers_are_named(answer: bytes, words: list[str]) -> None:
    reply = await ask(answer)
    assert reply.status == 502
    assert all(word in reply.error for word in words), reply.error


@pytest.mark.rule("4.9")
@pytest.mark.parametrize(
    ("status", "body", "expected", "words"),
    [
        ("404 Not Found", b'{"error":"Model x not found"}', 404, "Model x not found"),
        ("422 Unprocessable", b'{"detail":[{"loc":["body"],"msg":"field required"}]}', 422, "field required"),
        ("400 Bad Request", b'{"detail":"no"}', 400, "no"),
        ("500 Internal Server Error", b"<html>boom</html>", 500, "boom"),
        ("503 Service Unavailable", b"", 503, "503: Service Unavailable"),
        ("500 Internal Server Error", b"\xff\xfe", 500, "\ufffd"),
        ("302 Found", b"", 502, "redirect"),
        ("201 Created", output(), 200, None),
    ],
)
async def test_statuses_of_the_backend(status: str, body: bytes, expected: int, words: str | None) -> None:
    reply = await ask(body, status=status, headers="Content-Type: text/html; charset=utf-8\r\nX-Why: because\r\n")
    assert reply.status == expected
    if expected != 502:
        assert reply.headers["X-Why"] == "because"
    if words is not None:
        assert words in reply.json["error"]
        assert reply.headers.getall("Content-Type") == ["application/json"]


@pytest.mark.rule("4.9")
async def test_members_of_a_backends_error_stay_beside_its_words() -> None:
    reply = await ask(b'{"detail":[{"msg":"field required"}]}', status="422 Unprocessable")
    assert reply.json == {"error": '[{"msg":"field required"}]', "detail": [{"msg": "field required"}]}


@pytest.mark.rule("4.9")
async def test_204_is_an_answer_without_a_body() -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with lying(script) as liar, running(liar.url) as client:
        reply = await client.infer_binary(ASK, X.tobytes())
    assert reply.status == 502
    assert "204 without a body" in reply.error


async def test_error_bodies_are_bounded() -> None:
    reply = await ask(b"x" * 1_000_000, status="500 Oops")
    assert reply.status == 500
    assert reply.error == 'backend "main" answered 500: ' + "x" * 64 * 1024


async def test_answers_beyond_the_limit_are_refused() -> None:
    body = output(shape=[10_000], data=[1] * 100)
    async with lying(answering(body)) as liar, running(liar.url, "limits: {response_body: 1KiB}\n") as client:
        reply = await client.infer_binary(ASK, X.tobytes())
    assert reply.status == 502
    assert "10000 elements cannot be in an answer" in reply.error


@pytest.mark.rule("4.9")
async def test_json_answers_beyond_the_limit_are_refused() -> None:
    body = output(shape=[10_000], data=[1] * 10_000)
    async with lying(answering(body)) as liar, running(liar.url, "limits: {response_body: 1KiB}\n") as client:
        reply = await client.infer_binary({"inputs": ASK["inputs"]}, X.tobytes())
    assert reply.status == 502
    assert "limits.response_body" in reply.error


@pytest.mark.rule("7")
async def test_compressed_answers_nobody_asked_for_are_refused() -> None:
    reply = await ask(b"\x1f\x8b", headers="Content-Encoding: gzip\r\n")
    assert reply.status == 502
    assert "Content-Encoding 'gzip'" in reply.error


@pytest.mark.rule("4.9")
async def test_nobody_listens(unused_tcp_port: int) -> None:
    async with running(f"http://127.0.0.1:{unused_tcp_port}") as client:
        reply = await client.infer_binary(ASK, X.tobytes())
        assert reply.status == 503
        assert "cannot be reached" in reply.error
        metrics = await client.metrics()
        assert metrics['tensor_gateway_errors_total{blame="backend",reason="unreachable",route="main"}'] == 1


async def cut_before_the_answer(connection: Connection) -> None:
    await connection.read_request()


async def cut_in_the_head(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-")


async def cut_in_the_body(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"outputs":[')


async def cut_in_a_chunk(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n{"outputs":[\r\n')


@pytest.mark.rule("4.9")
@pytest.mark.parametrize("script", [cut_before_the_answer, cut_in_the_head, cut_in_the_body, cut_in_a_chunk])
async def test_a_connection_that_dies_is_a_502(script: Any) -> None:
    async with lying(script) as liar, running(liar.url) as client:
        reply = await client.infer_binary(ASK, X.tobytes())
        assert reply.status == 502
        assert "closed the connection" in reply.error
        assert len(liar.connections) == 1
        metrics = await client.metrics()
        assert metrics['tensor_gateway_errors_total{blame="backend",reason="upstream_closed",route="main"}'] == 1


async def test_an_answer_that_is_not_http_is_a_502() -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"SSH-2.0-OpenSSH\r\n\r\n")

    async with lying(script) as liar, running(liar.url) as client:
        reply = await client.infer_binary(ASK, X.tobytes())
    assert reply.status == 502
    assert "does not speak HTTP" in reply.error


@pytest.mark.parametrize("wrong_by", [-20, 20])
async def test_a_wrong_content_length_harms_its_own_answer_alone(wrong_by: int) -> None:
    async def script(connection: Connection) -> None:
        while True:
            await connection.read_request()
            wrong = wrong_by if connection is liar.connections[0] else 0
            body = output()
            await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(body) + wrong) + body)
            if wrong > 0:
                return

    async with lying(script) as liar, running(liar.url) as client:
        assert (await client.infer_binary(ASK, X.tobytes())).status == 502
        for _ in range(2):
            reply = await client.infer_binary(ASK, X.tobytes())
            assert (reply.status, reply.binary) == (200, X.tobytes())


async def silent(connection: Connection) -> None:
    await connection.read_request()
    await connection.reader.read()


async def silent_in_the_middle(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"outputs":[')
    await connection.reader.read()


async def dripping(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{")
    while True:
        await connection.send(b" ")
        await asyncio.sleep(0.01)


@pytest.mark.rule("4.9")
@pytest.mark.parametrize(
    ("script", "timeouts", "words"),
    [
        (silent, "{first_byte: 50ms}", "timeouts.first_byte"),
        (silent_in_the_middle, "{idle: 50ms}", "timeouts.idle"),
        (dripping, "{total: 200ms}", "timeouts.total"),
    ],
)
async def test_a_slow_backend_is_a_504_that_names_the_timeout(script: Any, timeouts: str, words: str) -> None:
    async with lying(script) as liar, running(liar.url, backend=f"timeouts: {timeouts}") as client:
        reply = await client.infer_binary(ASK, X.tobytes())
        assert reply.status == 504
        assert words in reply.error
        metrics = await client.metrics()
        assert metrics['tensor_gateway_errors_total{blame="backend",reason="timeout",route="main"}'] == 1


async def test_a_backend_that_stops_reading_is_a_504() -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        connection.pause_reading()
        await asyncio.Event().wait()

    array = np.zeros(8_000_000, np.float32)
    async with lying(script) as liar, running(liar.url, backend="timeouts: {idle: 100ms}") as client:
        reply = await client.infer_binary({"inputs": [tensor("x", array, "FP32")]}, array.tobytes())
        assert reply.status == 504
        assert "timeouts.idle" in reply.error


async def test_a_kept_connection_that_died_in_its_answer_is_not_replaced() -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.answer(output())
        await cut_in_the_head(connection)

    async with lying(script) as liar, running(liar.url) as client:
        assert (await client.infer_binary(ASK, X.tobytes())).status == 200
        assert (await client.infer_binary(ASK, X.tobytes())).status == 502
        assert len(liar.connections) == 1


async def test_a_fresh_connection_that_dies_is_not_tried_again() -> None:
    async with lying(cut_before_the_answer) as liar, running(liar.url) as client:
        assert (await client.infer_binary(ASK, X.tobytes())).status == 502
        assert len(liar.connections) == 1


async def test_a_client_that_leaves_cancels_the_call() -> None:
    async with lying(silent) as liar, running(liar.url) as client:
        host, port = client.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        text = json.dumps(ASK).encode()
        head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n{HEADER_LENGTH}: {len(text)}\r\n"
        writer.write(f"{head}Content-Length: {len(text) + 8}\r\n\r\n".encode() + text + X.tobytes())
        while not liar.connections or not liar.connections[0].body:
            await asyncio.sleep(0.005)
        writer.close()
        await asyncio.wait_for(liar.connections[0].ended.wait(), 5)
        await asyncio.wait_for(client.wait_until_idle(5), 5)
        metrics = await client.metrics()
        assert metrics['tensor_gateway_requests_total{code="499",model="other",protocol="http",route="main"}'] == 1
        assert metrics['tensor_gateway_errors_total{blame="client",reason="client_closed",route="main"}'] == 1


async def test_endpoints_take_turns() -> None:
    async with lying(answering(output())) as first, lying(answering(output())) as second:
        async with running(f"{first.url}', '{second.url}") as client:
            for _ in range(4):
                assert (await client.infer_binary(ASK, X.tobytes())).status == 200
            metrics = await client.metrics()
            for liar in (first, second):
                sample = f'tensor_gateway_upstream_requests_total{{backend="main",code="200",endpoint="{liar.url}"}}'
                assert metrics[sample] == 2


@pytest.mark.rule("4.3", "4.9")
async def test_headers_of_the_backend_cross_but_not_those_of_its_body() -> None:
    reply = await ask(
        output(),
        headers="Content-Type: application/json; charset=utf-8\r\nX-Model: a\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
        'ETag: "1"\r\nConnection: X-Hop\r\nX-Hop: no\r\nInference-Header-Content-Length: 3\r\n',
    )
    assert reply.headers["X-Model"] == "a"
    assert reply.headers.getall("Set-Cookie") == ["a=1", "b=2"]
    assert not {"ETag", "X-Hop"} & set(reply.headers)
    assert reply.headers.getall(HEADER_LENGTH) != ["3"]


async def test_a_client_session_survives_every_error() -> None:
    async with lying(cut_in_the_body) as liar, running(liar.url) as client:
        for _ in range(5):
            assert (await client.infer_binary(ASK, X.tobytes())).status == 502
        connector = client.session.connector
        assert isinstance(connector, aiohttp.TCPConnector)
        assert sum(map(len, connector._conns.values())) == 1


@pytest.mark.parametrize("status", ["600 X", "999 X"])
async def test_a_status_that_http_does_not_have_is_a_502(status: str) -> None:
    async with lying(answering(b"{}", status)) as liar, running(liar.url) as client:
        reply = await client.request("GET", "/other")
        assert (reply.status, f"answered with status {status[:3]}" in reply.error) == (502, True)
        assert not any(f'code="{status[:3]}"' in name for name in await client.metrics())
