"""What a stand-in of a server is made of: its format, the strict reading of requests, and values to compute with."""

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

Document = Any
"""What JSON holds, as Python has it."""

Kind = Callable[[Document], bool]
"""Whether a value is what a member has to be."""


class RefusalError(Exception):
    """The server refuses a request, with *status* and *document*."""

    def __init__(self, status: int, document: Document) -> None:
        super().__init__(document)
        self.status = status
        self.document = document


class Draw(random.Random):
    """Draws the values that clients send: those that a wrong datatype or encoding would change, among others."""

    def text(self) -> str:
        """A text of a few words."""
        words = ("grün", "日本 🎌", 'say "a\\b"', "help", "yellow", "$x", "a\tb", "ä" * 40, "no", "1.5", "true")
        return f"{self.choice(words)} {self.randrange(10**6)}"

    def number(self) -> float:
        """A number with a point."""
        return self.choice((0.35, 0.1, 1e-7, -12345.678, 1 / 3, 2.5, self.random(), self.uniform(-1000, 1000)))

    def integer(self) -> int:
        """An integer, which may need 64 bits."""
        return self.choice((2**53 + 1, -3, 0, 7, self.randrange(-(10**9), 10**9), self.randrange(2**62)))

    def count(self) -> int:
        """An integer as options have it."""
        return self.randrange(1, 1000)

    def of(self, kind: str, n: int) -> list[Any]:
        """*n* values of `text`, `number` or `integer`."""
        return [getattr(self, kind)() for _ in range(n)]


@dataclass(frozen=True)
class Adapter:
    """A format in ten lines of Python, for what a template cannot say."""

    source: str
    """The module, with `request` and `answer`."""
    models: str
    """The block of its model, in YAML: `inputs` and `outputs`."""
    inputs: Callable[[Sequence[Document]], dict[str, Document]]
    """The inputs as nested lists, from the bodies of native clients."""
    outputs: Callable[[Sequence[Document]], dict[str, Document]]
    """The outputs as nested lists, from the answers to these bodies."""


@dataclass(frozen=True)
class Format:
    """The format of a server, and a pure function that answers as it does."""

    name: str
    path: str
    samples: tuple[Document, ...]
    """Bodies as the documentation shows them."""
    answer: Callable[[Document], Document]
    """What it answers to a body. Raises `RefusalError`."""
    row: Callable[[Draw], Document]
    """New values of one row or instance."""
    body: Callable[[list[Document], Document], Document]
    """What a native client sends for rows and options."""
    values: tuple[str, ...]
    """The paths of all values of the answer that a client needs."""
    options: Callable[[Draw], Document] = lambda draw: None
    """New values of what a request has once, such as a query."""
    health: str = ""
    many: bool = True
    """Whether a request may have several rows."""
    sorts: str = ""
    """The path of the member that says which row a row of the answer is about, where the server sorts its answer."""
    numbers_are_texts: bool = False
    echoes: bool = False
    """Whether its answers repeat the inputs."""
    rows_depend: bool = False
    """Whether a row's values depend on the other rows, so that requests must not be put together."""
    pairs: bool = False
    """Whether a list of two texts is one pair of texts to it."""
    fails: tuple[Document, ...] = ()
    """Bodies that it answers with a failure in a 200."""
    flag: str = ""
    """The path of what says whether it failed."""
    by_hand: str = ""
    """The block of its model in the template language, in YAML; empty if it takes `adapter`."""
    adapter: Adapter | None = None

    @property
    def kinds(self) -> str:
        """What is special of it, in one word each."""
        said = {
            "one": not self.many,
            "sorts": bool(self.sorts),
            "texts": self.numbers_are_texts,
            "echo": self.echoes,
            "depend": self.rows_depend,
            "pairs": self.pairs,
            "fails": bool(self.fails),
            "python": self.adapter is not None,
        }
        return " ".join(word for word, is_so in said.items() if is_so)


# What a member has to be


def text(value: Document) -> bool:
    """A string."""
    return isinstance(value, str)


def number(value: Document) -> bool:
    """A number, and no boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def integer(value: Document) -> bool:
    """An integer, and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def boolean(value: Document) -> bool:
    """True or false."""
    return isinstance(value, bool)


def anything(value: Document) -> bool:
    """Any value."""
    return True


def list_of(kind: Kind, n: int | None = None, least: int = 1) -> Kind:
    """A list of at least *least* values, or of exactly *n*."""

    def is_list(value: Document) -> bool:
        if not isinstance(value, list) or (len(value) < least if n is None else len(value) != n):
            return False
        return all(map(kind, value))

    return is_list


def one_of(*allowed: Document) -> Kind:
    """One of these values."""
    return lambda value: any(type(value) is type(each) and value == each for each in allowed)


def either(*kinds: Kind) -> Kind:
    """A value of one of these kinds."""
    return lambda value: any(kind(value) for kind in kinds)


class Strict:
    """Refuses what a server refuses, in the form of its errors."""

    def __init__(self, status: int, form: Callable[[str], Document]) -> None:
        self._status = status
        self._form = form

    def refuse(self, words: str) -> NoReturn:
        """Refuse the request."""
        raise RefusalError(self._status, self._form(words))

    def members(self, value: Document, kinds: Mapping[str, Kind], at: str = "body") -> dict[str, Any]:
        """*value* as an object that has the members *kinds* and no others; a name that ends with ? may be missing."""
        if not isinstance(value, dict):
            self.refuse(f"{at}: expected an object")
        known = {name.removesuffix("?"): kind for name, kind in kinds.items()}
        for name in value:
            if name not in known:
                self.refuse(f"{at}: extra member {name} is not permitted")
        for name, kind in kinds.items():
            if name.removesuffix("?") not in value:
                if not name.endswith("?"):
                    self.refuse(f"{at}: member {name} is missing")
            elif not kind(value[name.removesuffix("?")]):
                self.refuse(f"{at}: member {name.removesuffix('?')} has a value that is not valid")
        return value

    def rows(self, values: Document, kinds: Mapping[str, Kind], at: str) -> list[dict[str, Any]]:
        """*values* as a list of at least one object, each as in `members`."""
        if not isinstance(values, list) or not values:
            self.refuse(f"{at}: expected a list of objects")
        return [self.members(each, kinds, f"{at}[{index}]") for index, each in enumerate(values)]


DETAIL = Strict(422, lambda words: {"detail": [{"loc": ["body"], "msg": words, "type": "value_error"}]})
"""FastAPI."""
ERROR = Strict(400, lambda words: {"error": words})
"""Flask, Express, and most others."""
MESSAGE = Strict(400, lambda words: {"message": words})
OPENAI = Strict(
    400, lambda words: {"error": {"message": words, "type": "invalid_request_error", "param": None, "code": None}}
)
GOOGLE = Strict(400, lambda words: {"error": {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}})


# What is computed


def _canonical(value: Document) -> Document:
    """*value* with each number in one form: 1 and 1.0 are the same to a server."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list | tuple):
        return [_canonical(each) for each in value]
    if isinstance(value, dict):
        return {name: _canonical(each) for name, each in value.items()}
    return value


def digest(*parts: Document) -> int:
    """A number of 53 bits that depends on every value in *parts* and on their order."""
    printed = json.dumps(_canonical(parts), sort_keys=True).encode()
    return int.from_bytes(hashlib.sha256(printed).digest()[:8], "big") >> 11


def share(*parts: Document) -> float:
    """A number from 0 to 1 that depends on every value in *parts*."""
    return digest(*parts) / 2**53


def vector(n: int, *parts: Document) -> list[float]:
    """*n* numbers between -1 and 1 that depend on every value in *parts*."""
    return [2 * share(index, *parts) - 1 for index in range(n)]


def pick(choices: Sequence[Any], *parts: Document) -> Any:
    """One of *choices*, by every value in *parts*."""
    return choices[digest("pick", *parts) % len(choices)]


def shares(names: Sequence[str], *parts: Document) -> dict[str, float]:
    """A number for each of *names* that depends on every value in *parts*; together they are about 1."""
    raw = [share(name, *parts) for name in names]
    return {name: value / sum(raw) for name, value in zip(names, raw, strict=True)}


def weighted(values: Sequence[float]) -> float:
    """A linear model: of halves and quarters it makes quarters, which any float holds, and of others what they are."""
    return float(sum((index + 1) * value / 4 for index, value in enumerate(values)))
