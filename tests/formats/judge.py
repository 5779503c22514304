"""Judges what the gateway makes of a format: with the file that `doctor` writes, or with one written by hand.

New values are sent through the gateway, and each output is compared with what the server answers to the JSON that a
native client would have sent. A value that differs, or that clients cannot decide or do not get, is `silent` unless the
doctor has named it.
"""

import asyncio
import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from gateway import cli
from gateway.errors import ConfigError
from tests.conftest import HEADER_LENGTH, Client, running
from tests.formats.stand_in import Draw, Format, RefusalError
from tests.formats.templates import (
    Bound,
    Step,
    bind,
    blob_of,
    decoded,
    flat,
    has_missing,
    leaves,
    likely,
    read,
    same_values,
    shape_of,
    shown,
    steps_of,
    values_of,
)

RIGHT, ASKED, REFUSED, SILENT = "right", "asked", "refused", "SILENT"
VERDICTS = (RIGHT, ASKED, REFUSED, SILENT)

BATCH = "batch: {max_size: 8, max_delay: 20ms}\n"
N_CLIENTS = 6
ROUNDS = 4
"""How many requests with new values are compared."""


@dataclass
class Judged:
    """What was found of one format."""

    format: Format
    verdict: str = RIGHT
    found: list[str] = field(default_factory=list)
    """What was not right, the verdict first."""

    def add(self, verdict: str, words: str) -> None:
        """Add a finding; the worst one is the verdict, and a refusal less than a question."""
        line = f"{verdict}: {words}"
        if line not in self.found:
            self.found.append(line)
        order = (RIGHT, REFUSED, ASKED, SILENT)
        self.verdict = max(self.verdict, verdict, key=order.index)


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


# The doctor


@dataclass
class Prescription:
    """What the doctor has written and said, or what stands for it."""

    backend: dict[str, Any] | None
    """The backend's settings without its endpoints; None if there are none."""
    said: tuple[str, ...] = ()
    """What was said in questions, notes and problems, and in the file's comments."""
    printed: str = ""
    is_by_hand: bool = False

    @property
    def model(self) -> dict[str, Any]:
        """The block of the only model."""
        assert self.backend is not None
        (block,) = self.backend["models"].values()
        return dict(block)

    def names(self, *paths: str) -> bool:
        """Whether something was said of one of *paths*, or of one of *words* that begins with no `$`."""
        return any(_is_named(path, words) for path in paths for words in self.said)


def _is_named(path: str, words: str) -> bool:
    """Whether *words* have *path*, or what is around it, or its last name in quotes or before a colon."""
    if not path.startswith("$"):
        return re.search(rf"\b{re.escape(path)}\b", words) is not None
    words = re.sub(r"\[[*\d]+\]", "", words)
    names = [step for step in steps_of(path) if isinstance(step, str)]
    around = {f"${''.join(f'.{name}' for name in names[:length])}" for length in range(1, len(names) + 1)} or {"$"}
    if any(re.search(rf"(?<![\w$]){re.escape(each)}(?![\w.({{])", words) for each in around):
        return True
    return (
        bool(names) and re.search(rf"[`'\"]{re.escape(names[-1])}[`'\":]|^{re.escape(names[-1])}:", words) is not None
    )


_FINDING = re.compile(r"^  (\w+) +(.*?)(?=^  \w|^\S|\Z|^\n)", re.MULTILINE | re.DOTALL)
_TABLES = re.compile(r"^What (this small inference takes|clients can do).*?(^\n|\Z)", re.MULTILINE | re.DOTALL)
_BESIDE = re.compile(
    r"the server does not say what the model's|not answered: model configuration|GUESSED|moves no output"
    r"|it is made an input|is INT64|was not varied|integers in the sample"
)


def said_in(findings: str, file: str) -> tuple[str, ...]:
    """What of the doctor's output tells its user that something may be wrong.

    That is no praise, no list of what was guessed, and nothing of an input that clients have.
    """
    found = _FINDING.findall(_TABLES.sub("", findings))
    words = [re.sub(r"\s+", " ", text) for kind, text in found if kind != "ok"]
    comments = [line.partition("#")[2].strip() for line in file.splitlines() if line.lstrip().startswith("#")]
    return tuple(each for each in words + comments if not _BESIDE.search(each))


async def examined(url: str, form: Format, n_samples: int) -> Prescription:
    """What `tensor-gateway doctor` makes of the server at *url* with the first *n_samples* of its samples."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["doctor", url, "--path", form.path, "--model", "m", "--yaml"]
        for index, sample in enumerate(form.samples[:n_samples]):
            file = Path(folder) / f"sample{index}.json"
            file.write_text(json.dumps(sample))
            arguments += ["--sample", str(file)]
        file_text, findings = await asyncio.to_thread(_run_doctor, arguments)
    try:
        backend = yaml.safe_load(file_text)["backends"]["default"]
        del backend["endpoints"]
    except (yaml.YAMLError, TypeError, KeyError):
        backend = None
    if backend is not None and "models" not in backend:
        backend = None
    return Prescription(backend, said_in(findings, file_text), findings + file_text)


def _run_doctor(arguments: list[str]) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        cli.main(arguments)
    return out.getvalue(), err.getvalue()


def by_hand(form: Format, folder: Path) -> Prescription:
    """What was written by hand for this format."""
    backend: dict[str, Any] = {"dialect": "template"}
    if form.adapter is not None:
        file = folder / "adapter.py"
        file.write_text(form.adapter.source)
        backend |= {"dialect": "python", "adapter": str(file)}
    block = yaml.safe_load(form.adapter.models if form.adapter is not None else form.by_hand)
    return Prescription({**backend, "models": {"m": block}}, is_by_hand=True)


# Requests and replies


@dataclass
class Reply:
    """What a client of V2 got."""

    status: int
    words: str
    outputs: dict[str, tuple[tuple[int, ...], list[Any]]]
    """Shape and flat values by name."""


async def infer(client: Client, inputs: dict[str, Any], block: dict[str, Any], parameters: dict[str, Any]) -> Reply:
    """Send *inputs*, nested lists by name, in binary."""
    entries, blobs = [], []
    for name, value in inputs.items():
        values = flat(value)
        datatype = likely(values, str(block.get("inputs", {}).get(name, {}).get("datatype")))
        blobs.append(blob_of(values, datatype))
        shape = shape_of(value)
        entries.append(
            {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(blobs[-1])}}
        )
    header = {"inputs": entries, "parameters": {**parameters, "binary_data_output": True}}
    reply = await client.infer_binary(header, *blobs, model="m", timeout=aiohttp.ClientTimeout(30))
    if reply.status != 200:
        return Reply(reply.status, reply.body.decode(errors="replace"), {})
    length = int(reply.headers.get(HEADER_LENGTH, len(reply.body)))
    outputs, at = {}, length
    for entry in json.loads(reply.body[:length])["outputs"]:
        size = entry["parameters"]["binary_data_size"]
        outputs[entry["name"]] = tuple(entry["shape"]), values_of(reply.body[at : at + size], entry["datatype"])
        at += size
    return Reply(200, "", outputs)


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
        made = {}
        for name in bound[0].inputs:
            values = [each.inputs.get(name) for each in bound]
            entry = self.block["inputs"].get(name, {})
            rank = len(entry["shape"]) if "shape" in entry else None
            values = [decoded(each, str(entry.get("encoding")), str(entry.get("datatype"))) for each in values]
            shape = shape_of(values[0])
            if shape is None or any(each is None for each in flat(values)):
                raise ValueError(f"{name}: {shown(values[0])} is no tensor")
            if (len(bound) == 1 and not self.rows) or (
                rank == len(shape) and all(each == values[0] for each in values) and rank == 0
            ):
                made[name] = values[0]
            elif rank == len(shape) and self.rows and rank:
                is_same = len(values) > 1 and all(each == values[0] for each in values)
                made[name] = values[0] if is_same else [row for each in values for row in each]
            else:
                made[name] = values if len(values) > 1 or self.rows else values[0]
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
        self.frozen: set[str] = set()

    def fault(self, words: str, *paths: str) -> None:
        """Something is not right; it is silent unless the doctor has named one of *paths*."""
        self.judged.add(ASKED if self.written.names(*paths) else SILENT, words)

    def settings(self, extra: str = "") -> str:
        """The backend's settings with those in *extra* besides."""
        return yaml.safe_dump(self.written.backend, sort_keys=False, allow_unicode=True) + extra

    async def run(self) -> None:
        """Send all that is sent."""
        try:
            async with running(self.url, "", self.settings()) as client:
                for round_ in range(ROUNDS):
                    await self._compare(client, (1, 3, 2, 1)[round_] if self.form.many or self.file.rows else 1)
                if not self.form.many and not self.file.rows:
                    await self._send_two_rows(client)
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
                if (place := re.sub(r"\[\d+\]", "[*]", path)) not in self.frozen:
                    self.frozen.add(place)
                    self.fault(f"{place}: {words}", place)
        settled = [each.settled for each in bound]
        return self.file.bound(settled), settled

    def _answers(self, bodies: Sequence[Any]) -> list[Any] | None:
        try:
            return [plain(self.form.answer(body)) for body in bodies]
        except RefusalError:
            return None

    async def _send(self, client: Client, bound: Sequence[Bound]) -> Reply:
        try:
            inputs = self.file.inputs(bound)
        except ValueError as error:
            return Reply(0, str(error), {})
        return await infer(client, inputs, self.file.block, bound[0].parameters)

    async def _compare(self, client: Client, n_rows: int) -> None:
        bound, bodies = self._new(n_rows)
        answers = self._answers(bodies)
        reply = await self._send(client, bound)
        if answers is None:  # what the file freezes does not go with what the client sends
            if reply.status == 200:
                self.fault("a request that the server refuses is answered")
            else:
                self.judged.add(REFUSED, f"the file's requests are refused: {reply.words[:200]}")
            return
        if reply.status != 200:
            self.judged.add(REFUSED, f"{n_rows} rows: {reply.status} {reply.words[:250]}")
            return
        self._check(reply, answers, f"{n_rows} rows")
        for answer in answers:
            self._check_cover(answer)

    def _check(self, reply: Reply, answers: Sequence[Any], when: str, *named: str, only_needed: bool = False) -> None:
        """Compare the outputs of *reply* with *answers*: all of them, or those that have a value that clients need."""
        for name, values in self.file.expected(answers).items():
            if only_needed and not self._is_needed(name, answers[0]):
                continue
            path = str(self.file.block.get("answer", {}).get(name, "$"))
            if name not in reply.outputs:
                self.fault(f"{when}: output {name} is missing in the reply", *named)
                continue
            shape, found = reply.outputs[name]
            if has_missing(values):
                self.fault(
                    f"{when}: output {name} {shown(found)} where the server's answer has nothing at {path}", *named
                )
            elif not is_same(values, shape, found):
                words = f"{when}: output {name} is {list(shape)} {shown(found)}, expected {shown(values)}"
                self.fault(words, *named)

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
                self.fault(f"{path}: {len(lost)} values become no output, such as {lost[0]}", path, *_names_in(lost[0]))

    async def _send_two_rows(self, client: Client) -> None:
        """Send two rows at once to a server that takes one instance: refused, or answered as two requests are."""
        self.draw.random()
        rows = [self.form.row(self.draw) for _ in range(2)]
        options = self.form.options(self.draw)
        bound = self.file.bound([plain(self.form.body([row], options)) for row in rows])
        bound = self.file.bound([each.settled for each in bound])
        answers = self._answers([each.settled for each in bound])
        if answers is None or self.file.form.adapter is not None:
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
        reply = await infer(client, inputs, self.file.block, bound[0].parameters)
        if reply.status == 200:
            self._check(reply, answers, "two rows to a server of one instance", "rows: 1", only_needed=True)

    async def _send_failing(self, client: Client, body: Any) -> None:
        bound = self.file.bound([body])
        if bound[0].frozen:
            bound = self.file.bound([bound[0].settled])
        if plain(self.form.answer(bound[0].settled)) != plain(self.form.answer(body)):
            return  # the file cannot make this request
        reply = await self._send(client, bound)
        is_told = any(self.form.flag in steps for steps in self.file.answer.values())
        if reply.status == 200 and not is_told:
            got = {name: shown(values) for name, (_, values) in reply.outputs.items()}
            self.fault(f"a failure in a 200 is answered with {got}", self.form.flag)

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
                self._check(reply, answers, "batched", "batch", "batching")
            elif reply.status:
                self.judged.add(REFUSED, f"batched: {reply.status} {reply.words[:200]}")


def _names_in(leaf: tuple[Any, ...]) -> list[str]:
    """The last name on the way to a value, as a path."""
    names = [each for each in leaf if isinstance(each, str)]
    return [names[-1]] if names else []


async def judge(form: Format, mode: str, n_samples: int = 1) -> Judged:
    """Judge *form* with the doctor's file (`doctor`) or with that written by hand (`file`)."""
    judged = Judged(form)
    with tempfile.TemporaryDirectory() as folder:
        async with standing_in(form) as url:
            written = by_hand(form, Path(folder)) if mode == "file" else await examined(url, form, n_samples)
            if written.backend is None:
                lines = [line for line in written.printed.splitlines() if "problem" in line]
                words = f"the doctor wrote no file: {' '.join(lines or written.printed.split())[:250]}"
                judged.add(REFUSED, words)
                return judged
            try:
                await Trial(form, url, written, judged).run()
            except (AssertionError, KeyError, TypeError, ValueError, IndexError) as error:
                judged.add(SILENT, f"the judge failed: {type(error).__name__} {error}")
                if "--debug" in sys.argv:
                    raise
    return judged
