"""Trial inferences at servers of other dialects than V2, as people write their JSON.

What such a server does not say of its model, it mostly says in its refusals, or shows in its answers; both are read
here for the block `models` of the configuration. Not here: V2 (`trials`), and what is sent through the gateway.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gateway.backend.questions import MLFLOW, TENSORFLOW
from gateway.codec import DEFAULT_SIGNATURE, DIALECTS, NAMELESS_INPUT, TensorDescription
from gateway.config import FORMATS
from gateway.doctor.asking import Asker, Reply
from gateway.doctor.report import Report
from gateway.doctor.samples import Declared, Output, Sample, UnreadableError, blob_of, flat, sample
from gateway.doctor.trials import AS_TRIED, Model, RefusedError, Taken, Trials, candidates
from gateway.errors import CodecError

OUTPUT = "output"
"""What the only output of a model is called that gives it no name."""

UNDESCRIBED = ((1, 4), (1, 1), (1, 16), (1,))
"""Shapes that are tried with a model of which nothing is known."""

_GUESSED = "GUESSED from the numbers of one answer: put the datatypes that the model computes"
_PLACEHOLDER = "PLACEHOLDER, since no trial was answered: put the outputs that the model has"
"""Comments beside outputs."""

_WRONG_NAME = json.dumps({"inputs": {"tensor-gateway doctor": [0]}}).encode()
_WRONG_RANK = json.dumps({"inputs": [[[[[[0]]]]]]}).encode()
"""Questions that MLflow refuses with the model's signature in its words."""

_SCHEMA = re.compile(r"with schema '\[(.*?)\]'\. Error: ", re.DOTALL)
_NAME = r"""(?P<name>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"): """
_TENSOR = re.compile(rf"(?:{_NAME})?Tensor\('(?P<type>\w+)', \((?P<shape>[^)]*)\)\)")
_COLUMN = re.compile(rf"{_NAME}(?P<type>\w+) \((?:required|optional)\)")

_TYPES = {
    "float32": "FP32",
    "float64": "FP64",
    "float16": "FP16",
    "bool": "BOOL",
    "str": "BYTES",
    "object": "BYTES",
    "bytes": "BYTES",
    "double": "FP64",
    "float": "FP32",
    "long": "INT64",
    "integer": "INT32",
    "boolean": "BOOL",
    "string": "BYTES",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""MLflow's types, those of numpy and those of columns, as datatypes of V2."""


def _rows(samples: Sequence[Sample], names: Sequence[str]) -> list[Any]:
    if len(samples) == 1 and not names[0]:
        rows: list[Any] = samples[0].nested
        return rows
    columns = [each.nested for each in samples]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _columnar(samples: Sequence[Sample], names: Sequence[str]) -> dict[str, Any]:
    if len(samples) == 1 and not names[0]:
        return {"inputs": samples[0].nested}
    return {"inputs": {name: each.nested for name, each in zip(names, samples, strict=True)}}


def _row(samples: Sequence[Sample], names: Sequence[str]) -> dict[str, Any]:
    return {"instances": _rows(samples, [""] if len(samples) == 1 else names)}


def _instances(samples: Sequence[Sample], names: Sequence[str]) -> dict[str, Any]:
    return {"instances": _rows(samples, names)}


def _dataframe(samples: Sequence[Sample], names: Sequence[str]) -> dict[str, Any]:
    rows = [list(row) for row in zip(*(flat(each.nested) for each in samples), strict=True)]
    return {"dataframe_split": {"columns": list(names), "data": rows}}


_FORMS: Mapping[str, Callable[[Sequence[Sample], Sequence[str]], dict[str, Any]]] = {
    "columnar": _columnar,
    "row": _row,
    "inputs": _columnar,
    "instances": _instances,
    "dataframe_split": _dataframe,
}


class Known(NamedTuple):
    """What a server of another dialect says of its model."""

    inputs: tuple[Declared, ...] = ()
    outputs: tuple[Declared, ...] = ()


class DialectTrials(Trials):
    """The trials of a server of another dialect."""

    def __init__(self, asker: Asker, dialect: str, model: str, report: Report) -> None:
        """*model* may be what clients call it."""
        super().__init__(asker, Model(model), report)
        self._dialect = DIALECTS[dialect]
        self._form = ""
        self._signature = ""
        self._names: tuple[str, ...] = ()
        self._known = Known()

    async def infer(
        self,
        samples: Sequence[Sample],
        *,
        asker: Asker | None = None,
        is_chunked: bool = False,
        **members: Any,
    ) -> Reply:
        """See `Trials`."""
        names = self._names or tuple(each.name for each in samples)
        signature = {"signature_name": self._signature} if self._signature else {}
        text = json.dumps({**signature, **_FORMS[self._form](samples, names), **members}).encode()
        path = self._dialect.infer_path(self._model.name, None)
        assert path is not None
        return await (asker or self._asker).post(path, text, is_chunked=is_chunked)

    def outputs_of(self, reply: Reply) -> list[Output]:
        """See `Trials`. Datatypes that the server does not say are guessed from the values."""
        answer = reply.json
        if not isinstance(answer, dict):
            raise UnreadableError("something that is not a JSON object")
        value = answer.get("outputs", answer.get("predictions"))
        if value is None:
            raise UnreadableError("neither `outputs` nor `predictions`")
        said = {declared.name: declared.datatype for declared in self._known.outputs}
        only = self._known.outputs[0].name if len(self._known.outputs) == 1 else OUTPUT
        outputs = []
        for name, data in _by_name(value, only).items():
            values = flat(data)
            try:
                datatype = said.get(name) or guessed(values, is_double=self._gets_doubles)
            except (TypeError, OverflowError):
                raise UnreadableError(f"values of {name} that do not form a tensor") from None
            outputs.append(Output(name, datatype, _shape_of(data), blob_of(datatype, values)))
        return outputs

    async def first(self) -> Taken:
        """An inference that the server answers. Raises `RefusedError`."""
        self._known = await (self._ask_signature() if self._dialect.name == MLFLOW else self._ask_metadata())
        self._names = tuple(declared.name for declared in self._known.inputs)
        why = ""
        for form in FORMATS[self._dialect.name]:
            self._form = form
            try:
                return await self.try_all(list(self._candidates()))
            except RefusedError as error:
                why = why or str(error)
        raise RefusedError(why)

    @property
    def knows_inputs(self) -> bool:
        """See `Trials`."""
        return bool(self._known.inputs)

    @property
    def _gets_doubles(self) -> bool:
        return any(declared.datatype == "FP64" for declared in self._known.inputs)

    def describe(self, taken: Taken) -> bool:
        """Say what the model is, and set `models` to what the server does not say itself; whether any is guessed."""
        if self._known.inputs:
            words = [", ".join(each.words for each in side) for side in self._known if side]
            self._report.ok("; outputs: ".join([f"inputs: {words[0]}", *words[1:]]))
        else:
            sent = ", ".join(f"{each.datatype} {list(each.shape)}" for each in taken.samples)
            self._report.note(
                f"the server does not say what the model's inputs and outputs are; it took {sent}. Name, datatype and "
                "shape of the input under `models` are the trial's and not known to be the model's"
            )
        block: dict[str, Any] = {}
        said = {declared.name for declared in self._known.outputs}
        if self._form != FORMATS[self._dialect.name][0]:
            block["format"] = self._form
        if self._signature:
            block["signature"] = self._signature
            self._report.note(
                f"the model has no signature `{DEFAULT_SIGNATURE}`; its first one is `signature: {self._signature}`"
            )
        if not self._is_described:
            names = self._names or tuple(each.name for each in taken.samples)
            if self._form != "inputs":  # the only one in which an input may be without a name
                names = tuple(name or NAMELESS_INPUT for name in names)
            block["inputs"] = {
                name: {"datatype": each.datatype, "shape": _variable(each.shape)}
                for name, each in zip(names, taken.samples, strict=True)
            }
        outputs = {
            output.name: {"datatype": output.datatype, "shape": _variable(output.shape)}
            for output in taken.outputs
            if output.name not in said
        }
        if outputs:
            block["outputs"] = outputs
            shown = ", ".join(f"{name} {output['datatype']}" for name, output in outputs.items())
            unnamed = "what its output is called and " if OUTPUT in outputs else ""
            self._report.problem(
                f"its answers do not say {unnamed}of which datatype outputs are, and numbers do not tell. Guessed from "
                f"one answer: {shown}. Put what the model computes under `models`: clients get what stands there"
            )
        if block:
            comments = {} if self._known.inputs else {"inputs": AS_TRIED}
            if outputs:
                comments["outputs"] = _GUESSED
            why = "what the server does not say of its model" if outputs else "how the model wants to be asked"
            self._set_models(block, why, comments)
        return bool(outputs)

    def describe_untried(self) -> None:
        """Set `models` to what the gateway needs to know of a model that has answered no trial."""
        if self._is_described:
            return
        block: dict[str, Any] = {"format": "row"} if self._dialect.name == TENSORFLOW else {}
        if self._known.inputs:
            block["inputs"] = {
                each.name: {"datatype": each.datatype, "shape": list(each.shape)} for each in self._known.inputs
            }
        block["outputs"] = {OUTPUT: {"datatype": "FP32"}}
        self._set_models(block, "what the server does not say of its model", {"outputs": _PLACEHOLDER})

    def _set_models(self, block: dict[str, Any], why: str, comments: Mapping[str, str]) -> None:
        pattern = "*" if self._dialect.name == MLFLOW else self._model.name
        self._report.set("models", {pattern: block}, why, comments=comments)

    @property
    def _is_described(self) -> bool:
        """Whether the gateway itself finds the model's description at the server."""
        return bool(self._known.outputs)

    def for_clients(self, taken: Taken) -> Taken:
        """The inference as a client sends it to the gateway: its inputs have names."""
        samples = tuple(replace(each, name=each.name or NAMELESS_INPUT) for each in taken.samples)
        return replace(taken, samples=samples)

    def _candidates(self) -> Iterator[tuple[Sample, ...]]:
        if self._known.inputs:
            wanted = candidates(self._known.inputs)
        else:
            wanted = ((sample("", "FP32", shape),) for shape in UNDESCRIBED)
        for samples in wanted:
            if self._form in ("columnar", "inputs") or len({each.shape[:1] for each in samples}) == 1:
                yield samples

    async def _ask_metadata(self) -> Known:
        """What TensorFlow Serving says of the model; nothing if it says nothing."""
        path = self._dialect.description_path(self._model.name, None)
        reply = await self._asker.get(path) if path is not None else None
        if reply is None or reply.status != 200:
            return Known()
        self._signature = _another_signature(reply.json)
        try:
            described = self._dialect.read_description(reply.body, self._signature)
        except CodecError as error:
            raise RefusedError(f"its metadata cannot be used: {error}") from None
        return Known(_declared(described.inputs), _declared(described.outputs))

    async def _ask_signature(self) -> Known:
        """The inputs in the signature that MLflow repeats when it refuses a request; none if the model has none."""
        path = self._dialect.infer_path(self._model.name, None)
        assert path is not None
        for question in (_WRONG_NAME, _WRONG_RANK):
            answer = (await self._asker.post(path, question)).json
            schema = _SCHEMA.search(str(answer.get("message"))) if isinstance(answer, dict) else None
            if schema is not None:
                return Known(_declared_in(schema[1]))
        return Known()


def _another_signature(metadata: Any) -> str:
    """The signature to take of a model that lacks the usual one; empty if it has that, or none at all."""
    try:
        signatures = metadata["metadata"]["signature_def"]["signature_def"]
        usable = sorted(name for name, each in signatures.items() if each["inputs"] and each["outputs"])
    except (TypeError, KeyError, AttributeError):
        return ""
    return "" if DEFAULT_SIGNATURE in usable or not usable else usable[0]


def _declared(tensors: Sequence[TensorDescription]) -> tuple[Declared, ...]:
    """*tensors*, if everything is known of them."""
    return tuple(
        Declared(each.name, each.datatype.name, each.shape)
        for each in tensors
        if each.datatype is not None and each.shape is not None
    )


def _declared_in(schema: str) -> tuple[Declared, ...]:
    """The inputs of MLflow's *schema*, in its words; none if one of them is of a type that V2 does not have."""
    found = [
        (match["name"], match["type"], tuple(int(size) for size in re.findall(r"-?\d+", match["shape"])))
        for match in _TENSOR.finditer(schema)
    ]
    found = found or [(match["name"], match["type"], (-1,)) for match in _COLUMN.finditer(schema)]
    if any(type_ not in _TYPES for _, type_, _ in found):
        return ()
    return tuple(Declared(ast.literal_eval(name or "''"), _TYPES[type_], shape) for name, type_, shape in found)


def _by_name(value: Any, only: str) -> dict[str, Any]:
    """The outputs in *value*: an object by name, rows of such objects, or the only output."""
    if isinstance(value, dict) and list(value) != ["b64"]:
        return value
    if isinstance(value, list) and value and all(isinstance(row, dict) and list(row) != ["b64"] for row in value):
        return {name: [row.get(name) for row in value] for name in value[0]}
    return {only: value}


def guessed(values: Sequence[Any], *, is_double: bool = False) -> str:
    """The datatype that *values* of JSON could have: of those that lose nothing of them the likeliest.

    *is_double*: floats are FP64 even if FP32 would hold them.
    """
    known = [value for value in values if value is not None]
    if any(isinstance(value, str | dict) for value in known):
        return "BYTES"
    if known and all(isinstance(value, bool) for value in known):
        return "BOOL"
    if known and len(known) == len(values) and all(isinstance(value, int) for value in known):
        return "INT64"
    with np.errstate(over="ignore"):
        return "FP32" if not is_double and all(map(_is_single, known)) else "FP64"


def _is_single(value: float) -> bool:
    """Whether *value* is an FP32; NaN is one. One that was printed short, as 0.1, is taken for an FP64, too."""
    single = np.float32(value)
    return float(single) == value or bool(np.isnan(single))


def _shape_of(data: Any) -> tuple[int, ...]:
    """The shape of nested lists."""
    shape = []
    while isinstance(data, list):
        shape.append(len(data))
        if not data:
            break
        data = data[0]
    return tuple(shape)


def _variable(shape: Sequence[int]) -> list[int]:
    """*shape* with a variable first dimension, as of a batch."""
    return [-1, *shape[1:]] if shape else []
