"""The walk through an answer in another dialect than V2: along the paths of its outputs, while its text arrives.

A value is nested data, whose shape is that of its nesting, or a scalar. In rows, each output has one value in each
row; together these are one tensor. Rows may have rows in them:

    $.data[*].concepts[*].value     {"data": [{"concepts": [{"value": 0.5}, {"value": 1}]}, {"concepts": [...]}]}

is a tensor of two dimensions. Most rows are short, so the texts of their values wait until there are many, and are read
as one array: `[0.5,1]` and so on. The memory that waiting takes is bounded for all outputs together: if each of a
thousand outputs waited for a full piece of its own, the waiting text would be larger than the tensors.

Members on no path are skipped, however long they are; of the short ones those that say an error are kept. Of two
members with one name the last wins (protocol 1.6): whenever a value on a path begins, all that stood there before is
forgotten.
"""

import json
import math
import re
from collections.abc import Collection, Container, Iterable, Mapping
from functools import partial
from itertools import chain, count, islice
from types import MappingProxyType
from typing import Any

import numpy as np

from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import MAX_NAMED, ModelDescription, listed
from gateway.codec.dialects.output import SETTING, Output, Text, shown
from gateway.codec.dialects.paths import ORDER, AnswerForm, Node, Step, document_of, list_in_order, reason_at
from gateway.codec.inference import DEFAULT_LIMITS, HeaderLimits, OutputSelection, label_of
from gateway.codec.json.arriving import STEP, ArrivingText, Reading, read_items, read_members, stepwise
from gateway.codec.json.member_finder import is_key
from gateway.codec.json.members import (
    LISTS,
    OBJECTS,
    STAND_IN,
    Members,
    decoded,
    excerpt,
    parse_list,
    parse_object,
    restore_literals,
)
from gateway.codec.json.pieces import ARRAY, OBJECT, SPACE
from gateway.codec.json.sinks import TextSink
from gateway.codec.tensors.datatypes import BYTES, DATATYPES
from gateway.codec.tensors.row_order import is_permutation
from gateway.codec.v2.error_bodies import WORD_MEMBERS, shortened, words_of
from gateway.codec.values import Value
from gateway.errors import CodecError, FailedAnswerError

WAITING_BYTES = 1024 * 1024
"""How much text of rows may wait, of all outputs together, before it is read."""

STEP_OUTPUTS = 256
"""How many outputs of rows one step makes."""

Key = str | int
"""The name of a member, or the index of an item."""

Columns = tuple[int, dict[str, bytes]]
"""Some short rows: how many, and the texts of each output in them, with commas between them."""

NO_ERRORS = (b"", b"null", b"false", b"0", b'""', b"[]", b"{}")
"""The values of `error` in answers that are no failures."""

_OBJECT = re.compile(rb'(\[?)[ \t\r\n]*+\{[ \t\r\n]*+("(?:[^"\\]++|\\.)*+")?', re.DOTALL)
"""The beginning of an object, or of a list of objects (the bracket is group 1), up to the first name (group 2)."""

_ORDER_DESCRIBED = TensorDescription(DATATYPES["INT64"])

_BY_NAME = Node("", code=OBJECT, has_names=True)
_ROWS_BY_NAME = Node("", code=ARRAY, inside={None: _BY_NAME})


class RowLevel:
    """The rows of a list that is being read: how many there were, and the values (short: texts) in this one."""

    def __init__(self) -> None:
        self.columns: dict[str, Output] = {}
        """The outputs of the rows, with the values of all rows before this one."""
        self.n_rows = 0
        self.row: dict[str, bytes | Value] = {}

    @property
    def held_bytes(self) -> int:
        """What the values in this row take."""
        return sum([len(value) if isinstance(value, bytes) else value.n_bytes for value in self.row.values()])


class Walk:
    """One walk through an answer."""

    _with_outputs: Node | None = None  # the last member that had all outputs

    def __init__(
        self,
        form: AnswerForm,
        description: ModelDescription,
        selection: OutputSelection,
        *,
        limits: HeaderLimits = DEFAULT_LIMITS,
        sizes: Mapping[str, int] = MappingProxyType({}),
        first_sizes: Collection[int] = (),
    ) -> None:
        """*description* has the datatypes of the outputs, and the names of those that the answer does not name.

        *limits* bound the number of outputs. Of the request: *sizes* are those of the named dimensions, *first_sizes*
        the first dimensions of the inputs that may have rows.
        """
        self.found: dict[str, Output] = {}
        """The outputs that the client wants, by name, in the order in which they come."""
        self.form = form
        self._has_paths = bool(form.tree.outputs)  # each output has one; else one member of the answer has all of them
        self._description = description
        self.selection = selection
        self._limits = limits
        self._sizes = dict(sizes)
        self._first_sizes = first_sizes
        self._words: Members = {}
        self._noted: dict[str, bytes] = {}  # the short values at noted paths
        self._lacking: dict[str, str] = {}  # why there is nothing at the path of an output
        self._levels: list[RowLevel] = []  # where rows are read: the list around them first

    @property
    def held_bytes(self) -> int:
        """What the answer takes so far: what is filled of the outputs, and text that waits."""
        inner = (output for level in self._levels[1:] for output in level.columns.values())
        held_bytes = sum([output.held_bytes for output in (*self.found.values(), *inner)])
        return held_bytes + sum([level.held_bytes for level in self._levels])

    def read(self, text: ArrivingText) -> Reading[None]:
        """Read an answer.

        Raises `CodecError` if it does not have the outputs, `FailedAnswerError` if it says that it is a failure.
        """
        try:
            yield from self._value(self.form.tree, text)
        except CodecError:
            # the values of a failed answer may be words; what the answer says of itself may have come before them
            for path in self.form.success.keys() & self._noted.keys():
                self._check_success(path, self.form.success[path])
            raise
        for path, expected in self.form.success.items():
            self._check_success(path, expected)
        if self._with_outputs is None and not self._has_paths:
            wanted = " or ".join(f"`{name}`" for name in self.form.tree.inside)
            raise self._unfit(f"no {wanted}")
        self._check(self.selection.named or self._description.outputs, self.found)  # protocol 4.5
        order = self.found.pop(ORDER, None)
        if order is not None:
            yield from self._put_in_order(order)
        for output in self.found.values() if self._has_paths else ():
            # null in place of a number says the same as no value
            if (0 in output.shape or output.nonfinite) and self._has_error:
                raise self._unfit(f"{label_of('output', output.name)}: there are no values")
            output.check_shape()

    def _check(self, wanted: Iterable[str], found: Container[str], where: str = "") -> None:
        """Raise `CodecError` unless all outputs that are *wanted* are *found*."""
        for name in wanted:
            if name not in found:
                why = self._lacking.get(name, "the answer does not have it")
                raise self._unfit(f"{label_of('output', name)}: {where}{why}")

    # What the answer says of itself

    def _check_success(self, path: str, expected: Any) -> None:
        """Raise `FailedAnswerError` unless the answer has the *expected* value at *path*."""
        text = self._noted.get(path)
        if text is None or not is_same_value(document_of(text), expected):
            said = "nothing" if text is None else shown(text)
            words = self._reason() or f"it has {said} at {path}"
            raise FailedAnswerError(f"{words} (`success` in {SETTING} expects {json.dumps(expected)} at {path})")

    @property
    def _has_error(self) -> bool:
        """Whether the answer has an error in the member for it."""
        return bool(self._noted_reason) or self._words.get("error", b"") not in NO_ERRORS

    def _reason(self) -> str:
        """What the answer says of an error; empty if it says nothing."""
        return shortened(self._noted_reason or words_of(self._words))

    @property
    def _noted_reason(self) -> str:
        """The text, or that in the object, where the configuration says that errors have their reason; else empty."""
        noted = self._noted.get(self.form.error, b"")
        if noted[:1] == b"{":
            return words_of(parse_object(noted))
        return reason_at((), noted) or ""

    def _unfit(self, why: str) -> CodecError:
        """The error for an answer that cannot be used, *why*, with the server's own words."""
        words = self._reason()
        error_type = FailedAnswerError if self._has_error else CodecError
        return error_type(f"{why}{f', but an error: {words}' if words else ''}")

    # The tree

    def _value(self, node: Node, text: Text) -> Reading[None]:
        """Read a value, and the outputs in it."""
        there = self._levels[-1].row if self._levels else self.found
        for name in node.outputs:  # there is one already if a member comes a second time
            there.pop(name, None)
        if node.notes:
            self._take_note(node, text)
        if node.has_outputs:
            self._with_outputs = node
            self.found.clear()
            node = self._node_of_all(node.path, text if isinstance(text, bytes) else (yield from text.beginning()))
            if node.inside:
                yield STEP
        code = text[0] if isinstance(text, bytes) else (yield from text.first())
        if not self._fits(node, code, text):
            yield from _skip(text, node.path if node.output is None else label_of("output", node.output))
        elif node.output is not None:
            yield from self._put(node, text)
        else:
            inside = ArrivingText.of_value(bytearray(text)) if isinstance(text, bytes) else text
            row = node.inside.get(None)
            yield from (self._inside(node, inside) if row is None else self._rows(row, inside))

    def _take_note(self, node: Node, text: Text) -> None:
        """Note the value *text* if it is short and *node* is noted, and forget what was noted of values in it."""
        for path in node.notes:
            self._noted.pop(path, None)
        if node.noted and isinstance(text, bytes):
            self._noted[node.noted] = text

    def _fits(self, node: Node, code: int, text: Text) -> bool:
        """Whether the value *text*, which begins with the byte *code*, is allowed at *node*.

        If it isn't, note the reason for the outputs concerned, or raise it if no output can do without.
        """
        if not (node.outputs or node.inside or node.has_names):  # of such a value nothing but the note is of interest
            return False
        is_null = code == ord("n")
        if code == node.code if node.code else not is_null or self._may_be_null(node):
            return True
        is_word = node is self.form.tree and code not in b'[{"'  # a page, a number: all of the answer
        if (not node.outputs and not node.notes) or (node.code and is_word):
            raise CodecError(f"expected a JSON {'list' if node.code == ARRAY else 'object'}, got {shown(text)}")
        self._note([node], f"{node.path or 'it'} is {'null' if is_null else shown(text)}")
        return False

    def _may_be_null(self, node: Node) -> bool:
        """Whether null at *node* is a value: in rows, where it is NaN, and where `missing` says what it becomes."""
        if node.output is None or self._levels:
            return True
        said = self._description.outputs.get(node.output)
        return said is not None and said.missing is not None

    # Outputs

    def _is_wanted(self, name: str, described: TensorDescription | None) -> bool:
        """Whether the output *name*, of which *described* is known, is read."""
        is_known = described is not None or self._description.is_complete
        return name == ORDER or (is_known and self.selection.is_wanted(name))

    def _put(self, node: Node, text: Text) -> Reading[None]:
        """Take the value of the output at *node*: all of it, or that in a row."""
        assert node.output is not None
        output = self._output(node.output, node.path)
        if output is None:
            yield from _skip(text, label_of("output", node.output))
        elif not self._levels:
            output.take((yield from output.read(text)))
        else:
            value = text if isinstance(text, bytes) else (yield from output.read(text))
            self._levels[-1].row[output.name] = value
        if len(self.found) > 1:
            yield STEP

    def _output(self, name: str, path: str) -> Output | None:
        """The output *name*, a new one outside of rows; None if the client does not want it. Raises `CodecError`."""
        level = self._levels[-1] if self._levels else None
        if level is not None and name in level.columns:
            return level.columns[name]
        described = _ORDER_DESCRIBED if name == ORDER else self._description.outputs.get(name)
        if not self._is_wanted(name, described):
            return None
        if level is not None and level.n_rows:
            raise CodecError(f"{label_of('output', name)}: some rows have it, but row 0 does not")
        if described is None or described.datatype is None:
            raise CodecError(f"{label_of('output', name)}: its datatype is not known; {SETTING} can say it")
        output = Output(name, described, described.datatype, path, self._sizes, b64_objects=self.form.b64_objects)
        if len(self._levels) < 2:  # the values of an inner list are a part of one in the list around it
            self.found[name] = output
        if len(self.found) - (ORDER in self.found) > self._limits.max_tensors:
            raise CodecError(
                f"more than {self._limits.max_tensors} outputs, which is the most that `limits.tensors` allows"
            )
        if level is not None:
            level.columns[name] = output
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
        return list_in_order(path, names, in_rows=has_no_rows or self.form.in_rows)

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
            has = f"has the members {listed(there)}" if there else "has no members"
        else:
            yield from read_items(text, parse_list, read_run, lambda: self._entry(node, next(indexes), text, there))
            n_items = next(indexes)
            self._check_items(node, n_items)
            has = f"is a list of {n_items}"
        lost = [inner for key, inner in node.inside.items() if key not in there and inner.outputs]
        if lost:
            self._note(lost, f"{node.path} {has}")

    def _check_items(self, node: Node, n_items: int) -> None:
        """Raise `CodecError` if a list of *n_items* has items on no path, whose values would be lost."""
        if not self._has_paths and n_items != len(node.inside):
            where = f"row {self._levels[-1].n_rows}: " if self._levels else ""
            raise CodecError(
                f"{where}expected a list with {len(node.inside)} values, one for each output "
                f"({listed(node.outputs)}), got {n_items} (at {node.path})"
            )
        n_rows = max(self._first_sizes, default=1)
        if self._has_paths and not self._levels and n_rows > 1 and 0 in node.inside and n_items > len(node.inside):
            names = ", ".join(label_of("output", name) for name in node.outputs if name is not ORDER)
            raise CodecError(
                f"{names}: the request has {n_rows} rows and {node.path} is a list of {n_items}, of which the path "
                "takes only [0], so the answers to the other rows would be lost; write [*] for all of them, or "
                "`rows: 1` beside the path of the request if the server takes one row at a time"
            )

    def _entry(self, node: Node, key: Key, text: Text, there: dict[Key, None]) -> Reading[None]:
        """Read the value of *key* in an object or a list, and add a key that an error may name to *there*."""
        inner = Node("", str(key), outputs={str(key): ""}) if node.has_names else node.inside.get(key)
        if len(there) < MAX_NAMED or key in node.inside:
            there[key] = None
        if key in WORD_MEMBERS and isinstance(text, bytes) and (inner is None or not inner.outputs):
            self._words[str(key)] = text
        if inner is None:
            name = str(key) if node.code == OBJECT else ""
            yield from _skip(text, excerpt(name.encode()) if name else node.path)
        elif inner.has_outputs and text == b"null":  # which is the same as none
            self._with_outputs = None if self._with_outputs is inner else self._with_outputs
        else:
            yield from self._value(inner, text)

    def _note(self, lost: list[Node], why: str) -> None:
        """Remember *why* outputs in the *lost* nodes are not found."""
        for name, path in chain.from_iterable([node.outputs.items() for node in lost]):
            self._lacking[name] = f"nothing at {path}; {why}" if path else why

    # Rows

    def _rows(self, row: Node, text: ArrivingText) -> Reading[None]:
        """Read a list whose items are rows of all outputs whose paths go through *row*."""
        around = self._levels[-1] if self._levels else None
        level = RowLevel()
        self._levels.append(level)
        for number, (name, path) in enumerate(row.outputs.items()):
            if number % STEP_OUTPUTS == 0:
                yield STEP
            self._output(name, path)
        yield STEP

        def read_run(run: "Columns") -> "Reading[None]":
            level.n_rows += run[0]
            most_bytes = self._waiting_bytes
            for name, output in level.columns.items():
                yield from output.wait(run[1][name], most_bytes)

        yield from read_items(text, partial(self._short_rows, row), read_run, lambda: self._single_row(row, text))
        for output in level.columns.values():
            yield from output.read_waiting()
        self._levels.pop()
        if around is not None:
            around.row.update({name: output.value for name, output in level.columns.items()})

    @property
    def _waiting_bytes(self) -> int:
        """How much text of one output of the innermost rows may wait."""
        return WAITING_BYTES // len(self._levels) // max(1, len(self._levels[-1].columns))

    def _short_rows(self, row: Node, window: bytes) -> Columns:
        """The texts of the outputs in the rows of a *window*, which is an array of them.

        Raises `CodecError` for rows that are not all alike. They are read again one by one, which finds out what is
        wrong with which.
        """
        n_rows, columns = self._texts(row, window)
        joined = {name: b",".join(texts) for name, texts in columns.items()}
        if STAND_IN in b"".join(joined.values()):
            joined = {name: restore_literals(text) for name, text in joined.items()}
        if STAND_IN[1:] in b"".join(joined.values()):  # all but the bracket
            raise CodecError("a literal in place of a list")
        return n_rows, joined

    def _texts(self, row: Node, window: bytes) -> tuple[int, dict[str, list[bytes]]]:
        """The rows in *window* as `_short_rows`, each text by itself, with stand-ins for literals."""
        items: list[Any] = decoded(LISTS if row.code == ARRAY else OBJECTS, window)
        self._check_alike(row, items)
        if None in row.inside:
            return len(items), self._texts_of_lists(row.inside[None], items)
        inside = self._named(items) if row.has_names else row.inside
        wanted = self._levels[-1].columns.keys()
        columns: dict[str, list[bytes]] = {}
        for key, inner in inside.items():
            if wanted.isdisjoint(inner.outputs):
                continue
            try:
                texts = [item[key] for item in items]
            except LookupError:
                raise CodecError("a row without a value") from None
            if inner.output is None:
                columns.update(self._texts(inner, b"[%b]" % b",".join(texts))[1])
            else:
                columns[inner.output] = texts
        return len(items), columns

    def _check_alike(self, row: Node, items: list[Any]) -> None:
        """Raise `CodecError` if *items*, short rows, have to be read one by one."""
        if not items:
            raise CodecError("no short row")
        if self._has_paths:
            if row.code == OBJECT and any(bytes(item["error"]) not in NO_ERRORS for item in items if "error" in item):
                raise CodecError("a row with an error beside its values")
        elif row.code == ARRAY and {len(row.inside)} != set(map(len, items)):
            raise CodecError("a row of another length")

    def _texts_of_lists(self, row: Node, lists: list[list[bytes]]) -> dict[str, list[bytes]]:
        """The texts of the outputs in *lists* of rows: one for each list, an array with the values of its rows."""
        wanted = self._levels[-1].columns.keys() & row.outputs.keys()
        flat = list(chain.from_iterable(lists))
        columns = self._texts(row, b"[%b]" % b",".join(flat))[1] if flat else {name: [] for name in wanted}
        texts = {}
        for name, values in columns.items():
            rest = iter(values)
            texts[name] = [b"[%b]" % b",".join(islice(rest, len(each))) for each in lists]
        return texts

    def _named(self, items: list[Any]) -> dict[Step, Node]:
        """The outputs in the rows *items*, each by its name. Raises `CodecError` as `_texts` does."""
        level = self._levels[-1]
        names = dict.fromkeys(chain(level.columns, *items))
        if STAND_IN.decode() in "".join(names) or (not level.n_rows and len(names) > len(items[0])):
            raise CodecError("a name that is not as it came, or a row with more values")
        return {name: Node("", name, outputs={name: ""}) for name in names if self._output(name, "") is not None}

    def _single_row(self, row: Node, text: ArrivingText) -> Reading[None]:
        """Read one row by itself. Raises `FailedAnswerError` if it has an error beside a value that is null."""
        level, around = self._levels[-1], self._words
        self._words, level.row = {}, {}
        yield from self._value(row, text)
        where = f"row {level.n_rows}: "
        self._check(level.columns, level.row, where)
        has_error = self._has_paths and self._words.get("error", b"") not in NO_ERRORS
        if has_error and any(_has_null(level.columns[name], value) for name, value in level.row.items()):
            raise FailedAnswerError(f"{where}{shortened(words_of(self._words))}")
        self._words = around
        most_bytes = self._waiting_bytes
        for name, output in level.columns.items():
            value = level.row.pop(name)
            if isinstance(value, bytes):
                yield from output.wait(value, most_bytes)
            else:
                yield from output.read_waiting()
                output.append(Value((1, *value.shape), value.blobs, value.nonfinite))
                yield STEP
        level.n_rows += 1

    # The order of rows

    def _put_in_order(self, order: Output) -> Reading[None]:
        """Put the rows beside *order*, which has their numbers, into the order of the request. Raises `CodecError`."""
        label = f"`order` (at {self.form.order})"
        n_rows = math.prod(order.shape)
        if self._first_sizes and n_rows not in self._first_sizes:
            expected = " or ".join(map(str, sorted(self._first_sizes)))
            raise CodecError(f"{label}: the answer has {n_rows} rows, and the request has {expected}")
        indexes = np.concatenate([np.frombuffer(blob, "<i8") for blob in order.blobs] or [np.empty(0, "<i8")])
        if not (yield from stepwise(is_permutation(indexes))):
            shown_ = ", ".join(map(str, indexes[:MAX_NAMED].tolist()))
            raise CodecError(f"{label}: expected each of the rows 0 to {n_rows - 1} once, got {shown_}")
        paths = self.form.tree.outputs
        row = paths[ORDER].partition("[*]")[0] + "[*]"
        for name, output in self.found.items():
            if paths[name].startswith(row):
                yield from output.put_in_order(indexes)


def is_same_value(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _has_null(output: Output, value: bytes | Value) -> bool:
    """Whether *value*, that of *output* in a row, is null, or has a number that is."""
    if isinstance(value, Value):
        return value.nonfinite > 0
    return value == b"null" if output.datatype.kind is BYTES else b"null" in value


def _skip(text: Text, label: str) -> Reading[None]:
    """Skip a value. A long one is proved to be JSON meanwhile; *label* is for errors."""
    if not isinstance(text, bytes):
        yield from text.pour(TextSink(label, None))
