"""Requests whose head comes again: each is served by what it says itself, and by the plan of its moment."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from gateway.config import parse
from gateway.process.application import Application
from tests.conftest import HEADER_LENGTH, access_lines
from tests.system.scripted import CountingBackend, RawReply, Seen, Wire, counting, echo, head_of, infer_header, wire

X = np.array([1, 2], np.int64)
LISTENERS = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n"


def message(array: np.ndarray = X, headers: dict[str, object] | None = None, identity: str = "") -> bytes:
    """An inference with always the same head, but for its two lengths."""
    named = {"id": identity} if identity else {}
    text = json.dumps({**named, **infer_header(array, "INT64")}).encode()
    body = text + array.tobytes()
    return head_of("POST", "/v2/models/m/infer", len(body), {HEADER_LENGTH: len(text), **(headers or {})}) + body


async def asked(sender: Wire, text: bytes) -> RawReply:
    await sender.send(text)
    return await sender.reply()


def crossing(seen: Seen) -> list[str]:
    """The lines of a head that a backend got, but for those that name or measure one request."""
    lines = seen.head.decode().split("\r\n")
    return [line for line in lines if not line.lower().startswith(("x-request-id", "content-length"))]


@asynccontextmanager
async def serving(text: str) -> AsyncIterator[Application]:
    """A gateway with the configuration *text*, which names no listeners."""
    application = await Application.start(parse(LISTENERS + text))
    try:
        yield application
    finally:
        await application.stop()


def before(backend: CountingBackend, settings: str = "") -> str:
    """The configuration of one *backend* with *settings*."""
    return f"backends: {{main: {{endpoints: ['{backend.url}']{settings}}}}}\n"


async def replace(application: Application, backend: CountingBackend, extra: str, settings: str = "") -> None:
    """Reload: *backend* with *settings*, and *extra* YAML of the top level."""
    await application.replace(parse(LISTENERS + before(backend, settings) + extra))


async def test_every_request_reaches_the_backend_with_the_same_head_and_its_own_tensor() -> None:
    async with counting() as backend, serving(before(backend)) as gateway, wire(gateway.listen_url) as sender:
        ids: set[str] = set()
        for number in range(1, 30):
            array = np.arange(number, 2 * number)
            reply = await asked(sender, message(array, identity="i" * (number % 3)))
            assert reply.status == 200
            assert reply.body.endswith(array.tobytes())
            assert json.loads(backend.seen[-1].body)["inputs"][0]["data"] == array.tolist()
            assert backend.seen[-1].values("content-length") == [str(len(backend.seen[-1].body))]
            ids.update(reply.values("x-request-id"))
        assert len(ids) == len(backend.seen) == 29
        assert len({tuple(sorted(crossing(seen))) for seen in backend.seen}) == 1


async def test_each_client_is_named_by_its_own_address() -> None:
    async with counting() as backend, serving(before(backend)) as gateway:
        host, port = gateway.listen_url.removeprefix("http://").split(":")
        for address in ("127.0.0.1", "127.0.0.2") * 3:
            with socket.create_connection((host, int(port)), source_address=(address, 0)) as connection:
                connection.setblocking(False)
                reader, writer = await asyncio.open_connection(sock=connection)
                for _ in range(2):
                    await asked(Wire(reader, writer), message(headers={"X-Forwarded-For": "10.0.0.1"}))
                    assert backend.seen[-1].values("x-forwarded-for") == [address]
                writer.close()


async def test_only_what_a_trusted_proxy_says_of_a_client_is_passed_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The head is the same but for values that are left open, and for whoever sends it."""
    caplog.set_level(logging.INFO, "gateway.access")
    wanted = []
    async with counting() as backend, serving(f"{before(backend)}trusted_proxies: [127.0.0.2]\n") as gateway:
        host, port = gateway.listen_url.removeprefix("http://").split(":")
        for number, address in enumerate(("127.0.0.1", "127.0.0.2") * 4):
            with socket.create_connection((host, int(port)), source_address=(address, 0)) as connection:
                connection.setblocking(False)
                reader, writer = await asyncio.open_connection(sock=connection)
                for client in (f"10.0.0.{number}", f"10.0.1.{number}"):
                    said: dict[str, object] = {
                        "X-Forwarded-For": client,
                        "Forwarded": f"for={client}",
                        "X-Forwarded-Proto": "https",
                    }
                    await asked(Wire(reader, writer), message(headers=said))
                    seen = backend.seen[-1]
                    names = ("x-forwarded-for", "forwarded", "x-forwarded-proto")
                    if address == "127.0.0.2":
                        assert [seen.values(name) for name in names] == [
                            [f"{client}, {address}"],
                            [f"for={client}"],
                            ["https"],
                        ]
                        wanted.append(client)
                    else:
                        assert [seen.values(name) for name in names] == [[address], [], ["http"]]
                        wanted.append(address)
                writer.close()
    assert [json.loads(line)["client"] for line in access_lines(caplog)] == wanted


async def test_what_a_reload_changes_holds_for_the_next_request(tmp_path: Path) -> None:
    async with (
        counting() as first,
        counting() as second,
        serving(before(first)) as gateway,
        wire(gateway.listen_url) as sender,
    ):
        for _ in range(4):
            assert (await asked(sender, message())).status == 200
        assert len(first.seen) == 4
        await replace(gateway, second, "routes: [{name: r, models: [m], backend: main, rename: {m: n}}]")
        for _ in range(3):
            reply = await asked(sender, message())
            assert json.loads(reply.body[: int(reply.values(HEADER_LENGTH)[0])])["model_name"] == "m"
        assert [seen.target for seen in second.seen] == ["/v2/models/n/infer"] * 3
        await replace(gateway, second, "", ", headers: {set: {X-Set: '1'}, remove: [X-A]}")
        for _ in range(3):
            await asked(sender, message(headers={"X-A": "1"}))
            assert (second.seen[-1].values("x-set"), second.seen[-1].values("x-a")) == (["1"], [])
        await replace(gateway, second, "access: {deny: ['/v2/models/m/*']}")
        for _ in range(3):
            assert (await asked(sender, message())).status == 403
        (tmp_path / "tokens").write_text("a: secret\n")
        await replace(gateway, second, f"access: {{tokens_file: '{tmp_path}/tokens'}}")
        n_seen = len(second.seen)
        for _ in range(3):
            assert (await asked(sender, message())).status == 401
        assert len(second.seen) == n_seen
        for _ in range(3):
            assert (await asked(sender, message(headers={"X-Api-Key": "secret"}))).status == 200
            assert second.seen[-1].values("x-api-key") == []
        await replace(gateway, second, "")
        assert (await asked(sender, message(headers={"X-Api-Key": "secret"}))).status == 200
        assert second.seen[-1].values("x-api-key") == ["secret"]


async def test_a_split_and_a_sticky_header_decide_for_each_request() -> None:
    async with counting() as one, counting() as two:
        text = (
            "backends:\n"
            f"  one: {{endpoints: ['{one.url}'], headers: {{set: {{X-Is: one}}}}}}\n"
            f"  two: {{endpoints: ['{two.url}'], headers: {{set: {{X-Is: two}}}}}}\n"
            "routes: [{name: r, split: {one: 1, two: 1}}]\n"
        )
        async with serving(text) as gateway, wire(gateway.listen_url) as sender:
            for _ in range(60):
                assert (await asked(sender, message())).status == 200
            for backend, name in ((one, "one"), (two, "two")):
                assert len(backend.seen) > 5
                assert {tuple(seen.values("x-is")) for seen in backend.seen} == {(name,)}


@pytest.mark.parametrize("head_length", ["3", "9999"])
async def test_a_wrong_header_length_is_refused_as_ever(head_length: str) -> None:
    async with counting(echo) as backend, serving(before(backend)) as gateway, wire(gateway.listen_url) as sender:
        for _ in range(3):
            assert (await asked(sender, message())).status == 200
        wrong = message().replace(b"%d\r\n" % len(json.dumps(infer_header(X, "INT64"))), head_length.encode() + b"\r\n")
        assert wrong != message()
        assert (await asked(sender, wrong)).status == 400
        assert (await asked(sender, message())).status == 200
        assert len(backend.seen) == 4
