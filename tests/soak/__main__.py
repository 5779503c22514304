"""The command: start a gateway, let clients and endpoints loose on it, and look at what is left when they have gone."""

import argparse
import asyncio
import itertools
import random
import re
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import grpc

from tests.certificates import Authority
from tests.soak.attacking import AttackingClient
from tests.soak.backend import HEALTH_PATH, faulty_backends
from tests.soak.client import SoakClient
from tests.soak.grpc import GrpcClient, HostileGrpcClient
from tests.soak.journal import Journal
from tests.soak.slow import LIMIT_S, SlowClient
from tests.system.gateway_process import BAD_LOG, GatewayProcess, gateway_process
from tests.system.scripted import total

CLIENTS = 24
"""How many clients there are at a time."""

SLOW_CLIENTS = 6

ATTACKING_CLIENTS = 4

GRPC_CLIENTS = 8

ENDPOINTS = 3

RELOAD_S = (0.5, 4.0)
"""The shortest and the longest between two reloads."""

RELOADED_S = 10.0
"""When a reload must have happened; a second is promised, on a machine that has time."""

SETTLE_S = 30.0
"""How long the gateway has to let everything go when the last client has left."""

SPARE_DESCRIPTORS = 8
"""Descriptors that a process of the gateway may have opened for itself since it began."""

WARM_SHARE = 0.25
"""The share of the time after which the gateway is let come to rest for the first time; what it holds at the end is
compared with what it held then."""

SPARE_BYTES = 32 * 2**20
"""How much more memory a worker may hold at the end: freed memory is not given back at once."""

CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
grpc: 127.0.0.1:0
workers: {workers}
logging: {{access: none}}
limits: {{request_body: 16MiB, in_flight_bytes: 512MiB, header_timeout: {limit}s, body_timeout: {limit}s,
          client_idle: {limit}s, client_keep_alive: 5s}}
{tls}
backends:
  main:
    endpoints: [{endpoints}]
    timeouts: {{connect: 500ms, first_byte: 1500ms, idle: 1500ms, total: {total}s}}
    retry: {{attempts: {attempts}, budget: {budget}}}
    balance: {balance}
    sticky: {sticky}
    eject: {{failures: {failures}, window: 5s, for: 1s, panic_below: {panic}}}
    health: {health}
"""

WRONG = ["no: yes", "backends: {main: {endpoints: ['http://127.0.0.1:1']", "backends: {main: {endpoints: []}}"]
"""Files that do not load."""


def configurations(dice: random.Random, urls: list[str], workers: int, tls: str) -> Iterator[str]:
    """One configuration after the other; some of the endpoints, which answer alike, are in each."""
    health = f"{{path: {HEALTH_PATH}, interval: 500ms, timeout: 1s, unhealthy_after: 2, healthy_after: 1}}"
    while True:
        chosen = dice.sample(urls, dice.randrange(1, len(urls) + 1))
        yield CONFIGURATION.format(
            workers=workers,
            limit=f"{LIMIT_S:g}",
            tls=tls,
            endpoints=", ".join(f"'{url}'" for url in chosen),
            total=dice.choice([8, 12]),
            attempts=dice.choice([1, 2, 3]),
            budget=dice.choice([0, 0.2, 1]),
            balance=dice.choice(["round_robin", "least_in_flight"]),
            sticky=dice.choice(["none", "sequence_id", "header:Host"]),
            failures=dice.choice([0, 3, 10]),
            panic=dice.choice([0, 0.5]),
            health=dice.choice([health, health, "null"]),
        )


async def reload_again_and_again(
    gateway: GatewayProcess, session: aiohttp.ClientSession, texts: Iterator[str], dice: random.Random, journal: Journal
) -> None:
    """Reload without end: good files, and some that do not load."""
    while True:
        await asyncio.sleep(dice.uniform(*RELOAD_S))
        is_good = dice.random() < 0.8
        before = total(await gateway.samples(session), "config_last_reload_timestamp_seconds")
        gateway.reload(next(texts) if is_good else dice.choice(WRONG))
        until_s = time.monotonic() + RELOADED_S
        while True:
            samples = await gateway.samples(session)
            if total(samples, "config_last_reload_timestamp_seconds") > before:
                break
            if time.monotonic() > until_s:
                journal.violated("a reload did not happen", f"of a file that is {'good' if is_good else 'wrong'}")
                break
            await asyncio.sleep(0.05)
        if total(samples, "config_last_reload_successful") != is_good:
            journal.violated("a reload was not told as what it was", gateway.file.read_text())
        journal.reloads["good" if is_good else "refused"] += 1


class Rest(NamedTuple):
    """What the gateway holds when nobody uses it."""

    descriptors: int
    resident_bytes: int


async def come_to_rest(
    gateway: GatewayProcess, session: aiohttp.ClientSession, descriptors: int, journal: Journal
) -> Rest:
    """Wait until the gateway holds nothing any more, and say what it still holds after `SETTLE_S`."""
    until_s = time.monotonic() + SETTLE_S
    while True:
        held = await gateway.held(session)
        # connections of probes and of the metrics' reader come and go
        held["descriptors"] = max(0, gateway.descriptors() - descriptors - SPARE_DESCRIPTORS * len(gateway.pids()))
        if not any(held.values()):
            break
        if time.monotonic() > until_s:
            for name, value in held.items():
                if value:
                    journal.violated("something is still held when all have gone", f"{name}: {value:g}")
            break
        await asyncio.sleep(0.2)
    samples = await gateway.samples(session)
    if not any(name.startswith("tensor_gateway_upstream_connections{") for name in samples):
        journal.violated("a metric is missing", "tensor_gateway_upstream_connections")
    return Rest(gateway.descriptors(), gateway.resident_bytes())


async def soak(seed: int, seconds: float, workers: int, *, folder: Path, has_tls: bool) -> tuple[Journal, str]:
    """Run for *seconds*; what happened, and the gateway's standard error."""
    journal = Journal()
    ids = itertools.count(1)
    dice = random.Random(f"{seed}-reloads")
    tls, trust, credentials = "", None, None
    if has_tls:
        authority = Authority(folder)
        pair = authority.issue()
        tls = f"tls: {{certificate: {pair.certificate}, key: {pair.key}}}"
        trust = authority.client_context()
        credentials = grpc.ssl_channel_credentials(authority.path.read_bytes())
    log = ""
    async with faulty_backends(ENDPOINTS, journal, f"{seed}-backend") as backends, aiohttp.ClientSession() as session:
        texts = configurations(dice, [backend.url for backend in backends], workers, tls)
        try:
            async with gateway_process(next(texts), folder / "gateway.yaml") as gateway:
                await gateway.samples(session)
                descriptors = gateway.descriptors()
                rests = []
                for phase, share in enumerate([WARM_SHARE, 1 - WARM_SHARE]):
                    reloading = asyncio.create_task(reload_again_and_again(gateway, session, texts, dice, journal))
                    end_s = time.monotonic() + seconds * share
                    await asyncio.gather(
                        use(gateway.url, journal, f"{seed}-{phase}", ids, trust, end_s),
                        use_grpc(gateway, journal, f"{seed}-{phase}", ids, credentials, end_s),
                    )
                    if reloading.done():
                        reloading.result()
                    reloading.cancel()
                    journal.close()
                    rests.append(await come_to_rest(gateway, session, descriptors, journal))
                    log = gateway.log
                compare(rests[0], rests[1], workers, journal)
        except AssertionError as error:
            journal.violated("the gateway did not end well", str(error)[-2000:])
    for line in log.splitlines():
        if BAD_LOG.search(line):
            journal.violated("an exception stands in the gateway's log", line[:200])
    return journal, log


async def use(
    url: str, journal: Journal, seed: str, ids: Iterator[int], trust: ssl.SSLContext | None, end_s: float
) -> None:
    """Let all clients loose until *end_s*, by the monotonic clock."""

    def goes_on() -> bool:
        return time.monotonic() < end_s

    quick = [SoakClient(url, journal, f"{seed}-{number}", ids, trust) for number in range(CLIENTS)]
    slow = [SlowClient(url, journal, f"{seed}-slow-{number}", ids, trust) for number in range(SLOW_CLIENTS)]
    attacking = [AttackingClient(url, journal, f"{seed}-attack-{n}", ids, trust) for n in range(ATTACKING_CLIENTS)]
    runs = [[client.run(goes_on) for client in clients] for clients in (quick, slow, attacking)]
    await asyncio.gather(*itertools.chain(*runs))


async def use_grpc(
    gateway: GatewayProcess,
    journal: Journal,
    seed: str,
    ids: Iterator[int],
    credentials: grpc.ChannelCredentials | None,
    end_s: float,
) -> None:
    """Let clients of gRPC loose until *end_s*; the hostile one speaks no TLS."""

    def goes_on() -> bool:
        return time.monotonic() < end_s

    found = re.search(r"gRPC on https?://(\S+)", gateway.log)
    assert found is not None
    clients = [GrpcClient(found[1], journal, f"{seed}-grpc-{n}", ids, credentials) for n in range(GRPC_CLIENTS)]
    runs = [client.run(goes_on) for client in clients]
    if credentials is None:
        runs.append(HostileGrpcClient(found[1], journal, f"{seed}-grpc-attack").run(goes_on))
    await asyncio.gather(*runs)


def compare(first: Rest, last: Rest, workers: int, journal: Journal) -> None:
    """Judge what the gateway holds at the end, by what it held after `WARM_SHARE` of the time."""
    mib = 2**20
    print(f"at rest, first and last: {first.descriptors} and {last.descriptors} descriptors,", end=" ")
    print(f"{first.resident_bytes / mib:.0f} and {last.resident_bytes / mib:.0f} MiB resident")
    if last.resident_bytes > first.resident_bytes + workers * SPARE_BYTES:
        journal.violated(
            "memory has grown", f"from {first.resident_bytes / mib:.0f} to {last.resident_bytes / mib:.0f} MiB"
        )


def main() -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=1, help="processes of the gateway")
    parser.add_argument("--tls", action="store_true", help="clients use TLS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        journal, log = asyncio.run(
            soak(options.seed, options.seconds, options.workers, folder=Path(folder), has_tls=options.tls)
        )
    print(f"seed {options.seed}: {len(journal.plans)} exchanges, {sum(journal.executed.values())} executed", end=", ")
    print(f"{journal.probes} probes")
    tables = {
        "endpoint": journal.moods,
        "backend": journal.faults,
        "client": journal.clients,
        "slow client": journal.slow,
        "attacker": journal.attacks,
        "reply": journal.replies,
        "reload": journal.reloads,
    }
    for name, counts in tables.items():
        print(f"{name}: " + ", ".join(f"{what} {count}" for what, count in sorted(counts.items())))
    if not journal.violations:
        print("no rule was broken")
        return 0
    print("\nbroken: " + "; ".join(f"{rule}: {count}" for rule, count in journal.violations.most_common()))
    for example in journal.examples:
        print(f"- {example}")
    if any("log" in rule or "end" in rule for rule in journal.violations):
        print("\nThe gateway's standard error, its end:\n" + log[-6000:])
    return 1


if __name__ == "__main__":
    sys.exit(main())
