"""A request whose tensors came as values and not in a body: as if its client had sent them in binary.

Here: what its JSON would say. Not here: the proof that it is right (`request`), and where the values come from.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw

from gateway.codec.inference import HeaderLimits
from gateway.codec.v2.framing import SeparateBlobs
from gateway.codec.v2.messages import Entry, Parameters, Request, check_count
from gateway.codec.v2.request_reading import RequestText

_OF_EXTENSION = ("binary_data_size", "binary_data", "binary_data_output")


class InputValues(NamedTuple):
    """An input."""

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: Mapping[str, object]
    blob: memoryview | None
    """Its values as in a binary body; None if they are in shared memory, which its *parameters* say."""


def request_from_values(
    inputs: Sequence[InputValues],
    outputs: Mapping[str, Mapping[str, object]],
    parameters: Mapping[str, object],
    identity: str,
    limits: HeaderLimits,
) -> RequestText:
    """A request for `InferRequest.proved`. *outputs* are those that are listed, each with its parameters.

    All outputs are wanted in binary. *identity* is the id, maybe empty. Raises `CodecError` for more tensors than
    *limits* allow.
    """
    check_count(inputs, "inputs", limits.max_tensors)
    check_count(outputs, "outputs", limits.max_tensors)
    blobs = [tensor.blob for tensor in inputs if tensor.blob is not None]
    request = Request(
        id=_text(identity),
        parameters={**(_texts(parameters) or {}), "binary_data_output": Raw(b"true")},
        inputs=[
            Entry(_text(name), _text(list(shape)), _text(datatype), _texts(own, blob))
            for name, datatype, shape, own, blob in inputs
        ],
        outputs=[Entry(_text(name), parameters=_texts(own) or UNSET) for name, own in outputs.items()],
    )
    return RequestText(request, SeparateBlobs(blobs), False, [], sum(map(len, blobs)))


def _text(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def _texts(parameters: Mapping[str, object], blob: memoryview | None = None) -> Parameters | None:
    """*parameters* as JSON, of those of the extension only the size of the *blob*; None if there are none."""
    texts = {key: _text(value) for key, value in parameters.items() if key not in _OF_EXTENSION}
    if blob is not None:
        texts["binary_data_size"] = _text(len(blob))
    return texts or None
