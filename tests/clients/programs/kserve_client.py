"""Does with kserve's own client what each line of standard input says, and answers each with a line: both are JSON.

A line is the arguments of one call of `InferenceRESTClient`, which is used as its users do, with nothing replaced.
"""

import asyncio
import base64
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput
from kserve.utils.numpy_codec import to_np_dtype


def tensor(
    name: str,
    datatype: str,
    shape: list[int],
    blob: str = "",
    texts: list[str] | None = None,
    binary: bool = True,
    claimed_shape: list[int] | None = None,
) -> Any:
    """An input; *claimed_shape* replaces the shape once the data is in, for a request that is wrong."""
    if texts is not None:
        array = np.array([base64.b64decode(text) for text in texts] + [None], np.object_)[:-1].reshape(shape)
    else:
        array = np.frombuffer(base64.b64decode(blob), to_np_dtype(datatype)).reshape(shape)
    made = InferInput(name, shape, datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    if claimed_shape is not None:
        made.shape = claimed_shape
    return made


def described(output: Any) -> dict[str, Any]:
    """An output of a reply, as numpy sees it."""
    array = output.as_numpy()
    facts = {"name": output.name, "datatype": output.datatype, "shape": output.shape, "parameters": output.parameters}
    if output.datatype == "BYTES":
        items = [item.encode() if isinstance(item, str) else item for item in array.ravel()]
        return facts | {"texts": [base64.b64encode(item).decode() for item in items]}
    return facts | {"numpy": str(array.dtype), "blob": base64.b64encode(array.tobytes()).decode()}


async def infer(
    client: Any,
    url: str,
    model: str,
    inputs: list[dict[str, Any]],
    outputs: list[dict[str, Any]] | None = None,
    parameters: dict[str, Any] | None = None,
    request_id: str | None = None,
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    request = InferRequest(
        model_name=model,
        infer_inputs=[tensor(**one) for one in inputs],
        request_id=request_id,
        parameters=parameters,
        request_outputs=[RequestedOutput(**one) for one in outputs] if outputs else None,
    )
    got: dict[str, str] = {}
    reply = await client.infer(url, request, model_name=model, headers=headers, response_headers=got)
    return {
        "id": reply.id,
        "model_name": reply.model_name,
        "parameters": reply.parameters,
        "outputs": [described(output) for output in reply.outputs],
        "headers": got,
    }


async def infer_dict(client: Any, url: str, model: str, data: dict[str, Any]) -> dict[str, Any]:
    reply = await client.infer(url, data, model_name=model)
    return {"outputs": [described(output) for output in reply.outputs]}


CALLS: dict[str, Callable[..., Awaitable[Any]]] = {
    "infer": infer,
    "infer_dict": infer_dict,
    "live": lambda client, url: client.is_server_live(url),
    "ready": lambda client, url: client.is_server_ready(url),
    "model_ready": lambda client, url, model: client.is_model_ready(url, model),
}


async def main() -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v2", timeout=30)) as client:
        for line in sys.stdin:
            said = json.loads(line)
            try:
                outcome = {"value": await CALLS[said.pop("call")](client, **said)}
            except Exception as error:
                outcome = {"error": str(error), "type": type(error).__name__}
            print(json.dumps(outcome), flush=True)


asyncio.run(main())
