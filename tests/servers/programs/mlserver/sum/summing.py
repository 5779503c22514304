"""A model of MLServer that adds up the rows of its input."""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse, Parameters


class SumModel(MLModel):
    """One total a row, and the headers of the request whose names begin with `x-`."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """The totals."""
        rows = NumpyCodec.decode_input(payload.inputs[0])
        totals = np.sum(rows, axis=1, keepdims=True, dtype=np.int64)
        headers = (payload.parameters and payload.parameters.headers) or {}
        return InferenceResponse(
            id=payload.id,
            model_name=self.name,
            model_version=self.version,
            outputs=[NumpyCodec.encode_output("total", totals)],
            parameters=Parameters(headers={name: text for name, text in headers.items() if name.startswith("x-")}),
        )
