"""The walk through an answer in another dialect than V2: along the paths of its outputs, while its text arrives.

What is on no path is passed over; of the members beside the outputs those that say an error are kept. Not here: what
paths are (`paths`), how values are read (`outputs`), and the reply (`answer`).
"""

from collections.abc import Generator

from gateway.codec.dialects.description import MAX_NAMED
from gateway.codec.dialects.outputs import Outputs, ReadLong, ReadRun, Rows
from gateway.codec.dialects.paths import AnswerForm, Node
from gateway.codec.inference import MAX_NAME
from gateway.codec.json.arriving import ArrivingText, ItemText, Reading, read_items, read_members
from gateway.codec.json.brackets import ARRAY, MAX_TEXT_DEPTH, OBJECT, QUOTE
from gateway.codec.json.members import Members, excerpt, parse_list, parse_lists, parse_object, parse_objects
from gateway.codec.json.scanner import is_key
from gateway.codec.json.sinks import TextSink
from gateway.codec.v2.error_bodies import WORD_MEMBERS, shortened, words_of
from gateway.codec.values import SHORT_BYTES
from gateway.errors import CodecError, TooLargeError


class Walk:
    """One walk through an answer."""

    def __init__(self, form: AnswerForm, outputs: Outputs, max_bytes: int) -> None:
        """*outputs* read the values; *max_bytes* bound the JSON beside them."""
        self.beside_bytes = 0
        """How much JSON beside the outputs there was."""
        self._form = form
        self._tree = form.tree
        self._outputs = outputs
        self._max_bytes = max_bytes
        self._words: Members = {}
        self._has_outputs = False
        self._is_in_rows = False
        # what was found on the way to outputs, by path: names of members, or words
        self._there: dict[str, list[str] | str] = {}

    def read(self, text: ArrivingText) -> Reading[None]:
        """Read an answer. Raises `CodecError` if it does not have the outputs."""
        code = yield from text.first()
        if self._form.members and code != OBJECT:
            raise CodecError(f"expected a JSON object, got {excerpt(bytes(text.buffer[:256]))}")
        members = _members_if_whole(text) if code == OBJECT and self._tree.members else None
        if members is not None:
            self._there[self._tree.path] = []
            yield from self._short_members(self._tree, members, self._outputs.read_short, self._outputs.read_named)
        else:
            yield from self._value(self._tree, text, self._outputs.read_short, self._outputs.read_named)
        if self._form.members and not self._has_outputs:
            wanted = " or ".join(f"`{name}`" for name in self._form.members)
            raise CodecError(f"no {wanted}{self._error()}")

    def lacking(self, output: str) -> str:
        """Why there was nothing at the path of *output*; empty if it has none of its own."""
        node = self._tree
        deepest = ""
        while True:
            deepest = node.path if node.path in self._there else deepest
            if node.output is not None:
                break
            inner = (*node.members.values(), *node.items.values(), *((node.row,) if node.row is not None else ()))
            on = next((each for each in inner if any(leaf.output == output for leaf in each.leaves())), None)
            if on is None:
                return ""
            node = on
        there = self._there.get(deepest, "is not there")
        if not isinstance(there, str):
            listed = ", ".join(repr(name[:MAX_NAME]) for name in there)
            there = f"has the members {listed}" if there else "has no members"
        return f"nothing at {node.path}; {deepest} {there}{self._error()}"

    def _error(self) -> str:
        """What the answer says of an error."""
        words = words_of(self._words)
        return f", but an error: {shortened(words)}" if words else ""

    def _value(self, node: Node, text: ArrivingText, read_run: ReadRun, read_long: ReadLong) -> Reading[None]:
        """Read the value that comes next in *text*; what of it is an output goes to *read_run* or *read_long*."""
        code = yield from text.first()
        if node.has_outputs:
            yield from _read_outputs(text, self._form, self._outputs)
        elif node.output is not None and (code == ARRAY or not node.is_list):
            yield from read_long(node.output, text)
        elif node.members and code == OBJECT:
            self._there[node.path] = []
            yield from read_members(
                text,
                lambda members: self._short_members(node, members, read_run, read_long),
                lambda name: self._long_member(node, name, text, read_run, read_long),
            )
        elif node.items and code == ARRAY:
            yield from self._items(node, text, read_run, read_long)
        elif node.row is not None and code == ARRAY:
            yield from self._rows(node, node.row, text)
        else:
            self._there[node.path] = f"is {excerpt(bytes(text.buffer[:256]))}"
            yield from self._pass(text, node.path)

    def _enter(self, node: Node, name: str) -> Node | None:
        """The value of the member called *name*, if it is on a path."""
        names = self._there.setdefault(node.path, [])
        if isinstance(names, list) and len(names) < MAX_NAMED:
            names.append(name)
        inner = node.members.get(name)
        if inner is not None and inner.has_outputs:
            self._has_outputs = True
            self._outputs.start_again()
        return inner

    def _short_members(
        self, node: Node, members: Members, read_run: ReadRun, read_long: ReadLong
    ) -> Generator[bool, None, None]:
        for name, value in members.items():
            inner = self._enter(node, name)
            if inner is None:
                self._pass_short(name, value)
            elif inner.has_outputs and value == b"null":  # which is the same as none
                self._has_outputs = False
            elif inner.output is not None and not inner.is_list:
                yield from read_run({inner.output: value})
            else:
                yield from self._value(inner, ArrivingText.of_value(bytearray(value)), read_run, read_long)

    def _long_member(
        self, node: Node, name: str, text: ArrivingText, read_run: ReadRun, read_long: ReadLong
    ) -> Reading[None]:
        inner = self._enter(node, name)
        if inner is None:
            self._count(len(name))
            words: list[bytes] | None = [] if name in WORD_MEMBERS else None
            yield from self._pass(text, excerpt(name.encode()), words)
            if words is not None:
                self._words[name] = b"".join(words)
        else:
            yield from self._value(inner, text, read_run, read_long)

    def _items(self, node: Node, text: ArrivingText, read_run: ReadRun, read_long: ReadLong) -> Reading[None]:
        """Read a list of which some items are on paths."""
        count = 0

        def read_values(values: list[bytes]) -> "Reading[None]":
            nonlocal count
            for value in values:
                inner = node.items.get(count)
                count += 1
                if inner is None:
                    self._count(len(value))
                elif inner.output is not None and not inner.is_list:
                    yield from read_run({inner.output: value})
                else:
                    yield from self._value(inner, ArrivingText.of_value(bytearray(value)), read_run, read_long)

        def read_value() -> "Reading[None]":
            nonlocal count
            inner = node.items.get(count)
            item = ItemText(text, f"item {count} of {node.path}")
            count += 1
            if inner is None:
                yield from self._pass(item, f"item {count - 1} of {node.path}")
            else:
                yield from self._value(inner, item, read_run, read_long)
            item.check_read()

        yield from read_items(text, parse_list, read_values, read_value)
        self._there[node.path] = f"is a list of {count}"

    def _rows(self, node: Node, row: Node, text: ArrivingText) -> Reading[None]:
        """Read a list whose items are rows of all outputs whose paths go through *row*."""
        columns = {name: self._outputs.open(name) for leaf in row.leaves() if (name := leaf.output) is not None}
        needed = {name for name, output in columns.items() if output is not None}
        rows = Rows(self._outputs, columns, lambda name, index: f"row {index}: {self.lacking(name)}")

        def parse(window: bytes) -> list[Members]:
            found = [_picked(row, item) for item in (parse_objects(window) if row.members else parse_lists(window))]
            if any(not needed <= each.keys() for each in found):
                raise CodecError("a row without a value")  # which row, and what it has, is told where it is read alone
            return found

        def read_row() -> "Reading[None]":
            item = ItemText(text, f"row {rows.n_rows} of {node.path}")
            yield from rows.read_row(lambda read_run, read_long: self._value(row, item, read_run, read_long))
            item.check_read()

        self._is_in_rows = True
        yield from read_items(text, parse, rows.add, read_row)
        yield from rows.finish()
        self._is_in_rows = False

    # What is on no path

    def _pass_short(self, name: str, value: bytes) -> None:
        """Pass over a short member. Raises `TooLargeError`, as `_pass` does."""
        self._count(len(name) + len(value))
        if name in WORD_MEMBERS:
            self._words[name] = value

    def _pass(self, text: ArrivingText, label: str, kept: list[bytes] | None = None) -> Reading[None]:
        """Pass over the value that comes next, and put its text into *kept*; *label* is for errors."""
        start = text.consumed
        for state in text.pour(TextSink(label, kept)):
            self._count(text.consumed - start)
            start = text.consumed
            yield state

    def _count(self, n_bytes: int) -> None:
        if self._is_in_rows:  # where there is as much beside the outputs as there are rows
            return
        self.beside_bytes += n_bytes
        if self.beside_bytes > self._max_bytes:
            raise TooLargeError(
                f"the JSON beside the outputs is longer than {self._max_bytes} bytes, "
                "which is the most that `limits.header` allows"
            )


def _picked(node: Node, value: Members | list[bytes]) -> Members:
    """The texts of the outputs in a short object or list, by their names. Raises `CodecError`."""
    found: Members = {}
    if isinstance(value, dict):
        on = [(inner, value[name]) for name, inner in node.members.items() if name in value]
    else:
        on = [(inner, value[index]) for index, inner in node.items.items() if index < len(value)]
    for inner, text in on:
        if inner.output is not None:
            found[inner.output] = text
        else:
            found.update(_picked(inner, parse_object(text) if inner.members else parse_list(text)))
    return found


def _members_if_whole(text: ArrivingText) -> Members | None:
    """Take the whole answer, if it is there and short; None if it is not, or is to be looked at more closely."""
    if len(text.buffer) > SHORT_BYTES or not text.buffer.endswith(b"}"):
        return None
    if text.buffer.count(b"[") + text.buffer.count(b"{") > MAX_TEXT_DEPTH:  # how deep msgspec reads depends on Python
        return None
    try:
        members = parse_object(bytes(text.buffer))
    except CodecError:
        return None
    text.drop(len(text.buffer))
    return members


def _read_outputs(text: ArrivingText, form: AnswerForm, outputs: Outputs) -> Reading[None]:
    """Read the member that has all outputs."""
    code = yield from text.first()
    if code == OBJECT and not (yield from _is_b64_object(text, 0, form, outputs)):
        yield from outputs.read_by_name(text)
    elif (
        code == ARRAY
        and (yield from text.first(1)) == OBJECT
        and not (yield from _is_b64_object(text, 1, form, outputs))
    ):
        yield from outputs.read_rows(text)
    else:
        yield from outputs.read_unnamed(text)


def _is_b64_object(text: ArrivingText, at: int, form: AnswerForm, outputs: Outputs) -> Reading[bool]:
    """Whether the object that begins at *at* is an element of BYTES, and not values by name."""
    if not form.b64_objects or outputs.is_known("b64") or (yield from text.first(at + 1)) != QUOTE:
        return False
    return is_key((yield from text.string(at + 1)), b'"b64"')
