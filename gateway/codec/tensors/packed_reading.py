"""Reads tensors of numbers in base64, a piece at a time: each text is the last dimension, see `packed_printing`.

    ["AACAPwAAAEA=", "AABAQAAAgEA="]     as FP32     shape [2, 2]

A text is decoded while it arrives, so memory holds the tensor and one piece of text. The decoded bytes are those of the
wire: nothing has to be converted.
"""

import binascii
import json
from typing import Any, ClassVar

import numpy as np
import orjson

from gateway.codec.json.members import excerpt
from gateway.codec.tensors.base64_reading import octets_of
from gateway.codec.tensors.datatypes import Datatype
from gateway.codec.tensors.nesting import TensorSink
from gateway.codec.tensors.string_reading import BLOB_BYTES
from gateway.errors import CodecError

_BREAKS = b"\r\n"  # Python's `encodebytes` makes lines


class PackedNumberSink(TensorSink):
    """Takes the values of one tensor, texts in lists or one text, as bytes of its datatype."""

    piece_bytes: ClassVar[int] = 16 * 1024  # short texts take a microsecond each

    def __init__(self, label: str, datatype: Datatype) -> None:
        """*label* names the tensor in errors."""
        super().__init__(label, None)
        self._datatype = datatype
        self._full_blobs: list[bytearray] = []
        self._blob = bytearray()
        self._text_bytes = -1  # the size of every text, decoded
        self._long_bytes = -1  # that of the part of a long text that has been decoded; -1 outside of one
        self._rest = b""  # of a long text what follows the last group of four characters
        self._has_long = False

    @property
    def held_bytes(self) -> int:
        """The bytes so far."""
        return sum(map(len, self._full_blobs)) + len(self._blob)

    @property
    def shape(self) -> tuple[int, ...]:
        """See `TensorSink`. A list without texts does not show the last dimension."""
        lists = super().shape
        return lists if 0 in lists else (*lists, self._text_bytes // self._datatype.item_bytes)

    def blobs(self) -> list[memoryview]:
        """The bytes on the wire, when all is `done`: one or several pieces of whole elements, in order."""
        return [memoryview(blob) for blob in (*self._full_blobs, self._blob) if blob] or [memoryview(b"")]

    def _judge(self, text: bytes, opened: bytes | bytearray) -> None:
        """See `Prover`: decode the texts in a piece. An empty one stands in place of a long one, decoded before."""
        layout = self._layout
        text = layout.listed(text)
        try:
            tree = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            tree = self._load(text, error)
        lengths, items = layout.items_in(tree)
        first, self._has_long = int(self._has_long), False
        if not self._take_alike(items[first:]):
            for index, item in enumerate(items[first:], layout.count + first):
                octets = octets_of(self._base64_of(item, index), index)
                self._take_text(len(octets), index)
                self._append(octets)
        self._end_piece(lengths, len(items), opened)

    def _load(self, text: bytes, error: ValueError) -> Any:
        """Parse *text*, which orjson has refused with *error*: many servers write NaN and the infinities."""
        try:
            return json.loads(text)
        except ValueError:
            raise CodecError(f"element {self._layout.count}, or one after it, is not JSON: {error}") from None

    def _base64_of(self, item: Any, index: int) -> bytes:
        """The text *item* without line breaks. Raises `CodecError` for something else."""
        if type(item) is not str:
            raise CodecError(f"element {index}: expected a text in base64, got {excerpt(json.dumps(item).encode())}")
        return item.encode(errors="replace").translate(None, _BREAKS)

    def _take_alike(self, items: list[Any]) -> bool:
        """Store the texts *items* at once; False if they are not of one length, so that each is looked at."""
        octets = decoded_together(items) if len(items) > 1 else None
        if octets is None:
            return False
        self._take_text(len(octets) // len(items), self._layout.count)
        self._append(octets)
        return True

    def _begin_string(self, before: bytes) -> None:
        """See `Prover`: a long text begins."""
        if not self._layout.rank:
            self._layout.begin(before)
        if b"{" in before:
            got = excerpt(before[before.index(b"{") :])
            raise CodecError(f"element {self._layout.count}: expected a text in base64, got {got}")
        self._long_bytes = 0
        self._has_long = True

    def _judge_string(self, part: bytes, *, is_closed: bool) -> None:
        """See `Prover`: decode the next part of a long text."""
        index = self._layout.count
        if b"\\" in part:
            try:
                part = orjson.loads(b'"%b"' % part).encode()
            except orjson.JSONDecodeError as error:
                raise CodecError(f"element {index} is not JSON: {error}") from None
        text = self._rest + part.translate(None, _BREAKS)
        end = len(text) if is_closed else max(len(text) - 1, 0) // 4 * 4  # the last group may have the padding
        self._rest = text[end:]
        octets = octets_of(text[:end], index, goes_on=not is_closed)
        self._long_bytes += len(octets)
        self._append(octets)
        if is_closed:
            self._take_text(self._long_bytes, index)

    def _take_text(self, n_bytes: int, index: int) -> None:
        """Note that the text at *index* has *n_bytes*, decoded. Raises `CodecError` if others have another number."""
        item_bytes, name = self._datatype.item_bytes, self._datatype.name
        if n_bytes % item_bytes:
            words = f"expected whole elements of {name}, {item_bytes} bytes each, in base64"
            raise CodecError(f"element {index}: {words}, got {n_bytes} bytes")
        if self._text_bytes < 0:
            self._text_bytes = n_bytes
        if self._text_bytes != n_bytes:
            expected, got = self._text_bytes // item_bytes, n_bytes // item_bytes
            raise CodecError(f"element {index}: expected {expected} elements of {name} as in element 0, got {got}")

    def _append(self, octets: bytes) -> None:
        self._blob += octets
        if len(self._blob) >= BLOB_BYTES:
            whole = len(self._blob) // self._datatype.item_bytes * self._datatype.item_bytes
            self._full_blobs.append(self._blob)
            self._blob = self._blob[whole:]
            del self._full_blobs[-1][whole:]


def decoded_together(items: list[Any]) -> bytes | None:
    """Decode the texts *items*, which are base64, one after the other. None unless all are valid and of one length.

    They are decoded as one text, with zeros in place of each padding: for short texts 20 times faster than one by one.

        "AACAPw==", "AAAAQA=="     ->     AACAPwAAAAAAQAAA     ->     00 00 80 3f (00 00) 00 00 00 40 (00 00)
    """
    try:
        text = "".join(items).encode("ascii")
        size = len(items[0])
        if set(map(len, items)) != {size}:
            return None
    except (TypeError, UnicodeEncodeError):
        return None
    n_padding = size - len(items[0].rstrip("="))
    if not size or size % 4 or n_padding > 2 or text.count(b"=") != n_padding * len(items):
        return None
    codes = np.frombuffer(bytearray(text), np.uint8).reshape(-1, size)
    padding = codes[:, size - n_padding :]
    if np.count_nonzero(padding == ord("=")) < padding.size:
        return None
    padding[:] = ord("A")
    try:
        octets = binascii.a2b_base64(codes.data, strict_mode=True)
    except ValueError:
        return None
    if not n_padding:
        return octets
    return np.frombuffer(octets, np.uint8).reshape(len(items), -1)[:, :-n_padding].tobytes()
