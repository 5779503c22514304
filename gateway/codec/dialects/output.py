"""One output of an answer in another dialect than V2: what the client is to get of it, and its values so far.

Not here: where an answer has them, and how they are read (`outputs`).
"""

from gateway.codec.dialects.description import TensorDescription
from gateway.codec.inference import label_of, shape_text
from gateway.codec.tensors.datatypes import Datatype, Kind
from gateway.codec.tensors.number_reading import NumberSink
from gateway.codec.tensors.string_reading import BytesSink
from gateway.codec.values import Value
from gateway.errors import CodecError

JOIN_BYTES = 64 * 1024
"""Values that take less are joined, so that millions of rows are few buffers."""

JOINED_BYTES = 1024 * 1024
"""How much is joined in one buffer: what a `bytearray` copies at most when it grows."""

SETTING = "`models` in the backend's configuration"
_MISSING_HINT = f", which is no string; `missing` of the output in {SETTING} can say what it becomes"


class Output:
    """An output that the client wants, and its values so far."""

    def __init__(self, name: str, datatype: Datatype, described: TensorDescription | None = None) -> None:
        """*described* is what else the model's description says of it."""
        self.name = name
        self.datatype = datatype
        self.described = described or TensorDescription(name)
        self.nonfinite = 0
        self.shape: tuple[int, ...] = (0,)
        self.row: bytes | Value | None = None
        """The value in the row that is being read, or its text."""
        self.waiting = bytearray()
        """The texts of values that have not been read, each with a bracket or a comma before it."""
        self._blobs: list[memoryview] = []
        self._blob_bytes = 0
        self._joined = bytearray()

    @property
    def label(self) -> str:
        """How errors call it."""
        return f"{label_of('output', self.name)} ({self.datatype.name})"

    @property
    def is_base64(self) -> bool:
        """Whether its elements are strings of base64."""
        return self.datatype.kind is Kind.BYTES and self.described.encoding == "base64"

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape; of an empty tensor with the dimensions that its lists cannot show, where they are described."""
        inner = (self.described.shape or ())[len(self.shape) :]
        return (*self.shape, *inner) if 0 in self.shape and min(inner, default=0) >= 0 else self.shape

    @property
    def n_bytes(self) -> int:
        """The size on the wire of all values that have been read."""
        return self._blob_bytes + len(self._joined)

    @property
    def held_bytes(self) -> int:
        """What it takes so far."""
        row = self.row.n_bytes if isinstance(self.row, Value) else 0
        return self._blob_bytes + len(self._joined) + len(self.waiting) + row

    def sink(self, *, b64_objects: bool) -> NumberSink | BytesSink:
        """What reads a value of it."""
        label = f"{self.label}: from row {self.shape[0]} on" if self.shape[:1] > (0,) else self.label
        if self.datatype.kind is Kind.BYTES:
            missing = self.described.missing
            becomes = _MISSING_HINT if missing is None else missing.encode()
            return BytesSink(label, None, b64_objects=b64_objects, missing=becomes)
        return NumberSink(label, self.datatype, None)

    def wait(self, texts: bytes) -> None:
        """Keep the *texts* of values, with commas between them, for later."""
        self.waiting += b"," if self.waiting else b"["
        self.waiting += texts

    def take(self, value: Value) -> None:
        """Make *value* the whole of the output."""
        self.shape = value.shape
        self.nonfinite = value.nonfinite
        self._blobs = value.blobs
        self._blob_bytes = value.n_bytes

    def append(self, value: Value) -> None:
        """Put the rows of *value* behind the others. Raises `CodecError` if they do not have the same shape."""
        rows, row = value.shape[0], value.shape[1:]
        if self.shape[0] and row != self.shape[1:]:
            raise CodecError(
                f"{self.label}: rows of different shapes: {shape_text(self.shape[1:])}, "
                f"and from row {self.shape[0]} on {shape_text(row)}"
            )
        self.shape = (self.shape[0] + rows, *row)
        self.nonfinite += value.nonfinite
        for blob in value.blobs:
            if len(blob) < JOIN_BYTES:
                self._joined += blob
            else:
                self._end_joined()
                self._keep(blob)
            if len(self._joined) >= JOINED_BYTES:
                self._end_joined()

    def check_shape(self) -> None:
        """Raise `CodecError` unless the shape is the one of the model's description, where that says it."""
        expected, shape = self.described.shape, self.whole_shape
        if expected is None:
            return
        if len(shape) != len(expected) or any(size not in (-1, got) for size, got in zip(expected, shape, strict=True)):
            raise CodecError(
                f"{self.label}: the answer has the shape {shape_text(shape)}, and {SETTING} says {shape_text(expected)}"
            )

    def blobs(self) -> list[memoryview]:
        """All values on the wire, in one or several pieces."""
        self._end_joined()
        return self._blobs or [memoryview(b"")]

    def released(self) -> list[memoryview]:
        """As `blobs`, which are no longer held here."""
        blobs, self._blobs, self._blob_bytes = self.blobs(), [], 0
        return blobs

    def _end_joined(self) -> None:
        if self._joined:
            self._keep(memoryview(self._joined))
            self._joined = bytearray()

    def _keep(self, blob: memoryview) -> None:
        self._blobs.append(blob)
        self._blob_bytes += len(blob)
