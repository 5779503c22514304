"""What tests share: a running gateway, real and lying backends, and bodies in the binary extension."""

import asyncio
import gc
import io
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, settings

from gateway.config import parse
from gateway.config.values import usable_cores
from gateway.demo import JsonServer
from gateway.process.application import Application
from tests.certificates import Authority

HEADER_LENGTH = "Inference-Header-Content-Length"

# So that a failure is the change's; with NEW_EXAMPLES=1 others on each run.
settings.register_profile(
    "the same examples",
    max_examples=200 if os.environ.get("CI") else 60,
    derandomize=not os.environ.get("NEW_EXAMPLES"),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("the same examples")


def pytest_configure(config: pytest.Config) -> None:
    if sys.dont_write_bytecode:  # each of two hundred processes would compile the gateway again, for half of its start
        sys.dont_write_bytecode = False
        sys.pycache_prefix = str(config.rootpath / ".pytest_cache" / "bytecode")
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in ("no_proxy", "NO_PROXY"):  # a proxy of this machine is for packages; what tests talk to is on loopback
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost,::1"]))


def pytest_xdist_auto_num_workers() -> int:
    """Three processes for two cores, with `-n auto`: a third of the time of a test is waiting."""
    return (3 * usable_cores() + 1) // 2


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking at sixteen thousand tests, which takes it a third of a second."""
    gc.collect()
    gc.freeze()


@dataclass
class Reply:
    """What a client got."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        """The JSON part of the body."""
        length = self.headers.get(HEADER_LENGTH)
        return json.loads(self.body if length is None else self.body[: int(length)])

    @property
    def binary(self) -> bytes:
        """What follows the JSON."""
        return self.body[int(self.headers[HEADER_LENGTH]) :]

    @property
    def error(self) -> str:
        """The text of an error, whose shape is checked on the way."""
        assert self.headers.getall("Content-Type") == ["application/json"]
        assert "Content-Encoding" not in self.headers
        parsed = json.loads(self.body)
        assert list(parsed) == ["error"]
        return str(parsed["error"])


@dataclass
class Client:
    """A plain HTTP client of a running gateway."""

    session: aiohttp.ClientSession
    gateway: Application
    url: str
    admin: str

    async def request(self, method: str, path: str, **options: Any) -> Reply:
        """Send a request and read its reply."""
        async with self.session.request(method, self.url + path, **options) as response:
            return Reply(response.status, response.headers, await response.read())

    async def infer(self, body: bytes, header_length: object = None, model: str = "identity", **options: Any) -> Reply:
        """Post *body* to the infer path of *model*."""
        headers = dict(options.pop("headers", {}))
        if header_length is not None:
            headers[HEADER_LENGTH] = str(header_length)
        return await self.request(
            "POST", f"/v2/models/{model}/infer", data=io.BytesIO(body), headers=headers, **options
        )

    async def infer_binary(self, header: dict[str, Any], *blobs: bytes, **options: Any) -> Reply:
        """Post *header* and *blobs* with the right header length."""
        text = json.dumps(header).encode()
        return await self.infer(text + b"".join(blobs), len(text), **options)

    async def wait_until_idle(self, timeout_s: float) -> int:
        """Wait until no request is in flight, at most *timeout_s*, and return how many still are."""
        handler = self.gateway.gateway
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while handler.in_flight:
                    await asyncio.sleep(0.005)
        return handler.in_flight

    async def metrics(self) -> dict[str, float]:
        """Every sample of the gateway's metrics, by its name with labels."""
        async with self.session.get(f"{self.admin}/metrics") as response:
            text = await response.text()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


@asynccontextmanager
async def running(backend_url: str, extra: str = "", backend: str = "") -> AsyncIterator[Client]:
    """A gateway in front of *backend_url*; *extra* is YAML of the top level, *backend* of the backend."""
    text = f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbackends:\n  main:\n    endpoints: ['{backend_url}']\n"
    text += "".join(f"    {line}\n" for line in backend.splitlines())
    application = await Application.start(
        parse(text + ("" if "logging:" in extra else "logging: {access: none}\n") + extra)
    )
    try:
        async with aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=["Content-Type"]) as session:
            yield Client(session, application, application.listen_url, application.admin_url)
    finally:
        await application.stop()


def access_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the access log, of which one record may hold several."""
    records = (record for record in caplog.records if record.name == "gateway.access")
    return [line for record in records for line in record.getMessage().split("\n")]


@pytest.fixture
async def server() -> AsyncIterator[JsonServer]:
    """The embedded JSON-only server."""
    async with JsonServer.on_port(0) as running_server:
        yield running_server


@pytest.fixture
async def client(server: JsonServer) -> AsyncIterator[Client]:
    """A client of a gateway in front of the embedded server."""
    async with running(server.url) as running_client:
        yield running_client


Script = Callable[["Connection"], Awaitable[None]]


@dataclass
class Connection:
    """One connection that a lying backend has accepted, with the request it read."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: bytes = b""
    body: bytes = b""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_request(self) -> None:
        """Read a whole request."""
        self.head = await self.reader.readuntil(b"\r\n\r\n")
        await self.read_body()

    async def read_body(self) -> None:
        """Read the body behind `head`."""
        lower = self.head.lower()
        if b"transfer-encoding: chunked" in lower:
            pieces = []
            while size := int(await self.reader.readline(), 16):
                pieces.append(await self.reader.readexactly(size))
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
            self.body = b"".join(pieces)
        elif b"\r\ncontent-length: " in lower:
            length = int(lower.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
            self.body = await self.reader.readexactly(length)

    def pause_reading(self) -> None:
        """Read nothing more from the socket, so that the sender's buffers fill."""
        assert isinstance(self.writer.transport, asyncio.Transport)
        self.writer.transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on after `pause_reading`."""
        assert isinstance(self.writer.transport, asyncio.Transport)
        self.writer.transport.resume_reading()

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def answer(
        self, body: bytes, status: str = "200 OK", headers: str = "Content-Type: application/json\r\n"
    ) -> None:
        """Send a well-formed answer."""
        await self.send(f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)


@dataclass
class Liar:
    """A backend that follows a script, for what no real server does on demand."""

    url: str
    script: Script
    connections: list[Connection] = field(default_factory=list)


@asynccontextmanager
async def lying(script: Script) -> AsyncIterator[Liar]:
    """A backend whose every connection runs *script*, which reads and answers as it likes, and is then closed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        liar.connections.append(connection)
        try:
            await liar.script(connection)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            connection.ended.set()
            writer.close()

    backend = await asyncio.start_server(serve, "127.0.0.1", 0)
    liar = Liar(f"http://127.0.0.1:{backend.sockets[0].getsockname()[1]}", script)
    async with backend:
        yield liar
        for connection in liar.connections:
            connection.writer.close()


def answering(body: bytes, status: str = "200 OK", headers: str = "Content-Type: application/json\r\n") -> Script:
    """A script that gives every request the same answer and keeps the connection."""

    async def script(connection: Connection) -> None:
        while True:
            await connection.read_request()
            await connection.answer(body, status, headers)

    return script


def tensor(name: str, array: npt.NDArray[Any], datatype: str, **parameters: Any) -> dict[str, Any]:
    """The header's entry for a binary input."""
    return {
        "name": name,
        "shape": list(array.shape),
        "datatype": datatype,
        "parameters": {"binary_data_size": array.nbytes, **parameters},
    }


def require_tool(name: str, how: str) -> str:
    """The path of program *name*. Where it is missing, a developer's test is skipped; in CI it fails."""
    beside_python = Path(sys.executable).parent
    # servers are in /usr/sbin, which not every user has in PATH
    found = shutil.which(name, path=os.pathsep.join([str(beside_python), os.environ.get("PATH", ""), "/usr/sbin"]))
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is missing: {how}")
    return found


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Issues certificates for one test."""
    return Authority(tmp_path)
