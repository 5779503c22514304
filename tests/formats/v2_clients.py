"""Clients of V2: binary tensors and JSON over HTTP, and gRPC."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.conftest import HEADER_LENGTH, Client
from tests.formats.templates import NUMPY, blob_of, flat, likely, shape_of, values_of

MODEL = "m"
"""What the only model is called."""


@dataclass
class Reply:
    """What a client of V2 got."""

    status: int
    words: str
    outputs: dict[str, tuple[tuple[int, ...], list[Any]]]
    """Shape and flat values by name."""


@dataclass(frozen=True)
class Sent:
    """An input with its values as a client has them."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: list[Any]

    @property
    def blob(self) -> bytes:
        """The values as bytes on the wire."""
        return blob_of(self.values, self.datatype)

    @property
    def entry(self) -> dict[str, Any]:
        """What V2 says of it beside its values."""
        return {"name": self.name, "shape": self.shape, "datatype": self.datatype}


def tensors_of(inputs: dict[str, Any], declared: dict[str, Any]) -> list[Sent]:
    """*inputs*, nested lists by name, as a client sends them to a model whose inputs are *declared*."""
    sent = []
    for name, value in inputs.items():
        values, shape = flat(value), shape_of(value)
        assert shape is not None, name
        sent.append(Sent(name, likely(values, str(declared.get(name, {}).get("datatype"))), shape, values))
    return sent


Way = Callable[[Client, list[Sent], dict[str, Any]], Awaitable[Reply]]
"""How a client sends inputs and parameters."""

LIMIT = aiohttp.ClientTimeout(30)


async def in_binary(client: Client, inputs: list[Sent], parameters: dict[str, Any]) -> Reply:
    """Send binary tensors over HTTP, and get such."""
    entries = [{**each.entry, "parameters": {"binary_data_size": len(each.blob)}} for each in inputs]
    header = {"inputs": entries, "parameters": {**parameters, "binary_data_output": True}}
    reply = await client.infer_binary(header, *[each.blob for each in inputs], model=MODEL, timeout=LIMIT)
    if reply.status != 200:
        return Reply(reply.status, reply.body.decode(errors="replace"), {})
    outputs, at = {}, int(reply.headers.get(HEADER_LENGTH, len(reply.body)))
    for entry in reply.json["outputs"]:
        size = entry["parameters"]["binary_data_size"]
        outputs[entry["name"]] = tuple(entry["shape"]), values_of(reply.body[at : at + size], entry["datatype"])
        at += size
    return Reply(200, "", outputs)


async def in_json(client: Client, inputs: list[Sent], parameters: dict[str, Any]) -> Reply:
    """Send JSON over HTTP, and get JSON."""
    header = {"inputs": [{**each.entry, "data": each.values} for each in inputs], "parameters": parameters}
    reply = await client.infer(json.dumps(header).encode(), model=MODEL, timeout=LIMIT)
    if reply.status != 200:
        return Reply(reply.status, reply.body.decode(errors="replace"), {})
    outputs = {
        each["name"]: (tuple(each["shape"]), read_as(each["datatype"], each["data"])) for each in reply.json["outputs"]
    }
    return Reply(200, "", outputs)


def read_as(datatype: str, data: list[Any]) -> list[Any]:
    """The values of *data*, JSON, as a client has them in an array of *datatype*: of FP32 the shortest text comes."""
    if datatype not in ("FP16", "FP32"):
        return flat(data)
    return list(np.array(flat(data), NUMPY[datatype]).tolist())


async def over_grpc(client: Client, inputs: list[Sent], parameters: dict[str, Any]) -> Reply:
    """Send raw contents over gRPC."""
    message = service_pb2.ModelInferRequest(model_name=MODEL, raw_input_contents=[each.blob for each in inputs])
    for each in inputs:
        message.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
    for name, value in parameters.items():
        kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
        setattr(message.parameters[name], kinds[type(value)], value)
    (url,) = client.gateway.grpc_urls
    async with grpc.aio.insecure_channel(url.rpartition("/")[2]) as channel:
        try:
            reply = await service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=30)
        except grpc.aio.AioRpcError as error:
            return Reply(500, f"{error.code().name}: {error.details()}", {})
    pairs = zip(reply.outputs, reply.raw_output_contents, strict=True)
    return Reply(200, "", {each.name: (tuple(each.shape), values_of(blob, each.datatype)) for each, blob in pairs})
