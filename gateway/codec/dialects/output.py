"""One output of an answer in another dialect than V2: what the client is to get of it, and its values so far."""

import math

import numpy as np
import numpy.typing as npt

from gateway.codec.dialects.declared import ANY, TensorDescription, declared_text, fits
from gateway.codec.inference import label_of, shape_text
from gateway.codec.json.arriving import STEP, ArrivingText, Reading, stepwise
from gateway.codec.json.members import excerpt
from gateway.codec.json.pieces import OBJECT
from gateway.codec.tensors.datatypes import BYTES, Datatype
from gateway.codec.tensors.elements import joined_blobs
from gateway.codec.tensors.number_reading import NumberSink
from gateway.codec.tensors.packed_reading import PackedNumberSink
from gateway.codec.tensors.row_order import rows_in_order
from gateway.codec.tensors.string_reading import BytesSink
from gateway.codec.values import SHORT_BYTES, Value, short_value
from gateway.errors import CodecError

Text = bytes | ArrivingText
"""The JSON of a value: of a short one its bytes, which a parser has proved; of a long one the text that it comes in."""

JOINED_BYTES = 1024 * 1024
"""Up to how many bytes values are joined, so that millions of rows are few buffers; growing may copy them all."""

SETTING = "`models` in the backend's configuration"
_TEXT_HINT = f", which is no number; `encoding: text` of the output in {SETTING} reads numbers in texts"
_MISSING_HINT = f", which is no string; `missing` of the output in {SETTING} can say what it becomes"


class Output:
    """An output that the client wants, and its values so far."""

    nonfinite = 0
    shape: tuple[int, ...] = (0,)
    n_bytes = 0
    """The size of `blobs`."""
    _sink: NumberSink | PackedNumberSink | BytesSink | None = None

    def __init__(
        self,
        name: str,
        described: TensorDescription,
        datatype: Datatype,
        path: str = "",
        sizes: dict[str, int] | None = None,
        *,
        b64_objects: bool = False,
    ) -> None:
        """*described* is what the model's description says of it, *path* where answers have it, if it has a path.

        *sizes* are those of the named dimensions so far. *b64_objects* is that of `AnswerForm`.
        """
        self.name = name
        self.datatype = datatype
        self.is_base64 = datatype.kind is BYTES and described.encoding == "base64"
        """Whether the elements stand in base64, as strings or in objects."""
        self._takes_texts = described.encoding == "text"
        self._is_packed = datatype.kind is not BYTES and described.encoding == "base64"
        self.waiting = bytearray()
        """The texts of values that have not been read, each with a bracket or a comma before it."""
        self.blobs: list[memoryview | bytearray] = []
        """All values on the wire that have been read, in pieces."""
        self._described = described
        self._path = path
        self._sizes = {} if sizes is None else sizes
        self._b64_objects = b64_objects

    @property
    def label(self) -> str:
        """The output, as errors name it."""
        return f"{label_of('output', self.name)} ({self.datatype.name}{f', at {self._path}' if self._path else ''})"

    @property
    def may_be_scalars(self) -> bool:
        """Whether its last dimension is that of texts in base64 with one number each, which may stand for scalars."""
        return self._is_packed and self.shape[-1:] == (1,)

    @property
    def held_bytes(self) -> int:
        """The memory that the output takes so far."""
        return self.n_bytes + len(self.waiting) + (self._sink.held_bytes if self._sink is not None else 0)

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape; of an empty tensor with the dimensions that its lists cannot show, where they are described."""
        if 0 not in self.shape:
            return self.shape
        declared = (self._described.shape or ())[len(self.shape) :]
        inner = [self._sizes.get(size, ANY) if isinstance(size, str) else size for size in declared]
        return (*self.shape, *inner) if ANY not in inner else self.shape

    @property
    def value(self) -> Value:
        """All values that have been read."""
        return Value(self.shape, [memoryview(blob) for blob in self.blobs], self.nonfinite)

    def read(self, text: Text) -> Reading[Value]:
        """Read *text*, nested data or a scalar."""
        if isinstance(text, bytes):
            value = None if self._is_packed else short_value(text, self.datatype, takes_texts=self._takes_texts)
            if value is not None:
                return value
            text = ArrivingText.of_value(bytearray(text))
        code = yield from text.first()
        if code == OBJECT and not self._b64_objects:
            raise CodecError(f"{self.label}: expected values, got {shown(text)}")
        self._sink = sink = self.new_sink()
        yield from text.pour(sink)
        self._sink = None
        return Value(sink.shape, sink.blobs(), sink.nonfinite if isinstance(sink, NumberSink) else 0)

    def new_sink(self) -> NumberSink | PackedNumberSink | BytesSink:
        """What reads a value that is not read at once."""
        label = f"{self.label}: from row {self.shape[0]} on" if self.shape[:1] > (0,) else self.label
        if self._is_packed:
            return PackedNumberSink(label, self.datatype)
        if self.datatype.kind is not BYTES:
            return NumberSink(label, self.datatype, None, takes_texts=self._takes_texts, texts_hint=_TEXT_HINT)
        missing = self._described.missing
        becomes = _MISSING_HINT if missing is None else missing.encode()
        sink = BytesSink(label, None, b64_objects=self._b64_objects, missing=becomes)
        sink.keeps_base64 = self.is_base64
        return sink

    def wait(self, texts: bytes, most_bytes: int) -> Reading[None]:
        """Keep the *texts* of rows, with commas between them, for later; at most *most_bytes* of them wait."""
        self.waiting += b"," if self.waiting else b"["
        self.waiting += texts
        if len(self.waiting) >= most_bytes:
            yield from self.read_waiting()

    def read_waiting(self) -> Reading[None]:
        """Read the texts that wait as one array."""
        if self.waiting:
            waiting, self.waiting = self.waiting, bytearray()
            waiting += b"]"
            is_short = len(waiting) <= SHORT_BYTES
            self.append((yield from self.read(bytes(waiting) if is_short else ArrivingText.of_value(waiting))))
            yield STEP

    def take(self, value: Value) -> None:
        """Make *value* the whole of the output."""
        self.shape = self._whole(value.shape)
        self.nonfinite = value.nonfinite
        self.blobs += value.blobs
        self.n_bytes = value.n_bytes

    def append(self, value: Value) -> None:
        """Put the rows of *value* behind the others. Raises `CodecError` if they do not have the same shape."""
        shape = self._whole(value.shape)
        rows, row = shape[0], shape[1:]
        if self.shape[0] and row != self.shape[1:]:
            raise CodecError(
                f"{self.label}: rows of different shapes: {shape_text(self.shape[1:])}, "
                f"and from row {self.shape[0]} on {shape_text(row)}"
            )
        self.shape = (self.shape[0] + rows, *row)
        self.nonfinite += value.nonfinite
        self.n_bytes += value.n_bytes
        for blob in value.blobs:
            last = self.blobs[-1] if self.blobs else b""
            if isinstance(last, bytearray) and len(last) + len(blob) <= JOINED_BYTES:
                last += blob
            else:
                self.blobs.append(blob if len(blob) > JOINED_BYTES else bytearray(blob))

    def _whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """*shape*, but without the dimension that a text in base64 is if the model's description has none there."""
        described = self._described.shape
        is_scalars = self._is_packed and described is not None and len(described) + 1 == len(shape) and shape[-1] == 1
        return shape[:-1] if is_scalars else shape

    def check_shape(self) -> None:
        """Raise `CodecError` unless the shape is the one of the model's description, where that says it."""
        expected, shape = self._described.shape, self.whole_shape
        if expected is not None and not fits(expected, shape, self._sizes):
            said = declared_text(expected, self._sizes)
            raise CodecError(f"{self.label}: the answer has the shape {shape_text(shape)}, and {SETTING} says {said}")

    def put_in_order(self, indexes: npt.NDArray[np.int64]) -> Reading[None]:
        """Put its rows into the order of *indexes*: row i of the answer becomes row `indexes[i]`.

        Raises `CodecError` if it does not have that many rows.
        """
        if self.shape[:1] != indexes.shape:
            raise CodecError(f"{self.label}: {self.shape[:1]} rows, and `order` has {len(indexes)}")
        blobs, self.blobs = self.blobs, []
        whole = yield from stepwise(joined_blobs([memoryview(blob) for blob in blobs]))
        del blobs
        row_elements = math.prod(self.shape[1:])
        self.blobs = [(yield from stepwise(rows_in_order(whole, self.datatype, row_elements, indexes)))]


def shown(text: Text) -> str:
    """What *text* begins with, for errors."""
    return excerpt(text if isinstance(text, bytes) else bytes(text.buffer[:256])).strip()
