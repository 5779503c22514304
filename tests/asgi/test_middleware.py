"""`gateway.asgi.BinaryTensors`: real tritonclient before FastAPI, served by uvicorn and hypercorn."""

import ast
import asyncio
import gzip
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import aiohttp
import hypercorn.asyncio
import hypercorn.config
import numpy as np
import pytest
import tritonclient.http as triton
import uvicorn
from fastapi import FastAPI, Request
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import JSONResponse, StreamingResponse
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from gateway.asgi import BinaryTensors
from gateway.demo import JsonServer
from tests.conftest import HEADER_LENGTH, running
from tests.system.programs import accepts, free_ports
from tests.values import VALUES


def application(**options: Any) -> FastAPI:
    """An application that speaks V2 in JSON: it returns its inputs as outputs."""
    app = FastAPI()
    app.add_middleware(BinaryTensors, **options)

    @app.get("/v2")
    def server() -> dict[str, Any]:
        return {"name": "echo", "version": "1", "extensions": ["model_repository"]}

    @app.get("/v2/models/{model}")
    def metadata(model: str) -> dict[str, Any]:
        return {"name": model, "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}], "outputs": []}

    @app.post("/v2/models/{model}/infer")
    async def infer(model: str, request: Request) -> Any:
        assert HEADER_LENGTH not in request.headers
        body = await request.json()
        if model == "refuses":
            return JSONResponse({"detail": "not today"}, 422, {"X-Why": "tired"})
        if model == "raises":
            raise ValueError("no")
        if model == "lies":
            return {"outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1]}]}
        if model == "text":
            return "no answer"
        if model == "redirects":
            return JSONResponse({}, 307, {"Location": "/elsewhere"})
        outputs = [{**{key: value for key, value in each.items() if key != "parameters"}} for each in body["inputs"]]
        answer = {"model_name": model, "id": body.get("id", ""), "outputs": outputs}
        if model == "streams":
            text = json.dumps(answer).encode()
            return StreamingResponse(iter([text[i : i + 7] for i in range(0, len(text), 7)]), headers={"X-Own": "1"})
        return JSONResponse(answer, headers={"X-Own": "1"})

    @app.post("/other")
    async def other(request: Request) -> Any:
        return {"length": len(await request.body()), "type": request.headers.get("content-type")}

    return app


@contextmanager
def by_uvicorn(app: Any) -> Iterator[str]:
    (port,) = free_ports(1)
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def by_hypercorn(app: Any) -> Iterator[str]:
    (port,) = free_ports(1)
    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{port}"]
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async def until_stopped() -> None:
            started.set()
            while not stop.is_set():
                await asyncio.sleep(0.02)

        await hypercorn.asyncio.serve(app, config, shutdown_trigger=until_stopped)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(20)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        thread.join()


SERVERS = pytest.mark.parametrize("serving", [by_uvicorn, by_hypercorn])
Serving = Callable[[Any], Any]


def client_of(url: str) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(url.removeprefix("http://"), concurrency=10)


def infer(client: triton.InferenceServerClient, model: str, array: Any, *, binary: bool = True, **options: Any) -> Any:
    entry = triton.InferInput("x", list(array.shape), np_to_triton_dtype(array.dtype))
    entry.set_data_from_numpy(array, binary_data=binary)
    outputs = [triton.InferRequestedOutput("x", binary_data=binary)]
    return client.infer(model, [entry], outputs=outputs, **options)


X = np.arange(8, dtype=np.float32).reshape(2, 4)


@SERVERS
def test_tensors_cross_bit_for_bit(serving: Serving) -> None:
    with serving(application(nonfinite="literal")) as url, client_of(url) as client:
        for datatype, values in VALUES.items():
            if datatype in ("BF16", "BYTES"):  # numpy has no BF16; of BYTES another test
                continue
            array = np.asarray(values).ravel()
            array = array[np.isfinite(array)] if array.dtype.kind == "f" else array
            found = infer(client, "echo", array, request_id="7").as_numpy("x")
            assert found.dtype == array.dtype
            assert found.tobytes() == array.tobytes(), datatype
        texts = np.array(["a", "é\n", ""], object)
        assert infer(client, "echo", texts).as_numpy("x").tolist() == [b"a", "é\n".encode(), b""]
        assert infer(client, "streams", X).as_numpy("x").tolist() == X.tolist()
        assert infer(client, "streams", X, binary=False).as_numpy("x").tolist() == X.tolist()


async def test_bf16_crosses_bit_for_bit() -> None:
    """Which numpy does not have: by its bits. 1.5, -0, 3.38e38, and the smallest number there is."""
    blob = b"\xc0\x3f\x00\x80\x7e\x7f\x01\x00"
    entry = {"name": "x", "shape": [4], "datatype": "BF16", "parameters": {"binary_data_size": len(blob)}}
    header = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    with by_uvicorn(application()) as url:
        sent = {"Inference_Header_Content_Length": str(len(header))}
        status, headers, body = await ask(url, "/v2/models/echo/infer", header + blob, **sent)
    assert status == 200, body
    n_bytes = int(headers["Inference-Header-Content-Length"])
    assert json.loads(body[:n_bytes])["outputs"][0]["datatype"] == "BF16"
    assert body[n_bytes:] == blob


def test_metadata_says_the_extension_and_all_else_is_untouched() -> None:
    with by_uvicorn(application()) as url, client_of(url) as client:
        assert client.get_server_metadata()["extensions"] == ["model_repository", "binary_tensor_data"]
        assert client.get_model_metadata("m")["inputs"][0]["name"] == "x"
        with pytest.raises(InferenceServerException, match="Not Found"):
            client.get_model_config("m")


async def ask(url: str, path: str, body: bytes, *, method: str = "POST", **headers: str) -> tuple[int, Any, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.request(method, url + path, data=body, headers=named) as reply,
    ):
        return reply.status, reply.headers, await reply.read()


def request_of(**parameters: Any) -> tuple[bytes, int]:
    entry = {"name": "x", "shape": [2, 4], "datatype": "FP32", "parameters": {"binary_data_size": 32, **parameters}}
    header = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return header + X.tobytes(), len(header)


async def test_headers_raw_and_compressed_bodies() -> None:
    body, length = request_of()
    with by_uvicorn(application()) as url:
        status, headers, reply = await ask(
            url, "/v2/models/echo/infer", body, Inference_Header_Content_Length=str(length)
        )
        assert (status, headers["X-Own"], headers["Content-Type"]) == (200, "1", "application/octet-stream")
        assert reply[int(headers[HEADER_LENGTH]) :] == X.tobytes()
        status, _, zipped = await ask(
            url, "/v2/models/echo/infer", gzip.compress(body), Inference_Header_Content_Length=str(length),
            Content_Encoding="gzip",
        )  # fmt: skip
        assert (status, zipped) == (200, reply)
        status, headers, raw = await ask(url, "/v2/models/echo/infer", X.tobytes(), Inference_Header_Content_Length="0")
        assert (status, raw[int(headers[HEADER_LENGTH]) :]) == (200, X.tobytes())
        status, _, text = await ask(url, "/other", b"12345", Content_Type="text/x")
        assert json.loads(text) == {"length": 5, "type": "text/x"}
        pure = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.5]}], "more": true}'
        status, _, text = await ask(url, "/v2/models/echo/infer", pure)
        assert json.loads(text)["outputs"][0]["data"] == [1.5]


REFUSED: list[tuple[bytes, dict[str, str]]] = [
    (b"", {}),
    (b"{", {"Inference_Header_Content_Length": "1"}),
    (b"{}", {"Inference_Header_Content_Length": "x"}),
    (request_of()[0][:-1], {"Inference_Header_Content_Length": str(request_of()[1])}),
    (request_of()[0] + b"1", {"Inference_Header_Content_Length": str(request_of()[1])}),
    (request_of(binary_data_size=31)[0], {"Inference_Header_Content_Length": str(request_of(binary_data_size=31)[1])}),
    (b"x", {"Content_Encoding": "br"}),
    (b"x", {"Content_Encoding": "gzip"}),
]


async def test_refusals_are_those_of_the_gateway() -> None:
    async with JsonServer.on_port(0) as server, running(server.url) as gateway:
        with by_uvicorn(application()) as url:
            for body, headers in REFUSED:
                ours = await ask(url, "/v2/models/m/infer", body, **headers)
                theirs = await ask(gateway.url, "/v2/models/m/infer", body, **headers)
                assert (ours[0], json.loads(ours[2])) == (theirs[0], json.loads(theirs[2]))


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [
        ("refuses", 422, "not today"),
        ("raises", 500, "Internal Server Error"),
        ("lies", 502, "output 'y'"),
        ("text", 502, "the backend's answer"),
        ("redirects", 502, "answered 307"),
    ],
)
@SERVERS
async def test_what_the_application_does_wrong_is_told(serving: Serving, model: str, status: int, words: str) -> None:
    body, length = request_of()
    with serving(application()) as url:
        got, _, text = await ask(url, f"/v2/models/{model}/infer", body, Inference_Header_Content_Length=str(length))
        assert got == status
        assert words in text.decode()
        again, _, _ = await ask(url, "/v2/models/echo/infer", body, Inference_Header_Content_Length=str(length))
        assert again == 200


async def test_an_exception_reaches_the_server_although_its_answer_was_an_error() -> None:
    """Starlette answers 500 and raises, so that the server logs why: outside of it too."""

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})
        raise ValueError("why")

    body, length = request_of()
    sent: list[dict[str, Any]] = []
    headers = [(HEADER_LENGTH.lower().encode(), str(length).encode())]
    scope = {"type": "http", "method": "POST", "path": "/v2/models/m/infer", "headers": headers}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(ValueError, match="why"):
        await BinaryTensors(fails)(scope, receive, send)
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"]) == {"error": "no"}
    assert len(sent) == 2


async def test_answers_that_the_application_compresses() -> None:
    """The answer that gets the extension is read, and so not compressed; an inference in JSON is left as it is."""
    app = FastAPI()

    @app.get("/v2")
    def server() -> dict[str, Any]:
        return {"name": "echo", "version": "1", "extensions": []}

    @app.post("/v2/models/{model}/infer")
    async def infer(request: Request) -> Any:
        return await request.json()

    app.add_middleware(GZipMiddleware, minimum_size=1)
    app.add_middleware(BinaryTensors)
    with by_uvicorn(app) as url:
        _, _, text = await ask(url, "/v2", b"", method="GET", Accept_Encoding="gzip")
        assert json.loads(text)["extensions"] == ["binary_tensor_data"]
        pure = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.5]}]}'
        _, headers, text = await ask(url, "/v2/models/m/infer", pure, Accept_Encoding="gzip")
        assert headers["Content-Encoding"] == "gzip"
        assert json.loads(gzip.decompress(text)) == json.loads(pure)


SERVER = """
import sys
import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from gateway.asgi import BinaryTensors

app = FastAPI()
if sys.argv[2] == "binary":
    app.add_middleware(BinaryTensors)

@app.post("/v2/models/sum/infer")
async def infer(request: Request):
    (tensor,) = (await request.json())["inputs"]
    y = float(np.sum(np.array(tensor["data"], np.float32)))
    return {"outputs": [{"name": "y", "shape": [1], "datatype": "FP32", "data": [y]}]}

uvicorn.run(app, port=int(sys.argv[1]), log_level="critical")
"""


def peak_bytes(process: subprocess.Popen[bytes]) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.alone
def test_memory_beside_the_same_application_that_gets_json(tmp_path: Path) -> None:
    """The application holds the JSON and what it makes of it; the middleware no more than half of the tensor beside."""
    (tmp_path / "server.py").write_text(SERVER)
    array = np.random.default_rng(1).random(4_000_000, np.float32)
    grown = {}
    for form in ("json", "binary"):
        (port,) = free_ports(1)
        process = subprocess.Popen([sys.executable, tmp_path / "server.py", str(port), form])
        try:
            while not accepts(port):
                assert process.poll() is None
                time.sleep(0.05)
            with client_of(f"http://127.0.0.1:{port}") as client:
                before = peak_bytes(process)
                entry = triton.InferInput("x", [len(array)], "FP32")
                entry.set_data_from_numpy(array, binary_data=form == "binary")
                outputs = [triton.InferRequestedOutput("y", binary_data=form == "binary")]
                result = client.infer("sum", [entry], outputs=outputs)
                assert result.as_numpy("y")[0] == pytest.approx(array.sum())
                grown[form] = peak_bytes(process) - before
        finally:
            process.kill()
            process.wait()
    print({form: n_bytes // 2**20 for form, n_bytes in grown.items()})
    assert grown["binary"] < grown["json"] + array.nbytes // 2


async def test_limits_are_those_that_were_set() -> None:
    body, length = request_of()
    big = b'{"inputs": [], "pad": "' + b"x" * 3000 + b'"}'
    with by_uvicorn(application(request_body=2000, header=1000, tensors=1)) as url:
        path = "/v2/models/echo/infer"
        assert (await ask(url, path, body, Inference_Header_Content_Length=str(length)))[0] == 200
        assert (await ask(url, path, big, Inference_Header_Content_Length=str(len(big))))[0] == 413
        assert (await ask(url, path, gzip.compress(big), Content_Encoding="gzip"))[0] == 413
        pad = b'{"inputs": [], "pad": "' + b"x" * 1500 + b'"}'
        assert (await ask(url, path, pad, Inference_Header_Content_Length=str(len(pad))))[0] == 413
    with pytest.raises(ValueError, match="never"):
        BinaryTensors(application(), nonfinite="never")


@SERVERS
def test_fifty_clients_at_once_get_their_own(serving: Serving) -> None:
    failures: list[str] = []

    def one(number: int, url: str) -> None:
        with client_of(url) as client:
            for turn in range(5):
                array = np.full((3, 1 + number * 50), number + turn / 10, np.float32)
                result = infer(client, "echo", array, request_id=f"{number}-{turn}")
                if result.get_response()["id"] != f"{number}-{turn}" or not np.array_equal(result.as_numpy("x"), array):
                    failures.append(f"{number}-{turn}")

    with serving(application()) as url:
        threads = [threading.Thread(target=one, args=(number, url)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


# Odd applications and servers, by the protocol itself


async def drive(
    app: Any,
    messages: list[dict[str, Any]],
    headers: list[tuple[bytes, bytes]],
    raw_path: bytes = b"/v2/models/m/infer",
    **options: Any,
) -> list[dict[str, Any]]:
    """What *app* behind the middleware sends for an inference whose body comes in *messages*."""
    sent: list[dict[str, Any]] = []
    waiting = iter(messages)

    async def receive() -> Any:
        return next(waiting, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": unquote(raw_path.decode()), "raw_path": raw_path}
    await BinaryTensors(app, **options)({**scope, "headers": headers, "query_string": b""}, receive, send)
    return sent


def said(sent: list[dict[str, Any]]) -> tuple[int, bytes]:
    return sent[0]["status"], b"".join(message["body"] for message in sent[1:])


async def test_a_body_in_single_bytes_and_a_client_that_leaves() -> None:
    body, length = request_of()
    headers = [(b"Inference-Header-Content-Length", b"%d" % length)]
    seen: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        text = b""
        while True:
            message = await receive()
            text += message["body"]
            if not message["more_body"]:
                break
        seen.append(json.loads(text))
        seen.append(await receive())
        answer = json.dumps({"outputs": json.loads(text)["inputs"]}).encode()
        await send({"type": "http.response.start", "status": 200})
        for byte in answer:
            await send({"type": "http.response.body", "body": bytes([byte]), "more_body": True})
        await send({"type": "http.response.body"})
        await send({"type": "http.response.body", "body": b"more"})

    pieces = [{"type": "http.request", "body": body[at : at + 1], "more_body": True} for at in range(len(body))]
    status, reply = said(await drive(app, [*pieces, {"type": "http.request"}], headers))
    assert (status, reply[-32:]) == (200, X.tobytes())
    assert seen[0]["inputs"][0]["data"] == X.ravel().tolist()
    assert seen[1] == {"type": "http.disconnect"}
    seen.clear()
    assert await drive(app, pieces[:10], headers) == []
    assert not seen


async def test_answers_that_are_none() -> None:
    body, length = request_of()
    headers = [(b"inference-header-content-length", b"%d" % length)]
    whole = [{"type": "http.request", "body": body}]
    start = {"type": "http.response.start", "status": 200, "headers": []}
    zipped = {**start, "headers": [(b"Content-Encoding", b"gzip")]}

    def sending(*messages: dict[str, Any]) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            for message in messages:
                await send(message)

        return app

    cut = {"type": "http.response.body", "body": b'{"outputs": [', "more_body": True}
    for app, words in (
        (sending(), "ended before"),
        (sending(start, cut), "ended before"),
        (sending(zipped, cut), "Content-Encoding 'gzip'"),
        (sending(start, {"type": "http.response.body", "body": b"[]"}), "the backend's answer"),
        (sending(start, cut, {"type": "http.response.body", "body": b"!"}), "the backend's answer"),
    ):
        status, text = said(await drive(app, whole, headers))
        assert status == 502
        assert words in json.loads(text)["error"]


async def test_the_name_of_a_model_that_the_application_leaves_out_is_the_decoded_one() -> None:
    body, length = request_of()
    headers = [(b"inference-header-content-length", b"%d" % length)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"outputs": []}'})

    sent = await drive(app, [{"type": "http.request", "body": body}], headers, b"/v2/models/my%20m%C3%B6del/infer")
    assert json.loads(said(sent)[1])["model_name"] == "my m\u00f6del"


async def test_other_scopes_pass() -> None:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    for scope in ({"type": "lifespan"}, {"type": "websocket", "path": "/v2/models/m/infer"}):
        await BinaryTensors(app)(scope, app, app)  # type: ignore[arg-type]
        assert scopes[-1] is scope


async def test_a_model_that_does_not_describe_itself_cannot_read_raw_bodies() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    sent = await drive(app, [{"type": "http.request", "body": b"1234"}], [(b"inference-header-content-length", b"0")])
    status, text = said(sent)
    assert status == 404
    assert "the model's metadata is needed" in json.loads(text)["error"]


async def ask_for(app: Any, path: str, receive: Any, **more: Any) -> list[dict[str, Any]]:
    """What *app* behind the middleware sends for a GET of *path*."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", **more}
    await BinaryTensors(app)(scope, receive, send)
    return sent


async def has_left() -> Any:
    return {"type": "http.disconnect"}


@pytest.mark.parametrize("path", ["/v2", "/v2/models/m/infer"])
async def test_who_waits_for_the_client_to_leave_is_not_told_of_bodies_without_end(path: str) -> None:
    """Starlette's `StreamingResponse` does; told of bodies, it never let go of the event loop."""
    body = json.dumps({"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]}).encode()
    got: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while got[-1:] != ["http.disconnect"]:
            got.append((await receive())["type"])
            assert len(got) < 5
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    if path == "/v2":
        (start, _) = await ask_for(app, path, has_left)
        assert start["status"] == 200
        assert got == ["http.disconnect"]
    else:
        raw = [(b"inference-header-content-length", b"0")]
        await drive(app, [{"type": "http.request", "body": X.tobytes()}], raw)
        assert got == ["http.request", "http.disconnect"]


async def test_metadata_that_is_streamed() -> None:
    app = FastAPI()
    app.add_middleware(BinaryTensors)

    @app.get("/v2")
    def server() -> Any:
        return StreamingResponse(iter([b'{"name": ', b'"m"}']), media_type="application/json")

    with by_uvicorn(app) as url:
        status, headers, text = await asyncio.wait_for(ask(url, "/v2", b"", method="GET"), 20)
    assert (status, json.loads(text)["extensions"]) == (200, ["binary_tensor_data"])
    assert headers.getall("Content-Length") == [str(len(text))]


@pytest.mark.parametrize(("kind", "status"), [("text/plain", 200), ("application/json", 200), ("text/plain", 404)])
async def test_what_is_no_metadata_of_a_server_passes_as_it_is_sent(kind: str, status: int) -> None:
    """Whatever its size, and although its path is that of the metadata."""
    start = {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]}
    piece = b'"' + b"x" * 700_000
    bodies = [{"type": "http.response.body", "body": piece, "more_body": more} for more in (True, True, False)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in (start, *bodies):
            await send(message)

    sent = await ask_for(app, "/v2", has_left)
    assert sent[0] == start
    assert b"".join(each["body"] for each in sent[1:]) == piece * 3
    assert [each.get("more_body", False) for each in sent[1:]][-1] is False


VALIDATORS = [(b"etag", b'"1"'), (b"Digest", b"x"), (b"Accept-Ranges", b"bytes")]


@pytest.mark.parametrize(
    ("path", "root_path", "is_changed"),
    [
        ("/v2", "", True),
        ("/v2/", "", True),
        ("/my app/v2", "/my app", True),  # mounted there
        ("/v2", "/app", True),  # servers differ in whether the path has the root in it
        ("/v2/", "/v2", True),
        ("/users/v2", "", False),
        ("/app/users/v2/", "/app", False),
    ],
)
async def test_only_the_servers_own_metadata_are_changed_and_then_without_what_was_computed_from_them(
    path: str, root_path: str, is_changed: bool
) -> None:
    text = b'{"item": "v2", "a": 1.0}'
    start = {"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"1"), *VALIDATORS]}
    messages = [start, {"type": "http.response.body", "body": text}]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    sent = await ask_for(app, path, has_left, root_path=root_path)
    if not is_changed:
        assert sent == messages
        return
    body = sent[1]["body"]
    assert json.loads(body)["extensions"] == ["binary_tensor_data"]
    assert sent[0]["headers"] == [(b"x-a", b"1"), (b"content-length", b"%d" % len(body))]


async def test_metadata_that_name_the_extension_already_keep_what_was_computed_from_them() -> None:
    text = b'{"extensions": ["binary_tensor_data"]}'
    messages = [
        {"type": "http.response.start", "status": 200, "headers": VALIDATORS},
        {"type": "http.response.body", "body": text},
    ]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    assert await ask_for(app, "/v2", has_left) == messages


async def test_an_application_without_an_answer_to_a_question_for_metadata_has_none() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    assert await ask_for(app, "/v2", has_left) == []


async def test_the_question_for_a_models_metadata_carries_the_clients_headers() -> None:
    """Whoever wants to see a token wants to see it here as well; what describes the body stays behind."""
    asked: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope)
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    headers = [(b"host", b"h"), (b"Authorization", b"Bearer t"), (b"Content-Length", b"4"), (b"Range", b"bytes=0-1")]
    headers += [(b"accept", b"x/y"), (b"inference-header-content-length", b"0"), (b"Accept-Encoding", b"gzip")]
    sent = await drive(app, [{"type": "http.request", "body": b"1234"}], headers)
    assert said(sent)[0] == 401
    assert (asked[0]["method"], asked[0]["path"]) == ("GET", "/v2/models/m")
    assert asked[0]["headers"] == [(b"host", b"h"), (b"Authorization", b"Bearer t")]


@pytest.mark.parametrize("model", ["refuses", "lies"])
async def test_an_error_is_told_at_once_and_not_after_what_the_application_does_next(model: str) -> None:
    """Starlette does the tasks that a response leaves behind before it returns."""
    body, length = request_of()
    goes_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        status = 422 if model == "refuses" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b'{"detail": "no"}'})
        await goes_on.wait()

    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"inference-header-content-length", b"%d" % length)]
    scope = {"type": "http", "method": "POST", "path": "/v2/models/m/infer", "headers": headers, "query_string": b""}
    serving = asyncio.ensure_future(BinaryTensors(app)(scope, receive, send))
    try:
        for _ in range(20):
            await asyncio.sleep(0)
        assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
        assert sent[0]["status"] == (422 if model == "refuses" else 502)
    finally:
        goes_on.set()
        await serving
    assert len(sent) == 2


async def test_a_receive_that_is_cancelled_takes_nothing_of_the_body_with_it() -> None:
    """Applications wait for bodies with timeouts; a piece that is lost would leave other numbers behind."""
    array = np.arange(300_000, dtype=np.float32)
    entry = {"name": "x", "shape": [300_000], "datatype": "FP32", "parameters": {"binary_data_size": array.nbytes}}
    header = json.dumps({"inputs": [entry]}).encode()
    n_cancelled = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal n_cancelled
        text, more = b"", True
        while more:
            waiting = asyncio.ensure_future(receive())
            await asyncio.sleep(0)
            if not waiting.done():
                n_cancelled += waiting.cancel()
                await asyncio.wait([waiting])
                waiting = asyncio.ensure_future(receive())
            message = await waiting
            text, more = text + message["body"], message["more_body"]
        assert json.loads(text)["inputs"][0]["data"] == array.tolist()
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    headers = [(b"inference-header-content-length", b"%d" % len(header))]
    await drive(app, [{"type": "http.request", "body": header + array.tobytes()}], headers)
    assert n_cancelled > 2


async def test_an_error_in_pieces_beside_other_messages() -> None:
    body, length = request_of()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b'{"detail": ', "more_body": True})
        await send({"type": "http.response.debug", "info": {}})
        await send({"type": "http.response.body", "body": b'"tea"}'})

    headers = [(b"inference-header-content-length", b"%d" % length)]
    status, text = said(await drive(app, [{"type": "http.request", "body": body}], headers))
    assert (status, json.loads(text)["error"]) == (418, "tea")


async def test_a_body_without_a_length_that_outgrows_the_limit() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    pieces = [{"type": "http.request", "body": b" " * 600, "more_body": True}] * 2
    status, text = said(await drive(app, pieces, [], request_body=1000))
    assert status == 413
    assert "`request_body`" in json.loads(text)["error"]


@pytest.mark.parametrize("pieces", [1, 4])
async def test_half_precision_that_is_promoted_needs_the_models_metadata(pieces: int) -> None:
    """Of which no more than a mebibyte is read."""
    blob = np.array([1.5, -2.25], np.float16).tobytes()
    entry = {"name": "x", "shape": [2], "datatype": "FP16", "parameters": {"binary_data_size": len(blob)}}
    header = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    output = {"name": "y", "shape": [2], "datatype": "FP16"}
    asked: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answer: dict[str, Any] = {"name": "m", "inputs": [], "outputs": [output]}
        if scope["method"] == "POST":
            asked.append(json.loads((await receive())["body"])["inputs"][0])
            answer = {"outputs": [{**output, "datatype": "FP32", "data": asked[0]["data"]}]}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode(), "more_body": pieces > 1})
        for number in range(1, pieces):
            more = {"body": b" " * 700_000 * (scope["method"] == "GET"), "more_body": number < pieces - 1}
            await send({"type": "http.response.body", **more})

    sent = await drive(
        app,
        [{"type": "http.request", "body": header + blob}],
        [(b"inference-header-content-length", b"%d" % len(header))],
        half_precision="promote",
    )
    status, reply = said(sent)
    assert (status, reply[-4:]) == (200, blob)
    assert (asked[0]["datatype"], asked[0]["data"]) == ("FP32", [1.5, -2.25])


async def test_who_looks_from_time_to_time_whether_the_client_has_left_is_told() -> None:
    """As Starlette's `is_disconnected` does: what `receive` does not give at once is cancelled."""
    body, length = request_of()
    got: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while got[-1:] != ["http.disconnect"] and len(got) < 10:
            await asyncio.sleep(0.002)  # others have run meanwhile
            looking = asyncio.ensure_future(receive())
            await asyncio.sleep(0)
            looking.cancel()
            await asyncio.wait([looking])
            got.append("" if looking.cancelled() else looking.result()["type"])

    headers = [(b"inference-header-content-length", b"%d" % length)]
    await drive(app, [{"type": "http.request", "body": body}], headers)
    assert got == ["http.request", "http.request", "http.disconnect"]


async def test_a_body_that_inflates_a_thousandfold_lets_others_run() -> None:
    """It comes in one message; a server that has read it does not wait in `receive`."""
    body = gzip.compress(b" " * 50_000_000)
    n_turns = 0

    async def others() -> None:
        nonlocal n_turns
        while True:
            await asyncio.sleep(0)
            n_turns += 1

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    beside = asyncio.ensure_future(others())
    pieces = [{"type": "http.request", "body": body[at : at + 65536], "more_body": True} for at in (0, 65536)]
    sent = await drive(app, [*pieces, {"type": "http.disconnect"}], [(b"content-encoding", b"gzip")])
    beside.cancel()
    await asyncio.wait([beside])
    assert sent == []
    assert n_turns > 20


async def test_a_coding_that_is_not_read_is_answered_with_those_that_are() -> None:
    sent = await drive(None, [{"type": "http.request", "body": b"x"}], [(b"content-encoding", b"br")])
    assert sent[0]["status"] == 415
    assert (b"accept-encoding", b"gzip, deflate") in sent[0]["headers"]


@pytest.fixture(autouse=True)
async def nothing_is_left_behind() -> AsyncIterator[None]:
    yield
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_only_the_codec_and_its_policies_are_imported() -> None:
    code = "import sys, gateway.asgi; print(sorted(m for m in sys.modules if m.startswith(('aiohttp', 'gateway.'))))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    rooms = {name.split(".")[1] for name in ast.literal_eval(printed.decode())}
    assert rooms == {"asgi", "codec", "errors", "headers", "pacing", "policy"}
