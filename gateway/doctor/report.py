"""Prints the doctor's results: findings, the table of what clients can do, and the configuration."""

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TextIO

import yaml

WIDTH = 110
"""Longer lines are wrapped."""


class ProblemError(Exception):
    """A problem that ends what was to be found out: the message, a finding, says why."""


@dataclass
class Report:
    """Prints findings as they come, and remembers what to do about them."""

    out: TextIO
    settings: dict[str, Any]
    """Keys of the backend that should be set, such as `nonfinite`, with their values."""
    reasons: dict[str, str]
    """Why these keys should be set, in a few words, for the comments in the file."""
    abilities: list[tuple[str, str]] = field(default_factory=list)
    """What clients can do: what, and whether."""
    remarks: dict[str, list[str]] = field(default_factory=dict)
    """Lines of comments that stand below a key in the file."""
    has_problem: bool = False
    infers: bool = False
    """Whether an inference has crossed the gateway."""

    def heading(self, text: str) -> None:
        """Begin a group of findings."""
        self.block(f"\n{_printable(text)}", "")

    def ok(self, words: str) -> None:
        """Print a finding that is as it should be."""
        self._print("  ok       ", words)

    def note(self, words: str) -> None:
        """Print a finding that is worth knowing, and no problem."""
        self._print("  note     ", words)

    def problem(self, words: str) -> None:
        """Print a finding that does not work, or works only in the way that *words* say."""
        self.has_problem = True
        self._print("  problem  ", words)

    def question(self, words: str) -> None:
        """Print what only the user can know."""
        self._print("  question ", words)

    def set(self, key: str, value: Any, why: str) -> None:
        """Note that the backend's *key* should have *value*, and why, in one line or several."""
        self.settings[key], self.reasons[key] = value, why

    def advise(self, key: str, value: Any, why: str, more: str = "") -> None:
        """Note that the backend's *key* should have *value*, and print *why*, which is what the server does."""
        self.note(f"{why}: `{key}: {as_yaml(value)}`{more}")
        self.set(key, value, why)

    def can(self, what: str, words: str) -> None:
        """Add a row to the table of what clients can do."""
        self.abilities.append((what, words))

    def table(self, heading: str, rows: Sequence[tuple[str, ...]]) -> None:
        """Print *rows* in columns; the last one is not padded."""
        self.heading(heading)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
            self._print("  " + "  ".join([*cells, ""]), row[-1])

    def block(self, text: str, indent: str = "  ") -> None:
        """Print *text* as it is, indented."""
        print(textwrap.indent(text.rstrip("\n"), indent), file=self.out, flush=True)

    def _print(self, begin: str, words: str) -> None:
        """Print *words* behind *begin*, wrapped."""
        hang = " " * len(begin)
        lines = textwrap.wrap(_printable(words), WIDTH - len(begin), break_long_words=False, break_on_hyphens=False)
        self.block(begin + f"\n{hang}".join(lines), "")


def configuration(
    endpoint: str,
    settings: Mapping[str, Any],
    reasons: Mapping[str, str] = MappingProxyType({}),
    listen: str = "127.0.0.1:0",
    admin: str = "127.0.0.1:0",
    found: str = "",
    remarks: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str:
    """The file that puts the gateway in front of *endpoint*; *found* says what that is, for its first line.

    *reasons* stand above their keys as comments, *remarks* below them.
    """
    lines = [f"# {found}", f"listen: {listen}", f"admin: {admin}"]
    lines += ["backends:", "  default:", f"    endpoints: [{_quoted(endpoint)}]"]
    for key, value in settings.items():
        n_levels = 3 if key == "models" else 0  # a line for each input and output
        lines += _comments(reasons.get(key, "").split("\n"))
        lines += [f"    {line}" for line in _lines(key, value, n_levels)]
        lines += _comments(remarks.get(key, ()))
    return "\n".join(lines) + "\n"


def _comments(texts: Iterable[str]) -> Iterator[str]:
    """*texts* as lines of comments in the block of a backend."""
    return (f"    # {_printable(text)}".rstrip() for text in texts)


def _lines(key: str, value: Any, n_levels: int) -> Iterator[str]:
    """The lines of *key* with *value*, which has lines of its own for so many levels."""
    name = as_yaml(key) if key.isidentifier() else _quoted(key)
    if not n_levels or not isinstance(value, dict):
        yield f"{name}: {as_yaml(value)}"
        return
    yield f"{name}:"
    for inner, item in value.items():
        yield from (f"  {line}" for line in _lines(inner, item, n_levels - 1))


def _quoted(text: str) -> str:
    return _printable(json.dumps(text, ensure_ascii=False))


def _printable(text: str) -> str:
    """*text* with control characters, which a terminal would obey, escaped as in Python and YAML."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def as_yaml(value: Any) -> str:
    """*value* as it stands in a file, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=sys.maxsize, allow_unicode=True)
    return text.strip().removesuffix("...").strip()
