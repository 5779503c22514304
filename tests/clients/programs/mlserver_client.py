"""Makes the calls of MLServer's own tests of gRPC, with its stubs and converters, and prints what came of each.

The argument is the server's address; the output is JSON, by the names of the calls. An error is `[status, words]`.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
from google.protobuf.json_format import MessageToDict
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.grpc import dataplane_pb2 as pb
from mlserver.grpc.converters import (
    InferInputTensorConverter,
    InferOutputTensorConverter,
    ModelInferRequestConverter,
    ModelInferResponseConverter,
)
from mlserver.grpc.dataplane_pb2_grpc import GRPCInferenceServiceStub
from mlserver.raw import pack, unpack
from mlserver.types import InferenceRequest

ROWS = np.array([[1, 2, 3], [4, 5, 6]], np.int32)


def request(model: str = "sum", version: str = "", *, is_raw: bool = False) -> Any:
    """A request for totals."""
    asked = InferenceRequest(id="17", inputs=[NumpyCodec.encode_input("x", ROWS)])
    return ModelInferRequestConverter.from_types(asked, model_name=model, model_version=version, use_raw=is_raw)


def described(answer: Any) -> Any:
    """An answer as MLServer's types have it."""
    made = ModelInferResponseConverter.to_types(answer).model_dump(exclude_none=True)
    made.pop("parameters", None)  # headers, which are metadata here
    return made


class Calls:
    """One method a call, in the order in which they are made."""

    def __init__(self, channel: Any) -> None:
        self._stub = GRPCInferenceServiceStub(channel)

    async def live(self) -> Any:
        return (await self._stub.ServerLive(pb.ServerLiveRequest())).live

    async def ready(self) -> Any:
        return (await self._stub.ServerReady(pb.ServerReadyRequest())).ready

    async def model_ready(self) -> Any:
        return (await self._stub.ModelReady(pb.ModelReadyRequest(name="sum", version="v1"))).ready

    async def server_metadata(self) -> Any:
        return MessageToDict(await self._stub.ServerMetadata(pb.ServerMetadataRequest()))

    async def model_metadata(self) -> Any:
        asked = pb.ModelMetadataRequest(name="sum", version="v1")
        return MessageToDict(await self._stub.ModelMetadata(asked))

    async def infer(self) -> Any:
        return described(await self._stub.ModelInfer(request()))

    async def infer_a_version(self) -> Any:
        return described(await self._stub.ModelInfer(request(version="v1")))

    async def infer_typed_contents_are_answered_in_kind(self) -> Any:
        answer = await self._stub.ModelInfer(request())
        return [MessageToDict(answer.outputs[0].contents), len(answer.raw_output_contents)]

    async def infer_raw_contents(self) -> Any:
        answer = await self._stub.ModelInfer(request(is_raw=True))
        (output,), (raw,) = answer.outputs, answer.raw_output_contents
        return list(unpack(InferOutputTensorConverter.to_types(output), raw))

    async def infer_raw_contents_packed_by_hand(self) -> Any:
        asked = request()
        for tensor in asked.inputs:
            asked.raw_input_contents.append(pack(InferInputTensorConverter.to_types(tensor)))
            tensor.ClearField("contents")
        answer = await self._stub.ModelInfer(asked)
        return np.frombuffer(answer.raw_output_contents[0], "<i8").tolist()

    async def infer_with_metadata(self) -> Any:
        call = self._stub.ModelInfer(request(), metadata=(("x-foo", "bar"),))
        found = {"initial": await call.initial_metadata(), "trailing": await call.trailing_metadata()}
        names = ("x-foo", "ce-specversion")
        return {when: {name: each[name] for name in names if name in each} for when, each in found.items()}

    async def infer_an_unknown_model(self) -> Any:
        return described(await self._stub.ModelInfer(request("nobody", "v1")))

    async def infer_an_unknown_datatype(self) -> Any:
        asked = request()
        asked.inputs[0].datatype = "INT322"
        return described(await self._stub.ModelInfer(asked))

    async def stream_of_a_generative_model(self) -> Any:
        prompt = InferenceRequest(inputs=[StringCodec.encode_input("prompt", ["to be or not"], use_bytes=True)])
        return await self._streamed(ModelInferRequestConverter.from_types(prompt, model_name="words", model_version=""))

    async def stream_of_an_unknown_model(self) -> Any:
        return await self._streamed(request("nobody", "v1"))

    async def stream_of_an_unknown_model_that_asks_for_a_status(self) -> Any:
        return await self._streamed(request("nobody", "v1"), metadata=(("triton_grpc_error", "true"),))

    async def _streamed(self, asked: Any, **options: Any) -> Any:
        async def once() -> AsyncIterator[Any]:
            yield asked

        answers = [answer async for answer in self._stub.ModelStreamInfer(once(), **options)]
        # what is no answer of MLServer's kind has its text where a model's name stands there
        return [
            [element.decode() for output in answer.outputs for element in output.contents.bytes_contents]
            or answer.model_name
            for answer in answers
        ]

    async def repository_index(self) -> Any:
        index = await self._stub.RepositoryIndex(pb.RepositoryIndexRequest())
        return sorted([model.name, model.state] for model in index.models)

    async def repository_unload(self) -> Any:
        await self._stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="sum"))
        return [await outcome(self.model_metadata), await outcome(self.infer_a_version)]

    async def repository_load(self) -> Any:
        await self._stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="sum"))
        return [await self.model_metadata(), await self.infer()]

    async def repository_load_an_unknown_model(self) -> Any:
        return MessageToDict(await self._stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="nobody")))


async def outcome(call: Any) -> Any:
    """What *call* returns, or its error."""
    try:
        return await asyncio.wait_for(call(), 30)
    except grpc.aio.AioRpcError as error:
        return [error.code().name, error.details()]


async def main() -> None:
    async with grpc.aio.insecure_channel(sys.argv[1]) as channel:
        calls = Calls(channel)
        names = [name for name in vars(Calls) if not name.startswith("_")]
        print(json.dumps({name: await outcome(getattr(calls, name)) for name in names}))


asyncio.run(main())
