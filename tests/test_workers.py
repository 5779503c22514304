"""Several workers on one port, in processes of their own."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from gateway import __version__
from gateway.config import load, parse
from gateway.demo import JsonServer
from gateway.process import supervisor as supervisor_module
from gateway.process.supervisor import Supervisor, _WorkerProcess
from gateway.process.worker import Channel
from tests.conftest import Client, tensor
from tests.test_cli import process, url_in_line

X = np.arange(4, dtype=np.float32)
HEADER = {"inputs": [tensor("x", X, "FP32")], "parameters": {"binary_data_output": True}}


def configuration(folder: Path, server: JsonServer, extra: str = "") -> str:
    path = folder / "gateway.yaml"
    path.write_text(
        f"workers: 2\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{extra}"
        f"backends: {{a: {{endpoints: ['{server.url}']}}}}\n"
    )
    return str(path)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def infer_afresh(client: Client, count: int) -> None:
    """Infer on a new connection each time, so that the kernel chooses a worker anew."""
    for _ in range(count):
        reply = await client.infer_binary(HEADER, X.tobytes(), headers={"Connection": "close"})
        assert (reply.status, reply.binary) == (200, X.tobytes())


@pytest.mark.slow
async def test_workers_share_the_port_and_their_metrics_are_summed(tmp_path: Path, server: JsonServer) -> None:
    async with process("serve", "--config", configuration(tmp_path, server)) as serve:
        url, admin = await url_in_line(serve.stderr), await url_in_line(serve.stderr)
        async with aiohttp.ClientSession() as session:
            client = Client(session, None, url, admin)  # type: ignore[arg-type]
            await infer_afresh(client, 40)
            counted = 'tensor_gateway_requests_total{code="200",model="identity",protocol="http",route="a"}'
            while (metrics := await client.metrics()).get(counted, 0) < 40:
                await asyncio.sleep(0.05)  # a request is counted after its reply, in another process
            assert metrics[counted] == 40
            assert metrics["tensor_gateway_in_flight_bytes_limit"] == 2 * 1024**3
            assert metrics[f'tensor_gateway_build_info{{version="{__version__}"}}'] == 1
            busy = [Path(f"/proc/{pid}/schedstat").read_text().split()[0] for pid in children_of(serve.pid)]
            assert len(busy) == 2
            async with session.get(f"{admin}/-/ready") as response:
                assert response.status == 200


@pytest.mark.slow
async def test_a_worker_that_dies_is_replaced_and_what_it_counted_stays(tmp_path: Path, server: JsonServer) -> None:
    async with process("serve", "--config", configuration(tmp_path, server)) as serve:
        url, admin = await url_in_line(serve.stderr), await url_in_line(serve.stderr)
        async with aiohttp.ClientSession() as session:
            client = Client(session, None, url, admin)  # type: ignore[arg-type]
            await infer_afresh(client, 20)
            counted = 'tensor_gateway_requests_total{code="200",model="identity",protocol="http",route="a"}'
            while (await client.metrics()).get(counted, 0) < 20:  # a worker adds up what it has counted every 0.1 s
                await asyncio.sleep(0.05)
            before = children_of(serve.pid)
            os.kill(before[0], signal.SIGKILL)
            while len(children_of(serve.pid)) < 2 or set(children_of(serve.pid)) == set(before):
                await asyncio.sleep(0.05)
            while (await client.metrics()).get("tensor_gateway_in_flight_bytes_limit", 0) < 2 * 1024**3:
                await asyncio.sleep(0.05)
            await infer_afresh(client, 20)
            while (await client.metrics())[counted] < 40:
                await asyncio.sleep(0.05)
            assert (await client.metrics())[counted] == 40
        serve.send_signal(signal.SIGTERM)
        _, errors = await serve.communicate()
        assert serve.returncode == 0
        assert b"died with code -9; it is replaced" in errors
        assert b"Traceback" not in errors


@pytest.mark.slow
async def test_what_workers_counted_that_die_again_and_again_stays(tmp_path: Path, server: JsonServer) -> None:
    async with process("serve", "--config", configuration(tmp_path, server)) as serve:
        url, admin = await url_in_line(serve.stderr), await url_in_line(serve.stderr)
        async with aiohttp.ClientSession() as session:
            client = Client(session, None, url, admin)  # type: ignore[arg-type]
            counted = 'tensor_gateway_requests_total{code="200",model="identity",protocol="http",route="a"}'
            for round_ in range(1, 4):
                await infer_afresh(client, 10)
                while (await client.metrics()).get(counted, 0) < 10 * round_:
                    await asyncio.sleep(0.05)
                for pid in children_of(serve.pid):
                    os.kill(pid, signal.SIGKILL)
                while (await client.metrics())["tensor_gateway_workers_replaced_total"] < 2 * round_:
                    await asyncio.sleep(0.05)
                # a scrape is collected in parts, of which some may be older than the deaths; this one is not
                while (await client.metrics()).get("tensor_gateway_in_flight_bytes_limit", 0) < 2 * 1024**3:
                    await asyncio.sleep(0.05)
                metrics = await client.metrics()
                assert metrics[counted] == 10 * round_
                assert metrics['tensor_gateway_request_seconds_count{model="identity",route="a"}'] == 10 * round_


async def logged(serve: asyncio.subprocess.Process, words: str) -> None:
    """Wait for the next line on standard error that is not the first look's, which ends with *words*."""
    assert serve.stderr is not None
    async with asyncio.timeout(60):
        while "backend 'a'" in (line := (await serve.stderr.readline()).decode()):
            pass
    assert line.endswith(f"{words}\n")


@pytest.mark.slow
async def test_a_worker_that_hangs_is_told_to_probes(tmp_path: Path, server: JsonServer) -> None:
    """Half of the clients reach it and wait, and nothing but a restart helps."""
    async with process("serve", "--config", configuration(tmp_path, server)) as serve:
        _, admin = await url_in_line(serve.stderr), await url_in_line(serve.stderr)
        async with aiohttp.ClientSession() as session:

            async def until(path: str, status: int) -> str:
                async with asyncio.timeout(60):
                    while True:
                        async with session.get(admin + path) as response:
                            if response.status == status:
                                return await response.text()
                        await asyncio.sleep(0.05)

            await until("/-/ready", 200)
            hanging = children_of(serve.pid)[0]
            os.kill(hanging, signal.SIGSTOP)
            try:
                for path in ("/-/live", "/-/ready"):
                    assert await until(path, 503) == f"nothing was heard of worker {hanging} for 3 s\n"
                await logged(serve, f" WARNING gateway: nothing was heard of worker {hanging} for 3 s")
            finally:
                os.kill(hanging, signal.SIGCONT)
            assert await until("/-/live", 200) == "live\n"
            assert await until("/-/ready", 200) == "ready\n"
            await logged(serve, " INFO gateway: no worker hangs any more")  # the next line: each is said once


@pytest.mark.slow
async def test_a_worker_that_dies_just_before_the_end_is_not_waited_for(tmp_path: Path, server: JsonServer) -> None:
    async with process("serve", "--config", configuration(tmp_path, server, "shutdown: {grace: 60s}\n")) as serve:
        await url_in_line(serve.stderr)
        os.kill(children_of(serve.pid)[0], signal.SIGKILL)
        while len(children_of(serve.pid)) > 1:
            await asyncio.sleep(0.01)
        serve.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(serve.wait(), 30) == 0


@pytest.mark.slow
async def test_workers_drain_together(tmp_path: Path, server: JsonServer) -> None:
    async with process("serve", "--config", configuration(tmp_path, server)) as serve:
        url, admin = await url_in_line(serve.stderr), await url_in_line(serve.stderr)
        async with aiohttp.ClientSession() as session:
            client = Client(session, None, url, admin)  # type: ignore[arg-type]
            slow = asyncio.Event()

            async def body() -> AsyncIterator[bytes]:
                text = b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]}]}'
                yield text[:10]
                await slow.wait()
                yield text[10:]

            uploading = asyncio.create_task(client.request("POST", "/v2/models/identity/infer", data=body()))
            while (await client.metrics())["tensor_gateway_requests_in_flight"] < 1:
                await asyncio.sleep(0.05)
            serve.send_signal(signal.SIGTERM)
            assert serve.stderr is not None
            assert b" INFO gateway.announce: draining" in await serve.stderr.readline()
            async with session.get(f"{admin}/-/ready") as response:
                assert response.status == 503
            slow.set()
            assert (await uploading).status == 200
        assert await asyncio.wait_for(serve.wait(), 20) == 0


@pytest.mark.slow
async def test_workers_end_when_their_supervisor_is_gone_and_leave_no_files(
    tmp_path: Path, server: JsonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    async with process("serve", "--config", configuration(tmp_path, server)) as serve:
        await url_in_line(serve.stderr)
        workers = children_of(serve.pid)
        serve.kill()
        await serve.wait()
        while any(Path(f"/proc/{pid}/cmdline").exists() and b"gateway" in cmdline(pid) for pid in workers):
            await asyncio.sleep(0.05)
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
async def test_what_a_worker_finds_is_logged_with_its_number(tmp_path: Path, server: JsonServer) -> None:
    file = Path(configuration(tmp_path, server))
    health = "health: {interval: 100ms, unhealthy_after: 1}"
    file.write_text(file.read_text().replace(f"['{server.url}']", f"['http://127.0.0.1:1'], {health}"))
    async with process("serve", "--config", str(file)) as serve:
        assert serve.stderr is not None
        # one of each worker's probes, and one for each listener; which comes first depends on how fast they start
        lines = [(await serve.stderr.readline()).decode() for _ in range(4)]
        warnings = {line.partition("WARNING ")[2] for line in lines if "WARNING" in line}
        assert warnings == {
            f"gateway[worker {pid}]: backend 'a': http://127.0.0.1:1 is down: a probe of /v2/health/ready failed, "
            "the last: Connection refused\n"
            for pid in children_of(serve.pid)
        }


@pytest.mark.slow
async def test_a_worker_that_hangs_when_all_end_is_killed_and_named(
    tmp_path: Path, server: JsonServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor_module, "HANG_S", 2.0)
    supervisor = await Supervisor.start(
        load(Path(configuration(tmp_path, server, "shutdown: {grace: 0s}\nlogging: {access: none}\n")))
    )
    try:
        hanging = next(iter(supervisor._workers))
        os.kill(hanging, signal.SIGSTOP)
        await supervisor.drain()
        expected = f"worker {hanging} has not ended in time; it is killed, with what it has in flight"
        assert caplog.messages == [expected]
    finally:
        await supervisor.stop()


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_an_address_in_use_ends_the_start(tmp_path: Path, server: JsonServer) -> None:
    text = Path(configuration(tmp_path, server)).read_text()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        (tmp_path / "gateway.yaml").write_text(text.replace("listen: 127.0.0.1:0", f"listen: {taken}"))
        async with process("serve", "--config", str(tmp_path / "gateway.yaml")) as serve:
            _, errors = await serve.communicate()
        assert serve.returncode == 1
        assert f"cannot listen on {taken}".encode() in errors


async def test_a_worker_that_dies_before_it_listens_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker"
    worker.write_text("#!/bin/sh\nexit 1\n")
    worker.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(worker))
    supervisor = Supervisor(parse("workers: 2\nbackends: {a: {endpoints: ['http://127.0.0.1:1']}}\n"))
    try:
        with pytest.raises(OSError, match="a worker did not start"):
            await supervisor._spawn()
        assert supervisor._workers == {}
    finally:
        await supervisor.stop()


async def test_a_worker_whose_program_is_gone_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nothing/here")
    supervisor = Supervisor(parse("workers: 2\nbackends: {a: {endpoints: ['http://127.0.0.1:1']}}\n"))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        await supervisor._spawn()
    assert os.listdir("/proc/self/fd") == before
    await supervisor.stop()


async def test_a_worker_that_sends_what_cannot_be_read_is_killed_and_named(caplog: pytest.LogCaptureFixture) -> None:
    own, its = socket.socketpair()
    channel = await Channel.over(own)
    process = await asyncio.create_subprocess_exec("sleep", "60")
    worker = _WorkerProcess(process, channel, lambda batch: True)
    with its:
        its.sendall(b"{}\n")
        assert await asyncio.wait_for(process.wait(), 20) == -signal.SIGKILL
        assert await worker.serve(parse("backends: {a: {endpoints: ['http://127.0.0.1:1']}}"), 1.0) is None
    (message,) = caplog.messages
    assert message.startswith(f"worker {process.pid} has sent an invalid message: ")


@pytest.mark.parametrize("told_first", [True, False])
async def test_a_worker_that_drains_is_not_killed_because_it_takes_no_configuration(told_first: bool) -> None:
    """It has read the end of its messages, and still has requests."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    own, its = socket.socketpair()
    worker = _WorkerProcess(process, await Channel.over(own), lambda batch: True)
    share = parse("backends: {a: {endpoints: ['http://127.0.0.1:1']}}")
    with its:
        if told_first:
            worker.drain()
            assert await worker.serve(share, 60) is None
        else:
            served = asyncio.create_task(worker.serve(share, 0.2))
            await asyncio.sleep(0)
            worker.drain()
            assert await served is None
        worker.give_up()
        await asyncio.sleep(0.2)
        assert process.returncode is None
        worker.kill()
        assert await process.wait() == -signal.SIGKILL
    assert await worker.ended() == -signal.SIGKILL


async def test_killing_a_worker_leaves_its_exit_code_to_whoever_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Popen.send_signal` looks first whether the process has ended, and takes the code of one that just has."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    own, its = socket.socketpair()
    worker = _WorkerProcess(process, await Channel.over(own), lambda batch: True)
    with its, monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "send_signal", lambda *_: pytest.fail("the code may be lost"))
        worker.kill()
        worker.kill()
        assert await process.wait() == -signal.SIGKILL
    assert await worker.ended() == -signal.SIGKILL
    worker.kill()  # nothing, although another process may have the number by now
