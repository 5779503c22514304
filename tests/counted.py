"""Metrics of a process that counts for itself, as the gateway has them with one process."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.telemetry import metrics
from gateway.telemetry.counting import Counting
from gateway.telemetry.reading import Certificate, EndpointReading, Level, Reading


def reading(endpoints: Iterable[EndpointReading], certificates: Iterable[Certificate] = ()) -> Reading:
    """What a process says that has these *endpoints*."""
    return Reading(1, 0.0, 0, Level(0, 0), Level(0, 0), Level(0, 0), list(endpoints), list(certificates))


class Read(Collector):
    """Collects what Prometheus reads in a text."""

    def __init__(self, write: Callable[[], Iterable[str]]) -> None:
        self._write = write

    def collect(self) -> Iterator[Metric]:
        yield from text_string_to_metric_families("".join(self._write()))


class Metrics(metrics.Metrics):
    """Metrics, and what counts for them."""

    def __init__(self, endpoints: Callable[[], Iterable[EndpointReading]] = tuple) -> None:
        super().__init__()
        self.registry = CollectorRegistry()
        self.registry.register(Read(lambda: self.exposition([reading(endpoints())])))
        counting = Counting(self.add)
        counting.add_up()
        self.record, self.add_up, self.finish = counting.record, counting.add_up, counting.finish
        self.note_connections = counting.note_connections

        def expect(*known: str) -> bool:
            is_new = counting.expect(*known)
            counting.add_up()
            return is_new

        self.expect = expect
