"""A server that speaks no protocol, tried with a sample of what it takes: a template is guessed from both sides of it.

In the sample, lists are inputs and everything else is the same in each request; if it has no lists, its texts and
numbers are inputs. In the answer, lists are outputs likewise. Objects in a list are rows. Not here: the language of
templates (`codec.dialects.body`, `codec.dialects.paths`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.backend.questions import Answer
from gateway.codec import find, steps_of
from gateway.doctor.asking import Asker
from gateway.doctor.report import Report
from gateway.doctor.samples import Output, Sample, UnreadableError, blob_of, flat, guessed, shape_of
from gateway.doctor.trials import Model, RefusedError, Trials
from gateway.errors import ConfigError

MAX_SAMPLE_BYTES = 4 * 1024 * 1024
"""The largest file of a sample."""

MAX_SHOWN = 300
"""How many characters of the answer to the sample are shown."""

_GUESSED = "GUESSED from the numbers of one sample: put the datatypes that the model takes"
_GUESSED_OUTPUTS = "GUESSED from the numbers of one answer: put the datatypes that the model computes"


def sample_of(path: str | None, file: str | None) -> Any:
    """The JSON in *file*, for *path*; None without a file. Raises `ConfigError`."""
    if path is not None and not path.startswith("/"):
        raise ConfigError(f"--path {path}: expected a path that starts with /, such as /predict")
    if file is None:
        return None
    if path is None:
        raise ConfigError("--sample: goes with --path, the path that the sample is posted to")
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(MAX_SAMPLE_BYTES + 1)
        if len(content) > MAX_SAMPLE_BYTES:
            raise ConfigError(f"--sample {file}: more than {MAX_SAMPLE_BYTES} bytes")
        document = json.loads(content)
        json.dumps(document, ensure_ascii=False).encode()  # raises for half a surrogate pair, which is no text
        return document
    except OSError as error:
        raise ConfigError(f"--sample {file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--sample {file}: not JSON: {error}") from None


async def described_sample(asker: Asker, path: str) -> Any:
    """The example that the server's `/openapi.json` has for `POST` *path*. Raises `RefusedError` without one."""
    document = (await asker.get("/openapi.json")).json
    for example in _examples(document, path):
        return example
    raise RefusedError(f"the server's /openapi.json has no example of a request to {path}: give one with --sample FILE")


def _examples(document: Any, path: str) -> Iterator[Any]:
    """The examples of bodies for *path*, whole ones first, then one made of those of its members."""
    try:
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = content.get("schema", {})
        name = schema.get("$ref", "").rpartition("/")[2]
        schema = document["components"]["schemas"][name] if name else schema
    except (TypeError, KeyError, AttributeError):
        return
    for holder in (content, schema):
        if "example" in holder:
            yield holder["example"]
        examples = holder.get("examples", [])
        if isinstance(examples, dict):
            examples = [each.get("value") for each in examples.values()]
        yield from examples
    members = {name: _first_example(each) for name, each in schema.get("properties", {}).items()}
    if members and all(member is not None for member in members.values()):
        yield members


def _first_example(schema: Mapping[str, Any]) -> Any:
    return schema.get("example", next(iter(schema.get("examples", [])), schema.get("default")))


class Guess:
    """One side of a template, guessed from a *document*."""

    def __init__(self, document: Any, only: str, *, is_answer: bool = False) -> None:
        """*only* is what the whole document is called, where it is one tensor.

        *is_answer*: a `null` among texts counts as a missing text. No input has any.
        """
        self._is_answer = is_answer
        self.tensors: dict[str, Any] = {}
        """The values of each input or output, nested."""
        self.paths: dict[str, str] = {}
        """Where each stands, as in `answer`."""
        self.levelled: list[str] = []
        """Where rows have different values that are no tensor: in the template all rows have the first one's."""
        self._only = only
        self._has_lists = _has_lists(document)
        self.body = self._read(document, (), "$")
        """The document with `$NAME` in place of its tensors, as in `request.body`."""

    def described(self) -> dict[str, Any]:
        """The tensors as in a block of `models`."""
        found = {}
        for name, values in self.tensors.items():
            shape = self._shape_of(values)
            found[name] = {"datatype": guessed(flat(values)), "shape": [-1, *shape[1:]] if shape else []}
            if found[name]["datatype"] == "BYTES" and None in flat(values):
                found[name]["missing"] = ""
        return found

    def _shape_of(self, values: Any) -> tuple[int, ...] | None:
        return shape_of(values, has_missing=self._is_answer)

    def _read(self, value: Any, names: tuple[str, ...], path: str) -> Any:
        if isinstance(value, dict):
            return {
                _escaped(name): self._read(item, (*names, name), path + _step(name)) for name, item in value.items()
            }
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            n_tensors = len(self.tensors)
            item = self._read_rows(value, names, f"{path}[*]")
            return {"$each": item} if len(self.tensors) > n_tensors else _escaped(value)
        is_tensor = isinstance(value, list) and self._shape_of(value) is not None
        if is_tensor or (not self._has_lists and value is not None):
            return f"${self._tensor(value, names, path)}"
        return _escaped(value)

    def _read_rows(self, rows: list[Any], names: tuple[str, ...], path: str) -> Any:
        """What each of *rows* is, which are all of one kind."""
        if all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            return {
                _escaped(name): self._read_rows(column, (*names, name), path + _step(name))
                for name, column in columns.items()
            }
        if self._shape_of(rows) is not None and all(row is not None for row in rows):
            return f"${self._tensor(rows, names, path)}"
        if any(row != rows[0] for row in rows):
            self.levelled.append(path)
        return _escaped(rows[0])

    def _tensor(self, values: Any, names: tuple[str, ...], path: str) -> str:
        name = (names[-1] if names else "").lstrip("$") or self._only
        taken = {"id", "parameters", *self.tensors}
        if name in taken and len(names) > 1:
            name = "_".join(names).lstrip("$")
        if name in taken:
            name = f"{name}_{len(self.tensors)}"
        self.tensors[name] = values
        self.paths[name] = path
        return name


def _has_lists(document: Any) -> bool:
    if isinstance(document, dict):
        return any(map(_has_lists, document.values()))
    return isinstance(document, list)


def _step(name: str) -> str:
    """The member called *name* as it stands in a path."""
    return f".{name}" if name.isidentifier() else f"[{json.dumps(name)}]"


def _escaped(value: Any) -> Any:
    """*value* as it stands in a body: no text that begins with `$` is a reference."""
    if isinstance(value, dict):
        return {_escaped(name): _escaped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return f"${value}" if isinstance(value, str) and value.startswith("$") else value


class TemplateTrials(Trials):
    """The trials of a server that speaks no protocol, with a sample of what it takes at *path*."""

    def __init__(self, asker: Asker, model: str, report: Report, path: str, document: Any) -> None:
        super().__init__(asker, path, Model(model), report)
        self._sent = Guess(document, "input")
        self._came: Guess | None = None

    async def first(self) -> None:
        """See `Trials`. The sample is sent, as the template has it."""
        if not self._sent.tensors:
            raise RefusedError("the sample has no value that could be an input")
        described = self._sent.described()
        self.samples = tuple(
            Sample(name, described[name]["datatype"], shape_of(values) or (), tuple(flat(values)))
            for name, values in self._sent.tensors.items()
        )
        try:
            for each in self.samples:
                each.blob  # noqa: B018  raises for numbers that no datatype holds
        except UnreadableError as error:
            raise RefusedError(f"the sample has {error}") from None
        answer = await self.answer_to(self.samples)
        if not answer.is_good:
            question = ". Is it another --path?" if answer.status in (404, 405) else ""
            raise RefusedError(f"the sample was refused: {answer.words}{question}")
        text = answer.body.decode(errors="replace")
        self._report.ok(
            f"POST {self._path} with the sample: {text[:MAX_SHOWN]}{'...' if len(text) > MAX_SHOWN else ''}"
        )
        self._came = Guess(answer.json, "output", is_answer=True)
        if answer.json is None or not self._came.tensors:
            raise RefusedError("the answer to the sample is no JSON that has outputs in it")
        try:
            self.outputs = tuple(self.outputs_of(answer))
        except UnreadableError as error:
            raise RefusedError(f"the answer to the sample has {error}") from None

    def describe(self) -> None:
        """Set what was guessed."""
        assert self._came is not None, "`first` has had an answer"
        inputs, outputs = self._sent.described(), self._came.described()
        shown = ", ".join(f"{name} {each['datatype']}" for name, each in (inputs | outputs).items())
        self._report.problem(
            f"neither the sample nor its answer says datatypes. Guessed from their values: {shown}. Put under `models` "
            "the datatypes that the model takes and computes: clients must send the former, and get the latter"
        )
        if self._sent.levelled:
            self._report.problem(
                f"the rows of the sample differ at {', '.join(self._sent.levelled)} in values that no tensor can have: "
                "the template sends those of the first row in each"
            )
        self.caveat = ", if the datatypes that were guessed are right"
        self._report.set("dialect", "template", "it speaks no protocol: `models` says what it gets and what it answers")
        block = {
            "inputs": inputs,
            "outputs": outputs,
            "request": {"path": self._path, "body": self._sent.body},
            "answer": self._came.paths,
        }
        why = "what is sent, and where the outputs stand, as the sample shows it"
        comments = {"inputs": _GUESSED, "outputs": _GUESSED_OUTPUTS}
        self._report.set("models", {self._model.name: block}, why, comments=comments)

    def body_of(self, samples: Sequence[Sample]) -> Any:
        """See `Trials`."""
        return filled(self._sent.body, {each.name: each.nested for each in samples})

    def outputs_of(self, answer: Answer) -> list[Output]:
        """See `Trials`."""
        assert self._came is not None, "`first` has had an answer"
        found = []
        for name, described in self._came.described().items():
            values = _at(self._came.paths[name], answer.json)
            shape = shape_of(values, has_missing=True)
            if values is None or shape is None:
                raise UnreadableError(f"nothing at {self._came.paths[name]}")
            known = [described.get("missing") if value is None else value for value in flat(values)]
            found.append(Output(name, described["datatype"], shape, blob_of(described["datatype"], known)))
        return found


def filled(body: Any, values: Mapping[str, Any]) -> Any:
    """*body* with the *values* of its inputs."""
    if isinstance(body, list):
        return [filled(item, values) for item in body]
    if isinstance(body, dict) and list(body) == ["$each"]:
        used = [name for name in values if _is_in(name, body)]
        rows = zip(*(values[name] for name in used), strict=True)
        return [filled(body["$each"], dict(zip(used, row, strict=True))) for row in rows]
    if isinstance(body, dict):
        return {name.removeprefix("$"): filled(item, values) for name, item in body.items()}
    if isinstance(body, str) and body.startswith("$"):
        return body[1:] if body.startswith("$$") else values[body[1:]]
    return body


def _is_in(name: str, body: Any) -> bool:
    items = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return body == f"${name}" or any(_is_in(name, item) for item in items)


def _at(path: str, document: Any) -> Any:
    """What *path* leads to in *document*; None if nothing."""
    steps = steps_of(path)
    if None not in steps:
        return find(steps, document)
    rows = find(steps[: steps.index(None)], document)
    inside = steps[steps.index(None) + 1 :]
    return [find(inside, row) for row in rows] if isinstance(rows, list) else None
