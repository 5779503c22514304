"""Metrics as text for a scrape: rows become samples, and samples text, in pieces between which other work can run.

Not here: which metrics there are (`sums`), and their current rows (`metrics`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from gateway.telemetry.sums import BOUNDS, Cells, Family, Row

_OPENMETRICS = "application/openmetrics-text"

PART_SAMPLES = 100
"""About how many samples are collected and written in one go: that takes 0.8 ms. 200 models on ten routes have 43,000,
which would hold the loop for 0.3 s."""

_UPPER_BOUNDS = {name: [str(floatToGoString(bound)) for bound in bounds] for name, bounds in BOUNDS.items()}  # type: ignore[no-untyped-call]
"""The upper bounds of buckets, as the label `le` has them."""


def metrics_of(families: Iterable[Family], rows: Mapping[Row, Cells], type_: str = "counter") -> Iterator[Metric]:
    """The metrics of *families*, with a series for each of their *rows*, in parts of `PART_SAMPLES` or a few more.

    Each family has at least one part. *type_* is the type of families without buckets.
    """
    by_name: defaultdict[str, list[tuple[Row, Cells]]] = defaultdict(list)
    for row, cells in rows.items():
        by_name[str(row[0])].append((row[1:], cells))
    for family in families:
        name = family.name if family.name.startswith("process_") else f"tensor_gateway_{family.name}"
        part = Metric(name, family.help, "histogram" if family.bounds else type_)
        is_first = True
        for values, cells in by_name[family.name]:
            labels = {name: str(value) for name, value in zip(family.labels, values, strict=True)}
            part.samples += _samples(family, part, labels, cells)
            if len(part.samples) >= PART_SAMPLES:
                yield part
                part, is_first = Metric(part.name, family.help, part.type), False
        if part.samples or is_first:
            yield part


def _samples(family: Family, metric: Metric, labels: dict[str, str], cells: Cells) -> Iterator[Sample]:
    if not family.bounds:
        yield Sample(f"{metric.name}_total" if metric.type == "counter" else metric.name, labels, cells[0])
        return
    *buckets, total = cells
    counts = list(accumulate(buckets))
    for bound, count in zip(_UPPER_BOUNDS[family.name], counts, strict=True):
        yield Sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    yield Sample(f"{metric.name}_count", labels, counts[-1])
    yield Sample(f"{metric.name}_sum", labels, total)


class _One(Collector):
    """Collects one metric that is already made."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


class Exposition:
    """Writes metrics for one scrape, in the format that the scraper accepts."""

    def __init__(self, accept: str) -> None:
        """*accept* is the `Accept` header of the scrape."""
        # only known words go to the library: it parses versions, and repeats them in the Content-Type
        accepted = {part.partition(";")[0].strip() for part in accept.split(",")}
        encoder: Callable[[Collector], bytes]
        encoder, self.content_type = choose_encoder(_OPENMETRICS if _OPENMETRICS in accepted else "")
        self._encode = encoder
        self._end = encoder(CollectorRegistry())  # nothing, or OpenMetrics' `# EOF`

    def pieces(self, parts: Iterable[Metric]) -> Iterator[bytes]:
        """The text of *parts*; parts of the same name must follow each other, and become one metric."""
        name = None
        for part in parts:
            text = self._encode(_One(part)).removesuffix(self._end)
            yield text if part.name != name else _without_comments(text)
            name = part.name
        yield self._end


def _without_comments(text: bytes) -> bytes:
    """*text* without help and type lines. Labels cannot fake one: they have their newlines escaped."""
    return b"".join(line + b"\n" for line in text.split(b"\n") if line and not line.startswith(b"#"))
