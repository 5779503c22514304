"""How a body is cut into its JSON header and the blobs behind it (protocol section 1).

Here: the header length and the cursor over the blobs. Not here: what the JSON says.
"""

import re
from collections.abc import Sequence

from gateway.errors import CodecError

HEADER_LENGTH = "Inference-Header-Content-Length"

_DIGITS = re.compile(r"[ \t]*([0-9]{1,19})[ \t]*", re.ASCII)


def parse_header_length(values: Sequence[str]) -> int | None:
    """The JSON header's length in bytes from every value of `HEADER_LENGTH`; None when there is none.

    Raises `CodecError` for anything but decimal digits, and for two that differ (protocol 1.2).
    """
    lengths = set()
    for value in values:
        match = _DIGITS.fullmatch(value)
        if match is None:
            raise CodecError(
                f"{HEADER_LENGTH}: expected the length of the JSON header in decimal digits, got {value[:64]!r}"
            )
        lengths.add(int(match[1]))
    if len(lengths) > 1:
        listed = ", ".join(str(length) for length in sorted(lengths))
        raise CodecError(f"{HEADER_LENGTH}: sent more than once with different values: {listed}")
    return lengths.pop() if lengths else None


class Cursor:
    """Takes blobs off the binary part of a body, front to back; the only place that counts offsets."""

    __slots__ = ("_binary", "_offset")

    def __init__(self, binary: memoryview) -> None:
        self._binary = binary
        self._offset = 0

    def take(self, n_bytes: int, what: str) -> memoryview:
        """The next *n_bytes* as a view. Raises `CodecError` naming *what* when they are not there."""
        left = len(self._binary) - self._offset
        if n_bytes > left:
            raise CodecError(
                f"{what}: binary_data_size is {n_bytes}, but only {left} bytes of the body are left: "
                f"{n_bytes - left} bytes missing"
            )
        view = self._binary[self._offset : self._offset + n_bytes]
        self._offset += n_bytes
        return view

    def finish(self) -> None:
        """Raise `CodecError` if bytes are left over."""
        left = len(self._binary) - self._offset
        if left:
            raise CodecError(
                f"{left} bytes left over behind the last binary input: the binary_data_size of all inputs "
                f"add up to {self._offset}, the body has {len(self._binary)} bytes behind its JSON"
            )
