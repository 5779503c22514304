"""The findings in a configuration's file: errors and warnings, each with its line and key.

Not here: what is an error (`reading`, `rules`).
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.config.schema import Config
from gateway.config.structure import walk
from gateway.config.values import FilePath

HIDDEN = "***"
"""Shown instead of a value that is secret."""

_NAMED_KEY = re.compile("`([^`]+)`")


class Finding(NamedTuple):
    """One error or warning: the line of the file, 0 if it is about the whole file; the key's path; the reason."""

    line: int
    key: str
    reason: str

    def text(self, file: str, kind: str = "") -> str:
        """One line: `file:line: kind: key: reason`, without what is empty; `line N` if there is no key and no file."""
        place = f"{file}:{self.line}" if file and self.line else file
        if not file and not self.key:
            place = f"line {self.line}"
        return ": ".join(part for part in (place, kind, self.key, self.reason) if part)


@dataclass
class Inspected:
    """What was found in a configuration."""

    file: str
    read: Config | None = None
    """The configuration with placeholders where there are errors; None if nothing could be read."""
    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    """The line of each key of the file, by the key's path."""
    unread: list[str] = field(default_factory=list)
    """The keys that were not read as they were meant. Nothing else is told of them, so that one mistake is one line."""

    @property
    def config(self) -> Config | None:
        """The configuration; None as soon as there is an error."""
        return None if self.errors else self.read

    def add(self, findings: list[Finding], key: str, reason: str) -> None:
        """Add to *findings*, which are `errors` or `warnings`.

        The line is that of *key*, or, where *key* has its default, of the first key that *reason* names.
        A finding that follows from another mistake is left out: if *key* has an error or was not read, or if that is so
        of a key that *reason* names.
        """
        named = _NAMED_KEY.findall(reason)
        wrong = [error.key for error in self.errors]
        if self.read is None or key in wrong or overlap([key], self.unread) or overlap(named, wrong + self.unread):
            return
        line = next((line for name in (key, *named) if (line := self.line_of(name))), 1)
        findings.append(Finding(line, key, without_hidden_paths(self.read, reason)))

    def line_of(self, key: str) -> int:
        """The line of *key*, or of the innermost key around it that stands in the file; else 0."""
        while key and key not in self.lines:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return self.lines.get(key, 0)

    def texts(self) -> list[str]:
        """Every error and warning as a line of text, in the order of the file's lines."""
        marked = [(each, "") for each in self.errors] + [(each, "warning") for each in self.warnings]
        return [each.text(self.file, kind) for each, kind in sorted(marked, key=lambda pair: pair[0].line)]


def without_hidden_paths(config: Config, text: str) -> str:
    """*text* without the paths of files that came from outside: `${file:KEY}` in the place of `KEY` is a secret."""
    for path, value in walk(config):
        if value and path in config.hidden and isinstance(value, FilePath):
            text = text.replace(value, HIDDEN)
    return text


def overlap(some: list[str], others: list[str]) -> bool:
    """Whether one of *some* keys is one of the *others*, a part of it, or what it is a part of."""
    return any(one == other or _is_inside(one, other) or _is_inside(other, one) for one in some for other in others)


def _is_inside(key: str, other: str) -> bool:
    return key.startswith((f"{other}.", f"{other}["))
