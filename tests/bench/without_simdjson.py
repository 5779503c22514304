"""Runs a module in a Python that has no pysimdjson: `python -m tests.bench.without_simdjson MODULE ARGUMENTS...`."""

import runpy
import sys
from typing import Any

if __name__ == "__main__":
    modules: dict[str, Any] = sys.modules
    modules["simdjson"] = None  # `import simdjson` now raises ImportError
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
