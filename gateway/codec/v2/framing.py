"""How a body is cut into its JSON header and the blobs behind it (protocol section 1).

Here: the header length, the cursor over the blobs, and copies of blobs. Not here: what the JSON says.
"""

import re
from collections.abc import Generator, Sequence

import msgspec
import numpy as np

from gateway.errors import CodecError

HEADER_LENGTH = "Inference-Header-Content-Length"

# The front ends of SageMaker and Vertex pass no headers on, so their clients put the length into the content type.
_VENDOR_TYPE = re.compile(
    r"\s*(application/vnd\.(?:sagemaker|vertex-ai)-triton\.binary\+json)\s*;\s*json-header-size\s*=\s*(.*?)\s*",
    re.IGNORECASE,
)
_COPY_BYTES = 256 * 1024
_MAX_DIGITS = 19


class Framing(msgspec.Struct, frozen=True):
    """Where the JSON header ends, and in which form the reply says the same."""

    header_length: int | None
    """In bytes; None if the client did not say."""
    media_type: str | None = None
    """The vendor's content type that the client used, and that the reply uses too (protocol section 6)."""
    blobs: Sequence[memoryview] | None = None
    """The blobs, where they are in buffers of their own; None: they are behind the JSON, in the same one."""

    def content_type(self, header_bytes: int) -> str:
        """The content type of a reply with blobs behind a header of *header_bytes*."""
        if self.media_type is None:
            return "application/octet-stream"
        return f"{self.media_type};json-header-size={header_bytes}"


def parse_framing(header_lengths: Sequence[str], content_type: str) -> Framing:
    """The framing from every value of `HEADER_LENGTH`, which wins (protocol 1.6), and the `Content-Type` (section 6).

    Raises `CodecError` for a length that is not in decimal digits, and for two that differ (protocol 1.2).
    """
    lengths = set(map(_length_of, header_lengths))
    if len(lengths) > 1:
        raise CodecError(f"{HEADER_LENGTH}: sent more than once with different values: {sorted(lengths)}")
    length = lengths.pop() if lengths else None
    vendor = _VENDOR_TYPE.fullmatch(content_type) if "triton" in content_type.lower() else None
    if vendor is None:
        return Framing(length)
    return Framing(_length_of(vendor[2]) if length is None else length, vendor[1])


def _length_of(value: str) -> int:
    """The header length that *value* says. Raises `CodecError` for what is not in decimal digits (protocol 1.2)."""
    digits = value.strip(" \t")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
        raise CodecError(f"{HEADER_LENGTH} or json-header-size: expected decimal digits, got {value[:64]!r}")
    return int(digits)


class Cursor:
    """Takes blobs off the binary part of a body, front to back. No other code counts offsets into it."""

    __slots__ = ("_buffer", "_others")

    def __init__(self, buffer: memoryview, *others: memoryview) -> None:
        """*buffer* and then *others* are the binary part; each blob lies in one of them."""
        self._buffer = buffer
        self._others = [*reversed(others)]

    def __len__(self) -> int:
        """How many bytes are left."""
        return len(self._buffer) + sum(map(len, self._others))

    def take(self, n_bytes: int) -> memoryview:
        """The next *n_bytes* as a view. Raises `CodecError` if they are missing (protocol 1.5)."""
        while len(blob := self._buffer[:n_bytes]) < n_bytes:
            left = len(blob)
            if left or not self._others:
                raise CodecError(
                    f"binary_data_size is {n_bytes}, but only {left} bytes of the body are left: {n_bytes - left} "
                    "bytes missing"
                )
            self._buffer = self._others.pop()
        self._buffer = self._buffer[n_bytes:]
        return blob

    def finish(self) -> None:
        """Raise `CodecError` if bytes are left over (protocol 1.5)."""
        if self._buffer or any(self._others):
            raise CodecError(f"{len(self)} bytes left over behind the binary_data_size of the last binary input")


def copied(blob: memoryview, *, behind: bytes = b"") -> Generator[None, None, memoryview]:
    """A copy of *blob*, *behind* some bytes, in memory of its own; yields after each step of work."""
    # np.empty leaves the pages alone until they are written; bytearray(n) would clear them all at once
    whole: memoryview = np.empty(len(behind) + len(blob), np.uint8).data
    whole[: len(behind)] = behind
    copy = whole[len(behind) :]
    for start in range(0, len(blob), _COPY_BYTES):
        copy[start : start + _COPY_BYTES] = blob[start : start + _COPY_BYTES]
        yield
    return whole
