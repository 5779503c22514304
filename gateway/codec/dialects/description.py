"""What is known of a model: its inputs and outputs, and how its server wants to be asked.

Answers in other dialects than V2 say neither the datatype of an output nor, with only one output, its name. Both come
from here: from the server's own description, and from `models` in the configuration.
"""

import glob
import math
from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec
import yaml
from msgspec import structs

from gateway.codec.dialects.body import Body
from gateway.codec.dialects.declared import ANY, TensorDescription
from gateway.codec.dialects.paths import AnswerForm, Step
from gateway.codec.inference import MAX_NAME, OutputSelection, Tensor, label_of
from gateway.errors import CodecError

NAMELESS_INPUT = "input"
"""What V2's metadata calls an input without a name."""

OCTETS_SUFFIX = "_bytes"
"""How the names of BYTES tensors end that TensorFlow Serving takes for octets, which it writes in base64."""

MAX_NAMED = 20
"""The most inputs or outputs that an error names."""


ALL_ROWS = 0
"""As `Template.rows`: a request has all rows."""


class Template(msgspec.Struct, frozen=True):
    """How a server is asked for one model that speaks no protocol: the dialect `template`."""

    path: str
    """Of inferences; `{model}` and `{version}` stand for those of the client's path."""
    body: Body
    answer: AnswerForm
    error: tuple[Step, ...] = ()
    """Where errors have their reason, behind `$`; empty: where those of all servers have it."""
    rows: int = ALL_ROWS
    """The most rows that one request has. With 1 the body gets the row itself, without its dimension of rows."""
    parallel: int = 4
    """How many requests for one inference are under way at once, where `rows` makes several."""


class ModelDescription(msgspec.Struct, frozen=True):
    """A model; what is empty is not known, or left to the dialect."""

    inputs: Mapping[str, TensorDescription] = {}
    """Every input that is known, by name."""
    outputs: Mapping[str, TensorDescription] = {}
    """Every output that is known, by name."""
    format: str = ""
    """Which of the dialect's forms requests have."""
    signature: str = ""
    """Which of the model's signatures is used, only where the configuration says so."""
    versions: tuple[str, ...] = ()
    platform: str = ""
    """As in V2's metadata: what the model was made with."""
    has_output_order: bool = False
    """Whether the outputs stand in the order in which answers have them without their names. Only the configuration
    can say that: servers that describe a model do so in any order."""
    template: Template | None = None
    is_complete: bool = False
    """Whether all inputs and outputs are named, which only a server or a template can say."""
    fault: str = ""
    """Why the server's own description of the model cannot be used; empty if it can."""

    def input_called(self, name: str) -> TensorDescription | None:
        """What is known of the input that a client calls *name*, which may call one without a name as it likes."""
        return self.inputs.get("") or self.inputs.get(name)

    def merged(self, configured: "ModelDescription") -> "ModelDescription":
        """This description of a server's with what is *configured*, which wins."""
        outputs = _merged(self.outputs, configured.outputs)
        return structs.replace(
            configured,
            inputs=_merged(self.inputs, configured.inputs),
            outputs=outputs,
            versions=self.versions,
            platform=self.platform,
            is_complete=self.is_complete,
            has_output_order=configured.has_output_order and len(outputs) == len(configured.outputs),
        )


UNKNOWN = ModelDescription()
"""A model of which nothing is known."""


def check_known(
    description: ModelDescription, inputs: Iterable[Tensor], selection: OutputSelection, *, model: str
) -> None:
    """Raise `CodecError` for one of *inputs*, or an output of *selection*, that is none of the model's.

    Servers of other dialects convert numbers of another datatype, and some drop an input that they do not know, without
    a word in their answers. *model* is the name that the client knows.
    """
    for tensor in inputs:
        described = description.input_called(tensor.name)
        if described is None and (description.inputs or description.template is not None):
            names = listed(sorted(description.inputs))
            raise CodecError(f"{label_of('input', tensor.name)}: model {model!r} has no such input; it has {names}")
        datatype = described.datatype if described is not None else None
        if datatype is not None and datatype.name != tensor.datatype.name:
            raise CodecError(f"{tensor}: model {model!r} takes {datatype.name}, its server would convert silently")
    outputs = description.outputs
    for name in selection.named if description.is_complete else ():
        if name not in outputs:
            raise CodecError(f"{label_of('output', name)} was requested, but the model has {listed(sorted(outputs))}")


def first_sizes(inputs: Iterable[Tensor], description: ModelDescription) -> set[int]:
    """The first dimensions of those *inputs* that may have rows; empty if none may."""
    sizes = set()
    for tensor in inputs:
        described = description.input_called(tensor.name)
        if tensor.shape and (described is None or described.has_rows):
            sizes.add(tensor.shape[0])
    return sizes


def may_be_joined(inputs: Iterable[str], description: ModelDescription) -> bool:
    """Whether requests with these *inputs* may go to the server as one, as far as the declared shapes say.

    They may not if an input, or an output of the model, has a first dimension that is not that of the rows: it is a
    scalar or of a fixed size, or its name is another than that of the others. The values of one client would be taken
    for those of another.
    """
    tensors = [description.input_called(name) for name in inputs]
    first: set[int | str] = set()
    for described in (*tensors, *description.outputs.values()):
        if described is None or described.shape is None:
            continue
        if not described.has_rows:
            return False
        first.add(described.shape[0])
    return len(first - {ANY}) <= 1


def missing_datatype(
    description: ModelDescription, selection: OutputSelection, *, dialect: str, backend: str, model: str
) -> str | None:
    """Why a request of *selection* cannot be sent, and what to set: a datatype is not known; None if all are.

    *backend* and *model* are the names by which the configuration knows them.
    """
    outputs = description.outputs
    wanted = selection.named or outputs
    unknown = [name for name in wanted or ("NAME",) if name not in outputs or outputs[name].datatype is None]
    if not unknown:
        return None
    unknown = unknown[:MAX_NAMED]
    known = [name for name, tensor in outputs.items() if tensor.datatype is not None]
    others = f" (known outputs are {listed(known)})" if known else ""
    labels = ", ".join(label_of("output", name) for name in unknown)
    what = f"the datatype of {labels} is" if wanted else "the datatypes of its outputs are"
    block: dict[str, object] = {"outputs": {name: {"datatype": "FP32"} for name in unknown}}
    hint = ""
    if dialect == "tensorflow" and description.platform == description.format == "":
        hint = "; format: row is for KServe, leave it out for TensorFlow Serving"
        block = {"format": "row", **block}
    lines = yaml.safe_dump({glob.escape(model): block}, default_flow_style=True, sort_keys=False, width=math.inf)
    return (
        f"model {model!r}: {what} not known{others}, and answers of the dialect {dialect} do not say it. "
        f"Add to the backend {backend!r} in the configuration, with the real names and datatypes{hint}: "
        f"models: {lines.strip()}"
    )


def v2_metadata(model: str, description: ModelDescription) -> bytes:
    """The answer to `GET /v2/models/MODEL`, made of the *description*.

    A shape that is not known is one variable dimension, an input without a name is called `input`; a datatype that is
    not known is left out.
    """
    metadata: dict[str, object] = {"name": model}
    if description.versions:
        metadata["versions"] = description.versions
    metadata["platform"] = description.platform
    for section, tensors in (("inputs", description.inputs), ("outputs", description.outputs)):
        metadata[section] = entries = []
        for name, tensor in tensors.items():
            datatype = {"datatype": tensor.datatype.name} if tensor.datatype is not None else {}
            sizes = (-1,) if tensor.shape is None else tensor.shape
            shape = [size if isinstance(size, int) else -1 for size in sizes]
            entries.append({"name": name or NAMELESS_INPUT, **datatype, "shape": shape})
    return msgspec.json.encode(metadata)


def listed(names: Iterable[str | int]) -> str:
    """The first of *names* for an error."""
    return ", ".join([repr(str(name)[:MAX_NAME]) for name in islice(names, MAX_NAMED)]) or "none"


def _merged(
    theirs: Mapping[str, TensorDescription], ours: Mapping[str, TensorDescription]
) -> dict[str, TensorDescription]:
    """Tensors in the order of the configuration, if it has all of them; else the server's, and then all others."""
    merged = dict(ours) if theirs.keys() <= ours.keys() else {**theirs, **ours}
    for name in theirs.keys() & ours.keys():
        said, wins = theirs[name], ours[name]
        shape = said.shape if wins.shape is None else wins.shape
        merged[name] = structs.replace(wins, datatype=wins.datatype or said.datatype, shape=shape)
    return merged
