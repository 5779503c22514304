#!/bin/sh
# Writes both locks anew, with the newest releases that pyproject.toml allows: `deploy/lock.sh`, from anywhere.
# requirements.lock is what the image runs, build.lock what builds the gateway's wheel. Each holds for all platforms
# and for Python 3.11 and later, with the hash of every file of a release. Needs uv; asks the index that uv is set to.
set -eu
cd "$(dirname "$0")/.."
lock() { uv pip compile "$@" --quiet --universal --python-version 3.11 --generate-hashes --upgrade --no-header; }

lock pyproject.toml --extra tracing --extra grpc --output-file deploy/requirements.lock
python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' |
    lock - --output-file deploy/build.lock
