"""Finds routes that can never match because an earlier one takes all their requests, where that is certain.

In doubt a route is taken to match something. Not here: how requests are matched
(`policy.routing`), whose rules these follow.
"""

import fnmatch
import re
from collections.abc import Sequence
from typing import Protocol

_SPECIAL = re.compile(r"[*?\[]")


class Rule(Protocol):
    """The criteria of a route; None matches everything."""

    @property
    def models(self) -> list[str] | None:
        """Patterns of model names."""

    @property
    def host(self) -> str | None:
        """A pattern of host names."""

    @property
    def path_prefix(self) -> str | None:
        """The first segments of the path."""


def first_cover(rule: Rule, earlier: Sequence[Rule]) -> int | None:
    """The index of the first of *earlier* that takes what *rule* would match; None if something is left for it.

    Several earlier rules may share its models among them: then the index is that of the first of these.
    """
    covers = []
    models: Sequence[str | None] = rule.models or [None]
    for model in models:
        cover = next((index for index, each in enumerate(earlier) if _covers(each, rule, model)), None)
        if cover is None:
            return None
        covers.append(cover)
    return min(covers)


def _covers(wide: Rule, narrow: Rule, model: str | None) -> bool:
    """Whether *wide* matches all that *narrow* does for the one pattern *model* of its models."""
    return (
        _covers_path(_prefix(wide), _prefix(narrow))
        and _covers_host(wide.host, narrow.host)
        and _covers_model(wide, narrow, model)
    )


def _covers_path(wide: str, narrow: str) -> bool:
    return f"{narrow}/".startswith(f"{wide}/")


def _covers_host(wide: str | None, narrow: str | None) -> bool:
    if wide is None or wide == "*":
        return True
    if narrow is None:
        return False
    wide, narrow = wide.lower(), narrow.lower()
    if wide == narrow:
        return True
    # a pattern without a port matches all ports; IPv6 addresses, which have colons and brackets, have to be equal
    name, colon, port = narrow.partition(":")
    is_plain = ":" not in wide and "[" not in wide + narrow and not (colon and ":" in port)
    return is_plain and covers_pattern(wide.removesuffix("."), name.removesuffix("."))


def _covers_model(wide: Rule, narrow: Rule, model: str | None) -> bool:
    if wide.models is None:
        return True
    # which part of a path is the model depends on the prefix before it
    return (
        model is not None
        and _before_protocol(_prefix(wide)) == _before_protocol(_prefix(narrow))
        and any(covers_pattern(pattern, model) for pattern in wide.models)
    )


def covers_pattern(wide: str, narrow: str) -> bool:
    """Whether the pattern *wide* certainly matches every name that *narrow* does."""
    if wide in ("*", narrow):
        return True
    if not _SPECIAL.search(narrow):
        return fnmatch.fnmatchcase(narrow, wide)
    beginning = wide[:-1]
    literal = _SPECIAL.split(narrow, maxsplit=1)[0]
    return wide.endswith("*") and not _SPECIAL.search(beginning) and literal.startswith(beginning)


def _prefix(rule: Rule) -> str:
    return (rule.path_prefix or "").rstrip("/")


def _before_protocol(prefix: str) -> str:
    """What is taken off before the path is read; a beginning of the protocol's own paths stays."""
    return "" if f"{prefix}/".startswith("/v2/") else prefix
