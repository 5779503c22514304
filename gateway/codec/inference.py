"""What an inference is in every dialect: tensors in, outputs wanted, and what a backend wants of both.

`v2` reads these values from a client and writes them for backends that speak V2. Not here: any JSON.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from gateway.codec.tensors.datatypes import FLOAT, Datatype

MAX_NAME = 64
"""The most characters of a tensor's name that stand in an error."""

MAX_SHAPE = 200
"""The most characters of a shape that stand in an error."""


class NonFinite(Enum):
    """What becomes of NaN and infinities in binary inputs (protocol 3.4)."""

    REJECT = "reject"
    AS_NULL = "as_null"
    LITERAL = "literal"


class BytesPolicy(Enum):
    """How BYTES elements become JSON strings (protocol 3.5)."""

    UTF8 = "utf8"
    BASE64 = "base64"


class HalfPrecision(Enum):
    """Whether FP16 and BF16 go out under their own names or as FP32."""

    NATIVE = "native"
    PROMOTE = "promote"


@dataclass(frozen=True, slots=True)
class TensorPolicy:
    """How one backend wants the values that JSON, or the server, cannot carry as they are."""

    nonfinite: NonFinite = NonFinite.REJECT
    bytes: BytesPolicy = BytesPolicy.UTF8
    half_precision: HalfPrecision = HalfPrecision.NATIVE
    leave_out: frozenset[str] = frozenset()
    """Members of a V2 request that the backend does not get, of `id`, `outputs` and `parameters`: strict servers refuse
    them, and the gateway, which knows what the client asked for, can do without them."""


@dataclass(frozen=True, slots=True)
class HeaderLimits:
    """How much a request or an answer may say beside the data of its tensors."""

    max_header_bytes: int = 128 * 1024
    """`limits.header`: bytes of JSON beside the data."""
    max_tensors: int = 1024
    """`limits.tensors`: inputs, requested outputs, and outputs of an answer, each."""


DEFAULT_LIMITS = HeaderLimits()


def release(views: Iterable[memoryview]) -> bool:
    """Let go of the memory behind *views*, which nobody may use any more; False if somebody still reads one."""
    try:
        for view in views:
            view.release()
    except BufferError:
        return False
    return True


class Tensor(msgspec.Struct):
    """A binary input: its blob is a view of the client's body."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    blob: memoryview
    is_base64: bool = False
    """Whether its elements, of BYTES, go out in base64 (protocol 3.5)."""

    def __str__(self) -> str:
        """How errors call it."""
        return labelled("input", self.name, self.datatype, self.shape)


class OutputSelection(msgspec.Struct, frozen=True):
    """Which outputs the client wants, and in which form (protocol 4.1, 4.5)."""

    binary_by_default: bool = False
    named: Mapping[str, bool] = {}
    """Every output the request lists, and whether it is to be binary."""
    in_shared_memory: frozenset[str] = frozenset()
    """The outputs of `named` that the backend writes into shared memory; its answer has no data for these outputs."""

    def is_wanted(self, name: str) -> bool:
        """Whether the client gets the output at all."""
        return not self.named or name in self.named

    def is_binary(self, name: str) -> bool:
        """Whether the client gets the output as a blob."""
        return self.named.get(name, self.binary_by_default)


def label_of(section: str, name: str) -> str:
    """How errors call a tensor of *section* (`input` or `output`); a long name is cut."""
    return f"{section} {name if len(name) <= MAX_NAME else name[:MAX_NAME] + '...'!r}"


def labelled(section: str, name: str, datatype: Datatype, shape: tuple[int, ...]) -> str:
    """As `label_of`, with datatype and shape: `input 'x' (FP32, shape [2, 2])`; a long shape is cut."""
    return f"{label_of(section, name)} ({datatype.name}, shape {shape_text(shape)})"


def shape_text(shape: tuple[int, ...] | list[int]) -> str:
    """*shape* for an error, cut to a readable length."""
    text = str(list(shape[:MAX_SHAPE]))
    return text if len(text) <= MAX_SHAPE else f"{text[:MAX_SHAPE]}..."


def is_half_precision(datatype: Datatype) -> bool:
    """Whether it is FP16 or BF16, which `HalfPrecision` is about."""
    return datatype.item_bytes == 2 and datatype.kind is FLOAT
