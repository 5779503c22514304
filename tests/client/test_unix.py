"""Listeners on a socket in the file system: who may connect, what becomes of stale files, and who the client is."""

import json
import os
import signal
import socket
import stat
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from gateway.client import listeners
from gateway.client.listeners import ClientListener
from gateway.config import Address
from gateway.demo import JsonServer
from tests.client.raw import connect, echo, serving
from tests.conftest import Client, tensor
from tests.system.scripted import counting
from tests.test_cli import process
from tests.test_workers import children_of

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
X = np.arange(4, dtype=np.float32)
HEADER = {"inputs": [tensor("x", X, "FP32")], "parameters": {"binary_data_output": True}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.sock"


def make_stale(path: Path) -> None:
    """Leave what a gateway leaves that was killed."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()


async def test_clients_are_served_at_a_path_that_others_cannot_open_and_that_goes_away_at_the_end(path: Path) -> None:
    before = os.umask(0)
    try:
        async with serving(echo, address=f"unix:{path}") as served:
            assert served.url == f"unix:{path}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            for _ in range(2):
                async with connect(served.url) as client:
                    assert (await client.exchange(GET)).body == b"GET /a "
            assert served.requests[0].peer == "unix"
            assert served.requests[0].scheme == "http"
            assert (await served.exchange()).client == "unix"
    finally:
        os.umask(before)
    assert not path.exists()


async def test_a_stale_file_is_replaced(path: Path) -> None:
    make_stale(path)
    async with serving(echo, address=f"unix:{path}") as served, connect(served.url) as client:
        assert (await client.exchange(GET)).status == 200


@pytest.mark.parametrize("backlog", [0, 100])
async def test_a_path_on_which_somebody_listens_is_in_use(path: Path, backlog: int) -> None:
    with socket.socket(socket.AF_UNIX) as living, socket.socket(socket.AF_UNIX) as waiting:
        living.bind(str(path))
        living.listen(backlog)
        waiting.connect(str(path))
        with pytest.raises(OSError, match=f"cannot listen on unix:{path}: address already in use"):
            await listeners.bind(Address(f"unix:{path}"))
        assert path.exists()


async def test_a_file_that_is_no_socket_is_never_removed(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(OSError, match="a file that is no socket exists there"):
        await listeners.bind(Address(f"unix:{path}"))
    assert path.read_text() == "precious"


async def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    address = Address(f"unix:{tmp_path}/none/x.sock")
    with pytest.raises(OSError, match=f"cannot listen on {address}: no such file or directory"):
        await listeners.bind(address)


async def test_the_file_of_another_gateway_is_not_removed(path: Path) -> None:
    first = await listeners.bind(Address(f"unix:{path}"))
    path.unlink()
    second = await listeners.bind(Address(f"unix:{path}"))
    listeners.release(first)
    assert path.exists()
    listeners.release(second)
    assert not path.exists()


async def test_a_failed_start_leaves_the_living_file_of_another(path: Path) -> None:
    async with serving(echo, address=f"unix:{path}") as served:
        for _ in range(2):
            with pytest.raises(OSError, match="in use"):
                await ClientListener(served.server).open(Address(f"unix:{path}"))
        async with connect(served.url) as client:
            assert (await client.exchange(GET)).status == 200


@pytest.mark.parametrize(
    ("workers", "trusted", "client"),
    [(1, "", "unix"), pytest.param(2, "", "unix", marks=pytest.mark.slow), (1, "unix", "10.0.0.1")],
)
async def test_a_gateway_serves_at_a_path_and_the_backend_is_told_no_address(
    path: Path, workers: int, trusted: str, client: str
) -> None:
    config = path.with_name("gateway.yaml")
    async with counting() as backend:
        config.write_text(
            f"workers: {workers}\nlisten: unix:{path}\nadmin: 127.0.0.1:0\ntrusted_proxies: [{trusted}]\n"
            f"backends: {{a: {{endpoints: ['{backend.url}']}}}}\n"
        )
        make_stale(path)
        async with process("serve", "--config", str(config)) as serve:
            assert serve.stderr is not None
            assert (await serve.stderr.readline()).decode().endswith(f" serves clients on unix:{path}\n")
            admin = (await serve.stderr.readline()).decode().rpartition(" ")[2].strip()
            async with process("serve", "--config", str(config)) as second:
                _, errors = await second.communicate()
                assert second.returncode == 1
                words = f"cannot listen on unix:{path}: address already in use; to listen elsewhere: --listen"
                assert words in errors.decode()
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path), force_close=True)) as session:
                asking = Client(session, None, "http://x", admin)  # type: ignore[arg-type]
                for _ in range(20):
                    reply = await asking.infer_binary(HEADER, X.tobytes(), model="m")
                    assert (reply.status, reply.binary) == (200, X.tobytes())
                await asking.request("GET", "/v2", headers={"X-Forwarded-For": "10.0.0.1"})
            assert backend.seen[0].values("X-Forwarded-For") == []
            assert backend.seen[-1].values("X-Forwarded-For") == (["10.0.0.1"] if trusted else [])
            serve.send_signal(signal.SIGTERM)
            out, errors = await serve.communicate()
            assert serve.returncode == 0, errors
            clients = [json.loads(line)["client"] for line in out.splitlines()]
            assert clients[:-1] == ["unix"] * 20
            assert clients[-1] == client
        assert not path.exists()


@pytest.mark.slow
async def test_a_worker_that_dies_is_replaced_on_the_same_path(path: Path, server: JsonServer) -> None:
    config = path.with_name("gateway.yaml")
    config.write_text(
        f"workers: 2\nlisten: unix:{path}\nadmin: 127.0.0.1:0\nbackends: {{a: {{endpoints: ['{server.url}']}}}}\n"
    )
    async with process("serve", "--config", str(config)) as serve:
        assert serve.stderr is not None
        for _ in range(2):
            await serve.stderr.readline()
        for pid in children_of(serve.pid):
            os.kill(pid, signal.SIGKILL)
        # nobody accepts now, but the path is kept: the client waits for the replacement
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
            async with session.get("http://x/v2") as response:
                assert response.status == 200
