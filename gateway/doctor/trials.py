"""Trial inferences straight at a V2 server, in JSON as the gateway sends it: whether it works, and what to set.

Each key is found out by sending what it is about: what is refused while the same request without it is taken, says
what to set. Not here: what goes through the gateway (`through`), and servers of other dialects (`dialect_trials`).
"""

import base64
import itertools
import json
import math
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote

from gateway.codec import DATATYPES, Kind
from gateway.doctor.asking import Asker, NoAnswerError, Reply
from gateway.doctor.report import Report
from gateway.doctor.samples import (
    MAX_ELEMENTS,
    Declared,
    Output,
    Sample,
    UnreadableError,
    binary_request,
    has_nan,
    outputs_of,
    same,
    sample,
    shapes,
)

MAX_TRIES = 8
"""How many shapes are tried until the model takes one."""

AS_TRIED = "what the trial sent, and the server took: put the model's names, datatypes and shapes"
"""The comment beside inputs of which the server says nothing."""

MAX_SIZES = 3
"""How many numbers of one refusal are taken for sizes."""

_SIZE = re.compile(r"(?<![\w.:])[1-9]\d{0,3}(?![\w.:])")
"""What may be a size in the words of a refusal, as in `expecting 10 features`."""

WITHOUT_METADATA = (Declared("x", "FP32", (-1, 4)), Declared("INPUT0", "FP32", (-1, 4)), Declared("x", "BYTES", (-1,)))
"""What is tried where a server does not say what a model takes."""

_NO_TEXT = b"\xff\x00"  # not UTF-8


@dataclass(frozen=True)
class Taken:
    """An inference that the server has answered."""

    samples: tuple[Sample, ...]
    outputs: tuple[Output, ...]
    reply: Reply


class Variant(NamedTuple):
    """A request that a client may want to send besides, and the key that decides what becomes of it."""

    what: str
    samples: tuple[Sample, ...]
    key: str


@dataclass(frozen=True)
class Model:
    """A model of a V2 server, as it was found."""

    name: str
    inputs: tuple[Declared, ...] = ()
    """Empty if the server does not say."""
    outputs: tuple[Declared, ...] = ()
    has_metadata: bool = False

    @property
    def path(self) -> str:
        """Where it is asked."""
        return f"/v2/models/{quote(self.name, safe='')}"


async def describe(asker: Asker, name: str, report: Report) -> Model:
    """What the server says of model *name*."""
    model = Model(name)
    reply = await asker.get(model.path)
    metadata = reply.json
    if reply.status != 200 or not isinstance(metadata, dict):
        report.note(f"its metadata is not told ({reply.words})")
        return model
    model = replace(
        model, inputs=_declared(metadata, "inputs"), outputs=_declared(metadata, "outputs"), has_metadata=True
    )
    if model.inputs:
        both = [", ".join(each.words for each in side) or "not told" for side in (model.inputs, model.outputs)]
        report.ok(f"inputs: {both[0]}; outputs: {both[1]}")
    else:
        report.note("its metadata does not say which inputs it has")
    return model


def _declared(metadata: dict[str, Any], side: str) -> tuple[Declared, ...]:
    entries = metadata.get(side)
    found = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            return ()
        name, datatype, shape = (entry.get(key) for key in ("name", "datatype", "shape"))
        if not isinstance(name, str) or datatype not in DATATYPES or not isinstance(shape, list):
            return ()
        if not all(isinstance(size, int) for size in shape):
            return ()
        found.append(Declared(name, datatype, tuple(shape)))
    return tuple(found)


class RefusedError(Exception):
    """No trial inference was answered as one; the message says why."""


class Trials(ABC):
    """Asks one model of a server for inferences, in JSON. What depends on the dialect is in the two classes of it."""

    def __init__(self, asker: Asker, model: Model, report: Report) -> None:
        """Findings and settings go to *report*."""
        self._asker = asker
        self._model = model
        self._report = report

    @abstractmethod
    async def infer(
        self,
        samples: Sequence[Sample],
        *,
        asker: Asker | None = None,
        is_chunked: bool = False,
        **members: Any,
    ) -> Reply:
        """The answer to a request with these samples and further *members*."""

    @abstractmethod
    def outputs_of(self, reply: Reply) -> list[Output]:
        """The outputs in an answer. Raises `UnreadableError`."""

    async def variants(self, taken: Taken) -> list[Variant]:
        """What clients may want to send besides, as far as the model may get it."""
        with_nan = _with_float(taken, math.nan)
        found = [] if with_nan is None else [Variant("send NaN", with_nan, "nonfinite")]
        return [*found, *_with_bytes(taken.samples)]

    async def find_settings(self, taken: Taken) -> None:
        """Find out what the server cannot take, and set what makes up for it."""
        if await self.is_taken(taken.samples, is_chunked=True):
            self._report.ok("it reads bodies that are sent in chunks")
        else:
            self._report.note("it refuses bodies that are sent in chunks: `framing: content-length`")
            self._report.set("framing", "content-length", "it refuses bodies that are sent in chunks")
        await self._find_nonfinite(taken)

    async def is_taken(self, samples: Sequence[Sample], **options: Any) -> bool:
        """Whether the server answers an inference of *samples* with 200."""
        try:
            return (await self.infer(samples, **options)).status == 200
        except NoAnswerError:
            return False

    async def try_all(self, candidates: Iterable[tuple[Sample, ...]]) -> Taken:
        """The first of *candidates* that the server answers. Raises `RefusedError`."""
        why = "its inputs are too large for a trial"
        waiting = deque(itertools.islice(candidates, MAX_TRIES))
        tried: set[tuple[Sample, ...]] = set()
        while waiting and len(tried) < MAX_TRIES:
            samples = waiting.popleft()
            if samples in tried:
                continue
            tried.add(samples)
            try:
                reply = await self.infer(samples)
            except NoAnswerError as error:
                raise RefusedError(str(error)) from None
            if reply.status == 200:
                try:
                    return Taken(samples, tuple(self.outputs_of(reply)), reply)
                except UnreadableError as error:
                    raise RefusedError(
                        f"a trial inference was answered with {error}: the gateway cannot read that, nor can clients"
                    ) from None
            if unauthorized := self._asker.why_unauthorized(reply):
                raise RefusedError(unauthorized)
            waiting.extendleft(reversed(list(self._of_sizes_in(reply.words, samples))))
            sent = ", ".join(Declared(each.name, each.datatype, each.shape).words for each in samples)
            why = f"every trial inference was refused; the last one sent {sent}. The server's words: {reply.words}"
        raise RefusedError(why)

    @property
    @abstractmethod
    def knows_inputs(self) -> bool:
        """Whether the server says what the model takes."""

    def _of_sizes_in(self, words: str, samples: tuple[Sample, ...]) -> Iterator[tuple[Sample, ...]]:
        """*samples* with the sizes for their last dimension that a refusal's *words* may name."""
        if self.knows_inputs or len(samples) != 1 or not samples[0].shape:
            return
        (one,) = samples
        for size in list(dict.fromkeys(map(int, _SIZE.findall(words))))[:MAX_SIZES]:
            yield (sample(one.name, one.datatype, (*one.shape[:-1], size)),)

    async def _find_nonfinite(self, taken: Taken) -> None:
        """What stands for NaN: `null` wins, which is JSON, unless only the literal comes out as NaN again."""
        seen = {}
        for policy, value in (("as_null", None), ("literal", math.nan)):
            samples = _with_float(taken, value)
            if samples is None:
                return
            seen[policy] = await self._comes_back_as_nan(samples)
        taken_ones = [policy for policy, comes_back in seen.items() if comes_back is not None]
        if not taken_ones:
            self._report.note("it refuses NaN in JSON, `null` as well as the literal: the gateway refuses such inputs")
            return
        policy = next((each for each in taken_ones if seen[each]), taken_ones[0])
        form = {"as_null": "`null`", "literal": "the literal NaN"}[policy]
        other = {"as_null": ", and refuses the literal", "literal": ", and refuses `null`"}[policy]
        words = f"it {'reads' if seen[policy] else 'takes'} {form} for NaN{'' if len(taken_ones) == 2 else other}"
        self._report.note(f"{words}: `nonfinite: {policy}` if inputs may hold NaN")
        self._report.set("nonfinite", policy, words)

    async def _comes_back_as_nan(self, samples: Sequence[Sample]) -> bool | None:
        """Whether an inference with NaN gives NaN; None if it is refused."""
        try:
            reply = await self.infer(samples)
            return has_nan(self.outputs_of(reply)) if reply.status == 200 else None
        except (NoAnswerError, UnreadableError):
            return None


class V2Trials(Trials):
    """The trials of a V2 server."""

    @property
    def knows_inputs(self) -> bool:
        """See `Trials`."""
        return bool(self._model.inputs)

    async def infer(
        self,
        samples: Sequence[Sample],
        *,
        asker: Asker | None = None,
        is_chunked: bool = False,
        data: Any = None,
        **members: Any,
    ) -> Reply:
        """See `Trials`. *data*: what stands in place of the first input's values, and maybe beside them."""
        inputs = [{**each.as_member(), "data": list(each.values)} for each in samples]
        if data is not None:
            inputs[0] |= data
        body = json.dumps({**members, "inputs": inputs}).encode()
        return await (asker or self._asker).post(f"{self._model.path}/infer", body, is_chunked=is_chunked)

    def outputs_of(self, reply: Reply) -> list[Output]:
        """See `Trials`."""
        return outputs_of(reply)

    async def first(self) -> Taken:
        """An inference that the server answers. Raises `RefusedError`."""
        return await self.try_all(candidates(self._model.inputs) if self._model.inputs else _without_metadata())

    async def reads_binary(self, taken: Taken) -> bool:
        """Whether the server itself reads and writes binary tensors."""
        body, header_length = binary_request(taken.samples)
        try:
            reply = await self._asker.post(f"{self._model.path}/infer", body, header_length=header_length)
            return reply.status == 200 and same(outputs_of(reply), taken.outputs)
        except (NoAnswerError, UnreadableError):
            return False

    async def find_settings(self, taken: Taken) -> None:
        """See `Trials`."""
        await super().find_settings(taken)
        await self._find_members(taken)
        await self._find_halves(taken)
        await self._find_bytes(taken)

    async def _find_members(self, taken: Taken) -> None:
        listed = [{"name": output.name} for output in taken.outputs]
        refused = []
        for member, value in (("id", "doctor"), ("outputs", listed), ("parameters", {"trial": 1})):
            if not await self.is_taken(taken.samples, **{member: value}):
                refused.append(member)
        why = []
        if refused:
            *others, last = [f"`{member}`" for member in refused]
            why.append("it refuses requests with " + (f"{', '.join(others)} and {last}" if others else last))
        if "id" not in refused and await self._makes_ids(taken.samples):
            refused.insert(0, "id")
            why.append("it does not give the `id` of a request back, but one of its own")
        if why:
            words = "; ".join(why)
            self._report.note(f"{words}: `leave_out: [{', '.join(refused)}]`")
            self._report.set("leave_out", refused, words)
        else:
            self._report.ok("it takes `id`, `outputs` and `parameters`")

    async def _makes_ids(self, samples: Sequence[Sample]) -> bool:
        """Whether answers have another id than their requests, which the gateway takes for a mix-up (protocol 4.10)."""
        try:
            answer = (await self.infer(samples, id="doctor")).json
        except NoAnswerError:
            return False
        return isinstance(answer, dict) and answer.get("id") not in (None, "", "doctor")

    async def _find_halves(self, taken: Taken) -> None:
        """Whether FP16 and BF16 can go by their names, where the model may get them at all."""
        refused = []
        for datatype in ("FP16", "BF16"):
            samples = self.with_datatype(taken, datatype)
            if samples is not None and await self.may_get(taken, datatype) and not await self.is_taken(samples):
                refused.append(datatype)
        if refused:
            words = " and ".join(refused)
            self._report.note(f"it refuses {words} in JSON: `half_precision: promote` sends FP32 instead")
            self._report.set("half_precision", "promote", f"it refuses {words} in JSON")

    def with_datatype(self, taken: Taken, datatype: str) -> tuple[Sample, ...] | None:
        """The request with *datatype* for its first floats, or for its first tensor; None if it has no place for it."""
        wanted = DATATYPES[datatype].kind
        for index, each in enumerate(taken.samples):
            if each.datatype == datatype or DATATYPES[each.datatype].kind is wanted or not self._model.inputs:
                new = each if each.datatype == datatype else sample(each.name, datatype, each.shape)
                return (*taken.samples[:index], new, *taken.samples[index + 1 :])
        return None

    async def may_get(self, taken: Taken, datatype: str) -> bool:
        """Whether a tensor of *datatype* makes sense there: the model has one, or takes any datatype for this kind."""
        if any(each.datatype == datatype for each in taken.samples):
            return True
        kind = DATATYPES[datatype].kind
        control = next((each for each in taken.samples if DATATYPES[each.datatype].kind is kind), None)
        if control is None:
            if self._model.inputs:
                return False
            other = "BYTES" if kind is Kind.BYTES else "FP64"
        else:
            other = "FP32" if control.datatype == "FP64" else "FP64"
        samples = self.with_datatype(taken, other)
        return samples is not None and await self.is_taken(samples)

    async def _find_bytes(self, taken: Taken) -> None:
        """Whether the server decodes base64 that is marked as such."""
        plain = self.with_datatype(taken, "BYTES")
        if plain is None or not await self.may_get(taken, "BYTES"):
            return
        at = next(index for index, each in enumerate(plain) if each.datatype == "BYTES")
        rotated = (plain[at], *plain[:at], *plain[at + 1 :])  # `infer` changes the first one
        coded = [base64.b64encode(str(value).encode()).decode() for value in plain[at].values]
        try:
            straight = await self.infer(rotated)
            marked = await self.infer(rotated, data={"data": coded, "parameters": {"content_type": "base64"}})
            if (straight.status, marked.status) != (200, 200):
                decodes = False
            else:
                decodes = same(_decoded(outputs_of(marked)), _decoded(outputs_of(straight)))
        except (NoAnswerError, UnreadableError):
            decodes = False
        if decodes:
            self._report.note("it reads base64 for BYTES that are not text: `bytes: base64`")
            self._report.set("bytes", "base64", "it reads base64, so BYTES need not be text")
        else:
            self._report.note("it does not read base64: BYTES have to be text (UTF-8)")

    async def variants(self, taken: Taken) -> list[Variant]:
        """See `Trials`."""
        found = await super().variants(taken)
        for datatype in ("FP16", "BF16", "BYTES"):
            samples = self.with_datatype(taken, datatype)
            if samples is None or not await self.may_get(taken, datatype):
                continue
            if datatype != "BYTES":
                found.append(Variant(f"send {datatype}", samples, "half_precision"))
            elif samples != taken.samples:
                found += _with_bytes(samples)
        return found


def _with_bytes(samples: tuple[Sample, ...]) -> list[Variant]:
    """The request with text, and with bytes that are none, in its first tensor of BYTES; nothing if it has none."""
    for index, each in enumerate(samples):
        if each.datatype == "BYTES" and each.values:
            no_text = replace(each, values=(_NO_TEXT, *each.values[1:]))
            return [
                Variant("send BYTES that are text", samples, ""),
                Variant("send BYTES that are no text", (*samples[:index], no_text, *samples[index + 1 :]), "bytes"),
            ]
    return []


def as_described(taken: Taken) -> dict[str, Any]:
    """The inputs and outputs of an inference as a block of `models`; their first dimension is taken for variable."""

    def side(tensors: Iterable[Sample | Output]) -> dict[str, Any]:
        shapes_of = ((each, [-1, *each.shape[1:]] if each.shape else []) for each in tensors)
        return {each.name: {"datatype": each.datatype, "shape": shape} for each, shape in shapes_of}

    return {"inputs": side(taken.samples), "outputs": side(taken.outputs)}


def candidates(inputs: Sequence[Declared]) -> Iterator[tuple[Sample, ...]]:
    """Requests to try with a model that has these *inputs*, the likeliest first."""
    choices = [list(shapes(declared.shape)) for declared in inputs]
    for index in range(max(map(len, choices))):
        chosen = [each[min(index, len(each) - 1)] for each in choices]
        if sum(map(math.prod, chosen)) <= MAX_ELEMENTS:
            yield tuple(
                sample(declared.name, declared.datatype, shape) for declared, shape in zip(inputs, chosen, strict=True)
            )


def _without_metadata() -> Iterator[tuple[Sample, ...]]:
    for declared in WITHOUT_METADATA:
        yield (sample(declared.name, declared.datatype, next(shapes(declared.shape))),)


def _with_float(taken: Taken, value: float | None) -> tuple[Sample, ...] | None:
    """The request with *value* in its first tensor of floats; None if it has none."""
    for index, each in enumerate(taken.samples):
        if DATATYPES[each.datatype].kind is Kind.FLOAT and each.values:
            changed = replace(each, values=(value, *each.values[1:]))
            return (*taken.samples[:index], changed, *taken.samples[index + 1 :])
    return None


def _decoded(outputs: Sequence[Output]) -> list[Output]:
    """*outputs* with base64 decoded where they say so. Raises `UnreadableError`."""
    return [
        replace(output, blob=_without_base64(output.blob))
        if output.is_base64 and output.datatype == "BYTES"
        else output
        for output in outputs
    ]


def _without_base64(blob: bytes) -> bytes:
    """The elements of *blob*, a BYTES tensor, decoded. Raises `UnreadableError`."""
    decoded, at = [], 0
    while at < len(blob):
        end = at + 4 + int.from_bytes(blob[at : at + 4], "little")
        try:
            text = base64.b64decode(blob[at + 4 : end], validate=True)
        except ValueError:
            raise UnreadableError("invalid base64") from None
        decoded.append(len(text).to_bytes(4, "little") + text)
        at = end
    return b"".join(decoded)
