"""Runs a module in a Python that has no pysimdjson: `python .../without_simdjson.py MODULE ARGUMENTS...`.

Run by its path, so that it works for the gateway of another checkout too, which is where the working folder is.
"""

import os
import runpy
import sys
from typing import Any

if __name__ == "__main__":
    modules: dict[str, Any] = sys.modules
    modules["simdjson"] = None  # `import simdjson` now raises ImportError
    sys.path[0] = os.getcwd()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
