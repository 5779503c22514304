"""Requests with other values than the sample's, straight to the server, and what their answers show.

Whether the server takes several rows, and in which inputs; which sizes it takes; whether it answers a row alone as in a
group, and in the rows' order. Not here: what is written into the file (`template`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.backend.connections import NoAnswerError
from gateway.codec.v2.error_bodies import WORD_MEMBERS
from gateway.doctor.answered import Answers, Found
from gateway.doctor.asking import TOO_MANY, Asker
from gateway.doctor.candidates import Candidates
from gateway.doctor.filling import MISSING, JsonPlace, filled_in, is_close, json_path_of, members_of
from gateway.doctor.member_names import (
    CLASS_MEMBERS,
    COUNTS,
    ERROR_MEMBERS,
    FAILED,
    MEASURES,
    STATES,
    SUCCEEDED,
    TIMES,
    is_id,
    snake,
)
from gateway.doctor.report import ProblemError
from gateway.doctor.tensors import Tensor, UnreadableError
from gateway.doctor.variation import as_floats, changed, grown, has_same_rows, row_at, stacked_rows, widened, with_rows

MAX_VARIED = 12
"""How many inputs are varied at most; others are named."""

MAX_ROWS = 4
"""How many rows requests have at least that try several, where the sample has fewer than two."""

OUTPUT = "output"
"""What the only output of a model is called that gives it no name."""


class TrialRequest(NamedTuple):
    """A request, straight to the server, and its answer."""

    what: str
    inputs: Mapping[str, Tensor]
    answer: Any
    """The JSON; `MISSING` if the request was refused."""
    words: str = ""
    """Why it was refused."""

    @property
    def is_answered(self) -> bool:
        """Whether the server took it."""
        return self.answer is not MISSING


AGAIN, GROUP, TURNED = "the same again", "a group of rows", "its rows in reverse"
FIRST, LAST = "its first row alone", "its last row alone"
"""What trials are called that others are compared with."""

FOUND_ANYWAY = tuple(f"$.{name}" for name in WORD_MEMBERS)
"""Where the gateway finds the reason of an error without `error` in the configuration."""

ALL, ONE, SINGLE = "all", "one", "single"
"""How rows are sent: all in one request, one in a list of one, or one that is not in a list."""


@dataclass
class Trials:
    """What is tried of a template, and found out so far."""

    asker: Asker
    path: str
    candidates: Candidates
    body: Any = None
    """As in `request`."""
    inputs: dict[str, Tensor] = field(default_factory=dict)
    """Those of the first request; where a request has one row, without the dimension of rows."""
    mode: str = SINGLE
    of_rows: list[str] = field(default_factory=list)
    """The inputs whose first dimension is that of rows."""
    most_rows: int = 0
    """How many rows a request may have; 0: any number was taken."""
    variable: set[tuple[str, int]] = field(default_factory=set)
    """Dimensions of inputs, beside rows, for which the server takes other sizes."""
    proved: set[str] = field(default_factory=set)
    """Inputs of which it refuses other sizes, or ignores what is more."""
    done: list[TrialRequest] = field(default_factory=list)
    """All trials; the first one is that of the sample."""
    varied: dict[str, int] = field(default_factory=dict)
    """By input the index of the trial with other values; -1 if the server took none."""
    success: dict[str, Any] = field(default_factory=dict)
    """What answers to requests that failed have otherwise, by path."""
    reason: str = ""
    """The path at which answers to requests that failed say why; empty where every server has that, or if none did."""
    notes: list[str] = field(default_factory=list)
    floats: list[str] = field(default_factory=list)
    """Inputs with integers in the sample that the server takes for numbers with a point."""

    async def run(self) -> None:
        """Try everything. Raises `UnreadableError` for answers with values that no datatype holds."""
        fullest: dict[str, Tensor] = max(self.candidates.samples, key=len)
        self.body, self.inputs = self.candidates.body, dict(fullest)
        first = await self.ask("the sample", self.inputs)
        if not first.is_answered:
            self.notes.append(f"the sample as the template writes it was refused: {first.words}")
            return
        await self.ask(AGAIN, self.inputs)
        await self._find_rows()
        if not self.done[0].is_answered:
            return
        await self._find_floats()
        await self._vary_values()
        await self._vary_sizes()
        await self._try_samples()
        if self.mode == ALL:
            await self._vary_rows()

    @property
    def answered(self) -> list[TrialRequest]:
        """Those trials that the server took."""
        return [trial for trial in self.done if trial.is_answered]

    async def ask(self, what: str, inputs: Mapping[str, Tensor], *, keep: bool = True) -> TrialRequest:
        """Send *inputs*, and keep the trial, unless only *keep* says otherwise."""
        body = json.dumps(filled_in(self.body, inputs)).encode()
        try:
            answer = await self.asker.post(self.path, body)
        except NoAnswerError as error:
            trial = TrialRequest(what, inputs, MISSING, str(error))
        else:
            if answer.status == TOO_MANY:
                raise ProblemError(
                    f"after {len(self.done)} tries the server refuses more requests ({answer.words}), so what it takes "
                    "cannot be found out: lift its limit for doctor, which sends about 60, or try again later"
                )
            document = answer.json if answer.is_good else MISSING
            trial = TrialRequest(what, inputs, document, "" if answer.is_good else answer.words)
        if trial.is_answered and self.done and (state := self._failed(trial.answer)):
            trial = TrialRequest(what, inputs, MISSING, state)
        if keep:
            self.done.append(trial)
        return trial

    def _failed(self, answer: Any) -> str:
        """Why *answer* is that of a request that failed, though its status is that of success; empty if it is not."""
        if not isinstance(answer, dict) or not isinstance(self.done[0].answer, dict):
            return ""
        good, other = members_of(self.done[0].answer), members_of(answer)
        lost = {at for at, value in good.items() if not _is_empty(value) and _is_empty(other.get(at))}
        for at in sorted(_states_in(good) & other.keys(), key=json_path_of):
            was, value = good[at], other[at]
            if value != was and lost - {at}:
                if was is not None:
                    self.success[json_path_of(at)] = was
                self.reason = self.reason or _reason_in(good, other)
                return f"`{at[-1]}` is {json.dumps(value)[:100]}, where it was {json.dumps(was)[:100]}"
        added = sorted(_errors_in(other) - good.keys(), key=json_path_of)
        return f"`{added[0][-1]}` is {json.dumps(other[added[0]])[:100]}" if added and lost else ""

    async def _first_answered(self, what: str, requests: Iterable[Mapping[str, Tensor]]) -> TrialRequest:
        """The first of *requests* that the server takes, which is kept, or else the last."""
        trial = TrialRequest(what, {}, MISSING, "there are no other values")
        for inputs in requests:
            trial = await self.ask(what, inputs, keep=False)
            if trial.is_answered:
                break
        self.done.append(trial)
        return trial

    # Does it take rows?

    def _candidates_for_rows(self) -> list[str]:
        """The inputs that may have the rows of a request in their first dimension."""
        samples, at = self.candidates.samples, self.candidates.rows_at
        lists = [name for name, tensor in self.inputs.items() if tensor.shape]
        differing = [
            name for name in lists if len({sample[name].shape[:1] for sample in samples if name in sample}) > 1
        ]
        first = next((name for name in lists if name in at), next(iter(differing or lists), None))
        if first is None:
            return []
        size = self.inputs[first].shape[0]
        return [name for name in differing or lists if self.inputs[name].shape[0] == size]

    def _grown(self, names: Sequence[str]) -> Iterable[Mapping[str, Tensor]]:
        n_rows = self.inputs[names[0]].shape[0]
        n_more = max(1, MAX_ROWS - 1 - n_rows)
        columns = {name: list(grown(self.inputs[name], n_more)) for name in names}
        yield {**self.inputs, **{name: column[0] for name, column in columns.items()}}
        is_text = {name: self.inputs[name].datatype == "BYTES" for name in names}
        if len(set(is_text.values())) > 1:  # texts are often one of a few that a server knows
            yield {**self.inputs, **{name: column[-is_text[name]] for name, column in columns.items()}}
        for index in range(1, max(map(len, columns.values()))):
            yield {**self.inputs, **{name: column[min(index, len(column) - 1)] for name, column in columns.items()}}

    async def _find_rows(self) -> None:
        """Find out in which inputs the server takes rows, and whether several in one request."""
        names = self._candidates_for_rows()
        if not names:
            return
        several = await self._first_answered("more rows", self._grown(names))
        if self._follows(several, names[0]):
            self.mode, self.of_rows = ALL, await self._independent(names)
            return
        if len(names) > 1 and await self._find_rows_in_one_of(names):
            return
        if self._is_whole(several, names[0]):
            self.mode, self.of_rows = ALL, await self._independent(names)
            return
        self.done.remove(several)
        if await self._is_of_one(names, several):
            await self._take_one(names, several)

    def _is_whole(self, several: TrialRequest, name: str) -> bool:
        """Whether *several* rows, in the input *name*, are read and answered as a whole, not the first alone."""
        if not several.is_answered or not self.differs(several, self.done[0]):
            return False
        is_one = self.inputs[name].shape[0] == 1  # whose answer may have another form than that to several
        return not is_one or bool(Answers([self.done[0].answer, several.answer], OUTPUT).found)

    async def _find_rows_in_one_of(self, names: list[str]) -> bool:
        """Whether one of *names* alone has the rows: others were as long by chance."""
        for name in names:
            if name not in self.candidates.rows_at:
                if self._follows(await self._first_answered("more rows", self._grown([name])), name):
                    self.mode, self.of_rows = ALL, [name]
                    return True
                self.done.pop()
        return False

    async def _is_of_one(self, names: list[str], several: TrialRequest) -> bool:
        """Whether the inputs called *names* are lists of one row; *several* is a trial with more that failed.

        A list of numbers is a row itself, and so is an image. If fewer rows than the sample's are answered as such, the
        sample has the most that the server takes.
        """
        n_rows = self.inputs[names[0]].shape[0]
        has_records = any(name in self.candidates.rows_at for name in names)
        if n_rows == 1:
            return True
        if not has_records and all(len(self.inputs[name].shape) == 1 for name in names):
            return False
        alone = await self.ask("one row", self._rows(names, [0]), keep=False)
        if not several.is_answered and self._follows(alone, names[0]):
            self.mode, self.of_rows, self.most_rows = ALL, names, n_rows
            return False
        return alone.is_answered and is_close(alone.answer, self.done[0].answer)

    async def _independent(self, names: list[str]) -> list[str]:
        """Those of *names* that have the rows: others were as long by chance, and may be of another length."""
        if any(name in self.candidates.rows_at for name in names) or len(names) == 1:
            return names
        followed = []
        for name in names:
            trial = await self._first_answered(f"more values in {name}", self._grown([name]))
            if self._follows(trial, name):
                followed.append(name)
            elif trial.is_answered:
                self.variable.add((name, 0))
            else:
                self.done.pop()
        self.variable |= {(name, 0) for name in followed[1:]}
        free = {name for name, _ in self.variable}
        return followed[:1] or [name for name in names if name not in free] or names

    def _follows(self, trial: TrialRequest, name: str) -> bool:
        """Whether the answers have as many rows as the input *name*, in *trial* as in the first one."""
        if not trial.is_answered:
            return False
        sizes = tuple(each.inputs[name].shape[0] for each in (self.done[0], trial))
        try:
            found = Answers([self.done[0].answer, trial.answer], OUTPUT).found.values()
        except UnreadableError:
            return False
        return any(tuple(shape[:1] for shape in each.shapes) == tuple((size,) for size in sizes) for each in found)

    async def _take_one(self, names: list[str], several: TrialRequest) -> None:
        """Send one row in each request, which is in a list of one."""
        words = f"refused: {several.words}" if not several.is_answered else "answered as one"
        self.notes.append(f"it takes one row in each request: several were {words}. `rows: 1` sends one for each row")
        self.body = _of_one(self.body, set(names))
        self.inputs = {name: row_at(each, 0) if name in names else each for name, each in self.inputs.items()}
        self.mode, self.of_rows = ONE, names
        self.done.clear()
        await self.ask("the sample's first row", self.inputs)
        await self.ask(AGAIN, self.inputs)

    def _rows(self, names: Sequence[str], indexes: Sequence[int], of: Mapping[str, Tensor] | None = None) -> Any:
        inputs = self.inputs if of is None else of
        return {name: with_rows(each, indexes) if name in names else each for name, each in inputs.items()}

    # What moves what?

    async def _find_floats(self) -> None:
        """Find out which integers of the sample are numbers with a point for the server."""
        for name, tensor in list(self.inputs.items())[:MAX_VARIED]:
            if tensor.datatype not in ("INT64", "UINT64") or is_id(name):
                continue
            with_floats = {**self.inputs, name: as_floats(tensor, 0.25)}
            trial = await self.ask(f"numbers with a point for {name}", with_floats, keep=False)
            if trial.is_answered and self.differs(trial, self.done[0]):
                as_they_are = {**self.inputs, name: as_floats(tensor)}
                again = await self.ask("the sample", as_they_are, keep=False)
                if again.is_answered and not self.differs(again, self.done[0]):  # "30" and "30.0" are two keys
                    self.floats.append(name)
                    self.inputs = as_they_are
                    self.done = [self._as_floats(each, name) for each in self.done]
                    self.done[0] = again

    @staticmethod
    def _as_floats(trial: TrialRequest, name: str) -> TrialRequest:
        tensor = trial.inputs.get(name)
        if tensor is None or tensor.datatype == "FP64":
            return trial
        return trial._replace(inputs={**trial.inputs, name: as_floats(tensor)})

    def differs(self, one: TrialRequest, other: TrialRequest) -> bool:
        """Whether two answers differ in what may be an output, and is the same for the same request."""
        try:
            found = Answers([trial.answer for trial in (one, other, *self.done[:1], *self._again)], OUTPUT).found
        except UnreadableError:
            return False
        if not found:  # not even the form is the same
            return not is_close(one.answer, other.answer)
        return any(
            not is_close(each.values[0], each.values[1])
            for each in found.values()
            if is_close(each.values[2], each.values[-1]) and not is_beside(each)
        )

    @property
    def _again(self) -> list[TrialRequest]:
        return [trial for trial in self.done if trial.what == AGAIN and trial.is_answered]

    async def _vary_values(self) -> None:
        """Send other values for each input, the others as they are."""
        for name, tensor in self.inputs.items():
            if len(self.varied) == MAX_VARIED:
                self.notes.append(f"only {MAX_VARIED} of its {len(self.inputs)} inputs were varied")
                return
            others = changed(tensor)
            requests = ({**self.inputs, name: other} for other in others)
            trial = await self._first_answered(f"other values for {name}", requests)
            self.varied[name] = len(self.done) - 1 if trial.is_answered else -1
            if (other := next(others, None)) is not None:
                await self.ask(f"again other values for {name}", {**self.inputs, name: other})

    async def _vary_sizes(self) -> None:
        """Send one value more in the last dimension of each input, which may not be that of rows."""
        for name, tensor in self.inputs.items():
            axis = len(tensor.shape) - 1
            if axis < 0 or (self.mode == ALL and name in self.of_rows and not axis) or (name, axis) in self.variable:
                continue
            trial = await self.ask(f"more values in {name}", {**self.inputs, name: widened(tensor)}, keep=False)
            if trial.is_answered and self.differs(trial, self.done[0]):
                self.variable.add((name, axis))
                self.done.append(trial)
            else:
                self.proved.add(name)

    async def _try_samples(self) -> None:
        """Send the other samples."""
        for number, sample in enumerate(self.candidates.samples, 1):
            if not sample or len(self.candidates.samples) == 1:
                continue
            inputs = {name: as_floats(each) if name in self.floats else each for name, each in sample.items()}
            if self.mode == ONE:
                inputs = {name: row_at(each, 0) if name in self.of_rows else each for name, each in inputs.items()}
            await self.ask(f"sample {number}", inputs)
            for name, tensor in inputs.items():
                mine = self.inputs[name].shape if name in self.inputs else tensor.shape
                is_row = self.mode == ALL and name in self.of_rows
                axes = range(1 if is_row else 0, len(mine))
                self.variable |= {(name, axis) for axis in axes if mine[axis] != tensor.shape[axis]}

    # Rows in another order, and alone

    async def _vary_rows(self) -> None:
        """Send rows in reverse, and the first and the last alone."""
        n_rows = max((self._n_rows(trial), index) for index, trial in enumerate(self.done) if trial.is_answered)
        group = self.done[n_rows[1]].inputs
        count = n_rows[0]
        several = self._of_other_rows(group)
        if several is not None and (await self.ask(GROUP, several)).is_answered:
            group, count = several, self._n_rows(self.done[-1])
        else:
            await self.ask(GROUP, group)
        await self.ask(TURNED, self._rows(self.of_rows, range(count - 1, -1, -1), group))
        await self.ask(FIRST, self._rows(self.of_rows, [0], group))
        if count > 1:
            await self.ask(LAST, self._rows(self.of_rows, [count - 1], group))

    def _of_other_rows(self, group: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        """*group* with the first rows of varied requests as well, if its own are all the same; None if it needs none.

        The order of rows that are the same cannot be seen.
        """
        names = [name for name in self.of_rows if name in group]
        if not all(has_same_rows(group[name]) for name in names):
            return None
        trials = [self.done[index] for name, index in self.varied.items() if index >= 0 and name in names]
        more = {name: [with_rows(trial.inputs[name], [0]) for trial in trials] for name in names}
        if not trials or any(each.shape[1:] != group[name].shape[1:] for name in names for each in more[name]):
            return None
        return {**group, **{name: stacked_rows([group[name], *more[name]]) for name in names}}

    def _n_rows(self, trial: TrialRequest) -> int:
        return next((trial.inputs[name].shape[0] for name in self.of_rows if name in trial.inputs), 1)

    @property
    def per_row(self) -> set[str]:
        """The inputs of which each request has one row, where it has one."""
        if self.mode == ALL:
            return set()
        known = {**self.candidates.inputs, **self.inputs}
        return {name for name, each in known.items() if self.mode == SINGLE or name in self.of_rows or each.shape}

    def n_rows_of(self, trial: TrialRequest) -> int:
        """How many rows a request had."""
        return self._n_rows(trial) if self.mode == ALL else 1

    def read(self) -> Answers:
        """What the answers of all trials that were taken have in common. Raises `UnreadableError`."""
        return Answers([trial.answer for trial in self.answered], OUTPUT)

    def follows_rows(self, found: Found) -> bool:
        """Whether the first dimension of *found* is that of rows, in all answers."""
        sizes = [self.n_rows_of(trial) for trial in self.answered]
        return self.mode == ALL and all(s[:1] == (n,) for s, n in zip(found.shapes, sizes, strict=True))


def is_beside(found: Found) -> bool:
    """Whether the name of *found* says that it counts, or that it is the time, the state or the form of an answer."""
    name = ["", *(snake(step) for step in found.place if isinstance(step, str))][-1]
    return name in TIMES | CLASS_MEMBERS | STATES or is_count(found)


def is_count(found: Found, *, is_unstable: bool = False) -> bool:
    """Whether *found* is in an object that counts what the request took."""
    groups = {snake(step) for step in found.place[:-1] if isinstance(step, str)} & COUNTS
    return bool(groups) and (found.datatype != "FP64" or is_unstable or not groups <= MEASURES)


def _states_in(members: Mapping[JsonPlace, Any]) -> set[JsonPlace]:
    """The places of those *members* that say whether a request succeeded."""
    return {
        at for at, value in members.items() if snake(str(at[-1])) in STATES and not isinstance(value, (list, float))
    }


def _errors_in(members: Mapping[JsonPlace, Any]) -> set[JsonPlace]:
    """The places of those *members* that say why a request failed."""
    return {at for at, value in members.items() if snake(str(at[-1])) in ERROR_MEMBERS and not _is_empty(value)}


def _reason_in(good: Mapping[JsonPlace, Any], other: Mapping[JsonPlace, Any]) -> str:
    """The path of the text that *other*, the answer to a request that failed, has in place of the *good* one's values.

    Empty if there are several whose names do not tell, or if it is where the gateway looks in any case.
    """
    texts = [
        at
        for at, value in other.items()
        if isinstance(value, str) and value and _is_empty(good.get(at)) and all(isinstance(step, str) for step in at)
    ]
    named = [at for at in texts if snake(str(at[-1])) in ERROR_MEMBERS] or (texts if len(texts) == 1 else [])
    path = json_path_of(min(named, key=json_path_of)) if named else ""
    return "" if path in FOUND_ANYWAY else path


def says_failed(document: Any) -> str:
    """The member at the top of an answer which says that the request failed, such as `ok: false`; empty without one."""
    for name, value in document.items() if isinstance(document, dict) else ():
        if (snake(name) in SUCCEEDED and value is False) or (snake(name) in ("status", "state") and value in FAILED):
            return f"`{name}: {json.dumps(value)}`"
    return ""


def _is_empty(value: Any) -> bool:
    """Whether *value* says nothing. Zero and false do."""
    return value is None or (isinstance(value, (str, list, dict)) and not value)


def _of_one(body: Any, names: set[str]) -> Any:
    """*body* with a list of one row in place of each list of rows, which have *names* in them."""
    if isinstance(body, str):
        is_rows = body.startswith("$") and not body.startswith("$$") and body[1:] in names
        return [body] if is_rows else body
    if isinstance(body, list):
        return [_of_one(item, names) for item in body]
    if isinstance(body, dict):
        if "$each" in body:
            return [body["$each"]]
        return {name: _of_one(item, names) for name, item in body.items()}
    return body
