"""The findings in a configuration's file: errors and warnings, each with its line and key.

Not here: what is an error (`reading`, `rules`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.config.schema import Config
from gateway.config.structure import walk
from gateway.config.values import FilePath

HIDDEN = "***"
"""Shown instead of a value that is secret."""


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
    read: Config | None
    """The configuration with placeholders where there are errors; None if nothing could be read."""
    errors: list[Finding]
    warnings: list[Finding] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    """The line of each key of the file, by the key's path."""

    @property
    def config(self) -> Config | None:
        """The configuration; None as soon as there is an error."""
        return None if self.errors else self.read

    def add_error(self, key: str, reason: str) -> None:
        """Add an error of *key* that was found outside of the schema, unless the key has one."""
        self._add(self.errors, key, reason)

    def add_warning(self, key: str, reason: str) -> None:
        """Add a warning about *key*, unless the key has an error."""
        self._add(self.warnings, key, reason)

    def _add(self, findings: list[Finding], key: str, reason: str) -> None:
        if self.read is not None and not any(overlap(key, error.key) for error in self.errors):
            findings.append(Finding(line_of_key(self.lines, key), key, without_hidden_paths(self.read, reason)))

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


def line_of_key(lines: Mapping[str, int], key: str) -> int:
    """The line of *key*, or of the innermost key around it that stands in the file; else the first."""
    while key and key not in lines:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return lines.get(key, 1)


def overlap(one: str, other: str) -> bool:
    """Whether one of two keys is the other, or a part of it; the empty key is that of no part of the file."""
    inner, outer = (one, other) if len(one) > len(other) else (other, one)
    return inner == outer or (outer != "" and inner.startswith((f"{outer}.", f"{outer}[")))
