"""Where outputs stand in answers: paths after RFC 9535, made of `$`, `.name`, `['name']`, `[0]` and `[*]`.

The paths of all outputs of a model are one tree, along which an answer is read while it arrives. Each `[*]` is a
dimension: a list whose items are rows of the outputs inside. In the same tree are the paths of values that say
something of the answer itself: whether it is a failure, and why.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from gateway.codec.json.pieces import ARRAY, OBJECT
from gateway.errors import CodecError

MAX_STEPS = 16
"""How many names and indexes a path may have."""

_STEP = re.compile(
    r"""\.(?P<name>[A-Za-z_\u0080-\U0010ffff][\w\u0080-\U0010ffff]*)
    |\[(?:'(?P<single>(?:[^'\\]|\\.)*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<index>0|[1-9][0-9]{0,5})|(?P<every>\*))\]""",
    re.VERBOSE | re.ASCII,
)

Step = str | int | None
"""The name of a member, the index of an item, or None: every item."""


class Node(msgspec.Struct, frozen=True):
    """A value of an answer that paths lead to or through."""

    path: str
    """As in a configuration."""
    output: str | None = None
    """The name of the output that the value is."""
    code: int = 0
    """The first byte that the value must have: that of an object or of a list; 0: any."""
    inside: "Mapping[Step, Node]" = {}
    """The nodes inside, by name or index; under None the node of every item of a list, which is a row of outputs."""
    outputs: Mapping[str, str] = {}
    """All outputs that the value is or has in it, by name, with their paths."""
    noted: str = ""
    """The path under which the value is noted; empty if it is not."""
    notes: tuple[str, ...] = ()
    """The paths of all values that are noted: this one, and those in it."""
    has_outputs: bool = False
    """Whether it has all outputs, in a form that shows where each of them is."""
    has_names: bool = False
    """Whether it is an object each member of which is the output of that name."""


def steps_of(path: str) -> list[Step]:
    """What *path* is made of behind its `$`. Raises `CodecError`: what was expected."""
    steps: list[Step] = []
    at = 1 if path.startswith("$") else 0
    while at and (found := _STEP.match(path, at)) is not None:
        kind, at = str(found.lastgroup), found.end()
        text = found[kind]
        if kind == "single":
            text = text.replace("\\'", "'").replace('"', '\\"')
        if kind in ("every", "index"):
            steps.append(int(text) if kind == "index" else None)
            continue
        try:
            steps.append(json.loads(f'"{text}"'))
        except ValueError:
            raise CodecError("expected a name in quotes, with escapes as in JSON") from None
    if not at or at < len(path):
        expected = "a path such as $.result[0].score, made of $, .name, ['name'], [0] and [*]"
        raise CodecError(f"expected {expected}, at {path[at:]!r}")
    if len(steps) > MAX_STEPS:
        raise CodecError(f"expected at most {MAX_STEPS} names and indexes")
    return steps


class Noted(str):
    """The path of a value that is noted, in the place of an output's name."""


ORDER = Noted("\0order")
"""In the place of the name of an output: the value in each row that says which input row it is about."""

Way = tuple[str, Sequence[Step]]
"""The name of an output, or a `Noted`, and the steps that are left to it."""


def tree_of(paths: Mapping[str, str], noted: Iterable[str] = (), order: str = "") -> Node:
    """The tree of the *paths* of outputs, by their names, and of values that are *noted*.

    *order* is the path of `ORDER`, which is an output as well; empty if there is none. Raises `CodecError`.
    """
    ways: list[Way] = [(output, steps_of(path)) for output, path in paths.items()]
    ways += [(ORDER, steps_of(order))] if order else []
    return node_at("$", [*ways, *((Noted(path), steps_of(path)) for path in dict.fromkeys(map(canonical, noted)))])


def node_at(path: str, ways: list[Way]) -> Node:
    """The node at *path*, from which *ways* lead to outputs. Raises `CodecError` if no answer can have all of them.

    A path that is noted is left out where an output wants another value: `Node.notes` has those that are not.
    """
    real = [way for way in ways if not is_noted(way[0])]
    outputs = {name: path + _text_of(steps) for name, steps in real}
    noted = path if any(is_noted(name) and not steps for name, steps in ways) else ""
    notes: tuple[str, ...] = (noted,) if noted else ()
    if len(real) == 1 and [*real[0][1]] in ([], [None]):
        (name, steps), *_ = real
        return Node(path, name, ARRAY if steps else 0, {}, {name: path}, noted=noted, notes=notes)
    after = _by_first_step(path, real, ways)
    if not after:
        return Node(path, noted=noted, notes=notes)
    inside = {step: node_at(path + _text(step), those) for step, those in after.items()}
    code = OBJECT if isinstance(next(iter(after)), str) else ARRAY
    notes += tuple(chain.from_iterable(node.notes for node in inside.values()))
    return Node(path, None, code, inside, outputs, noted=noted, notes=notes)


def list_in_order(path: str, names: Sequence[str], *, in_rows: bool) -> Node:
    """The node at *path* of a list with a value for each output of *names*; with *in_rows* of a list of such rows."""
    row = f"{path}[*]" if in_rows else path
    outputs = {name: f"{row}[{index}]" for index, name in enumerate(names)}
    inside: dict[Step, Node] = {}
    for index, (name, there) in enumerate(outputs.items()):
        inside[index] = Node(there, name, outputs={name: there})
    items = Node(row, code=ARRAY, inside=inside, outputs=outputs)
    return Node(path, code=ARRAY, inside={None: items}, outputs=outputs) if in_rows else items


def _by_first_step(path: str, real: list[Way], ways: list[Way]) -> dict[Step, list[Way]]:
    """What is left of *ways* after their first step, by that step. Those that are *real* must agree on its kind."""
    first = [steps[0] if steps else () for _, steps in real]
    kinds = set(map(type, first))
    if len(kinds) > 1 or () in first:
        names = ", ".join("`order`" if name is ORDER else f"`{name}`" for name, _ in real)
        raise CodecError(f"the paths of the outputs {names} do not fit together: at {path} they want different values")
    after: dict[Step, list[Way]] = {}
    for name, steps in sorted(ways, key=lambda way: is_noted(way[0])):
        if steps and type(steps[0]) in (kinds := kinds or {type(steps[0])}):
            after.setdefault(steps[0], []).append((name, steps[1:]))
    return after


def is_noted(name: str) -> bool:
    """Whether *name*, that of a way, is a path that is noted, and not an output's."""
    return isinstance(name, Noted) and name is not ORDER


def canonical(path: str) -> str:
    """*path* in the one form in which nodes have it. Raises `CodecError`."""
    return f"${_text_of(steps_of(path))}"


def _text_of(steps: Sequence[Step]) -> str:
    return "".join(map(_text, steps))


def _text(step: Step) -> str:
    """*step* as it stands in a path."""
    if isinstance(step, str):
        return f".{step}" if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", step) else f"[{step!r}]"
    return "[*]" if step is None else f"[{step}]"


def find(steps: Iterable[Step], value: Any) -> Any:
    """What *steps* lead to in *value*, plain objects and lists; None if nothing."""
    for step in steps:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def document_of(text: bytes) -> Any:
    """The JSON *text* as plain objects; None if it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def reason_at(steps: Sequence[Step], text: bytes) -> str | None:
    """The string to which *steps* lead in the JSON *text*; None if there is none, or an empty one."""
    words = find(steps, document_of(text))
    return words if isinstance(words, str) and words else None


def members_with_all(*names: str) -> Node:
    """The tree of answers that have all outputs in one member, called as one of *names*; its value shows where."""
    return Node("$", code=OBJECT, inside={name: Node(f"$.{name}", has_outputs=True) for name in names})


class AnswerForm(msgspec.Struct, frozen=True):
    """Where the answers of a model have their outputs, and how they write BYTES."""

    tree: Node
    """The tree of the outputs' paths, or that of members of which one has all outputs."""
    b64_objects: bool = False
    """Whether an element of BYTES may be written as `{"b64": "..."}`."""
    in_rows: bool = False
    """Whether several outputs without names are an array of rows, each a list with a value for every output; otherwise
    they are one such list."""
    success: Mapping[str, Any] = {}
    """The values that an answer has at these paths if it is no failure; paths are `canonical`."""
    error: str = ""
    """The path at which an answer says why it is a failure; empty: where those of all servers say it."""
    order: str = ""
    """The path of the number, in each row, of the input row that it is about; empty: rows are in order."""


def form_of(
    paths: Mapping[str, str], success: Mapping[str, Any], error: str | None = None, order: str | None = None
) -> AnswerForm:
    """The form of answers that have outputs at *paths*; the others as in `AnswerForm`. Raises `CodecError`."""
    expected = {canonical(path): value for path, value in success.items()}
    reason = canonical(error) if error else ""
    tree = tree_of(paths, (*expected, *([reason] if reason else ())), order or "")
    return AnswerForm(tree, success=expected, error=reason, order=order or "")
