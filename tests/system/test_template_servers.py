"""Real tritonclient, unmodified, through `config/legacy.yaml` to real servers that speak no protocol.

Those that cannot be installed are in `test_stand_ins`.
"""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml
from tritonclient.utils import InferenceServerException

from tests.conftest import running
from tests.servers import Legacy, Mlflow, Seldon, Server, serving
from tests.system.programs import MlServer
from tests.system.test_dialect_servers import ask, infer

pytestmark = pytest.mark.slow

CONFIG = yaml.safe_load((Path(__file__).parent.parent.parent / "config/legacy.yaml").read_text())
X = np.array([[5.1, 3.5, 1.4, 0.2], [6.7, 3, 5.2, 2.3]])


def settings_of(backend: str) -> str:
    """What `config/legacy.yaml` says of *backend*, without its endpoints."""
    settings = {key: value for key, value in CONFIG["backends"][backend].items() if key != "endpoints"}
    return str(yaml.safe_dump(settings, sort_keys=False))


def strings(*values: str) -> npt.NDArray[Any]:
    """*values* as tritonclient takes BYTES."""
    return np.array([value.encode() for value in values], object)


def texts(array: npt.NDArray[Any]) -> Any:
    """The BYTES of *array* as lists of texts."""
    return np.vectorize(lambda value: str(value, "utf-8"), otypes=[object])(array).tolist()


def straight(server: Server, path: str, body: object) -> Any:
    """What *server* itself answers."""
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    with serving(Legacy(tmp_path, request.param)) as running_server:
        yield running_server


@pytest.mark.parametrize("server", ["predict"], indirect=True)
async def test_a_fastapi_of_ones_own(server: Legacy) -> None:
    x = X.astype(np.float32)
    expected = straight(server, "/predict", {"features": X.tolist(), "user": "web"})  # the shortest decimals of FP32
    async with running(server.url, "", settings_of("predict")) as client:
        assert await ask(client, lambda real: real.is_server_live() and real.is_model_ready("iris"))
        assert (await ask(client, lambda real: real.get_model_metadata("iris")))["inputs"][0]["name"] == "x"
        for binary in (True, False):
            found = await infer(client, "iris", {"x": x}, binary=binary)
            assert np.array_equal(found["proba"], np.array(expected["probabilities"], np.float32))
            assert texts(found["label"]) == expected["result"]["labels"] != ["unsure", "unsure"]
        sure = await infer(client, "iris", {"x": x, "threshold": np.array([0.99], np.float32)})
        assert texts(sure["label"]) == ["unsure", "unsure"]
        with pytest.raises(InferenceServerException, match=r"\[2, 3\]"):
            await infer(client, "iris", {"x": x[:, :3].copy()})
        with pytest.raises(InferenceServerException, match="model 'rose' is not configured"):
            await infer(client, "rose", {"x": x})

        # records
        people = {"age": np.array([31, 44]), "plan": strings("gold", "free")}
        assert (await infer(client, "churn-emea", people))["score"].tolist() == [31 / 3, 44 / 7]
        with pytest.raises(InferenceServerException, match="first dimension|shape"):
            await infer(client, "churn-emea", {"age": np.array([31, 44]), "plan": strings("gold")})

        # one row in a request
        one = await infer(client, "iris-one", {"sepal": x[:, :2].copy(), "petal": x[:, 2:].copy()})
        assert np.array_equal(one["proba"], np.array(expected["probabilities"], np.float32))
        assert texts(one["label"]) == expected["result"]["labels"]
        none = await infer(
            client, "iris-one", {"sepal": np.empty((0, 2), np.float32), "petal": np.empty((0, 2), np.float32)}
        )
        assert (none["proba"].shape, none["label"].shape) == ((0, 3), (0,))
        with pytest.raises(InferenceServerException, match="two lengths are expected"):
            await infer(client, "iris-one", {"sepal": -x[:, :2], "petal": x[:, 2:].copy()})


OF_V2 = """
dialect: template
models:
  "*":
    inputs: {x: {datatype: FP64}}
    outputs: {y: {datatype: FP64}}
    request:
      path: /v2/models/{model}/infer
      body: {id: $id, inputs: [{name: x, shape: {$shape: x}, datatype: FP64, data: {$flat: x}}]}
    answer: {y: "$.outputs[0].data"}
"""


async def test_v2_described_as_a_template_gives_what_v2_gives(tmp_path: Path) -> None:
    server = MlServer(tmp_path / "mlserver")
    try:
        server.start()
        await asyncio.to_thread(server.wait_until_ready)
        async with running(server.url) as v2, running(server.url, "", OF_V2) as template:
            (expected,) = (await infer(v2, "identity", {"x": X})).values()
            found = await infer(template, "identity", {"x": X})
            assert np.array_equal(found["y"], expected.ravel())
    finally:
        server.stop()


@pytest.mark.parametrize("server", ["huggingface"], indirect=True)
async def test_a_pipeline_of_hugging_face(server: Legacy) -> None:
    sent = ["very good", "bad é"]
    expected = straight(server, "/", {"inputs": sent})
    async with running(server.url, "", settings_of("huggingface")) as client:
        found = await infer(client, "sentiment", {"text": strings(*sent)})
        assert texts(found["label"]) == [row["label"] for row in expected]
        assert np.array_equal(found["score"], np.array([row["score"] for row in expected], np.float32))
        every = await infer(client, "sentiment-all", {"text": strings(*sent)})
        assert np.array_equal(every["label"][:, 0], found["label"])
        assert np.array_equal(every["score"][:, 0], found["score"])
        assert np.allclose(every["score"].sum(axis=1), 1)
        best = await infer(client, "sentiment-all", {"text": strings(*sent)}, parameters={"top_k": 1})
        assert best["score"].shape == (2, 1)


@pytest.mark.parametrize("server", ["azure"], indirect=True)
async def test_a_scoring_script_of_azure(server: Legacy) -> None:
    async with running(server.url, "", settings_of("azure")) as client:
        assert (await infer(client, "azure", {"x": X}))["y"].tolist() == [sum(row) for row in X.tolist()]
        assert await ask(client, lambda real: real.is_server_ready())


async def test_databricks_form_by_mlflow_which_it_runs(tmp_path: Path) -> None:
    settings = settings_of("databricks").replace("/serving-endpoints/{model}/invocations", "/invocations")
    with serving(Mlflow(tmp_path, "columns")) as server:
        async with running(server.url, "", settings) as client:
            a, b = np.array([0.1, 0.2]), np.array([2**53 - 1, -3])
            assert (await infer(client, "plans", {"a": a, "b": b}))["y"].tolist() == (a + b).tolist()
            # it converts no INT64 that is not exact; the words are its own
            with pytest.raises(InferenceServerException, match=r"datatype|FP64"):
                await infer(client, "plans", {"a": a.astype(np.float32), "b": b})


@pytest.mark.parametrize("server", ["bentoml"], indirect=True)
async def test_a_service_of_bentoml(server: Legacy) -> None:
    async with running(server.url, "", settings_of("bentoml")) as client:
        assert (await infer(client, "bento", {"x": X}))["label"].tolist() == [0, 2]
        assert await ask(client, lambda real: real.is_server_ready())


@pytest.mark.parametrize("server", ["ray"], indirect=True)
async def test_a_deployment_of_ray_serve(server: Legacy) -> None:
    x = X.astype(np.float32)
    async with running(server.url, "", settings_of("ray")) as client:
        expected = x.astype(np.float64).sum(axis=1)
        assert np.allclose((await infer(client, "ray", {"x": x}))["y"], expected)
        scaled = await infer(client, "ray", {"x": x}, parameters={"scale": 3})
        assert np.allclose(scaled["y"], 3 * expected)


@pytest.mark.parametrize("server", ["litserve"], indirect=True)
async def test_a_litserve(server: Legacy) -> None:
    x = np.arange(40, dtype=np.float32).reshape(10, 4) / 7
    async with running(server.url, "", settings_of("litserve")) as client:
        assert np.array_equal((await infer(client, "lit", {"x": x}))["y"], 2 * x)
        with pytest.raises(InferenceServerException, match="scale"):
            await infer(client, "lit", {"x": x}, parameters={"scale": 3})  # a parameter that the body has no place for


@pytest.mark.parametrize("server", ["gradio"], indirect=True)
async def test_a_page_of_gradio(server: Legacy) -> None:
    async with running(server.url, "", settings_of("gradio")) as client:
        found = await infer(client, "page", {"text": strings("é", "abc", ""), "scale": np.array([0.1])})
        assert texts(found["echo"]) == ["É", "ABC", ""]
        assert found["score"].tolist() == [0.1, 3 * 0.1, 0]
        with pytest.raises(InferenceServerException, match="not this text"):
            await infer(client, "page", {"text": strings("a", "forbidden"), "scale": np.array([1.0])})


@pytest.mark.parametrize("server", ["cog"], indirect=True)
async def test_a_predictor_of_cog(server: Legacy) -> None:
    async with running(server.url, "", settings_of("cog")) as client:
        assert texts((await infer(client, "painter", {"prompt": strings("a", "bé")}))["text"]) == ["A", "BÉ"]
        twice = await infer(client, "painter", {"prompt": strings("a")}, parameters={"times": 2})
        assert texts(twice["text"]) == ["AA"]
        words = [f"{letter}{number}" for letter in "abcd" for number in range(5)]
        async with asyncio.TaskGroup() as group:  # each waits for its turn: none is refused with 409
            tasks = [group.create_task(infer(client, "painter", {"prompt": strings(word, "x")})) for word in words]
        assert [texts(task.result()["text"]) for task in tasks] == [[word.upper(), "X"] for word in words]
        with pytest.raises(InferenceServerException, match="not this prompt") as caught:
            await infer(client, "painter", {"prompt": strings("forbidden")})
        assert caught.value.status() == "502"  # its own status is 200


async def test_seldons_first_protocol(tmp_path: Path) -> None:
    with serving(Seldon(tmp_path)) as server:
        async with running(server.url, "", settings_of("seldon")) as client:
            assert np.array_equal((await infer(client, "seldon-ndarray", {"x": X}))["y"], 2 * X)
            found = await infer(client, "seldon-tensor", {"x": X})
            assert np.array_equal(found["y"].reshape(found["shape"]), 2 * X)
        # its words, where the file says less of the shape
        open_shapes = settings_of("seldon").replace("- 4\n", "- -1\n")
        async with running(server.url, "", open_shapes) as client:
            with pytest.raises(InferenceServerException, match="four columns are expected"):
                await infer(client, "seldon-ndarray", {"x": X[:, :2].copy()})
