"""The walk along a file's nodes and the types of `schema`, which finds all that is wrong in one run.

Unknown keys are typing errors: nothing is ignored silently. A message never repeats credentials or a value from
outside, and of a long value only the beginning.
Not here: what the values must satisfy together (`rules`), and where the text comes from (`loading`).
"""

import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gateway.config.findings import Finding, Inspected, overlap
from gateway.config.outside import put_into
from gateway.config.rules import ERRORS, check
from gateway.config.schema import Config
from gateway.config.structure import choices_of, fields_in_file, is_struct, join, placeholder, without_none, words_for
from gateway.config.values import KINDS, Endpoint, meant, nearest, read, shortened, shown
from gateway.config.yaml_nodes import UnreadableError, compose, key_of, line_of, value_of

MAX_FINDINGS = 100
"""The most errors, and warnings, that are reported of one file; reading stops there."""

MAX_VALUES = 100_000
"""The most keys and values of a file, where each use of an alias (`*name`) counts as all that it stands for: a few
lines of aliases of aliases can stand for more than fits into any memory."""

MAX_INTEGER = 2**53
"""The largest number; beyond it not every program that reads JSON sees the same one."""

_BACKENDS = '`{default: {endpoints: ["http://127.0.0.1:8000"]}}`'
_ANY_AT: dict[type, Any] = {list: list[Any], dict: dict[str, Any]}
"""What a value is that may be anything, by the type of what stands in the file."""


def inspected(content: bytes, file: str, base: Path) -> Inspected:
    """What *content* says and what is wrong with it, without warnings; paths are relative to the folder *base*."""
    found = Inspected(file)
    try:
        found.read = _Reader(found, base).whole(compose(content))
        for key, reason in check(ERRORS, found.read):
            found.add(found.errors, key, reason)
            _require_room(found)
    except UnreadableError as error:
        found.errors.append(Finding(error.line, "", error.reason))
    except RecursionError:
        found.errors.append(Finding(1, "", "not YAML: nested too deep"))
    found.errors.sort(key=lambda error: error.line)
    return found


def _require_room(found: Inspected) -> None:
    if len(found.errors) >= MAX_FINDINGS:
        raise UnreadableError(found.errors[-1].line, f"too many errors, only {MAX_FINDINGS} are shown")


class _Reader:
    """Walks the nodes of a document along the types of `Config`, and collects what is wrong on its way.

    What cannot be read is a `ValueError`, the reason, up to the mapping or list that holds it, which goes on with a
    default or a placeholder.
    """

    def __init__(self, found: Inspected, base: Path) -> None:
        self._found = found
        self._base = base
        self._hidden: list[str] = []
        self._n_values = 0

    def whole(self, root: yaml.Node | None) -> Config | None:
        """The configuration, with placeholders where there are errors; None if there is nothing to go on with."""
        if not isinstance(root, yaml.MappingNode):
            self._fail("", "expected keys and values, such as `listen: 127.0.0.1:8080`", line_of(root) if root else 1)
            return None
        config: Config = self._struct(root, Config, "")
        return msgspec.structs.replace(config, hidden=self._hidden)

    def _fail(self, path: str, reason: str, line: int | None = None) -> None:
        line = self._found.line_of(path) or 1 if line is None else line
        self._found.errors.append(Finding(line, path, reason))
        self._found.unread += [path] if path else []
        _require_room(self._found)

    @contextmanager
    def _failing(self, path: str) -> Iterator[None]:
        """Whatever cannot be read in here is an error of *path*."""
        try:
            yield
        except ValueError as error:
            self._fail(path, str(error))

    def _value(self, node: yaml.Node, type_: Any, path: str) -> Any:
        """The value of *node* as *type_*. Raises `ValueError`: what is wrong with it."""
        type_, is_optional = without_none(type_)
        value = value_of(node)
        if value is None and is_optional:
            return None
        type_ = _ANY_AT.get(type(value), Any) if type_ is Any else type_
        origin = dict if is_struct(type_) else typing.get_origin(type_)
        if origin not in (dict, list):
            return self._scalar(value, type_, path)
        if type(value) is not origin:
            example = f", such as {_BACKENDS}" if path == "backends" else ""
            raise ValueError(f"expected {words_for(type_)}{example}, got {shown(value)}")
        if is_struct(type_):
            return self._struct(node, type_, path)
        inner_type = typing.get_args(type_)[-1]
        values = {}
        for key, inner, inner_node in self._entries(node, path):
            values[key] = placeholder(inner_type)  # it keeps its place, so that the others keep theirs
            with self._failing(inner):
                values[key] = self._value(inner_node, inner_type, inner)
        return values if origin is dict else list(values.values())

    def _struct(self, node: yaml.Node, type_: Any, path: str) -> Any:
        fields = fields_in_file(type_)
        missing = {key: item for key, item in fields.items() if item.required}
        values = {item.name: placeholder(item.type) for item in missing.values()}
        for key, inner, value_node in self._entries(node, path):
            missing.pop(key, None)
            if key in fields:
                with self._failing(inner):
                    values[fields[key].name] = self._value(value_node, fields[key].type, inner)
                continue
            near = nearest(key, list(fields))
            if near:
                self._found.unread.append(join(path, near))
            self._fail(
                inner, f"unknown key, did you mean `{near}`?" if near else f"unknown key; known are {', '.join(fields)}"
            )
        for key, item in missing.items():
            if not overlap([join(path, key)], self._found.unread):
                self._fail(join(path, key), f"missing; expected {words_for(item.type)}")
        return type_(**values)

    def _entries(self, node: yaml.Node, path: str) -> Iterator[tuple[Any, str, yaml.Node]]:
        """Key or index, path and node of each value in a mapping or list; wrong keys are reported."""
        seen = set()
        for index, item in enumerate(node.value):
            self._n_values += 1
            if self._n_values > MAX_VALUES:
                raise UnreadableError(line_of(node), f"more than {MAX_VALUES} keys and values, counting aliases")
            if isinstance(node, yaml.SequenceNode):
                self._found.lines[f"{path}[{index}]"] = line_of(item)
                yield index, f"{path}[{index}]", item
                continue
            key_node, value_node = item
            try:
                key = key_of(key_node)
                if key in seen:
                    raise ValueError(f"not YAML: duplicate key `{shortened(key)}`")
            except ValueError as error:
                self._found.unread += [path] if path else []
                self._fail("", str(error), line_of(key_node))
                continue
            seen.add(key)
            inner = join(path, shortened(key))
            self._found.lines[inner] = line_of(key_node)
            if "${" in key:
                self._fail(inner, "values from outside, `${...}`, may stand in values, not in keys")
            else:
                yield key, inner, value_node

    def _scalar(self, value: Any, type_: Any, path: str) -> Any:
        text = value if isinstance(value, str) else ""
        is_from_outside = False
        if "${" in text:
            value, is_from_outside = put_into(text, self._base)
        if is_from_outside:
            self._hidden.append(path)
        try:
            converted = _converted(value, type_, self._base, is_from_outside)
            if is_from_outside and isinstance(converted, Endpoint):
                _check_path_from_file(converted, text)
        except ValueError as error:
            if is_from_outside:
                raise ValueError(f"{error}, got a value from outside") from None
            near = meant(value, type_, choices_of(type_))
            hint = f", did you mean `{near}`?" if near else ""
            raise ValueError(f"{error}, got {shown(value)}{hint}") from None
        return converted


def _converted(value: Any, type_: Any, base: Path, is_from_outside: bool) -> Any:
    """The plain *value* as *type_*; a value from outside is always text. Raises `ValueError`: what was expected."""
    if type_ in KINDS:
        return read(type_, value, base)
    try:
        converted = msgspec.convert(value, type_, strict=not is_from_outside)  # numbers may stand in text from outside
    except msgspec.ValidationError:
        is_unquoted = type_ is str and not isinstance(value, (list, dict, type(None)))
        raise ValueError(f"expected {words_for(type_)}{' in quotes' if is_unquoted else ''}") from None
    if type_ in (int, float) and not abs(converted) <= MAX_INTEGER:
        raise ValueError(f"expected a number of at most {MAX_INTEGER}")
    return converted


def _check_path_from_file(endpoint: Endpoint, text: str) -> None:
    """Raise `ValueError` if the path of *endpoint* came from outside: it may be secret, metrics and logs show it."""
    path = endpoint.partition("//")[2].partition("/")[2]
    if path and not text.rpartition("}")[2].rstrip("/").endswith(path):
        raise ValueError(
            "expected no path in what comes from outside: metrics and logs show endpoints, so write it into the file"
        )
