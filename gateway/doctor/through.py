"""The same through a gateway that is started for it on a free port, with the configuration that was found.

What the doctor's table says that clients can do, was done here. Not here: what is sent straight to the server.
"""

import json
import logging
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.app import DataPlane, new_name
from gateway.config import parse
from gateway.doctor.asking import Asker, NoAnswerError, Reply
from gateway.doctor.report import Report, as_yaml, configuration
from gateway.doctor.samples import Sample, UnreadableError, binary_request, outputs_of, same
from gateway.doctor.trials import Model, Taken, Variant

ROUNDS = 5
"""How often each way is measured; the median counts."""


@asynccontextmanager
async def gateway(endpoint: str, report: Report) -> AsyncIterator[Asker]:
    """What asks a gateway in front of *endpoint* that has the settings of *report*."""
    text = configuration(endpoint, report.settings, "127.0.0.1:0", "127.0.0.1:0", "")
    log = logging.getLogger("gateway")
    quiet = logging.NullHandler()
    log.addHandler(quiet)  # what it would log is said in the findings
    plane = DataPlane(parse(f"{text}logging: {{access: none}}\n"), new_name())
    try:
        await plane.start()
        asker = Asker(plane.url)
        try:
            yield asker
        finally:
            await asker.close()
    finally:
        await plane.stop()
        log.removeHandler(quiet)


async def ask_calls(asker: Asker, model: str, report: Report) -> None:
    """Ask what clients ask beside inferences, and report what they get."""
    paths = {"live": "/v2/health/live", "ready": "/v2/health/ready", "server metadata": "/v2"}
    if model:
        base = Model(model).path
        paths |= {"model ready": f"{base}/ready", "model metadata": base, "model configuration": f"{base}/config"}
    answered, refused = [], {}
    for call, path in paths.items():
        try:
            reply = await asker.get(path)
        except NoAnswerError as error:
            refused[call] = str(error)
        else:
            if reply.status == 200:
                answered.append(call)
            else:
                refused[call] = reply.words
    if answered:
        report.ok(f"answered: {', '.join(answered)}")
    for call, words in refused.items():
        if call == "model configuration":
            report.note("not answered: model configuration, which perf_analyzer asks for and most servers do not have")
        else:
            report.note(f"not answered: {call} ({words})")
    for call in paths:
        report.can(f"ask for {call}", "yes" if call in answered else "no")


def cost(way: str, replies: Sequence[Reply]) -> tuple[str, ...]:
    """A row that says what *replies* to the same request took: the median, and the bytes each way."""
    median_s = statistics.median(reply.seconds for reply in replies)
    last = replies[-1]
    return way, f"{median_s * 1000:.1f} ms", f"{last.sent_bytes:,} bytes sent", f"{len(last.body):,} bytes back"


class ThroughTrials:
    """Inferences through the gateway, in binary."""

    def __init__(self, asker: Asker, model: Model, report: Report) -> None:
        """Rows of the table go to *report*."""
        self._asker = asker
        self._model = model
        self._report = report

    async def infer(self, samples: Sequence[Sample], *, asker: Asker | None = None, **members: object) -> Reply:
        """The answer to a binary request."""
        body, header_length = binary_request(samples, **members)
        return await (asker or self._asker).post(f"{self._model.path}/infer", body, header_length=header_length)

    async def infer_json(self, samples: Sequence[Sample]) -> Reply:
        """The answer to a request in JSON."""
        inputs = [{**each.as_member(), "data": list(each.values)} for each in samples]
        return await self._asker.post(f"{self._model.path}/infer", json.dumps({"inputs": inputs}).encode())

    async def compare(self, taken: Taken, caveat: str) -> bool:
        """Whether the trial inference crosses the gateway; says so, and if it gives the same, but for the *caveat*."""
        reply = await self.infer(taken.samples)
        if reply.status != 200:
            self._report.problem(f"in binary through the gateway it was refused: {reply.words}")
            self._report.can("infer in binary", f"no: {reply.words}")
            return False
        try:
            outputs = outputs_of(reply)
        except UnreadableError as error:
            self._report.problem(f"in binary through the gateway the answer cannot be read: {error}")
            return False
        self._report.infers = True
        if same(outputs, taken.outputs):
            self._report.ok("the trial inference gives the same values in binary through the gateway, bit for bit")
            self._report.can("infer in binary", f"yes, with the same values as straight in JSON{caveat}")
        else:
            self._report.note(
                "the trial inference gives other values through the gateway than straight. If the model always "
                "answers the same to the same request, please report this"
            )
            self._report.can("infer in binary", "yes")
        return True

    async def rows(self, taken: Taken, variants: Sequence[Variant]) -> None:
        """Try what else clients may want, and report it for the table."""
        self._report.can("infer in JSON", _outcome(await self.infer_json(taken.samples)))
        listed = [{"name": output.name, "parameters": {"binary_data": True}} for output in taken.outputs]
        reply = await self.infer(taken.samples, id="1", outputs=listed)
        self._report.can("send an id, list outputs", _outcome(reply, self._with("leave_out")))
        if len(taken.samples) == 1 and taken.samples[0].datatype != "BYTES":
            reply = await self._asker.post(f"{self._model.path}/infer", taken.samples[0].blob, header_length=0)
            outcome = _outcome(reply)
            if reply.status == 400 and "metadata" in outcome:
                outcome += ". `models` can describe them"
            self._report.can("send raw bytes (curl)", outcome)
        for variant in variants:
            reply = await self.infer(variant.samples)
            self._report.can(variant.what, _outcome(reply, self._with(variant.key)))

    def _with(self, key: str) -> str:
        """The setting that this depends on, if there is one."""
        setting = self._report.settings.get(key)
        return "" if setting is None else f", with `{key}: {as_yaml(setting.value)}`"


def _outcome(reply: Reply, words: str = "") -> str:
    """A cell of the table."""
    return f"yes{words}" if reply.status == 200 else f"no: {reply.words}"
