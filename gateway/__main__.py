"""The `tensor-gateway` command, and `python -m gateway`, which is the same."""

import os
import signal
import sys

_NO_ORJSON = (
    f"orjson is not installed, which prints and reads the tensors' JSON. For Python {sys.version_info[0]}."
    f"{sys.version_info[1]} there may be no wheel of it: try `pip install --only-binary orjson orjson`; if there is "
    "none, use Python 3.11 to 3.14, or install Rust, with which `pip install orjson` builds it"
)


def main() -> int:
    """Run the command; its exit code."""
    # A SIGHUP while modules are imported, which takes most of a second, would end the process. It waits until `serve`
    # has its handler; all other commands let it through.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    _open_standard_streams()
    try:
        from gateway import cli  # noqa: PLC0415  see above
    except ModuleNotFoundError as error:
        if error.name != "orjson":
            raise
        print(f"tensor-gateway: {_NO_ORJSON}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return cli.main()


def _open_standard_streams() -> None:
    """Open those of the standard streams that were closed by whoever has started this process, for this and workers.

    Otherwise the next socket gets the number of one of them, and the log is written to a client or to a backend.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
            os.set_inheritable(descriptor, True)


if __name__ == "__main__":
    sys.exit(main())
