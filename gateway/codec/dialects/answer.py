"""A backend's answer in another dialect than V2: from its JSON, as it arrives, to the client's reply in V2.

Where the outputs are is a tree of paths (`paths`): to each of them by itself, or to one member of the answer that has
all of them, in one of these forms:

    nested data or a scalar      {"predictions": [[0.1, 0.2], [0.3, 0.4]]}     the only output that the model has
    an object by name            {"outputs": {"y": [0.1, 0.2], "n": [1, 2]}}
    rows: objects by name        {"predictions": [{"y": 0.1, "n": 1}, {"y": 0.2, "n": 2}]}
    a list in order              {"predictions": [[0.1, 0.2], [1, 2]]}         of several outputs, without their names
    rows: lists in order         {"predictions": [[0.1, 1], [0.2, 2]]}         the same, where the dialect has rows
    no rows                      {"predictions": []}                           of every output

Values become bytes of their datatypes while their text passes by, also those of outputs that the client wants in JSON:
so they are proved, and get the shape of their nesting. These are printed again, flat, at the end. The other members of
the answer are passed over.
"""

from collections.abc import Generator, Iterator
from typing import Any

from msgspec import Raw

from gateway.codec.dialects.description import OCTETS_SUFFIX
from gateway.codec.dialects.output import Output
from gateway.codec.dialects.walk import Walk
from gateway.codec.json.arriving import ArrivingText
from gateway.codec.json.pieces import SPACE
from gateway.codec.tensors import number_printing
from gateway.codec.tensors.base64_reading import from_base64
from gateway.codec.tensors.datatypes import BYTES
from gateway.codec.tensors.string_printing import StringForm, string_pieces
from gateway.codec.v2.messages import LIST_LATER, printed
from gateway.codec.v2.reply import Reply, ReplyOutput, long_pieces
from gateway.errors import CodecError


class DialectAnswer:
    """Reads one answer piece by piece: `feed` what arrives, then `finish`."""

    _reply_bytes = 0

    def __init__(self, walk: Walk, *, model: str, request_id: bytes, version: str | None = None) -> None:
        """*walk* finds the outputs in the answer.

        *model* and *version* are those of the client's path, *request_id* is JSON text or empty: they go into the
        reply.
        """
        self._said: dict[str, Any] = {"model_name": model}
        if version is not None:
            self._said["model_version"] = version
        if request_id:
            self._said["id"] = Raw(request_id)
        self._walk = walk
        self._text = ArrivingText()
        self._reading = walk.read(self._text)
        """Nothing that its frame refers to knows it: no tensor waits for the garbage collector."""

    @property
    def held_bytes(self) -> int:
        """What the answer takes so far: what is filled of the outputs, text that waits, and its other members."""
        return self._walk.held_bytes + self._reply_bytes

    def feed(self, chunk: bytes) -> Generator[None, None, None]:
        """See `InferAnswer.feed`."""
        if self._text.add(chunk):
            yield from self._read_on()

    def finish(self, last: bytes = b"") -> Generator[None, None, Reply]:
        """See `InferAnswer.finish`."""
        outputs = yield from self.outputs(last)
        return (yield from self.reply(outputs))

    def outputs(self, last: bytes = b"") -> Generator[None, None, list[Output]]:
        """The outputs of the answer, of which *last* is the last piece. Raises `CodecError`."""
        self._text.add(last)
        if self._walk.form.tree.output is not None:  # the answer may be a number, which ends where something follows it
            self._text.add(b" ")
        self._text.end()
        yield from self._read_on()
        outputs = list(self._walk.found.values())
        for output in outputs:
            if output.is_base64:  # Python's `encodebytes`, which MLflow writes base64 with, makes lines
                octets = from_base64([memoryview(blob) for blob in output.blobs], output.label, b"\r\n")
                output.blobs = [*(yield from octets)]
                output.n_bytes = sum(map(len, output.blobs))
        return outputs

    def _read_on(self) -> Iterator[None]:
        """Read as far as the text goes."""
        for is_step in self._reading:
            if not is_step:
                return
            yield
        if self._text.buffer.strip(SPACE):
            raise CodecError(f"the JSON ends after {self._text.consumed} bytes, but more follows")
        self._text.buffer.clear()

    def reply(self, outputs: list[Output]) -> Generator[None, None, Reply]:
        """The outputs as the client wants each of them, in V2's words (protocol 4.1, 4.4, 4.6)."""
        entries: list[dict[str, Any]] = []
        binary: list[ReplyOutput] = []
        later: list[list[bytes]] = []
        for output in outputs:
            entry: dict[str, Any] = {"name": output.name, "shape": output.whole_shape, "datatype": output.datatype.name}
            if entries:
                yield
            entries.append(entry)
            if self._walk.selection.is_binary(output.name):
                entry["parameters"] = {"binary_data_size": output.n_bytes}
                views = [memoryview(blob) for blob in output.blobs]
                binary.append(ReplyOutput(output.name, output.datatype, output.shape, views))
            else:
                is_octets = self._walk.form.b64_objects and output.name.endswith(OCTETS_SUFFIX)
                is_base64 = output.datatype.kind is BYTES and (output.is_base64 or is_octets)
                if is_base64:
                    entry["parameters"] = {"content_type": "base64"}
                entry["data"] = LIST_LATER
                later.append([])
                blobs, output.blobs, output.n_bytes = output.blobs, [], 0  # they go as they are printed
                while blobs:
                    later[-1] += (b",",) if later[-1] else ()
                    for piece in _pieces(output, memoryview(blobs.pop(0)), is_base64=is_base64):
                        later[-1].append(bytes(piece))
                        self._reply_bytes += len(piece)
                        yield
        texts = printed({**self._said, "outputs": entries}, later)
        nonfinite = sum([output.nonfinite for output in outputs])
        return Reply(long_pieces(texts) if later else texts, binary, nonfinite)


def _pieces(output: Output, blob: memoryview, *, is_base64: bool) -> Iterator[bytes | bytearray]:
    """The values in *blob* as the inside of a JSON array. Raises `CodecError` for BYTES that are no text."""
    if output.datatype.kind is not BYTES:
        yield from number_printing.text_pieces(output.datatype.view(blob), output.datatype, literals=True)
        return
    try:
        for piece in string_pieces(blob, StringForm.BASE64 if is_base64 else StringForm.TEXT):
            if not piece.isascii():
                piece.decode()
            yield piece
    except UnicodeDecodeError:
        raise CodecError(f"{output.label}: an element is not UTF-8; only a binary output can have it") from None
