"""The scenarios: one of two endpoints breaks under load, is found out, heals, and comes back.

Not here: the endpoints (`endpoint`) and the load (`load`).
"""

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.failures.endpoint import HEALTH_PATH, Fault, FragileEndpoint, fragile_endpoints
from tests.failures.load import Load, Outcome, failures, share, steady_load
from tests.system.gateway_process import GatewayProcess, gateway_process
from tests.system.scripted import total

TOTAL_S = 3.0
"""`timeouts.total`."""

WARM_S = 1.5
"""How long all is well at first."""

FOUND_S = 8.0
"""How long the gateway may take to find out that an endpoint fails."""

BACK_S = 12.0
"""How long a healed endpoint may take to get requests again: `eject.for`, a trial, two probes, and room."""

BACK_REQUESTS = 10
"""An endpoint is back when it has served so many requests after it was healed."""

DEMANDED = 0.99

CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
workers: {workers}
logging: {{access: none}}
backends:
  main:
    endpoints: ['{first}', '{second}']
    timeouts: {{connect: 300ms, first_byte: 1s, idle: 1s, total: 3s}}
    retry: {{attempts: 2, resend_after_sent: {resend}}}
    eject: {{failures: 5, window: 10s, for: 5s}}
    health: {health}
"""

HEALTH = f"{{path: {HEALTH_PATH}, interval: 250ms, timeout: 500ms, unhealthy_after: 2, healthy_after: 2}}"


@dataclass(frozen=True)
class Scenario:
    """What breaks, and how the gateway is configured."""

    fault: Fault
    workers: int = 1
    has_probe: bool = False
    resend_after_sent: bool = False

    @property
    def name(self) -> str:
        """For tables and tests."""
        words = [self.fault.value, "probed" if self.has_probe else "not probed", f"{self.workers} workers"]
        return ", ".join([*words, *(["resend_after_sent"] if self.resend_after_sent else [])])

    @property
    def loses_nothing(self) -> bool:
        """Whether only connecting fails, so that nothing that was sent is lost."""
        return self.fault in (Fault.KILLED, Fault.BLACK_HOLE)

    @property
    def is_noticed(self) -> bool:
        """Whether the gateway may take the endpoint out: a status of a backend counts in probes only."""
        return self.has_probe or self.fault is not Fault.ERRS


SCENARIOS = [
    Scenario(Fault.KILLED, workers=2, has_probe=True),
    Scenario(Fault.BLACK_HOLE),
    Scenario(Fault.HANGS, workers=2),
    Scenario(Fault.HANGS, resend_after_sent=True),
    Scenario(Fault.CUTS, has_probe=True),
    Scenario(Fault.RESETS),
    Scenario(Fault.ERRS, workers=2, has_probe=True),
    Scenario(Fault.KILLED),
    Scenario(Fault.BLACK_HOLE, workers=2, has_probe=True),
    Scenario(Fault.HANGS, has_probe=True),
    Scenario(Fault.CUTS, workers=2),
    Scenario(Fault.RESETS, workers=2, has_probe=True),
    Scenario(Fault.ERRS),
]

IN_CI = SCENARIOS[:7]
"""One of each kind."""


@dataclass(frozen=True)
class Result:
    """What was measured. Times are in seconds since the endpoint broke, or since it was healed."""

    scenario: Scenario
    requests: int
    while_broken: list[Outcome]
    """Those that began between the fault and the healing."""
    while_known: list[Outcome]
    """Those of them that began after all workers knew of it."""
    when_back: list[Outcome]
    """Those that began after the healed endpoint was in use again."""
    found_s: float | None
    back_s: float | None
    wrong: list[Outcome]
    executed_twice: list[str]
    longest_s: float
    retries: float
    log: str

    def problems(self) -> list[str]:
        """What is not as it was promised."""
        found: list[str] = []
        if self.wrong:
            found.append(f"wrong replies: {self.wrong[:3]}")
        if self.executed_twice and not self.scenario.resend_after_sent:
            found.append(f"executed twice: {self.executed_twice[:5]}")
        if self.longest_s > TOTAL_S + 1:
            found.append(f"a client waited {self.longest_s:.2f} s, `total` is {TOTAL_S:g} s")
        if self.scenario.is_noticed:
            if self.found_s is None:
                found.append(f"no line in the log says within {FOUND_S:g} s that the endpoint is out")
            if self.back_s is None:
                found.append(f"the healed endpoint is not back after {BACK_S:g} s")
            shares = {"after it was known": self.while_known, "after the endpoint was back": self.when_back}
            if self.scenario.loses_nothing:
                shares["from the first request on"] = self.while_broken
            for when, outcomes in shares.items():
                if share(outcomes) < DEMANDED:
                    found.append(
                        f"{share(outcomes):.1%} succeeded {when}: {dict(failures(outcomes))}, {_first(outcomes)}"
                    )
        return found

    def row(self) -> str:
        """Its row of the table."""
        cells = [
            self.scenario.name,
            "-" if self.found_s is None else f"{self.found_s:.2f} s",
            f"{share(self.while_broken):.1%} of {len(self.while_broken)}",
            "-" if self.found_s is None else f"{share(self.while_known):.2%} of {len(self.while_known)}",
            ", ".join(f"{what}: {count}" for what, count in sorted(failures(self.while_broken).items())) or "none",
            f"{len(self.wrong)}",
            f"{len(self.executed_twice)}",
            f"{self.longest_s:.2f} s",
            f"{self.retries:.0f}",
            "-" if self.back_s is None else f"{self.back_s:.2f} s",
            f"{share(self.when_back):.1%}",
        ]
        return f"| {' | '.join(cells)} |"


TABLE_HEAD = """\
| one of two endpoints | known after | success since it broke | since it was known | failures | wrong replies | \
executed twice | longest wait | retries | in use again after | success then |
|---|---|---|---|---|---|---|---|---|---|---|"""


async def measure(scenario: Scenario, folder: Path, *, rate: float, known_s: float) -> Result:
    """Run *scenario* at *rate* requests a second; the endpoint stays broken for *known_s* after it was found out."""
    executed: Counter[str] = Counter()
    async with fragile_endpoints(2, executed) as (fragile, sound):
        configuration = CONFIGURATION.format(
            workers=scenario.workers,
            first=fragile.url,
            second=sound.url,
            resend=str(scenario.resend_after_sent).lower(),
            health=HEALTH if scenario.has_probe else "null",
        )
        async with (
            gateway_process(configuration, folder / "gateway.yaml") as gateway,
            aiohttp.ClientSession() as admin,
            steady_load(gateway.url, rate) as load,
        ):
            await asyncio.sleep(WARM_S)
            broken_s = time.monotonic()
            await fragile.break_down(scenario.fault)
            known_at_s = await _found_out(gateway, fragile, scenario, broken_s)
            await asyncio.sleep(known_s)
            healed_s = time.monotonic()
            await fragile.heal()
            back_at_s = await _back(fragile, load)
            await asyncio.sleep(1.0)
            retries = total(await gateway.samples(admin), "retries_total")
    known_from_s = healed_s if known_at_s is None else known_at_s
    return Result(
        scenario,
        len(load.outcomes),
        load.between(broken_s, healed_s),
        load.between(known_from_s, healed_s),
        load.between(back_at_s or float("inf"), float("inf")),
        None if known_at_s is None else known_at_s - broken_s,
        None if back_at_s is None else back_at_s - healed_s,
        [outcome for outcome in load.outcomes if outcome.what == "wrong"],
        [number for number, count in executed.items() if count > 1],
        max(outcome.seconds for outcome in load.outcomes),
        retries,
        gateway.log,
    )


async def _found_out(
    gateway: GatewayProcess, fragile: FragileEndpoint, scenario: Scenario, broken_s: float
) -> float | None:
    """When every worker had said in the log that the endpoint is ejected, or every one that it is down; else None."""
    lines = (f"{re.escape(fragile.url)} is {state}" for state in ("ejected", "down"))
    waits = [
        asyncio.create_task(gateway.saw(line, count=scenario.workers, after_s=broken_s, within_s=FOUND_S))
        for line in lines
    ]
    try:
        for first in asyncio.as_completed(waits):
            return await first
    except TimeoutError:
        pass
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return None


async def _back(fragile: FragileEndpoint, load: Load) -> float | None:
    """When the healed endpoint had served `BACK_REQUESTS` more requests; None if that does not come."""
    wanted = fragile.served + BACK_REQUESTS
    try:
        async with asyncio.timeout(BACK_S):
            while fragile.served < wanted:
                await asyncio.sleep(0.05)
    except TimeoutError:
        return None
    return time.monotonic()


def _first(outcomes: list[Outcome]) -> str:
    failed = [outcome for outcome in outcomes if outcome.what != "ok"]
    return f"such as request {failed[0].number} after {failed[0].seconds:.2f} s: {failed[0].what} {failed[0].detail}"
