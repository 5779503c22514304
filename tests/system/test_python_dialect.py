"""Clients of V2 before servers that only an adapter of the owner's can speak to: `dialect: python`."""

import asyncio
import gc
import json
import logging
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import aiohttp
import numpy as np
import orjson
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton
import yaml
from tritonclient.utils import InferenceServerException, deserialize_bytes_tensor

from gateway.cli import main
from gateway.codec.dialects.python import PARSED_PER_BYTE
from gateway.config import inspect, parse
from gateway.errors import ConfigError
from gateway.policy.admission import Admission
from gateway.process.application import Application
from gateway.serving.adapter_modules import PACKAGES, load_adapters
from gateway.serving.adapter_threads import MAX_THREADS
from tests.batching.test_batching import ask, serving, together
from tests.conftest import Client, Reply, access_lines, answering, lying, running
from tests.grpc.conftest import address_of
from tests.system.gateway_process import gateway_process
from tests.system.scripted import counting
from tests.system.test_templates import Legacy, Stage, error_of, numbers, strings

ECHO = """
    import numpy as np

    def request(call):
        return f"/p/{call.model}", {"rows": call.inputs["x"], "user": "web"}

    def answer(call, status, body):
        return {"y": np.array(body["y"], np.float32)}
"""
MODEL: Mapping[str, Any] = {
    "inputs": {"x": {"datatype": "FP32", "shape": ["n", 4]}},
    "outputs": {"y": {"datatype": "FP32", "shape": ["n"]}},
}
X = np.arange(8, dtype=np.float32).reshape(2, 4)
GOOD = b'{"y": [0.5, 1]}'


def written(folder: Path, adapter: str, name: str = "scorer.py") -> Path:
    file = folder / name
    file.write_text(dedent(adapter))
    return file


def settings_of(file: Path, model: Mapping[str, Any] = MODEL, **more: object) -> str:
    settings = {"dialect": "python", "adapter": str(file), "health": {"path": "/ping"}, "models": {"m": dict(model)}}
    return str(yaml.safe_dump({**settings, **more}, default_flow_style=None, sort_keys=False))


@asynccontextmanager
async def before(
    server: Legacy, file: Path, model: Mapping[str, Any] = MODEL, extra: str = "", **more: object
) -> AsyncIterator[Stage]:
    async with (
        counting(server.behave) as backend,
        running(backend.url, extra, settings_of(file, model, **more)) as client,
    ):
        yield Stage(client, backend, server)


async def answer_of(tmp_path: Path, adapter: str, answer: bytes = GOOD, model: Mapping[str, Any] = MODEL) -> Reply:
    """What a client gets that sends `X`, with *adapter* in front of a server that gives *answer*."""
    async with before(Legacy(answer), written(tmp_path, adapter), model) as stage:
        return await stage.infer("m", numbers("x", X, "FP32"))


# What adapters make, and what clients get


async def test_an_adapter_makes_the_request_and_the_outputs(tmp_path: Path) -> None:
    async with before(Legacy(GOOD), written(tmp_path, ECHO)) as stage:
        reply = await stage.infer("m", numbers("x", X, "FP32"), id="7")
        assert reply.status == 200, reply.body
        (y,) = reply.json["outputs"]
        assert (y["name"], y["datatype"], y["shape"]) == ("y", "FP32", [2])
        assert np.frombuffer(reply.binary, np.float32).tolist() == [0.5, 1]
        assert (reply.json["model_name"], reply.json["id"]) == ("m", "7")
        (seen,) = stage.server.seen
        assert seen.target == "/p/m"
        assert seen.values("content-type") == ["application/json"]
        assert json.loads(seen.body) == {"rows": X.tolist(), "user": "web"}
        assert await stage.client.wait_until_idle(5) == 0
        assert stage.client.gateway.gateway.admission.held_bytes == 0


async def test_a_client_that_sends_json_gets_json(tmp_path: Path) -> None:
    async with before(Legacy(GOOD), written(tmp_path, ECHO)) as stage:
        entry = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": X.tolist()}
        reply = await stage.client.request("POST", "/v2/models/m/infer", json={"inputs": [entry]})
        assert reply.json["outputs"] == [{"name": "y", "shape": [2], "datatype": "FP32", "data": [0.5, 1.0]}]
        assert json.loads(stage.server.seen[0].body)["rows"] == X.tolist()


SEES_ALL = """
    import numpy as np

    def request(call):
        x, t, b, h = (call.inputs[name] for name in ("x", "t", "b", "h"))
        assert not any(each.flags.writeable for each in (x, t, b, h))
        assert (x.dtype, t.dtype, b.dtype, h.dtype) == (np.int64, object, np.bool_, np.float32)
        said = {"x": x, "t": t, "b": b, "h": h, "datatypes": call.datatypes, "parameters": call.parameters}
        return f"/a?b={call.version}", said | {"outputs": call.outputs, "id": call.id, "model": call.model}

    def answer(call, status, body):
        return {"y": np.array([status], np.int64), "z": np.array([["a", "\\u00e9"]], object), "unasked": [1]}
"""


async def test_all_of_a_request_is_there_for_the_adapter(tmp_path: Path) -> None:
    outputs = {"y": {"datatype": "INT64"}, "z": {"datatype": "BYTES"}, "unasked": {"datatype": "FP32"}}
    inputs = [
        numbers("x", np.array([2**53 + 1]), "INT64"),
        strings("t", b"a", "é".encode()),
        numbers("b", np.array([0, 1, 7], np.uint8), "BOOL"),
        numbers("h", np.array([0x3FC0], np.uint16), "BF16"),
    ]
    async with before(Legacy(b"{}", "201 Created"), written(tmp_path, SEES_ALL), {"outputs": outputs}) as stage:
        reply = await stage.infer(
            "m",
            *inputs,
            id="7",
            path="/v2/models/m/versions/3/infer?c=d",
            parameters={"binary_data_output": True, "top": {"k": [1]}, "priority": 1, "timeout": 5},
            outputs=[{"name": "z"}, {"name": "y", "parameters": {"binary_data": False}}],
        )
        assert reply.status == 200, reply.body
        (seen,) = stage.server.seen
        assert seen.target == "/a?b=3&c=d"
        assert json.loads(seen.body) == {
            "x": [2**53 + 1],
            "t": ["a", "é"],
            "b": [False, True, True],
            "h": [1.5],
            "datatypes": {"x": "INT64", "t": "BYTES", "b": "BOOL", "h": "BF16"},
            "parameters": {"top": {"k": [1]}},
            "outputs": ["z", "y"],
            "id": "7",
            "model": "m",
        }
        z, y = reply.json["outputs"]
        assert (y["data"], y["datatype"], z["shape"], z["datatype"]) == ([201], "INT64", [1, 2], "BYTES")
        assert deserialize_bytes_tensor(reply.binary).tolist() == [b"a", "é".encode()]
        assert reply.json["model_version"] == "3"


async def test_clients_of_grpc_are_served_too(tmp_path: Path) -> None:
    file = written(tmp_path, ECHO.replace("def request(call):", "def request(call):\n        call.inputs['x'][5, 0]"))
    async with (
        counting(Legacy(GOOD).behave) as backend,
        running(backend.url, "grpc: 127.0.0.1:0\n", settings_of(written(tmp_path, ECHO, "good.py"))) as client,
        running(backend.url, "grpc: 127.0.0.1:0\n", settings_of(file)) as failing,
        triton.InferenceServerClient(address_of(client)) as grpc,
        triton.InferenceServerClient(address_of(failing)) as failing_grpc,
    ):
        x = triton_grpc.InferInput("x", [2, 4], "FP32").set_data_from_numpy(X)
        result = await grpc.infer("m", [x])
        assert result.as_numpy("y").tolist() == [0.5, 1]
        with pytest.raises(InferenceServerException, match="adapter's `request` failed: IndexError") as raised:
            await failing_grpc.infer("m", [x])
        assert "scorer.py" not in str(raised.value)


async def test_a_large_request_and_a_large_answer_cross(tmp_path: Path) -> None:
    x = np.arange(400_000, dtype=np.float32).reshape(-1, 4)
    server = Legacy(orjson.dumps({"y": x[:, 0].tolist()}))
    async with before(server, written(tmp_path, ECHO)) as stage:
        reply = await stage.infer("m", numbers("x", x, "FP32"))
        assert reply.status == 200, reply.body
        assert np.array_equal(np.frombuffer(reply.binary, np.float32), x[:, 0])
        assert np.array_equal(np.array(json.loads(server.seen[0].body)["rows"], np.float32), x)
        assert await stage.client.wait_until_idle(5) == 0
        assert stage.client.gateway.gateway.admission.held_bytes == 0


async def test_an_answer_above_the_limit_is_refused(tmp_path: Path) -> None:
    async with before(
        Legacy(orjson.dumps({"y": [0.5] * 1000})), written(tmp_path, ECHO), extra="limits: {response_body: 1KiB}\n"
    ) as stage:
        assert "limits.response_body" in error_of(await stage.infer("m", numbers("x", X, "FP32")), 502)


async def test_metadata_health_and_readiness_are_answered(tmp_path: Path) -> None:
    server = Legacy()
    async with before(server, written(tmp_path, ECHO)) as stage:
        request = stage.client.request
        metadata = (await request("GET", "/v2/models/m")).json
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
        assert metadata["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1]}]
        assert (await request("GET", "/v2/models/m/ready")).status == 200
        assert (await request("GET", "/v2/health/ready")).status == 200
        assert (await request("GET", "/v2")).json["name"] == "python"
        assert "is not configured" in error_of(await request("GET", "/v2/models/other"), 404)
        server.ping = "503 Service Unavailable"
        assert (await request("GET", "/v2/health/live")).status == 503


async def test_requests_go_together(tmp_path: Path) -> None:
    def doubled(body: Any) -> Any:
        return {"y": [2 * row[0] for row in body["rows"]]}

    async with (
        serving(doubled) as server,
        running(server.url, "", settings_of(written(tmp_path, ECHO), batch={"max_size": 8})) as client,
    ):
        replies = await together(server, client, *(lambda value=value: ask(client, value) for value in range(4)))
        assert [np.frombuffer(reply.binary, np.float32).tolist() for reply in replies] == [[0], [2], [4], [6]]
        assert len(server.asked) == 2


async def test_a_request_that_fails_in_a_batch_fails_alone(tmp_path: Path) -> None:
    refusing = ECHO.replace(
        "def request(call):",
        "def request(call):\n        assert 2 not in call.inputs['x'], 'two'",
    )
    async with (
        serving(lambda body: {"y": [row[0] for row in body["rows"]]}) as server,
        running(server.url, "", settings_of(written(tmp_path, refusing), batch={"max_size": 8})) as client,
    ):
        replies = await together(server, client, *(lambda value=value: ask(client, value) for value in range(4)))
        assert [reply.status for reply in replies] == [200, 200, 500, 200]
        assert "AssertionError: two" in replies[2].error


# What is refused, and how it is told


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([numbers("x", X.astype(np.float64), "FP64")], "takes FP32"),
        ([numbers("y", X, "FP32")], "model 'm' has no such input; it has 'x'"),
        ([], "input 'x' is missing"),
        ([numbers("x", X[:, :3], "FP32")], "takes the shape [n, 4], got [2, 3]"),
        ([numbers("x", X * np.nan, "FP32")], "which JSON cannot carry"),
    ],
)
async def test_inputs_are_judged_before_the_adapter_sees_them(
    tmp_path: Path, tensors: list[tuple[dict[str, Any], bytes]], words: str
) -> None:
    failing = "def request(call):\n    1 / 0\n\ndef answer(call, status, body):\n    1 / 0\n"
    async with before(Legacy(), written(tmp_path, failing)) as stage:
        assert words in error_of(await stage.infer("m", *tensors), 400)
        assert stage.server.seen == []


async def test_an_optional_input_may_be_missing(tmp_path: Path) -> None:
    model = {**MODEL, "inputs": {**MODEL["inputs"], "u": {"datatype": "FP32", "optional": True}}}
    assert (await answer_of(tmp_path, ECHO, GOOD, model)).status == 200


async def test_sequences_and_unknown_outputs_are_refused(tmp_path: Path) -> None:
    async with before(Legacy(), written(tmp_path, ECHO)) as stage:
        x = numbers("x", X, "FP32")
        reply = await stage.infer("m", x, parameters={"sequence_id": 5, "sequence_start": True})
        assert "sequence" in error_of(reply, 400)
        assert "output 'q' was requested" in error_of(await stage.infer("m", x, outputs=[{"name": "q"}]), 400)


REQUEST = "\n\ndef answer(call, status, body):\n    return {}\n"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("raise ValueError('age must be positive')", 400, "age must be positive"),
        ("return call.inputs['q']", 500, "the adapter's `request` failed: KeyError: 'q'"),
        (
            "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()",
            500,
            "the adapter's `request` failed: Odd",
        ),
        ("raise SystemExit(3)", 500, "the adapter's `request` failed: SystemExit: 3"),
        ("return '/p'", 500, "expected a path and a body, got a str"),
        ("return None", 500, "expected a path and a body, got None"),
        ("return 'p', {}", 500, "expected a path that starts with /, got 'p'"),
        ("return '/p ä', {}", 500, "printable ASCII"),
        ("return '/p\\r\\nX: y', {}", 500, "printable ASCII"),
        ("return '/a/../b', {}", 500, "'.' or '..'"),
        ("return '/secret/b', {}", 500, "is refused"),
        ("return '/p', {'a': {1, 2}}", 500, "cannot be sent: not to be written as JSON: a set"),
        ("return '/p', {'a': call}", 500, "not to be written as JSON: a AdapterCall"),
        ("return '/p', {'a': b'\\xff'}", 500, "octets that are not UTF-8"),
        ("return '/p', {'a': 2**70}", 500, "64-bit"),
        ("return '/p', {'a': [1, float('nan')]}", 500, "the number at ['a'][1] is nan"),
        ("return '/p', np.full((1, 2), np.nan)", 500, "the number at [0][0] is nan"),
    ],
)
async def test_what_is_wrong_with_a_request_is_told(
    tmp_path: Path, body: str, status: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = f"import numpy as np\n\ndef request(call):\n    {body}\n{REQUEST}"
    caplog.set_level(logging.INFO, "gateway")
    extra = "access: {deny: ['/secret/*']}\nlogging: {access: json}\n"
    async with before(Legacy(), written(tmp_path, adapter), extra=extra) as stage:
        reply = await stage.infer("m", numbers("x", X, "FP32"))
        assert words in error_of(reply, status)
        assert "scorer.py" not in reply.body.decode()
        assert stage.server.seen == []
        if status == 400:
            assert error_of(reply, status) == words
    (line,) = (json.loads(each) for each in access_lines(caplog))
    assert line["reason"] == ("internal" if status == 500 else "malformed_request")
    assert "scorer.py:" in line["detail"]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [("scorer.py:" in record.getMessage(), record.exc_info) for record in errors] == [(True, None)] * (
        status == 500
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("body['q']", "the adapter's `answer` failed: KeyError: 'q'"),
        ("raise ValueError('no')", "the adapter's `answer` failed: ValueError: no"),
        ("raise StopIteration", "the adapter's `answer` failed: StopIteration"),
        ("return [1]", "expected outputs by name, {'y': array}, got a list"),
        ("return {}", "output 'y' (FP32): missing among the outputs, which are none"),
        ("return {'y': None}", "output 'y' (FP32): missing"),
        ("return {'y': [0.5, 1], 'w': [1]}", "output 'w': there is no such output in `models`"),
        (
            "return {'y': np.array(body['y'])}",
            "output 'y' (FP32): got an array of float64, and `models` in the backend's configuration says FP32; "
            "write `.astype(np.float32)` if that is meant",
        ),
        ("return {'y': [0.5]}", "got the shape [1], and `models` in the backend's configuration says [n] (n is 2)"),
        ("return {'y': np.zeros((2, 1), 'f4')}", "got the shape [2, 1]"),
        ("return {'y': [[1], [1, 2]]}", "output 'y' (FP32)"),
        ("return {'y': ['a', 'b']}", "output 'y' (FP32)"),
        ("return {'y': np.array(['a', 'b'])}", "got an array of <U1"),
        ("return {'y': np.ma.masked_array(np.zeros(2, 'f4'), [0, 1])}", "a masked array"),
    ],
)
async def test_what_is_wrong_with_an_answer_is_told(
    tmp_path: Path, body: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = "import numpy as np\n\ndef request(call):\n    return '/p', {}\n\n"
    adapter = f"{head}def answer(call, status, body):\n    {body}\n"
    caplog.set_level(logging.INFO, "gateway")
    async with before(Legacy(GOOD), written(tmp_path, adapter), extra="logging: {access: json}\n") as stage:
        reply = await stage.infer("m", numbers("x", X, "FP32"))
        assert words in error_of(reply, 502)
        assert "scorer.py" not in reply.body.decode()
    (line,) = (json.loads(each) for each in access_lines(caplog))
    assert line["reason"] == "malformed_response"
    assert "scorer.py:" in line["detail"]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("answer", [b"<html>Sign in</html>", b'{"y": [0.5, 1', b'"\xff"'])
async def test_an_answer_that_is_no_json_is_told(tmp_path: Path, answer: bytes) -> None:
    assert "the backend's answer: no JSON: " in error_of(await answer_of(tmp_path, ECHO, answer), 502)


async def test_a_refusal_keeps_the_servers_status_and_words(tmp_path: Path) -> None:
    never = ECHO.replace("def answer(call, status, body):", "def answer(call, status, body):\n        1 / 0")
    async with before(Legacy(b'{"error": "too young"}', "422 No"), written(tmp_path, never)) as stage:
        assert error_of(await stage.infer("m", numbers("x", X, "FP32")), 422) == "too young"


@pytest.mark.parametrize(("policy", "sent"), [("literal", b'{"a":[NaN,1.5,Infinity]}'), ("as_null", None)])
async def test_the_policy_for_nan_is_that_of_the_backend(tmp_path: Path, policy: str, sent: bytes | None) -> None:
    adapter = """
        import numpy as np

        def request(call):
            return "/p", {"a": call.inputs["x"][0, :3]}

        def answer(call, status, body):
            return {"y": np.array(body["y"], np.float32)}
    """
    x = np.array([[np.nan, 1.5, np.inf, 0]], np.float32)
    async with before(Legacy(b'{"y": [NaN]}'), written(tmp_path, adapter), nonfinite=policy) as stage:
        if sent is None:
            assert "which JSON cannot carry" in error_of(await stage.infer("m", numbers("x", x, "FP32")), 400)
            x[0, 2] = 2
            sent = b'{"a":[null,1.5,2.0]}'
        reply = await stage.infer("m", numbers("x", x, "FP32"))
        assert np.isnan(np.frombuffer(reply.binary, np.float32)).tolist() == [True]
        assert stage.server.seen[-1].body == sent


ODD = """
    import collections.abc
    import numpy as np

    class Odd(Exception):
        def __str__(self):
            raise SystemExit(3)

    class Lazy(collections.abc.Mapping):
        def __getitem__(self, key):
            raise SystemExit(3)

        def __iter__(self):
            raise KeyboardInterrupt

        def __len__(self):
            return 1

    class Array:
        def __array__(self, dtype=None, copy=None):
            raise SystemExit(3)

    class Shown:
        def __repr__(self):
            raise StopIteration

"""


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("raise Odd", 500, "the adapter's `request` failed: Odd"),
        ("return Shown(), {}", 500, "what the adapter's `request` returned cannot be used: StopIteration"),
        ("return '/p', Lazy()", 500, "what the adapter's `request` returned cannot be sent"),
        ("a = [np.zeros(1, '>f8')]; a.append(a); return '/p', a", 500, "cannot be used: RecursionError"),
        ("return Lazy()", 502, "what the adapter's `answer` returned cannot be used: KeyboardInterrupt"),
        ("return {'y': Array()}", 502, "what the adapter's `answer` returned cannot be used: SystemExit: 3"),
        ("raise Odd", 502, "the adapter's `answer` failed: Odd"),
    ],
)
async def test_no_code_of_an_adapter_ends_the_gateway(tmp_path: Path, body: str, status: int, words: str) -> None:
    request, answer = (body, "return {'y': [1, 2]}") if status == 500 else ("return '/p', {}", body)
    functions = f"def request(call):\n    {request}\n\ndef answer(call, status, body):\n    {answer}\n"
    async with before(Legacy(GOOD), written(tmp_path, dedent(ODD) + functions)) as stage:
        for _ in range(2):
            assert words in error_of(await stage.infer("m", numbers("x", X, "FP32")), status)
        assert await stage.client.wait_until_idle(5) == 0
        assert stage.client.gateway.gateway.admission.held_bytes == 0


# Threads

HOLDS = """
    from pathlib import Path
    import time

    GATE = Path(__file__).parent / "gate"

    def request(call):
        GATE.with_suffix(".begun").touch()
        while not GATE.exists():
            time.sleep(0.01)
        return "/p", {}

    def answer(call, status, body):
        return {"y": body["y"]}
"""


@asynccontextmanager
async def slow_and_fast(url: str, tmp_path: Path, total: str = "60s") -> AsyncIterator[Client]:
    """A gateway with a model `slow`, whose adapter waits for a file, and a model `m`, whose adapter does not."""
    backends = {
        name: {
            "endpoints": [url],
            "dialect": "python",
            "adapter": str(written(tmp_path, adapter, f"{name}.py")),
            "timeouts": {"total": total},
            "models": {"*": dict(MODEL)},
        }
        for name, adapter in {"slow": HOLDS, "fast": ECHO}.items()
    }
    routes = [{"name": "slow", "models": ["slow"], "backend": "slow"}, {"name": "fast", "backend": "fast"}]
    settings = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "logging": {"access": "none"}}
    application = await Application.start(parse(yaml.safe_dump({**settings, "backends": backends, "routes": routes})))
    try:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, skip_auto_headers=["Content-Type"]) as session:
            yield Client(session, application, application.listen_url, application.admin_url)
    finally:
        (tmp_path / "gate").touch()
        await application.stop()


async def test_an_adapter_that_waits_holds_no_request_of_another(tmp_path: Path) -> None:
    async with lying(answering(GOOD)) as backend, slow_and_fast(backend.url, tmp_path) as client:
        stage = Stage(client, None, Legacy())  # type: ignore[arg-type]
        x = numbers("x", X, "FP32")
        n_slow = 2 * MAX_THREADS
        slow = [asyncio.create_task(stage.infer("slow", x)) for _ in range(n_slow)]
        while client.gateway.gateway.in_flight < n_slow:
            await asyncio.sleep(0.01)
        fast = await asyncio.gather(*(stage.infer("m", x) for _ in range(2 * MAX_THREADS)))
        assert {reply.status for reply in fast} == {200}
        assert not any(task.done() for task in slow)
        assert threading.active_count() < 3 * MAX_THREADS
        (tmp_path / "gate").touch()
        assert {reply.status for reply in await asyncio.gather(*slow)} == {200}


async def test_the_wait_for_a_thread_counts_in_the_total_time(tmp_path: Path) -> None:
    async with lying(answering(GOOD)) as backend, slow_and_fast(backend.url, tmp_path, "500ms") as client:
        stage = Stage(client, None, Legacy())  # type: ignore[arg-type]
        x = numbers("x", X, "FP32")
        replies = await asyncio.gather(*(stage.infer("slow", x) for _ in range(MAX_THREADS + 6)))
        assert {reply.status for reply in replies} == {504}
        assert all(
            "the adapter of backend 'slow' took longer than 0.5 s (timeouts.total)" in each.error for each in replies
        )
        assert "all of its 64 threads are in use" in error_of(await stage.infer("slow", x), 504)
        assert (await stage.infer("m", x)).status == 200
        admission = client.gateway.gateway.admission
        assert admission.held_bytes >= MAX_THREADS * X.nbytes
        (tmp_path / "gate").touch()
        assert (await stage.infer("slow", x)).status == 200
        await until_free(admission)


async def until_free(admission: Admission) -> None:
    async with asyncio.timeout(10):
        while admission.held_bytes:
            await asyncio.sleep(0.01)


HOLDS_ANSWERS = """
    from pathlib import Path
    import time

    GATE = Path(__file__).parent / "gate"

    def request(call):
        return "/p", {}

    def answer(call, status, body):
        GATE.with_suffix(".begun").touch()
        while not GATE.exists():
            time.sleep(0.01)
        return {"y": body["y"]}
"""


@pytest.mark.parametrize("adapter", [HOLDS, HOLDS_ANSWERS], ids=["request", "answer"])
async def test_a_client_that_leaves_hangs_nothing(tmp_path: Path, adapter: str) -> None:
    async with before(Legacy(GOOD), written(tmp_path, adapter)) as stage:
        x = numbers("x", X, "FP32")
        leaving = asyncio.create_task(stage.infer("m", x))
        while not (tmp_path / "gate.begun").exists():
            await asyncio.sleep(0.01)
        leaving.cancel()
        assert await stage.client.wait_until_idle(5) == 0
        admission = stage.client.gateway.gateway.admission
        assert admission.held_bytes > X.nbytes  # the thread still has the request
        (tmp_path / "gate").touch()
        await until_free(admission)
        assert (await stage.infer("m", x)).status == 200
        assert len(stage.server.seen) == (1 if adapter == HOLDS else 2)


async def test_an_answer_counts_while_the_adapter_works_on_it(tmp_path: Path) -> None:
    file = written(tmp_path, HOLDS_ANSWERS)
    server = Legacy(orjson.dumps({"y": [0.5, 1], "more": "x" * 100_000}))
    async with before(server, file) as stage:
        admission = stage.client.gateway.gateway.admission
        asked = asyncio.create_task(stage.infer("m", numbers("x", X, "FP32")))
        while not (tmp_path / "gate.begun").exists():
            await asyncio.sleep(0.01)
        assert admission.held_bytes > (1 + PARSED_PER_BYTE) * 100_000
        (tmp_path / "gate").touch()
        assert (await asked).status == 200
        assert admission.held_bytes == 0


async def test_a_request_counts_beside_its_answer(tmp_path: Path) -> None:
    """Of a large request that was streamed the adapter still has the arrays, and the gateway the JSON."""
    x = np.ones((100_000, 4), np.float32)
    file = written(
        tmp_path,
        HOLDS_ANSWERS.replace("'/p', {}", "'/p', call.inputs['x']").replace('"/p", {}', '"/p", call.inputs["x"]'),
    )
    server = Legacy(orjson.dumps({"y": [0.5] * len(x), "more": "x" * 5_000_000}))
    async with before(server, file) as stage:
        admission = stage.client.gateway.gateway.admission
        asked = asyncio.create_task(stage.infer("m", numbers("x", x, "FP32")))
        while not (tmp_path / "gate.begun").exists():
            await asyncio.sleep(0.01)
        assert admission.held_bytes > 2 * x.nbytes + (1 + PARSED_PER_BYTE) * 5_000_000
        (tmp_path / "gate").touch()
        assert (await asked).status == 200
        await until_free(admission)


async def test_an_answer_that_takes_too_long_to_read_is_not_called_slow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    extra, timeouts = "logging: {access: json}\n", {"total": "300ms"}
    async with before(Legacy(GOOD), written(tmp_path, HOLDS_ANSWERS), extra=extra, timeouts=timeouts) as stage:
        words = error_of(await stage.infer("m", numbers("x", X, "FP32")), 504)
        assert words.endswith(
            "the answer of backend 'main' was there, and to read it took longer than 0.3 s (timeouts.total)"
        )
        (tmp_path / "gate").touch()
        await until_free(stage.client.gateway.gateway.admission)
    (line,) = (json.loads(each) for each in access_lines(caplog))
    assert "scorer.py:10" in line["detail"]


async def test_threads_end_with_the_gateway(tmp_path: Path) -> None:
    others = set(threading.enumerate())
    async with before(Legacy(GOOD), written(tmp_path, ECHO)) as stage:
        await stage.infer("m", numbers("x", X, "FP32"))
        (thread,) = [each for each in threading.enumerate() if each.name == "adapter" and each not in others]
    del stage
    async with asyncio.timeout(10):
        while thread.is_alive():
            gc.collect()
            await asyncio.sleep(0.01)


async def test_a_process_ends_though_an_adapter_never_returns(tmp_path: Path) -> None:
    async with lying(answering(GOOD)) as backend:
        text = configuration(backend.url, written(tmp_path, HOLDS), "shutdown: {grace: 100ms}\n")
        async with gateway_process(text, tmp_path / "g.yaml") as gateway, aiohttp.ClientSession() as session:
            asked = asyncio.create_task(post_json(session, gateway.url))
            while not (tmp_path / "gate.begun").exists():
                await asyncio.sleep(0.01)
            assert await gateway.stop() == 0
            with pytest.raises(aiohttp.ClientError):
                (await asked).raise_for_status()


# Files: reload, and what check says


def configuration(url: str, file: Path, extra: str = "") -> str:
    settings = settings_of(file).replace("\n", "\n    ")
    head = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n"
    return f"{head}{extra}backends:\n  main:\n    endpoints: ['{url}']\n    {settings}"


async def post_json(session: aiohttp.ClientSession, url: str) -> aiohttp.ClientResponse:
    entry = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": X.tolist()}
    response = await session.post(f"{url}/v2/models/m/infer", json={"inputs": [entry]})
    await response.read()
    return response


VERSIONED = """
    from .factors import FACTOR

    def request(call):
        return "/p", {}

    def answer(call, status, body):
        return {"y": [FACTOR * 1, FACTOR * 1]}
"""


def modules_of_adapters() -> set[str]:
    gc.collect()
    return {name for name in list(sys.modules) if name.startswith(PACKAGES)}  # a thread may forget one meanwhile


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_a_reload_imports_an_adapter_anew_or_leaves_everything_as_it_was(tmp_path: Path, workers: int) -> None:
    helper = written(tmp_path, "FACTOR = 1\n", "factors.py")
    file = written(tmp_path, VERSIONED)
    async with lying(answering(GOOD)) as backend:
        text = configuration(backend.url, file, f"workers: {workers}\n")
        async with gateway_process(text, tmp_path / "g.yaml") as gateway, aiohttp.ClientSession() as session:

            async def outputs() -> list[float]:
                reply = await (await post_json(session, gateway.url)).json()
                return list(reply["outputs"][0]["data"])

            assert await outputs() == [1, 1]
            helper.write_text("FACTOR = 2\n")  # of the same size, and maybe in the same second
            gateway.reload(text)
            await gateway.saw("INFO gateway.announce: reloaded", count=1)
            assert await outputs() == [2, 2]
            file.write_text(dedent(VERSIONED).replace("FACTOR * 1", "FACTOR * 3", 1))
            gateway.reload(text)
            await gateway.saw("INFO gateway.announce: reloaded", count=2)
            assert await outputs() == [6, 2]
            for number, broken in enumerate(["1 / 0\n", "def request(:\n", "import nowhere\n", ""], 1):
                file.write_text(broken)
                gateway.reload(text.replace("/ping", "/other"))
                await gateway.saw(r"not reloaded.*backends\.main\.adapter: .*scorer\.py:1: ", count=number)
                assert await outputs() == [6, 2]
    assert not (tmp_path / "__pycache__").exists()


async def test_a_reload_frees_what_the_adapter_before_has_held(tmp_path: Path) -> None:
    """A module and its functions refer to each other, and garbage collection is tuned to look away from old objects."""
    large = """
        from pathlib import Path

        class Large:
            gone = Path(__file__).with_name("gone")

            def __del__(self):
                self.gone.touch()

        LARGE = Large()
    """
    file = written(tmp_path, dedent(large) + dedent(ECHO))
    async with lying(answering(GOOD)) as backend:
        text = configuration(backend.url, file)
        async with gateway_process(text, tmp_path / "g.yaml") as gateway, aiohttp.ClientSession() as session:
            assert (await post_json(session, gateway.url)).status == 200
            (tmp_path / "gone").unlink()  # by the first look at the configuration
            file.write_text(dedent(ECHO))
            gateway.reload(text)
            await gateway.saw("INFO gateway.announce: reloaded", count=1)
            async with asyncio.timeout(10):
                while not (tmp_path / "gone").exists():
                    await asyncio.sleep(0.01)
            assert (await post_json(session, gateway.url)).status == 200


async def test_a_reload_leaves_no_module_behind_and_requests_in_flight_keep_theirs(tmp_path: Path) -> None:
    others = modules_of_adapters()
    file = written(tmp_path, HOLDS)
    async with before(Legacy(GOOD), file) as stage:
        first = modules_of_adapters() - others
        assert len(first) == 2
        under_way = asyncio.create_task(stage.infer("m", numbers("x", X, "FP32")))
        while not (tmp_path / "gate.begun").exists():
            await asyncio.sleep(0.01)
        file.write_text(dedent(ECHO).replace("body['y']", "[7, 7]"))
        application = stage.client.gateway
        await application.replace(application.config)
        new = modules_of_adapters() - others - first
        assert len(new) == 2
        file.write_text("1 / 0")
        with pytest.raises(
            ConfigError, match=r"backends\.main\.adapter: .*scorer\.py:1: not imported: ZeroDivisionError"
        ):
            await application.replace(application.config)
        (tmp_path / "gate").touch()
        assert np.frombuffer((await under_way).binary, np.float32).tolist() == [0.5, 1]
        del under_way
        async with asyncio.timeout(10):  # the thread lets go a moment after its result is there
            while modules_of_adapters() - others != new:
                await asyncio.sleep(0.01)
        stage.server.answer = b'{"y": [7, 8]}'
        reply = await stage.infer("m", numbers("x", X, "FP32"))
        assert np.frombuffer(reply.binary, np.float32).tolist() == [7, 8]


async def test_a_module_is_one_as_any_other(tmp_path: Path) -> None:
    """Types look each other up by the module's name, and functions import when they are called."""
    written(tmp_path, "SCALE = 2\n", "late.py")
    (tmp_path / "inner").mkdir()
    written(tmp_path / "inner", "from ..late import SCALE\n", "__init__.py")
    file = written(
        tmp_path,
        """
        from __future__ import annotations

        import pickle
        from dataclasses import dataclass
        from typing import get_type_hints

        @dataclass
        class Row:
            values: list[Row]

        def request(call):
            assert get_type_hints(Row) == {"values": list[Row]}
            assert pickle.loads(pickle.dumps(Row([]))) == Row([])
            return "/p", {}

        def answer(call, status, body):
            from . import late
            from .inner import SCALE
            return {"y": [late.SCALE, SCALE]}
        """,
        "my.scorer-2.py",
    )
    async with before(Legacy(GOOD), file) as stage:
        reply = await stage.infer("m", numbers("x", X, "FP32"))
        assert np.frombuffer(reply.binary, np.float32).tolist() == [2, 2]


async def test_a_process_ends_though_an_import_hangs(tmp_path: Path) -> None:
    file = written(tmp_path, ECHO)
    async with lying(answering(GOOD)) as backend:
        text = configuration(backend.url, file)
        async with gateway_process(text, tmp_path / "g.yaml") as gateway, aiohttp.ClientSession() as session:
            file.write_text(
                "import pathlib, time\npathlib.Path(__file__).with_name('begun').touch()\ntime.sleep(600)\n"
            )
            gateway.reload(text)
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.01)
            assert (await post_json(session, gateway.url)).status == 200
            assert await gateway.stop() == 0


def test_an_import_that_hangs_ends_check_and_the_start_with_words(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.serving.adapter_modules.IMPORT_S", 0.05)
    file = written(tmp_path, "import threading\nthreading.Event().wait(30)\n")
    config = tmp_path / "g.yaml"
    config.write_text(configuration("http://127.0.0.1:1", file))
    for command in (["check", str(config)], ["serve", "--config", str(config)]):
        assert main(command) == 2
        assert "scorer.py:1: not imported within 0.05 s" in capfd.readouterr().err


async def test_two_backends_with_one_file_have_two_modules(tmp_path: Path) -> None:
    file = written(tmp_path, "COUNT = []\n" + dedent(ECHO))
    backend = yaml.safe_load(settings_of(file)) | {"endpoints": ["http://127.0.0.1:1"]}
    routes = [{"name": "r", "backend": "main"}]
    config = parse(yaml.safe_dump({"backends": {"main": backend, "other": backend}, "routes": routes}))
    one, other = load_adapters(config).values()
    assert one._functions.COUNT is not other._functions.COUNT  # type: ignore[attr-defined]


FUNCTIONS = "def request(call):\n    return '/p', {}\n\ndef answer(call, status, body):\n    return {}\n"


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ("", "scorer.py:1: expected a function `request(call)`"),
        ("def request(call):\n    pass\n", "scorer.py:1: expected a function `answer(call, status, body)`"),
        ("request = 1\n", "scorer.py:1: expected a function `request(call)`"),
        (
            FUNCTIONS.replace("(call, status, body)", "(call, body)"),
            "scorer.py:4: expected `answer(call, status, body)`",
        ),
        (f"async {FUNCTIONS}", "scorer.py:1: `request` is a coroutine; it is called in a thread"),
        ("\ndef request(call:\n", "scorer.py:2: not imported: SyntaxError: "),
        ("\n\nimport nowhere_at_all\n", "scorer.py:3: not imported: ModuleNotFoundError: "),
        ("import beside\n", "is imported by `from . import beside`"),
        ("from . import beside\n", "beside.py:2: not imported: ZeroDivisionError: division by zero"),
        ("raise SystemExit(1)\n", "scorer.py:1: not imported: SystemExit: 1"),
        ("def __getattr__(name):\n    exit(2)\n", "scorer.py:1: `request` cannot be looked at: SystemExit: 2"),
        (
            "class E(Exception):\n    def __str__(self):\n        exit(2)\n\nraise E\n",
            "scorer.py:5: not imported: E",
        ),
    ],
)
def test_check_imports_an_adapter_and_names_the_lines_of_both_files(
    tmp_path: Path, adapter: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, "\n1 / 0\n", "beside.py")
    file = written(tmp_path, adapter)
    config = tmp_path / "g.yaml"
    config.write_text(configuration("http://127.0.0.1:1", Path(file.name)))
    others = modules_of_adapters()
    assert main(["check", str(config)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"{config}:7: backends.main.adapter: {tmp_path}/")
    assert words in line
    assert modules_of_adapters() <= others
    assert main(["serve", "--config", str(config)]) == 2
    assert words in capfd.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"adapter": None}, "backends.main.adapter: missing; expected the Python file with `request` and `answer`"),
        ({"adapter": "gone.py"}, "backends.main.adapter: no such file: "),
        ({"dialect": "mlflow"}, "backends.main.adapter: this is for `dialect: python`, and `dialect` is mlflow"),
        ({"health": {}}, "backends.main.health: expected its `path`"),
        ({"models": {"m": {"inputs": MODEL["inputs"]}}}, "backends.main.models.m.outputs: missing; expected what the"),
        ({"models": {"m": {"outputs": {"y": {}}}}}, "backends.main.models.m.outputs.y: expected its `datatype`"),
        (
            {"models": {"m": {"outputs": {"y": {"datatype": "BYTES", "encoding": "base64"}}}}},
            "backends.main.models.m.outputs.y.encoding: the adapter writes and reads the server's JSON",
        ),
        ({"bytes": "base64"}, "warning: backends.main.bytes: no effect: the adapter gets the values"),
        ({"binary": "auto"}, "backends.main.binary: this is for servers of V2"),
        (
            {"models": {"m": {**MODEL, "answer": {"y": "$.y"}}}},
            "`dialect` is python",
        ),
        ({"models": {}}, "backends.main.dialect: every inference gets 404: describe the models in `models`"),
    ],
)
def test_check_says_what_does_not_fit_an_adapter(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    written(tmp_path, FUNCTIONS)
    backend = yaml.safe_load(settings_of(Path("scorer.py"))) | {"endpoints": ["http://127.0.0.1:1"]} | change
    config = tmp_path / "g.yaml"
    config.write_text(yaml.safe_dump({"backends": {"main": backend}}, sort_keys=False))
    (line,) = inspect(config).texts()
    assert words in line
