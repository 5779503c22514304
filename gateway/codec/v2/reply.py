"""What the client gets for an inference: JSON, and the blobs of its binary outputs behind it."""

import msgspec

WRITE_BYTES = 4096
"""Texts of the reply that are shorter are joined, so that a reply is a few writes."""


class Reply(msgspec.Struct, frozen=True):
    """What the client gets: `header` and then `blobs`, none of them joined."""

    header: list[bytes]
    """The JSON, in pieces."""
    blobs: list[memoryview]
    """Those of the binary outputs, in the order of the outputs; one output may have several."""
    datatypes: list[str]
    """The datatype of each binary output."""
    nonfinite: int
    """How many NaN and infinities the backend wrote as null, literals or strings."""

    @property
    def is_binary(self) -> bool:
        """Whether the client gets octets behind the JSON, and so a header length."""
        return bool(self.blobs)

    @property
    def header_bytes(self) -> int:
        """The length of the JSON."""
        return sum(map(len, self.header))

    @property
    def n_bytes(self) -> int:
        """The length of the whole body."""
        return self.header_bytes + sum(map(len, self.blobs))


class ReplyText:
    """JSON that is put together from many texts; long ones are not copied."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._run = bytearray()

    def add(self, text: bytes) -> None:
        """Append *text*."""
        if len(text) < WRITE_BYTES:
            self._run += text
            return
        self._end_run()
        self._pieces.append(text)

    def pieces(self) -> list[bytes]:
        """All of it."""
        self._end_run()
        return self._pieces

    def _end_run(self) -> None:
        if self._run:
            self._pieces.append(bytes(self._run))
            self._run.clear()
