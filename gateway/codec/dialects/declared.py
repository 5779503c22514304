"""What a model's block says of one input or output: its datatype, its shape, and how its values stand in JSON.

A declared shape has sizes, -1 for any size, and names. A name is any size, but the same one wherever it stands for one
model, in inputs and outputs. Not here: what requests and answers have (`request`, `output`).
"""

from collections.abc import MutableMapping

import msgspec

from gateway.codec.inference import label_of
from gateway.codec.tensors.datatypes import Datatype
from gateway.errors import CodecError

ANY = -1
"""A dimension of any size."""

Shape = tuple[int | str, ...]
"""A declared shape: sizes, `ANY` and names."""


class TensorDescription(msgspec.Struct, frozen=True):
    """One input or output; None is not known."""

    datatype: Datatype | None = None
    shape: Shape | None = None
    encoding: str = ""
    """How its values stand in the server's JSON, `text` or `base64`; empty: numbers as numbers, BYTES as the backend or
    the dialect has them."""
    missing: str | None = None
    """What a missing string of an output becomes; None: the answer is refused."""
    optional: bool = False
    """Whether a request may lack the input."""

    @property
    def has_rows(self) -> bool:
        """Whether its first dimension may be that of the rows: it is of any size or named, or no shape is declared."""
        return self.shape is None or (self.shape != () and (self.shape[0] == ANY or isinstance(self.shape[0], str)))


def fits(declared: Shape, shape: tuple[int, ...], sizes: MutableMapping[str, int]) -> bool:
    """Whether *shape* is as *declared*.

    *sizes* are those that names have so far; names that are new are added if it is.
    """
    if len(declared) != len(shape):
        return False
    new: dict[str, int] = {}
    for said, size in zip(declared, shape, strict=True):
        if isinstance(said, str):
            if sizes.get(said, new.setdefault(said, size)) != size:
                return False
        elif said not in (ANY, size):
            return False
    sizes.update(new)
    return True


def missing_input(name: str) -> CodecError:
    """The error for a request without the input *name*."""
    return CodecError(f"{label_of('input', name)} is missing: the model's server needs all of its inputs")


def declared_text(declared: Shape, sizes: MutableMapping[str, int]) -> str:
    """*declared* for an error: `[n, 4] (n is 2)`, with the *sizes* that its names have already."""
    text = f"[{', '.join(map(str, declared))}]"
    names = (name for name in dict.fromkeys(declared) if isinstance(name, str))
    known = ", ".join(f"{name} is {sizes[name]}" for name in names if name in sizes)
    return f"{text} ({known})" if known else text
