"""The outputs of one answer in another dialect, as values of their datatypes, while its text arrives.

A value is nested data, whose shape is that of its nesting, or a scalar. In rows, each output has one value in each
row; together these are one tensor. Most of them are short, so their texts wait until there are many, and are read as
one array. The memory that waiting takes is bounded for all outputs together: with a thousand outputs, a sink that waits
for a piece of its own for each of them would hold more text than the tensors.

Not here: where in an answer the outputs stand (`walk`), and what the client gets of them (`answer`).
"""

from collections.abc import Callable, Collection, Generator, Iterable
from typing import TypeVar

from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.output import SETTING, Output
from gateway.codec.dialects.paths import AnswerForm
from gateway.codec.inference import HeaderLimits, OutputSelection, label_of
from gateway.codec.json.arriving import STEP, ArrivingText, Reading
from gateway.codec.json.brackets import ARRAY, OBJECT
from gateway.codec.json.members import Members, excerpt
from gateway.codec.json.sinks import Sink, TextSink
from gateway.codec.tensors.base64_reading import from_base64
from gateway.codec.tensors.number_reading import NumberSink
from gateway.codec.values import Value, short_value
from gateway.errors import CodecError

T = TypeVar("T")

WAITING_BYTES = 1024 * 1024
"""How much text of rows may wait, of all outputs together, before it is read."""

LINE_BREAKS = b"\r\n"
"""What may stand in base64: Python's `encodebytes`, which MLflow writes it with, makes lines."""

Columns = tuple[int, dict[str, list[bytes]]]
"""Some short rows: how many, and the texts of each output in them."""


class Outputs:
    """The outputs of one answer, in the order in which they come."""

    def __init__(
        self,
        description: ModelDescription,
        selection: OutputSelection,
        form: AnswerForm,
        *,
        limits: HeaderLimits,
        lists_all: bool,
    ) -> None:
        """The arguments are those of `DialectAnswer`."""
        self._described = {tensor.name: tensor for tensor in description.outputs}
        self.names = list(self._described)
        """Of all outputs that the model is known to have."""
        self.has_order = description.has_output_order
        """Whether answers have them in this order, where they do not name them."""
        self._lists_all = lists_all
        self._selection = selection
        self._form = form
        self._limits = limits
        self.found: dict[str, Output] = {}
        """Those that the client wants, by name."""
        self._sink: Sink | None = None

    @property
    def held_bytes(self) -> int:
        """What the outputs take so far."""
        sink_bytes = self._sink.held_bytes if self._sink is not None else 0
        return sink_bytes + sum(output.held_bytes for output in self.found.values())

    @property
    def waiting_bytes(self) -> int:
        """How much text of rows waits."""
        return sum(len(output.waiting) for output in self.found.values())

    def is_known(self, name: str) -> bool:
        """Whether the model is known to have an output called *name*."""
        return name in self._described

    def is_expected(self, name: str) -> bool:
        """Whether the client would get an output called *name* that has not come yet, though it has named none."""
        return not self._selection.named and self.is_wanted(name)

    def is_wanted(self, name: str) -> bool:
        """Whether the client gets the output called *name*."""
        return self._selection.is_wanted(name) and (self._lists_all or self.is_known(name))

    def forget(self, name: str) -> None:
        """Let go of the value of an output, if there is one."""
        self.found.pop(name, None)

    def put(self, name: str, text: ArrivingText) -> Reading[None]:
        """Take the value of the output called *name*, which comes next in *text*: the whole output."""
        output = self.open(name)
        if output is None:
            yield from text.pour(TextSink(label_of("output", name), None))
        else:
            output.take((yield from self.read_value(output, text)))

    def read_value(self, output: Output, text: ArrivingText) -> Reading[Value]:
        """Read the value that comes next in *text*, nested data or a scalar."""
        try:
            value = yield from self._short_or_poured(output, text)
            if output.is_base64:
                value = Value(value.shape, (yield from _in_steps(from_base64(value.blobs, output.label, LINE_BREAKS))))
        except CodecError as error:
            way = self._form.tree.way_to(output.name)
            raise CodecError(f"{error} (at {way[-1].path})" if way else str(error)) from None
        return value

    def _short_or_poured(self, output: Output, text: ArrivingText) -> Reading[Value]:
        if is_short(text):
            value = short_value(bytes(text.buffer), output.datatype)
            yield STEP
            if value is not None:
                text.drop(len(text.buffer))
                return value
        code = yield from text.first()
        if code == OBJECT and not self._form.b64_objects:
            raise CodecError(f"{output.label}: expected values, got {shown(text)}")
        self._sink = sink = output.sink(b64_objects=self._form.b64_objects)
        yield from (text.pour(sink) if code == ARRAY else text.pour_scalar(sink))
        self._sink = None
        shape = sink.shape if code == ARRAY else sink.shape[1:]
        return Value(shape, sink.blobs(), sink.nonfinite if isinstance(sink, NumberSink) else 0)

    def open(self, name: str) -> Output | None:
        """A new output called *name*, None if the client does not want it. Raises `CodecError` if it is not known."""
        described = self._described.get(name)
        if not self.is_wanted(name):
            return None
        if described is None or described.datatype is None:
            raise CodecError(f"{label_of('output', name)}: its datatype is not known; {SETTING} can say it")
        self.found[name] = output = Output(name, described.datatype, described)
        if len(self.found) > self._limits.max_tensors:
            raise CodecError(
                f"more than {self._limits.max_tensors} outputs, which is the most that `limits.tensors` allows"
            )
        return output


class Rows:
    """Outputs that have one value each in every row of a list.

    Texts of short values wait until there are many, and are read as one array.
    """

    def __init__(self, outputs: Outputs, names: Iterable[str] | None, lacking: Callable[[str, int], str]) -> None:
        """*names* are those of the rows' outputs; None: the first row has them.

        *lacking* says that an output has no value in a row.
        """
        self._outputs = outputs
        self._lacking = lacking
        self.n_rows = 0
        """How many have been read."""
        self._columns: dict[str, Output] = {}
        for name in names or ():
            self._column(name)

    @property
    def names(self) -> Collection[str]:
        """Of the outputs that the client wants."""
        return self._columns.keys()

    def columns_by_name(self, rows: list[Members]) -> Columns:
        """Short *rows*, which are outputs by name.

        Raises `CodecError` if they do not all have those of the first row: which does not is told where it is read
        alone.
        """
        for name in rows[0] if not self.n_rows else ():
            self._column(name)
        if any(map(self._outputs.is_expected, set().union(*rows).difference(self._columns))):
            raise CodecError("a row with more values")
        try:
            return len(rows), {name: [row[name] for row in rows] for name in self._columns}
        except KeyError:
            raise CodecError("a row without a value") from None

    def add(self, runs: Iterable[Columns]) -> Reading[None]:
        """Take some short rows."""
        for n_rows, columns in runs:
            for name, output in self._columns.items():
                output.wait(b",".join(columns[name]))
            self.n_rows += n_rows
        yield from self._convert_if_full()

    def put(self, name: str, text: ArrivingText) -> Reading[None]:
        """Take the value of the output called *name* in the row that `end_row` ends; it comes next in *text*."""
        output = self._column(name)
        if output is None:
            yield from text.pour(TextSink(label_of("output", name), None))
        elif is_short(text):
            output.row = bytes(text.buffer)
            yield STEP
        else:
            output.row = yield from self._outputs.read_value(output, text)

    def forget(self, name: str) -> None:
        """Let go of the value of an output in this row, if there is one."""
        if name in self._columns:
            self._columns[name].row = None

    def end_row(self) -> Reading[None]:
        """Take the row whose values were `put`."""
        for output in self._columns.values():
            value, output.row = output.row, None
            if value is None:
                raise CodecError(f"{output.label}: {self._lacking(output.name, self.n_rows)}")
            if isinstance(value, bytes):
                output.wait(value)
            else:
                yield from self._convert(output)
                output.append(Value((1, *value.shape), value.blobs, value.nonfinite))
        self.n_rows += 1
        yield from self._convert_if_full()

    def finish(self) -> Reading[None]:
        """Read all that waits."""
        for output in self._columns.values():
            yield from self._convert(output)

    def _column(self, name: str) -> Output | None:
        """The output to which a row has a value under *name*; None if the client does not want it."""
        output = self._columns.get(name)
        if output is None and not self.n_rows:
            output = self._outputs.open(name)
            if output is not None:
                self._columns[name] = output
        elif output is None and self._outputs.is_expected(name):
            raise CodecError(f"{label_of('output', name)}: some rows have it, but row 0 does not")
        return output

    def _convert_if_full(self) -> Reading[None]:
        if self._outputs.waiting_bytes >= WAITING_BYTES:
            yield from self.finish()

    def _convert(self, output: Output) -> Reading[None]:
        """Read the texts of *output* that wait, as one array."""
        if output.waiting:
            waiting, output.waiting = output.waiting, bytearray()
            waiting += b"]"
            output.append((yield from self._outputs.read_value(output, ArrivingText.of_value(waiting))))


def is_short(text: ArrivingText) -> bool:
    """Whether the value that comes next is there as a whole, and nothing else."""
    return text.is_value and not text.consumed


def shown(text: ArrivingText) -> str:
    """What comes next in *text*, for errors."""
    return excerpt(bytes(text.buffer[:256])).strip()


def _in_steps(steps: Generator[None, None, T]) -> Reading[T]:
    """What *steps* give, which yield nothing but the ends of steps."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            value: T = stop.value
            return value
        yield STEP
