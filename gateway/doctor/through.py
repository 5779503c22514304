"""The trials once more, through a gateway that is started on a free port with the configuration that was found.

Each row of the doctor's table was tried here; the rows for gRPC follow from those for HTTP. Not here: requests that go
straight to the server (`trials`).
"""

import logging
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from gateway.app import DataPlane, new_name
from gateway.backend.connections import NoAnswerError
from gateway.backend.endpoints import Endpoint
from gateway.backend.questions import Answer
from gateway.client.fronts import has_grpc
from gateway.config import parse
from gateway.doctor.asking import Asker
from gateway.doctor.report import Report, as_yaml, configuration
from gateway.doctor.samples import UnreadableError, outputs_of, same
from gateway.doctor.trials import Model, Trials, V2Trials

ROUNDS = 5
"""How often each way is measured; the median counts."""


@asynccontextmanager
async def _gateway(endpoint: str, report: Report) -> AsyncIterator[Asker]:
    """An asker for a gateway in front of *endpoint*, with the settings of *report*."""
    report.heading("Through a gateway, started for this")
    text = configuration(endpoint, report.settings, "127.0.0.1:0", "127.0.0.1:0", "")
    log = logging.getLogger("gateway")
    quiet = logging.NullHandler()
    log.addHandler(quiet)  # the findings say what the gateway would log
    plane = DataPlane(parse(f"{text}logging: {{access: none}}\n"), new_name())
    try:
        await plane.start()
        yield Asker(Endpoint.parse(plane.urls[0], None))
    finally:
        await plane.stop()
        log.removeHandler(quiet)


async def try_through(url: str, straight: Trials | None, model: str, report: Report) -> None:
    """Try the same as *straight* through a gateway in front of *url*; None: no inference was answered."""
    async with _gateway(url, report) as asker:
        await _ask_calls(asker, model, report)
        if straight is None:
            report.can("infer", f"not found out: no {'trial inference was answered' if model else 'model was tried'}")
            return
        crossing = V2Trials(asker, Model(model), report)
        if not await _compare(crossing, straight, report):
            return
        ways = [
            await _cost("JSON, straight", partial(straight.infer, straight.samples)),
            await _cost("binary, through the gateway", partial(crossing.infer_binary, straight.by_client)),
        ]
        report.table("What this small inference takes: the median of five", ways)
        await _try_requests(crossing, straight, report)


async def _ask_calls(asker: Asker, model: str, report: Report) -> None:
    """Send the requests that clients send beside inferences, and report the answers."""
    paths = {"live": "/v2/health/live", "ready": "/v2/health/ready", "server metadata": "/v2"}
    if model:
        base = Model(model).path
        paths |= {"model ready": f"{base}/ready", "model metadata": base, "model configuration": f"{base}/config"}
    refused = {}
    for call, path in paths.items():
        try:
            answer = await asker.get(path)
        except NoAnswerError as error:
            refused[call] = str(error)
        else:
            if answer.status != 200:
                refused[call] = answer.words
        report.can(f"ask for {call}", "no" if call in refused else "yes")
    if answered := [call for call in paths if call not in refused]:
        report.ok(f"answered: {', '.join(answered)}")
    for call, words in refused.items():
        is_usual = call == "model configuration"
        why = ", which perf_analyzer asks for and most servers do not have" if is_usual else f" ({words})"
        report.note(f"not answered: {call}{why}")


async def _cost(way: str, infer: Callable[[], Awaitable[Answer]]) -> tuple[str, ...]:
    """A row of the table: the median time of *infer*, the same request each time, and the bytes each way."""
    answers = [await infer() for _ in range(1 + ROUNDS)]
    median_s = statistics.median(answer.seconds for answer in answers[1:])
    last = answers[-1]
    return way, f"{median_s * 1000:.1f} ms", f"{last.sent_bytes:,} bytes sent", f"{len(last.body):,} bytes back"


async def _compare(crossing: V2Trials, straight: Trials, report: Report) -> bool:
    """Send the trial inference of *straight* through the gateway, and report whether the outputs are the same."""
    answer = await crossing.infer_binary(straight.by_client)
    if answer.status != 200:
        report.problem(f"in binary through the gateway it was refused: {answer.words}")
        report.can("infer in binary", f"no: {answer.words}")
        return False
    try:
        outputs = outputs_of(answer)
    except UnreadableError as error:
        report.problem(f"in binary through the gateway the answer cannot be read: {error}")
        return False
    report.infers = True
    if same(outputs, straight.outputs):
        report.ok("the trial inference gives the same values in binary through the gateway, bit for bit")
        report.can("infer in binary", f"yes, with the same values as straight in JSON{straight.caveat}")
    else:
        report.note(
            "the trial inference gives other values through the gateway than straight. If the model always answers the "
            "same to the same request, please report this"
        )
        report.can("infer in binary", "yes")
    return True


async def _try_requests(crossing: V2Trials, straight: Trials, report: Report) -> None:
    """Try the other requests that clients may want to send, and add them to the table."""
    samples = straight.by_client

    def outcome(answer: Answer, key: str = "") -> str:
        setting = report.settings.get(key)
        with_it = "" if setting is None else f", with `{key}: {as_yaml(setting.value)}`"
        return f"yes{with_it}" if answer.status == 200 else f"no: {answer.words}"

    report.can("infer in JSON", outcome(await crossing.infer(samples)))
    listed = [{"name": output.name, "parameters": {"binary_data": True}} for output in straight.outputs]
    answer = await crossing.infer_binary(samples, id="1", outputs=listed)
    report.can("send an id, list outputs", outcome(answer, "leave_out"))
    if len(samples) == 1 and samples[0].datatype != "BYTES":
        answer = await crossing.infer_raw(samples[0])
        is_undescribed = answer.status == 400 and "metadata" in answer.words
        more = ". `models` can describe them" if is_undescribed else ""
        report.can("send raw bytes (curl)", f"{outcome(answer)}{more}")
    for variant in await straight.variants():
        report.can(variant.what, outcome(await crossing.infer_binary(variant.samples), variant.key))


def add_grpc(report: Report) -> None:
    """Add the rows for gRPC: a call over gRPC is served as the same call over HTTP."""
    over_http = dict(report.abilities)
    refused = [what.removeprefix("ask for ") for what, words in report.abilities if words == "no"]
    infer = over_http.get("infer in binary", "not found out")
    if infer.startswith("yes"):
        infer = "yes, as in binary; FP16 and BF16 as raw contents only, as tritonclient sends them"
    before = "" if has_grpc() else "pip install 'tensor-gateway[grpc]', and "
    report.can("use gRPC", f"{before}set `grpc: ADDRESS`; the rows below follow from those of HTTP above")
    report.can("gRPC: infer, stream", infer)
    report.can("gRPC: ask", f"as over HTTP: all but {', '.join(refused)}" if refused else "as over HTTP: all")
    report.can("gRPC: repository, stats", "if the server has them over HTTP, which was not tried")
    report.can("gRPC: shared memory, traces", "no")
