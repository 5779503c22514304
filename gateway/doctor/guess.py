"""Tensors are guessed from a document of JSON, where nothing else says which there are: names, shapes and datatypes.

Lists are tensors, objects in a list are rows, and everything else is the same in each document of the kind; if it has
no lists, its texts and numbers are tensors. Not here: the language of templates (`codec.dialects.body` and `paths`).
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from gateway.doctor.tensors import Tensor, blob_of, described, flat, likely_datatype, shape_of


class Guess:
    """The tensors of a *document*, and the template that makes it of them."""

    def __init__(
        self,
        document: Any,
        only: str,
        datatype_of: Callable[[str, Sequence[Any]], str] = lambda name, values: likely_datatype(values),
        *,
        is_answer: bool = False,
    ) -> None:
        """*only* is what the whole document is called, where it is one tensor. *datatype_of* its name and values.

        *is_answer*: a `null` among texts counts as a missing text. No input has any. Raises `UnreadableError` for
        values that their datatype does not hold.
        """
        self._datatype_of = datatype_of
        self._is_answer = is_answer
        self.tensors: dict[str, Tensor] = {}
        """Each input or output, with the values of the document."""
        self.paths: dict[str, str] = {}
        """Where each stands, as in `answer`."""
        self.differing: list[str] = []
        """Where rows have different values that are no tensor, which a template cannot say."""
        self._missing: set[str] = set()
        self._only = only
        self._has_lists = _has_lists(document)
        self.body = self._read(document, (), "$")
        """The document with `$NAME` in place of its tensors, as in `request.body`."""

    def described(self) -> dict[str, Any]:
        """The tensors as in a block of `models`."""
        found = described(self.tensors.values())
        for name in self._missing:
            found[name]["missing"] = ""
        return found

    def _shape_of(self, values: Any) -> tuple[int, ...] | None:
        return shape_of(values, has_missing=self._is_answer)

    def _read(self, value: Any, names: tuple[str, ...], path: str) -> Any:
        if isinstance(value, dict):
            return {
                _escaped(name): self._read(item, (*names, name), path + _step(name)) for name, item in value.items()
            }
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            n_tensors, n_differing = len(self.tensors), len(self.differing)
            item = self._read_rows(value, names, f"{path}[*]")
            if len(self.tensors) > n_tensors:
                return {"$each": item}
            del self.differing[n_differing:]
            return _escaped(value)
        is_tensor = isinstance(value, list) and self._shape_of(value) is not None
        if is_tensor or (not self._has_lists and value is not None):
            return f"${self._tensor(value, names, path)}"
        return _escaped(value)

    def _read_rows(self, rows: list[Any], names: tuple[str, ...], path: str) -> Any:
        """What each of *rows* is, which are all of one kind."""
        if all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            return {
                _escaped(name): self._read_rows(column, (*names, name), path + _step(name))
                for name, column in columns.items()
            }
        if self._shape_of(rows) is not None and all(row is not None for row in rows):
            return f"${self._tensor(rows, names, path)}"
        if any(row != rows[0] for row in rows):
            self.differing.append(path)
        return _escaped(rows[0])

    def _tensor(self, values: Any, names: tuple[str, ...], path: str) -> str:
        name = (names[-1] if names else "").lstrip("$") or self._only
        taken = {*self.tensors} if self._is_answer else {"id", "parameters", *self.tensors}
        if name in taken and len(names) > 1:
            name = "_".join(names).lstrip("$")
        if name in taken:
            name = f"{name}_{len(self.tensors)}"
        known = flat(values)
        datatype = self._datatype_of(name, known)
        if datatype == "BYTES" and None in known:
            self._missing.add(name)
            known = ["" if each is None else each for each in known]
        self.tensors[name] = Tensor(name, datatype, self._shape_of(values) or (), blob_of(datatype, known))
        self.paths[name] = path
        return name


def _has_lists(document: Any) -> bool:
    if isinstance(document, dict):
        return any(map(_has_lists, document.values()))
    return isinstance(document, list)


def _step(name: str) -> str:
    """The member called *name* as it stands in a path."""
    return f".{name}" if name.isidentifier() else f"[{json.dumps(name)}]"


def _escaped(value: Any) -> Any:
    """*value* as it stands in a body: no text that begins with `$` is a reference."""
    if isinstance(value, dict):
        return {_escaped(name): _escaped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return f"${value}" if isinstance(value, str) and value.startswith("$") else value
