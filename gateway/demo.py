"""An embedded JSON-only inference server, and one binary inference shown step by step.

The server is for demonstrations and tests. Like the servers behind a gateway, it speaks only the JSON of the Open
Inference Protocol and refuses a binary body. The server shares no code with the codec, so that a defect of the codec
cannot hide behind the same defect here.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import orjson
from aiohttp import web

from gateway.backend.endpoints import Endpoint
from gateway.client.listeners import has_grpc
from gateway.config import Address, for_backend
from gateway.doctor.asking import Asker
from gateway.doctor.tensors import Tensor, binary_request, outputs_of
from gateway.process.application import Application
from gateway.process.ports import is_free


async def demonstrate(stop_event: Callable[[], asyncio.Event], *, once: bool) -> int:
    """Run the demo until the event of *stop_event* is set; with *once*, one inference. Returns the exit code."""
    stopped = stop_event()
    async with JsonServer.on_port(PORTS[0]) as server:
        listen, admin, grpc = (f"127.0.0.1:{_free_port_or_any(port)}" for port in PORTS[1:])
        config = for_backend(server.url, "none", listen=listen, admin=admin, grpc=grpc if has_grpc() else None)
        application = await Application.start(config)
        try:
            exact = await show(server, application.listen_url)
            if not exact or once or stopped.is_set():
                return 0 if exact else 1
            urls = (server.url, application.listen_url, application.admin_url, *application.grpc_urls)
            print(next_steps(*urls), flush=True)
            await stopped.wait()
            return 0
        finally:
            await application.stop()


PORTS = (8000, 8080, 9090, 8001)
"""Where server, gateway, admin listener and gRPC listen on the loopback interface, if these ports are free."""

_SHAPE = (1, 3, 224, 224)
_PATH = "/v2/models/identity/infer"
_ROUNDS = 3
"""How often each way is measured; the fastest counts, because the first also opens connections."""

_BINARY_WORDS = ("binary_data_size", "binary_data", "binary_data_output")

_MODELS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "identity": {side: [{"name": "INPUT0", "datatype": "FP32", "shape": [-1]}] for side in ("inputs", "outputs")},
    "simple": {
        f"{side}s": [{"name": f"{side.upper()}{number}", "datatype": "INT32", "shape": [1, 16]} for number in (0, 1)]
        for side in ("input", "output")
    },
}
"""Each model's inputs and outputs, in the form of its metadata."""


class JsonServer:
    """A JSON-only server with two models on the loopback interface.

    `identity` returns every input under its own name; `simple` returns the sum and the difference of two
    INT32 tensors of shape [1, 16].
    """

    def __init__(self) -> None:
        self.url = ""
        self.request_bytes = 0
        self.answer_bytes = 0
        """The sizes in bytes of the last inference's body (`request_bytes`) and answer."""
        self.headers: list[tuple[str, str]] = []
        """The headers of the last inference."""
        self.last_request: dict[str, Any] = {}
        self.inferences = 0
        application = web.Application(client_max_size=2 * 1024**3)
        application.router.add_get("/v2{slash:/?}", self._server)
        application.router.add_get("/v2/health/{asked:live|ready}", self._healthy)
        application.router.add_post("/v2/repository/index", self._index)
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            application.router.add_get(model, self._metadata)
            application.router.add_get(f"{model}/ready", self._healthy)
            application.router.add_post(f"{model}/infer", self._infer)
        self.runner = web.AppRunner(application, access_log=None)

    @classmethod
    @asynccontextmanager
    async def on_port(cls, port: int) -> AsyncIterator["JsonServer"]:
        """A server on *port* of the loopback interface, or on any free port if *port* is taken or 0."""
        server = cls()
        await server.runner.setup()
        try:
            await web.TCPSite(server.runner, "127.0.0.1", _free_port_or_any(port)).start()
            server.url = f"http://127.0.0.1:{server.runner.addresses[0][1]}"
            yield server
        finally:
            await server.runner.cleanup()

    async def _server(self, request: web.Request) -> web.Response:
        return _json(200, {"name": "embedded", "version": "1", "extensions": []})

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _index(self, request: web.Request) -> web.Response:
        return _json(200, [{"name": name, "version": "1", "state": "READY", "reason": ""} for name in _MODELS])

    async def _metadata(self, request: web.Request) -> web.Response:
        name = _model_of(request)
        return _json(200, {"name": name, "versions": ["1"], "platform": "embedded", **_MODELS[name]})

    async def _infer(self, request: web.Request) -> web.Response:
        model = _model_of(request)
        if request.headers.get("Content-Type") != "application/json":
            return _json(415, {"error": "Content-Type must be application/json: this server reads JSON only"})
        text = await request.read()
        self.request_bytes = len(text)
        self.headers = list(request.headers.items())
        self.inferences += 1
        used = [word for word in _BINARY_WORDS if f'"{word}"'.encode() in text]
        if used:
            return _json(400, {"error": f"{used[0]} is not supported: this server reads JSON only"})
        try:
            asked = self.last_request = orjson.loads(text)
            outputs = _identity(asked) if model == "identity" else _simple(asked)
        except (KeyError, ValueError, TypeError) as error:
            return _json(400, {"error": f"{type(error).__name__}: {error}"})
        answer = {"model_name": model, "model_version": "1", "outputs": outputs}
        if asked.get("id"):
            answer["id"] = asked["id"]
        response = _json(200, answer)
        self.answer_bytes = response.content_length or 0
        return response


def _free_port_or_any(wanted: int) -> int:
    """*wanted* if this port is free on the loopback interface, else 0, with which the kernel picks one."""
    return wanted if is_free(Address(f"127.0.0.1:{wanted}")) else 0


async def show(server: JsonServer, gateway_url: str) -> bool:
    """Send one image as JSON to the server and in binary through the gateway, and print times and sizes.

    Returns whether the tensor came back bit for bit. Raises `OSError` with the gateway's words if the inference fails.
    """
    image = np.random.default_rng(7).standard_normal(_SHAPE, dtype=np.float32)
    tensor = Tensor("INPUT0", "FP32", _SHAPE, image.tobytes())
    print(f"An image, FP32 {list(_SHAPE)}, to a server that only reads JSON, and back.\n", flush=True)
    straight, gateway = (Asker(Endpoint.parse(url, None)) for url in (server.url, gateway_url))
    straight_s, through_s = [], []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        text = json.dumps({"inputs": [{**tensor.member, "data": image.ravel().tolist()}]})
        (output,) = (await straight.post(_PATH, text.encode())).json["outputs"]
        np.array(output["data"], dtype=np.float32).reshape(output["shape"])
        straight_s.append(time.perf_counter() - started)
        started = time.perf_counter()
        request, header_length = binary_request([tensor])
        answer = await gateway.post(_PATH, request, header_length)
        if answer.status != 200:
            raise OSError(f"the gateway answered {answer.words}")
        (returned,) = outputs_of(answer)
        through_s.append(time.perf_counter() - started)
    print(f"  JSON, straight to the server  {min(straight_s) * 1000:7.1f} ms  from Python, with tolist and json")
    print(f"  binary, through the gateway   {min(through_s) * 1000:7.1f} ms  and the server still reads JSON\n")
    n_bytes, n_back = image.nbytes, len(returned.blob)
    rows = [
        ("client  -> gateway", len(request), f"{header_length} of JSON header, {n_bytes:,} of tensor"),
        ("gateway -> server", server.request_bytes, "JSON, made in pieces while it was sent"),
        ("server  -> gateway", server.answer_bytes, "JSON, read in pieces while it arrived"),
        ("gateway -> client", len(answer.body), f"{len(answer.body) - n_back} of JSON header, {n_back:,} of tensor"),
    ]
    for number, (wire, n_crossed, what) in enumerate(rows, 1):
        print(f"  {number}. {wire:<18} {n_crossed:>10,} bytes: {what}")
    exact = returned == tensor
    print(f"\n  bit-exact: {'yes' if exact else 'NO'}\n")
    return exact


EXAMPLE = """\
import numpy as np
import tritonclient.http as triton

client = triton.InferenceServerClient("127.0.0.1:8080")
image = triton.InferInput("INPUT0", [1, 3, 224, 224], "FP32")
image.set_data_from_numpy(np.random.rand(1, 3, 224, 224).astype(np.float32))
print(client.infer("identity", [image]).as_numpy("INPUT0").shape)
"""
"""The program of the README, which users can paste."""


def next_steps(server_url: str, gateway_url: str, admin_url: str, *grpc_urls: str) -> str:
    """Words and programs to try while the demonstration runs; programs are not indented, so that they can be pasted."""
    grpc = "".join(f"  the same, for gRPC    {url.partition('://')[2]}\n" for url in grpc_urls)
    example = EXAMPLE.replace("127.0.0.1:8080", gateway_url.removeprefix("http://"))
    return f"""\
Both keep serving:

  the JSON-only server  {server_url}
  the gateway           {gateway_url}
{grpc}  its status page       {admin_url}/
  its metrics           {admin_url}/metrics

Try it from Python, after pip install "tritonclient[http]":

{example}
Or with curl, JSON in and binary out, which goes to a file:

curl -s -D - {gateway_url}/v2/models/identity/infer --output answer.bin \\
  -d '{{"inputs":[{{"name":"x","shape":[3],"datatype":"FP32","data":[1,2,3]}}],
       "parameters":{{"binary_data_output":true}}}}'

Stop it with Ctrl-C. Then put the gateway in front of your own server:

tensor-gateway serve --backend http://127.0.0.1:8000"""


def _identity(asked: dict[str, Any]) -> list[dict[str, Any]]:
    return [{key: tensor[key] for key in ("name", "datatype", "shape", "data")} for tensor in asked["inputs"]]


def _simple(asked: dict[str, Any]) -> list[dict[str, Any]]:
    tensors = {tensor["name"]: tensor for tensor in asked["inputs"]}
    left, right = (np.array(tensors[name]["data"], dtype=np.int32).reshape(1, 16) for name in ("INPUT0", "INPUT1"))
    return [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "data": values.ravel().tolist()}
        for name, values in (("OUTPUT0", left + right), ("OUTPUT1", left - right))
    ]


def _model_of(request: web.Request) -> str:
    """The name of the model in the path of *request*. Raises the 404 for a model or version that does not exist."""
    name = request.match_info["model"]
    if name not in _MODELS or request.match_info.get("version", "1") != "1":
        words = json.dumps({"error": f"unknown model {name!r}"})
        raise web.HTTPNotFound(text=words, content_type="application/json")
    return name


def _json(status: int, value: object) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")
