"""Runs one target under atheris: `python -m tests.fuzz request -max_total_time=60 [CORPUS_FOLDER]`."""

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

    corpus = Path(tempfile.mkdtemp())
    targets.seeds(name, corpus)
    # libFuzzer writes what it finds to the first folder and only reads the others
    atheris.Setup([sys.argv[0], *targets.options(name), *sys.argv[2:], str(corpus)], run_one)
    atheris.Fuzz()


main()
