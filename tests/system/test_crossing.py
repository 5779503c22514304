"""What may cross the gateway and what may not: paths, header bytes, framing, loops, errors' words, codings.

Rules: docs/operations.md, "Access log"; protocol 4.5, 4.9, 7.
"""

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from gateway.config import parse
from gateway.errors import ErrorKind, GatewayError, proxy_status
from gateway.process.application import Application
from tests.conftest import HEADER_LENGTH, Client, Connection, answering, lying, running
from tests.system.scripted import (
    FORMS,
    Seen,
    ask,
    counting,
    echo,
    head_of,
    infer_header,
    infer_message,
    total,
    until,
    wire,
)

X = np.array([1, 2], np.int64)
TEXT = json.dumps(infer_header(X, "INT64")).encode()
BINARY = {HEADER_LENGTH: str(len(TEXT))}

# Paths and header bytes


@pytest.mark.rule("8.6")
@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/public/../secret/infer",
        "/v2/models/public/./infer",
        "/v2/models/public/%2e%2e/secret/infer",
        "/v2/models/public/%2E%2E/secret/infer",
        "/v2/models/public/.%2e/secret/infer",
        "/v2/models/public/%2e/infer",
        "/v2/models/a%2Fb/infer",
        "/v2/models/a%2fb/infer",
        "/v2/models/a%2Fb/config",
        "/v2/models/a%2F..%2Fsecret/infer",
        "/v2/models/..",
        "/..",
        "/a/../b",
        "/%2e%2e/v2/models/secret/infer",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_paths_that_a_backend_may_read_otherwise_are_refused(path: str, method: str) -> None:
    async with counting() as backend, running(backend.url) as client, wire(client.url) as sender:
        await sender.send(head_of(method, path, 2 if method == "POST" else None) + b"{}" * (method == "POST"))
        reply = await sender.reply()
        assert reply.status == 400
        assert list(json.loads(reply.body)) == ["error"]
        assert backend.seen == []


@pytest.mark.rule("8", "8.6")
@pytest.mark.parametrize("path", ["/v2/models/a.b/infer", "/v2/models/..a/infer", "/v2/models/a%20b/infer", "/a/.../b"])
async def test_paths_with_harmless_dots_and_escapes_cross(path: str) -> None:
    async with counting() as backend, running(backend.url) as client, wire(client.url) as sender:
        await sender.send(head_of("GET", path))
        assert (await sender.reply()).status == 200
        assert backend.seen[0].target == path


@pytest.mark.parametrize("line", [b"X-Name: adm\xffin", b"X-Name: \xc3", b"X-\xff: a", b"Set-Cookie: a=\xe9"])
@pytest.mark.parametrize("form", FORMS)
async def test_header_bytes_of_a_backend_that_are_not_utf8_are_a_502(line: bytes, form: str) -> None:
    async def behave(seen: Seen) -> bool:
        body = seen.echo()
        await seen.peer.send(b"HTTP/1.1 200 OK\r\n%b\r\nContent-Length: %d\r\n\r\n" % (line, len(body)) + body)
        return True

    async with counting(behave) as backend, running(backend.url) as client:
        assert (await ask(client, form, 1)).status == 502


async def test_utf8_in_headers_crosses_both_ways() -> None:
    name = "Jos\u00e9 \u65e5\u672c"

    async def behave(seen: Seen) -> bool:
        assert seen.values("X-Name") == [name]
        await seen.peer.send(f"HTTP/1.1 200 OK\r\nX-Name: {name}\r\nContent-Length: 0\r\n\r\n".encode())
        return True

    async with counting(behave) as backend, running(backend.url) as client, wire(client.url) as sender:
        await sender.send(f"GET /x HTTP/1.1\r\nHost: x\r\nX-Name: {name}\r\n\r\n".encode())
        assert f"X-Name: {name}\r\n".encode() in (await sender.reply()).head


@pytest.mark.parametrize("line", [b"X-Name: adm\xffin", b"Authorization: Bearer \xff", b"X-\xff: a"])
@pytest.mark.parametrize("path", ["/any", "/v2/models/m/infer"])
async def test_header_bytes_of_a_client_that_are_not_utf8_are_a_400(line: bytes, path: str) -> None:
    async with counting() as backend, running(backend.url) as client, wire(client.url) as sender:
        start = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n".encode()
        await sender.send(start + line + b"\r\n\r\n{}")
        assert (await sender.reply()).status == 400
        assert backend.seen == []


@pytest.mark.rule("3.1")
async def test_headers_named_by_any_connection_header_stay_at_their_hop() -> None:
    lines = "Connection: keep-alive\r\nConnection: X-A, X-B\r\nX-A: 1\r\nX-B: 2\r\nX-C: 3\r\n"

    async def behave(seen: Seen) -> bool:
        assert [seen.values(name) for name in ("X-A", "X-B", "X-C")] == [[], [], ["3"]]
        await seen.peer.send(f"HTTP/1.1 200 OK\r\n{lines}Content-Length: 0\r\n\r\n".encode())
        return True

    async with counting(behave) as backend, running(backend.url) as client, wire(client.url) as sender:
        await sender.send(f"GET /any HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
        reply = await sender.reply()
        assert [reply.values(name) for name in ("X-A", "X-B", "X-C")] == [[], [], ["3"]]


# Labels


@pytest.mark.parametrize("method", ["OPTIONS", "GET", "POST"])
async def test_paths_without_an_inference_take_no_models_label(method: str) -> None:
    async with counting() as backend, running(backend.url) as client:
        for number in range(250):
            assert (await client.request(method, f"/v2/models/junk{number}")).status == 200
        assert (await ask(client, "binary", 1, "real")).is_own
        samples = await client.metrics()
        assert total(samples, "requests_total", model="real", code="200") == 1
        assert not any("junk" in name for name in samples)


# Framing and odd heads of a backend


@pytest.mark.parametrize("coding", ["gzip, chunked", "chunked, gzip", "gzip", "chunked, chunked", "identity, chunked"])
@pytest.mark.parametrize("form", FORMS)
async def test_transfer_codings_other_than_chunked_are_a_502(coding: str, form: str) -> None:
    async def behave(seen: Seen) -> bool:
        body = seen.echo()
        packed = gzip.compress(body) if "gzip" in coding else body
        head = f"HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\n\r\n".encode()
        await seen.peer.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed))
        return False

    async with counting(behave) as backend, running(backend.url) as client:
        assert (await ask(client, form, 1)).status == 502


@pytest.mark.parametrize("status", [b"302 Fo\xffund", b"301 \xff", b"404 N\xffo", b"500 \xe9"])
@pytest.mark.parametrize("form", FORMS)
async def test_reasons_that_are_not_utf8_are_no_internal_error(status: bytes, form: str) -> None:
    async def behave(seen: Seen) -> bool:
        await seen.peer.send(b"HTTP/1.1 " + status + b"\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n")
        return True

    async with counting(behave) as backend, running(backend.url) as client:
        asked = await ask(client, form, 1)
        code = int(status[:3])
        inferred = form in ("binary", "json")
        assert asked.status in ((code, 502) if code != 500 else (500,))
        if code < 400 and inferred:
            assert asked.status == 502
        assert b"internal error" not in asked.body
        assert total(await client.metrics(), "errors_total", reason="internal") == 0


@pytest.mark.parametrize("delay_s", [None, 0.02])
async def test_a_body_behind_the_answer_to_head_is_dropped(
    delay_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sent = asyncio.Event()

    async def behave(seen: Seen) -> bool:
        if seen.method != "HEAD":
            return await echo(seen)
        head = b"HTTP/1.1 200 OK\r\nX-Is: head\r\nContent-Length: 11\r\n\r\n"
        try:
            if delay_s is None:
                await seen.peer.send(head + b"SECRETBYTES")
            else:
                await seen.peer.send(head)
                await asyncio.sleep(delay_s)
                await seen.peer.send(b"SECRETBYTES")  # the gateway may have closed the connection by now
        finally:
            sent.set()
        return True

    async with counting(behave) as backend, running(backend.url) as client, wire(client.url) as sender:
        for number in range(1, 6):
            sent.clear()
            await sender.send(head_of("HEAD", f"/v2/health/ready?id=head{number}"))
            reply = await sender.reply("HEAD")
            assert (reply.status, reply.values("X-Is")) == (200, ["head"])
            await sent.wait()
            for form in FORMS:
                assert (await ask(client, form, number)).is_own
        await sender.send(head_of("GET", "/any?id=last"))
        assert json.loads((await sender.reply()).body)["id"] == "last"
    assert "SECRETBYTES" not in caplog.text


# Loops


@asynccontextmanager
async def gateway_at(listen: str, backend_url: str) -> AsyncIterator[Application]:
    text = f"listen: '{listen}'\nadmin: 127.0.0.1:0\nlogging: {{access: none}}\nlimits: {{concurrent_requests: 40}}\n"
    backend = f"main: {{endpoints: ['{backend_url}'], timeouts: {{first_byte: 5s}}}}"
    application = await Application.start(parse(f"{text}backends:\n  {backend}\n"))
    try:
        yield application
    finally:
        await application.stop()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def forwarder(port_of: list[int]) -> AsyncIterator[str]:
    """A port that passes bytes on to the port in *port_of*, as an address that hides where it leads."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port_of[0])
        await asyncio.gather(copy(reader, behind_writer), copy(behind_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


REQUESTS = [
    pytest.param(head_of("GET", "/v2/health/ready"), id="get"),
    pytest.param(head_of("POST", "/any", 2) + b"{}", id="post"),
    pytest.param(infer_message("1", X, "INT64"), id="binary"),
    pytest.param(infer_message("1", X, "INT64", binary=False), id="json"),
]


@pytest.mark.parametrize("request_bytes", REQUESTS)
async def test_a_gateway_that_leads_to_itself_refuses_the_second_round(request_bytes: bytes) -> None:
    port: list[int] = [0]
    async with forwarder(port) as hidden, gateway_at("127.0.0.1:0", hidden) as gateway:
        port[0] = int(gateway.listen_url.rpartition(":")[2])
        async with wire(gateway.listen_url) as sender:
            await sender.send(request_bytes)
            reply = await sender.reply()
            assert reply.status == 508
            assert "error" in json.loads(reply.body)


@pytest.mark.parametrize("request_bytes", REQUESTS)
async def test_two_gateways_that_lead_to_each_other_refuse_the_second_round(request_bytes: bytes) -> None:
    port: list[int] = [0]
    async with (
        forwarder(port) as hidden,
        gateway_at("127.0.0.1:0", hidden) as first,
        gateway_at("127.0.0.1:0", first.listen_url) as second,
    ):
        port[0] = int(second.listen_url.rpartition(":")[2])
        async with wire(first.listen_url) as sender:
            await sender.send(request_bytes)
            assert (await sender.reply()).status == 508


async def test_a_chain_of_two_gateways_works_and_each_adds_itself_to_via() -> None:
    async with counting() as backend, gateway_at("127.0.0.1:0", backend.url) as behind:
        async with running(behind.listen_url) as client:
            for number, form in enumerate(FORMS):
                asked = await ask(client, form, number)
                assert asked.is_own, asked
            reply = await client.request("GET", "/any?id=7", headers={"Via": "1.1 somebody-else"})
            assert reply.status == 200
    for seen in backend.seen:
        hops = [hop.strip() for value in seen.values("Via") for hop in value.split(",")]
        assert len(hops) == (3 if seen.id == "7" else 2)
        assert len(set(hops)) == len(hops)
        assert all(hop.startswith("1.1 ") for hop in hops)
    assert backend.seen[-1].values("Via")[0].startswith("1.1 somebody-else")


@pytest.mark.parametrize("form", FORMS)
async def test_requests_to_a_backend_carry_via(form: str) -> None:
    async with counting() as backend, running(backend.url) as client:
        assert (await ask(client, form, 1)).is_own
        assert len(backend.seen[0].values("Via")) == 1


# Errors keep their words


async def ask_for_error(body: object, status: str, form: str, headers: str = "") -> tuple[int, dict[str, Any]]:
    """What a client gets when the backend answers with *body* and *status*."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with lying(answering(data, status, f"Content-Type: application/json\r\n{headers}")) as liar:
        async with running(liar.url) as client:
            asked = await ask(client, form, 1)
    parsed: dict[str, Any] = json.loads(asked.body)
    return asked.status, parsed


@pytest.mark.rule("4.9")
@pytest.mark.parametrize("form", ["binary", "json"])
async def test_an_error_with_status_200_is_a_502_with_its_words(form: str) -> None:
    status, parsed = await ask_for_error({"error": "the GPU is on fire"}, "200 OK", form)
    if form == "json":  # a 2xx answer to pure JSON crosses byte for byte (protocol 3.6)
        assert (status, parsed) == (200, {"error": "the GPU is on fire"})
    else:
        assert status == 502
        assert "the GPU is on fire" in parsed["error"]


@pytest.mark.rule("4.9")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        ("503 x", {"code": 503, "type": "ServiceUnavailableException", "message": "no worker is ready"}, "no worker"),
        ("400 x", {"error_code": "BAD_REQUEST", "message": "Missing input x"}, "Missing input x"),
        ("422 x", {"detail": [{"loc": ["body", "inputs"], "msg": "field required"}]}, "field required"),
        ("422 x", {"detail": "no such thing"}, "no such thing"),
        ("500 x", {"message": "a", "stack_trace": "b", "error_code": "INTERNAL_ERROR"}, "a"),
        ("404 x", {"error": "unknown model", "hint": "load it"}, "unknown model"),
    ],
)
async def test_errors_of_servers_keep_their_words_and_members(
    status: str, body: dict[str, Any], words: str, form: str
) -> None:
    code, parsed = await ask_for_error(body, status, form)
    assert code == int(status[:3])
    assert isinstance(parsed["error"], str)
    assert words in parsed["error"]
    assert {key: value for key, value in parsed.items() if key != "error"} == {
        key: value for key, value in body.items() if key != "error"
    }


@pytest.mark.rule("4.9")
async def test_a_coded_error_of_json_is_readable() -> None:
    packed = gzip.compress(json.dumps({"detail": "field required"}).encode())
    status, parsed = await ask_for_error(packed, "422 x", "json", "Content-Encoding: gzip\r\n")
    assert (status, parsed["detail"], parsed["error"]) == (422, "field required", "field required")


async def test_a_name_that_cannot_be_resolved_is_named() -> None:
    async with running("http://no-such-host.invalid:8000") as client:
        reply = await client.request("GET", "/v2/health/ready")
        assert reply.status == 503
        assert "no-such-host.invalid" in reply.error


# Whose error it is: `Proxy-Status` (RFC 9209)


@pytest.mark.rule("4.9")
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v2/health/ready"), ("GET", "/v2"), ("POST", "/v2/models/m/infer")]
)
async def test_an_error_of_the_backend_is_said_to_be_its_own(method: str, path: str) -> None:
    answer = answering(b"Internal Server Error", "500 x", "Content-Type: text/plain\r\n")
    async with lying(answer) as liar, running(liar.url) as client:
        reply = await client.request(method, path, data=b"{}" if method == "POST" else None)
    assert reply.error == 'backend "main" answered 500: Internal Server Error'
    assert reply.headers["Proxy-Status"] == "tensor-gateway; received-status=500"


@pytest.mark.rule("4.9")
async def test_an_error_of_the_gateway_says_its_type_and_words() -> None:
    refused = {
        "http_request_error": ("POST", "/v2/models/m/infer", {"data": b"x", "headers": {HEADER_LENGTH: "7"}}),
        "destination_unavailable": ("GET", "/v2/health/ready", {}),
    }
    async with running("http://127.0.0.1:1") as client:
        for type_, (method, path, options) in refused.items():
            reply = await client.request(method, path, **options)
            details = reply.error.replace('"', '\\"')[:300]
            assert reply.headers["Proxy-Status"] == f'tensor-gateway; error={type_}; details="{details}"'


def test_details_fit_into_a_header() -> None:
    error = GatewayError(ErrorKind.TIMEOUT, 'a "b" \\ \u00e9\r\nX: 1' + "x" * 1000)
    name, value = proxy_status(error)
    start = 'tensor-gateway; error=connection_timeout; details="a \\"b\\" \\\\ ?  X: 1xx'
    assert name == "Proxy-Status"
    assert value.startswith(start)
    assert value.isascii()
    assert value.isprintable()
    assert len(value) < 400
    looped = GatewayError(ErrorKind.NO_ROUTE, "loop", status=508)
    assert "error=proxy_loop_detected;" in proxy_status(looped)[1]


# Every reply has an id


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("given", [None, "abc-123"])
async def test_replies_and_calls_carry_the_same_request_id(form: str, given: str | None) -> None:
    own = {} if given is None else {"X-Request-Id": given}
    requests = {
        "binary": infer_message("1", X, "INT64"),
        "json": infer_message("1", X, "INT64", binary=False),
        "get": head_of("GET", "/any?id=1"),
        "post": head_of("POST", "/any?id=1", 2) + b"{}",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in own.items()).encode()
    async with counting() as backend, running(backend.url) as client, wire(client.url) as sender:
        await sender.send(requests[form].replace(b"Host: x\r\n", b"Host: x\r\n" + lines))
        reply = await sender.reply()
        assert reply.status == 200
        (id_,) = reply.values("X-Request-Id")
        assert id_ == (given or id_) != ""
        assert backend.seen[0].values("X-Request-Id") == [id_]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(head_of("GET", "/v2/models/a#b"), 400, id="fragment"),
        pytest.param(infer_message("1", X, "INT64").replace(b"INT64", b"INT99"), 400, id="refused inference"),
        pytest.param(head_of("POST", "/v2/models/m/infer", 10**12), 413, id="too large"),
        pytest.param(b"GET /any HTTP/1.1\r\nHost: x\r\nContent-Length: z\r\n\r\n", 400, id="bad length"),
        pytest.param(b"garbage\r\n\r\n", 400, id="no HTTP"),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400, id="two"
        ),
        pytest.param(head_of("GET", "/error"), 500, id="error of the backend"),
        pytest.param(head_of("GET", "/drop"), 502, id="dropped"),
    ],
)
async def test_refusals_and_errors_carry_a_request_id(request_bytes: bytes, status: int) -> None:
    async def behave(seen: Seen) -> bool:
        if seen.target == "/drop":
            return False
        await seen.answer(b"no", "500 No")
        return True

    async with counting(behave) as backend, running(backend.url) as client, wire(client.url) as sender:
        await sender.send(request_bytes)
        reply = await sender.reply()
        assert reply.status == status
        assert len(reply.values("X-Request-Id")) == 1
        assert reply.values("X-Request-Id")[0]


async def test_a_backends_own_request_id_does_not_stand_beside_the_gateways() -> None:
    async with lying(answering(b"{}", headers="X-Request-Id: of-the-backend\r\n")) as liar, running(liar.url) as client:
        reply = await client.request("GET", "/any", headers={"X-Request-Id": "mine"})
        assert reply.headers.getall("X-Request-Id") == ["mine"]


# What real programs do


async def infer_with_outputs(client: Client, outputs: list[dict[str, Any]]) -> Any:
    text = json.dumps({**infer_header(X, "INT64"), "parameters": {}, "outputs": outputs}).encode()
    headers = {HEADER_LENGTH: str(len(text))}
    return await client.request("POST", "/v2/models/m/infer", data=text + X.tobytes(), headers=headers)


REGION = {"shared_memory_region": "r", "shared_memory_byte_size": 8}


@pytest.mark.rule("4.5")
async def test_an_output_in_shared_memory_crosses_without_data() -> None:
    answer = {"model_name": "m", "outputs": [{"name": "y", "datatype": "INT32", "shape": [2]}]}
    async with lying(answering(json.dumps(answer).encode())) as liar, running(liar.url) as client:
        reply = await infer_with_outputs(client, [{"name": "y", "parameters": REGION}])
        assert reply.status == 200, reply.body
        assert HEADER_LENGTH not in reply.headers
        assert reply.json == answer


@pytest.mark.rule("4.5")
async def test_shared_memory_and_binary_outputs_stand_side_by_side() -> None:
    plain = {"name": "y", "datatype": "INT32", "shape": [2]}
    outputs = [plain, {"name": "z", "datatype": "INT64", "shape": [2], "data": X.tolist()}]
    body = json.dumps({"model_name": "m", "outputs": outputs}).encode()
    async with lying(answering(body)) as liar, running(liar.url) as client:
        wanted = [{"name": "y", "parameters": REGION}, {"name": "z", "parameters": {"binary_data": True}}]
        reply = await infer_with_outputs(client, wanted)
        assert reply.status == 200, reply.body
        assert reply.json["outputs"][0] == plain
        assert reply.binary == X.tobytes()


@pytest.mark.rule("4.5")
async def test_an_output_without_data_that_is_in_no_shared_memory_is_still_a_502() -> None:
    answer = {"outputs": [{"name": "y", "datatype": "INT32", "shape": [2]}]}
    async with lying(answering(json.dumps(answer).encode())) as liar, running(liar.url) as client:
        reply = await infer_with_outputs(client, [{"name": "y", "parameters": {"binary_data": True}}])
        assert reply.status == 502
        assert "no data" in reply.error


async def coded(seen: Seen) -> bool:
    """Answers in gzip to whom accepts it."""
    body = seen.echo()
    if any("gzip" in value for value in seen.values("Accept-Encoding")):
        await seen.answer(gzip.compress(body, mtime=0), headers="Content-Encoding: gzip\r\n")
    else:
        await seen.answer(body)
    return True


@pytest.mark.rule("7")
@pytest.mark.parametrize("form", ["json", "get", "post"])
async def test_bodies_that_the_gateway_does_not_read_keep_the_clients_codings(form: str) -> None:
    async with counting(coded) as backend, running(backend.url) as client, wire(client.url) as sender:
        accepts = b"Host: x\r\nAccept-Encoding: br;q=0.5, gzip\r\n"
        request = {
            "json": infer_message("1", X, "INT64", binary=False),
            "get": head_of("GET", "/any?id=1"),
            "post": head_of("POST", "/any?id=1", 2) + b"{}",
        }[form]
        await sender.send(request.replace(b"Host: x\r\n", accepts))
        reply = await sender.reply()
        assert backend.seen[0].values("Accept-Encoding") == ["br;q=0.5, gzip"]
        assert (reply.status, reply.values("Content-Encoding")) == (200, ["gzip"])
        assert reply.body == gzip.compress(backend.seen[0].echo(), mtime=0)
        await sender.send(request)
        reply = await sender.reply()
        assert (reply.status, reply.values("Content-Encoding")) == (200, [])


@pytest.mark.rule("7")
@pytest.mark.parametrize(
    "request_bytes",
    [
        infer_message("1", X, "INT64"),
        head_of("GET", "/v2"),
        head_of("GET", "/v2/health/ready"),  # what tritonclient's aio client reads raw
        head_of("GET", "/v2/models/m"),
        head_of("GET", "/v2/models/m/config"),
    ],
)
async def test_answers_that_the_gateway_or_a_client_reads_raw_are_asked_for_uncoded(request_bytes: bytes) -> None:
    async with counting(coded) as backend, running(backend.url) as client, wire(client.url) as sender:
        await sender.send(request_bytes.replace(b"Host: x\r\n", b"Host: x\r\nAccept-Encoding: gzip\r\n"))
        assert (await sender.reply()).status == 200
        assert backend.seen[0].values("Accept-Encoding") == ["identity"]


@pytest.mark.parametrize("n_bytes", [100, 3_000_000])
@pytest.mark.parametrize("form", ["binary", "json", "get"])
@pytest.mark.parametrize("leaves_by", ["close", "reset"])
async def test_a_client_that_leaves_with_all_its_bytes_is_served(n_bytes: int, form: str, leaves_by: str) -> None:
    array = np.zeros(n_bytes // 3, np.uint8)
    rounds = 30 if n_bytes == 100 else 5
    target = head_of("GET", "/any")
    request = target if form == "get" else infer_message("1", array, "UINT8", binary=form == "binary")

    async def behave(seen: Seen) -> bool:
        await seen.answer(bytes(n_bytes) if seen.method == "GET" else seen.echo())
        return True

    async with counting(behave) as backend, running(backend.url) as client:
        for _ in range(rounds):
            async with wire(client.url) as sender:
                sender.writer.write(request)
                reply = await sender.reply()
                if leaves_by == "reset":
                    sender.reset()
                assert reply.status == 200
        samples = await until(client, "requests_total", rounds)
        assert total(samples, "requests_total", code="200") == rounds
        assert total(samples, "errors_total", reason="client_closed") == 0


async def test_an_answer_that_is_no_http_is_told_without_its_bytes() -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 2000 SECRETBYTES\r\nContent-Length: SECRETBYTES\r\n\r\n")

    async with lying(script) as liar, running(liar.url) as client:
        reply = await client.request("GET", "/any")
        assert reply.status == 502
        assert "\n" not in reply.error
        assert "SECRETBYTES" not in reply.error
