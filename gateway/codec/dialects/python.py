"""The dialect `python`: an adapter of the owner's makes the requests, and the outputs of answers.

Here: what the gateway has to know of such a server without calling the adapter, and the reading of one answer. Not
here: how an adapter is imported and called, and arrays (`arrays`).
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import Any

from gateway.codec.dialects.answer import DialectAnswer
from gateway.codec.dialects.arrays import made_outputs, parsed_json
from gateway.codec.dialects.description import UNKNOWN, ModelDescription
from gateway.codec.dialects.dialect import Dialect, Paths
from gateway.codec.dialects.paths import AnswerForm, Node
from gateway.codec.dialects.walk import Walk
from gateway.codec.inference import OutputSelection
from gateway.codec.json.pieced import Piece, PiecedJson
from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.v2.reply import Reply

PARSED_PER_BYTE = 4
"""About how many bytes of Python's objects a byte of JSON becomes: numbers of six digits are 32 bytes and a pointer."""


class PythonDialect(Dialect):
    """Servers in front of which an adapter stands; models are described by the configuration alone."""

    name = "python"

    def paths(self, model: str, version: str | None, description: ModelDescription = UNKNOWN) -> Paths:
        """See `Dialect.paths`; the adapter makes the path of an inference, so this says only that there is one."""
        return Paths(infer="/") if description.outputs else Paths()

    def parameters(self, description: ModelDescription) -> Collection[str] | None:
        """See `Dialect.parameters`: an adapter gets all of them."""
        return None

    def answer_form(self, description: ModelDescription) -> AnswerForm:
        """See `Dialect.answer_form`: the adapter knows it."""
        return AnswerForm(Node("$"))


class WholeJson(PiecedJson):
    """A body that an adapter has made, as one text."""

    __slots__ = ("_text",)

    def __init__(self, text: bytes) -> None:
        self._text = memoryview(text)

    def texts(self) -> Iterator[Piece]:
        """See `PiecedJson.texts`."""
        return (self._text[start : start + PIECE_BYTES] for start in range(0, len(self._text), PIECE_BYTES))


class AdapterAnswer(DialectAnswer):
    """Collects one answer; `finish`, which calls the adapter, is for a thread."""

    def __init__(
        self,
        description: ModelDescription,
        selection: OutputSelection,
        sizes: Mapping[str, int],
        answer: Callable[[Any], object],
        *,
        model: str,
        request_id: bytes,
        version: str | None,
    ) -> None:
        """*answer* is called with the parsed JSON, and returns the outputs. *sizes* are those of named dimensions.

        The others are as in `DialectAnswer`.
        """
        walk = Walk(PythonDialect().answer_form(description), description, selection)
        super().__init__(walk, model=model, request_id=request_id, version=version)
        self._description = description
        self._selection = selection
        self._sizes = sizes
        self._answer = answer
        self._chunks: list[bytes] = []
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What the answer takes so far, with what it will take when it is parsed."""
        return self._held_bytes + self._reply_bytes

    def feed(self, chunk: bytes) -> Generator[None, None, None]:
        """Keep *chunk*."""
        self._chunks.append(chunk)
        self._held_bytes += len(chunk) * (1 + PARSED_PER_BYTE)
        yield from ()

    def finish(self, last: bytes = b"") -> Generator[None, None, Reply]:
        """Parse the JSON, have the adapter make the outputs, and make the reply of them. Raises `CodecError`."""
        text, self._chunks = b"".join((*self._chunks, last)), []
        body = parsed_json(text)
        del text
        made = self._answer(body)
        del body
        outputs = made_outputs(made, self._description, self._selection, self._sizes)
        self._held_bytes = sum(output.n_bytes for output in outputs)
        return (yield from self.reply(outputs))
