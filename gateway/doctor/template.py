"""The template of a server that speaks no protocol, from samples of what it takes: it is tried, reported and written.

Nothing is guessed in silence. What clients decide and what is constant (`candidates`), what the server makes of other
values (`trials`), and which members of its answers are outputs is said in findings and in comments of the file.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gateway.backend.questions import TEMPLATE, Answer
from gateway.doctor.answered import PYTHON_CAN, Answers, Found
from gateway.doctor.asking import Asker
from gateway.doctor.candidates import Candidates, Constant
from gateway.doctor.choosing import Choice, choose
from gateway.doctor.filling import JsonPlace, escaped, filled_in, json_path_of
from gateway.doctor.model import Straight, Tried, answer_to
from gateway.doctor.report import ProblemError, Report, as_yaml
from gateway.doctor.tensors import Tensor, UnreadableError, flat, likely_datatype, shape_of, tensor_of
from gateway.doctor.trials import ALL, ONE, SINGLE, TrialRequest, Trials, says_failed
from gateway.doctor.variation import stacked

MAX_ANSWER_SHOWN = 300
"""How many characters of the answer to a sample are shown."""

MAX_VALUE = 60
"""How many characters of a constant are shown."""

ROWS = "n"
"""What the dimension of rows is called."""


async def try_sample(asker: Asker, path: str, documents: Sequence[Any], model: str, report: Report) -> Straight:
    """Send *documents* and others like them to *path*, and set the template that fits all answers.

    Raises `ProblemError`.
    """
    candidates = _candidates(documents)
    for number, document in enumerate(documents, 1):
        which = "the sample" if len(documents) == 1 else f"sample {number}"
        answer = await answer_to(asker, path, json.dumps(document).encode())
        if not answer.is_good:
            raise ProblemError(f"{which} was refused: {answer.words}{_hint_at(answer)}")
        text = answer.body.decode(errors="replace")
        shown = f"{text[:MAX_ANSWER_SHOWN]}{'...' if len(text) > MAX_ANSWER_SHOWN else ''}"
        report.ok(f"POST {path} with {which}: {shown}")
        if answer.json is None and answer.body.strip() != b"null":
            kind = answer.headers.get("content-type", "of no content type")
            raise ProblemError(f"the answer to {which} is not JSON ({kind}), which is all that the gateway can read")
        if failed := says_failed(answer.json):
            report.problem(
                f"the answer to {which} has {failed}, so the server may have refused it: give a sample that it takes. "
                "Else the file below takes its failures for answers, and its answers for failures"
            )
    trials = Trials(asker, path, candidates)
    try:
        await trials.run()
        answers = trials.read()
        if not trials.answered:
            raise ProblemError("; ".join(trials.notes))
        if not answers.found:
            why = "; ".join(f"{left.path}: {left.why}" for left in answers.left)
            raise ProblemError(f"the answer to the sample is no JSON that has outputs in it: {why}")
        choice = choose(trials, answers)
    except UnreadableError as error:
        raise ProblemError(f"the answer to the sample has {error}") from None
    return _Writing(path, model, trials, answers, choice, report).written()


def _hint_at(answer: Answer) -> str:
    """Where a redirect leads, as the gateway follows none; empty for other answers."""
    location = answer.headers.get("location", "")
    return f", a redirect to {location}: give that path with --path" if answer.status // 100 == 3 and location else ""


def _candidates(documents: Sequence[Any]) -> Candidates:
    """The inputs and constants of *documents*. Raises `ProblemError` if nothing can be an input."""
    try:
        found = Candidates(documents, "input")
    except UnreadableError as error:
        raise ProblemError(f"the sample has {error}") from None
    if found.differing:
        where = ", ".join(found.differing)
        what = "samples" if len(documents) > 1 else "rows of the sample"
        raise ProblemError(
            f"the {what} differ at {where} in values that no tensor can have: give a sample with one row, or one for "
            f"which this is the same; {PYTHON_CAN}"
        )
    if not found.places:
        reasons = [f"{json_path_of(each.place)}: {each.why}" for each in found.constants if each.why]
        why = f" ({'; '.join(reasons)}; {PYTHON_CAN})" if reasons else ""
        raise ProblemError(f"the sample has no value that could be an input{why}")
    return found


class _Row(NamedTuple):
    """A trial as a request to the gateway: inputs and the outputs that are right."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    n_rows: int


class _Writing:
    """The findings about one template, and what is set for it."""

    def __init__(self, path: str, model: str, trials: Trials, answers: Answers, choice: Choice, report: Report) -> None:
        self._path = path
        self._model = model
        self._trials = trials
        self._answers = answers
        self._choice = choice
        self._report = report
        self._remarks: list[str] = []
        self._lengths: dict[JsonPlace, str] = {}  # names of dimensions, by the list whose length they are

    def written(self) -> Straight:
        """Report what was found, set the keys, and return the first inference with all others that were answered."""
        self._tell_inputs()
        self._tell_outputs()
        self._tell_rows()
        self._tell_constants()
        self._set()
        trials, tried = self._trials, self._tried()
        body = json.dumps(self._document()).encode()
        first = tried[0]
        return Straight(
            TEMPLATE, self._path, body, first.inputs, first.outputs, "", tuple(tried), self._choice.unstable,
            tuple(_shown(each) for each in trials.candidates.constants if each.value is not None),
        )  # fmt: skip

    def _document(self) -> Any:
        return filled_in(self._trials.body, self._trials.done[0].inputs)

    # findings

    def _note(self, words: str) -> None:
        self._report.note(words)
        self._remarks.append(words)

    def _tell_inputs(self) -> None:
        trials = self._trials
        for words in trials.candidates.obvious.values():
            self._note(f"{words}: it is made an input")
        for words in trials.notes:
            self._note(words)
        self._tell_moves()
        for name, tensor in trials.inputs.items():
            if name in trials.floats:
                self._note(f"`{name}` has integers in the sample, and the server takes numbers with a point: FP64")
            elif tensor.datatype == "INT64":
                self._note(f"`{name}` is INT64, as the sample has integers: FP64 if its numbers may have a point")

    def _tell_moves(self) -> None:
        """Tell which inputs move which outputs."""
        trials = self._trials
        for name, index in trials.varied.items():
            if index < 0:
                refused = [trial.words for trial in trials.done if trial.what == f"other values for {name}"]
                self._note(f"`{name}` was not varied: no other value was taken ({refused[-1] if refused else ''})")
                continue
            moved = [output for output in self._choice.outputs if self._moves(index, output)]
            if moved:
                self._report.ok(f"other values of `{name}` move {', '.join(moved)}")
            elif self._is_stable:
                tried = _value(trials.done[index].inputs[name].nested)
                self._note(
                    f"`{name}` moves no output, as far as {tried} shows: it may be none of the model's inputs, or the "
                    "model ignores it"
                )
        if not self._is_stable:
            self._note("which inputs move its outputs was not found out: all differ for the same request")
        elif trials.varied and not self._moves_anything():
            words = (
                "no values that were tried move any output, so every client would get the same answer. Does a constant "
                "of the body decide, such as the id of a request that the server has answered before?"
            )
            self._report.problem(words)
            self._remarks.append(words)

    @property
    def _is_stable(self) -> bool:
        """Whether an output is the same for the same request."""
        return not self._choice.outputs.keys() <= self._choice.unstable

    def _moves_anything(self) -> bool:
        """Whether an answer to other values than the first request's is another one."""
        outputs = [found for name, found in self._choice.outputs.items() if name not in self._choice.unstable]
        return any(value != found.values[0] for found in outputs for value in found.values)

    def _moves(self, index: int, output: str) -> bool:
        """Whether *output* is another one in the trial at *index* than in the first."""
        trials = self._trials
        found = self._choice.outputs[output]
        at = trials.answered.index(trials.done[index])
        return output not in self._choice.unstable and bool(found.values[at] != found.values[0])

    def _tell_outputs(self) -> None:
        for left in (*self._choice.left, *self._answers.left):
            self._note(f"{left.path} is no output: {left.why}")
        for name in sorted(self._choice.unstable & self._choice.outputs.keys()):
            self._note(f"output `{name}` differs for the same request: its values could not be compared")
        for name, found in self._choice.outputs.items():
            if all(value == found.values[0] for value in found.values) and len(found.values) > 1:
                self._note(f"output `{name}` was the same in all {len(found.values)} tries")
            if found.is_text_of_numbers:
                numbers = {"datatype": "FP64", "shape": self._output_shape(found), "encoding": "text"}
                words = f"output `{name}` is texts that are numbers. To give clients the numbers:"
                self._ask(words, ("in `outputs`", {name: numbers}))
            if found.n_floats:
                shape = [*self._output_shape(found), found.n_floats]
                numbers = {"datatype": "FP32", "shape": shape, "encoding": "base64"}
                words = f"output `{name}` looks like FP32 in base64. To give clients the numbers:"
                self._ask(words, ("in `outputs`", {name: numbers}))
        for path, value in self._choice.states.items():
            if path in self._trials.success:  # which is written
                continue
            words = f"{path} was {json.dumps(value)} in all tries. If it says that a request succeeded, refuse others:"
            self._ask(words, ("beside `answer`", {"success": {path: value}}))

    def _tell_rows(self) -> None:
        choice, mode = self._choice, self._trials.mode
        if mode != ALL:
            if self._has_rows_of_own:
                self._report.ok("each row is a request of its own (`rows: 1`)")
            else:
                self._note("it takes one instance in a request: answers of several sizes cannot be put together")
            return
        self._report.ok(f"it takes several rows in one request, in {', '.join(self._trials.of_rows)}")
        if choice.order is not None:
            self._note(
                f"it answers rows in an order of its own, and {choice.order.path} has the number of each: `order` puts "
                "the outputs into the order of the request"
            )
        for words in choice.problems:
            self._report.problem(words)
            self._remarks.append(words)
        for words in choice.notes:
            self._note(words)
        if not choice.problems and choice.order is None and not choice.notes:
            self._report.ok("rows in reverse, and rows alone, get the same answers as in a group, in the rows' order")

    def _tell_constants(self) -> None:
        for place, names in self._trials.candidates.keyed.items():
            words = (
                f"the members of {json_path_of(place)} are called {_value(names)} in every request. If clients decide "
                f"these names, {PYTHON_CAN}"
            )
            self._report.question(words)
            self._remarks.append(f"QUESTION: {words}")
        for constant in self._trials.candidates.constants:
            where = json_path_of(constant.place)
            if constant.why or not constant.is_candidate:
                why = f" ({constant.why})" if constant.why else ""
                self._note(f"{_shown(constant)} is the same in every request{why}")
                continue
            name = self._name(constant)
            body = _with(self._trials.body, constant.place, f"${name}")
            self._ask(
                f"{where}: {_value(constant.value)} is the same in every request as this file stands. If clients "
                "decide it, make it an input:",
                ("in `inputs`", {name: self._declared(constant.value)}),
                ("in `request`", {"body": body}),
            )

    def _ask(self, words: str, *lines: tuple[str, dict[str, Any]]) -> None:
        """Print a question, with the *lines* that answer it: where in the file each stands, and its key and value."""
        shown = [(where, as_yaml(line)[1:-1]) for where, line in lines]
        self._report.question(f"{words} {'; '.join(f'{where} `{line}`' for where, line in shown)}")
        self._remarks += [f"QUESTION: {words}", *(f"    {where}:  {line}" for where, line in shown)]

    def _name(self, constant: Constant) -> str:
        names = [step.lstrip("$") for step in constant.place if isinstance(step, str)]
        taken = {*self._trials.inputs, "id", "parameters", "model", "version", "row", ""}
        choices = (names[-1] if names else "", "_".join(names), f"{'_'.join(names)}_input")
        return next(each for each in (*choices, "another_input") if each not in taken)

    def _declared(self, value: Any) -> dict[str, Any]:
        shape = list(shape_of(value) or ())
        is_per_row = self._trials.mode == SINGLE and self._has_rows_of_own
        return {"datatype": likely_datatype(flat(value)), "shape": [ROWS, *shape] if is_per_row else shape}

    # what is set

    def _set(self) -> None:
        """Set `dialect` and `models`, with all that was found out as comments."""
        report, block = self._report, self._block()
        sides = (*block["inputs"].items(), *block["outputs"].items())
        shown = ", ".join(f"{name} {each['datatype']}" for name, each in sides)
        n_tries = f"{len(self._trials.answered)} requests"
        report.problem(
            f"the server does not say what the model's inputs and outputs are. Guessed from {n_tries}: {shown}. Put "
            "the names, datatypes and shapes that the model has under `models`: clients have to send them, and get them"
        )
        report.set("dialect", TEMPLATE, "it speaks no protocol: `models` says what it gets and what it answers")
        why = (
            f"GUESSED from {n_tries}: put the names, datatypes and shapes that the model has. Numbers with a point are "
            "FP64;\na size that is no name was the same in all tries, or the server refused others"
        )
        report.set("models", {self._model: block}, why)
        if any(tensor.datatype == "FP64" and None in tensor.values for tensor in self._trials.inputs.values()):
            report.advise("nonfinite", "as_null", "the sample has null among numbers, which is NaN for clients")
        if self._remarks:
            report.remarks["models"] = ["What was found out about it, and what only you can know:"]
            report.remarks["models"] += [each if each.startswith(" ") else f"- {each}" for each in self._remarks]

    def _block(self) -> dict[str, Any]:
        """The block of the model in `models`."""
        trials, choice = self._trials, self._choice
        request: dict[str, Any] = {"path": self._path, "body": trials.body}
        if self._has_rows_of_own or trials.most_rows:
            request["rows"] = trials.most_rows or 1
        block: dict[str, Any] = {
            "inputs": {name: self._input(name, tensor) for name, tensor in trials.candidates.inputs.items()},
            "outputs": {
                name: {"datatype": found.datatype, "shape": self._output_shape(found)}
                for name, found in choice.outputs.items()
            },
            "request": request,
            "answer": {name: found.path for name, found in choice.outputs.items()},
        }
        if choice.order is not None:
            block["order"] = choice.order.path
        if trials.success:
            block["success"] = trials.success
            paths = ", ".join(trials.success)
            self._note(f"answers to requests that failed have another {paths}: `success` refuses them")
        if trials.reason:
            block["error"] = trials.reason
            self._note(f"answers to requests that failed say why at {trials.reason}: `error`")
        return block

    def _input(self, name: str, sample: Tensor) -> dict[str, Any]:
        trials = self._trials
        tensor = trials.inputs.get(name, sample)
        sizes: list[Any] = [-1 if (name, axis) in trials.variable else each for axis, each in enumerate(tensor.shape)]
        if trials.mode == ALL and name in trials.of_rows:
            sizes[0] = ROWS
        elif name in self._per_row:
            sizes = [ROWS, *sizes]
        optional = {"optional": True} if name in trials.candidates.optional else {}
        return {"datatype": tensor.datatype, "shape": sizes, **optional}

    def _output_shape(self, found: Found) -> list[Any]:
        sizes = self._sizes(found)
        if self._has_rows_of_own:
            return [ROWS, *(sizes[1:] if _is_joined(found) else sizes)]
        return [ROWS, *sizes[1:]] if self._trials.follows_rows(found) else sizes

    def _sizes(self, found: Found) -> list[Any]:
        """The dimensions of *found*: a number where all tries agree, but for lists of objects, which may be longer.

        What stands in the same list of objects has a name in common, if its length was seen to differ.
        """
        sizes: list[Any] = []
        lists = [index for index, step in enumerate(found.place) if step is None]
        for axis, each in enumerate(zip(*found.shapes, strict=True)):
            is_list = axis < len(lists)
            if len(set(each)) == 1 and not (is_list and each[0] > 1):
                sizes.append(each[0])
            elif is_list and len(set(each)) > 1:
                place = found.place[: lists[axis]]
                self._lengths.setdefault(place, "m" if not self._lengths else f"m{len(self._lengths) + 1}")
                sizes.append(self._lengths[place])
            else:
                sizes.append(-1)
        return sizes

    @property
    def _per_row(self) -> set[str]:
        """The inputs of which each request has one row."""
        return self._trials.per_row if self._has_rows_of_own else set()

    @property
    def _has_rows_of_own(self) -> bool:
        """Whether each row is a request of its own, whose answers can be put together."""
        mode, outputs = self._trials.mode, self._choice.outputs.values()
        return mode == ONE or (mode == SINGLE and all(len(set(found.shapes)) == 1 for found in outputs))

    # requests to the gateway

    def _tried(self) -> list[Tried]:
        """The trials that were answered, as requests to the gateway; all rows of their own together as one more."""
        trials = self._trials
        rows = [self._row(index, trial) for index, trial in enumerate(trials.answered)]
        if self._has_rows_of_own and len(together := self._together(rows)) > 1:
            names = self._per_row
            first = together[0]
            joined = {
                name: stacked([each.inputs[name] for each in together]) if name in names else tensor
                for name, tensor in first.inputs.items()
            }
            outputs = {name: stacked([each.outputs[name] for each in together]) for name in first.outputs}
            rows.append(_Row(_flattened(joined, names), _flattened(outputs, set(outputs)), len(together)))
        return [Tried(tuple(row.inputs.values()), tuple(row.outputs.values()), row.n_rows) for row in rows]

    def _row(self, index: int, trial: TrialRequest) -> _Row:
        trials = self._trials
        inputs = {name: stacked([each]) if name in self._per_row else each for name, each in trial.inputs.items()}
        outputs = {}
        for name, found in self._choice.outputs.items():
            value = self._choice.in_order(found, index)
            if self._has_rows_of_own and not _is_joined(found):
                value = [value]
            outputs[name] = tensor_of(name, found.datatype, value)
        return _Row(inputs, outputs, trials.n_rows_of(trial))

    def _together(self, rows: list[_Row]) -> list[_Row]:
        """Those of *rows* that one request may have: of the same shapes, and with the same in what is not per row."""
        first, names = rows[0], self._per_row

        def fits(row: _Row) -> bool:
            has_shapes = _shapes(row.inputs) == _shapes(first.inputs) and _shapes(row.outputs) == _shapes(first.outputs)
            return has_shapes and all(
                row.inputs[name] == each for name, each in first.inputs.items() if name not in names
            )

        return [row for row in rows if fits(row)]


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _flattened(tensors: dict[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    """*tensors* with the two first dimensions of those in *names*, rows of one row, as one."""
    return {
        name: replace(each, shape=(each.shape[0] * each.shape[1], *each.shape[2:])) if name in names else each
        for name, each in tensors.items()
    }


def _is_joined(found: Found) -> bool:
    """Whether a request of one row is answered with a list of one row."""
    return all(shape[:1] == (1,) for shape in found.shapes)


def _with(body: Any, place: JsonPlace, text: str) -> Any:
    """*body* with *text* at *place*."""
    if not place:
        return text
    step, *inside = place
    if step is None:
        if isinstance(body, dict):
            return {"$each": _with(body["$each"], tuple(inside), text)}
        return [_with(item, tuple(inside), text) for item in body]
    if isinstance(body, list):
        return [_with(item, tuple(inside), text) if index == step else item for index, item in enumerate(body)]
    key = escaped(step)
    return {name: _with(item, tuple(inside), text) if name == key else item for name, item in body.items()}


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"{text[:MAX_VALUE]}..." if len(text) > MAX_VALUE else text


def _shown(constant: Constant) -> str:
    return f"{json_path_of(constant.place)}: {_value(constant.value)}"
