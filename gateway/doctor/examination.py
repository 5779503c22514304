"""The order in which the doctor asks, and what it makes of the answers. Not here: the questions themselves."""

import sys
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from gateway import __version__
from gateway.backend.endpoints import Said
from gateway.backend.health import V2_PATH
from gateway.backend.questions import MLFLOW, TEMPLATE, TENSORFLOW, V2
from gateway.config import Address
from gateway.doctor.asking import REASONS, Asker, Given, endpoint_of
from gateway.doctor.model import Model, Straight, describe, described_sample, first_inference, set_models, try_sample
from gateway.doctor.report import ProblemError, Report, configuration
from gateway.doctor.server import THE_MODEL, choose_model, meant_by, reach, recognize
from gateway.doctor.through import add_grpc, cross
from gateway.errors import GatewayError
from gateway.process.ports import is_free

WORKS, WORKS_WITH, UNUSABLE = 0, 1, 2
"""Exit codes: it works as it is; it works with the named settings; the server cannot be reached or used."""


async def examine(url: str, model: str, given: Given, *, only_yaml: bool) -> int:
    """Examine the server at *url*, with *model* for the trials if it is not empty, and return the exit code.

    Findings go to standard output; with *only_yaml* to standard error, and the configuration alone to standard output.
    Raises `ConfigError` if *url* is not that of a server, or if what is *given* cannot be used.
    """
    url, left_out = meant_by(url)
    document = given.document()
    report = Report(sys.stderr if only_yaml else sys.stdout, given.settings(), dict(REASONS))
    endpoint, headers = endpoint_of(url, report.settings)
    report.block(f"{url}, examined by tensor-gateway {__version__}", "")
    report.heading("The way to it")
    if left_out:
        report.problem(
            f"{left_out} at the end of the URL belongs to each request and not to the server's address: give {url}"
        )
    try:
        asker, first = await reach(endpoint, headers, report)
        if given.path is None:
            said = await recognize(asker, first, report)
            tried = Model(await choose_model(asker, said.dialect, model, report))
            tried, straight = await _first_inference(url, asker, said.dialect, tried, report)
        else:
            said, tried = Said(TEMPLATE), Model(model or THE_MODEL)
            report.heading(f"POST {given.path}")
            document = document if given.sample else await described_sample(asker, given.path)
            straight = await try_sample(asker, given.path, document, tried.name, report)
        await _find_health(asker, said.dialect if straight is None else straight.dialect, tried.name, report)
        await cross(url, asker, tried, straight, report)
    except ProblemError as error:
        report.problem(str(error))
        return UNUSABLE
    except GatewayError as error:
        report.problem(f"{error}, where it had answered before")
        return UNUSABLE
    add_grpc(report)
    report.table("What clients can do through the gateway", report.abilities)
    endpoint_of(url, report.settings)  # raises for a configuration that `check` would refuse
    found = f"In front of {said.title or 'a server'} at {url}, as `tensor-gateway doctor` found it on "
    listen, admin = (_address(port, url) for port in (8080, 9090))
    file = configuration(url, report.settings, report.reasons, listen, admin, f"{found}{datetime.now(UTC):%Y-%m-%d}")
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


async def _first_inference(
    url: str, asker: Asker, dialect: str, model: Model, report: Report
) -> tuple[Model, Straight | None]:
    """*model* as the server at *url* describes it, and the first inference of it that is answered, if one is."""
    if not model.name:
        return model, None
    report.heading("Its model" if model.name == THE_MODEL else f"Model {model.name}")
    model = await describe(url, model, report)
    try:
        straight = await first_inference(asker, dialect, model)
    except ProblemError as error:
        report.problem(str(error))
        return model, None
    if straight.dialect != dialect:
        report.problem(
            "the model does not answer V2, though its server speaks it, but V1 (/v1/models/...:predict): "
            "`dialect: tensorflow`"
        )
        report.set("dialect", TENSORFLOW, "the server speaks V2, but the model only V1")
    set_models(straight, model, report)
    report.ok("a trial inference straight in JSON was answered")
    return model, straight


async def _find_health(asker: Asker, dialect: str, model: str, report: Report) -> None:
    """Find the path that tells whether the server is ready, and set `health`."""
    of_model = f"/v1/models/{quote(model, safe='')}" if model else "/v1/models"
    paths = {V2: (V2_PATH, "/ping"), TENSORFLOW: (of_model,), MLFLOW: ()}
    value: dict[str, str] | None = {} if dialect in (TENSORFLOW, MLFLOW) else None  # these have probes of their own
    for path in paths.get(dialect, ("/ping", "/health", "/healthz", "/livez", "/")):
        answer = await asker.get(path)
        if answer.status == 200 and not answer.is_html:
            value = {"path": path} if path != V2_PATH else {}
            break
    if value is not None:
        report.set("health", value, "probes: /-/ready of the gateway tells whether the server is up")
