"""A server that speaks no protocol, tried with a sample of what it takes: a template is guessed from both sides of it.

Not here: which tensors a document has (`guess`).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.backend.questions import TEMPLATE
from gateway.doctor.asking import Asker
from gateway.doctor.guess import Guess
from gateway.doctor.model import CAVEAT, GUESSED_OUTPUTS, Straight, answer_to
from gateway.doctor.report import ProblemError, Report
from gateway.doctor.tensors import UnreadableError

MAX_SHOWN = 300
"""How many characters of the answer to the sample are shown."""

_GUESSED = "GUESSED from the numbers of one sample: put the datatypes that the model takes"


async def described_sample(asker: Asker, path: str) -> Any:
    """The example that the server's `/openapi.json` has for `POST` *path*. Raises `ProblemError` without one."""
    document = (await asker.get("/openapi.json")).json
    for example in _examples(document, path):
        return example
    raise ProblemError(f"the server's /openapi.json has no example of a request to {path}: give one with --sample FILE")


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


async def try_sample(asker: Asker, path: str, document: Any, model: str, report: Report) -> Straight:
    """Send *document* to *path*, and set the template that it and the answer show. Raises `ProblemError`."""
    sent = _guessed("the sample", document, "input")
    if not sent.tensors:
        raise ProblemError("the sample has no value that could be an input")
    if sent.differing:
        raise ProblemError(
            f"the rows of the sample differ at {', '.join(sent.differing)} in values that no tensor can have: give a "
            "sample with one row"
        )
    body = json.dumps(document).encode()
    answer = await answer_to(asker, path, body)
    if not answer.is_good:
        question = ". Is it another --path?" if answer.status in (404, 405) else ""
        raise ProblemError(f"the sample was refused: {answer.words}{question}")
    text = answer.body.decode(errors="replace")
    report.ok(f"POST {path} with the sample: {text[:MAX_SHOWN]}{'...' if len(text) > MAX_SHOWN else ''}")
    came = _guessed("the answer to the sample", answer.json, "output", is_answer=True)
    if answer.json is None or not came.tensors:
        raise ProblemError("the answer to the sample is no JSON that has outputs in it")
    inputs, outputs = sent.described(), came.described()
    shown = ", ".join(f"{name} {each['datatype']}" for name, each in (inputs | outputs).items())
    report.problem(
        f"neither the sample nor its answer says datatypes. Guessed from their values: {shown}. Put under `models` "
        "the datatypes that the model takes and computes: clients must send the former, and get the latter"
    )
    report.set("dialect", TEMPLATE, "it speaks no protocol: `models` says what it gets and what it answers")
    request = {"path": path, "body": sent.body}
    block = {"inputs": inputs, "outputs": outputs, "request": request, "answer": came.paths}
    why = "what is sent, and where the outputs stand, as the sample shows it"
    report.set("models", {model: block}, why, comments={"inputs": _GUESSED, "outputs": GUESSED_OUTPUTS})
    return Straight(path, body, tuple(sent.tensors.values()), tuple(came.tensors.values()), caveat=CAVEAT)


def _guessed(where: str, document: Any, only: str, *, is_answer: bool = False) -> Guess:
    try:
        return Guess(document, only, is_answer=is_answer)
    except UnreadableError as error:
        raise ProblemError(f"{where} has {error}") from None
