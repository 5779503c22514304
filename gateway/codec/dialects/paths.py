"""Where outputs stand in answers: paths after RFC 9535, of `$`, `.name`, `['name']`, `[0]` and at most one `[*]`.

The paths of all outputs of a model are one tree, along which an answer is read while it arrives.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
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
    if steps.count(None) > 1:
        raise CodecError("expected at most one [*]")
    if len(steps) > MAX_STEPS:
        raise CodecError(f"expected at most {MAX_STEPS} names and indexes")
    return steps


def tree_of(paths: Mapping[str, str]) -> Node:
    """The tree of the *paths* of outputs, by their names. Raises `CodecError`."""
    return node_at("$", [(output, steps_of(path)) for output, path in paths.items()])


def node_at(path: str, ways: list[tuple[str, list[Step]]]) -> Node:
    """The node at *path*, from which *ways* lead to outputs. Raises `CodecError` if no answer can have all of them."""
    first = [steps[0] if steps else () for _, steps in ways]
    kinds = {type(step) for step in first}
    if len(ways) == 1 and first[0] in ((), None) and len(ways[0][1]) < 2:
        output = ways[0][0]
        return Node(path, output, 0 if first[0] == () else ARRAY, outputs={output: path})
    if len(kinds) > 1 or () in first:
        names = ", ".join(f"`{output}`" for output, _ in ways)
        raise CodecError(f"the paths of the outputs {names} do not fit together: at {path} they want different values")
    behind: dict[Step, list[tuple[str, list[Step]]]] = {}
    for output, steps in ways:
        behind.setdefault(steps[0], []).append((output, steps[1:]))
    inside = {step: node_at(path + _text(step), those) for step, those in behind.items()}
    outputs = {output: path + "".join(map(_text, steps)) for output, steps in ways}
    return Node(path, None, OBJECT if str in kinds else ARRAY, inside, outputs)


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
