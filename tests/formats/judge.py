"""Judges what the gateway makes of a format: with the file that `doctor` writes, or with one written by hand.

New values are sent through the gateway, and each output is compared with what the server answers to the JSON that a
native client would have sent. A value that differs, or that clients cannot decide or do not get, is `silent` unless the
doctor has named it.
"""

import asyncio
import json
import re
import tempfile
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from gateway.errors import ConfigError
from tests.conftest import Client, running
from tests.formats.prescription import CRASHED, Prescription, by_hand, examined
from tests.formats.stand_in import Draw, Format, RefusalError
from tests.formats.templates import (
    Bound,
    Step,
    bind,
    decoded,
    flat,
    has_missing,
    leaves,
    read,
    same_values,
    shape_of,
    shown,
    steps_of,
)
from tests.formats.v2_clients import Reply, Way, in_binary, in_json, over_grpc, tensors_of

RIGHT, ASKED, REFUSED, SILENT = "right", "asked", "refused", "SILENT"
VERDICTS = (RIGHT, ASKED, REFUSED, SILENT)
"""From the best to the worst. What is asked works but for what the doctor has named; what is refused works not at all
or not always, and says why."""

CAUSES = {
    "constant": "a value that clients decide is the sample's in every request",
    "lost": "a value of the answer becomes no output",
    "value": "an output differs from what the server answers",
    "rows": "two rows to a server of one instance are answered otherwise than two requests",
    "batch": "requests that are put together are answered otherwise than alone",
    "failure": "a failure that the server says in a 200 is answered as if it were a success",
    "dropped": "parameters of a request go nowhere",
    "crash": "the doctor crashed",
    "judge": "the judge could not go on",
}
"""What may be wrong without a word."""

BATCH = "batch: {max_size: 8, max_delay: 20ms}\n"
N_CLIENTS = 6
REQUESTS: tuple[tuple[int, Way], ...] = ((1, in_binary), (3, in_binary), (2, in_json), (2, over_grpc), (1, in_binary))
"""The requests with new values that are compared: how many rows, and how they are sent."""


@dataclass
class Judged:
    """What was found of one format."""

    format: Format
    verdict: str = RIGHT
    found: list[str] = field(default_factory=list)
    """What was not right, the verdict first."""
    causes: set[str] = field(default_factory=set)
    """The causes of what is silent, of `CAUSES`."""

    def add(self, verdict: str, words: str, cause: str = "") -> None:
        """Add a finding; the worst one is the verdict."""
        if verdict == SILENT:
            self.causes.add(cause)
        line = f"{verdict}: {words}"
        if line not in self.found:
            self.found.append(line)
        self.verdict = max(self.verdict, verdict, key=VERDICTS.index)


# The server


@asynccontextmanager
async def standing_in(form: Format) -> AsyncIterator[str]:
    """The URL of a server that has this format, and as little beside it as it can."""

    async def infer(request: web.Request) -> web.Response:
        try:
            body = await request.json()
        except ValueError:
            return answered({"error": "the body is not JSON"}, 400)
        try:
            return answered(form.answer(body), 200)
        except RefusalError as error:
            return answered(error.document, error.status)

    async def health(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    @web.middleware
    async def in_json(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except web.HTTPException as error:
            return answered({"error": f"{error.reason}: {request.path}"}, error.status)

    application = web.Application(middlewares=[in_json], client_max_size=64 * 1024**2)
    application.router.add_post(form.path, infer)
    if form.health and form.health != form.path:
        application.router.add_get(form.health, health)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def answered(document: Any, status: int) -> web.Response:
    """*document* as JSON, with numbers as Python prints them."""
    return web.json_response(document, status=status, dumps=lambda each: json.dumps(each, ensure_ascii=False))


class FileOf:
    """A file's model, and what it means for native requests."""

    def __init__(self, form: Format, written: Prescription) -> None:
        self.form = form
        self.block = written.model
        self.request = self.block.get("request", {})
        self.rows = self.request.get("rows")
        """How many rows a request to the server has at most; None: all."""
        self.answer: dict[str, list[Step]] = {
            name: steps_of(path) for name, path in self.block.get("answer", {}).items()
        }
        self.order = steps_of(self.block["order"]) if "order" in self.block else None

    def bodies(self, rows: list[Any], options: Any) -> list[Any]:
        """The bodies of native clients for these *rows*: one, or one for each row, or for so many."""
        size = self.rows or (len(rows) if self.form.many else 1)
        size = size if self.form.many else 1
        return list(plain([self.form.body(rows[at : at + size], options) for at in range(0, len(rows), size)]))

    def bound(self, bodies: Sequence[Any]) -> list[Bound]:
        """What each of *bodies* is for the template."""
        if self.form.adapter is not None and not self.request:
            return [Bound(self.form.adapter.inputs(bodies), settled=bodies[0])]
        return [bind(self.request["body"], body, self.block.get("inputs", {})) for body in bodies]

    def inputs(self, bound: Sequence[Bound]) -> dict[str, Any]:
        """The inputs of one request of V2 for all of *bound*. Raises ValueError for what is no tensor."""
        made: dict[str, Any] = {}
        for name in bound[0].inputs:
            values: list[Any] = [each.inputs.get(name) for each in bound]
            entry = self.block["inputs"].get(name, {})
            rank = len(entry["shape"]) if "shape" in entry else None
            values = [decoded(each, str(entry.get("encoding")), str(entry.get("datatype"))) for each in values]
            shape = shape_of(values[0])
            if shape is None or any(each is None for each in flat(values)):
                raise ValueError(f"{name}: {shown(values[0])} is no tensor")
            is_same = len(values) > 1 and all(each == values[0] for each in values)
            if (len(bound) == 1 and not self.rows) or (rank == len(shape) and (is_same or not shape)):
                made[name] = values[0]
            elif rank == len(shape):
                made[name] = [row for each in values for row in each]
            else:
                made[name] = values
        return made

    def expected(self, answers: Sequence[Any]) -> dict[str, list[Any]]:
        """The values of each output for these native *answers*: one, or that of each row's request."""
        if self.form.adapter is not None and not self.answer:
            return {name: [value] for name, value in self.form.adapter.outputs(answers).items()}
        return {name: [self._value(name, steps, each) for each in answers] for name, steps in self.answer.items()}

    def _value(self, name: str, steps: list[Step], answer: Any) -> Any:
        entry = self.block.get("outputs", {}).get(name, {})
        missing = {"missing": entry["missing"]} if "missing" in entry else {}
        value = read(steps, answer, **missing)
        places = None if self.order is None or None not in steps else read(self.order, answer)
        if isinstance(places, list) and isinstance(value, list) and len(places) == len(value):
            value = [value[places.index(row)] for row in sorted(places)]
        return decoded(value, str(entry.get("encoding")), str(entry.get("datatype")))

    def covered(self, answer: Any) -> set[tuple[Any, ...]]:
        """Where the values of *answer* are that become outputs, or their order."""
        paths = [*self.answer.values(), *([self.order] if self.order is not None else [])]
        return {leaf for steps in paths for leaf in leaves(steps, answer)}


def plain(document: Any) -> Any:
    """*document* as JSON has it."""
    return json.loads(json.dumps(document))


def is_same(values: list[Any], shape: tuple[int, ...], found: list[Any]) -> bool:
    """Whether an output is one of these: the value of the only answer, those of all stacked, or joined."""
    forms = [values[0]] if len(values) == 1 else []
    forms.append(values)
    if all(isinstance(each, list) for each in values):
        forms.append([row for each in values for row in each])
    return any(shape_of(form) == shape and same_values(form, found) for form in forms)


# The judge


class Trial:
    """One format, one file, and a gateway in front of its server."""

    def __init__(self, form: Format, url: str, written: Prescription, judged: Judged) -> None:
        self.form = form
        self.url = url
        self.written = written
        self.judged = judged
        self.file = FileOf(form, written)
        self.draw = Draw(form.name)
        self.told: set[tuple[str, str]] = set()
        """Causes and places that are among the findings already."""

    def fault(self, cause: str, place: str, words: str, *paths: str) -> None:
        """Something is not right, for one of `CAUSES`: silent unless the doctor has named one of *paths*."""
        if (cause, place) not in self.told:
            self.told.add((cause, place))
            self.judged.add(ASKED if self.written.names(*paths) else SILENT, words, cause)

    def _refused(self, words: str) -> None:
        """A request that the server takes got an error, which has words: the first of these is a finding."""
        if ("refused", "") not in self.told:
            self.told.add(("refused", ""))
            self.judged.add(REFUSED, words[:300])

    def settings(self, extra: str = "") -> str:
        """The backend's settings with those in *extra* besides."""
        return yaml.safe_dump(self.written.backend, sort_keys=False, allow_unicode=True) + extra

    async def run(self) -> None:
        """Send all that is sent."""
        try:
            async with running(self.url, "grpc: 127.0.0.1:0\n", self.settings()) as client:
                for n_rows, way in REQUESTS:
                    await self._compare(client, n_rows if self.form.many or self.file.rows else 1, way)
                if not self.form.many and not self.file.rows:
                    await self._send_two_rows(client)
                if self.file.answer:  # what an adapter does with parameters is its owner's
                    await self._send_parameters(client)
                for body in self.form.fails:
                    await self._send_failing(client, plain(body))
        except ConfigError as error:
            self.judged.add(REFUSED, f"the file does not load: {error}")
            return
        # a file's owner knows whether rows depend on each other; the doctor's user learns it from the doctor
        is_own_risk = self.form.rows_depend or (self.form.sorts and self.file.order is None)
        if not (self.written.is_by_hand and is_own_risk):
            await self._send_at_once()

    def _new(self, n_rows: int) -> tuple[list[Bound], list[Any]]:
        """New requests as the file can make them, and the bodies of native clients that are the same."""
        rows = [self.form.row(self.draw) for _ in range(n_rows)]
        bodies = self.file.bodies(rows, self.form.options(self.draw))
        bound = self.file.bound(bodies)
        for each in bound:
            for path, words in each.frozen.items():
                place = re.sub(r"\[\d+\]", "[*]", path)
                self.fault("constant", place, f"{place}: {words}", place)
        settled = [each.settled for each in bound]
        return self.file.bound(settled), settled

    def _answers(self, bodies: Sequence[Any]) -> list[Any] | None:
        try:
            return [plain(self.form.answer(body)) for body in bodies]
        except RefusalError:
            return None

    async def _send(self, client: Client, bound: Sequence[Bound], way: Way = in_binary) -> Reply:
        try:
            inputs = self.file.inputs(bound)
        except ValueError as error:
            return Reply(0, str(error), {})
        return await way(client, tensors_of(inputs, self.file.block.get("inputs", {})), bound[0].parameters)

    async def _compare(self, client: Client, n_rows: int, way: Way) -> None:
        when = f"{n_rows} rows {way.__name__}"
        bound, bodies = self._new(n_rows)
        answers = self._answers(bodies)
        reply = await self._send(client, bound, way)
        if answers is None:  # what the file freezes does not go with what the client sends
            if reply.status == 200:
                self.fault("value", "", "a request that the server refuses is answered")
            else:
                self._refused(f"the file's requests are refused: {reply.words}")
            return
        if reply.status != 200:
            self._refused(f"{when}: {reply.status} {reply.words}")
            return
        self._check(reply, answers, "value", when)
        for answer in answers:
            self._check_cover(answer)

    def _check(
        self, reply: Reply, answers: Sequence[Any], cause: str, when: str, *named: str, only_needed: bool = False
    ) -> None:
        """Compare the outputs of *reply* with *answers*: all of them, or those that have a value that clients need."""
        for name, values in self.file.expected(answers).items():
            if ("value", name) in self.told or (only_needed and not self._is_needed(name, answers[0])):
                continue  # it was wrong before
            path = str(self.file.block.get("answer", {}).get(name, "$"))
            if name not in reply.outputs:
                self.fault(cause, name, f"{when}: output {name} is missing in the reply", *named)
                continue
            shape, found = reply.outputs[name]
            if has_missing(values):
                words = f"{when}: output {name} {shown(found)} where the server's answer has nothing at {path}"
                self.fault(cause, name, words, *named)
            elif not is_same(values, shape, found):
                words = f"{when}: output {name} is {list(shape)} {shown(found)}, expected {shown(values)}"
                self.fault(cause, name, words, *named)

    def _is_needed(self, name: str, answer: Any) -> bool:
        needed = {leaf for path in self.form.values for leaf in leaves(steps_of(path), answer)}
        return name not in self.file.answer or not needed.isdisjoint(leaves(self.file.answer[name], answer))

    def _check_cover(self, answer: Any) -> None:
        """Every value that a client needs has to become an output, or to be named."""
        if self.form.adapter is not None and not self.file.answer:
            return
        covered = self.file.covered(answer)
        for path in self.form.values:
            lost = [leaf for leaf in leaves(steps_of(path), answer) if leaf not in covered]
            if lost:
                words = f"{path}: {len(lost)} values become no output, such as {lost[0]}"
                self.fault("lost", path, words, path, *_path_of(lost[0]))

    async def _send_two_rows(self, client: Client) -> None:
        """Send two rows at once to a server that takes one instance: refused, or answered as two requests are."""
        self.draw.random()
        rows = [self.form.row(self.draw) for _ in range(2)]
        options = self.form.options(self.draw)
        bound = self.file.bound([plain(self.form.body([row], options)) for row in rows])
        bound = self.file.bound([each.settled for each in bound])
        answers = self._answers([each.settled for each in bound])
        if answers is None or not self.file.answer:
            return
        inputs = {}
        for name, value in bound[0].inputs.items():
            other = bound[1].inputs.get(name)
            inputs[name] = value if value == other else [value, other]
        if any(shape_of(each) is None for each in inputs.values()) or inputs == bound[0].inputs:
            return
        entries = self.file.block["inputs"]
        inputs = {
            name: decoded(value, str(entries[name].get("encoding")), str(entries[name].get("datatype")))
            for name, value in inputs.items()
        }
        reply = await in_binary(client, tensors_of(inputs, entries), bound[0].parameters)
        if reply.status == 200:
            self._check(reply, answers, "rows", "two rows to a server of one instance", "rows: 1", only_needed=True)

    async def _send_parameters(self, client: Client) -> None:
        """Send parameters that no part of the body has: refused, since the server would never see them."""
        bound, bodies = self._new(1)
        for parameters in ({"no_such_option": 0.5}, {"sequence_id": 7, "sequence_start": True}):
            if self._answers(bodies) is None:
                return
            bound[0].parameters = parameters
            reply = await self._send(client, bound)
            if reply.status == 200:
                self.fault("dropped", str(parameters), f"the parameters {parameters} are dropped")

    async def _send_failing(self, client: Client, body: Any) -> None:
        bound = self.file.bound([body])
        if bound[0].frozen:
            bound = self.file.bound([bound[0].settled])
        if plain(self.form.answer(bound[0].settled)) != plain(self.form.answer(body)):
            return  # the file cannot make this request
        reply = await self._send(client, bound)
        # a row's flag is for the client to read; that of the whole answer is too, where the file's owner says so
        flag = steps_of(self.form.flag)
        is_told = flag in self.file.answer.values() and (None in flag or self.written.is_by_hand)
        if reply.status == 200 and not is_told:
            got = {name: shown(values) for name, (_, values) in reply.outputs.items()}
            self.fault("failure", "", f"a failure in a 200 is answered with {got}", self.form.flag)

    async def _send_at_once(self) -> None:
        """Send requests of several clients at once to a gateway that batches."""
        try:
            async with running(self.url, "", self.settings(BATCH)) as client:
                for n_options in (1, 2):
                    await self._send_round(client, n_options)
        except ConfigError as error:
            self.judged.found.append(f"batch is refused: {error}")

    async def _send_round(self, client: Client, n_options: int) -> None:
        options = [self.form.options(self.draw) for _ in range(n_options)]
        is_many = self.form.many or bool(self.file.rows)
        requests = []
        for index in range(N_CLIENTS):
            rows = [self.form.row(self.draw) for _ in range(1 + index % 2 if is_many else 1)]
            bound = self.file.bound(self.file.bodies(rows, options[index % n_options]))
            settled = [each.settled for each in bound]
            if (answers := self._answers(settled)) is not None:
                requests.append((self.file.bound(settled), answers))
        for alone, _ in requests[:2]:
            await self._send(client, alone)
        replies = await asyncio.gather(*[self._send(client, bound) for bound, _ in requests])
        for reply, (_, answers) in zip(replies, requests, strict=True):
            if reply.status == 200:
                self._check(reply, answers, "batch", "batched", "batch", "batching")
            elif reply.status:
                self._refused(f"batched: {reply.status} {reply.words}")


def _path_of(leaf: tuple[Any, ...]) -> list[str]:
    """The path to a value by the names on its way; none without names."""
    names = [each for each in leaf if isinstance(each, str)]
    return ["".join(["$", *(f"[{json.dumps(name)}]" for name in names)])] if names else []


async def judge(form: Format, mode: str, n_samples: int = 1) -> Judged:
    """Judge *form* with the doctor's file (`doctor`) or with that written by hand (`file`)."""
    with tempfile.TemporaryDirectory() as folder:
        async with standing_in(form) as url:
            written = by_hand(form, Path(folder)) if mode == "file" else await examined(url, form, n_samples)
            return await judge_file(form, url, written)


async def judge_file(form: Format, url: str, written: Prescription) -> Judged:
    """Judge the file *written* for the server at *url*, which has the format *form*."""
    judged = Judged(form)
    if written.printed.startswith(CRASHED):
        judged.add(SILENT, f"{CRASHED}: {written.printed.splitlines()[-1]}", "crash")
        return judged
    if written.backend is None:
        lines = [line for line in written.printed.splitlines() if "problem" in line]
        judged.add(REFUSED, f"the doctor wrote no file: {' '.join(lines or written.printed.split())[:250]}")
        return judged
    try:
        await Trial(form, url, written, judged).run()
    except (AssertionError, KeyError, TypeError, ValueError, IndexError) as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        words = f"the judge failed: {type(error).__name__} {error} at {Path(at.filename).name}:{at.lineno}"
        judged.add(SILENT, words, "judge")
    return judged
