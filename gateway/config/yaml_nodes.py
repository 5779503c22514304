"""YAML text into nodes, each with its line, by PyYAML's safe loader. Not here: what the keys mean."""

from typing import Any

import yaml

from gateway.config.values import shortened, shown

MAX_FILE_BYTES = 4 * 1024 * 1024
"""The most that a configuration's file may hold."""

_CONTAINERS: dict[type[yaml.Node], tuple[type, str]] = {
    yaml.MappingNode: (dict, "tag:yaml.org,2002:map"),
    yaml.SequenceNode: (list, "tag:yaml.org,2002:seq"),
}
_MERGE = "tag:yaml.org,2002:merge"


class UnreadableError(Exception):
    """Nothing more of the file is read: the line, from 1, or 0 for the whole file, and the reason."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def compose(content: bytes) -> yaml.Node | None:
    """The node of the one document in *content*, None if it is empty. Raises `UnreadableError`."""
    if len(content) > MAX_FILE_BYTES:
        raise UnreadableError(0, f"more than {MAX_FILE_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(content.count(b"\n", 0, error.start) + 1, "not UTF-8") from None
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark  # all that composing raises have one
        context = f"{error.context}, " if error.context else ""
        line, reason = mark.line + 1, f"{context}{error.problem} (column {mark.column + 1})"
    except yaml.reader.ReaderError as error:
        line, reason = text.count("\n", 0, error.position) + 1, error.reason
    except (ValueError, OverflowError) as error:  # an escape such as "\UFFFFFFFF", which stands for no character
        line, reason = 1, f"invalid value: {error}"
    raise UnreadableError(line, f"not YAML: {shortened(reason)}")


def value_of(node: yaml.Node) -> Any:
    """The plain value of *node*; of a list or mapping only its type, empty. Raises `ValueError`: why there is none.

    PyYAML refuses tags that it does not know. Dates that do not exist, numbers of thousands of digits, and tags beside
    text that they cannot stand for are various errors of Python.
    """
    if type(node) in _CONTAINERS:
        type_, tag = _CONTAINERS[type(node)]
        if node.tag != tag:
            raise ValueError(f"not YAML: unknown tag {shortened(node.tag)}")
        return type_()
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node)
        if isinstance(value, str):
            value.encode()  # a surrogate is not a character
    except Exception as error:
        reason = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
        raise ValueError(f"not YAML: invalid value: {shortened(str(reason))}") from None
    return value


def key_of(node: yaml.Node) -> str:
    """The text of *node*, which is the key of a mapping. Raises `ValueError`: why it is none."""
    if node.tag == _MERGE:
        raise ValueError("merging with `<<` is not supported; use an alias for a whole value")
    key = value_of(node)
    if not isinstance(key, str):
        raise ValueError(f"expected a key that is text, got {shown(key)}; write it in quotes")
    return key


def line_of(node: yaml.Node) -> int:
    """The line of the file, from 1, where *node* begins."""
    return int(node.start_mark.line) + 1
