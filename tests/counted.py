"""Metrics of a process that counts for itself, as the gateway has them with one process."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from gateway.telemetry import metrics
from gateway.telemetry.counting import Counting
from gateway.telemetry.reading import Certificate, EndpointReading, Level, Reading


def reading(endpoints: Iterable[EndpointReading], certificates: Iterable[Certificate] = ()) -> Reading:
    """What a process says that has these *endpoints*."""
    return Reading(1, 0.0, 0, Level(0, 0), Level(0, 0), Level(0, 0), list(endpoints), list(certificates))


class Whole(Collector):
    """Collects each metric in one part."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for part in self._collect():
            if part.name in found:
                found[part.name].samples += part.samples
            else:
                found[part.name] = part
        yield from found.values()


class Metrics(metrics.Metrics):
    """Metrics, and what counts for them."""

    def __init__(self, endpoints: Callable[[], Iterable[EndpointReading]] = tuple) -> None:
        super().__init__(lambda: [reading(endpoints())])
        self.registry = CollectorRegistry()
        self.registry.register(Whole(self.collect))
        counting = Counting(self.add)
        counting.add_up()
        self.record, self.add_up, self.finish = counting.record, counting.add_up, counting.finish
        self.expect, self.expect_endpoints = counting.expect, counting.expect_endpoints
        self.note_connections = counting.note_connections
