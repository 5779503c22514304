"""A model: what its server says of it, the first inference that is answered, and what is to be set for both.

That inference goes straight to the server, in the JSON of its own clients, or is a sample that the user has given. Not
here: requests through the gateway (`through`).
"""

import ast
import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from gateway.backend.connections import NoAnswerError
from gateway.backend.questions import MLFLOW, TEMPLATE, TENSORFLOW, V2, Answer
from gateway.codec import DATATYPES, DIALECTS, NAMELESS_INPUT
from gateway.doctor.asking import Asker, gateway
from gateway.doctor.guess import Guess
from gateway.doctor.report import ProblemError, Report, Setting
from gateway.doctor.tensors import (
    Declared,
    Tensor,
    UnreadableError,
    described,
    likely_datatype,
    outputs_of,
    sample,
    samples_for,
)

MAX_TRIES = 20
"""So many requests are tried at most, until the model takes one, before no more sizes of refusals are tried."""

MAX_SIZES = 3
"""How many numbers of one refusal are tried as sizes."""

OUTPUT = "output"
"""What the only output of a model is called that gives it no name."""

_SIZE = re.compile(r"(?<![\w.:])[1-9]\d{0,3}(?![\w.:])")

_UNDESCRIBED = {
    V2: (Declared("x", "FP32", (-1, -1)), Declared("INPUT0", "FP32", (-1, -1)), Declared("x", "BYTES", (-1,))),
    TENSORFLOW: (Declared("", "FP32", (-1, -1)),),
    MLFLOW: (Declared("", "FP32", (-1, -1)),),
}
"""The inputs that are tried with a model of which nothing is known, one at a time."""

MAX_SHOWN = 300
"""How many characters of the answer to a sample are shown."""

_WRONG = ({"inputs": {"tensor-gateway doctor": [0]}}, {"inputs": [[[[[[0]]]]]]})
"""Requests that MLflow refuses with the model's signature in its words: a wrong name, and a wrong rank."""

_SCHEMA = re.compile(r"with schema '\[(.*?)\]'\. Error: ", re.DOTALL)
_INPUT = re.compile(
    r"""(?:(?P<name>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"): )?(?:Tensor\(')?(?P<type>\w+)"""
    r"""(?:', \((?P<shape>[^)]*)\)\)| \((?:required|optional)\))"""
)
"""An input in such a schema: `'x': Tensor('float32', (-1, 4))`, `'a': double (required)`."""

_OTHER_SIGNATURE = re.compile(r"set `signature` to one of these: (?:__\w+, )*(?!none$|__)([^,]+)")
"""The words of the gateway about a model of TensorFlow without the usual signature; `__NAME` is TensorFlow's own."""

_TYPES = {
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("str", "object", "bytes", "string"), "BYTES"),
    **dict.fromkeys(("float32", "float"), "FP32"),
    **dict.fromkeys(("float64", "double"), "FP64"),
    **dict.fromkeys(("bool", "boolean"), "BOOL"),
    **{"float16": "FP16", "long": "INT64", "integer": "INT32"},
}
"""MLflow's types, those of numpy and those of columns, as datatypes of V2."""


@dataclass(frozen=True)
class Model:
    """A model, as far as its server describes it."""

    name: str
    inputs: tuple[Declared, ...] = ()
    outputs: tuple[Declared, ...] = ()
    has_metadata: bool = False
    """Whether clients get metadata without help of the configuration."""
    signature: str = ""
    """The one to name in requests, if the model does not have the usual one."""

    @property
    def path(self) -> str:
        """The model's path in V2."""
        return f"/v2/models/{quote(self.name, safe='')}"


class Straight(NamedTuple):
    """An inference that the server has answered."""

    path: str
    body: bytes
    samples: tuple[Tensor, ...]
    """The inputs, as they were sent."""
    outputs: tuple[Tensor, ...]
    form: str = ""
    """The `format` of the configuration; empty for V2 and for templates."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs as a client of the gateway sends them; they have names."""
        return tuple(replace(each, name=each.name or NAMELESS_INPUT) for each in self.samples)


# What the server says


async def describe(url: str, asker: Asker, dialect: str, model: Model, report: Report) -> Model:
    """*model* with what its server says of it, which is reported; asked through a gateway, in V2 whatever it speaks."""
    settings = {"models": Setting({model.name: {"signature": model.signature}}, "")} if model.signature else {}
    async with gateway(url, {**report.settings, **settings}) as crossing:
        answer = await crossing.get(model.path)
    other = _OTHER_SIGNATURE.search(answer.words)
    if other is not None and not model.signature:
        return await describe(url, asker, dialect, replace(model, signature=other[1]), report)
    metadata = answer.json if answer.status == 200 else None
    if isinstance(metadata, dict):
        inputs, outputs = (_declared(metadata.get(side)) for side in ("inputs", "outputs"))
        model = replace(model, inputs=inputs, outputs=outputs, has_metadata=True)
    elif dialect == MLFLOW:
        model = replace(model, inputs=await _in_refusals(asker))
    else:
        report.note(f"its metadata is not told ({answer.words})")
        return model
    if model.inputs:
        sides = filter(None, (model.inputs, model.outputs))
        report.ok(f"inputs: {'; outputs: '.join(', '.join(each.words for each in side) for side in sides)}")
    else:
        report.note("its metadata does not say which inputs it has")
    return model


def _declared(listed: Any) -> tuple[Declared, ...]:
    """One side of a model's metadata, inputs or outputs; empty if it is not in V2's form."""
    try:
        found = msgspec.convert(listed, tuple[Declared, ...])
    except msgspec.ValidationError:
        return ()
    return found if all(each.datatype in DATATYPES for each in found) else ()


async def _in_refusals(asker: Asker) -> tuple[Declared, ...]:
    """The inputs in the signature that MLflow quotes when it refuses a request.

    None if the model has no signature, or if one of them has a type that V2 does not have.
    """
    for wrong in _WRONG:
        words = (await asker.post("/invocations", json.dumps(wrong).encode())).member("message")
        if schema := _SCHEMA.search(str(words)):
            found = [*_INPUT.finditer(schema[1])]
            return tuple(map(_input, found)) if all(match["type"] in _TYPES for match in found) else ()
    return ()


def _input(match: re.Match[str]) -> Declared:
    shape = tuple(map(int, re.findall(r"-?\d+", match["shape"]))) if match["shape"] else (-1,)
    return Declared(ast.literal_eval(match["name"] or "''"), _TYPES[match["type"]], shape)


# The first inference


_FORMS = {V2: ("",), TENSORFLOW: ("columnar", "row"), MLFLOW: ("inputs",)}
"""The forms of requests that are tried: values of `format` in the configuration."""


def _written(form: str, signature: str, samples: Sequence[Tensor]) -> bytes:
    """The body of a request in *form*."""
    body: dict[str, Any] = {"signature_name": signature} if signature else {}
    if not form:
        body["inputs"] = [{**each.member, "data": each.values} for each in samples]
    elif form == "row" and len(samples) > 1:
        rows = zip(*(each.nested for each in samples), strict=True)
        body["instances"] = [{each.name: item for each, item in zip(samples, row, strict=True)} for row in rows]
    else:
        nested = {each.name: each.nested for each in samples}
        is_alone = form == "row" or [*nested] == [""]
        body["instances" if form == "row" else "inputs"] = samples[0].nested if is_alone else nested
    return json.dumps(body).encode()


async def first_inference(asker: Asker, dialect: str, model: Model) -> Straight:
    """Find an inference that the server answers. Raises `ProblemError`."""
    path = f"{model.path}/infer" if dialect == V2 else DIALECTS[dialect].paths(model.name, None).infer
    why = "its inputs are too large for a trial"
    tries = [(form, samples) for form in _FORMS[dialect] for samples in _candidates(dialect, form, model)]
    for form, samples in tries:
        body = _written(form, model.signature, samples)
        answer = await _answer_to(asker, path, body)
        if answer.is_good:
            try:
                outputs = outputs_of(answer) if dialect == V2 else _outputs_of(answer, model)
                return Straight(path, body, samples, outputs, form)
            except UnreadableError as error:
                why = f"a trial inference was answered with {error}: the gateway cannot read that, nor can clients"
                continue
        sent = ", ".join(each.words for each in samples)
        why = f"every trial inference was refused; the last one sent {sent}. The server's words: {answer.words}"
        if not model.inputs and len(tries) < MAX_TRIES:
            # what may be the size of the last dimension in the words, as in `expecting 10 features`
            sizes = map(int, _SIZE.findall(answer.words)[:MAX_SIZES])
            one = samples[0]
            sized = [(form, (sample(one.name, one.datatype, (*one.shape[:-1], size)),)) for size in sizes]
            tries += [each for each in sized if each not in tries]
    raise ProblemError(why)


async def _answer_to(asker: Asker, path: str, body: bytes) -> Answer:
    """The server's answer to a first inference. Raises `ProblemError` if none comes, or for credentials."""
    try:
        answer = await asker.post(path, body)
    except NoAnswerError as error:
        raise ProblemError(str(error)) from None
    if unauthorized := asker.why_unauthorized(answer):
        raise ProblemError(unauthorized)
    return answer


def _candidates(dialect: str, form: str, model: Model) -> Iterator[tuple[Tensor, ...]]:
    """The inputs to try, the likeliest first; in rows only those that have the same number of rows."""
    for inputs in [model.inputs] if model.inputs else [(each,) for each in _UNDESCRIBED[dialect]]:
        for samples in samples_for(inputs):
            n_rows = {each.shape[:1] for each in samples}
            if form != "row" or (len(n_rows) == 1 and n_rows != {()}):
                yield samples


def _outputs_of(answer: Answer, model: Model) -> tuple[Tensor, ...]:
    """The outputs in an answer of another dialect than V2. Raises `UnreadableError`.

    Datatypes that the server does not name are guessed from the values.
    """
    said = {declared.name: declared.datatype for declared in model.outputs}
    is_double = any(declared.datatype == "FP64" for declared in model.inputs)

    def datatype_of(name: str, values: Sequence[Any]) -> str:
        likely = likely_datatype(values)
        return said.get(name, "FP64" if is_double and likely == "FP32" else likely)

    value = answer.member("predictions") if answer.member("outputs") is None else answer.member("outputs")
    only = next(iter(said)) if len(said) == 1 else OUTPUT
    found = Guess(_decoded(value), only, datatype_of, is_answer=True).tensors
    if not found:
        raise UnreadableError("nothing in `outputs` or `predictions` that forms a tensor")
    return tuple(found.values())


def _decoded(value: Any) -> Any:
    """*value* with TensorFlow's `{"b64": ...}` as bytes."""
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, dict) and list(value) == ["b64"]:
        return base64.b64decode(value["b64"])
    return {name: _decoded(item) for name, item in value.items()} if isinstance(value, dict) else value


# What is set of the model


def set_models(straight: Straight, dialect: str, model: Model, report: Report) -> None:
    """Set `models` to what the server does not say of *model*."""
    if dialect == V2 and model.has_metadata:
        return
    # `inputs` is the only form in which an input may be without a name
    inputs = described(straight.samples if straight.form == "inputs" else straight.inputs)
    known = [declared.name for declared in model.outputs]
    outputs = described(output for output in straight.outputs if output.name not in known)
    how = {"format": "row" if straight.form == "row" else "", "signature": model.signature}
    block = {**how, "inputs": {} if known else inputs, "outputs": outputs}
    _set(dialect, model.name, block, {"inputs": {} if model.inputs else inputs, "outputs": outputs}, report)


def _set(
    dialect: str, model: str, block: Mapping[str, Any], guesses: Mapping[str, Mapping[str, Any]], report: Report
) -> None:
    """Set `models` to what is not empty in *block*; *guesses* are the inputs and outputs that no server has named."""
    guessed = [key for key, tensors in guesses.items() if tensors]
    if guessed:
        tensors = (each for side in guesses.values() for each in side.items())
        shown = ", ".join(f"{name or '(no name)'} {each['datatype']}" for name, each in tensors)
        words = (
            f"the server does not say what the model's {' and '.join(guessed)} are. Guessed from one inference: "
            f"{shown}. Put the names, datatypes and shapes that the model has under `models`: clients have to send "
            "them, and get them"
        )
        if dialect == V2:
            report.note(words)
        else:
            report.problem(words)
            report.caveat = ", if the datatypes that were guessed are right"
    if block := {key: value for key, value in block.items() if value}:
        why = "what the server does not say of its model" if guessed else "how the model wants to be asked"
        report.set("models", {"*" if dialect == MLFLOW else model: block}, why, guessed)


# A model that speaks no protocol


async def described_sample(asker: Asker, path: str) -> Any:
    """The example that the server's `/openapi.json` has for `POST` *path*. Raises `ProblemError` without one."""
    document = (await asker.get("/openapi.json")).json
    try:
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = content.get("schema", {})
        name = schema.get("$ref", "").rpartition("/")[2]
        schema = document["components"]["schemas"][name] if name else schema
        found = [example for holder in (content, schema) if (example := _example(holder)) is not None]
    except (TypeError, KeyError, AttributeError):
        found = []
    if not found:
        without = f"the server's /openapi.json has no example of a request to {path}"
        raise ProblemError(f"{without}: give one with --sample FILE")
    return found[0]


def _example(schema: Mapping[str, Any]) -> Any:
    """The first example in *schema*, or one made of those of its members; None without one."""
    examples = schema.get("examples", [])
    if isinstance(examples, dict):
        examples = [each["value"] for each in examples.values()]
    members = {name: _example(each) for name, each in schema.get("properties", {}).items()}
    made = members if members and all(member is not None for member in members.values()) else None
    return schema.get("example", next(iter(examples), schema.get("default", made)))


async def try_sample(asker: Asker, path: str, document: Any, model: str, report: Report) -> Straight:
    """Send *document* to *path*, and set the template that it and the answer show. Raises `ProblemError`."""
    sent = _guessed("the sample", document, "input")
    if not sent.tensors:
        raise ProblemError("the sample has no value that could be an input")
    if sent.differing:
        raise ProblemError(
            f"the rows of the sample differ at {', '.join(sent.differing)} in values that no tensor can have: give a "
            "sample with one row"
        )
    body = json.dumps(document).encode()
    answer = await _answer_to(asker, path, body)
    if not answer.is_good:
        question = ". Is it another --path?" if answer.status in (404, 405) else ""
        raise ProblemError(f"the sample was refused: {answer.words}{question}")
    text = answer.body.decode(errors="replace")
    report.ok(f"POST {path} with the sample: {text[:MAX_SHOWN]}{'...' if len(text) > MAX_SHOWN else ''}")
    came = _guessed("the answer to the sample", answer.json, "output", is_answer=True)
    if answer.json is None or not came.tensors:
        raise ProblemError("the answer to the sample is no JSON that has outputs in it")
    report.set("dialect", TEMPLATE, "it speaks no protocol: `models` says what it gets and what it answers")
    inputs, outputs = sent.described(), came.described()
    request = {"path": path, "body": sent.body}
    block = {"inputs": inputs, "outputs": outputs, "request": request, "answer": came.paths}
    _set(TEMPLATE, model, block, {"inputs": inputs, "outputs": outputs}, report)
    return Straight(path, body, tuple(sent.tensors.values()), tuple(came.tensors.values()))


def _guessed(where: str, document: Any, only: str, *, is_answer: bool = False) -> Guess:
    try:
        return Guess(document, only, is_answer=is_answer)
    except UnreadableError as error:
        raise ProblemError(f"{where} has {error}") from None
