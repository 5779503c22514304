"""The order in which the doctor asks, and what it makes of the answers. Not here: the questions themselves."""

import sys
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from gateway import __version__
from gateway.backend.endpoints import Said
from gateway.backend.questions import MLFLOW, TEMPLATE, TENSORFLOW, V2, Answer
from gateway.config import Address, Endpoint
from gateway.doctor.asking import Asker
from gateway.doctor.dialect_trials import DialectTrials
from gateway.doctor.given import TLS_OPTIONS, Given, endpoint_of
from gateway.doctor.reaching import meant_by, reach
from gateway.doctor.recognizing import THE_MODEL, TORCHSERVE, choose_model, recognize
from gateway.doctor.report import Report, UnusableServerError, configuration
from gateway.doctor.samples import AS_TRIED, as_described
from gateway.doctor.template_trials import TemplateTrials, described_sample, sample_of
from gateway.doctor.through import add_grpc, try_through
from gateway.doctor.trials import RefusedError, Trials, V2Trials, describe
from gateway.errors import ConfigError, GatewayError
from gateway.process.ports import is_free

WORKS, WORKS_WITH, UNUSABLE = 0, 1, 2
"""Exit codes: it works as it is; it works with the named settings; the server cannot be reached or used."""

LISTEN_PORTS = (8080, 8090, 8070, 8060)
ADMIN_PORTS = (9090, 9091, 9092, 9093)
"""Ports for the configuration: the first that is free and is none of the server's is used."""

_PORTS_OF_ONE_SERVER = 3
"""How many ports in a row one server may use: servers on 8080 use the next two as well, for gRPC and metrics."""


async def examine(url: str, model: str, given: Given, *, only_yaml: bool) -> int:
    """Examine the server at *url*, with *model* for the trials if it is not empty, and return the exit code.

    Findings go to standard output; with *only_yaml* to standard error, and the configuration alone to standard output.
    Raises `ConfigError` if *url* is not that of a server, or if what is *given* cannot be used.
    """
    meant = meant_by(url)
    if given.tls and not meant.url.startswith("https:"):
        raise ConfigError(f"{', '.join(TLS_OPTIONS[key] for key in given.tls)}: goes with a URL that begins with https")
    document = sample_of(given.path, given.sample)
    report = Report(sys.stderr if only_yaml else sys.stdout, given.settings())
    endpoint, headers = endpoint_of(meant.url, report.settings)
    report.title(f"{meant.url}, examined by tensor-gateway {__version__}")
    report.heading("The way to it")
    if meant.left_out:
        report.problem(
            f"{meant.left_out} at the end of the URL belongs to each request and not to the server's address: "
            f"give {meant.url}"
        )
    try:
        asker, first = await reach(meant.url, endpoint, headers, report)
        if given.path is not None:
            server = await _examined_with(asker, meant.url, model or THE_MODEL, given, document, report)
        else:
            server = await _examined(asker, first, meant.url, model or meant.model, report)
    except UnusableServerError as error:
        report.problem(str(error))
        return UNUSABLE
    except GatewayError as error:
        report.problem(f"{error}, where it had answered before")
        return UNUSABLE
    add_grpc(report)
    report.table("What clients can do through the gateway", report.abilities)
    endpoint_of(meant.url, report.settings)  # raises for a configuration that `check` would refuse
    file = _file(meant.url, server, report)
    if only_yaml:
        sys.stdout.write(file)
    else:
        report.heading("A configuration for it")
        report.block(file)
    return WORKS if report.works_as_it_is else WORKS_WITH


async def _examined_with(asker: Asker, url: str, model: str, given: Given, document: Any, report: Report) -> Said:
    """Try a server that speaks no protocol, with the sample *document*, or the example in its own description."""
    path = given.path
    assert path is not None
    report.heading(f"POST {path}")
    try:
        document = await described_sample(asker, path) if given.sample is None else document
        trials = TemplateTrials(asker, model, report, path, document)
        await trials.first()
    except RefusedError as error:
        raise UnusableServerError(str(error)) from None
    trials.describe()
    await _find_health(asker, "", TEMPLATE, report)
    await trials.find_settings()
    await try_through(url, trials, model, report)
    return Said(TEMPLATE)


async def _examined(asker: Asker, first: Answer, url: str, asked_for: str, report: Report) -> Said:
    """Ask all questions, and return the kind of server. *first* is its answer to `GET /v2`."""
    server = await recognize(asker, first, asked_for, report)
    model = await choose_model(asker, server.dialect, asked_for, report)
    await _find_health(asker, model, server.dialect, report)
    straight: Trials | None = None
    if model:
        report.heading("Its model" if model == THE_MODEL else f"Model {model}")
        try:
            straight = await (_try_v2 if server.dialect == V2 else _try_dialect)(asker, model, server, report)
        except RefusedError as error:
            report.problem(str(error))
    elif server.is_binary:
        _set_binary(server, report)
    await try_through(url, straight, model, report)
    return server


async def _find_health(asker: Asker, model: str, dialect: str, report: Report) -> None:
    """Find the path that tells whether the server is ready, and set `health.path` if need be."""
    usual = {V2: "/v2/health/ready", MLFLOW: "/ping"}.get(dialect, "")
    of_model = f"/v1/models/{quote(model, safe='')}" if model else "/v1/models"
    usual_of_others = ("/health", "/healthz", "/livez", "/") if dialect == TEMPLATE else (of_model,)
    for path in filter(None, (usual, "/ping", *usual_of_others)):
        answer = await asker.get(path)
        if answer.status == 200 and not answer.is_html:
            report.set("health", {} if path == usual else {"path": path}, _WHY_HEALTH, is_needed=False)
            return
    if dialect == TENSORFLOW:  # any model will do: the answer that there is no such model shows that the server runs
        report.set("health", {}, _WHY_HEALTH, is_needed=False)


_WHY_HEALTH = "probes: /-/ready of the gateway tells whether the server is up"


async def _try_v2(asker: Asker, model: str, server: Said, report: Report) -> Trials:
    """Find out what a V2 server takes. Raises `RefusedError`."""
    described = await describe(asker, model, report)
    trials = V2Trials(asker, described, report)
    try:
        await trials.first()
    except RefusedError as error:
        if (of_v1 := await _try_v1(asker, model, server, report)) is not None:
            return of_v1
        if server.title == TORCHSERVE:
            raise RefusedError(f"{error}. Has its config.properties service_envelope=kservev2?") from None
        raise
    report.ok("a trial inference straight in JSON was answered")
    if not described.has_metadata:
        report.note(
            "clients ask for the metadata, so `models` gives it to them: names, datatypes and shapes are those of the "
            "trial, which the server took. They are not known to be the model's: correct them"
        )
        report.set(
            "models",
            {model: {"inputs": as_described(trials.samples), "outputs": as_described(trials.outputs)}},
            "for the server has no metadata, which clients ask for",
            comments={"inputs": AS_TRIED, "outputs": "as they came back: correct the shapes"},
        )
    if await trials.reads_binary():
        _set_binary(server, report)
    else:
        if server.is_binary:
            report.problem("it says that it reads binary tensors, and refuses them or answers something else")
        else:
            report.ok("it refuses binary tensors: this is what the gateway is for")
        await trials.find_settings()
    return trials


def _set_binary(server: Said, report: Report) -> None:
    """Set `binary` for a server that reads binary, which needs no conversion at all."""
    if server.is_binary:
        report.set("binary", "auto", "binary passes through as it is, as long as the server says that it reads it")
    else:
        report.note(
            "it reads binary tensors itself, though it does not say so: clients can use it without a gateway, or the "
            "gateway passes them through: `binary: always`"
        )
        report.set("binary", "always", "it reads binary itself, though it does not say so")


async def _try_v1(asker: Asker, model: str, server: Said, report: Report) -> Trials | None:
    """Find out whether *model* speaks the V1 protocol although its server speaks V2; None if it does not."""
    is_kserve = (await asker.get(f"/v1/models/{quote(model, safe='')}")).member("ready") is not None
    if not is_kserve and server.title != TORCHSERVE:
        return None
    trials = DialectTrials(asker, TENSORFLOW, model, report)
    try:
        await trials.first()
    except RefusedError:
        return None
    report.problem(
        "the model does not answer V2, though its server speaks it, but V1 (/v1/models/...:predict): "
        "`dialect: tensorflow`"
    )
    report.set("dialect", TENSORFLOW, "the server speaks V2, but the model only V1")
    await _find_health(asker, model, TENSORFLOW, report)
    await _describe(trials, report)
    return trials


async def _try_dialect(asker: Asker, model: str, server: Said, report: Report) -> Trials:
    """Find out what a server of another dialect takes. Raises `RefusedError`."""
    trials = DialectTrials(asker, server.dialect, model, report)
    try:
        await trials.first()
    except RefusedError:
        trials.describe_untried()
        raise
    await _describe(trials, report)
    return trials


async def _describe(trials: DialectTrials, report: Report) -> None:
    trials.describe()
    report.ok("a trial inference straight in JSON was answered")
    await trials.find_settings()


def _file(url: str, server: Said, report: Report) -> str:
    """The text of a configuration that can be served at once."""
    today = datetime.now(UTC)
    found = (
        f"In front of {server.title or 'a server'} at {url}, as `tensor-gateway doctor` found it on {today:%Y-%m-%d}"
    )
    printable = {
        key: each if each.printed is None else each._replace(value=each.printed)
        for key, each in report.settings.items()
    }
    return configuration(url, printable, _address(url, LISTEN_PORTS), _address(url, ADMIN_PORTS), found)


def _address(url: str, ports: tuple[int, ...]) -> str:
    """A loopback address to listen on that is free now and that is none of the server's."""
    for port in ports:
        own = Address(f"127.0.0.1:{port}")
        taken = (Address(f"127.0.0.1:{port - beside}") for beside in range(_PORTS_OF_ONE_SERVER))
        if is_free(own) and not any(address.is_reached_by(Endpoint(url)) for address in taken):
            break
    return own
