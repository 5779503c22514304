"""The walk along a file's nodes and the types of `schema`, which finds all that is wrong in one run.

Unknown keys are typing errors: nothing is ignored silently. A message never repeats credentials or a value from
outside, and of a long value only the beginning.
"""

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from gateway.config.outside import put_into
from gateway.config.rules import Rule, check
from gateway.config.schema import Config
from gateway.config.structure import choices_of, is_struct, join, keys_of, placeholder, walk, without_none, words_for
from gateway.config.values import KINDS, Endpoint, FilePath, meant, nearest, read, shortened, shown

HIDDEN = "***"
"""Shown instead of a value that is secret."""

MAX_INTEGER = 2**53
"""The largest number; beyond it not every program that reads JSON sees the same one."""

_ANY_AT: dict[type, Any] = {list: list[Any], dict: dict[str, Any]}
"""What a value is that may be anything, by the type of what stands in the file."""
_MERGE = "tag:yaml.org,2002:merge"
_NAMED_KEY = re.compile("`([^`]+)`")


class Finding(NamedTuple):
    """One error or warning: the line of the file, 0 if it is about the whole file; the key's path; the reason."""

    line: int
    key: str
    reason: str

    def text(self, file: str, kind: str = "") -> str:
        """One line: `file:line: kind: key: reason`, without what is empty; `line N` if there is no key and no file."""
        place = f"{file}:{self.line}" if file and self.line else file
        if not file and not self.key:
            place = f"line {self.line}"
        return ": ".join(part for part in (place, kind, self.key, self.reason) if part)


class Inspected:
    """What a configuration's file says, and what was found wrong in it.

    What cannot be read is a `ValueError`, the reason, up to the mapping or list that holds it, which goes on with a
    default or a placeholder.
    """

    def __init__(self, file: str, base: Path) -> None:
        """*file* is its name in messages; paths in it are relative to the folder *base*."""
        self.file = file
        self.read: Config | None = None
        """The configuration with placeholders where there are errors; None if nothing could be read."""
        self.errors: list[Finding] = []
        self.warnings: list[Finding] = []
        self.lines: dict[str, int] = {}
        """The line of each key of the file, by the key's path."""
        self._base = base
        self._hidden: list[str] = []
        self._unread: list[str] = []
        """The keys that were not read as they were meant. Nothing else is told of them: one mistake is one line."""

    @property
    def config(self) -> Config | None:
        """The configuration; None as soon as there is an error."""
        return None if self.errors else self.read

    def texts(self) -> list[str]:
        """Every error and warning as a line of text, in the order of the file's lines."""
        marked = [(each, "") for each in self.errors] + [(each, "warning") for each in self.warnings]
        return [each.text(self.file, kind) for each, kind in sorted(marked, key=lambda pair: pair[0].line)]

    def fail(self, key: str, reason: str, line: int | None = None) -> None:
        """Add an error of *key*, which is not read; by default in the key's line."""
        self.errors.append(Finding(self._line_of(key) or 1 if line is None else line, key, reason))
        self._unread += [key] if key else []

    def add(self, findings: list[Finding], key: str, reason: str) -> None:
        """Add to *findings*, which are `errors` or `warnings`.

        The line is that of *key*, or, where *key* has its default, of the first key that *reason* names.
        Left out if *key*, or a key that *reason* names, has an error already or was not read: then the finding may only
        follow from that mistake.
        """
        named = _NAMED_KEY.findall(reason)
        wrong = [error.key for error in self.errors]
        if self.read is None or key in wrong or overlap([key], self._unread) or overlap(named, wrong + self._unread):
            return
        line = next((line for name in (key, *named) if (line := self._line_of(name))), 1)
        findings.append(Finding(line, key, without_hidden_paths(self.read, reason)))

    def judge(self, rules: tuple[Rule, ...], findings: list[Finding], *, of_defaults: bool) -> None:
        """Add to *findings* what *rules* tell, of keys that have their default only if *of_defaults*."""
        for key, reason in check(rules, self.read):
            if of_defaults or key in self.lines:
                self.add(findings, key, reason)

    def take(self, content: bytes) -> None:
        """Read *content*, the file's bytes."""
        try:
            text = content.decode("utf-8-sig")
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            if isinstance(root, yaml.MappingNode):
                self.read = self._struct(root, Config, "")
                self.read = msgspec.structs.replace(self.read, hidden=self._hidden)
                return
            line = line_of(root) if root is not None else 1
            reason = "expected keys and values, such as `listen: 127.0.0.1:8080`"
        except UnicodeDecodeError as error:
            line, reason = content.count(b"\n", 0, error.start) + 1, "not UTF-8"
        except yaml.MarkedYAMLError as error:
            mark: Any = error.problem_mark  # all that composing raises have one
            problem = ", ".join(filter(None, (error.context, error.problem)))
            line, reason = mark.line + 1, f"not YAML: {shortened(problem)} (column {mark.column + 1})"
        except yaml.reader.ReaderError as error:
            line, reason = text.count("\n", 0, error.position) + 1, f"not YAML: {error.reason}"
        except RecursionError:
            line, reason = 1, "not YAML: nested too deep"
        except (ValueError, OverflowError) as error:  # an escape such as "\UFFFFFFFF", which stands for no character
            line, reason = 1, f"not YAML: invalid value: {error}"
        self.fail("", reason, line)

    def _line_of(self, key: str) -> int:
        """The line of *key*, or of the innermost key around it that stands in the file; else 0."""
        while key and key not in self.lines:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return self.lines.get(key, 0)

    def _put(self, values: dict[Any, Any], key: Any, node: yaml.Node, type_: Any, path: str) -> None:
        """Put the value of *node* as *type_* into *values*; if it cannot be read, *path* has an error."""
        try:
            values[key] = self._value(node, type_, path)
        except ValueError as error:
            self.fail(path, str(error))

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
            example = ', such as `{default: {endpoints: ["http://127.0.0.1:8000"]}}`' if path == "backends" else ""
            raise ValueError(f"expected {words_for(type_)}{example}, got {shown(value)}")
        if is_struct(type_):
            return self._struct(node, type_, path)
        inner_type = typing.get_args(type_)[-1]
        values = {}
        for key, inner, inner_node in self._entries(node, path):
            values[key] = placeholder(inner_type)  # it keeps its place, so that the others keep theirs
            self._put(values, key, inner_node, inner_type, inner)
        return values if origin is dict else list(values.values())

    def _struct(self, node: yaml.Node, type_: Any, path: str) -> Any:
        fields = keys_of(type_)
        missing = {key: item for key, item in fields.items() if item.required}
        values = {item.name: placeholder(item.type) for item in missing.values()}
        for key, inner, value_node in self._entries(node, path):
            missing.pop(key, None)
            if key in fields:
                self._put(values, fields[key].name, value_node, fields[key].type, inner)
            elif near := nearest(key, list(fields)):
                self._unread.append(join(path, near))
                self.fail(inner, f"unknown key, did you mean `{near}`?")
            else:
                self.fail(inner, f"unknown key; known are {', '.join(fields)}")
        for key, item in missing.items():
            if not overlap([join(path, key)], self._unread):
                self.fail(join(path, key), f"missing; expected {words_for(item.type)}")
        return type_(**values)

    def _entries(self, node: yaml.Node, path: str) -> Iterator[tuple[Any, str, yaml.Node]]:
        """Key or index, path and node of each value in a mapping or list; wrong keys are reported."""
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.lines[f"{path}[{index}]"] = line_of(item)
                yield index, f"{path}[{index}]", item
            return
        seen = set()
        for key_node, value_node in node.value:
            try:
                key = key_of(key_node)
                if key in seen:
                    raise ValueError(f"not YAML: duplicate key `{shortened(key)}`")
            except ValueError as error:
                self._unread += [path] if path else []
                self.fail("", str(error), line_of(key_node))
                continue
            seen.add(key)
            inner = join(path, shortened(key))
            self.lines[inner] = line_of(key_node)
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
            near = meant(value, type_, choices_of(type_), path)
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


def value_of(node: yaml.Node) -> Any:
    """The plain value of *node*; of a list or mapping only its type, empty. Raises `ValueError`: why there is none.

    PyYAML refuses tags that it does not know. Dates that do not exist, numbers of thousands of digits, and tags beside
    text that they cannot stand for are various errors of Python.
    """
    if isinstance(node, yaml.CollectionNode):
        return {} if isinstance(node, yaml.MappingNode) else []
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


def without_hidden_paths(config: Config, text: str) -> str:
    """*text* without the paths of files that came from outside: `${file:KEY}` in the place of `KEY` is a secret."""
    for path, value in walk(config):
        if value and path in config.hidden and isinstance(value, FilePath):
            text = text.replace(value, HIDDEN)
    return text


def overlap(some: list[str], others: list[str]) -> bool:
    """Whether one of *some* keys is one of the *others*, a part of it, or what it is a part of."""
    return any(one == other or _is_inside(one, other) or _is_inside(other, one) for one in some for other in others)


def _is_inside(key: str, other: str) -> bool:
    return key.startswith((f"{other}.", f"{other}["))
