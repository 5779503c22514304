"""Real tritonclient, unmodified, through `config/legacy.yaml` to the servers that it is about."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import yaml
from tritonclient.utils import InferenceServerException

from tests.conftest import running
from tests.servers import Legacy, serving
from tests.system.programs import MlServer
from tests.system.test_dialect_servers import ask, infer

pytestmark = pytest.mark.slow

CONFIG = yaml.safe_load((Path(__file__).parent.parent.parent / "config/legacy.yaml").read_text())
X = np.array([[5.1, 3.5, 1.4, 0.2], [6.7, 3, 5.2, 2.3]])


def settings_of(backend: str) -> str:
    """What `config/legacy.yaml` says of *backend*, without its endpoints."""
    settings = {key: value for key, value in CONFIG["backends"][backend].items() if key != "endpoints"}
    return str(yaml.safe_dump(settings))


def straight(server: Legacy, path: str, body: object) -> Any:
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
            assert [str(label, "utf-8") for label in found["label"]] == expected["result"]["labels"]
        with pytest.raises(InferenceServerException, match="four features are expected"):
            await infer(client, "iris", {"x": x[:, :3].copy()})
        with pytest.raises(InferenceServerException, match="model 'rose' is not configured"):
            await infer(client, "rose", {"x": x})


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


@pytest.mark.parametrize("server", ["sagemaker"], indirect=True)
async def test_a_container_of_sagemaker(server: Legacy) -> None:
    expected = straight(server, "/invocations", {"instances": [{"features": row} for row in X.tolist()]})["predictions"]
    async with running(server.url, "", settings_of("sagemaker")) as client:
        found = await infer(client, "churn-sagemaker", {"features": X})
        assert found["label"].tolist() == [row["predicted_label"] for row in expected]
        assert found["score"].tolist() == [row["score"] for row in expected]


@pytest.mark.parametrize("server", ["seldon"], indirect=True)
async def test_seldons_first_protocol(server: Legacy) -> None:
    async with running(server.url, "", settings_of("seldon")) as client:
        assert np.array_equal((await infer(client, "seldon-ndarray", {"x": X}))["y"], 2 * X)
        found = await infer(client, "seldon-tensor", {"x": X})
        assert np.array_equal(found["y"].reshape(found["shape"]), 2 * X)
        with pytest.raises(InferenceServerException, match="four columns are expected"):
            await infer(client, "seldon-ndarray", {"x": X[:, :2].copy()})


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

        def scaled(real: triton.InferenceServerClient) -> Any:
            entry = triton.InferInput("x", list(x.shape), "FP32")
            entry.set_data_from_numpy(x)
            return real.infer("ray", [entry], parameters={"scale": 3}).as_numpy("y")

        assert np.allclose(await ask(client, scaled), 3 * expected)


@pytest.mark.parametrize("server", ["huggingface"], indirect=True)
async def test_a_pipeline_of_hugging_face(server: Legacy) -> None:
    texts = ["very good", "bad é"]
    expected = straight(server, "/", {"inputs": texts})
    async with running(server.url, "", settings_of("huggingface")) as client:
        found = await infer(client, "sentiment", {"text": np.array([text.encode() for text in texts], object)})
        assert [str(label, "utf-8") for label in found["label"]] == [row["label"] for row in expected]
        assert np.array_equal(found["score"], np.array([row["score"] for row in expected], np.float32))
