"""Tokens and denied paths through a running gateway: refused first, before routes and bodies, and nothing leaks.

Rules: docs/configuration.md, "Who may use it".
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from tests.conftest import Client, access_lines, running
from tests.system.scripted import CountingBackend, counting, head_of, infer_message, total, until, wire
from tests.system.test_routes import RENAMING, X

TOKEN = "s3cret-of-alice"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}


@asynccontextmanager
async def guarded(tmp_path: Path, extra: str = "", deny: str = "[]") -> AsyncIterator[tuple[Client, CountingBackend]]:
    """A gateway that wants a token, before a backend that counts."""
    (tmp_path / "tokens.txt").write_text(f"alice: {TOKEN}\nbob: other\n")
    access = f"access: {{tokens_file: '{tmp_path}/tokens.txt', deny: {deny}}}\n"
    async with counting() as backend, running(backend.url, access + extra) as client:
        yield client, backend


@pytest.mark.rule("8.5")
@pytest.mark.parametrize(
    "message",
    [
        head_of("GET", "/v2/health/live"),
        head_of("GET", "/metrics"),
        head_of("HEAD", "/v2"),
        head_of("OPTIONS", "/v2/models/m/infer"),
        head_of("GET", "http://other/v2"),
        head_of("GET", "/v2/../x"),
        head_of("GET", "/v2", headers={"Via": "1.1 x", "Authorization": "Bearer wrong"}),
        head_of("GET", "/v2", headers={"X-Api-Key": "wrong", "X-Http-Method-Override": "PUT"}),
        infer_message("1", X, "INT64"),
        infer_message("1", X, "INT64", binary=False),
        head_of("POST", "/v2/models/m/infer", headers={"Transfer-Encoding": "chunked"}) + b"2\r\n{}\r\n0\r\n\r\n",
        head_of("GET", "/v2", headers={"Connection": "Upgrade", "Upgrade": "websocket"}),
    ],
)
async def test_without_a_token_every_path_is_a_401_and_reaches_no_backend(tmp_path: Path, message: bytes) -> None:
    async with guarded(tmp_path) as (client, backend), wire(client.url) as sender:
        method = message.split()[0].decode()
        await sender.send(message)
        reply = await sender.reply(method)
        assert reply.status == 401
        assert reply.values("WWW-Authenticate") == ["Bearer"]
        assert reply.values("Content-Type") == ["application/json"]
        if method != "HEAD":
            assert list(json.loads(reply.body)) == ["error"]
        assert backend.seen == []
        if b"Transfer-Encoding" not in message:  # such a connection ends with every reply
            await sender.send(head_of("GET", "/any?id=1", headers=RIGHT))
            assert (await sender.reply()).status == 200
        samples = await until(client, "errors_total", 1, reason="denied", route="none")
        assert total(samples, "requests_total", route="none", model="other", code="401") == 1


async def test_connect_without_a_token_is_refused_and_its_connection_ends(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (client, backend), wire(client.url) as sender:
        await sender.send(b"CONNECT backend:80 HTTP/1.1\r\nHost: backend:80\r\n\r\n")
        assert (await sender.reply()).status == 401
        assert await sender.reader.read() == b""
        assert backend.seen == []


@pytest.mark.rule("8.5")
@pytest.mark.parametrize("headers", [RIGHT, {"x-api-key": TOKEN}, {"Authorization": "bearer other"}])
@pytest.mark.parametrize(
    "message", [infer_message("1", X, "INT64"), infer_message("1", X, "INT64", binary=False), head_of("GET", "/x?id=1")]
)
async def test_a_right_token_opens_and_is_not_passed_on(
    tmp_path: Path, headers: dict[str, str], message: bytes
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, "X-Other": "1"}.items()).encode()
    async with guarded(tmp_path) as (client, backend), wire(client.url) as sender:
        await sender.send(message.replace(b"Host: x\r\n", b"Host: x\r\n" + lines, 1))
        assert (await sender.reply()).status == 200
        (seen,) = backend.seen
        assert seen.values("X-Other") == ["1"]
        assert seen.values("Authorization") + seen.values("X-Api-Key") == []
        assert TOKEN.encode() not in seen.head


@pytest.mark.rule("8.5")
async def test_the_other_header_is_the_backends(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (client, backend):
        both = {"X-Api-Key": TOKEN, "Authorization": "Bearer backend's"}
        assert (await client.request("GET", "/a", headers=both)).status == 200
        assert backend.seen[-1].values("Authorization") == ["Bearer backend's"]
        assert backend.seen[-1].values("X-Api-Key") == []


async def test_a_body_is_not_read_before_a_token_is_known(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (client, backend), wire(client.url) as sender:
        await sender.send(head_of("POST", "/v2/models/m/infer", 1 << 40))
        reply = await sender.reply()
        assert (reply.status, reply.values("Connection")) == (401, ["close"])
        assert total(await client.metrics(), "in_flight_bytes") == 0
        assert backend.seen == []


async def test_a_client_that_waits_to_be_invited_is_refused_without_an_invitation(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (client, _), wire(client.url) as sender:
        await sender.send(head_of("POST", "/v2/models/m/infer", 10, {"Expect": "100-continue"}))
        head = await sender.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("length", [1000, 200_000])
async def test_a_refused_bodys_connection_serves_the_next_request(tmp_path: Path, length: int) -> None:
    async with guarded(tmp_path) as (client, _), wire(client.url) as sender:
        for _ in range(3):
            await sender.send(head_of("POST", "/x", length) + bytes(length))
            assert (await sender.reply()).status == 401
        await sender.send(head_of("POST", "/x?id=1", length, RIGHT) + bytes(length))
        assert (await sender.reply()).status == 200


DENY = "['/v2/repository/*', '/v2/models/m/*']"


@pytest.mark.rule("8.5")
async def test_401_comes_before_403_and_both_before_404(tmp_path: Path) -> None:
    routes = "routes: [{name: v2, path_prefix: /v2/models/x, backend: main}]\n"
    async with guarded(tmp_path, routes, DENY) as (client, backend):
        assert (await client.request("POST", "/v2/repository/index")).status == 401
        refused = await client.request("POST", "/v2/repository/index", headers=RIGHT)
        assert (refused.status, "access.deny" in refused.error) == (403, True)
        assert "WWW-Authenticate" not in refused.headers
        assert (await client.request("GET", "/other", headers=RIGHT)).status == 404
        assert backend.seen == []
        samples = await client.metrics()
        assert total(samples, "errors_total", reason="denied", route="none") == 2
        assert total(samples, "requests_total", route="none", model="other", code="403") == 1


@pytest.mark.rule("8.5")
@pytest.mark.parametrize(
    "target",
    [
        "/v2/Repository/index",
        "//v2/repository/index",
        "/v2/%72epository/index",
        "/v2;a/repository/index",
        "/v2/repository%2findex",
        "http://h/v2/repository/index?x",
        "/prod/v2/repository/index",
        "/prod/v2/repository/models/mine/unload",
        "/prod/v2/models/mine/infer",
        "/prod/v2/models/mine/config",
        "/prod/v2/models/%6dine/ready",
        "/v2/models/m/infer",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
async def test_denied_are_the_clients_path_and_the_backends(target: str, method: str) -> None:
    extra = f"access: {{deny: {DENY}}}\n{RENAMING}"
    async with counting() as backend, running(backend.url, extra) as client, wire(client.url) as sender:
        await sender.send(head_of(method, target) + head_of("GET", "/prod/v2/models/other/ready?id=2"))
        assert (await sender.reply(method)).status == (400 if target == "/v2/%72epository/index" else 403)
        assert (await sender.reply()).status == 200
        assert [seen.target for seen in backend.seen] == ["/v2/models/other/ready?id=2"]
        samples = await until(client, "requests_total", 1, route="r")
        assert total(samples, "requests_total", route="none") == 1


@pytest.mark.rule("8.5")
async def test_denied_is_what_the_endpoints_url_makes_of_a_path() -> None:
    async with counting() as backend, running(f"{backend.url}/a", "access: {deny: [/a/repository/*]}\n") as client:
        assert (await client.request("GET", "/repository/index")).status == 403
        assert (await client.request("GET", "/health?id=1")).status == 200
        assert [seen.target for seen in backend.seen] == ["/a/health?id=1"]


async def test_tokens_appear_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded(tmp_path, "logging: {access: json, level: debug}\n") as (client, _):
        for value in (TOKEN, f"{TOKEN}-wrong"):
            for headers in ({"Authorization": f"Bearer {value}"}, {"X-Api-Key": value}):
                reply = await client.request("GET", "/x?id=1", headers=headers)
                assert TOKEN not in str(reply.headers) + reply.body.decode()
        async with client.session.get(f"{client.admin}/-/config") as shown:
            text = await shown.text()
        assert "tokens.txt" in text
        assert TOKEN not in text
        assert not [name for name in await client.metrics() if TOKEN in name]
    assert len(access_lines(caplog)) == 4
    assert TOKEN not in caplog.text


async def test_a_file_of_tokens_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.txt: cannot be read"):
        async with running("http://127.0.0.1:9", f"access: {{tokens_file: '{tmp_path}/nowhere.txt'}}\n"):
            await asyncio.sleep(0)


async def test_a_reload_reads_the_tokens_again_or_keeps_those_it_has(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (client, _):
        config = client.gateway.data_plane.config
        (tmp_path / "tokens.txt").write_text("carol: new\n")
        assert (await client.request("GET", "/x?id=1", headers=RIGHT)).status == 200
        await client.gateway.replace(config)
        assert (await client.request("GET", "/x?id=1", headers=RIGHT)).status == 401
        assert (await client.request("GET", "/x?id=1", headers={"X-Api-Key": "new"})).status == 200
        (tmp_path / "tokens.txt").write_text("carol\n")
        with pytest.raises(ConfigError, match="tokens.txt:1: expected `name: token`"):
            await client.gateway.replace(config)
        assert (await client.request("GET", "/x?id=1", headers={"X-Api-Key": "new"})).status == 200
