"""Paths that belong to no model, where every route names models: real tritonclient finds one server."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from gateway import __version__
from gateway.cli import main
from gateway.config import parse
from gateway.demo import JsonServer
from gateway.process.application import Application
from tests.system.scripted import Seen, counting

pytestmark = pytest.mark.rule("8.7")

CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
logging: {{access: none}}
backends:
  one: {{endpoints: ['{one}']}}
  other: {{endpoints: ['{other}'], health: {{interval: 100ms, unhealthy_after: 1, timeout: 1s}}}}
routes:
  - {{name: first, models: ["identity"], backend: one}}
  - {{name: second, models: ["theirs"], backend: other, rename: {{theirs: own}}}}
"""


def ask(application: Application, method: str, *arguments: object) -> Any:
    with triton.InferenceServerClient(application.listen_url.removeprefix("http://")) as client:
        return getattr(client, method)(*arguments)


async def with_an_index(seen: Seen) -> bool:
    """A server that lists a model, and is down as long as it says so."""
    if seen.target == "/v2/repository/index":
        await seen.answer(b'[{"name": "own", "version": "1", "state": "READY", "reason": ""}]')
    else:
        await seen.answer(b"{}")
    return True


async def without_an_index(seen: Seen) -> bool:
    """A server that does not list its models."""
    await seen.answer(b"{}", "404 Not Found" if seen.target == "/v2/repository/index" else "200 OK")
    return True


async def test_clients_find_one_server_whatever_is_behind_it() -> None:
    async with counting(without_an_index) as one, counting(with_an_index) as other:
        application = await Application.start(parse(CONFIGURATION.format(one=one.url, other=other.url)))
        try:
            assert await asyncio.to_thread(ask, application, "is_server_live") is True
            assert await asyncio.to_thread(ask, application, "is_server_ready") is True
            metadata = await asyncio.to_thread(ask, application, "get_server_metadata")
            assert metadata == {
                "name": "tensor-gateway",
                "version": __version__,
                "extensions": ["binary_tensor_data"],
            }
            index = await asyncio.to_thread(ask, application, "get_model_repository_index")
            assert index == [{"name": "theirs", "version": "1", "state": "READY", "reason": ""}]
            with pytest.raises(InferenceServerException, match="no route"):
                await asyncio.to_thread(ask, application, "get_model_metadata", "unknown")
        finally:
            await application.stop()


@pytest.mark.parametrize("text", [b"[", b'{"name": 5}', b"[" * 100_000, b'[{"name":"\xe9"}]'])
async def test_lists_that_are_none_are_left_out(text: bytes) -> None:
    async def broken(seen: Seen) -> bool:
        await seen.answer(text)
        return True

    async with counting(without_an_index) as one, counting(broken) as other:
        application = await Application.start(parse(CONFIGURATION.format(one=one.url, other=other.url)))
        try:
            with pytest.raises(InferenceServerException, match="no backend lists its models"):
                await asyncio.to_thread(ask, application, "get_model_repository_index")
            async with aiohttp.ClientSession() as session:
                async with session.post(f"{application.listen_url}/v2/repository/index", data=b"x" * 5000) as reply:
                    assert reply.status == 400
        finally:
            await application.stop()


async def test_a_backend_that_cannot_be_asked_is_left_out(unused_tcp_port: int) -> None:
    other = f"http://127.0.0.1:{unused_tcp_port}"
    async with counting(without_an_index) as one:
        application = await Application.start(parse(CONFIGURATION.format(one=one.url, other=other)))
        try:
            with pytest.raises(InferenceServerException, match="no backend lists its models"):
                await asyncio.to_thread(ask, application, "get_model_repository_index")
        finally:
            await application.stop()


SILENT = "  silent: {{endpoints: ['{url}'], timeouts: {{first_byte: 200ms, total: 200ms}}{health}}}\n"


async def never(_: Seen) -> bool:
    """A server that reads requests and answers none."""
    await asyncio.Event().wait()
    return True


@pytest.mark.parametrize("is_known", [False, True], ids=["unknown", "known to be down"])
async def test_a_backend_that_does_not_answer_takes_no_other_backends_list_away(is_known: bool) -> None:
    """It stands first in the file: its `timeouts.total` is its own. Known to be down, it is not asked at all."""
    health = ", health: {interval: 50ms, timeout: 50ms, unhealthy_after: 1}" if is_known else ""
    async with counting(never) as silent, counting(with_an_index) as one, counting(with_an_index) as other:
        text = CONFIGURATION.format(one=one.url, other=other.url)
        first = f"backends:\n{SILENT.format(url=silent.url, health=health)}"
        application = await Application.start(parse(text.replace("backends:\n", first)))
        try:
            async with asyncio.timeout(10):
                while is_known and application.gateway.serving.upstreams["silent"].is_usable:
                    await asyncio.sleep(0.01)
            index = await asyncio.to_thread(ask, application, "get_model_repository_index")
            assert [model["name"] for model in index] == ["own", "theirs"]
        finally:
            await application.stop()
        assert any(seen.target == "/v2/repository/index" for seen in silent.seen) is not is_known


async def test_not_ready_while_a_backend_is_down(server: JsonServer, unused_tcp_port: int) -> None:
    other = f"http://127.0.0.1:{unused_tcp_port}"
    application = await Application.start(parse(CONFIGURATION.format(one=server.url, other=other)))
    try:
        async with asyncio.timeout(10):
            while await asyncio.to_thread(ask, application, "is_server_ready"):
                await asyncio.sleep(0.05)
        assert await asyncio.to_thread(ask, application, "is_server_live") is True
    finally:
        await application.stop()


@pytest.mark.parametrize(
    ("route", "words"),
    [("models: ['m']", "the gateway, for all of them"), ("host: a.example", "the gateway"), ("rename: {x: y}", "a")],
)
def test_check_says_who_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str], route: str, words: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"backends: {{a: {{endpoints: ['http://x:1']}}}}\nroutes: [{{name: r, {route}, backend: a}}]\n")
    assert main(["check", str(file)]) == 0
    assert f"; /v2 and health: {words}" in capsys.readouterr().out
