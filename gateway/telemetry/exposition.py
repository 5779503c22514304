"""Rows of the table of sums as text for a scrape, which prometheus_client writes.

Not here: which metrics there are (`sums`), and their current rows (`metrics`).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from gateway.telemetry.sums import BOUNDS, Cells, Family, Row

PIECE_SAMPLES = 100
"""About how many samples are written in one go, which takes 0.8 ms. 200 models on ten routes have 43,000 samples, which
would hold the loop for 0.3 s."""

_UPPER_BOUNDS = {name: [str(floatToGoString(bound)) for bound in bounds] for name, bounds in BOUNDS.items()}  # type: ignore[no-untyped-call]
"""The upper bounds of buckets, as the label `le` has them."""


class _One(CollectorRegistry):
    """Holds one metric that is already made."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def exposition(families: Iterable[Family], rows: Mapping[Row, Cells], kind: str = "counter") -> Iterator[str]:
    """The text of *families* for Prometheus, a series for each of their *rows*, in pieces of some `PIECE_SAMPLES`.

    *kind* is the type of families without buckets. Requests may be counted between two pieces.
    """
    by_name: defaultdict[str, list[tuple[Row, Cells]]] = defaultdict(list)
    for row, cells in rows.items():
        by_name[str(row[0])].append((row[1:], cells))
    for family in families:
        name = family.name if family.name.startswith("process_") else f"tensor_gateway_{family.name}"
        part = Metric(name, family.help, "histogram" if family.bounds else kind)
        is_first = True
        for values, cells in by_name[family.name]:
            labels = {label: str(value) for label, value in zip(family.labels, values, strict=True)}
            part.samples += _samples(family, part, labels, cells)
            if len(part.samples) >= PIECE_SAMPLES:
                yield _text(part, is_first=is_first)
                part, is_first = Metric(name, family.help, part.type), False
        if part.samples or is_first:
            yield _text(part, is_first=is_first)


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


def _text(part: Metric, *, is_first: bool) -> str:
    """The samples of *part*, of a metric's first part with the metric's help and type above them."""
    text = generate_latest(_One(part)).decode()
    if is_first:
        return text
    # a label cannot fake a comment, because its newlines are escaped
    return "".join(f"{line}\n" for line in text.split("\n") if line and not line.startswith("#"))
