"""Questions about the types of `schema`: which keys a struct has, what a value may be, and that in words.

Not here: what a file says (`reading`).
"""

import types
import typing
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any, Union

import msgspec

from gateway.config.schema import Part
from gateway.config.values import KINDS, Endpoint, shortened


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside of *value* with its path, inner ones first, and then *value* itself."""
    if isinstance(value, Part):
        for key, item in fields_in_file(type(value)).items():
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
def fields_in_file(type_: Any) -> dict[str, msgspec.structs.FieldInfo]:
    """The keys that the file may have for the struct *type_*."""
    return {item.encode_name: item for item in msgspec.structs.fields(type_) if item.name != "hidden"}


def placeholder(type_: Any) -> Any:
    """Something of *type_* to go on with where there is an error, so that all errors are found in one run."""
    type_, is_optional = without_none(type_)
    if is_optional or type_ is Any:
        return None
    if is_struct(type_):
        return type_(**{item.name: placeholder(item.type) for item in fields_in_file(type_).values() if item.required})
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
