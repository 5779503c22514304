"""Trial inferences at a V2 server, in the gateway's JSON and in binary: whether they work, and what to set.

Each key is found out by a pair of requests, with and without the thing that the key is about: if only the request with
it is refused, the key has to be set. Not here: requests through the gateway (`through`), and servers of other dialects
(`dialect_trials`).
"""

import base64
import itertools
import json
import math
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from gateway.backend.connections import NoAnswerError
from gateway.backend.questions import Answer
from gateway.codec import DATATYPES, Kind
from gateway.doctor.asking import Asker
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
    replaced,
    same,
    sample,
    shapes,
    with_first_value,
)

MAX_TRIES = 8
"""How many shapes are tried until the model takes one."""

MAX_SIZES = 3
"""How many numbers of one refusal are tried as sizes."""

_SIZE = re.compile(r"(?<![\w.:])[1-9]\d{0,3}(?![\w.:])")
"""What may be a size in the words of a refusal, as in `expecting 10 features`."""

WITHOUT_METADATA = (Declared("x", "FP32", (1, 4)), Declared("INPUT0", "FP32", (1, 4)), Declared("x", "BYTES", (4,)))
"""The inputs that are tried if a server does not describe a model."""

_NO_TEXT = b"\xff\x00"  # not UTF-8


class Variant(NamedTuple):
    """A request that a client may want to send besides, and the key that decides what becomes of it."""

    what: str
    samples: tuple[Sample, ...]
    key: str


@dataclass(frozen=True)
class Model:
    """A model, as far as its server describes it."""

    name: str
    inputs: tuple[Declared, ...] = ()
    outputs: tuple[Declared, ...] = ()
    has_metadata: bool = False

    @property
    def path(self) -> str:
        """The model's path in V2."""
        return f"/v2/models/{quote(self.name, safe='')}"


async def describe(asker: Asker, name: str, report: Report) -> Model:
    """Ask a V2 server to describe the model *name*."""
    answer = await asker.get(Model(name).path)
    metadata = answer.json
    if answer.status != 200 or not isinstance(metadata, dict):
        report.note(f"its metadata is not told ({answer.words})")
        return Model(name)
    inputs, outputs = (_declared(metadata.get(side)) for side in ("inputs", "outputs"))
    if inputs:
        both = [", ".join(each.words for each in side) or "not told" for side in (inputs, outputs)]
        report.ok(f"inputs: {both[0]}; outputs: {both[1]}")
    else:
        report.note("its metadata does not say which inputs it has")
    return Model(name, inputs, outputs, has_metadata=True)


def _declared(listed: Any) -> tuple[Declared, ...]:
    """One side of a model's metadata, inputs or outputs; empty if it is not in V2's form."""
    try:
        found = msgspec.convert(listed, tuple[Declared, ...])
    except msgspec.ValidationError:
        return ()
    return found if all(each.datatype in DATATYPES for each in found) else ()


class RefusedError(Exception):
    """No trial inference was answered as one; the message says why."""


class Trials(ABC):
    """Asks one model of a server for inferences, in JSON. Its subclasses know the dialects."""

    def __init__(self, asker: Asker, path: str, model: Model, report: Report) -> None:
        """Inferences are sent to *path*; findings and settings go to *report*."""
        self._asker = asker
        self._path = path
        self._model = model
        self._report = report
        self.samples: tuple[Sample, ...] = ()
        self.outputs: tuple[Output, ...] = ()
        """An inference that the server has answered, once `first` has found one."""
        self.caveat = ""
        """What else must be right so that clients get right values, in words."""

    @property
    def by_client(self) -> tuple[Sample, ...]:
        """The same inputs as a client of the gateway sends them."""
        return self.samples

    @abstractmethod
    async def first(self) -> None:
        """Find an inference that the server answers. Raises `RefusedError`."""

    @abstractmethod
    def body_of(self, samples: Sequence[Sample]) -> Any:
        """The body of a request with *samples*, before it is written as JSON."""

    @abstractmethod
    def outputs_of(self, answer: Answer) -> list[Output]:
        """The outputs in an answer. Raises `UnreadableError`."""

    async def infer(self, samples: Sequence[Sample], *, is_chunked: bool = False, **members: Any) -> Answer:
        """The answer to a request with *samples*, and with further *members* if its body is an object."""
        body = self.body_of(samples)
        text = json.dumps({**members, **body} if members else body).encode()
        return await self._asker.post(self._path, text, is_chunked=is_chunked)

    async def variants(self) -> list[Variant]:
        """Other requests that clients may want to send, as far as the model's inputs allow."""
        samples = self.by_client
        with_nan = with_first_value(samples, Kind.FLOAT, math.nan)
        found = [] if with_nan is None else [Variant("send NaN", with_nan, "nonfinite")]
        return [*found, *_with_bytes(samples)]

    async def find_settings(self) -> None:
        """Find out what the server cannot take, and set the keys that make up for it."""
        self._report.heading("What it takes in JSON")
        if await self.is_taken(self.samples, is_chunked=True):
            self._report.ok("it reads bodies that are sent in chunks")
        else:
            self._report.advise("framing", "content-length", "it refuses bodies that are sent in chunks")
        await self._find_nonfinite()

    async def is_taken(self, samples: Sequence[Sample], **options: Any) -> bool:
        """Whether the server answers an inference of *samples* with a 2xx."""
        try:
            return (await self.infer(samples, **options)).is_good
        except NoAnswerError:
            return False

    async def answer_to(self, samples: Sequence[Sample]) -> Answer:
        """The server's answer to a first inference. Raises `RefusedError` if none comes, or for credentials."""
        try:
            answer = await self.infer(samples)
        except NoAnswerError as error:
            raise RefusedError(str(error)) from None
        if unauthorized := self._asker.why_unauthorized(answer):
            raise RefusedError(unauthorized)
        return answer

    async def try_all(self, candidates: Iterable[tuple[Sample, ...]]) -> None:
        """Take the first of *candidates* that the server answers. Raises `RefusedError`."""
        why = "its inputs are too large for a trial"
        waiting = deque(itertools.islice(candidates, MAX_TRIES))
        tried: set[tuple[Sample, ...]] = set()
        while waiting and len(tried) < MAX_TRIES:
            samples = waiting.popleft()
            if samples in tried:
                continue
            tried.add(samples)
            answer = await self.answer_to(samples)
            if answer.is_good:
                try:
                    self.samples, self.outputs = samples, tuple(self.outputs_of(answer))
                except UnreadableError as error:
                    raise RefusedError(
                        f"a trial inference was answered with {error}: the gateway cannot read that, nor can clients"
                    ) from None
                return
            waiting.extendleft(reversed(list(self._of_sizes_in(answer.words, samples))))
            sent = ", ".join(Declared(each.name, each.datatype, each.shape).words for each in samples)
            why = f"every trial inference was refused; the last one sent {sent}. The server's words: {answer.words}"
        raise RefusedError(why)

    def _of_sizes_in(self, words: str, samples: tuple[Sample, ...]) -> Iterator[tuple[Sample, ...]]:
        """*samples* with the sizes for their last dimension that a refusal's *words* may name."""
        if self._model.inputs or len(samples) != 1 or not samples[0].shape:
            return
        (one,) = samples
        for size in list(dict.fromkeys(map(int, _SIZE.findall(words))))[:MAX_SIZES]:
            yield (sample(one.name, one.datatype, (*one.shape[:-1], size)),)

    async def outputs_or_none(self, inference: Awaitable[Answer]) -> list[Output] | None:
        """The outputs in the answer to *inference*; None if that was refused, or if no outputs came."""
        try:
            answer = await inference
            return self.outputs_of(answer) if answer.is_good else None
        except (NoAnswerError, UnreadableError):
            return None

    async def _find_nonfinite(self) -> None:
        """Find how to write NaN: as `null`, which is JSON, unless only the literal comes back as NaN."""
        comes_back = {}
        for policy, value in (("as_null", None), ("literal", math.nan)):
            samples = with_first_value(self.samples, Kind.FLOAT, value)
            if samples is None:
                return
            if (outputs := await self.outputs_or_none(self.infer(samples))) is not None:
                comes_back[policy] = has_nan(outputs)
        if not comes_back:
            self._report.note("it refuses NaN in JSON, `null` as well as the literal: the gateway refuses such inputs")
            return
        policy = max(comes_back, key=lambda each: comes_back[each])  # the first one, if both do or neither does
        form, other = {"as_null": ("`null`", "the literal"), "literal": ("the literal NaN", "`null`")}[policy]
        words = f"it {'reads' if comes_back[policy] else 'takes'} {form} for NaN"
        if len(comes_back) == 1:
            words += f", and refuses {other}"
        self._report.advise("nonfinite", policy, words, " if inputs may hold NaN")


class V2Trials(Trials):
    """The trials of a V2 server, such as the gateway."""

    def __init__(self, asker: Asker, model: Model, report: Report) -> None:
        super().__init__(asker, f"{model.path}/infer", model, report)

    def body_of(self, samples: Sequence[Sample]) -> Any:
        """See `Trials`."""
        return {"inputs": [{**each.as_member(), "data": list(each.values)} for each in samples]}

    async def infer_binary(self, samples: Sequence[Sample], **members: Any) -> Answer:
        """The answer to a request in binary."""
        body, header_length = binary_request(samples, **members)
        return await self._asker.post(self._path, body, header_length=header_length)

    async def infer_raw(self, one: Sample) -> Answer:
        """The answer to a raw request, which has only the bytes of its one input."""
        return await self._asker.post(self._path, one.blob, header_length=0)

    def outputs_of(self, answer: Answer) -> list[Output]:
        """See `Trials`."""
        return outputs_of(answer)

    async def first(self) -> None:
        """See `Trials`."""
        inputs = self._model.inputs
        undescribed = ((sample(each.name, each.datatype, each.shape),) for each in WITHOUT_METADATA)
        await self.try_all(candidates(inputs) if inputs else undescribed)

    async def reads_binary(self) -> bool:
        """Whether the server itself reads and writes binary tensors."""
        outputs = await self.outputs_or_none(self.infer_binary(self.samples))
        return outputs is not None and same(outputs, self.outputs)

    async def find_settings(self) -> None:
        """See `Trials`."""
        await super().find_settings()
        await self._find_members()
        typed = await self._typed()
        await self._find_halves(typed)
        if "BYTES" in typed:
            await self._find_bytes(typed["BYTES"])

    async def _find_members(self) -> None:
        listed = [{"name": output.name} for output in self.outputs]
        members = {"id": "doctor", "outputs": listed, "parameters": {"trial": 1}}
        refused = [name for name, each in members.items() if not await self.is_taken(self.samples, **{name: each})]
        why = []
        if refused:
            *others, last = [f"`{name}`" for name in refused]
            why.append("it refuses requests with " + (f"{', '.join(others)} and {last}" if others else last))
        if "id" not in refused and await self._makes_ids():
            refused.insert(0, "id")
            why.append("it does not give the `id` of a request back, but one of its own")
        if why:
            self._report.advise("leave_out", refused, "; ".join(why))
        else:
            self._report.ok("it takes `id`, `outputs` and `parameters`")

    async def _makes_ids(self) -> bool:
        """Whether answers have another id than their requests, which the gateway refuses (protocol 4.10)."""
        try:
            return (await self.infer(self.samples, id="doctor")).member("id") not in (None, "", "doctor")
        except NoAnswerError:
            return False

    async def _typed(self) -> dict[str, tuple[Sample, ...]]:
        """The request with each of the datatypes that JSON carries badly, as far as the model's inputs allow."""
        found = {datatype: await self._with_datatype(datatype) for datatype in ("FP16", "BF16", "BYTES")}
        return {datatype: samples for datatype, samples in found.items() if samples is not None}

    async def _with_datatype(self, datatype: str) -> tuple[Sample, ...] | None:
        """The request with *datatype* for a tensor of its kind; None if that makes no sense.

        It does if the model has such a tensor, or takes any datatype of this kind, which another one of it shows.
        """
        samples = self.samples
        if any(each.datatype == datatype for each in samples):
            return samples
        kind = DATATYPES[datatype].kind
        kinds = [DATATYPES[each.datatype].kind for each in samples]
        if kind not in kinds and self._model.inputs:
            return None
        index = kinds.index(kind) if kind in kinds else 0
        tensor = samples[index]
        other = "BYTES" if kind is Kind.BYTES else "FP32" if tensor.datatype == "FP64" else "FP64"
        control, wanted = (
            replaced(samples, index, sample(tensor.name, each, tensor.shape)) for each in (other, datatype)
        )
        return wanted if await self.is_taken(control) else None

    async def _find_halves(self, typed: dict[str, tuple[Sample, ...]]) -> None:
        """Find out whether the server knows FP16 and BF16 by their names, if the model may get them at all."""
        refused = [each for each in ("FP16", "BF16") if each in typed and not await self.is_taken(typed[each])]
        if refused:
            words = f"it refuses {' and '.join(refused)} in JSON"
            self._report.advise("half_precision", "promote", words, " sends FP32 instead")

    async def _find_bytes(self, samples: tuple[Sample, ...]) -> None:
        """Find out whether the server decodes base64 that is marked as such."""
        index = next(index for index, each in enumerate(samples) if each.datatype == "BYTES")
        coded = tuple(base64.b64encode(str(value).encode()).decode() for value in samples[index].values)
        marked = replaced(samples, index, replace(samples[index], values=coded, content_type="base64"))
        plain, decoded = [await self.outputs_or_none(self.infer(each)) for each in (samples, marked)]
        if plain is not None and decoded is not None and same(plain, decoded):
            self._report.note("it reads base64 for BYTES that are not text: `bytes: base64`")
            self._report.note(
                "its model then gets bytes, and text only where the client names a `content_type` like `str`"
            )
            self._report.set("bytes", "base64", "it reads base64, so BYTES need not be text")
        else:
            self._report.note("it does not read base64: BYTES have to be text (UTF-8)")

    async def variants(self) -> list[Variant]:
        """See `Trials`."""
        found = await super().variants()
        for datatype, samples in (await self._typed()).items():
            if datatype != "BYTES":
                found.append(Variant(f"send {datatype}", samples, "half_precision"))
            elif samples != self.samples:
                found += _with_bytes(samples)
        return found


def _with_bytes(samples: tuple[Sample, ...]) -> list[Variant]:
    """The request with text, and with bytes that are none, in its first tensor of BYTES; nothing if it has none."""
    no_text = with_first_value(samples, Kind.BYTES, _NO_TEXT)
    if no_text is None:
        return []
    return [Variant("send BYTES that are text", samples, ""), Variant("send BYTES that are no text", no_text, "bytes")]


def candidates(inputs: Sequence[Declared]) -> Iterator[tuple[Sample, ...]]:
    """Requests to try with a model that has these *inputs*, the likeliest first."""
    choices = [shapes(declared.shape) for declared in inputs]
    for index in range(max(map(len, choices))):
        chosen = [each[min(index, len(each) - 1)] for each in choices]
        if sum(map(math.prod, chosen)) <= MAX_ELEMENTS:
            yield tuple(
                sample(declared.name, declared.datatype, shape) for declared, shape in zip(inputs, chosen, strict=True)
            )
