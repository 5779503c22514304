"""KServe's own server with small models, on the loopback interface.

`KSERVE_PYTHON kserve_server.py --http_port PORT`, run by a Python that has kserve 0.21.
"""

from typing import Any

import kserve
from kserve import InferInput, InferOutput, InferRequest, InferResponse
from kserve.protocol.rest import server


class Identity(kserve.Model):
    """Returns what it gets: of V2 the tensors, of V1 the instances."""

    def __init__(self) -> None:
        super().__init__("identity")
        self.ready = True

    def get_input_types(self) -> list[dict[str, object]]:
        return [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]

    def get_output_types(self) -> list[dict[str, object]]:
        return self.get_input_types()

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        if isinstance(payload, InferRequest):
            return InferResponse(payload.id or "", self.name, [_as_output(tensor) for tensor in payload.inputs])
        return {"predictions": payload["instances"]}


def _as_output(tensor: InferInput) -> InferOutput:
    output = InferOutput(tensor.name, list(tensor.shape), tensor.datatype)
    output.set_data_from_numpy(tensor.as_numpy(), binary_data=False)
    return output


class V1(kserve.Model):
    """Speaks V1 alone: a list of instances comes back as it is."""

    def __init__(self) -> None:
        super().__init__("v1")
        self.ready = True

    def predict(self, payload: dict[str, Any], headers: Any = None, response_headers: Any = None) -> dict[str, Any]:
        return {"predictions": payload["instances"]}


class Fails(kserve.Model):
    """Raises an error at each inference."""

    def __init__(self) -> None:
        super().__init__("fails")
        self.ready = True

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        raise ValueError("the weights are made of paper")


if __name__ == "__main__":
    config = server.uvicorn.Config

    def on_loopback(*args: Any, **options: Any) -> Any:
        """What kserve would let listen on every address."""
        return config(*args, **{**options, "host": "127.0.0.1"})

    server.uvicorn.Config = on_loopback
    kserve.ModelServer(enable_grpc=False).start([Identity(), V1(), Fails()])
