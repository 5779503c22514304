"""The doctor without a protocol and without options: what a server offers to try, and servers that hold up others."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from gateway.demo import JsonServer
from tests.conftest import answering, lying, running
from tests.test_doctor import answered_by, doctor
from tests.test_doctor_templates import SAMPLE, answer_of, legacy

SCHEMA = {
    "type": "object",
    "properties": {
        "features": {"type": "array", "items": {"type": "array", "minItems": 3, "items": {"type": "number"}}}
    },
}


def openapi_of(*paths: str, schema: Any = SCHEMA) -> dict[str, Any]:
    """An OpenAPI document with these *paths*, which take a POST."""
    operation = {"requestBody": {"content": {"application/json": {"schema": schema}}}}
    return {"openapi": "3.1.0", "paths": {path: {"post": operation} for path in paths}}


@asynccontextmanager
async def paged(page: str, status: int = 200) -> AsyncIterator[str]:
    """The URL of a server as Flask makes them: HTML for a person, and errors in HTML."""

    async def root(request: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html", status=status)

    async def predict(request: web.Request) -> web.Response:
        return web.json_response(answer_of(await request.json()))

    async def missing(request: web.Request) -> web.Response:
        return web.Response(status=404, text="<!doctype html><title>404 Not Found</title>", content_type="text/html")

    application = web.Application()
    application.add_routes([web.get("/", root), web.post("/predict", predict), web.route("*", "/{other:.*}", missing)])
    async with answered_by(application) as url:
        yield url


async def test_a_url_that_ends_in_a_path_is_one_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "sample.json").write_text(json.dumps(SAMPLE))
    async with legacy() as url:
        found = await doctor(f"{url}/predict", "--sample", str(tmp_path / "sample.json"))
        same = await doctor(url, "--path", "/predict", "--sample", str(tmp_path / "sample.json"))
    assert found.backend["models"] == same.backend["models"]
    assert f'endpoints: ["{url}"]' in found.printed


async def test_a_url_that_ends_in_a_path_is_tried_with_what_the_server_describes() -> None:
    async with legacy(openapi_of("/predict", "/other")) as url:
        found = await doctor(f"{url}/predict")
    assert list(found.backend["models"]["model"]["inputs"]) == ["features"]


async def test_a_url_that_ends_in_a_path_says_that_a_sample_is_needed_if_nothing_describes_it() -> None:
    async with legacy() as url:
        found = await doctor(f"{url}/predict")
    assert found.code == 2
    (problem,) = found.findings("problem")
    assert "no example of a request to /predict: give one with --sample FILE" in problem


async def test_the_only_path_that_is_described_is_tried() -> None:
    async with legacy(openapi_of("/predict")) as url:
        found = await doctor(url)
    assert found.code == 1
    assert found.backend["models"]["model"]["request"]["path"] == "/predict"
    assert any(f"tensor-gateway doctor {url} --path /predict" in words for words in found.findings("note"))


async def test_several_paths_are_offered_as_commands_to_run() -> None:
    document = openapi_of("/predict", "/score/{model}")
    document["paths"]["/upload"] = {"post": {}, "get": {}}
    document["paths"]["/health"] = {"get": {}}
    async with legacy(document) as url:
        found = await doctor(url)
    assert found.code == 2
    (problem,) = found.findings("problem")
    assert f"tensor-gateway doctor {url} --path /predict; " in problem
    assert f"tensor-gateway doctor {url} --path /upload --sample FILE" in problem
    assert "/health" not in problem


async def test_a_sample_that_was_made_of_a_schema_and_is_refused_says_so() -> None:
    schema = {"type": "object", "properties": {"features": {"type": "string"}}}
    async with legacy(openapi_of("/predict", schema=schema)) as url:
        found = await doctor(url)
    assert found.code == 2
    assert "made of the types in its /openapi.json: give a real one with --sample FILE" in found.findings("problem")[0]


async def test_a_page_that_names_a_path_is_offered() -> None:
    async with paged("<html><p>curl or POST /predict with JSON</p></html>") as url:
        found = await doctor(url)
    assert found.code == 2
    (problem,) = found.findings("problem")
    assert f"tensor-gateway doctor {url} --path /predict --sample FILE" in problem


@pytest.mark.parametrize(
    "answer",
    [
        answering(b'{"detail": "Method Not Allowed"}', "405 Method Not Allowed"),
        answering(b'{"error": "Unsupported Media Type"}', "415 Unsupported Media Type"),
        answering(b'{"detail": []}', "422 Unprocessable Entity"),
        answering(b'{"error": "Not Found"}', "404 Not Found"),
        answering(b"<html>", headers="Content-Type: text/html\r\n"),
    ],
)
async def test_what_answers_a_post_is_told_what_to_give(answer: Any) -> None:
    async with lying(answer) as liar:
        found = await doctor(liar.url)
    assert found.code == 2
    assert "is no server that" not in found.printed
    assert "TensorFlow Serving" not in found.printed
    assert "give --path, where it takes inferences, and --sample" in found.findings("problem")[0]


async def test_the_demos_own_server_lists_its_models() -> None:
    async with JsonServer.on_port(0) as server:
        found = await doctor(server.url)
    assert "its models: identity, simple. To try one: --model identity" in found.findings("note")


# Servers that read one connection at a time


class OneAtATime(BaseHTTPRequestHandler):
    """As many write them: HTTP/1.1, which keeps connections, on a server with one thread."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer an inference."""
        length = int(self.headers.get("Content-Length", 0))
        self.answer(200, {"y": [value / 2 for value in json.loads(self.rfile.read(length))["x"]]})

    def do_GET(self) -> None:
        """Answer that there is nothing."""
        self.answer(404, {"error": "Not Found"})

    def answer(self, status: int, document: Any) -> None:
        """Send *document*."""
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


@contextmanager
def one_at_a_time() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), OneAtATime) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def test_a_server_that_reads_one_connection_at_a_time_gets_one_and_a_queue(tmp_path: Path) -> None:
    (tmp_path / "sample.json").write_text(json.dumps({"x": [0.5, 0.25]}))
    with one_at_a_time() as url:
        found = await doctor(f"{url}/predict", "--sample", str(tmp_path / "sample.json"))
        assert any("reads one connection at a time" in words for words in found.findings("problem"))
        assert found.backend["max_connections"] == 1
        assert found.backend["queue"] == {"length": 64, "timeout": "30s"}
        assert found.table["infer in binary"].startswith("yes; "), found.printed
        async with running(url, "", yaml.safe_dump(found.backend)) as client:
            entry = {"name": "x", "datatype": "FP64", "shape": [2], "data": [1, 3]}
            path, body = "/v2/models/model/infer", {"inputs": [entry]}
            asked = (client.request("POST", path, json=body) for _ in range(12))
            async with asyncio.timeout(3):  # a kept connection would hold up the others for 4 s
                replies = await asyncio.gather(*asked)
    assert {json.dumps(reply.json["outputs"][0]["data"]) for reply in replies} == {"[0.5, 1.5]"}


async def test_other_servers_are_not_held_up(tmp_path: Path) -> None:
    (tmp_path / "sample.json").write_text(json.dumps(SAMPLE))
    async with legacy() as url:
        found = await doctor(url, "--path", "/predict", "--sample", str(tmp_path / "sample.json"))
    assert "a kept connection holds up no other" in found.findings("ok")
    assert "max_connections" not in found.backend
