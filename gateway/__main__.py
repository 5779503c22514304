"""The `tensor-gateway` command, and `python -m gateway`, which is the same."""

import signal
import sys


def main() -> int:
    """Run the command; its exit code."""
    # A SIGHUP while modules are imported, which takes most of a second, would end the process. It waits until `serve`
    # has its handler; all other commands let it through.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from gateway import cli  # noqa: PLC0415  see above

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
