"""Trial inferences at servers of other dialects than V2, in the JSON of their own clients.

If such a server does not describe its model, its refusals and answers mostly show what the model takes and gives; both
are read here for the block `models` of the configuration. Not here: V2 (`trials`).
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gateway.backend.questions import MLFLOW, TENSORFLOW, Answer
from gateway.codec import DEFAULT_SIGNATURE, DIALECTS, NAMELESS_INPUT, TensorDescription
from gateway.config import FORMATS
from gateway.doctor.asking import Asker
from gateway.doctor.report import Report
from gateway.doctor.samples import (
    AS_TRIED,
    Declared,
    Output,
    Sample,
    UnreadableError,
    as_described,
    blob_of,
    flat,
    guessed,
    sample,
)
from gateway.doctor.trials import Model, RefusedError, Trials, candidates
from gateway.errors import CodecError

OUTPUT = "output"
"""What the only output of a model is called that gives it no name."""

UNDESCRIBED = ((1, 4), (1, 1), (1, 16), (1,))
"""Shapes that are tried with a model of which nothing is known."""

_UNSAID = "what the server does not say of its model"
_GUESSED = "GUESSED from the numbers of one answer: put the datatypes that the model computes"
_PLACEHOLDER = "PLACEHOLDER, since no trial was answered: put the outputs that the model has"
"""Comments beside the model, and beside its outputs."""

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


def _columns(samples: Sequence[Sample]) -> Any:
    """The only input without a name, or the inputs by their names."""
    if len(samples) == 1 and not samples[0].name:
        return samples[0].nested
    return {each.name: each.nested for each in samples}


def _rows(samples: Sequence[Sample]) -> list[Any]:
    """The inputs row by row, one element for each row."""
    columns = _columns(samples)
    if not isinstance(columns, dict):
        return list(columns)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _frame(samples: Sequence[Sample]) -> dict[str, Any]:
    rows = zip(*(each.values for each in samples), strict=True)
    return {"columns": [each.name for each in samples], "data": list(map(list, rows))}


_FORMS: Mapping[str, Callable[[Sequence[Sample]], dict[str, Any]]] = {
    "columnar": lambda samples: {"inputs": _columns(samples)},
    "row": lambda samples: {"instances": _rows(samples) if len(samples) > 1 else samples[0].nested},
    "inputs": lambda samples: {"inputs": _columns(samples)},
    "instances": lambda samples: {"instances": _rows(samples)},
    "dataframe_split": lambda samples: {"dataframe_split": _frame(samples)},
}
"""The builders of request bodies, by the `format` of the configuration."""


class DialectTrials(Trials):
    """The trials of a server of another dialect."""

    def __init__(self, asker: Asker, dialect: str, model: str, report: Report) -> None:
        """*model* may be the clients' name of the model."""
        self._dialect = DIALECTS[dialect]
        path = self._dialect.infer_path(model, None)
        assert path is not None
        super().__init__(asker, path, Model(model), report)
        self._form = ""
        self._signature = ""

    @property
    def by_client(self) -> tuple[Sample, ...]:
        """See `Trials`. They have names."""
        return tuple(replace(each, name=each.name or NAMELESS_INPUT) for each in self.samples)

    def body_of(self, samples: Sequence[Sample]) -> Any:
        """See `Trials`."""
        signature = {"signature_name": self._signature} if self._signature else {}
        return {**signature, **_FORMS[self._form](samples)}

    def outputs_of(self, answer: Answer) -> list[Output]:
        """See `Trials`. Datatypes that the server does not name are guessed from the values."""
        document = answer.json
        if not isinstance(document, dict):
            raise UnreadableError("something that is not a JSON object")
        value = document.get("outputs", document.get("predictions"))
        if value is None:
            raise UnreadableError("neither `outputs` nor `predictions`")
        said = {declared.name: declared.datatype for declared in self._model.outputs}
        is_double = any(declared.datatype == "FP64" for declared in self._model.inputs)
        outputs = []
        for name, data in _by_name(value, next(iter(said)) if len(said) == 1 else OUTPUT).items():
            values = flat(data)
            try:
                datatype = said.get(name) or guessed(values, is_double=is_double)
                shape = np.shape(data)
            except (TypeError, ValueError, OverflowError):
                raise UnreadableError(f"values of {name} that do not form a tensor") from None
            outputs.append(Output(name, datatype, shape, blob_of(datatype, values)))
        return outputs

    async def first(self) -> None:
        """See `Trials`."""
        await (self._ask_signature() if self._dialect.name == MLFLOW else self._ask_metadata())
        why = ""
        for form in FORMATS[self._dialect.name]:
            self._form = form
            try:
                return await self.try_all(self._candidates())
            except RefusedError as error:
                why = why or str(error)
        raise RefusedError(why)

    def _candidates(self) -> Iterator[tuple[Sample, ...]]:
        undescribed = ((sample("", "FP32", shape),) for shape in UNDESCRIBED)
        for samples in candidates(self._model.inputs) if self._model.inputs else undescribed:
            n_rows = {each.shape[:1] for each in samples}
            if self._form in ("columnar", "inputs") or (len(n_rows) == 1 and n_rows != {()}):
                yield samples

    def describe(self) -> None:
        """Report the model's inputs and outputs, and set `models` to those that the server does not describe."""
        if self._model.inputs:
            sides = filter(None, (self._model.inputs, self._model.outputs))
            self._report.ok(f"inputs: {'; outputs: '.join(', '.join(each.words for each in side) for side in sides)}")
        else:
            sent = ", ".join(f"{each.datatype} {list(each.shape)}" for each in self.samples)
            self._report.note(
                f"the server does not say what the model's inputs and outputs are; it took {sent}. Name, datatype and "
                "shape of the input under `models` are the trial's and not known to be the model's, but requests with "
                "another name or datatype are refused by them: correct them"
            )
        block: dict[str, Any] = {}
        if self._form != FORMATS[self._dialect.name][0]:
            block["format"] = self._form
        if self._signature:
            block["signature"] = self._signature
            self._report.note(
                f"the model has no signature `{DEFAULT_SIGNATURE}`; its first one is `signature: {self._signature}`"
            )
        if not self._model.outputs:  # if the server describes the model, the gateway asks it
            # `inputs` is the only form in which an input may be without a name
            block["inputs"] = as_described(self.samples if self._form == "inputs" else self.by_client)
        said = {declared.name for declared in self._model.outputs}
        outputs = as_described(output for output in self.outputs if output.name not in said)
        if outputs:
            block["outputs"] = outputs
            self.caveat = ", if the datatypes that were guessed are right"
            self._tell_guessed(outputs)
        if block:
            self._set_models(block, _UNSAID if outputs else "how the model wants to be asked", _GUESSED)

    def _tell_guessed(self, outputs: Mapping[str, Any]) -> None:
        shown = ", ".join(f"{name} {output['datatype']}" for name, output in outputs.items())
        unnamed = "what its output is called and " if OUTPUT in outputs else ""
        self._report.problem(
            f"its answers do not say {unnamed}of which datatype outputs are, and numbers do not tell. Guessed from one "
            f"answer: {shown}. Put what the model computes under `models`: clients get what stands there"
        )

    def describe_untried(self) -> None:
        """Set `models` for a model that has answered no trial, as a draft for the user to complete."""
        if self._model.outputs:
            return
        block: dict[str, Any] = {"format": "row"} if self._dialect.name == TENSORFLOW else {}
        if inputs := self._model.inputs:
            block["inputs"] = {each.name: {"datatype": each.datatype, "shape": list(each.shape)} for each in inputs}
        block["outputs"] = {OUTPUT: {"datatype": "FP32"}}
        self._set_models(block, _UNSAID, _PLACEHOLDER)

    def _set_models(self, block: dict[str, Any], why: str, outputs: str) -> None:
        pattern = "*" if self._dialect.name == MLFLOW else self._model.name
        comments = {"outputs": outputs} if self._model.inputs else {"inputs": AS_TRIED, "outputs": outputs}
        self._report.set("models", {pattern: block}, why, comments=comments)

    async def _ask_metadata(self) -> None:
        """Read TensorFlow Serving's description of the model, if it has one. Raises `RefusedError`."""
        path = self._dialect.description_path(self._model.name, None)
        answer = await self._asker.get(path) if path is not None else None
        if answer is None or answer.status != 200:
            return
        self._signature = _another_signature(answer.json)
        try:
            model = self._dialect.read_description(answer.body, self._signature)
        except CodecError as error:
            raise RefusedError(f"its metadata cannot be used: {error}") from None
        self._model = replace(self._model, inputs=_declared(model.inputs), outputs=_declared(model.outputs))

    async def _ask_signature(self) -> None:
        """Read the inputs from the signature that MLflow quotes when it refuses a request, if the model has one."""
        for question in (_WRONG_NAME, _WRONG_RANK):
            refusal = (await self._asker.post(self._path, question)).json
            schema = _SCHEMA.search(str(refusal.get("message"))) if isinstance(refusal, dict) else None
            if schema is not None:
                self._model = replace(self._model, inputs=_declared_in(schema[1]))
                return


def _another_signature(metadata: Any) -> str:
    """Another signature for a model without the usual one; empty if the model has the usual one, or none at all."""
    try:
        signatures = metadata["metadata"]["signature_def"]["signature_def"]
        usable = sorted(name for name, each in signatures.items() if each["inputs"] and each["outputs"])
    except (TypeError, KeyError, AttributeError):
        return ""
    return "" if DEFAULT_SIGNATURE in usable or not usable else usable[0]


def _declared(tensors: Sequence[TensorDescription]) -> tuple[Declared, ...]:
    """*tensors* as declarations, if all of their fields are known; else none."""
    return tuple(
        Declared(each.name, each.datatype.name, each.shape)
        for each in tensors
        if each.datatype is not None and each.shape is not None
    )


def _declared_in(schema: str) -> tuple[Declared, ...]:
    """The inputs in MLflow's *schema*, as MLflow writes it; none if one of them has a type that V2 does not have."""
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
