"""The outputs of one answer in another dialect, as values of their datatypes, while its text arrives.

A value is nested data, whose shape is that of its nesting, or a scalar. In rows, each output has one value in each
row; together these are one tensor. Most of them are short, so their texts wait until there are many, and are read as
one array. The memory that waiting takes is bounded for all outputs together: with a thousand outputs, a sink that waits
for a piece of its own for each of them would hold more text than the tensors.

Not here: where in an answer the outputs stand (`answer`), and what the client gets of them.
"""

from collections.abc import Callable, Generator, Mapping
from typing import TypeVar

from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.output import SETTING, Output
from gateway.codec.inference import HeaderLimits, OutputSelection, label_of
from gateway.codec.json.arriving import STEP, ArrivingText, Reading
from gateway.codec.json.brackets import ARRAY
from gateway.codec.json.members import (
    Members,
)
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

ReadRun = Callable[[Members], Reading[None]]
ReadLong = Callable[[str, ArrivingText], Reading[None]]
"""What gets some short values by name, and what reads a long one, which the text begins with."""


class Outputs:
    """The outputs of one answer, in the order in which they come."""

    def __init__(
        self,
        description: ModelDescription,
        selection: OutputSelection,
        *,
        b64_objects: bool,
        limits: HeaderLimits,
        lists_all: bool,
    ) -> None:
        """*b64_objects* is that of `AnswerForm`, *lists_all* that of `DialectAnswer`."""
        self._described = {tensor.name: tensor for tensor in description.outputs}
        self.names = list(self._described)
        """Of all outputs that the model is known to have."""
        self.has_order = description.has_output_order
        """Whether answers have them in this order, where they do not name them."""
        self._lists_all = lists_all
        self._selection = selection
        self._b64_objects = b64_objects
        self._limits = limits
        self.found: dict[str, Output | None] = {}
        """By name; None for those that the client does not want."""
        self.waiting_bytes = 0
        """How much text of rows waits."""
        self._sink: Sink | None = None
        self._done_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What the outputs take so far."""
        return self._done_bytes + self.waiting_bytes + (self._sink.held_bytes if self._sink is not None else 0)

    @property
    def wanted(self) -> list[Output]:
        """Those that the client wants."""
        return wanted_of(self.found)

    def is_known(self, name: str) -> bool:
        """Whether the model is known to have an output called *name*."""
        return name in self._described

    def is_expected(self, name: str) -> bool:
        """Whether the client would get an output called *name* that has not come yet, though it has named none."""
        return not self._selection.named and self.is_wanted(name)

    def is_wanted(self, name: str) -> bool:
        """Whether the client gets the output called *name*."""
        return self._selection.is_wanted(name) and (self._lists_all or self.is_known(name))

    def released(self, output: Output) -> list[memoryview]:
        """The values of *output*, which from now on are the caller's to hold."""
        self._done_bytes -= output.n_bytes
        return output.released()

    def dropped(self, value: Value) -> None:
        """*value* has been read, and another one takes its place."""
        self._done_bytes -= value.n_bytes

    def start_again(self) -> None:
        """Forget all: the answer's outputs come a second time, and the last member of a name wins (protocol 1.6)."""
        self.found.clear()
        self._done_bytes = self.waiting_bytes = 0

    def read_named(self, name: str, text: ArrivingText) -> Reading[None]:
        """Read the value of the output called *name*."""
        output = self.open(name)
        if output is None:
            yield from text.pour(TextSink(label_of("output", name), None))
        else:
            output.take((yield from self.read_value(output, text)))

    def read_short(self, members: Members) -> Reading[None]:
        """Read the short values of some outputs, by their names."""
        for name, value in members.items():
            yield from self.read_named(name, ArrivingText.of_value(bytearray(value)))

    def read_value(self, output: Output, text: ArrivingText) -> Reading[Value]:
        """Read the value that comes next in *text*, nested data or a scalar."""
        value = None
        if text.is_value:
            value = short_value(bytes(text.buffer), output.datatype)
            yield STEP
        if value is None:
            sink = output.sink(b64_objects=self._b64_objects)
            self._sink = sink
            if (yield from text.first()) == ARRAY:
                yield from text.pour(sink)
                shape = sink.shape
            else:
                yield from text.pour_scalar(sink)
                shape = sink.shape[1:]
            self._sink = None
            value = Value(shape, sink.blobs(), sink.nonfinite if isinstance(sink, NumberSink) else 0)
        if output.is_base64:
            value = Value(value.shape, (yield from _in_steps(from_base64(value.blobs, output.label, LINE_BREAKS))))
        self._done_bytes += value.n_bytes
        return value

    def open(self, name: str) -> Output | None:
        """A new output called *name*, None if the client does not want it. Raises `CodecError` if it is not known."""
        described = self._described.get(name)
        if not self.is_wanted(name):
            output = None
        elif described is None or described.datatype is None:
            raise CodecError(f"{label_of('output', name)}: its datatype is not known; {SETTING} can say it")
        else:
            output = Output(name, described.datatype, described)
        replaced = self.found.get(name)
        self._done_bytes -= replaced.n_bytes if replaced is not None else 0
        self.found[name] = output
        if len(self.found) > self._limits.max_tensors:
            raise CodecError(
                f"more than {self._limits.max_tensors} outputs, which is the most that `limits.tensors` allows"
            )
        return output


class Rows:
    """Outputs that have one value each in every row of a list.

    Texts of short values wait until there are many, and are read as one array.
    """

    def __init__(
        self,
        outputs: Outputs,
        columns: dict[str, Output | None],
        lacking: Callable[[str, int], str] = lambda name, row: f"row {row} does not have it",
    ) -> None:
        """*columns* are the rows' outputs, if they are known, else all of *outputs*, which the first row opens.

        *lacking* says that an output has no value in a row.
        """
        self._outputs = outputs
        self._columns = columns
        self._lacking = lacking
        self.n_rows = 0
        """How many have been read."""

    def add(self, rows: list[Members]) -> Reading[None]:
        """Take some short *rows*: values by the names of outputs."""
        if not self.n_rows:
            for name in rows[0]:
                self._column(name)
            yield STEP
        for output in wanted_of(self._columns):
            try:
                text = b",".join([row[output.name] for row in rows])
            except KeyError:
                lacking = next(index for index, row in enumerate(rows, self.n_rows) if output.name not in row)
                raise self._without(output, lacking) from None
            self._outputs.waiting_bytes += output.wait(text)
        self.n_rows += len(rows)
        for row in rows:
            if len(row) > len(self._columns):
                for name in row:
                    self._column(name)
        yield from self._convert_if_full()

    def read_row(self, read: Callable[[ReadRun, ReadLong], Reading[None]]) -> Reading[None]:
        """*read* a row that is too long to be parsed in one step: short values wait, the others are read at once."""
        row: dict[str, bytes | Value] = {}

        def read_run(members: Members) -> "Reading[None]":
            for name in row.keys() & members.keys():
                forget(name)
            if members.keys() <= self._columns.keys():
                row.update(members)
            else:
                row.update((name, value) for name, value in members.items() if self._column(name) is not None)
            yield STEP

        def read_long(name: str, text: ArrivingText) -> "Reading[None]":
            output = self._column(name)
            if output is None:
                yield from text.pour(TextSink(label_of("output", name), None))
                return
            forget(name)
            row[name] = yield from self._outputs.read_value(output, text)

        def forget(name: str) -> None:
            value = row.pop(name, None)
            if isinstance(value, Value):
                self._outputs.dropped(value)

        yield from read(read_run, read_long)
        for output in wanted_of(self._columns):
            value = row.pop(output.name, None)
            if value is None:
                raise self._without(output, self.n_rows)
            if isinstance(value, bytes):
                self._outputs.waiting_bytes += output.wait(value)
            else:
                yield from self._convert(output)
                output.append(Value((1, *value.shape), value.blobs, value.nonfinite))
        self.n_rows += 1
        yield from self._convert_if_full()

    def finish(self) -> Reading[None]:
        """Read all that waits."""
        for output in wanted_of(self._columns):
            yield from self._convert(output)

    def _without(self, output: Output, row: int) -> CodecError:
        return CodecError(f"{output.label}: {self._lacking(output.name, row)}")

    def _column(self, name: str) -> Output | None:
        """The output to which a row has a value under *name*; None if the client does not want it."""
        if name in self._columns:
            return self._columns[name]
        if not self.n_rows:
            return self._outputs.open(name)
        if not self._outputs.is_expected(name):
            return None
        raise CodecError(f"{label_of('output', name)}: some rows have it, but row 0 does not")

    def _convert_if_full(self) -> Reading[None]:
        if self._outputs.waiting_bytes >= WAITING_BYTES:
            yield from self.finish()

    def _convert(self, output: Output) -> Reading[None]:
        """Read the texts of *output* that wait, as one array."""
        if output.waiting:
            waiting, output.waiting = output.waiting, bytearray()
            self._outputs.waiting_bytes -= len(waiting)
            waiting += b"]"
            output.append((yield from self._outputs.read_value(output, ArrivingText.of_value(waiting))))


def wanted_of(found: Mapping[str, Output | None]) -> list[Output]:
    """Those of *found* that the client wants."""
    return [output for output in found.values() if output is not None]


def _in_steps(steps: Generator[None, None, T]) -> Reading[T]:
    """What *steps* give, which yield nothing but the ends of steps."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            value: T = stop.value
            return value
        yield STEP
