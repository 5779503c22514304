"""The order in which the doctor asks, and what it makes of the answers. Not here: the questions themselves."""

import sys
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from gateway import __version__
from gateway.backend.connections import NoAnswerError
from gateway.backend.endpoints import Said
from gateway.backend.questions import MLFLOW, TEMPLATE, TENSORFLOW, TORCHSERVE, V2, Answer
from gateway.config import Address
from gateway.doctor.asking import Asker
from gateway.doctor.given import Given, endpoint_of
from gateway.doctor.model import Model, Straight, describe, described_sample, first_inference, set_models, try_sample
from gateway.doctor.report import ProblemError, Report, configuration
from gateway.doctor.server import THE_MODEL, choose_model, meant_by, reach, recognize
from gateway.doctor.through import Crossing, add_grpc, ask_calls
from gateway.errors import GatewayError
from gateway.process.ports import is_free

WORKS, WORKS_WITH, UNUSABLE = 0, 1, 2
"""Exit codes: it works as it is; it works with the named settings; the server cannot be reached or used."""


async def examine(url: str, model: str, given: Given, *, only_yaml: bool) -> int:
    """Examine the server at *url*, with *model* for the trials if it is not empty, and return the exit code.

    Findings go to standard output; with *only_yaml* to standard error, and the configuration alone to standard output.
    Raises `ConfigError` if *url* is not that of a server, or if what is *given* cannot be used.
    """
    meant = meant_by(url)
    document = given.document()
    report = Report(sys.stderr if only_yaml else sys.stdout, given.settings())
    endpoint, headers = endpoint_of(meant.url, report.settings)
    report.block(f"{meant.url}, examined by tensor-gateway {__version__}", "")
    report.heading("The way to it")
    if meant.left_out:
        report.problem(
            f"{meant.left_out} at the end of the URL belongs to each request and not to the server's address: "
            f"give {meant.url}"
        )
    try:
        asker, first = await reach(endpoint, headers, report)
        examination = _Examination(meant.url, asker, report)
        if given.path is None:
            await examination.of_server(first, model or meant.model)
        else:
            document = document if given.sample else await described_sample(asker, given.path)
            await examination.of_path(given.path, document, model or THE_MODEL)
    except ProblemError as error:
        report.problem(str(error))
        return UNUSABLE
    except GatewayError as error:
        report.problem(f"{error}, where it had answered before")
        return UNUSABLE
    add_grpc(report)
    report.table("What clients can do through the gateway", report.abilities)
    endpoint_of(meant.url, report.settings)  # raises for a configuration that `check` would refuse
    found = (
        f"In front of {examination.said.title or 'a server'} at {meant.url}, as `tensor-gateway doctor` found it on "
    )
    listen, admin = (_address(port, meant.url) for port in (8080, 9090))
    file = configuration(meant.url, report.settings, listen, admin, f"{found}{datetime.now(UTC):%Y-%m-%d}")
    if only_yaml:
        sys.stdout.write(file)
    else:
        report.heading("A configuration for it")
        report.block(file)
    return WORKS if report.works_as_it_is else WORKS_WITH


def _address(first: int, url: str) -> str:
    """A loopback address to listen on: the *first* port, or a later one, that is free and not the server's at *url*."""
    addresses = [Address(f"127.0.0.1:{port}") for port in range(first, first + 40, 10)]
    return next((each for each in addresses if each.port != urlsplit(url).port and is_free(each)), addresses[0])


class _Examination:
    """All questions to one server, which was reached."""

    def __init__(self, url: str, asker: Asker, report: Report) -> None:
        self._url = url
        self._asker = asker
        self._report = report
        self.said = Said(TEMPLATE)
        """The kind of the server, as soon as it is known."""

    async def of_server(self, first: Answer, asked_for: str) -> None:
        """Ask a server that speaks a protocol. *first* is its answer to `GET /v2`."""
        report = self._report
        said = self.said = await recognize(self._asker, first, report)
        name = await choose_model(self._asker, said.dialect, asked_for, report)
        await self._find_health(name)
        straight, model = None, Model(name)
        if name:
            report.heading("Its model" if name == THE_MODEL else f"Model {name}")
            model = await describe(self._url, self._asker, said.dialect, model, report)
            try:
                straight = await self._first(model)
            except ProblemError as error:
                report.problem(str(error))
        await self._cross(model, straight)

    async def of_path(self, path: str, document: Any, name: str) -> None:
        """Try a server that speaks no protocol, with the sample *document*."""
        self._report.heading(f"POST {path}")
        straight = await try_sample(self._asker, path, document, name, self._report)
        await self._find_health("")
        await self._find_framing(straight)
        await self._cross(Model(name), straight)

    async def _find_health(self, model: str) -> None:
        """Find the path that tells whether the server is ready, and set `health.path` if need be."""
        dialect = self.said.dialect
        usual = {V2: "/v2/health/ready", MLFLOW: "/ping"}.get(dialect, "")
        of_model = f"/v1/models/{quote(model, safe='')}" if model else "/v1/models"
        usual_of_others = ("/health", "/healthz", "/livez", "/") if dialect == TEMPLATE else (of_model,)
        value: dict[str, str] | None = None
        for path in filter(None, (usual, "/ping", *usual_of_others)):
            answer = await self._asker.get(path)
            if answer.status == 200 and not answer.is_html:
                value = {} if path == usual else {"path": path}
                break
        if value is None and dialect == TENSORFLOW:
            value = {}  # the answer that there is no such model will do: it shows that the server runs
        if value is not None:
            self._report.set("health", value, "probes: /-/ready of the gateway tells whether the server is up")

    async def _first(self, model: Model) -> Straight:
        """The first inference of *model*, and what it shows. Raises `ProblemError`."""
        try:
            straight = await first_inference(self._asker, self.said.dialect, model)
        except ProblemError as error:
            straight = await self._first_of_v1(model, error)
        set_models(straight, self.said.dialect, model, self._report)
        self._report.ok("a trial inference straight in JSON was answered")
        await self._find_framing(straight)
        return straight

    async def _first_of_v1(self, model: Model, refused: ProblemError) -> Straight:
        """The same in the V1 protocol, for a model that does not answer V2, though its server speaks it.

        Raises `ProblemError`, for *refused*, if it does not answer V1 either.
        """
        said, is_torchserve = self.said, self.said.title == TORCHSERVE
        of_v1 = await self._asker.get(f"/v1/models/{quote(model.name, safe='')}")
        if said.dialect == V2 and (is_torchserve or of_v1.member("ready") is not None):
            with suppress(ProblemError):
                straight = await first_inference(self._asker, TENSORFLOW, model)
                self.said = replace(said, dialect=TENSORFLOW)
                self._report.problem(
                    "the model does not answer V2, though its server speaks it, but V1 (/v1/models/...:predict): "
                    "`dialect: tensorflow`"
                )
                self._report.set("dialect", TENSORFLOW, "the server speaks V2, but the model only V1")
                await self._find_health(model.name)
                return straight
        hint = ". Has its config.properties service_envelope=kservev2?" if is_torchserve else ""
        raise ProblemError(f"{refused}{hint}")

    async def _find_framing(self, straight: Straight) -> None:
        try:
            is_read = (await self._asker.post(straight.path, straight.body, is_chunked=True)).is_good
        except NoAnswerError:
            is_read = False
        if is_read:
            self._report.ok("it reads bodies that are sent in chunks")
        else:
            self._report.advise("framing", "content-length", "it refuses bodies that are sent in chunks")

    async def _cross(self, model: Model, straight: Straight | None) -> None:
        """Try the same through a gateway; None: no inference was answered."""
        report = self._report
        await ask_calls(self._url, model, report)
        if straight is None:
            tried = "trial inference was answered" if model.name else "model was tried"
            report.can("infer", f"not found out: no {tried}")
            return
        crossing = Crossing(self._url, straight, model, report, self.said.dialect == V2)
        if not await crossing.is_answered():
            return
        if crossing.is_v2 and "binary" not in report.settings:
            await crossing.find_binary()
        await crossing.measure(self._asker)
        wishes = await crossing.wishes()
        if "binary" not in report.settings and (wishes or crossing.is_v2):
            await crossing.find_settings(wishes)
        await crossing.fill_table(wishes)
