"""`python -m gateway`: the same as the `tensor-gateway` command."""

import sys

from gateway.cli import main

if __name__ == "__main__":
    sys.exit(main())
