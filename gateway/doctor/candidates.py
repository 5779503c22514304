"""What of a server's request clients decide: inputs and constants, from one or more samples.

From one sample it cannot be known. So every text, number and list is a candidate: lists become inputs, and so does what
looks like the client's. Every other value is a constant that is named, with the lines that make an input of it. Of
several samples, what differs is an input, and what does not is a constant. Not here: asking the server.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from gateway.doctor.filling import MISSING, JsonPlace, escaped, json_path_of, names_in
from gateway.doctor.member_names import (
    CHOICES,
    CLIENTS,
    CLIENTS_WORDS,
    COLUMN_NAMES,
    OPTION_GROUPS,
    OPTION_LISTS,
    OPTIONS,
    RESERVED,
    SHAPES,
    snake,
)
from gateway.doctor.tensors import Tensor, UnreadableError, flat, likely_datatype, n_columns, shape_of, tensor_of

_HEADER = "the names of the columns, after which the inputs are called"


@dataclass(frozen=True)
class Constant:
    """A value that is the same in every request."""

    place: JsonPlace
    value: Any
    why: str
    """Why it is no input; empty if only the user can know."""
    is_candidate: bool
    """Whether it could be an input."""


@dataclass
class Candidates:
    """The inputs and constants of *documents*, which are samples of what one server takes.

    Raises `UnreadableError` for values that no datatype holds.
    """

    documents: Sequence[Any]
    only: str
    """What the whole document is called, where it is one tensor."""
    samples: list[dict[str, Tensor]] = field(init=False)
    """Of each sample its inputs by name; without those that it does not have."""
    places: dict[str, JsonPlace] = field(default_factory=dict)
    """Where each input stands; `[*]` where it is a column of records."""
    rows_at: dict[str, JsonPlace] = field(default_factory=dict)
    """The list of records in which an input stands, for those that stand in one."""
    constants: list[Constant] = field(default_factory=list)
    obvious: dict[str, str] = field(default_factory=dict)
    """Inputs that were made of a single value because of their names, and how these read."""
    differing: list[str] = field(default_factory=list)
    """Paths of what differs from row to row, or from sample to sample, and cannot be an input."""
    keyed: dict[JsonPlace, list[str]] = field(default_factory=dict)
    """Objects whose members may have names that clients decide, such as the ids of users, and these names."""
    body: Any = field(init=False)
    """The template: the document with `$NAME` in place of its inputs."""

    def __post_init__(self) -> None:
        self.samples = [{} for _ in self.documents]
        self._differ = any(document != self.documents[0] for document in self.documents)
        self._has_lists = any(_has_lists(document) for document in self.documents)
        # where what is called parameters has all lists, and no text is the client's, it has the data
        has_data = self._has_lists or any(_has_clients(document) for document in self.documents)
        self._ignores_options = not has_data and any(_has_lists(each, is_any=True) for each in self.documents)
        self._has_lists = self._has_lists or self._ignores_options
        self.body = self._read([[document] for document in self.documents], (), None)
        if not self.places and not self._differ and not self._ignores_options:
            self._ignores_options = True  # what looks like options is all that there is
            self.constants.clear()
            self.differing.clear()
            self.body = self._read([[document] for document in self.documents], (), None)

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The inputs with the values of the first sample; of those that it does not have, of the first that does."""
        return {name: next(each[name] for each in self.samples if name in each) for name in self.places}

    @property
    def optional(self) -> list[str]:
        """Inputs that some samples do not have."""
        return [name for name in self.places if any(name not in each for each in self.samples)]

    # reading: *cells* are, for each sample, the values at a place: one, or inside of records that of each row

    def _read(
        self, cells: list[list[Any]], place: JsonPlace, rows_at: JsonPlace | None, columns: Sequence[str] = ()
    ) -> Any:
        there = _there(cells)
        kinds = set(map(type, there))
        if kinds == {dict}:
            return self._object(cells, place, rows_at)
        is_input = self._is_input(cells, place, rows_at)
        if rows_at is None and kinds == {list}:
            if set(map(type, chain.from_iterable(there))) == {dict}:
                return self._records(cells, place)
            rows = list(chain.from_iterable(there))
            if is_input and (n_found := n_columns(rows, splits_numbers=bool(columns))):
                return self._table(cells, place, n_found, columns)
        if kinds == {list} and is_input and _is_tuple(there):
            return self._tuple(cells, place, rows_at)
        if is_input and (name := self._input(cells, place, rows_at)):
            return f"${name}"
        return self._constant(cells, place, rows_at)

    def _object(self, cells: list[list[Any]], place: JsonPlace, rows_at: JsonPlace | None) -> Any:
        objects = _there(cells)
        if rows_at is not None and any(each.keys() != objects[0].keys() for each in objects):
            return self._constant(cells, place, rows_at)
        self._note_names(objects, place)
        header, columns = _header(objects) if rows_at is None else ("", [])
        body = self._flat(cells, place) if rows_at is None else {}
        for name in dict.fromkeys(name for each in objects for name in each):
            if escaped(name) in body:
                continue
            if columns and name == header:
                self._note(columns, (*place, name), _HEADER)
                body[escaped(name)] = escaped(columns)
            else:
                inside = [[MISSING if each is MISSING else each.get(name, MISSING) for each in cell] for cell in cells]
                body[escaped(name)] = self._read(inside, (*place, name), rows_at, columns)
        return body

    def _note_names(self, objects: list[dict[str, Any]], place: JsonPlace) -> None:
        if _has_names_of_clients(objects):
            self.keyed[place] = list(objects[0])

    def _flat(self, cells: list[list[Any]], place: JsonPlace) -> dict[str, Any]:
        """What stands for a list of values and its shape beside it, if there are such members."""
        objects = _there(cells)
        shape, values = _shape_and_values(objects)
        if not values or (self._differ and all(each == objects[0] for each in objects)):
            return {}
        nested = [
            [MISSING if each is MISSING else np.reshape(each[values], each[shape]).tolist() for each in cell]
            for cell in cells
        ]
        name = self._input(nested, (*place, values), None)
        return {escaped(shape): {"$shape": name}, escaped(values): {"$flat": name}} if name else {}

    def _records(self, cells: list[list[Any]], place: JsonPlace) -> Any:
        """What stands for a list of objects: `$each` if there are inputs in it, else the list as it is."""
        before = len(self.places), len(self.constants), len(self.differing)
        rows = [[] if cell[0] is MISSING else cell[0] for cell in cells]
        item = self._read(rows, (*place, None), place)
        if names_in(item):
            return {"$each": item}
        del self.constants[before[1] :], self.differing[before[2] :]
        return self._constant(cells, place, None)

    def _table(self, cells: list[list[Any]], place: JsonPlace, n_found: int, columns: Sequence[str]) -> Any:
        """What stands for lists of lists whose columns have several kinds of values."""
        names = columns if len(columns) == n_found else [f"c{index}" for index in range(n_found)]
        item = []
        for index, name in enumerate(names):
            column = [[row[index] for row in cell[0]] if cell[0] is not MISSING else [] for cell in cells]
            item.append(self._read_column(column, (*place, None, index), place, name))
        return {"$each": item} if names_in(item) else self._constant(cells, place, None)

    def _tuple(self, cells: list[list[Any]], place: JsonPlace, rows_at: JsonPlace | None) -> Any:
        """What stands for lists of the same length whose values are of several kinds, or objects in rows."""
        body = []
        for index in range(len(_there(cells)[0])):
            inside = [[MISSING if each is MISSING else each[index] for each in cell] for cell in cells]
            kinds = set(map(type, _there(inside)))
            read = self._read if kinds & {dict, list} else self._read_column
            body.append(read(inside, (*place, index), rows_at))
        return body

    def _read_column(self, cells: list[list[Any]], place: JsonPlace, rows_at: JsonPlace | None, name: str = "") -> Any:
        """What stands for *cells*, which are an input called *name* if they can be one."""
        if self._differ and not self._is_input(cells, place, rows_at):
            return self._constant(cells, place, rows_at)
        if found := self._input(cells, place, rows_at, name):
            return f"${found}"
        return self._constant(cells, place, rows_at)

    def _is_input(self, cells: list[list[Any]], place: JsonPlace, rows_at: JsonPlace | None) -> bool:
        """Whether the value at *place* is taken for an input, if it can be one."""
        values = _there(cells)
        if self._differ:
            is_everywhere = len(values) == sum(map(len, cells))
            return not is_everywhere or any(value != values[0] for value in values)
        if rows_at is not None:
            return True
        if _is_option(place, values[0]) and not self._ignores_options:
            return False
        if isinstance(values[0], list):
            return True
        if _is_clients(place) and isinstance(values[0], str):
            return True
        return not self._has_lists  # without lists the document is one row, and every value may be the client's

    def _input(self, cells: list[list[Any]], place: JsonPlace, rows_at: JsonPlace | None, name: str = "") -> str:
        """Make an input of *cells*, and return its name; empty if they form no tensor."""
        data = [(cell or MISSING) if rows_at is not None else cell[0] for cell in cells]
        there = [each for each in data if each is not MISSING]
        if any(value is None for cell in cells for value in cell) or not (datatype := _datatype_of(there)):
            return ""
        name = self._name(name, place)
        for sample, each in zip(self.samples, data, strict=True):
            if each is not MISSING:
                sample[name] = tensor_of(name, datatype, each)
        self.places[name] = place
        self._explain(name, there[0], rows_at)
        return name

    def _explain(self, name: str, value: Any, rows_at: JsonPlace | None) -> None:
        """Note where the input *name* has its rows, or why its *value*, which has none, is an input."""
        if rows_at is not None:
            self.rows_at[name] = rows_at
        elif isinstance(value, str) and self._has_lists and not self._differ:
            path = json_path_of(self.places[name])
            self.obvious[name] = f"{path} is a text, and its name says that it is the client's"

    def _name(self, name: str, place: JsonPlace) -> str:
        names = [step.lstrip("$") for step in place if isinstance(step, str)]
        if not name and place and isinstance(place[-1], int):
            name = f"{names[-1] if names else self.only}_{place[-1]}"
        taken = {*RESERVED, *self.places, ""}
        choices = [name.lstrip("$"), names[-1] if names else "", "_".join(names)]
        if not names and not name:
            choices = [self.only]
        found = next((each for each in choices if each not in taken), "")
        return found or f"{next(filter(None, choices), self.only)}_{len(self.places)}"

    def _constant(self, cells: list[list[Any]], place: JsonPlace, rows_at: JsonPlace | None) -> Any:
        """What stands for a value that is no input: that of the first row of the first sample."""
        values = _there(cells)
        if not values:
            return None
        first, why = values[0], ""
        if any(value != first for value in values):
            self.differing.append(json_path_of(place))
            why = "it differs, and forms no tensor"
        elif self._differ:
            why = f"the same in all {len(self.documents)} samples"
        elif isinstance(first, (dict, list)) and not _is_option(place, first):
            why = _why_no_tensor(first)
        self._note(first, place, why)
        return escaped(first)

    def _note(self, value: Any, place: JsonPlace, why: str) -> None:
        is_candidate = value is not None and not isinstance(value, dict)
        if is_candidate and isinstance(value, list):
            try:
                is_candidate = bool(flat(value)) and shape_of(value) is not None and None not in value
            except UnreadableError:
                is_candidate = False
        self.constants.append(Constant(place, value, why, is_candidate and why != _HEADER))


def _has_lists(value: Any, place: JsonPlace = (), *, is_any: bool = False) -> bool:
    """Whether there is a list in *value* that may be data; with *is_any* also one in options."""
    if isinstance(value, dict):
        return any(_has_lists(item, (*place, name), is_any=is_any) for name, item in value.items())
    return isinstance(value, list) and bool(value) and (is_any or not _is_option(place, value))


def _has_clients(value: Any, place: JsonPlace = ()) -> bool:
    if isinstance(value, dict):
        return any(_has_clients(item, (*place, name)) for name, item in value.items())
    return isinstance(value, str) and _is_clients(place)


def _named(place: JsonPlace) -> list[str]:
    """The names of members in *place*, as in `member_names`."""
    return [snake(step) for step in place if isinstance(step, str)]


def _is_option(place: JsonPlace, value: Any) -> bool:
    """Whether *value*, at *place*, says how a model works: by its name if it is no list, or by the object it is in."""
    *groups, name = _named(place) or [""]
    is_named = name in (OPTION_LISTS if isinstance(value, list) else OPTIONS)
    if type(value) is int and name in ("user_id", "client_id"):  # a key that a model looks up
        is_named = False
    return name not in CHOICES and (is_named or any(group in OPTION_GROUPS for group in groups))


def _is_clients(place: JsonPlace) -> bool:
    name = (_named(place) or [""])[-1]
    words = name.split("_")
    return not _is_option(place, "") and (name in CLIENTS or any(word in CLIENTS_WORDS for word in words))


def _there(cells: list[list[Any]]) -> list[Any]:
    """The values in *cells* that are not missing."""
    return [value for value in chain.from_iterable(cells) if value is not MISSING]


def _datatype_of(tensors: list[Any]) -> str:
    """A datatype for all *tensors*, nested lists with the same number of dimensions; empty if they are no such."""
    shapes = [shape_of(each) for each in tensors]
    ranks = {-1 if shape is None or 0 in shape else len(shape) for shape in shapes}
    if len(ranks) != 1 or ranks == {-1}:
        return ""
    return likely_datatype([value for each in tensors for value in flat(each)])


def _is_tuple(lists: list[Any]) -> bool:
    """Whether *lists* have the same length, and values of several kinds, or objects, which can only differ in rows."""
    if not lists[0] or any(len(each) != len(lists[0]) for each in lists):
        return False
    values = [value for each in lists for value in each]
    if any(isinstance(value, dict) for value in values):
        return all(isinstance(value, dict) for value in values)
    is_plain = not any(isinstance(value, list) or value is None for value in values)
    return is_plain and any(shape_of(each) is None for each in lists)


def _header(objects: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """The member with the names of a table's columns, the same in all *objects*, and the names; empty without one."""
    for name, value in objects[0].items():
        is_header = name.lower() in COLUMN_NAMES and _are_names(value)
        if is_header and _has_table(objects[0], len(value)) and all(each.get(name) == value for each in objects):
            return name, value
    return "", []


def _shape_and_values(objects: list[dict[str, Any]]) -> tuple[str, str]:
    """The members of all *objects* that have a shape, and as many values in one list; empty without them."""
    for shape in objects[0].keys() & SHAPES:
        for values in objects[0].keys() - {shape}:
            if all(_has_shape(each.get(values), each.get(shape)) for each in objects):
                return shape, values
    return "", ""


def _has_shape(values: Any, shape: Any) -> bool:
    """Whether *values* is a list of as many values as *shape*, a list of sizes, says."""
    if not isinstance(values, list) or not isinstance(shape, list) or not values or not shape:
        return False
    is_flat = not any(isinstance(each, (list, dict)) or each is None for each in values)
    return is_flat and all(type(size) is int for size in shape) and math.prod(shape) == len(values)


def _has_names_of_clients(objects: list[dict[str, Any]]) -> bool:
    """Whether clients may decide the names of the members of *objects*: numbers, or names of objects that are alike."""
    names = {name for each in objects for name in each}
    if names and all(name.isdecimal() for name in names):
        return True
    if len(objects) > 1 and not set.intersection(*map(set, objects)):
        return bool(names)
    values = list(objects[0].values())
    is_alike = all(isinstance(value, dict) and value and value.keys() == values[0].keys() for value in values)
    return len(values) > 1 and is_alike


def _are_names(value: Any) -> bool:
    """Whether *value* is a list of different texts, none of which is empty."""
    if not isinstance(value, list) or not value or set(map(type, value)) != {str}:
        return False
    return "" not in value and len(set(value)) == len(value)


def _has_table(members: dict[str, Any], n_names: int) -> bool:
    """Whether a member is a list of lists with *n_names* values each."""
    lists = [item for item in members.values() if isinstance(item, list) and item]
    return any(all(isinstance(row, list) and len(row) == n_names for row in rows) for rows in lists)


def _why_no_tensor(value: Any) -> str:
    if isinstance(value, dict) or not value:
        return "it is empty" if not value else "it is an object"
    if any(isinstance(item, dict) for item in value):
        return "its rows have different members"
    if None in value:
        return "it has null in it"
    lengths = {len(item) if isinstance(item, list) else None for item in value}
    return "its lists have different lengths" if len(lengths) > 1 else "it has values of several kinds"
