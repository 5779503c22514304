"""The trials in binary, through gateways that are started on free ports with the configuration that was found.

Each row of the doctor's table was tried here; the rows for gRPC follow from those for HTTP. What the server cannot take
is found out by the same requests: of the values that a key may have, the one is set with which they are answered. Not
here: requests that go straight to the server (`model`).
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.backend.connections import NoAnswerError
from gateway.backend.questions import V2, Answer
from gateway.client.listeners import has_grpc
from gateway.codec.tensors.datatypes import Kind
from gateway.doctor.asking import TRIAL_S, Asker, gateway
from gateway.doctor.model import Model, Straight
from gateway.doctor.report import Report, as_yaml
from gateway.doctor.tensors import Tensor, UnreadableError, binary_request, filled, outputs_of, same, sample

ROUNDS = 5
"""How often each way is measured, after a first time that does not count."""


class Wish(NamedTuple):
    """Something that clients may want to send."""

    what: str
    inputs: tuple[Tensor, ...]
    """Nothing if the model does not allow it."""
    key: str = ""
    """The backend's, which decides what becomes of it."""
    values: tuple[str | None, ...] = ()
    """Values of the key to try, the likeliest first; None: as it is."""
    tried: tuple[Tensor, ...] = ()
    """What is sent to try the values, if not `inputs`."""
    expected: tuple[Tensor, ...] = ()
    """The outputs that show that a value does; nothing: any do."""


async def ask_calls(url: str, model: Model, report: Report) -> None:
    """Send the requests that clients send beside inferences, and report the answers."""
    report.heading("Through a gateway, started for this")
    paths = {"live": "/v2/health/live", "ready": "/v2/health/ready", "server metadata": "/v2"}
    if model.name:
        base = model.path
        paths |= {"model ready": f"{base}/ready", "model metadata": base, "model configuration": f"{base}/config"}
    async with gateway(url, report.settings) as asker:
        answers = {call: await asker.get(path) for call, path in paths.items()}
    if answered := [call for call, answer in answers.items() if answer.status == 200]:
        report.ok(f"answered: {', '.join(answered)}")
    for call, answer in answers.items():
        report.can(f"ask for {call}", "yes" if call in answered else "no")
        if call not in answered:
            is_usual = call == "model configuration"
            why = ", which perf_analyzer asks for and most servers do not have" if is_usual else f" ({answer.words})"
            report.note(f"not answered: {call}{why}")


async def cross(url: str, asker: Asker, model: Model, straight: Straight | None, report: Report) -> None:
    """Try what clients want through gateways; *straight* is the inference that was answered by *asker*'s server."""
    if straight is not None:
        await _find_framing(asker, straight, report)
    await ask_calls(url, model, report)
    if straight is None:
        tried = "trial inference was answered" if model.name else "model was tried"
        report.can("infer", f"not found out: no {tried}")
        return
    crossing = Crossing(url, straight, model, report)
    if await crossing.is_answered():
        if crossing.is_v2 and "binary" not in report.settings:
            await crossing.find_binary()
        await crossing.measure(asker)
        await crossing.try_others()


async def _find_framing(asker: Asker, straight: Straight, report: Report) -> None:
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(straight.body), straight.body)
    fields = [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")]
    try:
        is_read = (await asker.ask("POST", straight.path, chunked, fields, TRIAL_S)).is_good
    except NoAnswerError:
        is_read = False
    if is_read:
        report.ok("it reads bodies that are sent in chunks")
    else:
        report.advise("framing", "content-length", "it refuses bodies that are sent in chunks")


@dataclass(frozen=True)
class Crossing:
    """The inference that was answered straight, and others like it, through gateways."""

    url: str
    straight: Straight
    model: Model
    report: Report

    @property
    def is_v2(self) -> bool:
        """Whether the server got the inference in V2."""
        return self.straight.dialect == V2

    async def post(self, *request: Any, **settings: Any) -> Answer:
        """The answer to an inference, body and header length, through a gateway that also has *settings*."""
        async with gateway(self.url, {**self.report.settings, **settings}) as asker:
            return await asker.post(f"{self.model.path}/infer", *request)

    async def infer(self, inputs: Sequence[Tensor], **members: Any) -> Answer:
        """The answer to *inputs* in binary and further *members*."""
        return await self.post(*binary_request(inputs, **members))

    async def outputs(self, inputs: Sequence[Tensor], **settings: Any) -> tuple[Tensor, ...] | None:
        """The outputs in the answer to *inputs* with *settings*; None if there are none."""
        try:
            return outputs_of(await self.post(*binary_request(inputs), **settings))
        except UnreadableError:
            return None

    async def is_answered(self) -> bool:
        """Whether the inference is answered in binary, which is reported, as are its outputs if they are others."""
        answer = await self.infer(self.straight.inputs)
        try:
            outputs = outputs_of(answer)
        except UnreadableError as error:
            words = answer.words if answer.status != 200 else f"the answer cannot be read: {error}"
            self.report.problem(f"in binary through the gateway it was refused: {words}")
            self.report.can("infer in binary", f"no: {words}")
            return False
        self.report.infers = True
        if self.straight.tried:
            await self._compare()
        elif same(outputs, self.straight.outputs):
            self.report.ok("the trial inference gives the same values in binary through the gateway, bit for bit")
            self.report.can("infer in binary", "yes, with the same values as straight in JSON")
        else:
            self.report.note(
                "the trial inference gives other values through the gateway than straight. If the model always answers "
                "the same to the same request, please report this"
            )
            self.report.can("infer in binary", "yes")
        return True

    async def _compare(self) -> None:
        """Send all that was tried straight of a template, and report every difference."""
        n_same, n_rows, different = 0, 0, []
        async with gateway(self.url, self.report.settings) as asker:
            for number, tried in enumerate(self.straight.tried, 1):
                answer = await asker.post(f"{self.model.path}/infer", *binary_request(tried.inputs))
                try:
                    outputs = outputs_of(answer)
                except UnreadableError as error:
                    words = answer.words if answer.status != 200 else str(error)
                    different.append(f"request {number}, of {tried.n_rows} rows, was refused: {words}")
                    continue
                if wrong := self._other_outputs(outputs, tried.outputs):
                    different.append(f"request {number}, of {tried.n_rows} rows: other values of {', '.join(wrong)}")
                n_same, n_rows = n_same + (not wrong), n_rows + tried.n_rows * (not wrong)
        constants = "; ".join(self.straight.constants)
        beside = f"with these constants: {constants}" if constants else "nothing in the body is constant"
        counted = f"{n_same} varied requests ({n_rows} rows) gave {self._compared()}, {beside}"
        for words in different:
            self.report.problem(f"through the gateway {words}. Straight to the server it was answered otherwise")
        if different:
            n_tried = len(self.straight.tried)
            self.report.can("infer in binary", f"not always: {len(different)} of {n_tried} are refused or differ")
        elif all(each.name in self.straight.unstable for each in self.straight.outputs):
            self.report.note(f"in binary through the gateway: {counted}")
            self.report.can("infer in binary", f"yes; {counted}")
        else:
            self.report.ok(f"in binary through the gateway, bit for bit: {counted}")
            self.report.can("infer in binary", f"yes; {counted}")

    def _compared(self) -> str:
        """What was the same through the gateway as straight, where nothing differs that can be compared."""
        names = [each.name for each in self.straight.outputs]
        unstable = [name for name in names if name in self.straight.unstable]
        if len(unstable) == len(names):
            return "answers of the same form, whose values differ for the same request and could not be compared"
        without = f" (without {', '.join(unstable)}, never the same)" if unstable else ""
        return f"the same values as straight{without}"

    def _other_outputs(self, outputs: Sequence[Tensor], right: Sequence[Tensor]) -> list[str]:
        """The names of *outputs* that are not as in *right*; of those that are never the same, the shape counts."""
        came = {each.name: each for each in outputs}
        wrong = []
        for each in right:
            other = came.pop(each.name, None)
            if each.name in self.straight.unstable:
                is_same = other is not None and (other.datatype, len(other.shape)) == (each.datatype, len(each.shape))
            else:
                is_same = other == each
            if not is_same:
                wrong.append(each.name)
        return [*wrong, *came]

    async def find_binary(self) -> None:
        """Find out whether the server reads and writes binary tensors itself, though it does not say so."""
        outputs = await self.outputs(self.straight.inputs, binary="always")
        if outputs is not None and same(outputs, self.straight.outputs):
            why = "it reads binary itself, though it does not say so"
            self.report.advise("binary", "always", why, ", or clients can use it without a gateway")
        else:
            self.report.ok("it refuses binary tensors: this is what the gateway is for")

    async def measure(self, asker: Asker) -> None:
        """Report what the inference takes straight, from *asker*, and in binary: median time, and bytes each way."""
        path, body = self.straight.path, self.straight.body
        request = binary_request(self.straight.inputs)
        async with gateway(self.url, self.report.settings) as crossing:
            answers = {
                "JSON, straight": [await asker.post(path, body) for _ in range(1 + ROUNDS)],
                "binary, through the gateway": [
                    await crossing.post(f"{self.model.path}/infer", *request) for _ in range(1 + ROUNDS)
                ],
            }
        ways = []
        for way, (_, *counted) in answers.items():
            median_ms = statistics.median(answer.seconds for answer in counted) * 1000
            sizes = f"{counted[-1].sent_bytes:,} bytes sent", f"{len(counted[-1].body):,} bytes back"
            ways.append((way, f"{median_ms:.1f} ms", *sizes))
        self.report.table("What this small inference takes: the median of five", ways)

    async def try_others(self) -> None:
        """Try the other requests that clients may want to send, and add them to the table.

        The keys with which the server takes them are found out and set, if it does not read binary itself.
        """
        wishes, inputs = await self._wishes(), self.straight.inputs
        if "binary" not in self.report.settings and (wishes or self.is_v2):
            self.report.heading("What it takes in JSON")
            if self.is_v2:
                await self._find_members()
            for wish in wishes:
                await self._find_value(wish)
        in_json = [{**each.member, "data": each.values} for each in inputs]
        self._can("infer in JSON", await self.post(json.dumps({"inputs": in_json}).encode()))
        listed = [{"name": output.name, "parameters": {"binary_data": True}} for output in self.straight.outputs]
        self._can("send an id, list outputs", await self.infer(inputs, id="1", outputs=listed), "leave_out")
        if len(inputs) == 1 and inputs[0].datatype != "BYTES":
            self._can("send raw bytes (curl)", await self.post(inputs[0].blob, 0))
        for wish in wishes:
            self._can(f"send {wish.what}", await self.infer(wish.inputs), wish.key)

    async def _find_value(self, wish: Wish) -> None:
        """Find the value of its key with which the server takes what is wished for, and set it."""
        for value in wish.values:
            outputs = await self.outputs(wish.tried or wish.inputs, **({} if value is None else {wish.key: value}))
            if outputs is not None and (not wish.expected or same(outputs, wish.expected)):
                if value is not None:
                    self.report.advise(wish.key, value, f"for {wish.what}")
                return

    async def _find_members(self) -> None:
        """Find out which members of a request make it fail; of the `id` also an answer that has another one."""
        listed = [{"name": output.name} for output in self.straight.outputs]
        members = {"id": "doctor", "outputs": listed, "parameters": {"trial": 1}}
        answers = {name: await self.infer(self.straight.inputs, **{name: each}) for name, each in members.items()}
        refused = [name for name, answer in answers.items() if not answer.is_good]
        if refused:
            words = " and ".join(", ".join(f"`{name}`" for name in refused).rsplit(", ", 1))
            why = f" (the first: {answers[refused[0]].words})"
            self.report.advise("leave_out", refused, f"requests with {words} fail", why)
        else:
            self.report.ok("it takes `id`, `outputs` and `parameters`")

    async def _wishes(self) -> list[Wish]:
        """What else clients may want to send, as far as the model allows it."""
        inputs, texts = self.straight.inputs, self._with("BYTES")
        # a server that decodes base64 answers as to the text itself
        plain = (await self.outputs(texts) if texts else None) or ()
        base64 = ("base64",) if self.is_v2 and plain else ()
        octets = filled(texts, Kind.BYTES, b"\xff\x00")
        wishes = [
            Wish("NaN", filled(inputs, Kind.FLOAT, math.nan), "nonfinite", ("as_null", "literal")),
            *(Wish(each, self._with(each), "half_precision", (None, "promote")) for each in ("FP16", "BF16")),
            Wish("BYTES that are text", texts),
            Wish("BYTES that are no text", octets, "bytes", base64, texts, plain),
        ]
        return [wish for wish in wishes if wish.inputs]

    def _with(self, datatype: str) -> tuple[Tensor, ...]:
        """The inputs if *datatype* is among them, or may be, because nothing is known of the model; else nothing."""
        first, *others = self.straight.inputs
        if any(each.datatype == datatype for each in self.straight.inputs):
            return self.straight.inputs
        is_unknown = self.is_v2 and not self.model.inputs
        return (sample(first.name, datatype, first.shape), *others) if is_unknown else ()

    def _can(self, what: str, answer: Answer, key: str = "") -> None:
        """Add a row for a request whose *answer* may have needed the backend's *key*."""
        value = self.report.settings.get(key)
        with_it = "" if value is None else f", with `{key}: {as_yaml(value)}`"
        self.report.can(what, f"yes{with_it}" if answer.status == 200 else f"no: {answer.words}")


def add_grpc(report: Report) -> None:
    """Add the row for gRPC: a call over gRPC is served as the same call over HTTP."""
    before = "" if has_grpc() else "pip install 'tensor-gateway[grpc]', and "
    words = "as over HTTP, FP16 and BF16 in raw contents alone; no shared memory and no traces"
    report.can("use gRPC", f"{before}set `grpc: ADDRESS`: {words}")
