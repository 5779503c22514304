"""`python -m tests.formats [NAME...]`: judges formats, and prints a table. Exit code 1 if anything is silent."""

import argparse
import asyncio
import logging
import sys
from collections import Counter

from tests.formats import FORMATS
from tests.formats.judge import CAUSES, RIGHT, SILENT, VERDICTS, Judged, judge


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.formats", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="formats; all without")
    parser.add_argument("--file", action="store_true", help="what was written by hand, instead of the doctor's file")
    parser.add_argument("--samples", type=int, default=1, help="how many samples the doctor gets, where there are some")
    parser.add_argument("--long", action="store_true", help="all that was found, not the first line")
    return parser.parse_args()


async def _judged(options: argparse.Namespace) -> list[Judged]:
    found = []
    for name in options.names or FORMATS:
        judged = await judge(FORMATS[name], "file" if options.file else "doctor", options.samples)
        found.append(judged)
        print(f"{name:27} {judged.format.kinds:20} {judged.verdict:8}", flush=True, end=" ")
        worst = [line for line in judged.found if line.startswith(judged.verdict)] or judged.found[:1]
        lines = judged.found if options.long or options.names else worst[:1]
        print(
            "\n     ".join(" ".join(line.removeprefix(f"{judged.verdict}: ").split())[:300] for line in lines),
            flush=True,
        )
    return found


def _main() -> int:
    logging.getLogger("gateway").addHandler(logging.NullHandler())  # what it logs is in the replies
    options = _parsed()
    found = asyncio.run(_judged(options))
    totals = Counter(each.verdict for each in found)
    causes = Counter(cause for each in found for cause in each.causes)
    for cause, n_formats in causes.most_common():
        print(f"{n_formats:3} {cause:9} {CAUSES[cause]}")
    print(f"\n{len(found)} formats: {', '.join(f'{totals[verdict]} {verdict}' for verdict in VERDICTS)}")
    if options.file:
        in_python = sum(each.verdict == RIGHT and each.format.adapter is not None for each in found)
        print(f"right: {totals[RIGHT] - in_python} in YAML, {in_python} in Python")
    return 1 if totals[SILENT] else 0


sys.exit(_main())
