"""Runs one target under atheris: `python -m tests.fuzz request -max_total_time=60 [CORPUS_FOLDER]`.

With files instead of a folder it runs the target on them and ends, to see again what was found.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["gateway.codec", "gateway.client.grpc"]):
    from tests.fuzz import targets


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in targets.TARGETS:
        sys.exit(f"usage: python -m tests.fuzz {{{','.join(targets.TARGETS)}}} [libFuzzer options] [corpus folder]")
    target = targets.TARGETS[name]

    def run_one(data: bytes) -> None:
        target(atheris.FuzzedDataProvider(data))

    arguments = [*targets.options(name), *sys.argv[2:]]
    if not any(Path(argument).is_file() for argument in sys.argv[2:]):
        corpus = Path(tempfile.mkdtemp())
        targets.seeds(name, corpus)
        arguments.append(str(corpus))  # libFuzzer writes what it finds to the first folder and only reads the others
    atheris.Setup([sys.argv[0], *arguments], run_one)
    atheris.Fuzz()


main()
