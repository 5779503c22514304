"""A transformer of KServe that turns binary requests into JSON for its predictor, and the JSON answer into binary.

`KSERVE_PYTHON -m tests.bench.kserve_transformer --http_port PORT --predictor_host HOST:PORT --predictor_protocol v2
--models MODEL...`, run by a Python that has kserve 0.21. It is what KServe offers for the gateway's work.
"""

import sys
from typing import Any

import kserve
from kserve.protocol.infer_type import InferRequest, InferResponse
from kserve.protocol.rest import server


class JsonOnly(kserve.Model):  # type: ignore[misc]  # kserve has no types here
    """For one model."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ready = True

    async def preprocess(self, payload: InferRequest, headers: dict[str, str] | None = None) -> InferRequest:
        """Binary inputs as JSON; the predictor returns JSON anyway."""
        for tensor in payload.inputs:
            tensor.set_data_from_numpy(tensor.as_numpy(), binary_data=False)
        payload.request_outputs = []
        return payload

    async def postprocess(self, result: InferResponse, *args: Any) -> InferResponse:
        """All outputs as binary."""
        return InferResponse(
            response_id=result.id,
            model_name=result.model_name,
            infer_outputs=result.outputs,
            use_binary_outputs=True,
        )


if __name__ == "__main__":
    config = server.uvicorn.Config

    def on_loopback(*args: Any, **options: Any) -> Any:
        """What kserve would let listen on every address."""
        return config(*args, **{**options, "host": "127.0.0.1"})

    server.uvicorn.Config = on_loopback
    names = sys.argv[sys.argv.index("--models") + 1 :]
    kserve.ModelServer(enable_grpc=False).start([JsonOnly(name) for name in names])
