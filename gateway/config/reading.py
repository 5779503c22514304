"""The walk along a file's nodes and the types of `schema`, which finds all that is wrong in one run.

Unknown keys are typing errors: nothing is ignored silently. A message never repeats credentials or a value from
outside, and of a long value only the beginning.
Not here: what the values must satisfy together (`schema`), and where the text comes from (`loading`).
"""

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gateway.config.findings import Finding, Inspected, line_of_key, overlap
from gateway.config.outside import Outside
from gateway.config.rules import ERRORS, check
from gateway.config.schema import Config
from gateway.config.structure import (
    choices_of,
    fields_in_file,
    is_struct,
    join,
    placeholder,
    without_none,
    words_for,
)
from gateway.config.values import KINDS, Endpoint, meant, nearest, read, shortened, shown
from gateway.config.yaml_nodes import Document, NotYamlError, line_of

MAX_FINDINGS = 100
"""The most errors, and warnings, that are reported of one file; reading stops there."""

MAX_INTEGER = 2**53
"""The largest number; beyond it not every program that reads JSON sees the same one."""

_BACKENDS = '`{default: {endpoints: ["http://127.0.0.1:8000"]}}`'
_NAMED_KEY = re.compile("`([^`]+)`")
_ANY_AT: dict[type[yaml.Node], Any] = {yaml.SequenceNode: list[Any], yaml.MappingNode: dict[str, Any]}
"""What a value is that may be anything, by its node."""


class _TooManyError(Exception):
    """`MAX_FINDINGS` are reached."""


def inspected(text: str, file: str, base: Path) -> Inspected:
    """What *text* says and what is wrong with it, without warnings; paths are relative to the folder *base*."""
    found = Inspected(file, None, [])
    try:
        reader = _Reader(found, base, Document(text))
        found.read = reader.whole()
        reader.check_rules(found.read)
    except NotYamlError as error:
        found.errors.append(Finding(error.line, "", error.reason))
    except _TooManyError:
        found.errors.append(Finding(found.errors[-1].line, "", f"too many errors, only {MAX_FINDINGS} are shown"))
        found.read = None
    found.errors.sort(key=lambda error: error.line)
    return found


class _Reader:
    """Walks the nodes of a document along the types of `Config`, and collects what is wrong on its way.

    What cannot be read is a `ValueError`, the reason, up to the mapping or list that holds it, which goes on with a
    default or a placeholder.
    """

    def __init__(self, found: Inspected, base: Path, document: Document) -> None:
        self._found = found
        self._misspelt: list[str] = []
        """The keys that misspelt ones were probably meant to be: they are not reported as missing."""
        self._without_key: list[str] = []
        """Mappings in which a key could not be read: nothing is reported as missing there."""
        self._hidden: list[str] = []
        self._base = base
        self._outside = Outside(base)
        self._document = document

    def whole(self) -> Config | None:
        """The configuration, with placeholders where there are errors; None if there is nothing to go on with."""
        root = self._document.root
        if not isinstance(root, yaml.MappingNode):
            self._fail("", "expected keys and values, such as `listen: 127.0.0.1:8080`", line_of(root) if root else 1)
            return None
        config: Config = self._struct(root, Config, "")
        return msgspec.structs.replace(config, hidden=self._hidden)

    def check_rules(self, config: Config | None) -> None:
        """Report what breaks a rule, unless it is about a value that could not be read, or names one."""
        unread = [error.key for error in self._found.errors if error.key] + self._misspelt
        for key, reason in check(ERRORS, config):
            is_known = any(overlap(key, other) or f"`{other}`" in reason for other in unread)
            if not is_known and not {key, key.rpartition(".")[0]}.intersection(self._without_key):
                self._fail(key, reason, self._line_of_problem(key, reason))

    def _fail(self, path: str, reason: str, line: int | None = None) -> None:
        line = line_of_key(self._found.lines, path) if line is None else line
        self._found.errors.append(Finding(line, path, reason))
        if len(self._found.errors) >= MAX_FINDINGS:
            raise _TooManyError

    def _line_of_problem(self, key: str, reason: str) -> int:
        """The line of *key*, or, where only a default is wrong, of the key in the *reason* that does not go with it."""
        for name in (key, *_NAMED_KEY.findall(reason)):
            if re.split(r"[.\[]", name, maxsplit=1)[0] in self._found.lines:
                return line_of_key(self._found.lines, name)
        return 1

    def _value(self, node: yaml.Node, type_: Any, path: str) -> Any:
        """The value of *node* as *type_*. Raises `ValueError`: what is wrong with it."""
        type_, is_optional = without_none(type_)
        type_ = _ANY_AT.get(type(node), Any) if type_ is Any else type_
        value = self._document.value_of(node)
        if value is None and is_optional:
            return None
        origin = typing.get_origin(type_)
        if not is_struct(type_) and origin not in (dict, list):
            return self._scalar(value, type_, path)
        if not isinstance(node, yaml.SequenceNode if origin is list else yaml.MappingNode):
            example = f", such as {_BACKENDS}" if path == "backends" else ""
            raise ValueError(f"expected {words_for(type_)}{example}, got {shown(value)}")
        if is_struct(type_):
            return self._struct(node, type_, path)
        inner_type = typing.get_args(type_)[-1]
        values = {}
        for key, inner, inner_node in self._entries(node, path):
            try:
                values[key] = self._value(inner_node, inner_type, inner)
            except ValueError as error:
                self._fail(inner, str(error))
                values[key] = placeholder(inner_type)  # it keeps its place, so that the others keep theirs
        return values if origin is dict else list(values.values())

    def _struct(self, node: yaml.Node, type_: Any, path: str) -> Any:
        fields = fields_in_file(type_)
        # what is required and cannot be read
        values = {item.name: placeholder(item.type) for item in fields.values() if item.required}
        missing = {key for key, item in fields.items() if item.required}
        for key, inner, value_node in self._entries(node, path):
            missing.discard(key)
            if key not in fields:
                near = nearest(key, list(fields))
                hint = f", did you mean `{near}`?" if near else f"; known are {', '.join(fields)}"
                self._misspelt += [join(path, near)] if near else []
                self._fail(inner, f"unknown key{hint}")
                continue
            try:
                values[fields[key].name] = self._value(value_node, fields[key].type, inner)
            except ValueError as error:
                self._fail(inner, str(error))
        for key in fields:
            if key in missing and join(path, key) not in self._misspelt and path not in self._without_key:
                self._fail(join(path, key), f"missing; expected {words_for(fields[key].type)}")
        return type_(**values)

    def _entries(self, node: yaml.Node, path: str) -> Iterator[tuple[Any, str, yaml.Node]]:
        """Key or index, path and node of each value in a mapping or list; wrong keys are reported."""
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                inner = f"{path}[{index}]"
                self._found.lines[inner] = line_of(item)
                yield index, inner, item
            return
        seen = set()
        for key_node, value_node in node.value:
            try:
                key = self._document.key_of(key_node)
                if key in seen:
                    raise ValueError(f"not YAML: duplicate key `{shortened(key)}`")
            except ValueError as error:
                self._without_key += [path] if path else []
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
            value, is_from_outside = self._outside.put_into(text)
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
