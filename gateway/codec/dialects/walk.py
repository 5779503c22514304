"""The walk through an answer in another dialect than V2: along the paths of its outputs, while its text arrives.

What is on no path is passed over; of the members beside the outputs those that say an error are kept. Not here: what
paths are (`paths`), how values are read (`outputs`), and the reply (`answer`).
"""

from collections.abc import Generator

from gateway.codec.dialects.description import MAX_NAMED
from gateway.codec.dialects.output import SETTING
from gateway.codec.dialects.outputs import Outputs, ReadLong, ReadRun, Rows
from gateway.codec.dialects.paths import AnswerForm, Node
from gateway.codec.inference import MAX_NAME, label_of
from gateway.codec.json.arriving import STEP, ArrivingText, ItemText, Reading, read_items, read_members
from gateway.codec.json.brackets import ARRAY, END_ARRAY, MAX_TEXT_DEPTH, OBJECT, QUOTE
from gateway.codec.json.member_finder import is_key
from gateway.codec.json.members import Members, excerpt, parse_list, parse_lists, parse_object, parse_objects
from gateway.codec.json.sinks import TextSink
from gateway.codec.v2.error_bodies import WORD_MEMBERS, shortened, words_of
from gateway.codec.values import SHORT_BYTES
from gateway.errors import CodecError, TooLargeError

_BY_NAME = Node("", has_names=True)
_ROWS_BY_NAME = Node("", row=_BY_NAME)


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
        self._rows: Rows | None = None
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
            node = yield from self._node_of_all(text)
        if node.output is not None and (code == ARRAY or not node.is_list):
            yield from read_long(node.output, text)
        elif (node.members or node.has_names) and code == OBJECT:
            self._there[node.path] = []
            yield from read_members(
                text,
                lambda members: self._short_members(node, members, read_run, read_long),
                lambda name: self._long_member(node, name, text, read_run, read_long),
            )
        elif node.items and code == ARRAY:
            yield from self._items(node, text, read_run, read_long)
        elif node.row is not None and code == ARRAY:
            yield from self._read_rows(node, node.row, text)
        else:
            yield from self._pass_other(node, text)

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
        if node.has_names:
            yield from read_run(members)
            return
        known: list[tuple[Node, bytes]] = []
        for name, value in members.items():
            inner = self._enter(node, name)
            if inner is None:
                self._pass_short(name, value)
            elif inner.has_outputs and value == b"null":  # which is the same as none
                self._has_outputs = False
            else:
                known.append((inner, value))
        yield from self._short_values(known, read_run, read_long)

    def _short_values(
        self, values: list[tuple[Node, bytes]], read_run: ReadRun, read_long: ReadLong
    ) -> Generator[bool, None, None]:
        """Read *values*; outputs that follow each other are read together."""
        run: Members = {}
        for node, value in values:
            if node.output is not None and not node.is_list:
                run[node.output] = value
                continue
            if run:
                yield from read_run(run)
                run = {}
            yield from self._value(node, ArrivingText.of_value(bytearray(value)), read_run, read_long)
        if run:
            yield from read_run(run)

    def _long_member(
        self, node: Node, name: str, text: ArrivingText, read_run: ReadRun, read_long: ReadLong
    ) -> Reading[None]:
        if node.has_names:
            yield from read_long(name, text)
            return
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
            known: list[tuple[Node, bytes]] = []
            for index, value in enumerate(values, count):
                inner = node.items.get(index)
                if inner is None:
                    self._pass_item(node, len(value))
                else:
                    known.append((inner, value))
            count += len(values)
            yield from self._short_values(known, read_run, read_long)

        def read_value() -> "Reading[None]":
            nonlocal count
            inner = node.items.get(count)
            name = inner.output if inner is not None else None
            item = ItemText(text, f"item {count} of {node.path}" if name is None else label_of("output", name))
            count += 1
            if inner is None:
                self._pass_item(node, 0)
                yield from self._pass(item, node.path)
            else:
                yield from self._value(inner, item, read_run, read_long)
            item.check_read()

        yield from read_items(text, parse_list, read_values, read_value)
        self._there[node.path] = f"is a list of {count}"
        if node.is_whole and count < len(node.items):
            raise self._no_list(str(count))

    def _read_rows(self, node: Node, row: Node, text: ArrivingText) -> Reading[None]:
        """Read a list whose items are rows of all outputs whose paths go through *row*."""
        opened = {name: self._outputs.open(name) for leaf in row.leaves() if (name := leaf.output) is not None}
        yield STEP
        columns = self._outputs.found if row.has_names else opened
        needed = {name for name, output in opened.items() if output is not None}
        self._rows = rows = Rows(self._outputs, columns, self._lacking_in_row)

        def parse(window: bytes) -> list[Members]:
            if row.has_names:
                return parse_objects(window)
            if row.is_whole:
                return [dict(zip(self._outputs.names, values, strict=True)) for values in _lists(window, len(opened))]
            found = [_picked(row, item) for item in (parse_objects(window) if row.members else parse_lists(window))]
            if any(not needed <= each.keys() for each in found):
                raise CodecError("a row without a value")  # which row, and what it has, is told where it is read alone
            return found

        def read_row() -> "Reading[None]":
            if row.has_names and (yield from text.first()) != OBJECT:
                raise CodecError(f"expected an object, got {excerpt(bytes(text.buffer[:256]))}")
            yield from rows.read_row(lambda read_run, read_long: self._value(row, text, read_run, read_long))

        yield from read_items(text, parse, rows.add, read_row)
        yield from rows.finish()
        self._rows = None

    def _lacking_in_row(self, output: str, row: int) -> str:
        why = self.lacking(output)
        return f"row {row}: {why}" if why else f"row {row} does not have it"

    # What is on no path

    def _pass_short(self, name: str, value: bytes) -> None:
        """Pass over a short member. Raises `TooLargeError`, as `_pass` does."""
        self._count(len(name) + len(value))
        if name in WORD_MEMBERS:
            self._words[name] = value

    def _pass_other(self, node: Node, text: ArrivingText) -> Reading[None]:
        """Pass over a value that is not what leads on at *node*."""
        there = excerpt(bytes(text.buffer[:256]))
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

    def _pass_item(self, node: Node, n_bytes: int) -> None:
        """Pass over an item of a list."""
        if node.is_whole:
            raise self._no_list("more")
        self._count(n_bytes)

    def _count(self, n_bytes: int) -> None:
        if self._rows is not None:  # where there is as much beside the outputs as there are rows
            return
        self.beside_bytes += n_bytes
        if self.beside_bytes > self._max_bytes:
            raise TooLargeError(
                f"the JSON beside the outputs is longer than {self._max_bytes} bytes, "
                "which is the most that `limits.header` allows"
            )


def _lists(window: bytes, length: int) -> list[list[bytes]]:
    """The lists in *window*. Raises `CodecError` if one has another *length*."""
    lists = parse_lists(window)
    if any(len(values) != length for values in lists):
        raise CodecError("a row of another length")  # which row, and how long it is, is told where it is read alone
    return lists


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
