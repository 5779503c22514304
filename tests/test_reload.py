"""Reload in real processes: SIGHUP and --watch, one process and workers, under load, and files that do not load."""

import asyncio
import itertools
import logging
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.config import Config, load, masked, parse
from gateway.config.reading import HIDDEN
from gateway.demo import JsonServer
from gateway.errors import ConfigError
from gateway.process import reload as reload_module
from gateway.process import supervisor as supervisor_module
from gateway.process.reload import WATCH_S, Reloader, keep_fixed
from gateway.process.supervisor import Supervisor, _WorkerProcess
from gateway.process.worker import Channel, Done, Serve
from gateway.telemetry.metrics import Metrics
from tests.certificates import Authority, Pair
from tests.conftest import Client, Connection, Script, answering, lying, tensor
from tests.test_cli import COMMAND, process, url_in_line
from tests.test_workers import children_of

RELOADED_AT = "tensor_gateway_config_last_reload_timestamp_seconds"

A, B, C = (answering(b'{"from":"%s"}' % name.encode()) for name in "abc")


def unannounced(line: str) -> str:
    """*line* of standard error; of an announcement, what stands behind time and level."""
    return re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO gateway\.announce: ", "", line)


@dataclass
class Gateway:
    """A gateway that runs in processes of its own, and its file."""

    process: asyncio.subprocess.Process
    file: Path
    client: Client

    def configure(self, *urls: str, extra: str = "", listen: str = "127.0.0.1:0") -> None:
        """Replace the file by one with a backend for each of *urls*, the first of which gets all requests."""
        backends = "".join(f"  b{index}: {{endpoints: ['{url}']}}\n" for index, url in enumerate(urls))
        write_whole(
            self.file,
            f"listen: {listen}\nadmin: 127.0.0.1:0\n{extra}backends:\n{backends}routes: [{{name: r, backend: b0}}]\n",
        )

    def hang_up(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    async def line(self) -> str:
        """The next line on standard error."""
        assert self.process.stderr is not None
        return unannounced((await asyncio.wait_for(self.process.stderr.readline(), 20)).decode().rstrip())

    async def reload(self) -> str:
        """Send SIGHUP; the line that says how it went."""
        self.hang_up()
        return await self.line()

    async def ask(self) -> str:
        """Which backend answers, on a new connection."""
        reply = await self.client.request("GET", "/which", headers={"Connection": "close"})
        return str(reply.json["from"])

    async def rest(self) -> list[str]:
        """End it; what it has written to standard error and was not read."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(self.process.communicate(), 30)
        assert self.process.returncode == 0
        return [unannounced(line) for line in errors.decode().splitlines()]


def write_whole(file: Path, text: str) -> None:
    """Replace *file* in one step, as editors and deployments do."""
    file.with_suffix(".new").write_text(text)
    file.with_suffix(".new").replace(file)


@asynccontextmanager
async def serving(folder: Path, *urls: str, extra: str = "", watch: bool = False) -> AsyncIterator[Gateway]:
    """A gateway whose file is in *folder*."""
    gateway = Gateway(None, folder / "gateway.yaml", None)  # type: ignore[arg-type]
    gateway.configure(*urls, extra=extra)
    arguments = ["serve", "--config", str(gateway.file), *(["--watch"] if watch else [])]
    async with process(*arguments) as gateway.process, aiohttp.ClientSession() as session:
        url, admin = await url_in_line(gateway.process.stderr), await url_in_line(gateway.process.stderr)
        gateway.client = Client(session, None, url, admin)  # type: ignore[arg-type]
        yield gateway


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until *condition* holds."""
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.02)


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["one process", "two workers"])
def workers(request: pytest.FixtureRequest) -> str:
    return f"workers: {request.param}\n"


def test_what_needs_a_restart_stays_and_is_named() -> None:
    backends = "backends: {a: {endpoints: ['http://x:1']}}\n"
    running = parse(f"workers: 2\n{backends}")
    assert keep_fixed(running, running) == (running, [])
    limits = "limits: {tensors: 7}\n"
    kept, names = keep_fixed(parse(f"listen: 127.0.0.1:1\nadmin: 127.0.0.1:2\nworkers: 3\n{limits}{backends}"), running)
    assert names == ["listen", "admin", "workers"]
    assert kept == parse(f"workers: 2\n{limits}{backends}")
    tls = parse(f"workers: 2\ntls: {{certificate: c, key: k}}\n{backends}")
    assert keep_fixed(tls, running) == (running, ["tls"])
    assert keep_fixed(running, tls) == (tls, ["tls"])
    other = parse(f"workers: 2\ntls: {{certificate: c, key: other}}\n{backends}")
    assert keep_fixed(other, tls) == (other, [])
    kept, names = keep_fixed(parse(backends), parse(f"workers: 16\n{backends}"))  # 2 GiB would not do for these
    assert (kept.in_flight_bytes, names) == (4 * 1024**3, ["workers"])


def test_what_stays_is_hidden_as_it_was_and_what_is_new_as_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("PEM", "pem")
    plain = "backends: {a: {endpoints: ['http://x:1']}}\nlisten: 127.0.0.1:2\n"
    outside = "backends: {a: {endpoints: ['http://x:1'], headers: {set: {A: '${PEM}'}}}}\nlisten: '${ADDRESS}'\n"
    tls = "tls: {certificate: '${PEM}', key: k}\n"
    kept, names = keep_fixed(parse(plain), parse(outside + tls))
    assert names == ["listen", "tls"]
    assert sorted(kept.hidden) == ["listen", "tls.certificate"]
    assert masked(kept)["listen"] == HIDDEN
    kept, names = keep_fixed(parse(outside + tls), parse(plain))
    assert names == ["listen", "tls"]
    assert kept.hidden == ["backends.a.headers.set.A"]
    assert masked(kept)["listen"] == "127.0.0.1:2"


async def test_sighup_takes_the_new_file_whole_and_says_so_in_one_line(tmp_path: Path, workers: str) -> None:
    async with lying(A) as a, lying(B) as b, serving(tmp_path, a.url, extra=workers) as gateway:
        before = await gateway.client.metrics()
        assert before["tensor_gateway_config_last_reload_successful"] == 1
        assert time.time() - before[RELOADED_AT] < 60
        assert await gateway.ask() == "a"
        gateway.configure(b.url, extra=f"{workers}limits: {{in_flight_bytes: 1GiB}}\n")
        assert await gateway.reload() == f"reloaded {gateway.file}"
        assert [await gateway.ask() for _ in range(8)] == ["b"] * 8
        after = await gateway.client.metrics()
        assert after["tensor_gateway_config_last_reload_successful"] == 1
        assert after[RELOADED_AT] > before[RELOADED_AT]
        endpoints = {url for url in (a.url, b.url) if any(url in name for name in after if "_connections{" in name)}
        assert endpoints == {b.url}
        assert after[f'tensor_gateway_endpoint_up{{backend="b0",endpoint="{b.url}"}}'] == 1
        assert after[f'tensor_gateway_endpoint_ejected{{backend="b0",endpoint="{b.url}"}}'] == 0
        assert not [name for name in after if "endpoint_" in name and a.url in name]
        async with gateway.client.session.get(f"{gateway.client.admin}/-/config") as response:
            shown = await response.json()
        assert shown["limits"]["in_flight_bytes"] == "1GiB"
        assert shown["backends"]["b0"]["endpoints"] == [b.url]

        async def limit_is_shown() -> bool:
            return (await gateway.client.metrics())["tensor_gateway_in_flight_bytes_limit"] == 1024**3

        await until(limit_is_shown)
        assert await gateway.rest() == ["draining: requests in flight are finished; Ctrl-C (SIGINT) cuts them off"]


async def test_a_file_that_does_not_load_changes_nothing_and_says_why_in_one_line(tmp_path: Path, workers: str) -> None:
    async with lying(A) as a, lying(B) as b, serving(tmp_path, a.url, extra=workers) as gateway:
        started_at = (await gateway.client.metrics())[RELOADED_AT]
        gateway.configure(b.url, extra=f"{workers}limitz: {{}}\n")
        line = await gateway.reload()
        assert "ERROR gateway: not reloaded, the running configuration stays in use: " in line
        assert str(gateway.file) in line
        assert "limitz: unknown key, did you mean `limits`?" in line
        metrics = await gateway.client.metrics()
        assert metrics["tensor_gateway_config_last_reload_successful"] == 0
        assert metrics[RELOADED_AT] > started_at
        assert {await gateway.ask() for _ in range(4)} == {"a"}
        gateway.file.unlink()
        assert "cannot be read: No such file" in await gateway.reload()
        gateway.configure(b.url, extra=workers)
        assert await gateway.reload() == f"reloaded {gateway.file}"
        assert (await gateway.client.metrics())["tensor_gateway_config_last_reload_successful"] == 1
        assert {await gateway.ask() for _ in range(4)} == {"b"}


async def test_values_from_outside_are_read_again_and_stay_hidden(tmp_path: Path, workers: str) -> None:
    async def denied(client: Client) -> list[bool]:
        replies = [await client.request("GET", path, headers={"Connection": "close"}) for path in ("/x", "/y")]
        return [reply.status == 403 for reply in replies]

    (tmp_path / "denied").write_text("/x\n")
    extra = f"{workers}access: {{deny: ['${{file:denied}}']}}\n"
    async with lying(A) as a, serving(tmp_path, a.url, extra=extra) as gateway:
        assert await denied(gateway.client) == [True, False]
        write_whole(tmp_path / "denied", "/y\n")
        assert await gateway.reload() == f"reloaded {gateway.file}"
        assert [await denied(gateway.client) for _ in range(4)] == [[False, True]] * 4
        async with gateway.client.session.get(f"{gateway.client.admin}/-/config") as response:
            assert (await response.json())["access"]["deny"] == ["***"]
        (tmp_path / "denied").unlink()
        assert "access.deny[0]: the file `denied` cannot be read: No such file" in await gateway.reload()
        assert await denied(gateway.client) == [False, True]


async def test_what_cannot_change_is_named_and_the_rest_is_taken(tmp_path: Path, workers: str) -> None:
    async with lying(A) as a, lying(B) as b, serving(tmp_path, a.url, extra=workers) as gateway:
        gateway.configure(b.url, extra="workers: 3\n", listen="127.0.0.1:1")
        words = f"WARNING gateway.announce: reloaded {gateway.file}; listen, workers: takes effect after a restart"
        assert (await gateway.reload()).endswith(words)
        assert await gateway.ask() == "b"
        async with gateway.client.session.get(f"{gateway.client.admin}/-/config") as response:
            shown = await response.json()
        assert (shown["listen"], shown["workers"]) == ("127.0.0.1:0", int(workers.split()[1]))


async def test_the_access_log_and_the_level_change_with_a_reload(tmp_path: Path, workers: str) -> None:
    async with lying(A) as a, serving(tmp_path, a.url, extra=f"{workers}logging: {{access: none}}\n") as gateway:
        assert await gateway.ask() == "a"
        gateway.configure(a.url, extra=f"{workers}logging: {{access: json, level: error}}\n")
        await gateway.reload()
        assert await gateway.ask() == "a"
        gateway.process.send_signal(signal.SIGTERM)
        printed, _ = await gateway.process.communicate()
        assert len(printed.splitlines()) == 1


async def test_of_two_signals_in_quick_succession_the_last_file_wins(tmp_path: Path, workers: str) -> None:
    async with lying(A) as a, lying(B) as b, lying(C) as c, serving(tmp_path, a.url, extra=workers) as gateway:
        urls = {"b": b.url, "c": c.url}
        for name in "bcbcbc":
            gateway.configure(urls[name], extra=workers)
            gateway.hang_up()

        async def is_c() -> bool:
            return {await gateway.ask() for _ in range(8)} == {"c"}

        await until(is_c)  # maybe the first of the three; `reload` may see the line of a signal before
        assert await gateway.reload() == f"reloaded {gateway.file}"
        await until(is_c)


async def test_a_signal_while_requests_are_finished_is_ignored(tmp_path: Path, workers: str) -> None:
    proceed = asyncio.Event()

    async def slow(connection: Connection) -> None:
        await connection.read_request()
        await proceed.wait()
        await connection.answer(b'{"from":"a"}')

    async with lying(slow) as a, serving(tmp_path, a.url, extra=workers) as gateway:
        asked = asyncio.create_task(gateway.ask())

        async def has_come() -> bool:
            return bool(a.connections)

        await until(has_come)
        gateway.process.send_signal(signal.SIGTERM)
        assert (await gateway.line()).startswith("draining")
        for pid in (gateway.process.pid, *children_of(gateway.process.pid)):
            os.kill(pid, signal.SIGHUP)
        async with gateway.client.session.get(f"{gateway.client.admin}/-/ready") as response:
            assert (response.status, await response.text()) == (503, "draining\n")
        proceed.set()
        assert await asked == "a"
        assert await gateway.rest() == []


async def test_a_signal_during_the_start_is_kept_until_it_can_be_done(tmp_path: Path, workers: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"{workers}listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbackends: {{a: {{endpoints: ['http://127.0.0.1:1']}}}}\n"
    )
    async with process("serve", "--config", str(file)) as serve:
        status = Path(f"/proc/{serve.pid}/status")
        while not _blocks(status.read_text(), signal.SIGHUP):  # until then it is the interpreter that starts
            await asyncio.sleep(0.001)
        serve.send_signal(signal.SIGHUP)
        await url_in_line(serve.stderr)
        await url_in_line(serve.stderr)
        assert serve.stderr is not None
        assert (await serve.stderr.readline()).decode().endswith(f" INFO gateway.announce: reloaded {file}\n")


def _blocks(status: str, number: int) -> bool:
    mask = re.search(r"^SigBlk:\s*([0-9a-f]+)", status, re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) & 1 << number - 1)


@pytest.mark.slow
async def test_a_worker_ignores_the_signal_that_is_for_its_supervisor(tmp_path: Path) -> None:
    async with lying(A) as a, lying(B) as b, serving(tmp_path, a.url, extra="workers: 2\n") as gateway:
        gateway.configure(b.url, extra="workers: 2\n")
        pids = children_of(gateway.process.pid)
        for pid in pids:
            os.kill(pid, signal.SIGHUP)
        assert {await gateway.ask() for _ in range(8)} == {"a"}
        assert children_of(gateway.process.pid) == pids
        assert len(await gateway.rest()) == 1


async def test_without_a_file_the_signal_says_that_there_is_none() -> None:
    listen = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    async with lying(A) as a, process("serve", "--backend", a.url, *listen, "--log", "none") as serve:
        url = await url_in_line(serve.stderr)
        await url_in_line(serve.stderr)
        serve.send_signal(signal.SIGHUP)
        assert serve.stderr is not None
        assert b"SIGHUP ignored: there is no file to read again" in await serve.stderr.readline()
        async with aiohttp.ClientSession() as session, session.get(f"{url}/x") as response:
            assert response.status == 200
        serve.send_signal(signal.SIGTERM)
        printed, _ = await serve.communicate()
        assert printed == b""  # --log none


# Under load

N_VALUES = 16 * 1024**2
"""Of a tensor of 64 MiB."""


def echo(proceed: asyncio.Event) -> Script:
    """A backend that gives every tensor back; a large one when it may *proceed*."""

    async def script(connection: Connection) -> None:
        while True:
            await connection.read_request()
            shape = re.search(rb'"shape":(\[[0-9,]+\])', connection.body[:10_000])
            start, end = connection.body.find(b'"data":['), connection.body.rfind(b"]}]")
            assert shape is not None
            if len(connection.body) > 1024**2:
                await proceed.wait()
            data = connection.body[start:end]
            await connection.answer(
                b'{"model_name":"m","outputs":[{"name":"x","datatype":"FP32","shape":%s,%s]}]}' % (shape[1], data)
            )

    return script


@pytest.mark.slow
async def test_ten_reloads_under_load_lose_no_request_and_no_large_echo(tmp_path: Path, workers: str) -> None:
    proceed, ended = asyncio.Event(), asyncio.Event()
    large = np.resize(np.arange(10, dtype=np.float32), N_VALUES)
    small = np.arange(16, dtype=np.float32)
    answered = 0

    async def infer(gateway: Gateway, array: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
        header = {"inputs": [tensor("x", array, "FP32")], "parameters": {"binary_data_output": True}}
        reply = await gateway.client.infer_binary(header, array.tobytes())
        assert reply.status == 200, reply.body[:1000]
        assert reply.binary == array.tobytes()

    async def infer_until_the_end(gateway: Gateway) -> None:
        nonlocal answered
        while not ended.is_set():
            await infer(gateway, small)
            answered += 1

    async with lying(echo(proceed)) as a, lying(echo(proceed)) as b:
        async with serving(tmp_path, a.url, extra=f"{workers}logging: {{access: none}}\n") as gateway:
            async with asyncio.TaskGroup() as group:
                echoed = group.create_task(infer(gateway, large))
                for _ in range(4):
                    group.create_task(infer_until_the_end(gateway))
                for index in range(10):
                    # with a name of its own each time: the one before is gone, and finishes what it has
                    urls = [(a.url, b.url), (b.url,), (b.url, a.url)][index % 3]
                    gateway.configure(*urls, extra=f"{workers}logging: {{access: none}}\n")
                    assert await gateway.reload() == f"reloaded {gateway.file}"
                    before = answered
                    while answered < before + 8:
                        await asyncio.sleep(0.01)
                assert not echoed.done()
                proceed.set()
                await echoed
                ended.set()
            assert await gateway.rest() == ["draining: requests in flight are finished; Ctrl-C (SIGINT) cuts them off"]
    assert answered > 80


@pytest.mark.alone
async def test_fifty_reloads_leave_nothing_behind_in_processes(tmp_path: Path, workers: str) -> None:
    async with lying(A) as a, lying(B) as b, serving(tmp_path, a.url, extra=workers) as gateway:

        async def reload(count: int) -> None:
            for _, url in zip(range(count), itertools.cycle([a.url, b.url]), strict=False):
                gateway.configure(url, *[a.url, b.url][: 1 + _ % 2], extra=workers)
                assert await gateway.reload() == f"reloaded {gateway.file}"
                assert await gateway.ask() in "ab"

        def descriptors() -> int:
            pids = (gateway.process.pid, *children_of(gateway.process.pid))
            return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)

        def resident_bytes() -> int:
            pids = (gateway.process.pid, *children_of(gateway.process.pid))
            return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 for pid in pids)

        await reload(10)
        n_open, n_bytes = descriptors(), resident_bytes()
        await reload(50)

        async def are_closed() -> bool:  # connections of the last backends that are gone
            return descriptors() <= n_open + 4

        await until(are_closed)
        assert resident_bytes() < n_bytes + 8 * 1024**2


# --watch


@pytest.mark.slow
async def test_a_changed_file_is_taken_without_a_signal(tmp_path: Path, workers: str) -> None:
    async with lying(A) as a, lying(B) as b, serving(tmp_path, a.url, extra=workers, watch=True) as gateway:
        gateway.configure(b.url, extra=workers)
        assert await gateway.line() == f"reloaded {gateway.file}"
        assert {await gateway.ask() for _ in range(4)} == {"b"}
        # the same content once more, in a new file: nothing to do; then a file that is being written
        gateway.configure(b.url, extra=workers)
        text = gateway.file.read_text()
        gateway.file.write_text(text[: len(text) // 2])
        assert "not reloaded" in await gateway.line()
        assert await gateway.ask() == "b"
        gateway.configure(a.url, extra=workers)
        assert await gateway.line() == f"reloaded {gateway.file}"
        assert {await gateway.ask() for _ in range(4)} == {"a"}
        assert len(await gateway.rest()) == 1


async def test_a_folder_that_kubernetes_swaps_is_noticed(tmp_path: Path) -> None:
    async with lying(A) as a, lying(B) as b:
        text = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbackends: {{a: {{endpoints: ['{}']}}}}\n"
        for folder, url in (("..1", a.url), ("..2", b.url)):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "gateway.yaml").write_text(text.format(url))
        (tmp_path / "..data").symlink_to("..1")
        file = tmp_path / "gateway.yaml"
        file.symlink_to("..data/gateway.yaml")
        async with process("serve", "--config", str(file), "--watch") as serve:
            url = await url_in_line(serve.stderr)
            await url_in_line(serve.stderr)
            (tmp_path / "..new").symlink_to("..2")
            (tmp_path / "..new").replace(tmp_path / "..data")
            (tmp_path / "..1" / "gateway.yaml").unlink()
            assert serve.stderr is not None
            assert (await serve.stderr.readline()).decode().endswith(f" INFO gateway.announce: reloaded {file}\n")
            async with aiohttp.ClientSession() as session, session.get(f"{url}/x") as response:
                assert await response.json() == {"from": "b"}


@pytest.mark.slow
async def test_a_file_that_vanishes_is_said_once_and_taken_when_it_is_back(tmp_path: Path) -> None:
    async with lying(A) as a, lying(B) as b, serving(tmp_path, a.url, watch=True) as gateway:
        gateway.file.unlink()
        assert re.search("not reloaded, .*cannot be read: No such file", await gateway.line())
        await asyncio.sleep(4 * WATCH_S)  # time enough for it to be said again, which would be the next line
        assert await gateway.ask() == "a"
        gateway.configure(b.url)
        assert await gateway.line() == f"reloaded {gateway.file}"
        assert await gateway.ask() == "b"


async def test_a_configuration_from_a_pipe_is_served_and_cannot_be_read_again(workers: str) -> None:
    async with lying(A) as a:
        ours, theirs = os.pipe()
        listen = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {access: none}\n"
        os.write(theirs, f"{workers}{listen}backends: {{a: {{endpoints: ['{a.url}']}}}}\n".encode())
        os.close(theirs)
        serve = await asyncio.create_subprocess_exec(
            *(*COMMAND, "serve", "--config", f"/dev/fd/{ours}", "--no-first-look"),
            pass_fds=[ours],
            stderr=asyncio.subprocess.PIPE,
        )
        os.close(ours)
        try:
            url = await url_in_line(serve.stderr)
            await url_in_line(serve.stderr)
            serve.send_signal(signal.SIGHUP)
            assert serve.stderr is not None
            assert b"only such a file can be read again" in await serve.stderr.readline()
            async with aiohttp.ClientSession() as session, session.get(f"{url}/x") as response:
                assert await response.json() == {"from": "a"}
        finally:
            serve.terminate()
            assert await serve.wait() == 0


async def test_a_pipe_in_place_of_the_file_holds_up_neither_requests_nor_the_end(tmp_path: Path) -> None:
    async with lying(A) as a, serving(tmp_path, a.url, watch=True) as gateway:
        gateway.file.unlink()
        os.mkfifo(gateway.file)
        assert "only such a file can be read again" in await gateway.line()
        assert "only such a file can be read again" in await gateway.reload()
        assert await gateway.ask() == "a"
        assert len(await gateway.rest()) == 1


async def test_a_file_that_was_refused_is_taken_when_what_it_names_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reload_module, "AGAIN_S", 0.0)
    caplog.set_level(logging.INFO)
    file, reloaded, n_tries = tmp_path / "gateway.yaml", asyncio.Event(), 0
    file.write_text("backends: {a: {endpoints: ['http://127.0.0.1:1']}}\n")

    metrics = Metrics()

    async def replace(config: Config) -> list[str]:
        reloaded.set()
        return []

    def count_tries(file: Path) -> Config:
        nonlocal n_tries
        n_tries += 1
        return load(file)

    async def was_tried_again() -> bool:
        return n_tries > 3

    monkeypatch.setattr(reload_module, "_load_again", count_tries)
    reloader = Reloader(file)
    reloader.start(replace, metrics, watch=True)
    file.write_text("backends: {a: {endpoints: ['http://${file:host}:1']}}\n")
    await until(was_tried_again)
    last = metrics.last_reload
    assert last is not None
    assert last.since_s < last.at_s
    (tmp_path / "host").write_text("127.0.0.2")
    await asyncio.wait_for(reloaded.wait(), 20)
    await reloader.stop()
    refused, taken = caplog.messages
    assert "the file `host` cannot be read" in refused
    assert taken == f"reloaded {file}"


async def test_a_look_that_fails_does_not_end_the_watch_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reloaded = tmp_path / "gateway.yaml", asyncio.Event()
    file.write_text("backends: {a: {endpoints: ['http://127.0.0.1:1']}}\n")

    metrics = Metrics()

    async def replace(config: Config) -> list[str]:
        reloaded.set()
        return []

    digest, n_calls = reload_module._digest, 0

    def failing_digest(file: Path) -> bytes | None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 1:
            raise RuntimeError("can't start new thread")
        return digest(file)

    reloader = Reloader(file)
    monkeypatch.setattr(reload_module, "_digest", failing_digest)
    reloader.start(replace, metrics, watch=True)
    file.write_text("backends: {a: {endpoints: ['http://127.0.0.1:2']}}\n")
    await asyncio.wait_for(reloaded.wait(), 20)
    await reloader.stop()


# All workers or none


def configuration(url: str, extra: str = "") -> Config:
    return parse(
        f"workers: 2\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {{access: none}}\n"
        f"{extra}backends: {{a: {{endpoints: ['{url}']}}}}\n"
    )


async def answers_of(supervisor: Supervisor, count: int = 12) -> set[str]:
    """Which backends answer, on connections that the kernel gives to any worker."""
    found = set()
    async with aiohttp.ClientSession() as session:
        for _ in range(count):
            async with session.get(f"{supervisor.listen_url}/which", headers={"Connection": "close"}) as response:
                found.add((await response.json())["from"])
    return found


@pytest.mark.slow
async def test_if_the_workers_refuse_it_none_of_them_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lying(A) as a, lying(B) as b:
        supervisor = await Supervisor.start(configuration(a.url))
        try:
            pids = set(supervisor._workers)
            with monkeypatch.context() as broken, pytest.raises(ConfigError, match="backends|internal error"):
                broken.setattr(supervisor_module, "encode", lambda config: b"{}")
                await supervisor.replace(configuration(b.url))
            assert await answers_of(supervisor) == {"a"}
            assert await supervisor.replace(configuration(b.url)) == []
            assert await answers_of(supervisor) == {"b"}
            assert set(supervisor._workers) == pids
        finally:
            await supervisor.stop()


@pytest.mark.slow
async def test_a_worker_that_cannot_go_back_to_what_was_before_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lying(A) as a, lying(B) as b:
        supervisor = await Supervisor.start(configuration(a.url))
        try:
            first, second = supervisor._workers.values()
            serve = second.serve
            wanted = []

            async def refuse(share: Config, timeout_s: float) -> Done | None:
                return Done("refused")

            async def go_only_forward(share: Config, timeout_s: float) -> Done | None:
                wanted.append(share)
                return await serve(share, timeout_s) if len(wanted) == 1 else Done("its files have changed")

            first.serve = refuse  # type: ignore[method-assign]
            second.serve = go_only_forward  # type: ignore[method-assign]
            with pytest.raises(ConfigError, match="refused"):
                await supervisor.replace(configuration(b.url))
            assert len(wanted) == 2
            assert await second.ended() == -signal.SIGKILL
            async with asyncio.timeout(30):
                while second in supervisor._workers.values() or len(supervisor._serving()) < 2:
                    await asyncio.sleep(0.05)
            assert await answers_of(supervisor) == {"a"}
        finally:
            await supervisor.stop()


@pytest.mark.slow
async def test_if_one_worker_refuses_it_the_other_goes_back_to_what_was_before() -> None:
    async with lying(A) as a, lying(B) as b:
        supervisor = await Supervisor.start(configuration(a.url))
        try:
            first, second = supervisor._workers.values()
            serve = first.serve

            async def refuse(share: Config, timeout_s: float) -> Done | None:
                first._channel.send(Serve(msgspec.Raw(b"{}")))
                answer = await first._answers.get()
                assert isinstance(answer, Done)
                return answer

            first.serve = refuse  # type: ignore[method-assign]
            with pytest.raises(ConfigError, match="backends|internal error"):
                await supervisor.replace(configuration(b.url))
            assert await answers_of(supervisor) == {"a"}
            first.serve = serve  # type: ignore[method-assign]
            await supervisor.replace(configuration(b.url))
            assert await answers_of(supervisor) == {"b"}
            assert [*supervisor._workers.values()] == [first, second]
        finally:
            await supervisor.stop()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_worker_that_hangs_or_dies_is_replaced_by_one_with_the_new_file(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor_module, "RELOAD_S", 1.0)
    async with lying(A) as a, lying(B) as b:
        supervisor = await Supervisor.start(configuration(a.url))
        try:
            first, second = supervisor._workers.values()
            os.kill(first.pid, number)
            assert await supervisor.replace(configuration(b.url)) == []
            assert second.is_listening

            async def are_two() -> bool:
                return len(supervisor._serving()) == 2

            await until(are_two)
            assert await answers_of(supervisor) == {"b"}
            assert first.pid not in supervisor._workers
            assert second.pid in supervisor._workers
        finally:
            await supervisor.stop()
    assert any("it is replaced" in message for message in caplog.messages)


class Starting:
    """Stops workers that start before they have said that they listen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.have_begun = asyncio.Semaphore(0)
        self.may_go_on = asyncio.Event()
        serve = _WorkerProcess.serve

        async def serve_slowly(worker: _WorkerProcess, share: Config, timeout_s: float) -> Done | None:
            answer = await serve(worker, share, timeout_s)
            if timeout_s == supervisor_module.START_S:
                self.have_begun.release()
                await self.may_go_on.wait()
            return answer

        monkeypatch.setattr(_WorkerProcess, "serve", serve_slowly)


@asynccontextmanager
async def two_workers_with_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Supervisor, Callable[[], Config], Path, Starting]]:
    """Who runs them, what reads their configuration again, the file of tokens, and what stops workers that start."""
    tokens = tmp_path / "tokens"
    tokens.write_text("a: old\n")
    async with lying(A) as a:
        read = partial(configuration, a.url, f"access: {{tokens_file: {tokens}}}\n")
        supervisor = await Supervisor.start(read())
        try:
            yield supervisor, read, tokens, Starting(monkeypatch)
        finally:
            await supervisor.stop()


@pytest.mark.slow
@pytest.mark.parametrize("n_starting", [1, 2])
async def test_workers_that_started_meanwhile_get_what_they_have_missed(
    n_starting: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both starting, no worker serves at the reload; one that cannot take it any more is replaced."""
    async with two_workers_with_tokens(tmp_path, monkeypatch) as (supervisor, read, tokens, starting):
        for worker in list(supervisor._workers.values())[:n_starting]:
            os.kill(worker.pid, signal.SIGKILL)
        for _ in range(n_starting):
            await starting.have_begun.acquire()
        tokens.write_text("a: new\n")  # the configuration itself stays as it was
        await supervisor.replace(read())
        starting.may_go_on.set()
        await until(lambda: is_ready(supervisor))
        async with aiohttp.ClientSession(headers={"Connection": "close"}) as session:
            for _ in range(20):
                async with session.get(supervisor.listen_url, headers={"X-Api-Key": "new"}) as response:
                    assert response.status == 200


@pytest.mark.slow
async def test_a_worker_that_cannot_take_the_reload_it_has_missed_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_workers_with_tokens(tmp_path, monkeypatch) as (supervisor, read, tokens, starting):
        os.kill(next(iter(supervisor._workers)), signal.SIGKILL)
        await starting.have_begun.acquire()
        await supervisor.replace(read())
        tokens.write_text("no token\n")
        starting.may_go_on.set()
        await until_said(caplog, "a worker did not start")
        tokens.write_text("a: new\n")
        await until(lambda: is_ready(supervisor))


async def is_ready(supervisor: Supervisor) -> bool:
    return supervisor.not_ready() is None


async def until_said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async def is_said() -> bool:
        return any(words in message for message in caplog.messages)

    await until(is_said)


async def test_messages_cross_a_socket_and_one_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.process.worker.MAX_MESSAGE_BYTES", 1000)
    ends = socket.socketpair()
    one, other = [await Channel.over(end) for end in ends]
    for message in (Done("why\n"), Done(), Done("x" * 10_000)):
        one.send(message)
    assert [await other.receive(), await other.receive()] == [Done("why\n"), Done()]
    with pytest.raises(ValueError, match="limit"):
        await other.receive()
    one.writer.close()
    other.writer.close()
    cut = asyncio.StreamReader()
    cut.feed_data(msgspec.json.encode(Done()))
    cut.feed_eof()
    assert await Channel(cut, None).receive() is None  # type: ignore[arg-type]


@pytest.mark.slow
async def test_workers_are_ready_when_each_of_them_has_a_usable_backend(server: JsonServer) -> None:
    supervisor = await Supervisor.start(configuration(server.url))
    try:
        one, _ = supervisor._workers.values()
        assert supervisor.not_ready() is None
        assert one.reading is not None
        up = one.reading.endpoints
        down = [msgspec.structs.replace(reading, is_up=False, is_ejected=True, busy=3) for reading in up]
        reason = "no backend can be used: all endpoints of a are down"
        one.reading = msgspec.structs.replace(one.reading, endpoints=down, not_usable=reason)
        assert supervisor.not_ready() == "no backend can be used: all endpoints of a are down"
        text = "".join(supervisor.exposition())
        samples = [each for metric in text_string_to_metric_families(text) for each in metric.samples]
        labels = {"backend": "a", "endpoint": server.url}
        values = {each.name: each.value for each in samples if each.labels in (labels, {**labels, "state": "busy"})}
        assert values["tensor_gateway_endpoint_up"] == 0
        assert values["tensor_gateway_endpoint_ejected"] == 1
        assert values["tensor_gateway_upstream_connections"] == 3
    finally:
        await supervisor.stop()


async def test_workers_tell_their_supervisor_what_their_probes_find(tmp_path: Path, workers: str) -> None:
    is_ready = True

    async def script(connection: Connection) -> None:
        while True:
            await connection.read_request()
            is_probe = connection.head.startswith(b"GET /v2/health/ready")
            await connection.answer(b"{}", "200 OK" if is_ready or not is_probe else "503 Not Ready")

    health = "health: {interval: 100ms, timeout: 1s, unhealthy_after: 2, healthy_after: 2}"
    async with lying(script) as a:
        file = tmp_path / "gateway.yaml"
        file.write_text(
            f"{workers}listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {{access: none}}\n"
            f"backends: {{a: {{endpoints: ['{a.url}'], {health}}}}}\n"
        )
        async with process("serve", "--config", str(file)) as serve, aiohttp.ClientSession() as session:
            url, admin = await url_in_line(serve.stderr), await url_in_line(serve.stderr)
            client = Client(session, None, url, admin)  # type: ignore[arg-type]

            async def state() -> tuple[int, str, float]:
                async with session.get(f"{admin}/-/ready") as response:
                    found = response.status, await response.text()
                up = (await client.metrics())[f'tensor_gateway_endpoint_up{{backend="a",endpoint="{a.url}"}}']
                return (*found, up)

            async def is_down() -> bool:
                return await state() == (503, "no backend can be used: all endpoints of a are down\n", 0)

            async def is_up() -> bool:
                return await state() == (200, "ready\n", 1)

            assert await is_up()
            is_ready = False
            await until(is_down)
            is_ready = True
            await until(is_up)


async def test_certificates_are_read_again_and_a_pair_that_does_not_fit_changes_nothing(
    tmp_path: Path, workers: str
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    first, second = old.issue(), new.issue()
    file = tmp_path / "gateway.yaml"

    def configure(pair: Pair, url: str) -> None:
        write_whole(
            file,
            f"{workers}listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n"
            f"tls: {{certificate: {pair.certificate}, key: {pair.key}}}\nbackends: {{a: {{endpoints: ['{url}']}}}}\n",
        )

    async with lying(A) as a, lying(B) as b, aiohttp.ClientSession() as session:
        configure(first, a.url)
        async with process("serve", "--config", str(file)) as serve:
            assert serve.stderr is not None
            url = (await serve.stderr.readline()).decode().split()[-1]
            await url_in_line(serve.stderr)

            async def ask(authority: Authority) -> str:
                context, close = authority.client_context(), {"Connection": "close"}
                async with session.get(f"{url}/x", ssl=context, headers=close) as response:
                    return str((await response.json())["from"])

            assert {await ask(old) for _ in range(4)} == {"a"}
            configure(Pair(second.certificate, first.key), b.url)
            serve.send_signal(signal.SIGHUP)
            line = (await serve.stderr.readline()).decode()
            assert "not reloaded" in line
            assert "key values mismatch" in line
            assert {await ask(old) for _ in range(4)} == {"a"}
            first.replace(second)  # the same names with another content, which is also looked for without a signal
            configure(first, b.url)
            serve.send_signal(signal.SIGHUP)
            assert (await serve.stderr.readline()).decode().endswith(f" INFO gateway.announce: reloaded {file}\n")
            assert {await ask(new) for _ in range(8)} == {"b"}
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await ask(old)
