"""The types of an adapter: a Python file for a server that YAML cannot describe.

A backend with `dialect: python` names such a file, and the gateway calls its two functions:

    from gateway.adapter import AdapterCall, AdapterOutputs, AdapterRequest

    def request(call: AdapterCall) -> AdapterRequest:
        return "/predict", {"rows": call.inputs["x"]}

    def answer(call: AdapterCall, status: int, body: Any) -> AdapterOutputs:
        return {"y": np.array([row["score"] for row in body["rows"]], np.float64)}

This module is for editors and mypy: importing it starts nothing, and an adapter works without it. What the functions
may do and return is in docs/configuration.md, "An adapter in Python". Not here: who calls them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

AdapterRequest = tuple[str, object]
"""What `request` returns: the path, from / on, with a query if it has one; and the body, which is sent as JSON.

The body may hold everything that JSON has, tuples, and numpy arrays and scalars of every dtype of numbers and texts.
"""

AdapterOutputs = Mapping[str, npt.ArrayLike]
"""What `answer` returns: an array for each output, by name, of the datatype that `models` says.

BYTES are arrays of `str`, `bytes` or objects of these; BF16 is returned as FP32, which is rounded. A list or a number
becomes the datatype that `models` says, as numbers in JSON do.
"""


@dataclass(frozen=True)
class AdapterCall:
    """One inference of a client. Both functions get the same object, which cannot be changed.

    It was proved right before `request` is called.
    """

    model: str
    """The model's name at the backend, decoded: in a path it stands as `urllib.parse.quote(call.model, safe="")`."""
    version: str | None
    """The version that the client's path names; None without one."""
    inputs: Mapping[str, npt.NDArray[Any]]
    """The inputs by name, in the client's order. Most arrays are views of the request; none can be written.

    BYTES are arrays of objects, each a `bytes`; BF16 are FP32, which has all of its values.
    """
    datatypes: Mapping[str, str]
    """The datatype of each input as the protocol names it, such as `FP32`, `BYTES` or `BF16`."""
    parameters: Mapping[str, Any]
    """The request's own parameters, parsed, without those of the protocol itself, such as `priority` or `timeout`."""
    outputs: tuple[str, ...]
    """The names of the outputs that the client wants: those it has listed, or all that `models` has."""
    id: Any
    """The request's id, mostly a text; None if the client sent none."""


class Adapter(Protocol):
    """The two functions. Both run in a thread, many at the same time."""

    def request(self, call: AdapterCall, /) -> AdapterRequest:
        """Make the path and the body of the POST. A `ValueError` is a 400 with its text, all else a 500."""

    def answer(self, call: AdapterCall, status: int, body: Any, /) -> AdapterOutputs:
        """Make the outputs of *body*, the parsed JSON of an answer with *status* 2xx. All that it raises is a 502."""
