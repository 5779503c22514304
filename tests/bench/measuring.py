"""What every row is made with: the sizes, the processes of a run, a result, and ratios to the yardsticks.

A row is a generator of results. It gets a `Bench`, which has the processes and the sizes, and measures in rounds:
in each round every party has its turn, so that a machine that is slow for a while is slow for all of them, and a
figure is made of the numbers of one round. What is reported are minimum, median and maximum over the rounds.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tests.bench import kernel, processes, traffic
from tests.bench.cases import Case, Tensor, create, numbers
from tests.bench.client import Connection
from tests.bench.grpc_client import GrpcConnection, connect
from tests.bench.processes import Process

MIB = 1024 * 1024

TURNS = 20
"""Of each process in a round, where requests are small."""

SETTLE_S = 0.2
"""How long work may be put off."""


@dataclass(frozen=True)
class Scale:
    """How much is measured. Everything that is repeated is counted here."""

    image: tuple[int, ...] = (1, 3, 224, 224)
    small_requests: int = 2000
    image_requests: int = 40
    datatype_requests: int = 15
    strings: int = 10_000
    long_string: int = 10 * MIB
    strings_requests: int = 20
    long_requests: int = 4
    rounds: int = 7
    datatype_rounds: int = 3
    memory_elements: int = 64 * MIB
    memory_rounds: int = 3
    beside_elements: int = 16 * MIB
    beside_requests: int = 1000
    beside_rounds: int = 3
    hostile_clients: int = 24
    chunk_connections: tuple[int, ...] = (20, 100)
    chunk_rounds: int = 5
    few_elements: int = 128 * 1024
    few_requests: int = 128
    linear_rounds: int = 3
    connections: int = 16
    throughput_requests: int = 600
    trips: int = 15
    sizes: tuple[int, ...] = tuple(4**power for power in range(2, 14))
    size_elements: int = 2 * MIB
    size_requests: int = 200
    size_rounds: int = 3
    batch_rounds: int = 5
    batch_s: float = 4.0
    profile_s: float = 10.0


QUICK = Scale(
    image=(1, 3, 32, 32),
    small_requests=20,
    image_requests=3,
    datatype_requests=2,
    strings=100,
    long_string=256 * 1024,
    strings_requests=2,
    long_requests=2,
    rounds=1,
    datatype_rounds=1,
    memory_elements=MIB,
    memory_rounds=1,
    beside_elements=MIB,
    beside_requests=50,
    beside_rounds=1,
    hostile_clients=4,
    chunk_connections=(4,),
    chunk_rounds=1,
    few_requests=4,
    linear_rounds=1,
    connections=4,
    throughput_requests=40,
    trips=2,
    sizes=(16, 4096),
    size_requests=3,
    size_rounds=1,
    batch_rounds=1,
    batch_s=0.5,
    profile_s=1.0,
)
"""Only enough to see that every row runs and every byte is right."""


@dataclass
class Result:
    """One line of the table."""

    row: str
    what: str
    unit: str
    target: float | None = None
    stretch: float | None = None
    at_least: bool = False
    samples: list[float] = field(default_factory=list)
    absolute: str = ""
    """The numbers that the samples are made of, as medians."""
    missing: str = ""
    """Why there are no samples."""
    elements: int = 0
    """Of the tensor, in a row over sizes."""
    points: dict[str, float] = field(default_factory=dict)
    """Of a row over sizes: milliseconds by party, as medians. Parties that were left out are missing."""

    @property
    def is_held(self) -> bool | None:
        """Whether the median is within the target; None without samples or target."""
        if not self.samples or self.target is None:
            return None
        median = statistics.median(self.samples)
        return median >= self.target if self.at_least else median <= self.target


class Bench:
    """The processes of a run, each started when the first row needs it, and the cases."""

    def __init__(self, scale: Scale, stack: ExitStack, tick: Callable[[str], None]) -> None:
        """*stack* ends all processes; *tick* is told of progress."""
        self.scale = scale
        self.tick = tick
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        self.cases = self.folder / "cases"
        self.cases.mkdir()
        self._stack = stack
        self._shared: dict[str, Process] = {}

    def case(self, name: str, request: Callable[[], Tensor], answer: Tensor | None = None) -> Case:
        existing = self.cases / name
        return Case(existing) if existing.exists() else create(self.cases, name, request(), answer)

    def forget(self, *cases: Case) -> None:
        """Remove the files of large cases; who has mapped them keeps them until he ends."""
        for case in cases:
            shutil.rmtree(case.folder, ignore_errors=True)

    @property
    def endpoints(self) -> list[str]:
        """Two backends, so that balancing and ejection have something to do. P uses the first."""
        return [
            self._share(name, lambda: processes.start_backend(self.cases, self.folder)).url
            for name in ("backend", "other backend")
        ]

    @property
    def relay(self) -> Process:
        return self._share("relay", lambda: processes.start_relay(self.cases, self.endpoints[0], self.folder))

    @property
    def gateway(self) -> Process:
        return self._share("gateway", lambda: processes.start_gateway(self.endpoints, self.folder))

    @property
    def logging_gateway(self) -> Process:
        """A gateway whose access log, JSON, goes to a file."""
        return self._share("logging", lambda: processes.start_gateway(self.endpoints, self.folder, access_log="json"))

    @property
    def grpc_gateway(self) -> Process:
        """A gateway of its own, so that its figures are those of gRPC alone."""
        return self._share("grpc gateway", lambda: processes.start_grpc_gateway(self.endpoints, self.folder))

    @property
    def grpc_relay(self) -> Process:
        return self._share("grpc relay", lambda: processes.start_grpc_relay(self.cases, self.endpoints[0], self.folder))

    def _share(self, name: str, start: Callable[[], Process]) -> Process:
        if name not in self._shared:
            self._shared[name] = self._stack.enter_context(start())
        return self._shared[name]

    def small_case(self) -> Case:
        return self.case("small", lambda: numbers("FP32", (1, 16)))

    def image_case(self, datatype: str = "FP32") -> Case:
        return self.case(f"image-{datatype}", lambda: numbers(datatype, self.scale.image))

    def echo_case_name(self, elements: int) -> str:
        return f"echo-{elements}"

    def echo_case(self, elements: int) -> Case:
        return self.case(self.echo_case_name(elements), lambda: numbers("FP32", (1, elements)))


def processor_ns(process: Process, case: Case, requests: int) -> float:
    """Processor time of *process* per request, in nanoseconds, as the mean of *requests* one after another."""
    with connect(process.url) as connection:
        connection.infer_and_check(case)
        before = process.processor_ns()
        for _ in range(requests):
            connection.infer(case)
        return (process.processor_ns() - before) / requests


class Life:
    """Requests of `traffic` without end: no two of them the same, as far as they have ids.

    If they are *traced*, each head has a trace and an id of its own, as behind a proxy that writes them.
    """

    def __init__(self, models: list[str], *, traced: bool = False) -> None:
        self.models = models
        self._requests = traffic.load(models)
        self._extra = traffic.trace if traced else bytes

    def run(self, connection: Connection | GrpcConnection, requests: int) -> None:
        for exchange, identity in islice(self._requests, requests):
            connection.send(exchange, identity, self._extra())

    def check(self, connection: Connection | GrpcConnection) -> None:
        """Send every request there is, and compare every value. Raises `WrongBytesError`."""
        exchanges = sum(len(traffic.exchanges(model)) for model in self.models)
        for exchange, identity in islice(self._requests, exchanges):
            connection.send_and_check(exchange, identity)


def life_ns(servers: Iterable[Process], life: Life, requests: int) -> list[float]:
    """As `processor_ns`, of several processes with requests of `traffic`, in short turns.

    A machine that others use is slow for a second and fast for the next, which short turns share fairly. What a
    process does in the turns of others counts too, and so does what it has put off for `SETTLE_S`: metrics or a log.
    """
    turn = max(1, requests // TURNS)
    with ExitStack() as stack:
        connections: list[tuple[Connection | GrpcConnection, Process]] = []
        for process in servers:
            connection = connect(process.url)
            stack.callback(connection.close)
            connections.append((connection, process))
        before = [process.processor_ns() for _, process in connections]
        for _ in range(TURNS):
            for connection, _ in connections:
                life.run(connection, turn)
        time.sleep(SETTLE_S)
        spent = [process.processor_ns() for _, process in connections]
    return [(b - a) / (turn * TURNS) for a, b in zip(before, spent, strict=True)]


def check_and_warm_up(servers: Iterable[Process], life: Life, requests: int) -> None:
    """Compare every value once with each gateway, and run *requests*. The relay's numbers are its own."""
    for process in servers:
        with connect(process.url) as connection:
            if process.name == "gateway":
                life.check(connection)
            life.run(connection, requests)


def against_yardsticks(
    bench: Bench,
    result: Result,
    case: Case,
    requests: int,
    rounds: int,
    datatype: str | None = None,
    gateway: Process | None = None,
) -> Result:
    """Fill *result* with gateway / P, or with gateway / (P + K) if *datatype* is given."""
    gateway = gateway or bench.gateway
    p, ours, k = [], [], []
    for process in (bench.relay, gateway):
        processor_ns(process, case, max(1, requests // 4))
    for index in range(rounds):
        bench.tick(f"row {result.row}, {result.what}: round {index + 1} of {rounds}")
        p.append(processor_ns(bench.relay, case, requests))
        ours.append(processor_ns(gateway, case, requests))
        k.append(kernel.processor_ns(case, datatype, requests) if datatype else 0.0)
        result.samples.append(ours[-1] / (p[-1] + k[-1]))
    result.absolute = f"gateway {us(ours)}, P {us(p)}" + (f", K {us(k)}" if datatype else "")
    return result


def us(samples: list[float]) -> str:
    """The median of *samples*, nanoseconds, in words."""
    value = statistics.median(samples) / 1000
    return f"{value:.0f} us" if value < 10_000 else f"{value / 1000:.1f} ms"


def add_growth(
    bench: Bench, result: Result, case: Case, size: int, process: Process, connection: Connection | GrpcConnection
) -> None:
    """Add how much the peak of *process* grows in one inference of *case* / *size*, after some small ones."""
    for _ in range(20):
        connection.infer(bench.small_case())
    before = process.peak_bytes()
    connection.infer_and_check(case)
    after = process.peak_bytes()
    result.samples.append((after - before) / size)
    result.absolute = f"{before / MIB:.0f} MiB before, {after / MIB:.0f} MiB after"
