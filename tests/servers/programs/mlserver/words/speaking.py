"""A model of MLServer that answers one request with many responses, over its own gRPC alone."""

from collections.abc import AsyncIterator

from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class WordsModel(MLModel):
    """One response for each word of the text."""

    async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> AsyncIterator[InferenceResponse]:
        """The words."""
        async for payload in payloads:
            for word in StringCodec.decode_input(payload.inputs[0])[0].split():
                output = StringCodec.encode_output("word", [word], use_bytes=True)
                yield InferenceResponse(model_name=self.name, outputs=[output])
