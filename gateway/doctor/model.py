"""A model: what its server says of it, the first inference that is answered, and what is to be set for both.

That inference goes straight to the server, in the JSON of its own clients. Not here: servers that speak no protocol
(`template`), and requests through the gateway (`through`).
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
from gateway.backend.questions import MLFLOW, TENSORFLOW, V2, Answer
from gateway.codec.dialects import DIALECTS
from gateway.codec.dialects.description import NAMELESS_INPUT
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.doctor.answered import Answers
from gateway.doctor.asking import Asker, gateway
from gateway.doctor.report import ProblemError, Report
from gateway.doctor.tensors import Declared, Tensor, UnreadableError, described, outputs_of, samples_for, tensor_of
from gateway.doctor.trials import OUTPUT

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


class Tried(NamedTuple):
    """An inference that the server has answered straight, as a request to the gateway and the answer that is right."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    n_rows: int


class Straight(NamedTuple):
    """An inference that the server has answered."""

    dialect: str
    path: str
    body: bytes
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    form: str = ""
    """The `format` of the configuration, where it is not the default."""
    tried: tuple[Tried, ...] = ()
    """All inferences that were answered, of a server that speaks no protocol."""
    unstable: frozenset[str] = frozenset()
    """Outputs that differ for the same request."""
    constants: tuple[str, ...] = ()
    """What stands in the body beside the inputs, in words."""


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
            answer = await answer_to(asker, path, body)
            if answer.is_good:
                outputs = _outputs_of(answer, spoken, model)
                return Straight(spoken, path, body, samples, outputs, form)
            sent = ", ".join(each.words for each in samples)
            refused = f"every trial inference was refused; the first one sent {sent}"
            hint = "" if spoken == V2 else f". With --path {path} and --sample FILE, give a request that it takes"
            why = why or f"{refused}. The server's words: {answer.words}{hint}"
    raise ProblemError(why or "its inputs are too large for a trial")


async def answer_to(asker: Asker, path: str, body: bytes) -> Answer:
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
        found = Answers([members.get("outputs", members.get("predictions"))], only, said).found
        if found:
            return tuple(tensor_of(name, each.datatype, each.values[0]) for name, each in found.items())
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
