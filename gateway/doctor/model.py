"""A model: what its server says of it, the first inference that is answered, and what is to be set for both.

That inference goes straight to the server, in the JSON of its own clients, or is a sample that the user has given. Not
here: requests through the gateway (`through`).
"""

import itertools
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from gateway.backend.connections import NoAnswerError
from gateway.backend.questions import MLFLOW, TEMPLATE, TENSORFLOW, V2, Answer
from gateway.codec.dialects import DIALECTS
from gateway.codec.dialects.description import NAMELESS_INPUT
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.doctor.asking import Asker, gateway
from gateway.doctor.report import ProblemError, Report
from gateway.doctor.tensors import Declared, Guess, Tensor, UnreadableError, described, outputs_of, samples_for

MAX_SHOWN = 300
"""How many characters of the answer to a sample are shown."""

OUTPUT = "output"
"""What the only output of a model is called that gives it no name."""

_ANY = (Declared(NAMELESS_INPUT, "FP32", (-1, -1)),)
_TRIALS = {
    V2: (
        (V2, "", (Declared("x", "FP32", (-1, -1)), Declared("x", "BYTES", (-1,)))),
        (TENSORFLOW, "row", _ANY),  # a server that speaks V2 may have models that only speak KServe's V1
    ),
    TENSORFLOW: ((TENSORFLOW, "", _ANY), (TENSORFLOW, "row", _ANY)),
    MLFLOW: ((MLFLOW, "", _ANY),),
}
"""What is tried of a server's models: dialects, values of `format` (empty: the default), and the inputs of which one is
sent alone, if the model describes none."""


@dataclass(frozen=True)
class Model:
    """A model, as far as its server describes it."""

    name: str
    inputs: tuple[Declared, ...] = ()
    outputs: tuple[Declared, ...] = ()
    has_metadata: bool = False
    """Whether clients get metadata without help of the configuration."""

    @property
    def path(self) -> str:
        """The model's path in V2."""
        return f"/v2/models/{quote(self.name, safe='')}"


class Straight(NamedTuple):
    """An inference that the server has answered."""

    dialect: str
    path: str
    body: bytes
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    form: str = ""
    """The `format` of the configuration, where it is not the default."""


# What the server says


async def describe(url: str, model: Model, report: Report) -> Model:
    """*model* with what its server says of it, which is reported; asked through a gateway, in V2 whatever it speaks."""
    async with gateway(url, report.settings) as crossing:
        answer = await crossing.get(model.path)
    metadata = answer.json if answer.status == 200 else None
    if not isinstance(metadata, dict):
        report.note(f"its metadata is not told ({answer.words})")
        return model
    inputs, outputs = (_declared(metadata.get(side)) for side in ("inputs", "outputs"))
    if inputs:
        sides = filter(None, (inputs, outputs))
        report.ok(f"inputs: {'; outputs: '.join(', '.join(each.words for each in side) for side in sides)}")
    else:
        report.note("its metadata does not say which inputs it has")
    return replace(model, inputs=inputs, outputs=outputs, has_metadata=True)


def _declared(listed: Any) -> tuple[Declared, ...]:
    """One side of a model's metadata, inputs or outputs; empty if it is not in V2's form."""
    try:
        found = msgspec.convert(listed, tuple[Declared, ...])
    except msgspec.ValidationError:
        return ()
    return found if all(each.datatype in DATATYPES for each in found) else ()


# The first inference


def _written(dialect: str, form: str, samples: Sequence[Tensor]) -> bytes:
    """The body of a request; rows are those of the first tensor."""
    body: dict[str, Any] = {"inputs": {each.name: each.nested for each in samples}}
    if dialect == V2:
        body = {"inputs": [{**each.member, "data": each.values} for each in samples]}
    elif form == "row" or dialect == MLFLOW:  # what MLflow calls its input is not known
        body = {"instances" if form else "inputs": samples[0].nested}
    return json.dumps(body).encode()


async def first_inference(asker: Asker, dialect: str, model: Model) -> Straight:
    """Find an inference that the server answers, which speaks *dialect*. Raises `ProblemError`."""
    why = ""
    for spoken, form, undescribed in _TRIALS[dialect]:
        path = f"{model.path}/infer" if spoken == V2 else DIALECTS[spoken].paths(model.name, None).infer
        inputs = [model.inputs] if model.inputs else [(each,) for each in undescribed]
        for samples in itertools.chain.from_iterable(map(samples_for, inputs)):
            body = _written(spoken, form, samples)
            answer = await _answer_to(asker, path, body)
            if answer.is_good:
                outputs = _outputs_of(answer, spoken, model)
                return Straight(spoken, path, body, samples, outputs, form)
            sent = ", ".join(each.words for each in samples)
            refused = f"every trial inference was refused; the first one sent {sent}"
            hint = "" if spoken == V2 else f". With --path {path} and --sample FILE, give a request that it takes"
            why = why or f"{refused}. The server's words: {answer.words}{hint}"
    raise ProblemError(why or "its inputs are too large for a trial")


async def _answer_to(asker: Asker, path: str, body: bytes) -> Answer:
    """The server's answer to a first inference. Raises `ProblemError` if none comes, or for credentials."""
    try:
        answer = await asker.post(path, body)
    except NoAnswerError as error:
        raise ProblemError(str(error)) from None
    asker.judge_credentials(answer)
    return answer


def _outputs_of(answer: Answer, dialect: str, model: Model) -> tuple[Tensor, ...]:
    """The outputs in an answer. Raises `ProblemError`.

    In other dialects than V2, datatypes that the server does not name are guessed from the values.
    """
    try:
        if dialect == V2:
            return outputs_of(answer)
        # TensorFlow's form of bytes
        document = json.loads(answer.body, object_hook=lambda each: b64decode(each["b64"]) if "b64" in each else each)
        members = document if isinstance(document, dict) else {}
        said = {declared.name: declared.datatype for declared in model.outputs}
        only = next(iter(said)) if len(said) == 1 else OUTPUT
        guess = Guess(members.get("outputs", members.get("predictions")), only, said, is_answer=True)
        if guess.tensors:
            return tuple(guess.tensors.values())
        words = "nothing in `outputs` or `predictions` that forms a tensor"
    except (UnreadableError, ValueError, TypeError) as error:
        words = str(error)
    raise ProblemError(f"a trial inference was answered with {words}: the gateway cannot read that, nor can clients")


# What is set of the model


def set_models(straight: Straight, model: Model, report: Report) -> None:
    """Set `models` to what the server does not say of *model*."""
    if straight.dialect == V2 and model.has_metadata:
        return
    known = [declared.name for declared in model.outputs]
    inputs = described(straight.inputs)
    if straight.dialect == MLFLOW:
        inputs = {"": inputs[NAMELESS_INPUT]}
    block = {
        "format": straight.form,
        "inputs": {} if model.inputs else inputs,
        "outputs": described(output for output in straight.outputs if output.name not in known),
    }
    _set(straight.dialect, model.name, block, report)


def _set(dialect: str, model: str, block: Mapping[str, Any], report: Report) -> None:
    """Set `models` to what is not empty in *block*; its inputs and outputs are those that no server has named."""
    why = "how the model wants to be asked"
    if guessed := [side for side in ("inputs", "outputs") if block[side]]:
        tensors = (each for side in guessed for each in block[side].items())
        shown = ", ".join(f"{name or '(no name)'} {each['datatype']}" for name, each in tensors)
        why = "GUESSED from one inference: put the names, datatypes and shapes that the model has"
        words = (
            f"the server does not say what the model's {' and '.join(guessed)} are. Guessed from one inference: "
            f"{shown}. Put the names, datatypes and shapes that the model has under `models`: clients have to send "
            "them, and get them"
        )
        tell = report.note if dialect == V2 else report.problem
        tell(words)
    if block := {key: value for key, value in block.items() if value}:
        report.set("models", {"*" if dialect == MLFLOW else model: block}, why)


# A model that speaks no protocol


async def described_sample(asker: Asker, path: str) -> Any:
    """The example that the server's `/openapi.json` has for `POST` *path*. Raises `ProblemError` without one."""
    document = (await asker.get("/openapi.json")).json
    try:
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = content.get("schema", {})
        name = schema.get("$ref", "").rpartition("/")[2]
        schema = document["components"]["schemas"][name] if name else schema
        return next(example for holder in (content, schema) if (example := _example(holder)) is not None)
    except (TypeError, KeyError, AttributeError, StopIteration):
        without = f"the server's /openapi.json has no example of a request to {path}"
        raise ProblemError(f"{without}: give one with --sample FILE") from None


def _example(schema: Mapping[str, Any]) -> Any:
    """The first example in *schema*; None without one."""
    examples = schema.get("examples", [])
    if isinstance(examples, dict):
        examples = [each["value"] for each in examples.values()]
    return schema.get("example", next(iter(examples), None))


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
        raise ProblemError(f"the sample was refused: {answer.words}")
    text = answer.body.decode(errors="replace")
    report.ok(f"POST {path} with the sample: {text[:MAX_SHOWN]}{'...' if len(text) > MAX_SHOWN else ''}")
    came = _guessed("the answer to the sample", answer.json, OUTPUT, is_answer=True)
    if not came.tensors:
        raise ProblemError("the answer to the sample is no JSON that has outputs in it")
    report.set("dialect", TEMPLATE, "it speaks no protocol: `models` says what it gets and what it answers")
    inputs, outputs = (tuple(each.tensors.values()) for each in (sent, came))
    request = {"path": path, "body": sent.body}
    block = {"inputs": described(inputs), "outputs": described(outputs), "request": request, "answer": came.paths}
    _set(TEMPLATE, model, block, report)
    return Straight(TEMPLATE, path, body, inputs, outputs)


def _guessed(where: str, document: Any, only: str, *, is_answer: bool = False) -> Guess:
    try:
        return Guess(document, only, is_answer=is_answer)
    except UnreadableError as error:
        raise ProblemError(f"{where} has {error}") from None
