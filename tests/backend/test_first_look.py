"""The first look at backends: who answers there, and why nobody does, in the words of the log."""

import asyncio
import json
import logging
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.app import new_name
from gateway.backend import first_look
from gateway.backend.connections import Connections
from gateway.backend.first_look import look_at
from gateway.backend.tasks import Tasks
from gateway.config import parse
from gateway.demo import JsonServer
from gateway.errors import ErrorKind, GatewayError
from tests.certificates import Authority
from tests.conftest import Connection, Script, answering, lying, running
from tests.system.programs import MlServer

# What gRPC's C core sends to whoever connects: its SETTINGS, and then, to a request of HTTP/1.1, nothing.
GRPC_SETTINGS = bytes.fromhex("000018040000000000000400400000000500400000000600004000fe0300000001")
METADATA = {"name": "mlserver", "version": "1.7.1", "extensions": []}


async def look(*urls: str, backend: str = "", name: str = "") -> None:
    """Looks at *urls*, and waits for what is found."""
    config = parse(f"backends: {{main: {{endpoints: {json.dumps(urls)}{backend}}}}}")
    async with asyncio.timeout(20):
        await look_at(config, name or new_name())


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and text of what was logged, without the backend's name."""
    return [
        (record.levelname, record.getMessage().removeprefix("backend 'main': "))
        for record in caplog.records
        if record.name == "gateway"
    ]


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (METADATA, "mlserver 1.7.1 answers"),
        ({"name": "own"}, "own answers"),
        ({"name": "", "version": ""}, "a server with `dialect: v2` answers"),
        ({"name": "a\nb", "version": "1"}, r"a\nb 1 answers"),
        (
            {"name": "triton", "version": "2.51.0", "extensions": ["x", "binary_tensor_data"]},
            "triton 2.51.0 answers, and says that it has binary_tensor_data: with `binary: auto` inferences pass "
            "through as they come",
        ),
    ],
)
async def test_a_server_of_the_protocol_is_named(
    caplog: pytest.LogCaptureFixture, metadata: dict[str, object], words: str
) -> None:
    async with lying(answering(json.dumps(metadata).encode())) as liar:
        await look(liar.url)
    assert said(caplog) == [("INFO", f"{liar.url}: {words}")]
    (connection,) = liar.connections
    head = connection.head.decode()
    assert head.startswith("GET /v2 HTTP/1.1\r\n")
    assert "User-Agent: tensor-gateway/" in head


@pytest.mark.parametrize("dialect", ["v2", "tensorflow", "auto"])
async def test_credentials_of_the_configuration_that_are_refused_are_a_warning(
    caplog: pytest.LogCaptureFixture, dialect: str
) -> None:
    async with lying(answering(b"{}", "401 Unauthorized")) as liar:
        await look(liar.url, backend=f", dialect: {dialect}, headers: {{set: {{authorization: Bearer s3cret}}}}")
    words = "the authorization of `backends.main.headers.set` is refused; is it right, and not expired?"
    assert said(caplog) == [("WARNING", f"{liar.url}: answers GET /v2 with 401 Unauthorized: {words}")]


async def test_other_headers_of_the_configuration_leave_credentials_to_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with lying(answering(b"{}", "401 Unauthorized")) as liar:
        await look(liar.url, backend=", headers: {set: {X-Tenant: vision}}")
    assert said(caplog) == [
        ("INFO", f"{liar.url}: answers, and needs credentials (401 Unauthorized): clients send theirs")
    ]


async def test_what_the_backends_headers_and_its_path_say_holds_for_the_look(caplog: pytest.LogCaptureFixture) -> None:
    async with lying(answering(json.dumps(METADATA).encode())) as liar:
        await look(f"{liar.url}/prod", backend=", headers: {set: {Authorization: Bearer abc}}")
    assert said(caplog) == [("INFO", f"{liar.url}/prod: mlserver 1.7.1 answers")]
    assert liar.connections[0].head.startswith(b"GET /prod/v2 HTTP/1.1\r\n")
    assert b"Authorization: Bearer abc\r\n" in liar.connections[0].head


JSON, HTML = "Content-Type: application/json\r\n", "Content-Type: text/html; charset=utf-8\r\n"


@pytest.mark.parametrize(
    ("status", "headers", "body", "level", "words"),
    [
        (
            "401 Unauthorized",
            JSON,
            b"{}",
            "INFO",
            "answers, and needs credentials (401 Unauthorized): clients send theirs",
        ),
        ("403 Forbidden", JSON, b"{}", "INFO", "answers, and needs credentials (403 Forbidden)"),
        ("200 OK", HTML, b"<p>", "WARNING", "answers GET /v2 with 200 OK, which is an HTML page"),
        ("200 OK", "", b"  <!DOCTYPE html>", "WARNING", "answers GET /v2 with 200 OK, which is an HTML page"),
        ("200 OK", JSON, b"[]", "WARNING", "GET /v2 got 200 OK, GET /v1/models 200 OK, "),
        ("200 OK", JSON, b'{"status": "ok"}', "WARNING", "GET /v2 got 200 OK, GET /v1/models 200 OK, "),
        ("200 OK", JSON, b'{"name": "\xff"}', "WARNING", "GET /v2 got 200 OK, GET /v1/models 200 OK, "),
        (
            "307 Temporary Redirect",
            "Location: https://x/v2\r\n",
            b"",
            "WARNING",
            "with 307 Temporary Redirect, a redirect to https://x/v2, which",
        ),
        ("503 Service Unavailable", JSON, b"{}", "WARNING", "with 503 Service Unavailable: is it still starting"),
        (
            "404 Not Found",
            JSON,
            b'{"code": 404, "type": "ResourceNotFoundException", "message": "Requested resource is not found"}',
            "INFO",
            "TorchServe answers",
        ),
        ("404 Not Found", JSON, b'{ "error": "Malformed request: GET /v2" }', "WARNING", "TensorFlow Serving"),
        (
            "404 Not Found",
            JSON,
            b'{"detail":"Not Found"}',
            "WARNING",
            "GET /v2 got 404 Not Found, GET /v1/models 404 Not Found, ",
        ),
    ],
)
async def test_an_answer_that_is_no_servers_metadata_is_explained(
    caplog: pytest.LogCaptureFixture, status: str, headers: str, body: bytes, level: str, words: str
) -> None:
    async with lying(answering(body, status, headers)) as liar:
        await look(liar.url)
    ((found, text),) = said(caplog)
    assert found == level
    assert words in text


def by_path(answers: dict[str, tuple[str, bytes]]) -> Script:
    """Answers these paths, and all others with 404."""

    async def script(connection: Connection) -> None:
        await connection.read_request()
        status, body = answers.get(connection.head.split()[1].decode(), ("404 Not Found", b"{}"))
        await connection.answer(body, status)

    return script


MLFLOW = {"/ping": ("200 OK", b""), "/version": ("200 OK", b"3.17.0")}


@pytest.mark.parametrize(
    ("answers", "level", "words"),
    [
        (
            {"/v1/models": ("200 OK", b'{"models": []}')},
            "WARNING",
            "otherwise as TensorFlow Serving and KServe's V1 protocol do: set `dialect: tensorflow`",
        ),
        ({"/v1/models": ("200 OK", b'{"object": "list", "data": []}')}, "WARNING", "not a server of a protocol"),
        (
            {"/v1/models/any": ("404 Not Found", b'{"error": "Could not find any versions of model any"}')},
            "WARNING",
            "KServe's V1 protocol do: set `dialect: tensorflow`; `tensor-gateway doctor URL` tells more",
        ),
        (
            {"/v2": ("400 Bad Request", b"<html>No required SSL certificate was sent</html>")},
            "WARNING",
            "since it wants a client certificate: set `tls.certificate` and `tls.key`",
        ),
        ({"/v1/models/any": ("404 Not Found", b'{"error": {"code": 404}}')}, "WARNING", "not a server of a protocol"),
        (MLFLOW, "WARNING", "otherwise as MLflow's scoring server does: set `dialect: mlflow`"),
        ({"/version": ("200 OK", b"3.17.0")}, "WARNING", "not a server of a protocol"),
        ({}, "WARNING", "If only its metadata is missing, inferences pass all the same; `tensor-gateway doctor URL`"),
    ],
)
async def test_a_server_of_another_protocol_is_told_by_what_it_has(
    caplog: pytest.LogCaptureFixture, answers: dict[str, tuple[str, bytes]], level: str, words: str
) -> None:
    async with lying(by_path(answers)) as liar:
        await look(liar.url)
    ((found, text),) = said(caplog)
    assert found == level
    assert words in text


@pytest.mark.parametrize(
    ("dialect", "answers", "level", "words"),
    [
        (
            "tensorflow",
            {"/v1/models": ("200 OK", b'{"models": ["m"]}')},
            "INFO",
            "a server with `dialect: tensorflow` answers",
        ),
        (
            "tensorflow",
            {"/v1/models/any": ("404 Not Found", b'{"error": "Model with name any does not exist."}')},
            "INFO",
            "`dialect: tensorflow` answers",
        ),
        (
            "tensorflow",
            {"/v2": ("200 OK", b'{"name": "kserve"}'), "/v1/models": ("200 OK", b'{"models": ["m"]}')},
            "INFO",
            "a server with `dialect: tensorflow` answers",
        ),
        ("mlflow", MLFLOW, "INFO", "MLflow 3.17.0 answers"),
        ("mlflow", {"/v2": ("200 OK", b'{"name": "triton"}')}, "WARNING", "GET /v1/models 404 Not Found, "),
        ("tensorflow", {}, "WARNING", "GET /v1/models 404 Not Found, GET /v1/models/any 404 Not Found, "),
        ("template", {}, "INFO", "answers HTTP (404 Not Found)"),
        ("auto", MLFLOW, "INFO", "MLflow 3.17.0 answers"),
        ("auto", {"/v2": ("200 OK", b'{"name": "triton"}')}, "INFO", "triton answers"),
    ],
)
async def test_the_look_knows_the_dialect_that_is_configured(
    caplog: pytest.LogCaptureFixture, dialect: str, answers: dict[str, tuple[str, bytes]], level: str, words: str
) -> None:
    async with lying(by_path(answers)) as liar:
        await look(liar.url, backend=f", dialect: {dialect}")
    ((found, text),) = said(caplog)
    assert found == level
    assert words in text


async def test_a_path_of_the_url_that_leads_nowhere_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with lying(by_path({})) as liar:
        await look(f"{liar.url}/wrong")
    ((level, text),) = said(caplog)
    assert level == "WARNING"
    assert text.startswith(f"{liar.url}/wrong: GET /v2 got 404 Not Found, ")


async def test_a_port_where_nothing_listens(caplog: pytest.LogCaptureFixture, unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    await look(url)
    assert said(caplog) == [
        ("WARNING", f"{url}: nothing listens on port {unused_tcp_port} there; is the server up?"),
    ]


async def grpc(connection: Connection) -> None:
    await connection.send(GRPC_SETTINGS)
    with pytest.raises(asyncio.IncompleteReadError):  # until the other side has left
        await connection.reader.readexactly(1 << 20)


async def grpc_that_closes(connection: Connection) -> None:
    """As gRPC's C core: it sends its settings, and ends what does not begin with HTTP/2's preface."""
    await connection.send(GRPC_SETTINGS)
    if await connection.reader.read(4) == b"PRI ":
        await connection.reader.read()


@pytest.mark.parametrize("script", [grpc, grpc_that_closes])
async def test_a_grpc_port_is_recognized(caplog: pytest.LogCaptureFixture, script: Script) -> None:
    async with lying(script) as liar:
        await look(liar.url)
    ((level, text),) = said(caplog)
    assert level == "WARNING"
    assert text.startswith(f"{liar.url}: this is a gRPC port")
    assert "8000 instead of 8001" in text


async def test_the_grpc_port_of_a_real_mlserver_is_recognized(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    server = MlServer(tmp_path / "mlserver")
    try:
        server.start()
        await asyncio.to_thread(server.wait_until_ready)
        grpc_url = f"http://{server.grpc}"
        await look(server.url)
        await look(grpc_url)
    finally:
        server.stop()
    (good, bad) = said(caplog)
    assert good[0] == "INFO"
    assert good[1].startswith(f"{server.url}: mlserver ")
    assert bad[0] == "WARNING"
    assert bad[1].startswith(f"{grpc_url}: this is a gRPC port")


def tls_context(folder: Path) -> ssl.SSLContext:
    pair = Authority(folder).issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


async def test_a_tls_server_that_closes_on_plain_http_is_recognized(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls_context(tmp_path))
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await look(url)
    assert said(caplog) == [("WARNING", f"{url}: it speaks TLS there: write https:// in the endpoint")]


async def test_a_tls_server_that_answers_plain_http_with_400_is_recognized(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """As Go's and nginx: they look at the first byte."""
    context = tls_context(tmp_path)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client, suppress(OSError):
                    if client.recv(1, socket.MSG_PEEK) == b"\x16":
                        context.wrap_socket(client, server_side=True).close()
                    else:
                        client.recv(65536)
                        client.sendall(
                            b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
                        )

    serving = threading.Thread(target=serve)
    serving.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        await look(url)
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        listener.close()
        await asyncio.to_thread(serving.join, 20)
    assert said(caplog) == [("WARNING", f"{url}: it speaks TLS there: write https:// in the endpoint")]


async def test_https_to_a_plain_server_says_so(caplog: pytest.LogCaptureFixture, server: JsonServer) -> None:
    url = server.url.replace("http:", "https:")
    await look(url)
    ((level, text),) = said(caplog)
    assert level == "WARNING"
    assert text.startswith(f"{url}: cannot be reached: it does not speak TLS; if it speaks plain HTTP, write http://")


async def test_a_server_that_does_not_answer(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(connection: Connection) -> None:
        await connection.reader.read()

    monkeypatch.setattr(first_look, "LOOK_S", 0.2)
    async with lying(never) as liar:
        await look(liar.url)
    assert said(caplog) == [("WARNING", f"{liar.url}: no answer to GET /v2 within 0.2 s")]


@pytest.mark.parametrize(
    ("sent", "words"),
    [(b"", "it closed the connection without an answer to GET /v2"), (b"SSH-2.0-x\r\n", "is not HTTP: ")],
)
@pytest.mark.parametrize("is_patient", [False, True])
async def test_what_is_no_http_server(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, sent: bytes, words: str, is_patient: bool
) -> None:
    async def script(connection: Connection) -> None:
        is_http = await connection.reader.read(1) == b"G"
        await connection.send(sent if is_http or not is_patient else b"")
        if is_patient and not is_http:  # it waits for more of what it does not understand
            await connection.reader.read()

    monkeypatch.setattr(first_look, "TRY_S", 0.2)

    async with lying(script) as liar:
        await look(liar.url)
    ((level, text),) = said(caplog)
    assert level == "WARNING"
    assert words in text


async def test_a_name_server_that_does_not_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_look, "LOOK_S", 0.2)
    monkeypatch.setattr(first_look, "look_up", lambda host: asyncio.sleep(60))
    await look("http://slow.example")
    assert said(caplog) == [("WARNING", "http://slow.example: no answer to GET /v2 within 0.2 s")]


async def test_an_interim_answer_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        await connection.answer(json.dumps(METADATA).encode())

    async with lying(script) as liar:
        await look(liar.url)
    assert said(caplog) == [("INFO", f"{liar.url}: mlserver 1.7.1 answers")]


async def test_a_server_that_sends_interim_answers_without_end(caplog: pytest.LogCaptureFixture) -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.read(1)
        await connection.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)

    async with lying(script) as liar:
        await look(liar.url)
    ((_, text),) = said(caplog)
    assert "is not HTTP: it sends more than 16 interim answers" in text


async def test_a_server_that_goes_away_while_it_is_asked_more(caplog: pytest.LogCaptureFixture) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        if b"GET /v2 " in connection.head:
            await connection.answer(b"{}", "404 Not Found")

    async with lying(script) as liar:
        await look(liar.url)
    ((level, text),) = said(caplog)
    assert level == "WARNING"
    assert "not a server of a protocol that the gateway knows?" in text


async def test_a_tls_server_that_wants_a_certificate_is_recognized(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    context = tls_context(tmp_path)
    context.verify_mode = ssl.CERT_REQUIRED
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await look(url)
    assert said(caplog) == [("WARNING", f"{url}: it speaks TLS there: write https:// in the endpoint")]


async def test_files_that_are_gone_and_a_machine_at_its_limits_are_left_to_the_requests(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, server: JsonServer, tmp_path: Path
) -> None:
    await look("https://127.0.0.1:1", backend=f", tls: {{ca: {tmp_path}/gone}}")

    async def connect(*arguments: object) -> None:
        raise GatewayError(ErrorKind.OVERLOADED, "no descriptor")

    monkeypatch.setattr(Connections, "connect", connect)
    await look(server.url)
    assert said(caplog) == []


async def test_a_host_without_an_address_is_left_to_the_look_up(caplog: pytest.LogCaptureFixture) -> None:
    await look("http://nobody.invalid:8000")
    assert said(caplog) == []


async def test_the_gateway_itself_and_its_admin_listener_are_recognized(
    caplog: pytest.LogCaptureFixture, server: JsonServer
) -> None:
    async with running(server.url) as client:
        await look(client.url, name=client.gateway.name)
        await look(client.admin, name=client.gateway.name)
        await look(client.url)  # another gateway, in front of this one
    own, admin, other = said(caplog)
    assert own == (
        "WARNING",
        f"{client.url}: this is the gateway's own listener, an endless loop: name the inference server",
    )
    assert admin == (
        "WARNING",
        f"{client.admin}: this is the admin listener of a tensor-gateway: name the inference server",
    )
    assert other[0] == "INFO"
    assert "says that it has binary_tensor_data" in other[1]


async def test_each_endpoint_is_looked_at_once(caplog: pytest.LogCaptureFixture) -> None:
    good = answering(json.dumps(METADATA).encode())
    async with lying(good) as one, lying(good) as other:
        await look(one.url, other.url)
        assert (len(one.connections), len(other.connections)) == (1, 1)
    assert sorted(said(caplog)) == sorted(("INFO", f"{each.url}: mlserver 1.7.1 answers") for each in (one, other))


async def test_a_look_that_is_stopped_leaves_nothing_open(caplog: pytest.LogCaptureFixture) -> None:
    async def never(connection: Connection) -> None:
        await connection.reader.read()

    async with lying(never) as liar:
        looking = Tasks()
        looking.begin(look(liar.url))
        async with asyncio.timeout(20):
            while not liar.connections:
                await asyncio.sleep(0.01)
            await looking.close()
            await liar.connections[0].ended.wait()
    assert said(caplog) == []
