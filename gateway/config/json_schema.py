"""The configuration as a JSON Schema, for editors: which keys there are, what they hold, and their defaults.

It is looser than `reading`: it knows nothing of `rules`. `msgspec.json.schema` is not used: it cannot write defaults of
types that it does not know, and every value here may also be text with a reference to the outside. Not here: how a file
is read.
"""

import inspect
import typing
from typing import Any

import msgspec

from gateway.config.schema import Config
from gateway.config.structure import choices_of, fields_in_file, is_struct, without_none
from gateway.config.values import KINDS, Workers, plain

_OUTSIDE = {"type": "string", "pattern": r"\$\{", "description": "${NAME} or ${file:PATH}: a value from outside"}
_NAMES = {bool: "boolean", int: "integer", float: "number"}


def json_schema() -> dict[str, Any]:
    """The schema of the whole file, of JSON Schema's draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tensor-gateway",
        **_struct(Config),
        "$defs": {"outside": _OUTSIDE},
    }


def _struct(type_: Any) -> dict[str, Any]:
    properties = {}
    for key, item in fields_in_file(type_).items():
        properties[key] = _schema(item.type)
        if item.default is not msgspec.NODEFAULT and not is_struct(item.type):
            properties[key]["default"] = msgspec.to_builtins(item.default, enc_hook=plain)
    return {
        "description": inspect.getdoc(type_),
        "type": "object",
        "additionalProperties": False,
        "required": [key for key, item in fields_in_file(type_).items() if item.required],
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
        return {"anyOf": [{"type": "integer", "minimum": 1}, text]} if type_ is Workers else text
    return {"enum": choices_of(type_)} if choices_of(type_) else {"type": _NAMES[type_]}
