"""The walk through an answer in another dialect than V2: along the paths of its outputs, while its text arrives.

A value is nested data, whose shape is that of its nesting, or a scalar. In rows, each output has one value in each
row; together these are one tensor. Most of them are short, so their texts wait until there are many, and are read as
one array. The memory that waiting takes is bounded for all outputs together: if each of a thousand outputs waited for a
full piece of its own, the waiting text would be larger than the tensors.

What is on no path is passed over; of the members beside the outputs those that say an error are kept. Of two members
with one name the last wins (protocol 1.6): whenever a value on a path begins, all that stood there before is forgotten.
"""

import re
from collections.abc import Container, Iterable
from functools import partial
from itertools import chain, count
from typing import Any

from gateway.codec.dialects.description import MAX_NAMED, ModelDescription, listed
from gateway.codec.dialects.output import SETTING, Output, Text, shown
from gateway.codec.dialects.paths import AnswerForm, Node, Step, node_at, reason_at
from gateway.codec.inference import DEFAULT_LIMITS, HeaderLimits, OutputSelection, label_of
from gateway.codec.json.arriving import STEP, ArrivingText, Reading, read_items, read_members
from gateway.codec.json.member_finder import is_key
from gateway.codec.json.members import LISTS, OBJECTS, STAND_IN, Members, decoded, excerpt, parse_list, restore_literals
from gateway.codec.json.pieces import ARRAY, OBJECT, SPACE
from gateway.codec.json.sinks import TextSink
from gateway.codec.v2.error_bodies import WORD_MEMBERS, shortened, words_of
from gateway.codec.values import Value
from gateway.errors import CodecError, TooLargeError

WAITING_BYTES = 1024 * 1024
"""How much text of rows may wait, of all outputs together, before it is read."""

Key = str | int
"""The name of a member, or the index of an item."""

Columns = tuple[int, dict[str, bytes]]
"""Some short rows: how many, and the texts of each output in them, with commas between them."""

_OBJECT = re.compile(rb'(\[?)[ \t\r\n]*+\{[ \t\r\n]*+("(?:[^"\\]++|\\.)*+")?', re.DOTALL)
"""The beginning of an object, or of a list of objects (the bracket is group 1), up to the first name (group 2)."""

_BY_NAME = Node("", code=OBJECT, has_names=True)
_ROWS_BY_NAME = Node("", code=ARRAY, inside={None: _BY_NAME})


class Walk:
    """One walk through an answer."""

    _beside_bytes = 0
    _with_reason = b""  # the member at the top in which the configuration says that errors have their reason
    _with_outputs: Node | None = None  # the last member that had all outputs
    # where rows are read: how many there were, and the values (short: texts) of this one
    _n_rows = 0
    _row: dict[str, bytes | Value] | None = None

    def __init__(
        self,
        form: AnswerForm,
        description: ModelDescription,
        selection: OutputSelection,
        *,
        limits: HeaderLimits = DEFAULT_LIMITS,
    ) -> None:
        """*description* has the datatypes of the outputs, and the names of those that the answer does not name.

        *limits* bound the JSON beside the outputs and their number.
        """
        self.found: dict[str, Output] = {}
        """The outputs that the client wants, by name, in the order in which they come."""
        self.form = form
        self._has_paths = bool(form.tree.outputs)  # each output has one; else one member of the answer has all of them
        self._description = description
        self.selection = selection
        self._error_steps = description.template.error if description.template is not None else ()
        self._limits = limits
        self._words: Members = {}
        self._lacking: dict[str, str] = {}  # why there is nothing at the path of an output
        self._columns: dict[str, Output] = {}  # the outputs of the rows, where rows are read

    @property
    def held_bytes(self) -> int:
        """What the answer takes so far: what is filled of the outputs, text that waits, and its other members."""
        held_bytes = self._beside_bytes + sum([output.held_bytes for output in self.found.values()])
        values = (self._row or {}).values()
        return held_bytes + sum([len(value) if isinstance(value, bytes) else value.n_bytes for value in values])

    def read(self, text: ArrivingText) -> Reading[None]:
        """Read an answer. Raises `CodecError` if it does not have the outputs."""
        yield from self._value(self.form.tree, text)
        if self._with_outputs is None and not self._has_paths:
            wanted = " or ".join(f"`{name}`" for name in self.form.tree.inside)
            raise CodecError(f"no {wanted}{self._reason()}")
        self._check(self.selection.named or self._description.outputs, self.found)  # protocol 4.5
        for output in self.found.values() if self._has_paths else ():
            output.check_shape()

    def _check(self, wanted: Iterable[str], found: Container[str], where: str = "") -> None:
        """Raise `CodecError` unless all outputs that are *wanted* are *found*."""
        for name in wanted:
            if name not in found:
                why = self._lacking.get(name, "the answer does not have it")
                raise CodecError(f"{label_of('output', name)}: {where}{why}{self._reason()}")

    def _reason(self) -> str:
        """What the answer says of an error."""
        words = reason_at(self._error_steps[1:], self._with_reason) or words_of(self._words)
        return f", but an error: {shortened(words)}" if words else ""

    def _value(self, node: Node, text: Text) -> Reading[None]:
        """Read a value, and the outputs in it."""
        for name in node.outputs:  # there is one already if a member comes a second time
            (self.found if self._row is None else self._row).pop(name, None)
        if node.has_outputs:
            self._with_outputs = node
            self.found.clear()
            node = self._node_of_all(node.path, text if isinstance(text, bytes) else (yield from text.beginning()))
            if node.inside:
                yield STEP
        code = text[0] if isinstance(text, bytes) else (yield from text.first())
        if not self._fits(node, code, text):
            yield from self._pass(text, node.path)
        elif node.output is not None:
            yield from self._put(node, text)
        else:
            inside = ArrivingText.of_value(bytearray(text)) if isinstance(text, bytes) else text
            row = node.inside.get(None)
            yield from (self._inside(node, inside) if row is None else self._rows(row, inside))

    def _fits(self, node: Node, code: int, text: Text) -> bool:
        """Whether the value *text*, whose first byte is *code*, may stand at *node*; why not is noted, or raised."""
        is_null = code == ord("n")
        if code == node.code or not (node.code or (is_null and not self._may_be_null(node))):
            return True
        is_word = node is self.form.tree and code not in b'[{"'  # a page, a number: all of the answer
        if not node.outputs or (node.code and is_word):
            raise CodecError(f"expected a JSON {'list' if node.code == ARRAY else 'object'}, got {shown(text)}")
        self._note([node], f"{node.path} is {'null' if is_null else shown(text)}")
        return False

    def _may_be_null(self, node: Node) -> bool:
        """Whether null at *node* is a value: NaN in the lists of an output, and where an output is one value."""
        if node.output is None or not self._has_paths or self._row is not None:
            return True
        said = self._description.outputs.get(node.output)
        return said is not None and (said.shape == () or said.missing is not None)

    # Outputs

    def _put(self, node: Node, text: Text) -> Reading[None]:
        """Take the value of the output at *node*: all of it, or that in a row."""
        output = self._output(str(node.output), node.path)
        if output is None:
            if not isinstance(text, bytes):
                yield from text.pour(TextSink(label_of("output", str(node.output)), None))
        elif self._row is None:
            output.take((yield from output.read(text)))
        else:
            self._row[output.name] = text if isinstance(text, bytes) else (yield from output.read(text))
        if len(self.found) > 1:
            yield STEP

    def _output(self, name: str, path: str) -> Output | None:
        """The output *name*, a new one outside of rows; None if the client does not want it. Raises `CodecError`."""
        if name in self._columns:
            return self._columns[name]
        described = self._description.outputs.get(name)
        if not self.selection.is_wanted(name) or (described is None and not self._description.is_complete):
            return None
        if self._n_rows:
            raise CodecError(f"{label_of('output', name)}: some rows have it, but row 0 does not")
        if described is None or described.datatype is None:
            raise CodecError(f"{label_of('output', name)}: its datatype is not known; {SETTING} can say it")
        self.found[name] = output = Output(name, described, described.datatype, path, b64_objects=self.form.b64_objects)
        if len(self.found) > self._limits.max_tensors:
            raise CodecError(
                f"more than {self._limits.max_tensors} outputs, which is the most that `limits.tensors` allows"
            )
        if self._row is not None:
            self._columns[name] = output
        return output

    def _node_of_all(self, path: str, beginning: bytes) -> Node:
        """The tree of all outputs, in the value at *path*. Raises `CodecError` if its *beginning* shows none."""
        found = _OBJECT.match(beginning)
        has_elements = self.form.b64_objects and "b64" not in self._description.outputs  # such objects may be BYTES
        if found is not None and not (has_elements and is_key(found[2] or b"", b'"b64"')):
            return _ROWS_BY_NAME if found[1] else _BY_NAME
        names = list(self._description.outputs)
        if len(names) == 1:
            return Node(path, names[0], outputs={names[0]: path})
        has_no_rows = beginning.translate(None, SPACE).startswith(b"[]")  # which are those of every output
        if not names or not (has_no_rows or self._description.has_output_order):
            known = f", but the model has {len(names)} ({listed(names)})" if names else ""
            raise CodecError(
                f"an output without a name{known}; {SETTING} can list all of them in the order of the server's answers"
            )
        before: list[Step] = [None] if has_no_rows or self.form.in_rows else []
        return node_at(path, [(name, [*before, index]) for index, name in enumerate(names)])

    # Objects and lists

    def _inside(self, node: Node, text: ArrivingText) -> Reading[None]:
        """Read an object or a list of which some members or items are on paths."""
        there: dict[Key, None] = {}
        indexes = count()

        def read_run(run: "Members | list[bytes]") -> "Reading[None]":
            entries = run.items() if isinstance(run, dict) else [(next(indexes), value) for value in run]
            for key, value in entries:
                yield from self._entry(node, key, value, there)

        if node.code == OBJECT:
            yield from read_members(text, read_run, lambda name: self._entry(node, name, text, there))
        else:
            yield from read_items(text, parse_list, read_run, lambda: self._entry(node, next(indexes), text, there))
        n_items = next(indexes)
        if node.code == ARRAY and not self._has_paths and n_items != len(node.inside):
            where = "" if self._row is None else f"row {self._n_rows}: "
            raise CodecError(
                f"{where}expected a list with {len(node.inside)} values, one for each output "
                f"({listed(node.outputs)}), got {n_items} (at {node.path})"
            )
        lost = [inner for key, inner in node.inside.items() if key not in there and inner.outputs]
        if lost:
            has = f"has the members {listed(there)}" if there else "has no members"
            self._note(lost, f"{node.path} {has if node.code == OBJECT else f'is a list of {n_items}'}")

    def _entry(self, node: Node, key: Key, text: Text, there: dict[Key, None]) -> Reading[None]:
        """Read the value of *key* in an object or a list, and add a key that an error may name to *there*."""
        inner = Node("", str(key), outputs={str(key): ""}) if node.has_names else node.inside.get(key)
        if len(there) < MAX_NAMED or key in node.inside:
            there[key] = None
        if node is self.form.tree and self._error_steps[:1] == (key,) and isinstance(text, bytes):
            self._with_reason = text
        if inner is None:
            name = str(key) if node.code == OBJECT else ""
            if isinstance(text, bytes) and name in WORD_MEMBERS:
                self._words[name] = text
            yield from self._pass(text, excerpt(name.encode()) if name else node.path, len(name))
        elif inner.has_outputs and text == b"null":  # which is the same as none
            self._with_outputs = None if self._with_outputs is inner else self._with_outputs
        else:
            yield from self._value(inner, text)

    def _note(self, lost: list[Node], why: str) -> None:
        """Remember *why* outputs in the *lost* nodes are not found."""
        for name, path in chain.from_iterable([node.outputs.items() for node in lost]):
            self._lacking[name] = f"nothing at {path}; {why}"

    # Rows

    def _rows(self, row: Node, text: ArrivingText) -> Reading[None]:
        """Read a list whose items are rows of all outputs whose paths go through *row*."""
        self._columns, self._n_rows, self._row = {}, 0, {}
        for name, path in row.outputs.items():
            self._output(name, path)
        yield STEP

        def read_run(run: "Columns") -> "Reading[None]":
            self._n_rows += run[0]
            for name, output in self._columns.items():
                yield from output.wait(run[1][name], WAITING_BYTES // len(self._columns))

        yield from read_items(text, partial(self._texts, row), read_run, lambda: self._single_row(row, text))
        for output in self._columns.values():
            yield from output.read_waiting()
        self._columns, self._n_rows, self._row = {}, 0, None

    def _texts(self, row: Node, window: bytes) -> Columns:
        """The texts of the outputs in the rows of a *window*, which is an array of them.

        Raises `CodecError` for rows that are not all alike: which one it is, and what it has, is told where it is read
        alone.
        """
        items: list[Any] = decoded(LISTS if row.code == ARRAY else OBJECTS, window)
        if not items or (row.code == ARRAY and not self._has_paths and {len(row.inside)} != set(map(len, items))):
            raise CodecError("no short row, or one of another length")
        inside = self._named(items) if row.has_names else row.inside
        columns: dict[str, bytes] = {}
        for key, inner in inside.items():
            if self._columns.keys().isdisjoint(inner.outputs):
                continue
            try:
                texts = b",".join([item[key] for item in items])
            except LookupError:
                raise CodecError("a row without a value") from None
            if inner.output is None:
                columns.update(self._texts(inner, b"[%b]" % texts)[1])
                continue
            columns[inner.output] = texts = restore_literals(texts)
            if STAND_IN[1:] in texts:  # all but the bracket
                raise CodecError("a literal in place of a list")
        return len(items), columns

    def _named(self, items: list[Any]) -> dict[Step, Node]:
        """The outputs in the rows *items*, each by its name. Raises `CodecError` as `_texts` does."""
        names = dict.fromkeys(chain(self._columns, *items))
        if STAND_IN.decode() in "".join(names) or (not self._n_rows and len(names) > len(items[0])):
            raise CodecError("a name that is not as it came, or a row with more values")
        return {name: Node("", name, outputs={name: ""}) for name in names if self._output(name, "") is not None}

    def _single_row(self, row: Node, text: ArrivingText) -> Reading[None]:
        """Read one row by itself."""
        values: dict[str, bytes | Value] = {}
        self._row = values
        yield from self._value(row, text)
        self._check(self._columns, values, f"row {self._n_rows}: ")
        for name, output in self._columns.items():
            value = values.pop(name)
            if isinstance(value, bytes):
                yield from output.wait(value, WAITING_BYTES // len(self._columns))
            else:
                yield from output.read_waiting()
                output.append(Value((1, *value.shape), value.blobs, value.nonfinite))
                yield STEP
        self._n_rows += 1

    # What is on no path

    def _pass(self, text: Text, label: str, n_bytes: int = 0) -> Reading[None]:
        """Pass over a value, which has *n_bytes* before it; *label* is for errors."""
        if isinstance(text, bytes):
            n_bytes += len(text)
        else:
            start = text.consumed
            yield from text.pour(TextSink(label, None))
            n_bytes += text.consumed - start
        if self._row is None:  # in rows there is as much beside the outputs as there are rows
            self._beside_bytes += n_bytes
        if self._beside_bytes > self._limits.max_header_bytes:
            raise TooLargeError(
                f"the JSON beside the outputs is longer than {self._limits.max_header_bytes} bytes, "
                "which is the most that `limits.header` allows"
            )
