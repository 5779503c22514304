"""`tensor-gateway doctor` as a user types it: against servers with habits, against none, and against real ones."""

import asyncio
import contextlib
import datetime
import json
import re
import socket
import ssl
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http as triton
import yaml
from aiohttp import web
from tritonclient.utils import np_to_triton_dtype

from gateway.demo import JsonServer
from gateway.doctor import Given, examine
from tests.certificates import Authority
from tests.conftest import Connection, Script, answering, lying, running
from tests.servers import FastApi, KServe, Mlflow, Server, TorchServe, Triton, serving
from tests.system.programs import MlServer
from tests.test_cli import process, run, run_inside, url_in_line
from tests.tf_serving import tf_serving

SERVERS = Path(__file__).parent.parent / "docs" / "servers.md"
SAME = "yes, with the same values as straight in JSON"
Array = npt.NDArray[Any]
GRPC_SETTINGS = bytes.fromhex("000018040000000000000400400000000500400000000600004000fe0300000001")


class Examined(NamedTuple):
    """What the doctor has said."""

    code: int
    printed: str
    """Standard output, with lines that were wrapped put together."""
    complained: str

    def findings(self, level: str) -> list[str]:
        """The words of the findings of *level*."""
        return re.findall(rf"^  {level} +(.*)$", self.printed, re.MULTILINE)

    @property
    def table(self) -> dict[str, str]:
        """What clients can do, and whether."""
        _, _, rows = self.printed.partition("What clients can do through the gateway\n")
        return dict(re.findall(r"^  (\S.*?)  +(.*)$", rows.partition("\n\n")[0], re.MULTILINE))

    @property
    def backend(self) -> dict[str, Any]:
        """The keys of the backend in the configuration, without its endpoint."""
        _, _, file = self.printed.partition("A configuration for it\n")
        backend: dict[str, Any] = yaml.safe_load(file)["backends"]["default"]
        del backend["endpoints"]
        return backend


def unwrapped(text: str) -> str:
    """*text* with lines that were wrapped put together; the file at its end is as it is."""
    findings, heading, file = text.partition("A configuration for it\n")
    return re.sub(r"\n {10,}(?=\S)", " ", findings) + heading + file


def comparable(text: str) -> set[str]:
    """The lines of the doctor's *text* without what differs from run to run: ports, times, the date."""
    text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", unwrapped(text))
    text = re.sub(r"\d+(\.\d+)? ms\b *", "TIME ", re.sub(r"\d{4}-\d\d-\d\d", "DATE", text))
    return {" ".join(line.split()) for line in text.splitlines()}


def missing_from(found: "Examined", name: str) -> set[str]:
    """The lines of the block *name* of docs/servers.md that the doctor has not printed."""
    match = re.search(rf"<!-- doctor: {name} -->\n```text\n(.*?)```", SERVERS.read_text(), re.DOTALL)
    assert match is not None
    return comparable(match[1]) - comparable(found.printed)


_STREAMS = threading.Lock()
"""Held by the command that standard output and the environment belong to."""


def doctor_here(arguments: Sequence[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """What `tensor-gateway doctor` ends with and prints with these *arguments*, run in this process."""
    with _STREAMS, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        done = run_inside("doctor", *arguments)
    return done.returncode, done.stdout, done.stderr


async def doctor(*arguments: str, environment: dict[str, str] | None = None) -> Examined:
    """What `tensor-gateway doctor` says with these *arguments*."""
    examining = asyncio.to_thread(doctor_here, arguments, environment or {})
    code, printed, complained = await asyncio.wait_for(examining, 120)
    return Examined(code, printed if "--yaml" in arguments else unwrapped(printed), complained)


# No server, or none that it could stand in front of


async def grpc(connection: Connection) -> None:
    await connection.send(GRPC_SETTINGS)
    await connection.reader.read()


async def silent(connection: Connection) -> None:
    await connection.read_request()
    await connection.reader.read()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (grpc, "this is a gRPC port, and the gateway needs the server's HTTP port"),
        pytest.param(silent, "no answer to GET /v2 within 5 s", marks=pytest.mark.slow),
        (answering(b"", "302 Found", "Location: https://x/login\r\n"), "a redirect to https://x/login"),
        (answering(b"<html>", headers="Content-Type: text/html\r\n"), "an HTML page, meant for people"),
        (answering(b"", "503 Service Unavailable"), "is it still starting"),
        (answering(b"{}", "401 Unauthorized"), "it needs credentials (401): give them with --header 'Authorization:"),
        (answering(b'{"type": "InvalidKeyException"}', "400 Bad Request"), 'it needs credentials (400: {"type": "Inv'),
        (answering(b"nothing", "404 Not Found"), "GET /v2 got 404 Not Found"),
        (answering(b'{"data": []}'), "If it takes JSON in a POST, this command writes a description of it"),
        (answering(b"No required SSL certificate was sent", "400 Bad Request"), "since it wants a client certificate"),
    ],
)
async def test_what_is_no_server_that_it_knows_ends_with_2_and_one_problem(script: Script, words: str) -> None:
    async with lying(script) as liar:
        found = await doctor(liar.url)
    (problem,) = found.findings("problem")
    assert words in problem
    assert (found.code, found.complained) == (2, "")


async def test_a_port_on_which_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    found = await doctor(f"http://127.0.0.1:{port}")
    (problem,) = found.findings("problem")
    assert f"nothing listens on port {port} there" in problem
    assert found.code == 2


async def test_a_name_that_does_not_exist() -> None:
    found = await doctor("http://nobody.invalid:8000")
    (problem,) = found.findings("problem")
    assert problem.startswith("the name nobody.invalid cannot be looked up: ")
    assert found.code == 2


async def test_a_gateway_is_recognized_at_all_of_its_listeners(server: JsonServer) -> None:
    async with running(server.url, "grpc: 127.0.0.1:0") as gateway:
        urls = gateway.url, gateway.admin, *gateway.gateway.grpc_urls
        clients, admin, grpc = await asyncio.gather(*map(doctor, urls))
    assert clients.findings("problem") == ["this is a tensor-gateway: name the inference server behind it"]
    assert admin.findings("problem") == ["this is the admin listener of a tensor-gateway: name the inference server"]
    assert grpc.findings("problem") == ["this is the gRPC port of a tensor-gateway: name the inference server"]
    assert (clients.code, admin.code, grpc.code) == (2, 2, 2)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("grpc://x:8001", "not of its gRPC port"),
        ("http://user:secret@x", "without user, query and fragment"),
        ("http://x:99999", "expected a URL of scheme, host and port"),
        ("http://[::1:8000", "expected a URL of scheme, host and port"),
        ("", "expected a URL of scheme, host and port, such as http://127.0.0.1:8000"),
    ],
)
def test_what_is_no_url_of_a_server_is_said_as_check_says_it(url: str, words: str) -> None:
    code, printed, complained = doctor_here([url], {})
    assert (code, printed) == (2, "")
    (line,) = complained.splitlines()
    assert line.startswith("tensor-gateway: ")
    assert words in line
    assert "secret" not in line


# TLS


@asynccontextmanager
async def with_tls(context: ssl.SSLContext) -> AsyncIterator[str]:
    """The URL of a V2 server that speaks TLS, and answers nothing but `GET /v2` and its health."""
    bodies = {
        b"/v2": b'{"name": "sealed", "version": "1", "extensions": []}',
        b"/v2/health/ready": b"",
        b"/v2/health/live": b"",
    }

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = bodies.get(head.split()[1])
                status = b"404 Not Found" if body is None else b"200 OK"
                answer = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s"
                writer.write(answer % (status, len(body or b""), body or b""))
                await writer.drain()
        writer.close()

    sealed = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with sealed:
        yield f"https://127.0.0.1:{sealed.sockets[0].getsockname()[1]}"


async def test_a_certificate_that_is_trusted_is_named_with_its_end(authority: Authority) -> None:
    async with with_tls(authority.issue().server_context()) as url:
        found = await doctor(url, environment={"SSL_CERT_FILE": str(authority.path)})
    assert any(
        "certificate is accepted, and valid until Jan  1 00:00:00 3000 GMT" in words for words in found.findings("ok")
    )
    assert (found.code, found.findings("problem")) == (1, [])  # there is no model to try


async def test_the_authority_the_name_and_a_certificate_of_ones_own_can_be_given(
    authority: Authority, tmp_path: Path
) -> None:
    own = authority.issue("gateway")
    server = authority.issue("model.example").server_context(client_ca=authority.path)
    ca = ("--ca", str(authority.path))
    named = (*ca, "--server-name", "model.example")
    async with with_tls(server) as url:
        without_name, without_own, found = await asyncio.gather(
            doctor(url, *ca),
            doctor(url, *named),
            doctor(url, *named, "--certificate", str(own.certificate), "--key", str(own.key)),
        )
    assert [words for words in without_name.findings("problem") if "set tls.server_name" in words]
    (problem,) = without_own.findings("problem")
    assert "a client certificate, set `tls.certificate` and `tls.key`" in problem
    assert (without_own.code, found.code) == (2, 1)
    files = {"ca": str(authority.path), "certificate": str(own.certificate), "key": str(own.key)}
    assert found.backend == {"tls": {**files, "server_name": "model.example"}, "health": {}}
    assert found.table["ask for ready"] == "yes"
    assert any("its certificate is accepted" in words for words in found.findings("ok"))


async def test_a_certificate_that_is_not_trusted_ends_with_2_and_the_option_for_it(authority: Authority) -> None:
    async with with_tls(authority.issue().server_context()) as url:
        found = await doctor(url, "-H", BEARER + "${TOKEN}", environment={"TOKEN": "s3cret"})
    (problem,) = found.findings("problem")
    assert "its certificate is not accepted" in problem
    assert "set tls.ca" in problem
    assert found.code == 2


async def test_a_certificate_that_has_expired_ends_with_2(authority: Authority) -> None:
    gone = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=5)
    async with with_tls(authority.issue(not_after=gone).server_context()) as url:
        found = await doctor(url, "--ca", str(authority.path))
    (problem,) = found.findings("problem")
    assert "certificate has expired" in problem
    assert found.code == 2


async def test_http_and_https_exchanged(authority: Authority, server: JsonServer) -> None:
    async with with_tls(authority.issue().server_context()) as url:
        found = await doctor(url.replace("https", "http"))
    assert [words for words in found.findings("problem") if "https://" in words], found
    assert found.code == 2
    found = await doctor(server.url.replace("http", "https"))
    assert len(found.findings("problem")) == 1
    assert found.code == 2


# What is given beside the URL


@asynccontextmanager
async def guarded(token: str, path: str = "/v2", prefix: str = "") -> AsyncIterator[str]:
    """The URL of a server that answers nothing below *path* to whoever has no *token*; all is below *prefix*."""

    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path.startswith(prefix + path) and request.headers.get("Authorization") != f"Bearer {token}":
            return web.json_response({"error": "who is there?"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async with server_with(Habits(), guard, prefix=prefix) as url:
        yield url + prefix


BEARER = "Authorization: Bearer "


async def test_credentials_from_the_environment_and_from_a_file_are_used_and_not_printed(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    async with guarded("s3cret") as url:
        for reference in ("${TOKEN}", f"${{file:{tmp_path}/token}}"):
            found = await doctor(url, "--header", BEARER + reference, environment={"TOKEN": "s3cret"})
            assert found.backend == {**PLAIN, "headers": {"set": {"Authorization": f"Bearer {reference}"}}}, found
            assert found.table["infer in binary"] == SAME
            assert (found.code, found.findings("problem")) == (1, [])
            assert "s3cret" not in found.printed


@pytest.mark.parametrize(
    ("path", "arguments", "words", "code"),
    [
        ("/v2", [], "it needs credentials (401: who is there?): give them with --header 'Authorization: Bearer ${", 2),
        (
            "/v2",
            ["-H", BEARER + "${OTHER}"],
            "it refuses the Authorization of --header (401: who is there?): is it right, and not expired?",
            2,
        ),
        ("/v2", ["-H", "X-Tenant: ${OTHER}"], "it needs credentials (401: who is there?): give them with --header", 2),
        ("/v2/models/m/infer", [], "it needs credentials (401: who is there?): give them with --header", 1),
    ],
)
async def test_what_to_do_about_a_server_that_needs_credentials(
    path: str, arguments: list[str], words: str, code: int
) -> None:
    async with guarded("s3cret", path) as url:
        found = await doctor(url, *arguments, environment={"OTHER": "no"})
    (problem,) = found.findings("problem")
    assert words in problem
    assert found.code == code


async def test_a_server_that_knows_the_credentials_may_not_allow_them() -> None:
    async with lying(answering(b'{"error": "readers only"}', "403 Forbidden")) as liar:
        found = await doctor(liar.url, "-H", BEARER + "${TOKEN}", environment={"TOKEN": "a"})
    (problem,) = found.findings("problem")
    assert problem.startswith("it refuses the Authorization of --header (403: readers only)")
    assert found.code == 2


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("http://x", ["--header", "s3cret"], "--header: expected 'NAME: VALUE' with a value from outside"),
        ("http://x", ["--header", "A: s3cret"], "expected 'NAME: VALUE' with a value from outside"),
        ("http://x", ["--header", "A: ${NOT_SET_s}"], "set.A: the environment variable `NOT_SET_s` is not set"),
        ("http://x", ["--header", "Host: ${HOME}"], "headers.set.Host: the gateway sets this header itself"),
        ("https://x", ["--ca", "nothing.pem"], "nothing.pem: cannot be read: No such file"),
        ("https://x", ["--key", "key.pem"], "tls.key: expected together with `certificate`, which is missing"),
        ("https://x", ["--server-name", "a b"], "tls.server_name: expected the name of a host"),
        ("http://me:s3cret@x", [], "without user, query and fragment (credentials go to `headers.set`)"),
    ],
)
def test_what_is_wrong_with_an_option_is_said_with_its_name(url: str, options: list[str], words: str) -> None:
    code, printed, complained = doctor_here([url, *options], {})
    assert (code, printed) == (2, "")
    (line,) = complained.splitlines()
    assert words in line
    assert "s3cret" not in line


async def test_a_path_that_a_proxy_has_before_the_servers_own(tmp_path: Path) -> None:
    async with guarded("s3cret", prefix="/team/a") as url:
        found = await doctor(f"{url}/v2/models/m/infer", "-H", BEARER + "${TOKEN}", environment={"TOKEN": "s3cret"})
        assert f'endpoints: ["{url}"]' in found.printed
        assert found.table["infer in binary"] == SAME
        outside = await doctor(url.removesuffix("/a"))
    assert outside.code == 2


async def test_a_name_with_several_addresses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, since no name of this machine has two addresses."""
    real = socket.getaddrinfo

    def found(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host != "models.example":
            return real(host, port, *arguments, **options)
        entries = [real(address, port, type=socket.SOCK_STREAM)[0] for address in ("127.0.0.2", "127.0.0.1")]
        return [entry for entry in entries if options.get("family") in (None, 0, entry[0])]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    async with server_with(Habits()) as url:
        code = await examine(url.replace("127.0.0.1", "models.example"), "", Given(), only_yaml=False)
    printed = unwrapped(capsys.readouterr().out)
    assert "ok       models.example is 127.0.0.1, 127.0.0.2" in printed
    assert "ok       the trial inference gives the same values" in printed
    assert code == 1


# Servers with habits


class Habits(NamedTuple):
    """How a V2 server of the tests differs from one that does everything."""

    refused: tuple[str, ...] = ()
    """Members of the request."""
    is_chunked_refused: bool = False
    nan: str = "both"
    """What it takes: both, null, literal, none."""
    datatypes: tuple[str, ...] = ("FP32", "FP64", "FP16", "BF16", "BYTES")
    input_type: str = "FP32"
    decodes: bool = False
    without: tuple[str, ...] = ()
    """Members that its outputs lack."""
    is_nested: bool = False
    has_metadata: bool = True
    has_health: bool = True
    """Without it there is `/ping`."""
    says_models: bool = True
    makes_ids: bool = False
    """Answers have ids of its own."""


@asynccontextmanager
async def answered_by(application: web.Application) -> AsyncIterator[str]:
    """The URL at which *application* answers."""
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def server_with(habits: Habits, *middlewares: Any, prefix: str = "") -> AsyncIterator[str]:
    """The URL of a server that returns the input `x` as `y`; its paths are below *prefix*."""

    async def metadata(request: web.Request) -> web.Response:
        return web.json_response({"name": "habits", "version": "1", "extensions": []})

    async def index(request: web.Request) -> web.Response:
        return web.json_response([{"name": "m", "state": "READY"}]) if habits.says_models else refuse(404, "no list")

    async def model(request: web.Request) -> web.Response:
        tensor = {"datatype": habits.input_type, "shape": [-1, 4]}
        described = {"name": "m", "inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}]}
        return web.json_response(described) if habits.has_metadata else refuse(404, "no such path")

    async def ready(request: web.Request) -> web.Response:
        return web.Response()

    def refuse(status: int, words: str) -> web.Response:
        return web.json_response({"error": words}, status=status)

    async def infer(request: web.Request) -> web.Response:
        if habits.is_chunked_refused and request.headers.get("Transfer-Encoding"):
            return refuse(411, "Content-Length required")
        text = await request.read()
        try:
            asked = json.loads(text)
        except ValueError:
            return refuse(400, "not JSON")
        if unknown := [member for member in habits.refused if member in asked]:
            return refuse(422, f"unknown member {unknown[0]}")
        (tensor,) = asked["inputs"]
        if tensor["datatype"] not in habits.datatypes:
            return refuse(400, f"unknown datatype {tensor['datatype']}")
        if "data" not in tensor:
            return refuse(400, "no data")
        form = "null" if None in tensor["data"] else "literal" if b"NaN" in text else "both"
        if habits.nan != "both" and form not in ("both", habits.nan):
            return refuse(400, f"a number cannot be {form}")
        data: Any = tensor["data"]
        if habits.is_nested and tensor["datatype"] != "BYTES":
            data = np.array(data, object).reshape(tensor["shape"]).tolist()
        output = {"name": "y", "shape": tensor["shape"], "datatype": tensor["datatype"], "data": data}
        if habits.decodes and "parameters" in tensor:
            output["parameters"] = {"content_type": "base64"}
        for member in habits.without:
            del output[member]
        own = {"id": "own"} if habits.makes_ids else {}
        return web.Response(body=json.dumps({**own, "outputs": [output]}).encode(), content_type="application/json")

    application = web.Application(middlewares=middlewares)
    application.router.add_get(f"{prefix}/v2", metadata)
    application.router.add_post(f"{prefix}/v2/repository/index", index)
    application.router.add_get(f"{prefix}/v2/models/m", model)
    health = ("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready")
    for path in health if habits.has_health else ("/ping",):
        application.router.add_get(prefix + path, ready)
    application.router.add_post(f"{prefix}/v2/models/m/infer", infer)
    async with answered_by(application) as url:
        yield url


MORE = "send an id, list outputs"
FP32 = {"datatype": "FP32", "shape": [-1, 4]}
PLAIN = {"health": {}, "nonfinite": "as_null"}


@pytest.mark.parametrize(
    ("habits", "settings", "works"),
    [
        (Habits(), PLAIN, "infer in binary"),
        (Habits(is_nested=True), PLAIN, "infer in binary"),
        (Habits(is_chunked_refused=True), {**PLAIN, "framing": "content-length"}, "infer in binary"),
        (Habits(nan="null"), PLAIN, "send NaN"),
        (Habits(nan="literal"), {**PLAIN, "nonfinite": "literal"}, "send NaN"),
        (Habits(nan="none"), {"health": {}}, "infer in JSON"),
        (
            Habits(refused=("id", "parameters")),
            {**PLAIN, "leave_out": ["id", "parameters"]},
            "send an id, list outputs",
        ),
        (Habits(refused=("outputs",)), {**PLAIN, "leave_out": ["outputs"]}, "send an id, list outputs"),
        (Habits(makes_ids=True), {**PLAIN, "leave_out": ["id"]}, "send an id, list outputs"),
        (Habits(refused=("outputs",), makes_ids=True), {**PLAIN, "leave_out": ["id", "outputs"]}, MORE),
        (
            Habits(datatypes=("FP32", "FP16"), has_metadata=False),
            {**PLAIN, "models": {"m": {"inputs": {"x": FP32}, "outputs": {"y": FP32}}}, "half_precision": "promote"},
            "send BF16",
        ),
        (Habits(datatypes=("FP16", "BYTES"), input_type="FP16"), PLAIN, "send FP16"),
        (Habits(input_type="BYTES", decodes=True), {"health": {}, "bytes": "base64"}, "send BYTES that are no text"),
        (Habits(input_type="BYTES"), {"health": {}}, "send BYTES that are text"),
    ],
)
async def test_what_a_server_refuses_is_found_out_and_works_with_what_is_set(
    habits: Habits, settings: dict[str, Any], works: str
) -> None:
    async with server_with(habits) as url:
        found = await doctor(url)
    assert found.backend == settings, found.printed
    assert found.table[works].startswith("yes"), found.printed
    assert found.table["infer in binary"] == SAME
    assert found.findings("problem") == []
    assert found.code == (0 if set(settings) == {"health"} else 1)


async def test_a_model_of_another_datatype_is_no_reason_to_promote() -> None:
    async with server_with(Habits(datatypes=("FP32",))) as url:
        found = await doctor(url)
    assert found.backend == PLAIN
    assert "send BF16" not in found.table


async def test_what_a_server_does_not_have_the_gateway_answers_from_what_was_found() -> None:
    async with server_with(Habits(has_metadata=False, has_health=False)) as url:
        found = await doctor(url)
    tensor = {"datatype": "FP32", "shape": [-1, 4]}
    described = {"inputs": {"x": tensor}, "outputs": {"y": tensor}}
    assert found.backend["models"] == {"m": described}
    assert found.backend["health"] == {"path": "/ping"}
    for what in (
        "ask for live",
        "ask for ready",
        "ask for model metadata",
        "send raw bytes (curl)",
    ):
        assert found.table[what] == "yes", found.printed
    assert (found.code, found.findings("problem")) == (1, [])


@pytest.mark.parametrize("is_installed", [True, False])
async def test_the_table_says_what_clients_of_grpc_can_do(
    monkeypatch: pytest.MonkeyPatch, *, is_installed: bool
) -> None:
    monkeypatch.setattr("gateway.doctor.through.has_grpc", lambda: is_installed)
    async with server_with(Habits()) as url:
        found = await doctor(url)
    assert ("pip install" in found.table["use gRPC"]) is not is_installed, found.printed
    assert "as over HTTP" in found.table["use gRPC"]


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (None, "Expected `array`, got `null` - at `$.outputs`"),
        ([1], "Expected `object`, got `int` - at `$.outputs[0]`"),
        ([{"name": "y", "datatype": "FP33", "shape": [1]}], "unknown datatype 'FP33'"),
        (
            [{"name": "y", "datatype": "FP32", "shape": 4, "data": [1]}],
            "Expected `array`, got `int` - at `$.outputs[0].shape`",
        ),
        ([{"name": "y", "datatype": "FP32", "shape": [1], "data": ["a"]}], "values that are not FP32"),
    ],
)
async def test_answers_that_are_none_are_a_problem(outputs: Any, words: str) -> None:
    async def script(connection: Connection) -> None:
        while True:
            await connection.read_request()
            is_inference = connection.head.startswith(b"POST")
            await connection.answer(json.dumps({"outputs": outputs} if is_inference else {"name": "x"}).encode())

    async with lying(script) as liar:
        found = await doctor(liar.url, "--model", "m")
    (problem,) = found.findings("problem")
    assert words in problem
    assert found.code == 1


@pytest.mark.parametrize("member", ["shape", "datatype"])
async def test_answers_that_lack_something_are_a_problem(member: str) -> None:
    async with server_with(Habits(without=(member,))) as url:
        found = await doctor(url)
    (problem,) = found.findings("problem")
    assert f"missing required field `{member}` - at `$.outputs[0]`" in problem
    assert found.code == 1


@web.middleware
async def refusing_gateways(request: web.Request, handler: Any) -> web.StreamResponse:
    """Refuses inferences that a gateway has sent."""
    if "X-Request-Id" in request.headers and request.method == "POST":
        return web.json_response({"error": "not from you"}, status=403)
    answer: web.StreamResponse = await handler(request)
    return answer


@web.middleware
async def answering_gateways_otherwise(request: web.Request, handler: Any) -> web.StreamResponse:
    """Answers inferences that a gateway has sent with other values."""
    if "X-Request-Id" in request.headers and request.method == "POST":
        output = {"name": "y", "shape": [1], "datatype": "FP32", "data": [7]}
        return web.json_response({"outputs": [output]})
    answer: web.StreamResponse = await handler(request)
    return answer


async def test_an_inference_that_is_refused_through_the_gateway_is_a_problem() -> None:
    async with server_with(Habits(), refusing_gateways) as url:
        found = await doctor(url)
    assert found.findings("problem") == ["in binary through the gateway it was refused: 403: not from you"]
    assert found.table["infer in binary"] == "no: 403: not from you"
    assert found.code == 1


async def test_other_values_through_the_gateway_are_pointed_out() -> None:
    async with server_with(Habits(), answering_gateways_otherwise) as url:
        found = await doctor(url)
    assert any("gives other values through the gateway than straight" in words for words in found.findings("note"))
    assert found.table["infer in binary"] == "yes"


async def test_models_are_asked_for_by_name_where_they_are_not_listed() -> None:
    async with server_with(Habits(says_models=False)) as url:
        without, with_name, with_path = await asyncio.gather(
            doctor(url), doctor(url, "--model", "m"), doctor(f"{url}/v2/models/m/infer", "--model", "m")
        )
    assert any("to try one, name it with --model" in words for words in without.findings("note"))
    assert (without.code, with_name.code, with_path.code) == (1, 1, 1)
    assert without.table["infer"] == "not found out: no model was tried"
    assert with_name.table == with_path.table
    (problem,) = with_path.findings("problem")
    assert problem.startswith("/v2/models/m/infer at the end of the URL belongs to each request")


@pytest.mark.parametrize("has_metadata", [True, False])
async def test_a_server_that_has_nothing_but_its_model_is_recognized_by_that(has_metadata: bool) -> None:
    @web.middleware
    async def of_the_model_alone(request: web.Request, handler: Callable[..., Any]) -> Any:
        if request.path not in ("/v2/models/m", "/v2/models/m/infer"):
            raise web.HTTPNotFound
        return await handler(request)

    async with server_with(Habits(has_metadata=has_metadata), of_the_model_alone) as url:
        with_name, without = await asyncio.gather(doctor(url, "--model", "m"), doctor(url))
    assert (with_name.table["infer in binary"], with_name.findings("problem")) == (SAME, [])
    assert without.code == 2
    assert "is recognized with --model" in without.printed


async def test_a_model_that_is_not_there_is_a_problem_with_the_name_that_was_meant() -> None:
    async with server_with(Habits()) as url:
        found = await doctor(url, "--model", "mm")
    assert found.findings("problem") == ["it has no model 'mm', did you mean 'm'? Its models: m"]
    assert found.code == 1


@asynccontextmanager
async def inferring(path: str, answers: Callable[[Any], tuple[int, Any]]) -> AsyncIterator[str]:
    """The URL of a server whose model `m` is asked at *path*: status and JSON are those that *answers* gives."""

    async def infer(request: web.Request) -> web.Response:
        try:
            status, answer = answers(await request.json())
        except (ValueError, KeyError, TypeError):
            return web.json_response({"error": "not understood"}, status=400)
        return web.json_response(answer, status=status)

    async def listed(request: web.Request) -> web.Response:
        return web.json_response({"models": ["m"]})

    application = web.Application()
    application.router.add_post(path, infer)
    application.router.add_get("/v1/models" if path.startswith("/v1") else "/v2/health/live", listed)
    async with answered_by(application) as url:
        yield url


async def test_values_that_form_no_tensor_are_a_problem() -> None:
    async with inferring("/v1/models/m:predict", lambda asked: (200, {"predictions": [[1, 2], [3]]})) as url:
        found = await doctor(url, "--model", "m")
    (problem,) = found.findings("problem")
    assert "answered with nothing in `outputs` or `predictions` that forms a tensor" in problem
    assert found.code == 1


async def test_what_a_terminal_would_obey_is_escaped_also_in_the_file() -> None:
    evil = 'evil\x1b[31m\x1b]0;pwn\x07\r\n\u202e\x00\x9b2J"\\'

    def named(asked: Any) -> tuple[int, Any]:
        return 200, {"outputs": [{**asked["inputs"][0], "name": evil}]}

    async with inferring("/v2/models/m/infer", named) as url:
        found = await doctor(url, "--model", "m")
    assert all(each.isprintable() for each in found.printed.replace("\n", "")), found.printed
    assert list(found.backend["models"]["m"]["outputs"]) == [evil]
    async with inferring("/v2/models/m/infer", lambda asked: (400, {"error": evil})) as url:
        refused = await doctor(url, "--model", "m")
    assert all(each.isprintable() for each in refused.printed.replace("\n", "")), refused.printed


# Other dialects


@pytest.fixture(scope="module")
def tensorflow() -> Iterator[str]:
    with tf_serving() as url:
        yield url


@pytest.mark.parametrize(
    ("model", "works"),
    [
        ("half_plus_two", "infer in binary"),
        ("pair", "infer in binary"),
        ("string", "send BYTES that are text"),
    ],
)
async def test_tensorflow_serving_describes_its_models_itself(tensorflow: str, model: str, works: str) -> None:
    found = await doctor(tensorflow, "--model", model)
    assert found.backend["dialect"] == "tensorflow"
    assert found.backend["health"] == {"path": f"/v1/models/{model}"}
    assert "models" not in found.backend
    assert found.table["infer in binary"] == SAME, found.printed
    assert found.table[works].startswith("yes"), found.printed
    assert (found.code, found.findings("problem")) == (1, [])


async def test_a_model_without_the_usual_signature_is_a_note_that_says_what_to_set(tensorflow: str) -> None:
    found = await doctor(tensorflow, "--model", "no_default")
    assert any("set `signature` to one of these: " in words for words in found.findings("note"))
    assert found.code == 1


@pytest.mark.parametrize(("model", "words"), [("broken", "The server's words"), ("nobody", "The server's words")])
async def test_a_model_that_answers_no_trial_is_a_problem_in_the_servers_words(
    tensorflow: str, model: str, words: str
) -> None:
    found = await doctor(tensorflow, "--model", model)
    (problem,) = found.findings("problem")
    assert words in problem
    assert found.table["infer"] == "not found out: no trial inference was answered"
    assert found.code == 1


async def test_a_model_of_a_v2_server_may_answer_v1_alone() -> None:
    names = ["m"]

    async def metadata(request: web.Request) -> web.Response:
        return web.json_response({"name": "both"})

    async def index(request: web.Request) -> web.Response:
        return web.json_response([{"name": name} for name in names])

    async def predict(request: web.Request) -> web.Response:
        return web.json_response({"predictions": (await request.json())["instances"]})

    application = web.Application()
    application.router.add_get("/v2", metadata)
    application.router.add_post("/v2/repository/index", index)
    application.router.add_post("/v1/models/m:predict", predict)
    async with answered_by(application) as url:
        found = await doctor(url)
        names.append("n")
        unsure = await doctor(url)
    tensor = {"datatype": "FP32", "shape": [-1, 4]}
    assert found.backend["dialect"] == "tensorflow"
    assert found.backend["models"]["m"]["format"] == "row"
    assert found.backend["models"]["m"]["inputs"] == {"input": tensor}
    assert "but V1 (/v1/models/...:predict): `dialect: tensorflow`" in found.findings("problem")[0]
    assert found.table["infer in binary"] == SAME
    assert "its models: m, n. To try one: --model m" in unsure.findings("note")


# The file


async def test_the_file_alone_is_on_standard_output_is_valid_and_works_at_once(
    tmp_path: Path, server: JsonServer
) -> None:
    found = await asyncio.to_thread(run, "doctor", server.url, "--model", "simple", "--yaml")
    assert "What clients can do" in found.stderr
    file = tmp_path / "gateway.yaml"
    file.write_text(found.stdout)
    result = run_inside("check", str(file))
    assert (result.returncode, result.stderr) == (0, ""), result
    async with process("serve", "--config", str(file)) as gateway:
        url = await url_in_line(gateway.stderr)
        assert f"listen: {url.removeprefix('http://')}\n" in found.stdout
        assert await asyncio.to_thread(added, url) == [[5] * 16]


def added(url: str) -> Any:
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        inputs = []
        for name, value in (("INPUT0", 2), ("INPUT1", 3)):
            tensor = triton.InferInput(name, [1, 16], "INT32")
            tensor.set_data_from_numpy(np.full((1, 16), value, np.int32))
            inputs.append(tensor)
        return client.infer("simple", inputs).as_numpy("OUTPUT0").tolist()


async def test_nothing_is_on_standard_output_if_there_is_no_file() -> None:
    async with lying(answering(b"nothing", "404 Not Found")) as liar:
        found = await doctor(liar.url, "--yaml")
    assert (found.code, found.printed) == (2, "")
    assert "problem  " in found.complained


# Real servers


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


class Running(Protocol):
    """A real server."""

    @property
    def url(self) -> str:
        """Where it listens."""


async def examined(server: Server, *arguments: str, infer: tuple[str, dict[str, Array]] | None = None) -> Examined:
    """What the doctor says; *infer*, a model and its inputs, works at once with the file that it gives."""
    with serving(server):
        found = await doctor(server.url, *arguments)
        if infer is not None:
            await works_at_once(server, *infer, *arguments)
        return found


async def works_at_once(
    server: Running, model: str, inputs: dict[str, Array], *arguments: str, **environment: str
) -> None:
    """`--yaml` gives a file that `check` accepts, and with which `serve` lets an unmodified client infer."""
    found = await doctor(server.url, *arguments, "--yaml", environment=environment)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.yaml"
        file.write_text(re.sub(r"^((?:listen|admin): 127.0.0.1):\d+$", r"\1:0", found.printed, flags=re.MULTILINE))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            result = run_inside("check", str(file))
            assert result.returncode == 0, result
            async with process("serve", "--config", str(file)) as gateway:
                await asyncio.to_thread(infer_with_client, await url_in_line(gateway.stderr), model, inputs)


def infer_with_client(url: str, model: str, inputs: dict[str, Array]) -> None:
    with triton.InferenceServerClient(url.removeprefix("http://"), network_timeout=60) as client:
        assert client.is_server_live()
        sent = []
        for name, array in inputs.items():
            tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            sent.append(tensor)
        result = client.infer(model, sent)
        assert [result.as_numpy(output["name"]).size for output in result.get_response()["outputs"]]


X = {"x": np.array([[0.5, 1, 2, 3]], np.float32)}


@pytest.mark.slow
async def test_mlserver(folder: Path) -> None:
    server = MlServer(folder / "mlserver")
    try:
        server.start()
        await asyncio.to_thread(server.wait_until_ready)
        found = await doctor(server.url)
        await works_at_once(server, "identity", X)
    finally:
        server.stop()
    assert any("mlserver 1.7.1" in words for words in found.findings("ok"))
    assert found.backend == {
        "health": {},
        "nonfinite": "as_null",
        "half_precision": "promote",
        "bytes": "base64",
    }
    calls = ("live", "ready", "model ready", "model metadata")
    assert {found.table[f"ask for {call}"] for call in calls} == {"yes"}
    assert found.table["ask for model configuration"] == "no"
    for what in ("infer in binary", "send NaN", "send FP16", "send BF16", "send BYTES that are no text"):
        assert found.table[what].startswith("yes"), found.printed
    assert (found.code, found.findings("problem")) == (1, [])
    assert missing_from(found, "MLSERVER") == set()


@pytest.mark.slow
async def test_kserve_reads_binary_though_it_does_not_say_so(folder: Path) -> None:
    found = await examined(KServe(folder / "kserve"), "--model", "identity", infer=("identity", X))
    assert any("kserve 0.21.0" in words for words in found.findings("ok"))
    assert found.backend == {"health": {}, "binary": "always"}
    assert found.table["infer in binary"].startswith("yes")
    assert (found.code, found.findings("problem")) == (1, [])
    assert missing_from(found, "KSERVE") == set()


@pytest.mark.slow
async def test_triton_says_that_it_reads_binary(folder: Path) -> None:
    sent = {"x": np.ones((2, 4), np.int32)}
    found = await examined(Triton(folder / "triton"), "--model", "rows", infer=("rows", sent))
    assert any("triton 2." in words for words in found.findings("ok"))
    assert found.backend == {"health": {}, "binary": "auto"}
    assert found.table["ask for model configuration"] == "yes"
    assert (found.code, found.findings("problem")) == (1, [])
    assert missing_from(found, "TRITON") == set()


@pytest.mark.slow
async def test_a_strict_server_of_ones_own(folder: Path) -> None:
    found = await examined(FastApi(folder / "strict"), "--model", "double", infer=("double", X))
    assert found.backend["leave_out"] == ["id", "outputs", "parameters"]
    assert found.table["send an id, list outputs"].startswith("yes")
    assert (found.code, found.findings("problem")) == (1, [])
    assert missing_from(found, "FASTAPI") == set()


@pytest.mark.slow
async def test_kserve_with_a_model_that_only_speaks_v1(folder: Path) -> None:
    # nothing tells what the server calls its input, so doctor's name for it is the one to send, or to correct
    found = await examined(KServe(folder / "kserve-v1"), "--model", "v1", infer=("v1", {"input": X["x"]}))
    tensor, double = ({"datatype": datatype, "shape": [-1, 4]} for datatype in ("FP32", "FP64"))
    assert found.backend == {
        "dialect": "tensorflow",
        "health": {"path": "/v1/models/v1"},
        "models": {"v1": {"format": "row", "inputs": {"input": tensor}, "outputs": {"output": double}}},
        "nonfinite": "as_null",
    }
    assert found.table["infer in binary"] == SAME
    problem, guess = found.findings("problem")
    assert "`dialect: tensorflow`" in problem
    assert "Guessed from one inference: input FP32, output FP64." in guess
    assert found.code == 1
    assert missing_from(found, "KSERVEV1") == set()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["identity", "unnamed"])
async def test_mlflow(folder: Path, model: str) -> None:
    found = await examined(Mlflow(folder / f"mlflow-{model}", model), infer=("any", X))
    block = {
        "inputs": {"": {"datatype": "FP32", "shape": [-1, 4]}},
        "outputs": {"output": {"datatype": "FP64", "shape": [-1, 4]}},
    }
    assert any("MLflow 3.17" in words for words in found.findings("ok"))
    assert found.backend == {"dialect": "mlflow", "models": {"*": block}, "health": {}, "nonfinite": "as_null"}
    assert found.table["infer in binary"] == SAME
    (problem,) = found.findings("problem")
    assert "inputs and outputs are. Guessed from one inference" in problem
    assert "# GUESSED from one inference" in found.printed
    assert found.code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        ("signed", {"x": [[0.5, 1, 2, 3]], "n": [7]}, {"y": ("FP64", ["n", 4]), "m": ("INT64", [-1])}),
        ("columns", {"a": [0.5, 1], "b": [3, 4]}, {"predictions": ("FP64", ["n"])}),
    ],
)
async def test_mlflow_with_a_signature_needs_a_sample(
    folder: Path, model: str, inputs: dict[str, Any], outputs: dict[str, Any]
) -> None:
    file = folder / f"{model}.json"
    file.write_text(json.dumps({"inputs": inputs}))
    server = Mlflow(folder / f"mlflow-{model}", model)
    sent = {name: np.array(value, np.int64 if name in "bn" else np.float64) for name, value in inputs.items()}
    with serving(server):
        without = await doctor(server.url)
        found = await doctor(server.url, "--path", "/invocations", "--sample", str(file))
        await works_at_once(server, "any", sent, "--model", "any", "--path", "/invocations", "--sample", str(file))
    assert "--path /invocations" in without.findings("problem")[0]
    (block,) = found.backend["models"].values()
    assert {name: (each["datatype"], each["shape"]) for name, each in block["outputs"].items()} == outputs
    assert found.table["infer in binary"].startswith("yes; "), found.printed
    if model == "signed":
        assert missing_from(found, "MLFLOW") == set()


@pytest.mark.slow
async def test_torchserve_has_neither_health_nor_metadata(folder: Path) -> None:
    without = await examined(TorchServe(folder / "torchserve-1"))
    assert (without.code, without.backend) == (1, {"health": {"path": "/ping"}})
    assert missing_from(without, "TORCHSERVE WITHOUT MODEL") == set()
    found = await examined(TorchServe(folder / "torchserve-2"), "--model", "double", infer=("double", X))
    x = {"datatype": "FP32", "shape": [-1, 4]}
    described = {"inputs": {"x": x}, "outputs": {"x": {"datatype": "FP32", "shape": [-1]}}}
    assert found.backend == {"health": {"path": "/ping"}, "models": {"double": described}, "nonfinite": "as_null"}
    for call, answered in {"live": "yes", "ready": "yes", "model metadata": "yes", "model ready": "no"}.items():
        assert found.table[f"ask for {call}"] == answered
    assert (found.code, found.findings("problem")) == (1, [])
    assert missing_from(found, "TORCHSERVE") == set()


@pytest.mark.slow
async def test_torchserve_without_its_envelope_and_with_that_of_v1(folder: Path) -> None:
    found = await examined(TorchServe(folder / "torchserve-3", ""), "--model", "double")
    (problem,) = found.findings("problem")
    assert "every trial inference was refused" in problem
    found = await examined(TorchServe(folder / "torchserve-4", "kserve"), "--model", "double")
    assert (found.backend["dialect"], found.backend["models"]["double"]["format"]) == ("tensorflow", "row")
    assert found.table["infer in binary"] == SAME


@pytest.mark.slow
async def test_torchserve_with_tokens(folder: Path) -> None:
    server = TorchServe(folder / "torchserve-5", has_tokens=True)
    with serving(server):
        without = await doctor(server.url, "--model", "double")
        token = {"TOKEN": server.headers["Authorization"].removeprefix("Bearer ")}
        arguments = ("--model", "double", "--header", BEARER + "${TOKEN}")
        found = await doctor(server.url, *arguments, environment=token)
        await works_at_once(server, "double", X, *arguments, **token)
    assert "it needs credentials (400: Token Authorization failed" in without.findings("problem")[0]
    assert (without.code, found.code, found.findings("problem")) == (2, 1, [])
    assert found.backend["headers"] == {"set": {"Authorization": "Bearer ${TOKEN}"}}
