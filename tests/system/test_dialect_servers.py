"""Real tritonclient, unmodified, through the gateway to servers of other dialects than V2.

TensorFlow Serving is a strict stand-in after its documentation (`tests.tf_serving`); KServe with its V1 protocol and
`mlflow models serve` are the real ones (`tests.servers`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.conftest import HEADER_LENGTH, Client, running
from tests.servers import KServe, Mlflow, serving
from tests.tf_serving import ONLY_DESCRIBED, tf_serving
from tests.values import VALUES

T = TypeVar("T")
Array = npt.NDArray[Any]

# the stand-in reads and writes JSON in Python, one request after the other
PATIENCE_S = 300
PATIENT = f"timeouts: {{first_byte: {PATIENCE_S}s, idle: {PATIENCE_S}s, total: {PATIENCE_S}s}}\n"
TENSORFLOW = f"dialect: tensorflow\n{PATIENT}"


async def ask(client: Client, question: Callable[[triton.InferenceServerClient], T]) -> T:
    """What a real tritonclient gives for *question*."""

    def call() -> T:
        with triton.InferenceServerClient(client.url.removeprefix("http://"), network_timeout=PATIENCE_S) as real:
            return question(real)

    return await asyncio.to_thread(call)


async def infer(
    client: Client, model: str, inputs: dict[str, Array], *names: str, binary: bool = True, **options: Any
) -> dict[str, Array]:
    """The outputs called *names*, or all, of *inputs*; *binary*: whether tensors cross in binary, both ways."""
    sent = []
    for name, array in inputs.items():
        entry = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        entry.set_data_from_numpy(array, binary_data=binary)
        sent.append(entry)
    wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in names] or None

    def question(real: triton.InferenceServerClient) -> dict[str, Array]:
        result = real.infer(model, sent, outputs=wanted, request_id="7", **options)
        response = result.get_response()
        assert (response["model_name"], response["id"]) == (model, "7")
        assert all(("data" in output) == (not binary and bool(names)) for output in response["outputs"])
        return {output["name"]: result.as_numpy(output["name"]) for output in response["outputs"]}

    return await ask(client, question)


async def refusal(client: Client, model: str, inputs: dict[str, Array], **options: Any) -> tuple[str, str]:
    """The status and the words of the error that an inference ends with."""
    with pytest.raises(InferenceServerException) as caught:
        await infer(client, model, inputs, **options)
    return str(caught.value.status()), str(caught.value.message())


# TensorFlow Serving


@pytest.fixture(scope="module")
def tensorflow() -> Iterator[str]:
    """The URL of the stand-in for TensorFlow Serving."""
    with tf_serving() as url:
        yield url


@pytest.fixture
async def client(tensorflow: str) -> AsyncIterator[Client]:
    """A client of a gateway before it, in columnar form."""
    async with running(tensorflow, backend=TENSORFLOW) as running_client:
        yield running_client


@pytest.fixture
async def row_client(tensorflow: str) -> AsyncIterator[Client]:
    """The same in row form."""
    async with running(tensorflow, backend=TENSORFLOW + "models: {'*': {format: row}}\n") as running_client:
        yield running_client


@pytest.fixture(params=["columnar", "row"])
async def any_client(request: pytest.FixtureRequest, tensorflow: str) -> AsyncIterator[Client]:
    """Both."""
    settings = TENSORFLOW + f"models: {{'*': {{format: {request.param}}}}}\n"
    async with running(tensorflow, backend=settings) as running_client:
        yield running_client


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
async def test_a_model_answers_in_its_newest_or_in_a_named_version(any_client: Client, binary: bool) -> None:
    x = np.array([[1], [2.5]], np.float32)
    for version, constant in (("", 2), ("123", 2), ("122", 3)):
        got = await infer(any_client, "half_plus_two", {"x": x}, "y", binary=binary, model_version=version)
        assert list(got) == ["y"]
        assert got["y"].dtype == np.float32
        assert got["y"].tolist() == (x / 2 + constant).tolist()
    status, words = await refusal(any_client, "half_plus_two", {"x": x}, model_version="9")
    assert status == "404"
    assert "half_plus_two" in words


async def test_several_inputs_and_outputs_and_a_choice_among_them(any_client: Client) -> None:
    inputs = {"a": np.array([[1, 2], [3, 4]], np.float32), "b": np.array([2**53 + 1, -1])}
    total = (inputs["a"] + inputs["b"].astype(np.float32)[:, np.newaxis]).tolist()
    got = await infer(any_client, "pair", inputs)
    assert got["sum"].tolist() == total
    assert got["twice"].tolist() == [2**54 + 2, -2]
    got = await infer(any_client, "pair", inputs, "twice", binary=False)
    assert {name: array.tolist() for name, array in got.items()} == {"twice": [2**54 + 2, -2]}
    status, words = await refusal(any_client, "pair", {"a": inputs["a"]})
    assert (status, "b" in words) == ("400", True)
    with pytest.raises(InferenceServerException, match=r"'nothing' was requested, but the model has 'sum', 'twice'"):
        await infer(any_client, "pair", inputs, "nothing")


async def test_first_dimensions_differ_only_in_columnar_form(client: Client, row_client: Client) -> None:
    inputs = {"rows": np.array([[1, 2], [3, 4], [5, 6]], np.float32), "weights": np.array([0.5, 2], np.float32)}
    got = await infer(client, "weighted", inputs)
    assert got["weighted"].tolist() == [[0.5, 4], [1.5, 8], [2.5, 12]]
    assert (got["total"].shape, float(got["total"])) == ((), 28.5)
    status, words = await refusal(row_client, "weighted", inputs)
    assert (status, "expected 3 rows" in words) == ("400", True)


SERVED = ("BOOL", "UINT8", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")


@pytest.mark.parametrize("datatype", SERVED)
async def test_integers_cross_exactly(any_client: Client, datatype: str) -> None:
    array = VALUES[datatype].ravel()
    model = datatype.lower()
    (got,) = (await infer(any_client, model, {"x": array})).values()
    assert (got.dtype, got.tobytes()) == (array.dtype, array.tobytes())


@pytest.mark.parametrize(("datatype", "model"), [(np.float32, "float"), (np.float64, "double")])
async def test_floats_cross_exactly(any_client: Client, datatype: type, model: str) -> None:
    array: Array = np.random.default_rng(1).standard_normal(1000).astype(datatype)
    (got,) = (await infer(any_client, model, {"x": array})).values()
    assert (got.dtype, got.tobytes()) == (array.dtype, array.tobytes())


async def test_nan_and_infinities_cross_where_the_configuration_lets_them(tensorflow: str, client: Client) -> None:
    array = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    status, words = await refusal(client, "float", {"x": array})
    assert (status, "nonfinite" in words) == ("400", True)
    async with running(tensorflow, backend=TENSORFLOW + "nonfinite: literal\n") as lenient:
        (got,) = (await infer(lenient, "float", {"x": array})).values()
        assert got.tobytes() == array.tobytes()


async def test_text_crosses_and_bytes_do_where_the_name_says_so(any_client: Client) -> None:
    text = np.array(["a", "", 'é\n"\\', "\U0001f600"], np.object_)
    got = await infer(any_client, "text", {"text": text})
    expected = [item.encode() for item in text]
    assert got["text"].tolist() == got["raw_bytes"].tolist() == expected
    raw = np.array([b"\xff\x00", b"", b"abc"], np.object_)
    got = await infer(any_client, "only_bytes", {"image_bytes": raw})
    assert got["image_bytes"].tolist() == raw.tolist()


async def test_images_cross_exactly_many_at_once(any_client: Client) -> None:
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
    results = await asyncio.gather(*(infer(any_client, "image", {"image": image}) for _ in range(2)))
    assert all(result["image"].tobytes() == image.tobytes() for result in results)


async def test_a_scalar_is_a_bare_value(client: Client) -> None:
    (got,) = (await infer(client, "scalar", {"x": np.array(1.5, np.float32)})).values()
    assert (got.shape, float(got)) == ((), 1.5)


async def test_an_empty_answer_has_its_shape_from_the_nesting(any_client: Client) -> None:
    (got,) = (await infer(any_client, "filter", {"x": np.ones((3, 2), np.float32)})).values()
    assert got.size == 0


async def test_a_signature_is_chosen_by_the_configuration(tensorflow: str) -> None:
    settings = TENSORFLOW + "models: {half*: {signature: triple}, no_default: {signature: custom}}\n"
    x = np.array([[2]], np.float32)
    async with running(tensorflow, backend=settings) as chosen:
        assert (await infer(chosen, "half_plus_two", {"x": x}))["y"].tolist() == [[6]]
        assert (await infer(chosen, "no_default", {"x": x}))["y"].tolist() == [[3]]
    async with running(tensorflow, backend=TENSORFLOW) as default:
        status, words = await refusal(default, "no_default", {"x": x})
        assert (status, "custom" in words) == ("502", True)


async def test_a_raw_request_needs_no_header(client: Client) -> None:
    x = np.array([[1], [2]], np.float32)
    reply = await client.request(
        "POST", "/v2/models/half_plus_two/infer", data=x.tobytes(), headers={HEADER_LENGTH: "0"}
    )
    assert reply.status == 200, reply.body
    assert reply.binary == (x / 2 + 2).tobytes()


@pytest.mark.parametrize("options", [(), ("--plain-errors",)], ids=["json", "plain"])
async def test_the_servers_own_words_come_first(options: tuple[str, ...]) -> None:
    x = np.array([1], np.float32)
    with tf_serving(*options) as url:
        async with running(url, backend=TENSORFLOW) as client:
            assert await refusal(client, "broken", {"x": x}) == (
                "500",
                "boom: the kernel has failed\n\t [[{{node y}}]]",
            )
            status, words = await refusal(client, "pair", {"a": np.ones((1, 2), np.float32)})
            assert (status, words.startswith("Missing named input: b")) == ("400", True)
            status, words = await refusal(client, "nobody", {"x": x})
            assert (status, "nobody" in words) == ("404", True)
            status, words = await refusal(client, "loading", {"x": x.reshape(1, 1)})
            assert (status, "loading" in words) == ("404", True)


@pytest.mark.parametrize("model", ONLY_DESCRIBED)
async def test_datatypes_that_the_server_has_no_json_of_are_its_own_error(client: Client, model: str) -> None:
    array: Array = np.array([1], np.uint16 if model == "uint16" else np.float16)
    datatype = {"half": "FP16", "bfloat16": "BF16", "uint16": "UINT16"}[model]
    entry = {"name": "x", "datatype": datatype, "shape": [1]}
    header = {"inputs": [{**entry, "parameters": {"binary_data_size": 2}}]}
    reply = await client.infer_binary(header, array.tobytes(), model=model)
    assert (reply.status, model in reply.json["error"]) == (501, True)


async def test_clients_find_all_that_they_ask_a_server_for(client: Client) -> None:
    assert await ask(client, lambda real: (real.is_server_live(), real.is_server_ready())) == (True, True)
    for model, version, is_ready in (
        ("half_plus_two", "", True),
        ("half_plus_two", "122", True),
        ("half_plus_two", "1", False),
        ("loading", "", False),
        ("nobody", "", False),
    ):
        assert await ask(client, lambda real: real.is_model_ready(model, version)) is is_ready, (model, version)  # noqa: B023
    server = await ask(client, lambda real: real.get_server_metadata())
    assert server["extensions"] == ["binary_tensor_data"]
    metadata = await ask(client, lambda real: real.get_model_metadata("pair"))
    assert metadata["name"] == "pair"
    assert metadata["inputs"] == [
        {"name": "a", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "b", "datatype": "INT64", "shape": [-1]},
    ]
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["sum", "twice"]
    for question in ("get_model_config", "get_inference_statistics"):
        with pytest.raises(InferenceServerException, match="nothing like it"):
            await ask(client, lambda real: getattr(real, question)("pair"))  # noqa: B023


async def test_the_asynchronous_client_works_too(any_client: Client) -> None:
    async with triton_aio.InferenceServerClient(any_client.url.removeprefix("http://")) as real:
        assert await real.is_server_ready()
        assert await real.is_model_ready("half_plus_two")
        sent = triton_aio.InferInput("x", [1, 1], "FP32")
        sent.set_data_from_numpy(np.array([[4]], np.float32))
        result = await real.infer("half_plus_two", [sent])
        assert result.as_numpy("y").tolist() == [[4]]


async def test_the_dialect_can_be_found_out(tensorflow: str) -> None:
    async with running(tensorflow, backend=f"dialect: auto\n{PATIENT}") as client:
        got = await infer(client, "half_plus_two", {"x": np.array([[2]], np.float32)})
        assert got["y"].tolist() == [[3]]
        assert await ask(client, lambda real: real.is_server_ready())


# KServe's V1 protocol and MLflow


@pytest.fixture(scope="module")
def kserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real KServe."""
    with serving(KServe(tmp_path_factory.mktemp("kserve"))) as server:
        yield server.url


V1 = TENSORFLOW + "models: {'*': {format: row, inputs: {x: {datatype: FP32}}, outputs: {y: {datatype: FP32}}}}\n"


@pytest.mark.slow
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
async def test_a_model_of_kserves_v1_protocol_gets_its_rows(kserve: str, binary: bool) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4), dtype=np.float32)
    async with running(kserve, backend=V1) as client:
        got = await infer(client, "v1", {"x": x}, "y", binary=binary)
        assert (got["y"].dtype, got["y"].tobytes()) == (x.dtype, x.tobytes())
        assert await ask(client, lambda real: (real.is_server_live(), real.is_server_ready())) == (True, True)
        assert await ask(client, lambda real: real.is_model_ready("v1"))
        assert not await ask(client, lambda real: real.is_model_ready("nobody"))
        metadata = await ask(client, lambda real: real.get_model_metadata("v1"))
        assert metadata["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1]}]
        with pytest.raises(InferenceServerException, match="nobody"):
            await ask(client, lambda real: real.get_model_metadata("nobody"))


@pytest.mark.slow
async def test_kserves_own_errors_come_first(kserve: str) -> None:
    x = np.ones((1, 4), np.float32)
    async with running(kserve, backend=V1) as client:
        status, words = await refusal(client, "fails", {"x": x})
        assert (status, "the weights are made of paper" in words) == ("500", True)
        status, words = await refusal(client, "nobody", {"x": x})
        assert (status, "nobody" in words) == ("404", True)
    async with running(kserve, backend=TENSORFLOW) as client:
        status, words = await refusal(client, "v1", {"x": x})
        assert (status, "models: {v1: {format: row, outputs:" in words) == ("502", True)
        status, words = await refusal(client, "nobody", {"x": x})
        assert (status, "nobody" in words) == ("404", True)


MLFLOW = "dialect: mlflow\n"


@pytest.mark.slow
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
async def test_mlflow_serves_inputs_and_outputs_by_name(tmp_path: Path, binary: bool) -> None:
    settings = MLFLOW + "models: {'*': {outputs: {y: {datatype: FP32}, m: {datatype: INT64}}}}\n"
    x, n = np.random.default_rng(0).standard_normal((2, 4), dtype=np.float32), np.array([2**53 + 1, -7])
    with serving(Mlflow(tmp_path, "signed")) as server:
        async with running(server.url, backend=settings) as client:
            got = await infer(client, "any", {"x": x, "n": n}, "y", "m", binary=binary)
            assert got["y"].tobytes() == x.tobytes()
            assert got["m"].tolist() == n.tolist()
            got = await infer(client, "any", {"x": x, "n": n}, "y", binary=binary, parameters={"scale": 0.5})
            assert got["y"].tolist() == (x * np.float32(0.5)).tolist()
            assert await ask(client, lambda real: (real.is_server_live(), real.is_server_ready())) == (True, True)
            assert await ask(client, lambda real: real.is_model_ready("any"))
            server_metadata = await ask(client, lambda real: real.get_server_metadata())
            assert server_metadata["name"] == "mlflow"
            status, words = await refusal(client, "any", {"x": x.astype(np.float64).astype(str).astype(np.object_)})
            assert status == "400"
            assert words and "Traceback" not in words
            status, words = await refusal(client, "any", {"x": x}, model_version="1")
            assert (status, "no versions" in words) == ("404", True)


@pytest.mark.slow
async def test_mlflow_serves_an_input_without_a_name(tmp_path: Path) -> None:
    settings = (
        MLFLOW + "models: {'*': {inputs: {'': {datatype: FP32, shape: [-1, 4]}}, outputs: {y: {datatype: FP32}}}}\n"
    )
    x = np.ones((1, 4), np.float32)
    with serving(Mlflow(tmp_path, "unnamed")) as server:
        async with running(server.url, backend=settings) as client:
            assert (await infer(client, "m", {"whatever": x}))["y"].tolist() == [[2, 2, 2, 2]]
            metadata = await ask(client, lambda real: real.get_model_metadata("m"))
            assert metadata["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 4]}]
        async with running(server.url, backend="dialect: auto\n" + settings.partition("\n")[2]) as client:
            assert (await infer(client, "m", {"input": x}))["y"].tolist() == [[2, 2, 2, 2]]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["inputs", "instances", "dataframe_split"])
async def test_mlflow_takes_each_form(tmp_path: Path, form: str) -> None:
    settings = MLFLOW + f"models: {{'*': {{format: {form}, outputs: {{a: {{datatype: FP64}}}}}}}}\n"
    with serving(Mlflow(tmp_path)) as server:
        async with running(server.url, backend=settings) as client:
            got = await infer(client, "m", {"a": np.array([0.5, 0.1])})
            assert got["a"].tolist() == [0.5, 0.1]
            if form != "instances":
                status, words = await refusal(client, "m", {"fail": np.array([0.5])})
                assert (status, words.split(" (")[0]) == ("400", "ValueError: the weights are made of paper"), words


@pytest.mark.slow
async def test_mlflow_takes_a_table_of_octets_texts_and_times(tmp_path: Path) -> None:
    octets = [bytes(range(256)), b"", b"\xff\x00"]
    texts = ["AP8=", "", "\xe9"]
    times = ["2020-01-01T00:00:00", "2021-02-03T04:05:06", "2020-01-01T00:00:00"]
    columns = {
        "b": np.array(octets, np.object_),
        "t": np.array([text.encode() for text in texts], np.object_),
        "d": np.array([time.encode() for time in times], np.object_),
    }
    inputs = "b: {datatype: BYTES, encoding: base64}, t: {datatype: BYTES}, d: {datatype: BYTES}"
    outputs = "b: {datatype: BYTES, encoding: base64}, t: {datatype: BYTES, missing: ''}, d: {datatype: BYTES}"
    settings = f"{MLFLOW}models: {{'*': {{format: dataframe_split, inputs: {{{inputs}}}, outputs: {{{outputs}}}}}}}\n"
    with serving(Mlflow(tmp_path, "strings")) as server:
        async with running(server.url, backend=settings) as client:
            got = await infer(client, "m", columns)
            assert list(got) == ["b", "t", "d"]  # what is beside these is left out
            assert got["b"].tolist() == octets
            assert [text.decode() for text in got["t"]] == texts
            assert [time.decode() for time in got["d"]] == times
        async with running(server.url, backend=settings.replace(", missing: ''", "")) as client:
            status, words = await refusal(client, "m", columns)
            assert (status, "output 't' (BYTES): element 1: expected a string, got" in words) == ("502", True)
