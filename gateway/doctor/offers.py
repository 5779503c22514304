"""What a server that speaks no protocol offers to try: the paths of its `/openapi.json`, or those that its page names.

A sample is an example of the server's own, or made of the JSON schema. Not here: sending it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.backend.connections import NoAnswerError
from gateway.doctor.asking import Asker
from gateway.doctor.filling import MISSING
from gateway.doctor.report import ProblemError

MAX_OFFERS = 20
"""How many paths are listed at most."""

MAX_SCHEMA_DEPTH = 12
"""How deep a schema is followed: it may refer to itself."""

MAX_ITEMS = 4096
"""How many items a list has at most that is made of a schema."""

_IN_PAGE = re.compile(
    r"\bPOST\s+(?:to\s+)?(?:https?://[^/\s]+)?(/[\w./{}-]*[\w/}])|\baction=[\"'](/[\w./-]+)", re.ASCII
)
"""Paths in the text of a page, such as `POST /predict`, or the action of a form."""

_BY_TYPE: Mapping[str, Any] = {"string": "text", "number": 0.5, "integer": 1, "boolean": False, "null": None}
"""What a schema that says nothing but a type is filled with."""


_BY_FORMAT: Mapping[str, str] = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "name@example.com",
    "uuid": "12345678-1234-4234-8234-123456789abc",
    "uri": "https://example.com/",
}
"""What a text of such a `format` is filled with."""


class Offer(NamedTuple):
    """A path that takes a POST."""

    path: str
    sample: Any = MISSING
    """What it takes; `MISSING` if nothing says it."""
    is_made: bool = False
    """Whether the sample was made of a schema, which says types and not values."""

    def command(self, url: str) -> str:
        """The command that tries it, at the server at *url*."""
        sample = " --sample FILE" if self.sample is MISSING else ""
        return f"tensor-gateway doctor {url} --path {self.path}{sample}"


async def offers_of(asker: Asker) -> list[Offer]:
    """What the server offers, in its own order."""
    try:
        document = (await asker.get("/openapi.json")).json
        found = _in_openapi(document if isinstance(document, dict) else {})
        if not found:
            page = await asker.get("/")
            text = page.body.decode(errors="replace")
            found = [Offer(path or action) for path, action in _IN_PAGE.findall(text)]
    except NoAnswerError:
        return []
    return list({offer.path: offer for offer in found}.values())[:MAX_OFFERS]


async def described_sample(asker: Asker, path: str, url: str) -> Offer:
    """What the server's description has for `POST` *path*. Raises `ProblemError` if it has nothing.

    *url* is the server's, for commands.
    """
    offers = await offers_of(asker)
    for offer in offers:
        if offer.path.rstrip("/") == path.rstrip("/") and offer.sample is not MISSING:
            return offer
    others = [offer.command(url) for offer in offers if offer.path.rstrip("/") != path.rstrip("/")]
    offered = f". It also offers: {'; '.join(others)}" if others else ""
    raise ProblemError(
        f"the server's /openapi.json has no example of a request to {path}: give one with --sample FILE{offered}"
    )


def _in_openapi(document: dict[str, Any]) -> list[Offer]:
    """The paths of an OpenAPI *document* that take a POST."""
    paths = document.get("paths")
    found = []
    for path, operations in paths.items() if isinstance(paths, dict) else ():
        if isinstance(operations, dict) and "post" in operations and isinstance(path, str) and path.startswith("/"):
            found.append(_offer(path, operations["post"], document))
    return found


def _offer(path: str, operation: Any, document: dict[str, Any]) -> Offer:
    try:
        body = _resolved(operation["requestBody"], document)
        content = body["content"]["application/json"]
    except (TypeError, KeyError):
        return Offer(path)
    schema = content.get("schema", {}) if isinstance(content, dict) else {}
    for holder in (content, _resolved(schema, document)):
        example = _example(holder)
        if example is not MISSING:
            return Offer(path, example)
    made = made_of(schema, document)
    return Offer(path, made, is_made=True) if made is not MISSING else Offer(path)


def _example(holder: Any) -> Any:
    """The first example in *holder*, a schema or what has one; `MISSING` without one."""
    if not isinstance(holder, dict):
        return MISSING
    if "example" in holder:
        return holder["example"]
    examples = holder.get("examples", [])
    if isinstance(examples, dict):
        examples = [each.get("value", MISSING) for each in examples.values() if isinstance(each, dict)]
    return next(iter(examples), MISSING) if isinstance(examples, Sequence) else MISSING


def _resolved(schema: Any, document: dict[str, Any]) -> Any:
    """*schema*, or what its `$ref` leads to; an empty one if that is not in *document*."""
    for _ in range(MAX_SCHEMA_DEPTH):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        found: Any = document
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found.get(name) if isinstance(found, dict) else None
        schema = found
    return {}


def made_of(schema: Any, document: dict[str, Any], depth: int = 0) -> Any:
    """A value that fits the JSON *schema*, which may refer to others in *document*; `MISSING` if it says nothing.

    >>> made_of({"type": "object", "properties": {"x": {"type": "array", "items": {"type": "number"}}}}, {})
    {'x': [0.5]}
    """
    schema = _resolved(schema, document)
    if not isinstance(schema, dict) or depth > MAX_SCHEMA_DEPTH:
        return MISSING
    enum = schema.get("enum")
    values = [_example(schema), schema.get("default"), schema.get("const"), *(enum if isinstance(enum, list) else ())]
    for word in ("anyOf", "oneOf"):
        values += [made_of(each, document, depth + 1) for each in schema.get(word, ())]
    if (value := next((each for each in values if each is not MISSING and each is not None), MISSING)) is not MISSING:
        return value
    members: dict[str, Any] = {}
    for each in schema.get("allOf", ()):
        part = made_of(each, document, depth + 1)
        if not isinstance(part, dict):
            return part
        members |= part
    return _of_type(schema, document, depth, members)


def _of_type(schema: dict[str, Any], document: dict[str, Any], depth: int, members: dict[str, Any]) -> Any:
    """A value of the type of *schema*; of an object with *members* besides its own."""
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    properties = schema.get("properties")
    if kind == "object" or members or isinstance(properties, dict):
        own = {name: made_of(each, document, depth + 1) for name, each in (properties or {}).items()}
        return {**members, **{name: item for name, item in own.items() if item is not MISSING}}
    if kind == "array":
        return _list(schema, document, depth)
    if kind == "string":
        return _text(schema)
    return _number(schema, kind) if kind in ("number", "integer") else _BY_TYPE.get(str(kind), MISSING)


def _list(schema: dict[str, Any], document: dict[str, Any], depth: int) -> Any:
    """A list of as few items as *schema* allows, at least one."""
    items = schema.get("prefixItems") or [schema.get("items", {})] * max(1, min(schema.get("minItems", 1), MAX_ITEMS))
    made = [made_of(each, document, depth + 1) for each in items]
    return MISSING if MISSING in made else made


def _text(schema: dict[str, Any]) -> str:
    """A text of the format and length that *schema* says."""
    text, least = _BY_FORMAT.get(str(schema.get("format")), str(_BY_TYPE["string"])), schema.get("minLength", 0)
    return text.ljust(min(least, MAX_ITEMS), "x") if isinstance(least, int) else text


def _number(schema: dict[str, Any], kind: str) -> Any:
    """A number between `minimum` and `maximum` of *schema*."""
    value, least, most = _BY_TYPE[kind], schema.get("minimum"), schema.get("maximum")
    if isinstance(least, (int, float)):
        value = max(value, least)
    return min(value, most) if isinstance(most, (int, float)) else value
