"""Elements of BYTES from base64 (protocol 4.8), a piece at a time."""

import binascii
from collections.abc import Generator

from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors.elements import PREFIX_BYTES
from gateway.errors import CodecError

ELEMENT_COST = 256
"""What an element costs beside its text, in bytes of it."""


def octets_of(text: bytes | memoryview, index: int, *, goes_on: bool = False) -> bytes:
    """The octets of base64 *text*, all of an element or whole groups of it; *index* names it in the `CodecError`."""
    try:
        octets = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise CodecError(f"element {index} is not base64: {error}") from None
    n_missing = len(text) * 3 // 4 - len(octets)
    if len(text) % 4 or n_missing > 2 or n_missing != bytes(text[len(text) - 2 :]).count(b"="):
        raise CodecError(f"element {index} is not base64: wrong padding")
    if n_missing and goes_on:
        raise CodecError(f"element {index} is not base64: padding before its end")
    return octets


def from_base64(blobs: list[memoryview], label: str, breaks: bytes = b"") -> Generator[None, None, list[memoryview]]:
    """The elements of *blobs* (length-prefixed base64) decoded, length-prefixed again (protocol 4.8).

    *breaks* are characters that may stand in it anywhere. Yields between steps. Raises `CodecError` naming *label* and
    the element.
    """
    decoded: list[memoryview] = []
    index = 0
    for blob in blobs:
        elements, index = yield from _decoded_elements(blob, label, index, breaks)
        decoded.append(memoryview(elements))
    return decoded


def _decoded_elements(
    view: memoryview, label: str, index: int, breaks: bytes
) -> Generator[None, None, tuple[bytearray, int]]:
    """The decoded elements of *view*, whose first is number *index*, and the number behind its last."""
    decoded = bytearray()
    offset = worked = 0
    while offset < len(view):
        start = offset + PREFIX_BYTES
        offset = end = start + int.from_bytes(view[offset:start], "little")
        while end > start and view[end - 1] in breaks:
            end -= 1
        length_at = len(decoded)
        decoded += bytes(PREFIX_BYTES)
        rest = b""  # what is behind the last group of a piece
        for piece_start in range(start, end, PIECE_BYTES):
            goes_on = piece_start + PIECE_BYTES < end
            text = rest + bytes(view[piece_start : min(piece_start + PIECE_BYTES, end)]).translate(None, breaks)
            whole = len(text) // 4 * 4 if goes_on else len(text)
            rest = text[whole:]
            try:
                decoded += octets_of(text[:whole], index, goes_on=goes_on)
            except CodecError as error:
                raise CodecError(f"{label}: {error}") from None
            worked += len(text)
            if goes_on:
                yield
        size = len(decoded) - length_at - PREFIX_BYTES
        decoded[length_at : length_at + PREFIX_BYTES] = size.to_bytes(PREFIX_BYTES, "little")
        index += 1
        worked += ELEMENT_COST
        if worked > PIECE_BYTES:
            worked = 0
            yield
    return decoded, index
