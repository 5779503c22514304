"""What the configuration may say and hardly means: a table of rules, and which routes can never match.

A route can never match if earlier ones take all its requests, where that is certain; in doubt it is taken to match
something. Not here: errors, and how tables are read (`rules`); how requests are matched (`policy.routing`), whose rules
these follow.
"""

import fnmatch
import re

from gateway.config.rules import Place, Rule
from gateway.config.schema import Backend, BackendTls, Config, Route, Timeouts

MAX_COMPARED = 500
"""The most routes that are compared, each with all before it: half a second."""

_SPECIAL = re.compile(r"[*?\[]")


def _is_unused(at: Place) -> bool:
    routes = at.part.routes
    return bool(routes) and not any(at.name in route.backends for route in routes)


def _never_matching(at: Place) -> dict[str, int]:
    """The routes that can never match, each with the index of the first route that takes all its requests."""
    found = {}
    for index, route in enumerate(at.value[:MAX_COMPARED]):
        cover = next((earlier for earlier in range(index) if _covers(at.value[earlier], route)), None)
        if cover is not None:
            found[f"[{index}]"] = cover
    return found


def _covers(wide: Route, narrow: Route) -> bool:
    """Whether *wide* certainly matches every request that *narrow* matches.

    Hosts are compared as they are written. Models are compared behind the same prefix only, because the prefix decides
    which part of a path is the model.
    """
    if wide.host not in (None, "*") and wide.host.lower() != (narrow.host or "").lower():
        return False
    wide_prefix, narrow_prefix = ((each.path_prefix or "").rstrip("/") for each in (wide, narrow))
    if wide.models is None:
        return f"{narrow_prefix}/".startswith(f"{wide_prefix}/")
    if narrow.models is None or wide_prefix != narrow_prefix:
        return False
    return all(any(_covers_pattern(pattern, model) for pattern in wide.models) for model in narrow.models)


def _covers_pattern(wide: str, narrow: str) -> bool:
    """Whether the pattern *wide* certainly matches every name that *narrow* does."""
    if not _SPECIAL.search(narrow):
        return fnmatch.fnmatchcase(narrow, wide)
    beginning = wide[:-1]
    literal = _SPECIAL.split(narrow, maxsplit=1)[0]
    is_prefix = wide.endswith("*") and not _SPECIAL.search(beginning) and literal.startswith(beginning)
    return wide == narrow or is_prefix


# fmt: off
WARNINGS = (
    Rule(Timeouts, "connect first_byte idle", lambda at: at.value > at.part.total,
         "longer than `total`, which ends the call first"),
    Rule(BackendTls, "verify", lambda at: not at.value,
         "false accepts any certificate: anyone on the network path can read and change everything"),
    Rule(Backend, "dialect", lambda at: at.value == "mlflow" and not any(m.outputs for m in at.part.models.values()),
         "every inference gets 502: set the datatypes of the outputs in `models`"),
    Rule(Backend, "dialect", lambda at: at.value == "template" and not at.part.models,
         "every inference gets 404: describe the models in `models`"),
    Rule(Config, "listen admin", lambda at: 0 < at.value.port < 1024,
         "a port below 1024 needs a privilege, such as CAP_NET_BIND_SERVICE"),
    Rule(Config, "admin", lambda at: not at.value.is_local,
         "open to other machines, without TLS and tokens: it shows metrics and the configuration"),
    Rule(Config, "access.tokens_file", lambda at: at.part.tls is None and not at.part.listen.is_local,
         "without `tls`, anyone on the network can read the tokens"),
    Rule(Config, "trusted_proxies.*", lambda at: at.value.endswith("/0"),
         "every client may say that it is another: name only the proxies"),
    Rule(Config, "backends.*", _is_unused, "unused: no route leads to it, see `routes`"),
    Rule(Config, "routes", _never_matching, "never matches: `routes[{found}]` before it takes all its requests"),
)
"""What is shown for keys that stand in the file."""
# fmt: on
