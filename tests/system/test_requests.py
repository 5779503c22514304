"""Requests on the wire, rule by rule of protocol sections 1 to 4 and 6, against the embedded JSON-only server."""

import asyncio
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway.demo import JsonServer
from tests.conftest import HEADER_LENGTH, Client, answering, lying, running, tensor

X = np.array([[0.1, -0.0], [1e-45, 3.4e38]], np.float32)
FP32 = {"inputs": [tensor("x", X, "FP32")], "outputs": [{"name": "x", "parameters": {"binary_data": True}}]}


def encoded(header: dict[str, Any], *blobs: bytes) -> tuple[bytes, int]:
    text = json.dumps(header).encode()
    return text + b"".join(blobs), len(text)


@pytest.mark.rule("4.3", "4.4")
async def test_binary_in_binary_out(client: Client) -> None:
    reply = await client.infer_binary(FP32, X.tobytes())
    assert reply.status == 200
    assert reply.binary == X.tobytes()
    assert reply.headers.getall("Content-Type") == ["application/octet-stream"]
    assert len(reply.headers.getall(HEADER_LENGTH)) == 1
    assert int(reply.headers["Content-Length"]) == len(reply.body)
    assert reply.json["outputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}}
    ]
    assert reply.json["model_name"] == "identity"


@pytest.mark.rule("1.1")
@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json"}])
async def test_content_type_decides_nothing(client: Client, headers: dict[str, str]) -> None:
    body, length = encoded(FP32, X.tobytes())
    reply = await client.infer(body, headers={**headers, HEADER_LENGTH.upper(): str(length)})
    assert (reply.status, reply.binary) == (200, X.tobytes())


@pytest.mark.rule("1.2")
@pytest.mark.parametrize("value", ["abc", "-1", "99999999999", "1.0", "", "0x10", "+5", "12 3"])
async def test_bad_header_length_is_refused_and_not_sent_on(client: Client, server: JsonServer, value: str) -> None:
    body, _ = encoded(FP32, X.tobytes())
    reply = await client.infer(body, value)
    assert reply.status == 400
    assert HEADER_LENGTH in reply.error
    assert server.inferences == 0


@pytest.mark.rule("1.2")
async def test_connection_stays_usable_after_a_refusal(client: Client) -> None:
    body, length = encoded(FP32, X.tobytes())
    assert client.session.connector is not None
    for _ in range(3):
        assert (await client.infer(body, length + 100000)).status == 400
        assert (await client.infer(body, length)).status == 200
    assert len(client.session.connector._conns) == 1


@pytest.mark.rule("1.2", "1.6")
async def test_two_equal_header_lengths_are_one_and_two_different_are_refused(client: Client) -> None:
    body, length = encoded(FP32, X.tobytes())
    equal = await client.infer(body, headers=[(HEADER_LENGTH, str(length)), (HEADER_LENGTH, str(length))])
    assert equal.status == 200


@pytest.mark.rule("1.5", "1.7")
@pytest.mark.parametrize(
    ("cut", "words"),
    [(slice(0, -1), ["input 'x'", "1 bytes missing"]), (slice(0, -16), ["input 'x'", "16 bytes missing"])],
)
async def test_missing_bytes_are_named(client: Client, server: JsonServer, cut: slice, words: list[str]) -> None:
    body, length = encoded(FP32, X.tobytes())
    reply = await client.infer(body[cut], length)
    assert reply.status == 400
    assert all(word in reply.error for word in words)
    assert server.inferences == 0


@pytest.mark.rule("1.5")
async def test_left_over_bytes_are_counted(client: Client, server: JsonServer) -> None:
    body, length = encoded(FP32, X.tobytes())
    reply = await client.infer(body + b"!", length)
    assert reply.status == 400
    assert "1 bytes left over" in reply.error
    assert server.inferences == 0


async def test_request_in_one_byte_chunks(client: Client) -> None:
    body, length = encoded(FP32, X.tobytes())

    async def drip() -> Any:
        for offset in range(len(body)):
            yield body[offset : offset + 1]

    reply = await client.request("POST", "/v2/models/identity/infer", data=drip(), headers={HEADER_LENGTH: str(length)})
    assert (reply.status, reply.binary) == (200, X.tobytes())


async def test_expect_100_continue_is_answered(client: Client) -> None:
    body, length = encoded(FP32, X.tobytes())
    reply = await client.infer(body, length, expect100=True)
    assert (reply.status, reply.binary) == (200, X.tobytes())


async def test_expect_100_continue_is_not_answered_when_the_body_is_too_large(server: JsonServer) -> None:
    async with running(server.url, "limits: {request_body: 1KiB}\n") as client:
        host, port = client.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\n"
            b"Expect: 100-continue\r\nContent-Length: 2000\r\n\r\n"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413 ")
        writer.close()


@pytest.mark.rule("2.7", "3.2")
async def test_binary_and_json_inputs_together(client: Client, server: JsonServer) -> None:
    half = np.array([[1.1, 2.22], [3.345, 4.34]], np.float16)
    truth = np.array([True, False, True])
    header = {
        "model_name": "identity",
        "id": "2ja0ls9j1309",
        "inputs": [
            tensor("input0", half, "FP16"),
            {"name": "input1", "shape": [2, 2], "datatype": "UINT32", "data": [[1, 2], [3, 4]]},
            tensor("input2", truth, "BOOL"),
        ],
        "outputs": [
            {"name": "input0", "parameters": {"binary_data": True}},
            {"name": "input1"},
            {"name": "input2", "parameters": {"binary_data": True}},
        ],
    }
    reply = await client.infer_binary(header, half.tobytes(), truth.tobytes())
    assert reply.status == 200
    assert reply.binary == half.tobytes() + truth.tobytes()
    assert reply.json["id"] == "2ja0ls9j1309"
    assert reply.json["outputs"][1]["data"] == [[1, 2], [3, 4]]
    sent = server.last_request
    assert sent["outputs"] == [{"name": "input0"}, {"name": "input1"}, {"name": "input2"}]
    assert [list(item) for item in sent["inputs"]] == [["name", "shape", "datatype", "data"]] * 3
    assert sent["inputs"][2]["data"] == [True, False, True]


@pytest.mark.rule("4.1")
@pytest.mark.parametrize(
    ("top", "outputs", "binary"),
    [
        ({}, None, []),
        ({}, [("a", None), ("b", None)], []),
        ({}, [("a", True), ("b", False)], ["a"]),
        ({"binary_data_output": True}, None, ["a", "b"]),
        ({"binary_data_output": True}, [("a", False), ("b", None)], ["b"]),
        ({"binary_data_output": False}, [("a", True)], ["a"]),
        ({"binary_data_output": None}, [("a", None)], []),
    ],
)
async def test_flags_decide_output_by_output(client: Client, top: Any, outputs: Any, binary: list[str]) -> None:
    blobs: dict[str, npt.NDArray[Any]] = {"a": np.array([1, 2], np.int32), "b": np.array([3.5], np.float64)}
    header: dict[str, Any] = {"inputs": [tensor("a", blobs["a"], "INT32"), tensor("b", blobs["b"], "FP64")]}
    if top:
        header["parameters"] = top
    if outputs is not None:
        header["outputs"] = [
            {"name": name} if flag is None else {"name": name, "parameters": {"binary_data": flag}}
            for name, flag in outputs
        ]
    reply = await client.infer_binary(header, blobs["a"].tobytes(), blobs["b"].tobytes())
    assert reply.status == 200
    got = {item["name"]: item for item in reply.json["outputs"]}
    assert [name for name, item in got.items() if "data" not in item] == binary
    assert list(got) == [name for name, _ in outputs or [("a", 0), ("b", 0)]]
    if binary:
        assert reply.binary == b"".join(blobs[name].tobytes() for name in binary)
    else:
        assert HEADER_LENGTH not in reply.headers
        assert reply.headers.getall("Content-Type") == ["application/json"]


@pytest.mark.rule("4.1")
async def test_json_in_binary_out(client: Client) -> None:
    header = {
        "inputs": [{"name": "x", "datatype": "INT64", "shape": [2], "data": [2**53 + 1, -1]}],
        "parameters": {"binary_data_output": True, "custom": 5},
    }
    reply = await client.infer(json.dumps(header).encode())
    assert reply.binary == np.array([2**53 + 1, -1]).tobytes()


@pytest.mark.rule("3.6")
async def test_pure_json_crosses_byte_for_byte_and_unjudged(client: Client, server: JsonServer) -> None:
    text = b'{ "inputs": [{"name":"x", "datatype":"FP32","shape":[1],"data":[0.10000000149011612]} ],"id":"a"}'
    reply = await client.infer(text)
    assert server.request_bytes == len(text)
    assert reply.json["outputs"][0]["data"] == [0.10000000149011612]
    broken = await client.infer(b"{no json at all")
    assert broken.status == 400
    assert "JSONDecodeError" in broken.error  # the backend's words


@pytest.mark.rule("1.2")
async def test_header_length_equal_to_the_body_is_legal(client: Client) -> None:
    text = json.dumps({"id": "", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]}]}).encode()
    reply = await client.infer(text, len(text))
    assert reply.status == 200
    assert reply.json["outputs"][0]["data"] == [1.5]
    assert HEADER_LENGTH not in reply.headers


@pytest.mark.rule("1.7", "2.1", "2.2", "2.3")
@pytest.mark.parametrize(
    ("entry", "blob", "words"),
    [
        ({"data": [1.0]}, b"1234", "Input must set only one of the following fields"),
        ({"parameters": {}}, b"", "Input must set only one of the following fields"),
        ({"parameters": {"binary_data_size": 12}}, b"1" * 12, "expected 16, got 12"),
        ({"parameters": {"binary_data_size": -1}}, b"", "binary_data_size must be an integer >= 0, got -1"),
        ({"parameters": {"binary_data_size": 16.0}}, b"1" * 16, "got 16.0"),
        ({"parameters": {"binary_data_size": "16"}}, b"1" * 16, 'got "16"'),
        ({"parameters": {"binary_data_size": True}}, b"1" * 16, "got true"),
        ({"parameters": {"binary_data_size": 2**64}}, b"1" * 16, "expected 16, got 18446744073709551616"),
        ({"shape": [-1]}, b"1" * 4, "shape must be a list"),
        ({"shape": [2.0]}, b"1" * 4, "shape must be a list"),
        ({"shape": ["2"]}, b"1" * 4, "shape must be a list"),
        ({"shape": [True]}, b"1" * 4, "shape must be a list"),
        ({"shape": 4}, b"1" * 4, "shape must be a list"),
        ({"shape": [16, 2**60 + 2]}, b"1" * 4, "binary_data_size: expected"),
        ({"shape": [65536] * 3}, b"1" * 4, "binary_data_size: expected"),
        ({"datatype": "FOO"}, b"1" * 4, "datatype must be one of BOOL UINT8"),
        ({"datatype": "fp32"}, b"1" * 4, "upper case"),
        ({"datatype": 7}, b"1" * 4, "got 7"),
        ({"datatype": None}, b"1" * 4, "got null"),
        ({"name": 5}, b"1" * 4, "name must be a string"),
    ],
)
async def test_bad_inputs_are_refused_by_name(
    client: Client, server: JsonServer, entry: dict[str, Any], blob: bytes, words: str
) -> None:
    good = {"name": "x", "shape": [2, 2], "datatype": "FP32", "parameters": {"binary_data_size": len(blob)}}
    reply = await client.infer_binary({"inputs": [{**good, **entry}]}, blob)
    assert reply.status == 400
    assert words in reply.error
    assert "input" in reply.error
    assert server.inferences == 0


@pytest.mark.rule("1.6", "2.6", "4.2")
@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"inputs": [{"name": "x", "data": [1]}, {"name": "x", "data": [1]}]}, "input 'x' is given more than once"),
        ({"inputs": [], "outputs": [{"name": "y"}, {"name": "y"}]}, "output 'y' is requested more than once"),
        ({"inputs": [], "parameters": {"binary_data_output": 1}}, "binary_data_output: expected true or false, got 1"),
        ({"inputs": [], "outputs": [{"name": "y", "parameters": {"binary_data": "yes"}}]}, "binary_data"),
        ({"input": []}, "no `inputs` array"),
        ({"inputs": {}}, "`inputs` must be an array"),
        ([], "got '[]'"),
    ],
)
async def test_bad_headers_are_refused(client: Client, server: JsonServer, header: Any, words: str) -> None:
    reply = await client.infer_binary(header)
    assert reply.status == 400
    assert words in reply.error
    assert server.inferences == 0


@pytest.mark.rule("1.3")
async def test_blanks_behind_the_json_count_as_header(client: Client) -> None:
    body, length = encoded(FP32)
    reply = await client.infer(body + b" \n " + X.tobytes(), length + 3)
    assert (reply.status, reply.binary) == (200, X.tobytes())


@pytest.mark.rule("2.4")
@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"\x02\0\0\0a", "input 'x'"),
        (b"\xff\xff\xff\xff", "input 'x'"),
        (b"\x01\0\0\0a\x01\0\0\0b!!", "input 'x'"),
        (b"\x01\0\0\0a", "expected 2 elements, which take at least 8 bytes"),
        (b"\0\0\0\0" * 3, "expected 2 elements, which end after 8 bytes"),
    ],
)
async def test_elements_that_do_not_fill_their_blob_are_refused(
    client: Client, server: JsonServer, blob: bytes, words: str
) -> None:
    entry = {"name": "x", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": len(blob)}}
    reply = await client.infer_binary({"inputs": [entry]}, blob)
    assert reply.status == 400
    assert words in reply.error
    assert server.inferences == 0


@pytest.mark.rule("2.5", "3.3")
@pytest.mark.parametrize(
    ("datatype", "blob", "text"),
    [
        ("BOOL", b"\0\1\2\xff", b"[false,true,true,true]"),
        ("UINT64", b"\xff" * 8 + bytes(8), b"[18446744073709551615,0]"),
        ("INT64", (2**53 + 1).to_bytes(8, "little"), b"[9007199254740993]"),
        ("FP32", np.array([0.1, -0.0], np.float32).tobytes(), b"[0.1,-0.0]"),
        ("BF16", b"\x80\x3f\xcd\x3d", b"[1.0,0.100097656]"),
    ],
)
async def test_elements_are_flat_and_exact_in_the_json(datatype: str, blob: bytes, text: bytes) -> None:
    n_elements = text.count(b",") + 1
    entry = {"name": "x", "shape": [n_elements, 1], "datatype": datatype}
    header = {"inputs": [{**entry, "parameters": {"binary_data_size": len(blob)}}]}
    async with lying(answering(b'{"outputs":[]}')) as liar, running(liar.url) as client:
        assert (await client.infer_binary(header, blob)).status == 200
        assert liar.connections[0].body.replace(b" ", b"").endswith(b'"data":%b}]}' % text)


@pytest.mark.rule("2.8")
async def test_null_parameters_null_outputs_and_an_empty_id_are_as_if_absent(client: Client) -> None:
    header = {"id": "", "parameters": None, "outputs": None, **{"inputs": FP32["inputs"]}}
    reply = await client.infer_binary(header, X.tobytes())
    assert (reply.status, HEADER_LENGTH in reply.headers) == (200, False)
    assert [item["name"] for item in reply.json["outputs"]] == ["x"]


@pytest.mark.rule("11.4")
async def test_what_is_left_out_does_not_reach_the_backend(server: JsonServer) -> None:
    async with running(server.url, backend="leave_out: [id, parameters]") as client:
        header = {"id": "7", "inputs": FP32["inputs"], "parameters": {"custom": 5}}
        reply = await client.infer_binary(header, X.tobytes())
        assert (reply.status, reply.json["id"]) == (200, "7")
        assert list(server.last_request) == ["inputs"]
        entry = b'{"data":[1.50],"datatype":"FP32","shape":[1],"name":"x"}'
        assert (await client.infer(b'{"parameters":{},"inputs":[%b],"id":"7","more":1}' % entry)).status == 200
        assert list(server.last_request) == ["inputs", "more"]
        refused = await client.infer(b'{"inputs":7,"id":"7"}')  # what cannot be read crosses, and the server says why
        assert (refused.status, server.inferences) == (400, 3)


@pytest.mark.rule("1.6")
async def test_empty_body_is_refused(client: Client) -> None:
    reply = await client.infer(b"")
    assert (reply.status, reply.error) == (400, "empty request body")


@pytest.mark.rule("6")
async def test_missing_header_length_is_found_and_counted(client: Client) -> None:
    body, _ = encoded({"inputs": FP32["inputs"]}, X.tobytes())
    reply = await client.infer(body, headers={"Content-Type": "application/json"})
    assert reply.status == 200
    assert reply.headers.getall("Content-Type") == ["application/json"]
    assert np.array(reply.json["outputs"][0]["data"], np.float32).tobytes() == X.tobytes()
    assert (await client.metrics())["tensor_gateway_header_recovered_total"] == 1


@pytest.mark.rule("6")
@pytest.mark.parametrize("blob", [b" " * 16, b"}" * 16, b'{"a":1}         '])
async def test_blobs_that_look_like_json_do_not_confuse_the_scan(client: Client, blob: bytes) -> None:
    body, _ = encoded(
        {"inputs": [{"name": "x", "shape": [16], "datatype": "UINT8", "parameters": {"binary_data_size": 16}}]}, blob
    )
    reply = await client.infer(body)
    assert bytes(reply.json["outputs"][0]["data"]) == blob


@pytest.mark.rule("1.7", "6")
@pytest.mark.parametrize("blob", [b"", b"1" * 15, b"1" * 17])
async def test_sizes_that_do_not_add_up_name_the_missing_header(
    client: Client, server: JsonServer, blob: bytes
) -> None:
    body, _ = encoded({"inputs": FP32["inputs"]}, blob)
    reply = await client.infer(body)
    assert reply.status == 400
    assert HEADER_LENGTH in reply.error
    assert "missing" in reply.error
    assert server.inferences == 0


@pytest.mark.rule("6")
async def test_recovery_can_be_switched_off(server: JsonServer) -> None:
    async with running(server.url, "recover_header_length: false\n") as client:
        body, length = encoded(FP32, X.tobytes())
        refused = await client.infer(body)
        assert refused.status == 400
        assert "missing" in refused.error
        assert (await client.infer(body, length)).status == 200


@pytest.mark.rule("3.4")
@pytest.mark.parametrize(
    ("policy", "values", "sent"),
    [
        ("reject", [1, np.nan], None),
        ("reject", [np.inf, 1], None),
        ("as_null", [1, np.nan], [1.0, None]),
        ("as_null", [1, -np.inf], None),
    ],
)
async def test_nonfinite_policies(server: JsonServer, policy: str, values: list[float], sent: Any) -> None:
    array = np.array(values, np.float32)
    async with running(server.url, backend=f"nonfinite: {policy}") as client:
        reply = await client.infer_binary({"inputs": [tensor("x", array, "FP32")]}, array.tobytes())
        if sent is None:
            assert reply.status == 400
            assert "input 'x'" in reply.error
            assert policy in reply.error
            assert server.inferences == 0
        else:
            assert reply.status == 200
            assert server.last_request["inputs"][0]["data"] == sent
            assert (await client.metrics())['tensor_gateway_nonfinite_values_total{direction="request"}'] == 1


@pytest.mark.rule("3.5")
async def test_bytes_as_base64_and_half_precision_promoted(server: JsonServer) -> None:
    async with running(server.url, backend="bytes: base64\nhalf_precision: promote") as client:
        half = np.array([0.1, -0.0], np.float16)
        blob = b"\x02\x00\x00\x00\xff\x00"
        text = {"name": "t", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(blob)}}
        reply = await client.infer_binary({"inputs": [tensor("h", half, "FP16"), text]}, half.tobytes(), blob)
        assert reply.status == 200
        sent_half, sent_text = server.last_request["inputs"]
        assert sent_half["datatype"] == "FP32"
        assert np.array(sent_half["data"], np.float16).tobytes() == half.tobytes()
        assert sent_text["data"] == ["/wA="]
        assert sent_text["parameters"] == {"content_type": "base64"}


@pytest.mark.rule("3.5")
async def test_a_clients_own_content_type_wins_over_base64(server: JsonServer) -> None:
    element = b"2026-11-23T08:00:00Z"
    blob = len(element).to_bytes(4, "little") + element
    parameters = {"binary_data_size": len(blob), "content_type": "datetime"}
    text = {"name": "t", "shape": [1], "datatype": "BYTES", "parameters": parameters}
    async with running(server.url, backend="bytes: base64") as client:
        reply = await client.infer_binary({"inputs": [text]}, blob)
        assert reply.status == 200
        (sent,) = server.last_request["inputs"]
        assert (sent["data"], sent["parameters"]) == (["2026-11-23T08:00:00Z"], {"content_type": "datetime"})
        refused = await client.infer_binary({"inputs": [text]}, blob[:-1] + b"\xff")
        assert refused.status == 400
        assert "input 't' (BYTES, shape [1]): element 0 is not UTF-8" in refused.error
        assert 'the content type that the client names, "datetime",' in refused.error
        assert server.inferences == 1


@pytest.mark.parametrize("framing", ["chunked", "content-length"])
async def test_large_json_is_streamed_in_the_framing_of_the_backend(server: JsonServer, framing: str) -> None:
    array = np.random.default_rng(3).standard_normal((300, 1000)).astype(np.float32)
    async with running(server.url, backend=f"framing: {framing}") as client:
        header = {"inputs": [tensor("x", array, "FP32")], "parameters": {"binary_data_output": True}}
        reply = await client.infer_binary(header, array.tobytes())
        assert reply.binary == array.tobytes()
    names = {name.lower(): value for name, value in server.headers}
    assert ("transfer-encoding" in names) == (framing == "chunked")
    assert (names.get("content-length") == str(server.request_bytes)) == (framing == "content-length")


@pytest.mark.rule("1.8")
async def test_more_json_beside_the_data_than_the_limit_is_refused_with_its_name(server: JsonServer) -> None:
    """128 KiB where nothing else is said; `data` does not count."""
    async with running(server.url) as client:
        reply = await client.infer_binary({**FP32, "more": "x" * 129 * 1024}, X.tobytes())
        assert (reply.status, "limits.header" in reply.error) == (413, True)
        assert server.inferences == 0
        data = {"name": "x", "datatype": "UINT8", "shape": [100_000], "data": [1] * 100_000}
        reply = await client.infer_binary({**FP32, "inputs": [data], "more": "x" * 100 * 1024})
        assert (reply.status, reply.binary) == (200, bytes([1]) * 100_000)


@pytest.mark.rule("1.8")
async def test_more_json_beside_the_data_of_an_answer_than_the_limit_is_the_backends_fault() -> None:
    output = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    answer = json.dumps({"outputs": [output], "more": "x" * 129 * 1024}).encode()
    async with lying(answering(answer)) as liar, running(liar.url) as client:
        reply = await client.infer_binary(FP32, X.tobytes())
        assert (reply.status, "limits.header" in reply.error) == (502, True)


async def test_body_larger_than_the_limit_is_refused(server: JsonServer) -> None:
    async with running(server.url, "limits: {request_body: 1KiB}\n") as client:
        body, length = encoded(FP32, b"1" * 2000)
        known = await client.infer(body, length)
        assert (known.status, "limits.request_body" in known.error) == (413, True)

        async def chunked() -> Any:
            yield body

        unknown = await client.request("POST", "/v2/models/identity/infer", data=chunked())
        assert (unknown.status, "limits.request_body" in unknown.error) == (413, True)
        assert server.inferences == 0
        good, length = encoded(FP32, X.tobytes())
        assert (await client.infer(good, length)).status == 200


@pytest.mark.rule("3.1")
async def test_backend_gets_json_headers_and_the_clients_own(client: Client, server: JsonServer) -> None:
    body, length = encoded(FP32, X.tobytes())
    await client.infer(
        body,
        length,
        headers={
            "Authorization": "Bearer t",
            "traceparent": "00-1-2-01",
            "X-Custom": "yes",
            "Connection": "keep-alive, X-Hop",
            "X-Hop": "no",
            "TE": "trailers",
            "Accept-Encoding": "gzip",
            "Content-Type": "application/octet-stream",
        },
    )
    got = {name.lower(): value for name, value in server.headers}
    assert got["content-type"] == "application/json"
    assert got["accept-encoding"] == "identity"
    assert got["authorization"] == "Bearer t"
    assert got["traceparent"] == "00-1-2-01"
    assert got["x-custom"] == "yes"
    assert got["x-forwarded-for"] == "127.0.0.1"
    assert not {"x-hop", "te", HEADER_LENGTH.lower()} & set(got)


async def test_headers_are_set_and_removed_by_configuration(server: JsonServer) -> None:
    async with running(server.url, backend="headers: {set: {X-Key: secret}, remove: [Cookie]}") as client:
        body, length = encoded(FP32, X.tobytes())
        await client.infer(body, length, headers={"Cookie": "a=b", "X-Key": "mine"})
        got = [(name.lower(), value) for name, value in server.headers]
        assert [value for name, value in got if name == "x-key"] == ["secret"]
        assert "cookie" not in dict(got)


async def test_many_requests_at_once_do_not_mix(client: Client) -> None:
    async def one(number: int) -> None:
        array = np.full((100, 50), number, np.float32)
        header = {"id": str(number), "inputs": [tensor("x", array, "FP32")], "parameters": {"binary_data_output": True}}
        reply = await client.infer_binary(header, array.tobytes())
        assert reply.json["id"] == str(number)
        assert reply.binary == array.tobytes()

    await asyncio.gather(*(one(number) for number in range(100)))


async def test_malformed_http_gets_the_error_shape(client: Client) -> None:
    host, port = client.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\nContent-Length: nonsense\r\n\r\n")
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"400"
    assert b"Content-Type: application/json\r\n" in head
    assert list(json.loads(body)) == ["error"]
