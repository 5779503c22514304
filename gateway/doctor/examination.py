"""The order in which the doctor asks, and the first questions: the way to the server, who it is, and its models.

If a request does not get through, `first_look` explains why, in the same words as the gateway's log.
"""

import asyncio
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from gateway import __version__
from gateway.backend.connections import NoAnswerError
from gateway.backend.endpoints import Endpoint, Said
from gateway.backend.first_look import judge, resolved, why_no_answer
from gateway.backend.health import V2_PATH
from gateway.backend.questions import MLFLOW, TEMPLATE, TENSORFLOW, TORCHSERVE, V2, Answer, recognized
from gateway.config import Address
from gateway.config.values import first_of, nearest, shortened
from gateway.doctor.asking import ASK_S, REASONS, Asker, Given, endpoint_of
from gateway.doctor.filling import MISSING
from gateway.doctor.holding import find_single_connection
from gateway.doctor.model import Model, Straight, describe, first_inference, set_models
from gateway.doctor.offers import Offer, described_sample, offers_of
from gateway.doctor.report import ProblemError, Report, configuration
from gateway.doctor.template import try_sample
from gateway.doctor.through import add_grpc, cross
from gateway.errors import ErrorKind, GatewayError
from gateway.process.ports import is_free

WORKS, WORKS_WITH, UNUSABLE = 0, 1, 2
"""Exit codes: it works as it is; it works with the named settings; the server cannot be reached or used."""

MAX_SHOWN = 10
"""How many models or addresses a line names."""

THE_MODEL = "model"
"""What the only model of a server is called that gives it no name."""

_URL = re.compile(
    r"((?:[^/]*//[^/]*)?.*?)(/(?:v2(?=/|$)|v1/models(?=/|$)|invocations$|ping$|predictions(?=/|$)).*)?", re.DOTALL
)
"""The URL of a server, and the end of its path if it belongs to some protocol."""

_INDEX = "/v2/repository/index"
_LISTS = {V2: (_INDEX, "/v2/models"), TENSORFLOW: ("/v1/models",)}
"""What lists models: the index of Triton and MLServer is a list of objects, the others have a member `models`."""

_SPEAKS = {
    V2: "it speaks the V2 (Open Inference) protocol",
    TENSORFLOW: "it speaks the REST API of TensorFlow Serving, which is KServe's V1 protocol",
    MLFLOW: "it is MLflow's scoring server",
}

_GIVE = (
    "If it takes JSON in a POST, this command writes a description of it for the gateway: give --path, where it takes "
    "inferences, and --sample, a file with what it takes there"
)
_UNKNOWN = (
    "it speaks none of the protocols that the gateway knows: {}. A server that has no more of V2 than its models is "
    "recognized with --model"
)


async def examine(url: str, model: str, given: Given, *, only_yaml: bool) -> int:
    """Examine the server at *url*, with *model* for the trials if it is not empty, and return the exit code.

    Findings go to standard output; with *only_yaml* to standard error, and the configuration alone to standard output.
    Raises `ConfigError` if *url* is not that of a server, or if what is *given* cannot be used.
    """
    url, left_out, given = _meant_by(url, given)
    documents = given.documents()
    report = Report(sys.stderr if only_yaml else sys.stdout, given.settings(), dict(REASONS))
    endpoint, headers = endpoint_of(url, report.settings)
    report.block(f"{url}, examined by tensor-gateway {__version__}", "")
    report.heading("The way to it")
    if left_out:
        report.problem(
            f"{left_out} at the end of the URL belongs to each request and not to the server's address: give {url}"
        )
    try:
        asker, first = await _reach(endpoint, headers, report)
        said = Said("") if given.path else await _recognize(asker, first, Model(model), report)
        if said.dialect:
            tried = Model(await _choose_model(asker, said.dialect, model, report))
            tried, straight = await _first_inference(url, asker, said.dialect, tried, report)
        else:
            if given.path is None:
                url, asker, offer = await _offered(url, asker, first, said, report)
            else:
                offer = Offer(given.path) if documents else await described_sample(asker, given.path, url)
            said, tried = Said(TEMPLATE), Model(model or THE_MODEL)
            straight = await _try_offer(asker, offer, documents, tried.name, report)
        await find_single_connection(asker, straight, report)
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
    _print_file(url, said, report, only_yaml=only_yaml)
    works_as_it_is = report.infers and not report.has_problem and report.settings.keys() <= {"health"}
    return WORKS if works_as_it_is else WORKS_WITH


def _print_file(url: str, said: Said, report: Report, *, only_yaml: bool) -> None:
    """Print the configuration for the server at *url*. Raises `ConfigError` if `check` would refuse it."""
    endpoint_of(url, report.settings)
    found = f"In front of {said.title or 'a server'} at {url}, as `tensor-gateway doctor` found it on "
    found += f"{datetime.now(UTC):%Y-%m-%d}"
    listen, admin = (_address(port, url) for port in (8080, 9090))
    file = configuration(url, report.settings, report.reasons, listen, admin, found, report.remarks)
    if only_yaml:
        sys.stdout.write(file)
    else:
        report.heading("A configuration for it")
        report.block(file)


def _meant_by(url: str, given: Given) -> tuple[str, str, Given]:
    """The server's part of a *url* that a user has typed, the end of its path that belongs to a protocol, and options.

    With a sample, the URL's path is where the sample goes.
    """
    url = url if "://" in url else f"http://{url}"
    if given.samples and given.path is None and (path := _path_of(url)):
        return _root_of(url), "", given._replace(path=path)
    match = _URL.fullmatch(url)
    base, end = match.groups(default="") if match is not None else (url, "")
    return base.rstrip("/"), end, given


def _path_of(url: str) -> str:
    """The path in *url* with its query, which many servers need; empty if it has none."""
    path = "".join(re.findall(r"^[^/]*//[^/]*(/[^#]*)", url))
    return path if path.strip("/") else ""


def _root_of(url: str) -> str:
    """*url* without its path."""
    return "".join(re.findall(r"^[^/]*//[^/]*", url))


def _address(first: int, url: str) -> str:
    """A loopback address to listen on: the *first* port, or a later one, that is free and not the server's at *url*."""
    addresses = [Address(f"127.0.0.1:{port}") for port in range(first, first + 40, 10)]
    return next((each for each in addresses if each.port != urlsplit(url).port and is_free(each)), addresses[0])


# The way to it


async def _reach(endpoint: Endpoint, headers: Mapping[str, str], report: Report) -> tuple[Asker, Answer]:
    """Reach the server: an asker, which sends *headers*, and the answer to `GET /v2`. Raises `ProblemError`."""
    endpoint = endpoint if endpoint.addresses else await _looked_up(endpoint, report)
    asker = Asker(endpoint, headers)
    try:
        answer = await asker.get("/v2")
    except NoAnswerError as error:
        why = str(error) if error.kind is ErrorKind.TIMEOUT else await why_no_answer(endpoint, error)
        raise ProblemError(why) from None
    with suppress(NoAnswerError):
        refusal = await asker.get("/v2/models/a%2Fb")  # a gateway refuses this path in its own words
        if refusal.headers.get("proxy-status", "").startswith("tensor-gateway"):
            raise ProblemError("this is a tensor-gateway: name the inference server behind it")
    asker.judge_credentials(answer)
    report.ok(f"{endpoint.authority} answers in HTTP, the first time within {answer.seconds * 1000:.0f} ms")
    if answer.certificate:
        report.ok(f"its certificate is accepted, and valid until {answer.certificate['notAfter']}")
    return asker, answer


async def _looked_up(endpoint: Endpoint, report: Report) -> Endpoint:
    """*endpoint* with the addresses of its name, which are reported. Raises `ProblemError`."""
    host = endpoint.host
    try:
        async with asyncio.timeout(ASK_S):
            found = await resolved(endpoint)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or f"no answer within {ASK_S:g} s"
        raise ProblemError(f"the name {host} cannot be looked up: {reason}") from None
    report.ok(f"{host} is {first_of(found.addresses, MAX_SHOWN)}")
    return found


# Who it is


async def _recognize(asker: Asker, first: Answer, model: Model, report: Report) -> Said:
    """Which server answers; *first* is its answer to `GET /v2`, *model* the one to try, maybe without a name.

    Without a dialect if it speaks no protocol. Raises `NoAnswerError`.
    """
    report.heading("The server")
    said = await recognized(first, asker.get, *([model.path, f"{model.path}/infer"] if model.name else []))
    if not said.dialect:
        return said
    words = _SPEAKS[said.dialect]
    if said.title == TORCHSERVE:
        words = f"with service_envelope=kservev2 in its config.properties {words}"
    report.ok(f"{said.title}: {words}" if said.title else words)
    if said.is_binary:
        report.note(
            "it says that it reads binary tensors itself (binary_tensor_data): clients can use it without a gateway, "
            "and a gateway in front of it can pass binary through as it is"
        )
        report.set("binary", "auto", "binary passes through as it is, as long as the server says that it reads it")
    if said.dialect != V2:
        report.set("dialect", said.dialect, "what the server speaks")
    return said


async def _offered(url: str, asker: Asker, first: Answer, said: Said, report: Report) -> tuple[str, Asker, Offer]:
    """What to try of a server at *url* that speaks no protocol: its URL, what asks it, and the only offer.

    *first* is the answer to `GET /v2`, *said* has all that came. Raises `ProblemError`, which lists all offers.
    """
    path, root = _path_of(url), _root_of(url)
    if path:
        endpoint, headers = endpoint_of(root, report.settings)
        asker = Asker(endpoint if endpoint.addresses else await _looked_up(endpoint, report), headers)
        return root, asker, await described_sample(asker, path, root)
    finding = await judge(asker.endpoint, first)
    if finding is not None and not first.is_html:
        raise ProblemError(finding.words)
    offers = await offers_of(asker)
    listed = "; ".join(offer.command(url) for offer in offers)
    if len(offers) == 1 and offers[0].sample is not MISSING and "{" not in offers[0].path:
        report.note(f"{_UNKNOWN.format(said.answers)}. It offers one path, which is tried: {listed}")
        return url, asker, offers[0]
    words = finding.words if finding is not None else _UNKNOWN.format(said.answers)
    raise ProblemError(f"{words}. It offers to try: {listed}" if offers else f"{words}. {_GIVE}")


async def _try_offer(asker: Asker, offer: Offer, documents: list[Any], model: str, report: Report) -> Straight:
    """The first inference of a server that speaks no protocol. Raises `ProblemError`."""
    report.heading(f"POST {offer.path}")
    try:
        return await try_sample(asker, offer.path, documents or [offer.sample], model, report)
    except ProblemError as error:
        made = "This sample was made of the types in its /openapi.json: give a real one with --sample FILE"
        raise (ProblemError(f"{error}. {made}") if offer.is_made else error) from None


async def _choose_model(asker: Asker, dialect: str, asked_for: str, report: Report) -> str:
    """The model to try: *asked_for*, or the server's only one; else empty, and the report says why."""
    if dialect == MLFLOW:
        return asked_for or THE_MODEL
    models: list[str] = []
    for path in _LISTS[dialect]:
        models = models or await _listed(asker, path)
    shown = first_of([*map(shortened, models)], MAX_SHOWN)
    if asked_for:
        if not models or asked_for in models:
            return asked_for
        close = nearest(asked_for, models)
        meant = f", did you mean {close!r}?" if close else "."
        report.problem(f"it has no model {shortened(asked_for)!r}{meant} Its models: {shown}")
    elif len(models) == 1:
        return models[0]
    elif models:
        report.note(f"its models: {shown}. To try one: --model {models[0]}")
    else:
        report.note("it does not list its models: to try one, name it with --model")
    return ""


async def _listed(asker: Asker, path: str) -> list[str]:
    """The models in the answer to *path*, one of `_LISTS`; empty if the answer lists none."""
    try:
        if path == _INDEX:
            names = [entry.get("name") for entry in (await asker.post(path, b"{}")).json]
        else:
            names = (await asker.get(path)).member("models")
    except (NoAnswerError, TypeError, AttributeError):
        return []
    listed = names if isinstance(names, list) else []
    return list(dict.fromkeys(name for name in listed if isinstance(name, str) and name))


# Its model and its health


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
    elif dialect == TEMPLATE:
        report.note(
            "no path was found that answers 200 while the server runs. Set one with `health: {path: PATH}`: without it "
            "the gateway says that it is ready, also where the server is down"
        )
