"""Reading the files that a configuration names: all of a file at once, if it is a file and not too large.

Not here: what the files hold (`outside`, `tokens`, `gateway.certificates`), and the configuration's own file, which may
come from a pipe (`loading`).
"""

import errno
from pathlib import Path


def read_file(path: Path, max_bytes: int) -> bytes:
    """The content of the file *path*. Raises `OSError`, whose `strerror` says why, also for more than *max_bytes*.

    A pipe is refused: opening one waits until somebody writes to it, which would hold up a start or a reload.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file")
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes} bytes")
    return content
