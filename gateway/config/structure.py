"""Questions about the types of `schema`: which keys a struct has, what a value may be, in words and as JSON Schema."""

import inspect
import types
import typing
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any, Union

import msgspec

from gateway.config.schema import Config, Part
from gateway.config.values import KINDS, Dimension, Endpoint, Workers, plain, shortened

_OUTSIDE = {"type": "string", "pattern": r"\$\{", "description": "${NAME} or ${file:PATH}: a value from outside"}
_NAMES = {bool: "boolean", int: "integer", float: "number"}


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside of *value* with its path, inner ones first, and then *value* itself."""
    if isinstance(value, Part):
        for key, item in keys_of(type(value)).items():
            yield from walk(getattr(value, item.name), join(path, key))
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from walk(each, join(path, shortened(key)))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from walk(each, f"{path}[{index}]")
    yield path, value


def join(path: str, key: str) -> str:
    """The path of *key* in the part at *path*."""
    return f"{path}.{key}" if path else key


@cache
def keys_of(type_: Any) -> dict[str, msgspec.structs.FieldInfo]:
    """The keys that the file may have for the struct *type_*."""
    return {item.encode_name: item for item in msgspec.structs.fields(type_) if item.name != "hidden"}


def placeholder(type_: Any) -> Any:
    """Something of *type_* to go on with where there is an error, so that all errors are found in one run."""
    type_, is_optional = without_none(type_)
    if is_optional or type_ is Any:
        return None
    if is_struct(type_):
        return type_(**{item.name: placeholder(item.type) for item in keys_of(type_).values() if item.required})
    if type_ is Endpoint:
        return Endpoint("http://unknown.invalid")
    return choices_of(type_)[0] if choices_of(type_) else (typing.get_origin(type_) or type_)()


def words_for(type_: Any) -> str:
    """*type_* as a person would say it."""
    type_, _ = without_none(type_)
    if is_struct(type_):
        return "keys and values"
    if choices := choices_of(type_):
        return f"{', '.join(choices[:-1])} or {choices[-1]}"
    words = {list: "a list", dict: "keys and values", str: "text", bool: "true or false", int: "a whole number"}
    words |= {float: "a number", **{kind: row.expected for kind, row in KINDS.items()}}
    return words.get(typing.get_origin(type_) or type_, "a value")


def choices_of(type_: Any) -> list[str]:
    """The values that *type_* lists; empty if it lists none."""
    if isinstance(type_, type) and issubclass(type_, Enum):
        return [item.value for item in type_]
    return list(typing.get_args(type_)) if typing.get_origin(type_) is typing.Literal else []


def without_none(type_: Any) -> tuple[Any, bool]:
    """*type_* without None, and whether it could be None."""
    if typing.get_origin(type_) in (Union, types.UnionType):
        return next(option for option in typing.get_args(type_) if option is not type(None)), True
    return type_, False


def is_struct(type_: Any) -> bool:
    """Whether *type_* has keys of its own."""
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def json_schema() -> dict[str, Any]:
    """The schema of the whole file for editors, of JSON Schema's draft 2020-12: looser than `reading` and `rules`.

    `msgspec.json.schema` cannot write defaults of types that it does not know.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tensor-gateway",
        **_struct(Config),
        "$defs": {"outside": _OUTSIDE},
    }


def _struct(type_: Any) -> dict[str, Any]:
    properties = {}
    for key, item in keys_of(type_).items():
        properties[key] = _schema(item.type)
        if item.default is not msgspec.NODEFAULT and not is_struct(item.type):
            properties[key]["default"] = msgspec.to_builtins(item.default, enc_hook=plain)
    return {
        "description": inspect.getdoc(type_),
        "type": "object",
        "additionalProperties": False,
        "required": [key for key, item in keys_of(type_).items() if item.required],
        "properties": properties,
    }


def _schema(type_: Any) -> dict[str, Any]:
    type_, is_optional = without_none(type_)
    if is_optional:
        return {"anyOf": [_schema(type_), {"type": "null"}]}
    if is_struct(type_):
        return _struct(type_)
    if (origin := typing.get_origin(type_)) in (list, dict):
        name, of_inner = ("array", "items") if origin is list else ("object", "additionalProperties")
        return {"type": name, of_inner: _schema(typing.get_args(type_)[-1])}
    if type_ in (Any, str):  # both hold any text from outside
        return {} if type_ is Any else {"type": "string"}
    return {"anyOf": [_scalar(type_), {"$ref": "#/$defs/outside"}]}


def _scalar(type_: Any) -> dict[str, Any]:
    if type_ in KINDS:
        kind = KINDS[type_]
        text = {"type": "string", "description": kind.expected, "pattern": f"^({kind.pattern})$"}
        least = {Workers: 1, Dimension: -1}.get(type_)
        return text if least is None else {"anyOf": [{"type": "integer", "minimum": least}, text]}
    return {"enum": choices_of(type_)} if choices_of(type_) else {"type": _NAMES[type_]}
