"""The trials in binary, through gateways that are started on free ports with the configuration that was found.

Each row of the doctor's table was tried here; the rows for gRPC follow from those for HTTP. What the server cannot take
is found out by the same requests: of the values that a key may have, the one is set with which they are answered. Not
here: requests that go straight to the server (`model`).
"""

import json
import math
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.backend.questions import Answer
from gateway.client.fronts import has_grpc
from gateway.codec import DATATYPES, Kind
from gateway.doctor.asking import Asker, gateway
from gateway.doctor.model import Model, Straight
from gateway.doctor.report import Report, Setting, as_yaml
from gateway.doctor.tensors import (
    Tensor,
    UnreadableError,
    binary_request,
    has_nan,
    outputs_of,
    same,
    sample,
    with_first_value,
)

ROUNDS = 5
"""How often each way is measured; the median counts."""

_NO_TEXT = b"\xff\x00"  # not UTF-8

_TEXTS, _OCTETS = "BYTES that are text", "BYTES that are no text"
_KEYS = {"NaN": "nonfinite", "FP16": "half_precision", "BF16": "half_precision", _TEXTS: "", _OCTETS: "bytes"}
"""What else clients may want to send, and the key that decides what becomes of it."""


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


@dataclass(frozen=True)
class Crossing:
    """The inference that was answered straight, and others like it, through gateways."""

    url: str
    straight: Straight
    model: Model
    report: Report
    is_v2: bool

    async def post(self, *request: Any, **settings: Any) -> Answer:
        """The answer to an inference, body and header length, through a gateway that also has *settings*."""
        added = {key: Setting(value, "") for key, value in settings.items()}
        async with gateway(self.url, {**self.report.settings, **added}) as asker:
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
        if same(outputs, self.straight.outputs):
            self.report.ok("the trial inference gives the same values in binary through the gateway, bit for bit")
            self.report.can("infer in binary", f"yes, with the same values as straight in JSON{self.straight.caveat}")
        else:
            self.report.note(
                "the trial inference gives other values through the gateway than straight. If the model always answers "
                "the same to the same request, please report this"
            )
            self.report.can("infer in binary", "yes")
        return True

    async def find_binary(self, *, is_said: bool) -> None:
        """Find out whether the server reads and writes binary tensors itself; *is_said*: by its own words."""
        value = "auto" if is_said else "always"
        outputs = await self.outputs(self.straight.inputs, binary=value)
        is_read = outputs is not None and same(outputs, self.straight.outputs)
        if is_read and is_said:
            why = "binary passes through as it is, as long as the server says that it reads it"
            self.report.set("binary", value, why)
        elif is_read:
            self.report.note(
                "it reads binary tensors itself, though it does not say so: clients can use it without a gateway, or "
                "the gateway passes them through: `binary: always`"
            )
            self.report.set("binary", value, "it reads binary itself, though it does not say so")
        elif is_said:
            self.report.problem("it says that it reads binary tensors, and refuses them or answers something else")
        else:
            self.report.ok("it refuses binary tensors: this is what the gateway is for")

    async def measure(self, asker: Asker) -> None:
        """Report what the inference takes straight, from *asker*, and in binary."""
        path, body = self.straight.path, self.straight.body
        async with gateway(self.url, self.report.settings) as crossing:
            in_binary = partial(crossing.post, f"{self.model.path}/infer", *binary_request(self.straight.inputs))
            ways = [
                await _cost("JSON, straight", partial(asker.post, path, body)),
                await _cost("binary, through the gateway", in_binary),
            ]
        self.report.table("What this small inference takes: the median of five", ways)

    # What else clients may want to send

    async def others(self) -> dict[str, tuple[Tensor, ...]]:
        """The inputs with what else clients may want to send, as far as the model allows it: keys of `_KEYS`."""
        inputs = self.straight.inputs
        found = {"NaN": with_first_value(inputs, Kind.FLOAT, math.nan)}
        for what, datatype in (("FP16", "FP16"), ("BF16", "BF16"), (_TEXTS, "BYTES")):
            is_there = any(each.datatype == datatype for each in inputs)
            found[what] = inputs if is_there else await self._with_datatype(datatype) if self.is_v2 else ()
        found[_OCTETS] = with_first_value(found[_TEXTS], Kind.BYTES, _NO_TEXT)
        return {what: inputs for what, inputs in found.items() if inputs}

    async def _with_datatype(self, datatype: str) -> tuple[Tensor, ...]:
        """The inputs with *datatype* for one of its kind; nothing if that makes no sense.

        It does if the model takes any datatype of this kind, which another one of it shows.
        """
        inputs = self.straight.inputs
        kind = DATATYPES[datatype].kind
        kinds = [DATATYPES[each.datatype].kind for each in inputs]
        if kind not in kinds and self.model.inputs:
            return ()
        index = kinds.index(kind) if kind in kinds else 0
        old = inputs[index]
        other = "BYTES" if kind is Kind.BYTES else "FP32" if old.datatype == "FP64" else "FP64"
        control, wanted = (
            (*inputs[:index], sample(old.name, each, old.shape), *inputs[index + 1 :]) for each in (other, datatype)
        )
        return wanted if (await self.infer(control)).is_good else ()

    async def find_settings(self, others: Mapping[str, tuple[Tensor, ...]]) -> None:
        """Find out what of *others* the server cannot take, and set the keys that make up for it."""
        if self.is_v2 or "NaN" in others:
            self.report.heading("What it takes in JSON")
        if "NaN" in others:
            await self._find_nonfinite(others["NaN"])
        if self.is_v2:
            await self._find_members()
            halves = [each for each in ("FP16", "BF16") if each in others]
            if refused := [each for each in halves if not (await self.infer(others[each])).is_good]:
                words = f"it refuses {' and '.join(refused)} in JSON"
                self.report.advise("half_precision", "promote", words, " sends FP32 instead")
            if _TEXTS in others:
                await self._find_bytes(others[_TEXTS])

    async def _find_nonfinite(self, inputs: tuple[Tensor, ...]) -> None:
        """Find how to write NaN: as `null`, which is JSON, unless only the literal comes back as NaN."""
        comes_back = {}
        for policy in ("as_null", "literal"):
            outputs = await self.outputs(inputs, nonfinite=policy)
            if outputs is not None:
                comes_back[policy] = has_nan(outputs)
        if not comes_back:
            self.report.note("it refuses NaN in JSON, `null` as well as the literal: the gateway refuses such inputs")
            return
        policy = max(comes_back, key=lambda each: comes_back[each])  # the first one, if both do or neither does
        form, other = {"as_null": ("`null`", "the literal"), "literal": ("the literal NaN", "`null`")}[policy]
        words = f"it {'reads' if comes_back[policy] else 'takes'} {form} for NaN"
        if len(comes_back) == 1:
            words += f", and refuses {other}"
        self.report.advise("nonfinite", policy, words, " if inputs may hold NaN")

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

    async def _find_bytes(self, inputs: tuple[Tensor, ...]) -> None:
        """Find out whether the server decodes base64 that is marked as such."""
        plain, decoded = [await self.outputs(inputs, bytes=each) for each in ("utf8", "base64")]
        if plain is not None and decoded is not None and same(plain, decoded):
            self.report.note("it reads base64 for BYTES that are not text: `bytes: base64`")
            self.report.note(
                "its model then gets bytes, and text only where the client names a `content_type` like `str`"
            )
            self.report.set("bytes", "base64", "it reads base64, so BYTES need not be text")
        else:
            self.report.note("it does not read base64: BYTES have to be text (UTF-8)")

    async def fill_table(self, others: Mapping[str, tuple[Tensor, ...]]) -> None:
        """Try the other requests that clients may want to send, and add them to the table."""
        inputs = self.straight.inputs
        in_json = [{**each.member, "data": each.values} for each in inputs]
        self._can("infer in JSON", await self.post(json.dumps({"inputs": in_json}).encode()))
        listed = [{"name": output.name, "parameters": {"binary_data": True}} for output in self.straight.outputs]
        self._can("send an id, list outputs", await self.infer(inputs, id="1", outputs=listed), "leave_out")
        if len(inputs) == 1 and inputs[0].datatype != "BYTES":
            answer = await self.post(inputs[0].blob, 0)
            is_undescribed = answer.status == 400 and "metadata" in answer.words
            self._can("send raw bytes (curl)", answer, more=". `models` can describe them" if is_undescribed else "")
        for what, other in others.items():
            self._can(f"send {what}", await self.infer(other), _KEYS[what])

    def _can(self, what: str, answer: Answer, key: str = "", more: str = "") -> None:
        """Add a row for a request whose *answer* may have needed the backend's *key*."""
        setting = self.report.settings.get(key)
        with_it = "" if setting is None else f", with `{key}: {as_yaml(setting.value)}`"
        self.report.can(what, f"yes{with_it}" if answer.status == 200 else f"no: {answer.words}{more}")


async def _cost(way: str, infer: Callable[[], Awaitable[Answer]]) -> tuple[str, ...]:
    """A row of the table: the median time of *infer*, the same request each time, and the bytes each way."""
    answers = [await infer() for _ in range(1 + ROUNDS)]
    median_s = statistics.median(answer.seconds for answer in answers[1:])
    last = answers[-1]
    return way, f"{median_s * 1000:.1f} ms", f"{last.sent_bytes:,} bytes sent", f"{len(last.body):,} bytes back"


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
