"""The servers of this folder are what the other tests take them for."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.servers import FastApi, KServe, Mlflow, Server, TorchServe, Triton, serving

# each starts a server of its own, some of which take a quarter of a minute
pytestmark = pytest.mark.slow


def ask(server: Server, path: str, body: object = None) -> tuple[int, Any]:
    """Status and JSON of the answer to a POST of *body*, or to a GET."""
    request = urllib.request.Request(
        server.url + path, None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


def test_kserve_speaks_v1_and_v2(tmp_path: Path) -> None:
    rows = [[1.5, 2, 3, 4]]
    with serving(KServe(tmp_path)) as server:
        assert ask(server, "/v2")[1]["name"] == "kserve"
        assert ask(server, "/v1/models/v1:predict", {"instances": rows}) == (200, {"predictions": rows})
        assert ask(server, "/v1/models/identity:predict", {"instances": rows}) == (200, {"predictions": rows})
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": rows[0]}
        status, answer = ask(server, "/v2/models/identity/infer", {"inputs": [tensor]})
        assert (status, answer["outputs"][0]["data"]) == (200, rows[0])
        status, answer = ask(server, "/v1/models/fails:predict", {"instances": rows})
        assert (status, "made of paper" in str(answer)) == (500, True)


@pytest.mark.parametrize(
    ("model", "sent", "predictions"),
    [
        ("identity", {"inputs": {"a": [1, 2], "b": [[0.5]]}}, {"a": [1, 2], "b": [[0.5]]}),
        ("identity", {"inputs": [[1, 2]]}, [[1, 2]]),
        ("identity", {"dataframe_split": {"columns": ["a"], "data": [[1], [2]]}}, [{"a": 1}, {"a": 2}]),
        (
            "signed",
            {"inputs": {"x": [[1, 2, 3, 4]], "n": [7]}, "params": {"scale": 0.5}},
            {"y": [[0.5, 1, 1.5, 2]], "m": [7]},
        ),
        ("unnamed", {"inputs": [[1, 2, 3, 4]]}, [[2, 4, 6, 8]]),
    ],
)
def test_mlflow_serves_its_models(tmp_path: Path, model: str, sent: Any, predictions: Any) -> None:
    with serving(Mlflow(tmp_path, model)) as server:
        assert ask(server, "/invocations", sent) == (200, {"predictions": predictions})
        if model == "identity":
            status, answer = ask(server, "/invocations", {"inputs": {"fail": [1]}})
            assert (status, answer["error_code"], "made of paper" in answer["stack_trace"]) == (
                400,
                "BAD_REQUEST",
                True,
            )


def test_triton_says_that_it_reads_binary(tmp_path: Path) -> None:
    with serving(Triton(tmp_path)) as server:
        status, answer = ask(server, "/v2")
        assert (status, "binary_tensor_data" in answer["extensions"]) == (200, True)
        tensor = {"name": "x", "datatype": "INT32", "shape": [4], "data": [1, 2, 3, 4]}
        status, answer = ask(server, "/v2/models/row/infer", {"inputs": [tensor]})
        assert (status, answer["outputs"][0]["data"]) == (200, [1, 2, 3, 4])


def test_torchserve_has_no_health_and_no_metadata_below_v2(tmp_path: Path) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.5, 2, 3, 4]}
    with serving(TorchServe(tmp_path)) as server:
        status, answer = ask(server, "/v2/models/double/infer", {"inputs": [tensor], "id": "7"})
        (output,) = answer["outputs"]
        assert (status, answer["id"], output["data"]) == (200, "7", [1, 4, 6, 8])
        assert output["shape"] == [4]  # whatever the shape of the array was
        for path in ("/v2", "/v2/health/live", "/v2/models/double", "/v2/models/double/ready"):
            assert ask(server, path)[1]["type"] == "ResourceNotFoundException"


def test_fastapi_refuses_what_it_does_not_know_if_it_is_strict(tmp_path: Path) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    for kind, status in (("strict", 422), ("plain", 200)):
        with serving(FastApi(tmp_path / kind, kind)) as server:
            assert ask(server, "/v2/models/double/infer", {"inputs": [tensor]})[0] == 200
            assert ask(server, "/v2/models/double/infer", {"inputs": [tensor], "id": "1"})[0] == status
