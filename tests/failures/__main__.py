"""The command: run the scenarios one after the other, and print a table."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.failures.scenarios import SCENARIOS, TABLE_HEAD, measure


def main() -> int:
    """Run and tell; 1 if something is not as it was promised."""
    parser = argparse.ArgumentParser(prog="python -m tests.failures", description=__doc__)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="how long an endpoint stays broken once it is known"
    )
    parser.add_argument("--only", default="", help="scenarios whose names contain this")
    parser.add_argument("--log", action="store_true", help="print the gateway's standard error, too")
    options = parser.parse_args()
    problems: list[str] = []
    print(TABLE_HEAD)
    for scenario in SCENARIOS:
        if options.only not in scenario.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = asyncio.run(measure(scenario, Path(folder), rate=options.rate, known_s=options.seconds))
        print(result.row(), flush=True)
        problems += [f"{scenario.name}: {problem}" for problem in result.problems()]
        if options.log:
            print(result.log)
    print("\n".join(["", *problems]) if problems else "\nall as promised")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
