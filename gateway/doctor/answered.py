"""What stands in a server's answers: the values that may be outputs, and all others with the reason why they are none.

Answers to several requests are read together: what one of them lacks, or has in another form, is no output. Not here:
which outputs move with which input (`trials`).
"""

import json
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gateway.doctor.filling import MISSING, JsonPlace, found_at, json_path_of
from gateway.doctor.tensors import flat, likely_datatype, n_columns, shape_of

PYTHON_CAN = "the template language cannot say it: `dialect: python` can"

MIN_BASE64 = 14
"""A shorter text is not taken for numbers in base64: words are base64, too."""

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")


class Left(NamedTuple):
    """A member of answers that becomes no output."""

    path: str
    why: str


@dataclass(frozen=True)
class Found:
    """A value that all answers have, and that may be an output."""

    name: str
    place: JsonPlace
    values: tuple[Any, ...]
    """That of each answer, as nested lists."""
    datatype: str
    """One that holds the values of all answers."""
    shapes: tuple[tuple[int, ...], ...]
    """Of each answer."""

    @property
    def path(self) -> str:
        """As in `answer`."""
        return json_path_of(self.place)

    @property
    def is_text_of_numbers(self) -> bool:
        """Whether it is texts that all are numbers, of which at least one has a point."""
        texts = [each for value in self.values for each in flat(value)] if self.datatype == "BYTES" else []
        is_numbers = all(isinstance(each, str) and _NUMBER.fullmatch(each) for each in texts)
        return bool(texts) and is_numbers and any("." in each for each in texts)

    @property
    def n_floats(self) -> int:
        """How many FP32 each of its texts has in base64, as OpenAI's embeddings; 0 if they do not look like that."""
        texts = [each for value in self.values for each in flat(value)] if self.datatype == "BYTES" else []
        sizes = {_floats_in(each) for each in texts}
        return sizes.pop() if len(sizes) == 1 else 0


def _floats_in(text: Any) -> int:
    """How many FP32 *text* may have in base64; 0 if none, or if these would be no likely numbers."""
    try:
        blob = b64decode(text, validate=True) if isinstance(text, str) and len(text) > MIN_BASE64 else b""
    except ValueError:
        return 0
    if not blob or len(blob) % 4:
        return 0
    numbers = np.abs(np.frombuffer(blob, "<f4"))
    is_likely = np.isfinite(numbers).all() and ((numbers == 0) | ((numbers > 1e-9) & (numbers < 1e6))).all()
    return len(numbers) if is_likely else 0


class Answers:
    """The values in *documents*, which one server has answered."""

    def __init__(self, documents: Sequence[Any], only: str, known: Mapping[str, str] = MappingProxyType({})) -> None:
        """*only* is what the whole answer is called, where it is one value. *known* are datatypes by name.

        Raises `UnreadableError` for values that no datatype holds.
        """
        self._documents = documents
        self._only = only
        self._known = known
        self.found: dict[str, Found] = {}
        """What may be an output, by name."""
        self.left: list[Left] = []
        """What is none."""
        self._read(list(documents), ())

    def _read(self, values: list[Any], place: JsonPlace) -> None:
        """Read the *values* that stand at *place*, in all answers and all items of lists."""
        there = [value for value in values if value is not MISSING and value is not None]
        kinds = set(map(type, there))
        if not there:
            self._leave(place, "it is null in all tries")
        elif len(there) < len(values) and not kinds <= {int, float}:
            self._leave(place, _why_incomplete(values, is_text=kinds == {str}))
        elif kinds == {dict}:
            self._read_objects(there, place)
        elif kinds == {list}:
            self._read_lists(there, place)
        elif kinds & {dict, list}:
            self._leave(place, f"it has values of several kinds ({PYTHON_CAN})")
        else:
            self._take(place)

    def _read_objects(self, objects: list[dict[str, Any]], place: JsonPlace) -> None:
        names = list(dict.fromkeys(name for each in objects for name in each))
        if not names:
            self._leave(place, "it is an empty object")
        elif _are_data(names, objects):
            self._leave(place, f"the names of its members are data, they differ ({PYTHON_CAN})")
        else:
            for name in names:
                self._read([each.get(name, MISSING) for each in objects], (*place, name))

    def _read_lists(self, lists: list[list[Any]], place: JsonPlace) -> None:
        items = [item for each in lists for item in each]
        if not items:
            self._leave(place, "it is empty in all tries")
        elif _has_objects(items):
            self._read(items, (*place, None))
        elif n_found := n_columns(lists):
            for index in range(n_found):
                self._take((*place, index))
        elif all(isinstance(item, list) for item in items) and (n_found := n_columns(items)):
            for index in range(n_found):
                self._take((*place, None, index))
        else:
            self._take(place)

    def _take(self, place: JsonPlace) -> None:
        """Take the values at *place* for a possible output, unless they form no tensor."""
        values = [found_at(place, document) for document in self._documents]
        if MISSING in values:
            self._leave(place, "it is missing in some tries")
            return
        shapes = tuple(shape for shape in map(shape_of, values) if shape is not None)
        if why := _why_no_tensor(values, shapes):
            self._leave(place, f"{why} ({PYTHON_CAN})")
            return
        name = self._name(place)
        datatype = self._known.get(name) or likely_datatype([each for value in values for each in flat(value)])
        if datatype:
            self.found[name] = Found(name, place, tuple(values), datatype, shapes)
        else:
            self._leave(place, f"it has values of several kinds in different tries ({PYTHON_CAN})")

    def _name(self, place: JsonPlace) -> str:
        names = [step.lstrip("$") for step in place if isinstance(step, str)]
        index = place[-1] if place and isinstance(place[-1], int) else None
        end = "" if index is None else f"_{index}"
        base = (names[-1] if names else "") or self._only
        name = f"{base}{end}"
        if name in self.found and len(names) > 1:
            name = f"{'_'.join(names)}{end}"
        return f"{name}_{len(self.found)}" if name in self.found else name

    def _leave(self, place: JsonPlace, why: str) -> None:
        self.left.append(Left(json_path_of(place), why))


def _are_data(names: list[str], objects: list[dict[str, Any]]) -> bool:
    """Whether the *names* of the members of *objects* are data: they differ, as numbers of rows and labels do."""
    if all(each.keys() == objects[0].keys() for each in objects):
        return False
    common = [name for name in names if all(name in each for each in objects)]
    kinds = {type(value) for each in objects for value in each.values()}
    return not common or all(name.isdecimal() for name in names) or (len(kinds) == 1 and kinds <= {int, float})


def _why_incomplete(values: list[Any], *, is_text: bool) -> str:
    if MISSING in values:
        return "it is missing in some tries or rows"
    hint = '; `missing: ""` of an output says what null becomes' if is_text else ""
    return f"it is null in some tries or rows{hint}"


def _why_no_tensor(values: list[Any], shapes: Sequence[tuple[int, ...]]) -> str:
    """Why *values* of answers are no output, of which those that form a tensor have *shapes*; empty if they are."""
    if len(shapes) < len(values):
        kinds = {float if type(each) is int else type(each) for value in values for each in _leaves(value)}
        return "it has values of several kinds" if len(kinds) > 1 else "its lists have different lengths"
    if len(set(map(len, shapes))) > 1:
        return "it is nested more deeply in some tries than in others"
    everything = [each for value in values for each in flat(value)]
    return "it is JSON inside of a text" if everything and all(map(_is_json, everything)) else ""


def _has_objects(items: list[Any]) -> bool:
    """Whether there are objects in *items*, or in lists in them."""
    return any(isinstance(item, dict) or (isinstance(item, list) and _has_objects(item)) for item in items)


def _leaves(value: Any) -> list[Any]:
    return [each for item in value for each in _leaves(item)] if isinstance(value, list) else [value]


def _is_json(text: Any) -> bool:
    if not isinstance(text, str) or text[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
