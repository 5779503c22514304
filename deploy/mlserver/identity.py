"""A model for trying things out: every input comes back as an output, unchanged."""

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class IdentityModel(MLModel):
    """Nothing to load, nothing to compute: what is seen of it is the wire."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """The outputs carry their input's parameters, so text sent as base64 is still marked as such."""
        outputs = [
            ResponseOutput(
                name=tensor.name,
                shape=tensor.shape,
                datatype=tensor.datatype,
                parameters=tensor.parameters,
                data=tensor.data,
            )
            for tensor in payload.inputs
        ]
        return InferenceResponse(model_name=self.name, model_version=self.version, id=payload.id, outputs=outputs)
