"""The walk through an answer in another dialect than V2: along the paths of its outputs, while its text arrives.

What is on no path is passed over; of the members beside the outputs those that say an error are kept. Of two members
with one name the last wins (protocol 1.6): whenever a value on a path begins, all that stood there before is forgotten.
Not here: what paths are (`paths`), how values are read (`outputs`), and the reply (`answer`).
"""

from collections.abc import Collection, Iterable
from typing import Any

from gateway.codec.dialects.description import MAX_NAMED
from gateway.codec.dialects.output import SETTING
from gateway.codec.dialects.outputs import Columns, Outputs, Rows, is_short, shown
from gateway.codec.dialects.paths import AnswerForm, Node
from gateway.codec.inference import MAX_NAME, label_of
from gateway.codec.json.arriving import STEP, ArrivingText, ItemText, Reading, read_items, read_members
from gateway.codec.json.brackets import ARRAY, END_ARRAY, OBJECT, QUOTE
from gateway.codec.json.member_finder import is_key
from gateway.codec.json.members import Members, excerpt, parse_list, parse_lists, parse_object, parse_objects
from gateway.codec.json.sinks import TextSink
from gateway.codec.v2.error_bodies import WORD_MEMBERS, shortened, words_of
from gateway.errors import CodecError, TooLargeError

_BY_NAME = Node("", has_names=True)
_ROWS_BY_NAME = Node("", row=_BY_NAME)


Target = Outputs | Rows
"""What gets the values of outputs: all outputs of the answer, or one row of some."""


class Walk:
    """One walk through an answer."""

    def __init__(self, form: AnswerForm, outputs: Outputs, max_bytes: int) -> None:
        """*outputs* read the values; *max_bytes* bound the JSON beside them."""
        self.beside_bytes = 0
        """How much JSON beside the outputs there was."""
        self._form = form
        self._outputs = outputs
        self._max_bytes = max_bytes
        self._words: Members = {}
        self._with_outputs: Node | None = None  # the last member that had all outputs
        self._rows: Rows | None = None
        # what was found on the way to outputs, by path: names of members, or words
        self._there: dict[str, dict[str, None] | str] = {}

    def read(self, text: ArrivingText) -> Reading[None]:
        """Read an answer. Raises `CodecError` if it does not have the outputs."""
        code = yield from text.first()
        if self._form.members and code != OBJECT:
            raise CodecError(f"expected a JSON object, got {shown(text)}")
        yield from self._value(self._form.tree, text, self._outputs)
        if self._form.members and self._with_outputs is None:
            wanted = " or ".join(f"`{name}`" for name in self._form.members)
            raise CodecError(f"no {wanted}{self._error()}")

    def lacking(self, output: str) -> str:
        """Why there was nothing at the path of *output*; empty if it has none of its own."""
        way = self._form.tree.way_to(output)
        if not way:
            return ""
        deepest = next(node.path for node in reversed(way) if node.path in self._there)
        there = self._there[deepest]
        if not isinstance(there, str):
            listed = ", ".join(repr(name[:MAX_NAME]) for name in there)
            there = f"has the members {listed}" if there else "has no members"
        return f"nothing at {way[-1].path}; {deepest} {there}{self._error()}"

    def _error(self) -> str:
        """What the answer says of an error."""
        words = words_of(self._words)
        return f", but an error: {shortened(words)}" if words else ""

    def _value(self, node: Node, text: ArrivingText, target: Target) -> Reading[None]:
        """Read the value that comes next in *text*; what of it is an output goes to *target*."""
        self._forget(node, target)
        code = yield from text.first()
        if node.has_outputs:
            self._with_outputs = node
            self._outputs.found.clear()
            node = yield from self._node_of_all(text)
        if node.output is not None and (code == ARRAY or not node.is_list):
            yield from target.put(node.output, text)
        elif (node.members or node.has_names) and code == OBJECT:
            self._there[node.path] = {}
            members = _whole(text)
            if members is not None:
                yield from self._short(node, members.items(), target)
                return
            yield from read_members(
                text,
                lambda members: self._short(node, members.items(), target),
                lambda name: self._long(node, name, text, target),
            )
        elif node.items and code == ARRAY:
            yield from self._items(node, text, target)
        elif node.row is not None and code == ARRAY:
            self._there[node.path] = "is a list"
            yield from self._read_rows(node.row, text)
        else:
            yield from self._pass_other(node, text)

    def _forget(self, node: Node, target: Target) -> None:
        """Let go of what a value at *node* has shown before; there is one if a member comes a second time."""
        if node.output is not None:
            target.forget(node.output)
        elif node.path in self._there:
            for each in node.nodes():
                self._there.pop(each.path, None)
                if each.output is not None:
                    target.forget(each.output)

    def _node_of_all(self, text: ArrivingText) -> Reading[Node]:
        """How the value that comes next has all outputs. Raises `CodecError` if it does not show where they are."""
        code = yield from text.first()
        if code == OBJECT and not (yield from self._is_b64_object(text, 0)):
            return _BY_NAME
        inside = (yield from text.first(1)) if code == ARRAY else 0
        if inside == OBJECT and not (yield from self._is_b64_object(text, 1)):
            return _ROWS_BY_NAME
        names = self._outputs.names
        if len(names) == 1:
            return Node("", output=names[0])
        in_order = Node("", items={index: Node("", output=name) for index, name in enumerate(names)}, is_whole=True)
        yield STEP
        if inside == END_ARRAY:  # no rows at all are those of every output
            return Node("", row=in_order)
        if not names:
            raise CodecError(f"an output without a name; {SETTING} can give it one")
        if not self._outputs.has_order:
            raise CodecError(
                f"an output without a name, but the model has {len(names)} ({self._listed()}); {SETTING} can list all "
                "of them in the order of the server's answers"
            )
        return Node("", row=in_order) if self._form.in_rows else in_order

    def _is_b64_object(self, text: ArrivingText, at: int) -> Reading[bool]:
        """Whether the object that begins at *at* is an element of BYTES, and not values by name."""
        if not self._form.b64_objects or self._outputs.is_known("b64") or (yield from text.first(at + 1)) != QUOTE:
            return False
        return is_key((yield from text.string(at + 1)), b'"b64"')

    def _no_list(self, got: str) -> CodecError:
        """What to raise where outputs without names are not in a list."""
        where = "" if not self._form.in_rows else f"row {self._rows.n_rows}: " if self._rows else "each row: "
        n_outputs = len(self._outputs.names)
        return CodecError(
            f"{where}expected a list with {n_outputs} values, one for each output ({self._listed()}), got {got}"
        )

    def _listed(self) -> str:
        return ", ".join(map(repr, self._outputs.names[:MAX_NAMED]))

    def _short(self, node: Node, values: Iterable[tuple[str | int, bytes]], target: Target) -> Reading[None]:
        """Read short *values* in an object or a list, by their names or indexes."""
        for key, value in values:
            inner = self._on_path(node, key)
            if inner is None:
                self._count(len(value) + (len(key) if isinstance(key, str) else 0))
                if key in WORD_MEMBERS:
                    self._words[str(key)] = value
            elif inner.has_outputs and value == b"null":  # which is the same as none
                self._with_outputs = None if self._with_outputs is inner else self._with_outputs
            else:
                yield from self._value(inner, ArrivingText.of_value(bytearray(value)), target)

    def _long(self, node: Node, key: str | int, text: ArrivingText, target: Target) -> Reading[None]:
        """Read the long value that comes next, in an object or a list."""
        inner = self._on_path(node, key)
        if inner is not None:
            yield from self._value(inner, text, target)
        elif isinstance(key, int):
            yield from self._pass(text, node.path)
        else:
            self._count(len(key))
            words: list[bytes] | None = [] if key in WORD_MEMBERS and self._rows is None else None
            yield from self._pass(text, excerpt(key.encode()), words)
            if words is not None:
                self._words[key] = b"".join(words)

    def _on_path(self, node: Node, key: str | int) -> Node | None:
        """The member or item *key* of an object or a list, if it leads on."""
        if isinstance(key, int):
            if node.is_whole and key not in node.items:
                raise self._no_list("more")
            return node.items.get(key)
        if node.has_names:
            return Node("", output=key)
        there = self._there[node.path]
        if isinstance(there, dict) and len(there) < MAX_NAMED:
            there[key] = None
        return node.members.get(key)

    def _items(self, node: Node, text: ArrivingText, target: Target) -> Reading[None]:
        """Read a list of which some items are on paths."""
        count = 0

        def read_values(values: list[bytes]) -> "Reading[None]":
            nonlocal count
            yield from self._short(node, enumerate(values, count), target)
            count += len(values)

        def read_value() -> "Reading[None]":
            nonlocal count
            name = node.items[count].output if count in node.items else None
            item = ItemText(text, f"item {count} of {node.path}" if name is None else label_of("output", name))
            yield from self._long(node, count, item, target)
            item.check_read()
            count += 1

        yield from read_items(text, parse_list, read_values, read_value)
        self._there[node.path] = f"is a list of {count}"
        if node.is_whole and count < len(node.items):
            raise self._no_list(str(count))

    def _read_rows(self, row: Node, text: ArrivingText) -> Reading[None]:
        """Read a list whose items are rows of all outputs whose paths go through *row*."""
        names = None if row.has_names else [leaf.output for leaf in row.leaves() if leaf.output is not None]
        self._rows = rows = Rows(self._outputs, names, self._lacking_in_row)
        yield STEP

        def parse(window: bytes) -> list[Columns]:
            if window == b"[]":  # the next row is a long one
                return []
            if row.has_names:
                return [rows.columns_by_name(parse_objects(window))]
            return [_columns(row, window, rows.names)]

        def read_row() -> "Reading[None]":
            if row.has_names and (yield from text.first()) != OBJECT:
                raise CodecError(f"expected an object, got {shown(text)}")
            yield from self._value(row, text, rows)
            yield from rows.end_row()

        yield from read_items(text, parse, rows.add, read_row)
        yield from rows.finish()
        self._rows = None

    def _lacking_in_row(self, output: str, row: int) -> str:
        why = self.lacking(output)
        return f"row {row}: {why}" if why else f"row {row} does not have it"

    # What is on no path

    def _pass_other(self, node: Node, text: ArrivingText) -> Reading[None]:
        """Pass over a value that is not what leads on at *node*."""
        there = shown(text)
        if node.is_whole or (node.row is not None and node.row.is_whole):
            raise self._no_list(f"{there} in place of all rows" if node.row is not None else there)
        self._there[node.path] = f"is {there}"
        yield from self._pass(text, node.path)

    def _pass(self, text: ArrivingText, label: str, kept: list[bytes] | None = None) -> Reading[None]:
        """Pass over the value that comes next, and put its text into *kept*; *label* is for errors."""
        start = text.consumed
        for state in text.pour(TextSink(label, kept)):
            self._count(text.consumed - start)
            start = text.consumed
            yield state

    def _count(self, n_bytes: int) -> None:
        if self._rows is not None:  # where there is as much beside the outputs as there are rows
            return
        self.beside_bytes += n_bytes
        if self.beside_bytes > self._max_bytes:
            raise TooLargeError(
                f"the JSON beside the outputs is longer than {self._max_bytes} bytes, "
                "which is the most that `limits.header` allows"
            )


def _columns(node: Node, window: bytes, names: Collection[str | None]) -> Columns:
    """The texts of the outputs called *names* in the rows of a *window*, which is an array of them.

    Raises `CodecError` for rows that are not all alike: which one it is, and what it has, is told where it is read
    alone.
    """
    items: list[Any] = parse_lists(window) if node.items else parse_objects(window)
    if node.is_whole and any(len(item) != len(node.items) for item in items):
        raise CodecError("a row of another length")
    columns: dict[str, list[bytes]] = {}
    for key, inner in (node.items or node.members).items():
        if not any(leaf.output in names for leaf in inner.leaves()):
            continue
        try:
            values = [item[key] for item in items]
        except LookupError:
            raise CodecError("a row without a value") from None
        if inner.output is not None:
            columns[inner.output] = values
        else:
            columns.update(_columns(inner, b"[%b]" % b",".join(values), names)[1])
    return len(items), columns


def _whole(text: ArrivingText) -> Members | None:
    """The members of the object that comes next, if nothing else does; None if it is to be looked at more closely."""
    if not is_short(text):
        return None
    try:
        members = parse_object(bytes(text.buffer))
    except CodecError:
        return None
    text.drop(len(text.buffer))
    return members
