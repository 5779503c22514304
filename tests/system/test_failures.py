"""Two endpoints, one of which fails: what clients of a real gateway feel of it.

`python -m tests.failures` measures more scenarios for longer, and prints a table.
"""

import asyncio
import itertools
from pathlib import Path

import pytest

from tests.failures.endpoint import Fault
from tests.failures.load import Outcome
from tests.failures.scenarios import IN_CI, TABLE_HEAD, Result, Scenario, measure

AT_ONCE = 4
"""Scenarios are mostly waiting: so many run beside each other."""

BATCHES = [IN_CI[start : start + AT_ONCE] for start in range(0, len(IN_CI), AT_ONCE)]


@pytest.mark.slow
@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: "; ".join(scenario.name for scenario in batch))
async def test_clients_hardly_feel_an_endpoint_that_fails(batch: list[Scenario], tmp_path: Path) -> None:
    async def measured(scenario: Scenario, number: int) -> Result:
        folder = tmp_path / str(number)
        folder.mkdir()
        return await measure(scenario, folder, rate=60.0, known_s=4.0)

    results = await asyncio.gather(*map(measured, batch, itertools.count()))
    print("\n".join([TABLE_HEAD, *(result.row() for result in results)]))
    assert [f"{result.scenario.name}: {problem}" for result in results for problem in result.problems()] == []


def outcome(what: str, seconds: float = 0.1) -> Outcome:
    return Outcome(1, 0.0, seconds, what)


def result_of(
    fault: Fault = Fault.KILLED,
    *,
    broken: list[Outcome] | None = None,
    known: list[Outcome] | None = None,
    back: list[Outcome] | None = None,
    found_s: float | None = 1.0,
    back_s: float | None = 1.0,
    wrong: list[Outcome] | None = None,
    twice: list[str] | None = None,
    longest_s: float = 3.5,
) -> Result:
    return Result(
        Scenario(fault),
        9,
        broken or [],
        known or [],
        back or [],
        found_s,
        back_s,
        wrong or [],
        twice or [],
        longest_s,
        0,
        "",
    )


MANY = [outcome("ok")] * 200


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (result_of(broken=[*MANY, outcome("503")], known=MANY, back=MANY), ""),
        (result_of(broken=[outcome("503"), *MANY[:50]]), "98.0% succeeded from the first request on"),
        (result_of(Fault.HANGS, broken=[outcome("504")]), ""),
        (result_of(Fault.HANGS, known=[outcome("504"), *MANY[:50]]), "succeeded after it was known"),
        (result_of(Fault.HANGS, back=[outcome("504"), *MANY[:50]]), "succeeded after the endpoint was back"),
        (result_of(found_s=None), "no line in the log"),
        (result_of(back_s=None), "is not back"),
        (result_of(wrong=[outcome("wrong")]), "wrong replies"),
        (result_of(twice=["7"]), "executed twice"),
        (result_of(longest_s=4.1), "a client waited 4.10 s"),
        (result_of(Fault.ERRS, broken=[outcome("500")], found_s=None, back_s=None), ""),
    ],
)
def test_the_judge_sees_what_was_not_promised(result: Result, words: str) -> None:
    problems = result.problems()
    assert len(problems) == (1 if words else 0)
    assert words in "".join(problems)
