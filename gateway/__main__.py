"""The `tensor-gateway` command, and `python -m gateway`, which is the same."""

import os
import signal
import sys


def main() -> int:
    """Run the command, and return its exit code."""
    # A SIGHUP while modules are imported, which takes most of a second, would end the process. So it is blocked until
    # `serve` has its handler; all other commands unblock it at once.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    _open_standard_streams()
    try:
        from gateway import cli  # noqa: PLC0415  see above
    except KeyboardInterrupt:
        return 130
    return cli.main()


def _open_standard_streams() -> None:
    """Open the standard streams with which this process was started closed, for this process and its workers.

    Otherwise the next socket gets the number of a closed stream, and the log is written to a client or to a backend.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is *descriptor*
            os.set_inheritable(descriptor, True)


if __name__ == "__main__":
    sys.exit(main())
