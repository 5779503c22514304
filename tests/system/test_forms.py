"""The other forms of a body: raw binary (protocol section 5), compressed (7), vendors' content types (6), promoted."""

import asyncio
import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest

from gateway.demo import JsonServer
from tests.conftest import HEADER_LENGTH, Client, Connection, lying, running, tensor

X = np.arange(8, dtype=np.float32)
HEADER = {"inputs": [tensor("x", X, "FP32")], "parameters": {"binary_data_output": True}}
TEXT = json.dumps(HEADER).encode()


class Model:
    """A scripted backend with metadata, which echoes its inputs, and counts."""

    def __init__(self, *inputs: dict[str, Any], outputs: Any = (), status: str = "200 OK") -> None:
        self.metadata = json.dumps({"name": "m", "inputs": inputs, "outputs": outputs}).encode()
        self.status = status
        self.asked: list[bytes] = []
        self.inferred: list[Any] = []
        self.release = asyncio.Event()
        self.release.set()

    async def __call__(self, connection: Connection) -> None:
        while True:
            await connection.read_request()
            method, path, _ = connection.head.split(b" ", 2)
            if method == b"GET":
                self.asked.append(connection.head)
                await self.release.wait()
                await connection.answer(self.metadata, self.status)
            elif path.endswith(b"/infer"):
                request = json.loads(connection.body)
                self.inferred.append(request)
                await connection.answer(json.dumps({"outputs": request["inputs"]}).encode())
            else:
                await connection.answer(b"{}")


def described(datatype: str, *shape: int, name: str = "x") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


@pytest.mark.rule("1.4", "5")
@pytest.mark.parametrize(
    ("model", "body", "shape"),
    [
        (described("FP32", -1, 4), bytes(16), [1, 4]),
        (described("FP32", 2, 2), bytes(16), [2, 2]),
        (described("FP32", -1, -1), bytes(16), [1, 4]),
        (described("FP32", -1, 2, -1), bytes(24), [1, 2, 3]),
        (described("UINT8", -1), b"", [0]),
        (described("BOOL"), b"\x01", []),
        (described("BYTES", 1), b"any \xc3\xa9", [1]),
        (described("BYTES", -1, 1), b"", [1, 1]),
    ],
)
async def test_raw_body_becomes_the_only_input(model: dict[str, Any], body: bytes, shape: list[int]) -> None:
    backend = Model(model)
    async with lying(backend) as liar, running(liar.url) as client:
        reply = await client.infer(body, 0)
        assert reply.status == 200
        prefix = len(body).to_bytes(4, "little") if model["datatype"] == "BYTES" else b""
        assert reply.binary == prefix + body
        assert backend.inferred[0]["inputs"][0]["shape"] == shape
        assert "parameters" not in backend.inferred[0]


@pytest.mark.rule("5")
@pytest.mark.parametrize(
    ("models", "body", "words"),
    [
        ([described("FP32", 4)], bytes(20), "expected 16 bytes, got 20"),
        ([described("FP32", -1, 3)], bytes(16), "expected a multiple of 12 bytes, got 16"),
        ([described("FP32", 3, -1, -1)], bytes(16), "more than one variable dimension"),
        ([described("FP32", -1, -1, -1)], bytes(16), "more than one variable dimension besides the batch"),
        ([described("FP32", -1), described("FP32", -1, name="z")], bytes(16), "it names 2 inputs; a raw"),
        ([described("BYTES", 2)], b"abc", "one element"),
        ([], bytes(16), "a raw request needs the model's metadata"),
        ([described("NEW", 1)], bytes(16), "Invalid enum value 'NEW'"),
    ],
)
async def test_raw_bodies_that_do_not_fit_are_refused(models: list[Any], body: bytes, words: str) -> None:
    backend = Model(*models)
    async with lying(backend) as liar, running(liar.url) as client:
        reply = await client.infer(body, 0)
        assert reply.status == 400
        assert words in reply.error
        assert not backend.inferred


@pytest.mark.rule("5")
async def test_metadata_of_a_raw_request_may_fail() -> None:
    missing = Model(described("FP32", 1), status="404 Not Found")
    missing.metadata = b'{"error":"no such model"}'
    async with lying(missing) as liar, running(liar.url) as client:
        reply = await client.infer(bytes(4), 0)
        assert (reply.status, reply.error) == (404, "no such model")
        missing.metadata = b"<html>"
        missing.status = "200 OK"
        reply = await client.infer(bytes(4), 0)
        assert (reply.status, "metadata" in reply.error) == (400, True)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        ("400 Bad", b'{"error":{"code":1}}', b'{"error":{"code":1}}'),
        ("500 Oops", b"x" * 2_000_000, b'{"error":"backend \\"main\\" answered 500: ' + b"x" * 65536 + b'"}'),
        ("302 Found", b"", None),
    ],
)
async def test_errors_of_the_metadata_are_those_of_the_backend(
    status: str, body: bytes, expected: bytes | None
) -> None:
    backend = Model(status=status)
    backend.metadata = body
    async with lying(backend) as liar, running(liar.url) as client:
        reply = await client.infer(bytes(4), 0)
        assert reply.status == (502 if expected is None else int(status[:3]))
        assert expected is None or reply.body == expected


async def test_the_time_for_metadata_is_part_of_the_clients_time() -> None:
    backend = Model()
    backend.release.clear()
    half = np.array([0.5], np.float16)
    header = {"inputs": [tensor("x", half, "FP16")]}
    timeouts = "half_precision: promote\ntimeouts: {total: 100ms}"
    async with lying(backend) as liar, running(liar.url, backend=timeouts) as client:
        reply = await client.infer_binary(header, half.tobytes())
        assert (reply.status, "timeouts.total" in reply.error) == (504, True)
        assert not backend.inferred


@pytest.mark.rule("5")
async def test_metadata_is_asked_once_for_many_and_forgotten_after_a_load() -> None:
    backend = Model(described("FP32", -1))
    backend.release.clear()
    async with lying(backend) as liar, running(liar.url) as client:
        waiting = [asyncio.create_task(client.infer(bytes(16), 0)) for _ in range(5)]
        while not backend.asked:
            await asyncio.sleep(0.001)
        waiting[0].cancel()
        backend.release.set()
        assert [reply.status for reply in await asyncio.gather(*waiting[1:])] == [200] * 4
        assert len(backend.asked) == 1
        assert (await client.infer(bytes(16), 0)).status == 200
        assert len(backend.asked) == 1
        await client.request("POST", "/v2/repository/models/other/load")
        await client.infer(bytes(16), 0)
        assert len(backend.asked) == 1
        await client.request("POST", "/v2/repository/models/identity/load")
        await client.infer(bytes(16), 0)
        assert len(backend.asked) == 2


@pytest.mark.rule("5")
async def test_metadata_is_asked_with_the_clients_headers_on_the_same_version_path() -> None:
    backend = Model(described("FP32", -1))
    async with lying(backend) as liar, running(liar.url) as client:
        headers = {HEADER_LENGTH: "0", "Authorization": "Bearer t"}
        path = "/v2/models/a%20b/versions/3/infer?x=1"
        await client.request("POST", path, data=bytes(4), headers=headers)
        (asked,) = backend.asked
        assert asked.startswith(b"GET /v2/models/a%20b/versions/3 HTTP/1.1\r\n")
        assert b"Authorization: Bearer t\r\n" in asked
        assert HEADER_LENGTH.lower().encode() not in asked.lower()
        await client.request("POST", path, data=bytes(4), headers={**headers, "Authorization": "Bearer u"})
        assert len(backend.asked) == 2


@pytest.mark.rule("1.3", "7")
@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(TEXT + X.tobytes())),
        ("GZip", gzip.compress(TEXT) + gzip.compress(X.tobytes())),
        ("deflate", zlib.compress(TEXT + X.tobytes())),
        ("identity", TEXT + X.tobytes()),
        ("identity, gzip", gzip.compress(TEXT + X.tobytes())),
    ],
)
async def test_compressed_requests_are_read(client: Client, server: JsonServer, coding: str, body: bytes) -> None:
    reply = await client.infer(body, len(TEXT), headers={"Content-Encoding": coding})
    assert (reply.status, reply.binary) == (200, X.tobytes())
    assert "content-encoding" not in {name.lower() for name, _ in server.headers}


@pytest.mark.rule("7")
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_broken_compressed_requests_are_refused(client: Client, server: JsonServer, coding: str) -> None:
    body = (gzip.compress if coding == "gzip" else zlib.compress)(TEXT + X.tobytes())
    for broken in (body[:-1], body[:-20], b"", b"x" + body, body + b"x", body[:10] + b"\xff" * 5 + body[15:]):
        reply = await client.infer(broken, len(TEXT), headers={"Content-Encoding": coding})
        assert reply.status == 400, broken
        assert reply.error
    assert server.inferences == 0


@pytest.mark.rule("7")
@pytest.mark.parametrize("coding", ["br", "gzip, deflate", "zstd"])
async def test_other_codings_are_refused_with_those_that_work(client: Client, coding: str) -> None:
    reply = await client.infer(b"x", 1, headers={"Content-Encoding": coding})
    assert reply.status == 415
    assert reply.headers["Accept-Encoding"] == "gzip, deflate"
    assert coding in reply.error


@pytest.mark.rule("7")
async def test_a_compressed_pure_json_request_is_inflated_too(client: Client, server: JsonServer) -> None:
    text = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()
    reply = await client.infer(gzip.compress(text), headers={"Content-Encoding": "gzip"})
    assert (reply.status, server.request_bytes) == (200, len(text))


@pytest.mark.rule("7")
async def test_bombs_end_at_the_limit(server: JsonServer) -> None:
    bomb = gzip.compress(bytes(50 * 1024 * 1024))
    async with running(server.url, "limits: {request_body: 1MiB}\n") as client:
        reply = await client.infer(bomb, 10, headers={"Content-Encoding": "gzip"})
        assert reply.status == 413
        assert "after decompression" in reply.error
        assert server.inferences == 0


@pytest.mark.rule("7")
@pytest.mark.parametrize(
    ("asked", "coding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("gzip;q=0.1, deflate;q=0.5", "deflate"),
        ("br, *", "gzip"),
        ("br", None),
        ("gzip;q=0", None),
        ("", None),
        (None, None),
    ],
)
async def test_replies_are_compressed_when_configured_and_asked_for(
    server: JsonServer, asked: str | None, coding: str | None
) -> None:
    array = np.zeros(50_000, np.float32)
    header = {"inputs": [tensor("x", array, "FP32")], "parameters": {"binary_data_output": True}}
    headers = {} if asked is None else {"Accept-Encoding": asked}
    async with running(server.url, "compression: {responses: true, min_size: 1KiB}\n") as client:
        client.session.headers.clear()
        client.session._skip_auto_headers = frozenset({"Accept-Encoding", "Content-Type"})  # type: ignore[arg-type]
        reply = await client.infer_binary(header, array.tobytes(), headers=headers)
        assert reply.headers.get("Content-Encoding") == coding
        assert reply.headers["Vary"] == "Accept-Encoding"
        if coding is not None:
            assert len(reply.body) < array.nbytes // 10
            reply.body = (gzip.decompress if coding == "gzip" else zlib.decompress)(reply.body)
        assert reply.binary == array.tobytes()
        small = await client.infer_binary(HEADER, X.tobytes(), headers=headers)
        assert "Content-Encoding" not in small.headers
        error = await client.infer(b"", headers=headers)
        assert error.error == "empty request body"


@pytest.mark.rule("7")
async def test_replies_are_not_compressed_unless_configured(client: Client) -> None:
    array = np.zeros(50_000, np.float32)
    header = {"inputs": [tensor("x", array, "FP32")], "parameters": {"binary_data_output": True}}
    reply = await client.infer_binary(header, array.tobytes(), headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in reply.headers
    assert reply.binary == array.tobytes()


@pytest.mark.rule("1.6", "6")
@pytest.mark.parametrize("vendor", ["sagemaker", "vertex-ai"])
async def test_vendor_content_types_carry_the_length_in_both_directions(client: Client, vendor: str) -> None:
    media_type = f"application/vnd.{vendor}-triton.binary+json"
    headers = {"Content-Type": f"{media_type}; json-header-size={len(TEXT)}"}
    reply = await client.infer(TEXT + X.tobytes(), headers=headers)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == f"{media_type};json-header-size={reply.headers[HEADER_LENGTH]}"
    assert reply.binary == X.tobytes()
    wins = await client.infer(
        TEXT + X.tobytes(), len(TEXT), headers={"Content-Type": f"{media_type};json-header-size=5"}
    )
    assert wins.status == 200
    json_out = {"inputs": HEADER["inputs"]}
    headers = {"Content-Type": f"{media_type};json-header-size={len(json.dumps(json_out))}"}
    plain = await client.infer(json.dumps(json_out).encode() + X.tobytes(), headers=headers)
    assert plain.headers["Content-Type"] == "application/json"
    bad = await client.infer(TEXT, headers={"Content-Type": f"{media_type};json-header-size=x"})
    assert (bad.status, "json-header-size" in bad.error) == (400, True)


@pytest.mark.parametrize(("declared", "returned"), [("FP16", "FP16"), ("FP32", "FP32"), (None, "FP32")])
async def test_promoted_outputs_come_back_as_the_model_declares(declared: str | None, returned: str) -> None:
    half = np.array([0.1, -0.0, 65504, 6e-8], np.float16)
    backend = Model(outputs=[described(declared, -1)] if declared else [])
    async with lying(backend) as liar, running(liar.url, backend="half_precision: promote") as client:
        header = {"inputs": [tensor("x", half, "FP16")], "parameters": {"binary_data_output": True}}
        for _ in range(2):
            reply = await client.infer_binary(header, half.tobytes())
            assert reply.json["outputs"][0]["datatype"] == returned
            assert reply.binary == half.astype(np.float16 if returned == "FP16" else np.float32).tobytes()
        assert backend.inferred[0]["inputs"][0]["datatype"] == "FP32"
        assert len(backend.asked) == 1


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed", "403 Forbidden", "501 Not Implemented"])
async def test_promotion_works_without_metadata(status: str) -> None:
    half = np.array([0.5], np.float16)
    backend = Model(status=status)
    async with lying(backend) as liar, running(liar.url, backend="half_precision: promote") as client:
        header = {"inputs": [tensor("x", half, "FP16")], "parameters": {"binary_data_output": True}}
        reply = await client.infer_binary(header, half.tobytes())
        assert reply.json["outputs"][0]["datatype"] == "FP32"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("500 Internal Server Error", 500),
        ("503 Service Unavailable", 503),
        ("429 Too Many Requests", 429),
        ("cut off", 502),
    ],
)
async def test_an_output_does_not_change_its_datatype_because_metadata_failed_once(status: str, expected: int) -> None:
    half = np.array([0.5], np.float16)
    model = Model(outputs=[described("FP16", -1)], status=status)

    async def backend(connection: Connection) -> None:
        if status == "cut off" and not model.asked:
            await connection.read_request()
            model.asked.append(connection.head)
            await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            return
        await model(connection)

    async with lying(backend) as liar, running(liar.url, backend="half_precision: promote") as client:
        header = {"inputs": [tensor("x", half, "FP16")], "parameters": {"binary_data_output": True}}
        failed = await client.infer_binary(header, half.tobytes())
        assert (failed.status, model.inferred) == (expected, [])
        model.status = "200 OK"
        reply = await client.infer_binary(header, half.tobytes())
        assert (reply.json["outputs"][0]["datatype"], reply.binary) == ("FP16", half.tobytes())
