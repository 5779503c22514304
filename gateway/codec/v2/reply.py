"""What the client gets for an inference: JSON, and the blobs of its binary outputs behind it."""

import msgspec

from gateway.codec.json.pieced import joined
from gateway.codec.tensors.datatypes import Datatype

WRITE_BYTES = 4096
"""Texts of the reply that are shorter are joined, so that a reply is a few writes."""


class ReplyOutput(msgspec.Struct, frozen=True):
    """A binary output."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    blobs: list[memoryview]
    """Its values, in one or several pieces."""


class Reply(msgspec.Struct, frozen=True):
    """What the client gets: `header` and then `blobs`, none of them joined."""

    header: list[bytes]
    """The JSON, in pieces."""
    outputs: list[ReplyOutput]
    """The binary outputs, in the order of the answer; if there are any, the reply has a header length."""
    nonfinite: int
    """How many NaN and infinities the backend wrote as null, literals or strings."""

    @property
    def blobs(self) -> list[memoryview]:
        """The blobs of all binary outputs, in the order of `outputs`."""
        return [blob for output in self.outputs for blob in output.blobs]

    @property
    def datatypes(self) -> list[str]:
        """The datatype of each binary output."""
        return [output.datatype.name for output in self.outputs]

    @property
    def header_bytes(self) -> int:
        """The length of the JSON."""
        return sum(map(len, self.header))

    @property
    def n_bytes(self) -> int:
        """The length of the whole body."""
        return self.header_bytes + sum(map(len, self.blobs))


def long_pieces(texts: list[bytes]) -> list[bytes]:
    """*texts*, which are the JSON of a reply, in few pieces; long ones stay themselves."""
    return [bytes(piece) for piece in joined(texts, WRITE_BYTES)]
