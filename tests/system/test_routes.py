"""Routes through a running gateway: prefixes that are stripped, models with two names, splits and what sticks.

Rules: docs/configuration.md, "Routes"; protocol 8.
"""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import pytest
import tritonclient.http as sync_http

from gateway.config import parse
from gateway.demo import JsonServer
from gateway.process.application import Application
from tests.conftest import HEADER_LENGTH, Client, running
from tests.system.scripted import (
    CountingBackend,
    Seen,
    counting,
    head_of,
    infer_header,
    infer_message,
    total,
    until,
    wire,
)

X = np.array([1, 2], np.int64)
RENAMING = "routes: [{name: r, backend: main, path_prefix: /prod, strip_prefix: true, rename: {mine: m}}]\n"


@asynccontextmanager
async def splitting(
    weights: dict[str, int], routes: str = "", sticky: str = "none"
) -> AsyncIterator[tuple[Client, dict[str, CountingBackend]]]:
    """A gateway with a split among backends of these *weights*; every one of them is sticky by *sticky*."""
    async with AsyncExitStack() as stack:
        backends = {name: await stack.enter_async_context(counting()) for name in weights}
        text = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {access: none}\nbackends:\n"
        text += "".join(
            f"  {name}: {{endpoints: ['{each.url}'], sticky: '{sticky}'}}\n" for name, each in backends.items()
        )
        shares = ", ".join(f"{name}: {weight}" for name, weight in weights.items())
        text += routes or f"routes: [{{name: s, split: {{{shares}}}}}]\n"
        application = await Application.start(parse(text))
        stack.push_async_callback(application.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        yield Client(session, application, application.listen_url, application.admin_url), backends


def triton_infer(client: Client, model: str, *, binary: bool, **options: Any) -> Any:
    """An inference by tritonclient."""
    triton = sync_http.InferenceServerClient(client.url.removeprefix("http://"))
    try:
        sent = sync_http.InferInput("x", [2], "INT64")
        sent.set_data_from_numpy(X, binary_data=binary)
        outputs = [sync_http.InferRequestedOutput("x", binary_data=True)] if binary else None
        if binary:
            return triton.infer(model, [sent], outputs=outputs, **options)
        body, _ = triton.generate_request_body([sent], **options)
        text = (
            bytes(body)
            .replace(b',"parameters":{"binary_data_output":true}', b"")
            .replace(b',"binary_data_output":true', b"")
        )
        assert b"binary" not in text
        return triton._post(f"v2/models/{model}/infer", text, {}, None)
    finally:
        triton.close()


# strip_prefix


@pytest.mark.rule("8.1")
@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("/prod", "/"),
        ("/prod?a=/prod&b=%2F", "/?a=/prod&b=%2F"),
        ("/prod/a%20b//c;d?x=%zz", "/a%20b//c;d?x=%zz"),
        ("/prod/v2/health/live", "/v2/health/live"),
        ("/prod/v2/repository/index", "/v2/repository/index"),
        ("http://h/prod/v2/models/x", "/v2/models/x"),
    ],
)
async def test_the_backend_gets_the_path_without_the_prefix(target: str, wanted: str) -> None:
    async with counting() as backend, running(backend.url, RENAMING) as client, wire(client.url) as sender:
        await sender.send(head_of("GET", target))
        assert (await sender.reply()).status == 200
        assert [seen.target for seen in backend.seen] == [wanted]


@pytest.mark.rule("8.1", "8.6")
@pytest.mark.parametrize("target", ["/prod//evil.example/x", "/prod/../x", "/prod/%2e%2e/x", "/prod/..;/x", "/prods"])
async def test_what_would_be_dangerous_behind_the_prefix_reaches_no_backend(target: str) -> None:
    async with counting() as backend, running(backend.url, RENAMING) as client, wire(client.url) as sender:
        await sender.send(head_of("GET", target))
        assert (await sender.reply()).status in (400, 404)
        assert backend.seen == []


@pytest.mark.rule("8.1")
async def test_inferences_and_errors_behind_a_prefix_are_those_of_the_protocol() -> None:
    async def behave(seen: Seen) -> bool:
        if seen.method == "GET":
            await seen.answer(
                b'{"detail":"no"}' if "models" in seen.target else b'{"name":"s"}',
                "404 No" if "models" in seen.target else "200 OK",
            )
        else:
            await seen.answer(seen.echo())
        return True

    async with counting(behave) as backend, running(backend.url, RENAMING) as client, wire(client.url) as sender:
        message = infer_message("7", X, "INT64").replace(b"/v2/models/m/", b"/prod/v2/models/m/", 1)
        await sender.send(message)
        reply = await sender.reply()
        assert (reply.status, reply.body.endswith(X.tobytes())) == (200, True)
        assert backend.seen[-1].target == "/v2/models/m/infer?id=7"
        assert (await client.request("GET", "/prod/v2/models/x")).json["error"] == "no"
        assert "binary_tensor_data" in (await client.request("GET", "/prod/v2")).json["extensions"]


# rename


@pytest.mark.rule("8.2")
async def test_tritonclient_sees_its_own_name_everywhere(server: JsonServer) -> None:
    routes = "routes: [{name: r, backend: main, rename: {my model: identity}}]\n"
    async with running(server.url, routes) as client:

        def talk() -> None:
            triton = sync_http.InferenceServerClient(client.url.removeprefix("http://"))
            try:
                assert triton.is_model_ready("my model")
                assert triton.get_model_metadata("my model", "1")["name"] == "my model"
            finally:
                triton.close()

        await asyncio.to_thread(talk)
        result = await asyncio.to_thread(triton_infer, client, "my model", binary=True)
        assert result.as_numpy("x").tobytes() == X.tobytes()
        assert result.get_response()["model_name"] == "my model"
        text = json.dumps({"inputs": [{"name": "x", "datatype": "INT64", "shape": [2], "data": [1, 2]}]}).encode()
        reply = await client.infer(text, model="my%20model")
        assert (reply.status, reply.json["model_name"]) == (200, "my model")
        assert reply.headers["Content-Length"] == str(len(reply.body))
        samples = await client.metrics()
        assert total(samples, "requests_total", model="my model", code="200") == 2
        assert not [name for name in samples if 'model="identity"' in name]


@pytest.mark.rule("8.2")
async def test_tritonclient_sees_its_own_name_in_the_models_configuration() -> None:
    async def behave(seen: Seen) -> bool:
        assert seen.target == "/v2/models/identity/config"
        await seen.answer(b'{"name":"identity","input":[]}', headers="Content-Type: application/json\r\n")
        return True

    routes = "routes: [{name: r, backend: main, rename: {my model: identity}}]\n"
    async with counting(behave) as backend, running(backend.url, routes) as client:

        def ask() -> Any:
            with sync_http.InferenceServerClient(client.url.removeprefix("http://")) as triton:
                return triton.get_model_config("my model")

        assert await asyncio.to_thread(ask) == {"name": "my model", "input": []}


@pytest.mark.rule("8.2")
@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("n_values", [3, 50_000])
async def test_json_answers_cross_byte_for_byte_but_for_the_name(framing: str, n_values: int) -> None:
    values = ", ".join(["1.50"] * n_values)
    before = f' {{"outputs":[{{"name":"model_name", "data":[{values}]}}] ,"model_name":  "m", "x":"\\u0041"}} '.encode()

    async def behave(seen: Seen) -> bool:
        assert seen.values("Accept-Encoding") == ["identity"]
        if framing == "length":
            await seen.answer(before, headers='Content-Type: application/json\r\nETag: "1"\r\nX-A: 1\r\n')
            return True
        await seen.peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(before), 1021):
            piece = before[start : start + 1021]
            await seen.peer.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await seen.peer.send(b"0\r\n\r\n")
        return True

    sent = b' {"inputs" : [ no JSON'
    async with counting(behave) as backend, running(backend.url, RENAMING) as client:
        reply = await client.request(
            "POST", "/prod/v2/models/mine/infer", data=sent, headers={"Accept-Encoding": "gzip"}
        )
        assert reply.status == 200
        assert reply.body == before.replace(b'"m"', b'"mine"')
        assert "ETag" not in reply.headers
        assert backend.seen[0].body == sent
        assert backend.seen[0].target == "/v2/models/m/infer"


@pytest.mark.rule("8.2")
async def test_compressed_answers_that_nobody_asked_for_are_a_502() -> None:
    async def behave(seen: Seen) -> bool:
        await seen.answer(gzip.compress(b'{"model_name":"m"}'), headers="Content-Encoding: gzip\r\n")
        return True

    async with counting(behave) as backend, running(backend.url, RENAMING) as client:
        reply = await client.request("POST", "/prod/v2/models/mine/infer", data=b"{}")
        assert (reply.status, "identity" in reply.error) == (502, True)
        other = await client.request("POST", "/prod/v2/models/other/infer", data=b"{}")
        assert other.headers["Content-Encoding"] == "gzip"


@pytest.mark.rule("8.2")
async def test_other_answers_below_a_renamed_model() -> None:
    events = b'data: {"model_name":"m","text":"a"}\n\ndata: {"model_name":"m"}\n\n'

    async def behave(seen: Seen) -> bool:
        if seen.target.endswith("stream"):
            await seen.answer(events, headers="Content-Type: text/event-stream\r\n")
        elif seen.target.endswith("blob"):
            await seen.answer(b'{"name":"m"}', headers="Content-Type: application/octet-stream\r\n")
        elif seen.target.endswith("ready"):
            await seen.answer(b"")
        else:
            await seen.answer(b'{"name":"m","model_name":"m"}')
        return True

    async with counting(behave) as backend, running(backend.url, RENAMING) as client, wire(client.url) as sender:
        path = "/prod/v2/models/mine"
        assert (await client.request("POST", f"{path}/generate_stream")).body == events.replace(b'"m"', b'"mine"')
        assert (await client.request("GET", f"{path}/blob")).body == b'{"name":"m"}'
        assert (await client.request("GET", f"{path}/ready")).headers["Content-Length"] == "0"
        assert (await client.request("GET", f"{path}/versions/1")).json == {"name": "mine", "model_name": "m"}
        assert (await client.request("POST", f"{path}/generate")).json == {"name": "m", "model_name": "mine"}
        assert (await client.request("GET", "/prod/v2/models/other")).json["name"] == "m"
        await sender.send(head_of("HEAD", path) + head_of("GET", path))
        assert (await sender.reply("HEAD")).status == 200
        assert json.loads((await sender.reply()).body)["name"] == "mine"
        assert all("mine" not in seen.target for seen in backend.seen)


@pytest.mark.rule("5", "8.2")
async def test_raw_requests_ask_for_the_metadata_of_the_backends_name_until_it_is_reloaded() -> None:
    async def behave(seen: Seen) -> bool:
        if seen.method == "GET":
            await seen.answer(b'{"name":"m","inputs":[{"name":"x","datatype":"INT64","shape":[-1]}]}')
        else:
            await seen.answer(seen.echo() if seen.target.endswith("/infer") else b"")
        return True

    async with counting(behave) as backend, running(backend.url, RENAMING) as client:

        async def raw() -> None:
            reply = await client.request(
                "POST", "/prod/v2/models/mine/infer", data=X.tobytes(), headers={HEADER_LENGTH: "0"}
            )
            assert (reply.status, reply.binary, reply.json["model_name"]) == (200, X.tobytes(), "mine")

        await raw()
        await raw()
        assert (await client.request("POST", "/prod/v2/repository/models/mine/load", data=b"{}")).status == 200
        await raw()
        asked = [f"{seen.method} {seen.target}" for seen in backend.seen]
        metadata, infer = "GET /v2/models/m", "POST /v2/models/m/infer"
        assert asked == [metadata, infer, infer, "POST /v2/repository/models/m/load", metadata, infer]


# split and sticky


@pytest.mark.rule("8.3")
async def test_a_split_shares_requests_by_weight_and_names_the_chosen_backend() -> None:
    async with splitting({"stable": 3, "next": 1, "unused": 0}) as (client, backends):
        for number in range(200):
            assert (await client.request("GET", f"/x?id={number}")).status == 200
        counts = {name: len(backend.seen) for name, backend in backends.items()}
        assert counts["unused"] == 0
        assert counts["stable"] + counts["next"] == 200
        assert 15 < counts["next"] < 90
        samples = await until(client, "requests_total", 200, route="s")
        for name in ("stable", "next"):
            assert total(samples, "upstream_requests_total", backend=name) == counts[name]


@pytest.mark.rule("8.3", "8.4")
async def test_a_header_sticks_to_its_backend_of_a_split() -> None:
    async with splitting({"a": 1, "b": 1}, sticky="header:X-User") as (client, backends):
        for number in range(60):
            headers = {"x-user": str(number % 12)}
            method = "GET" if number % 2 else "POST"
            await client.request(method, f"/v2/models/m/any?id={number % 12}", headers=headers)
        ids = {name: {seen.id for seen in backend.seen} for name, backend in backends.items()}
        assert ids["a"]
        assert ids["b"]
        assert not ids["a"] & ids["b"]


@pytest.mark.rule("8.3", "8.4")
async def test_a_sequence_sticks_to_its_backend_however_it_is_written() -> None:
    async with splitting({"a": 1, "b": 1}, sticky="sequence_id") as (client, backends):
        for sequence in range(1, 13):
            for number, binary in ((sequence, True), (sequence, False), (str(sequence), True), (str(sequence), False)):
                await asyncio.to_thread(
                    triton_infer, client, "m", binary=binary, sequence_id=number, request_id=str(sequence)
                )
        seen = {
            name: {str(json.loads(each.body)["parameters"]["sequence_id"]) for each in backend.seen}
            for name, backend in backends.items()
        }
        assert seen["a"]
        assert seen["b"]
        assert not seen["a"] & seen["b"]
        assert sum(len(backend.seen) for backend in backends.values()) == 48


@pytest.mark.rule("8.4")
async def test_bodies_that_are_read_for_their_sequence_cross_as_they_came() -> None:
    bodies = [
        b' {"inputs" :[{"data":[ 1.50,\n2]}] , "parameters":{"sequence_id" : 5}} ',
        b'{"parameters":{"sequence_id":5',
        b"no JSON",
        b'{"parameters":{"sequence_id":0}}',
        b'{"parameters":{"sequence_id":null}}',
    ]

    async def behave(seen: Seen) -> bool:
        await seen.answer(b"{}")
        return True

    async with splitting({"a": 1, "b": 1}, sticky="sequence_id") as (client, backends):
        for backend in backends.values():
            backend.behave = behave
        for body in bodies:
            assert (await client.request("POST", "/v2/models/m/infer", data=body)).status == 200
        crossed = [seen.body for backend in backends.values() for seen in backend.seen]
        assert sorted(crossed) == sorted(bodies)


@pytest.mark.rule("8.4")
async def test_requests_without_a_sequence_spread() -> None:
    async with splitting({"a": 1, "b": 1}, sticky="sequence_id") as (client, backends):
        header = {**infer_header(X, "INT64"), "parameters": {"sequence_id": 0}}
        for _ in range(40):
            assert (await client.infer_binary(header, X.tobytes(), model="m")).status == 200
        assert all(backend.seen for backend in backends.values())
