"""Values from outside the configuration's file: `${NAME}` of the environment, `${file:PATH}` of a file."""

import errno
import os
import re
from pathlib import Path

from gateway.config.values import shortened

MAX_FILE_BYTES = 64 * 1024
"""The most that one `${file:PATH}` may hold. Tokens, certificates' passwords and addresses are far smaller."""

_REFERENCE = re.compile(r"\$\$\{|\$\{(?:([^}]*)\})?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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


def put_into(text: str, base: Path) -> tuple[str, bool]:
    """*text* with all references replaced, files relative to the folder *base*, and whether there were any.

    `$${` becomes a literal `${`. Raises `ValueError`: what is missing, never a value.
    """
    is_from_outside = any(match[0] != "$${" for match in _REFERENCE.finditer(text))
    return _REFERENCE.sub(lambda match: "${" if match[0] == "$${" else _value(match, base), text), is_from_outside


def _value(match: re.Match[str], base: Path) -> str:
    reference = match[1] or ""
    kind, _, path = reference.partition(":")
    if kind == "file" and path:
        what = f"the file `{shortened(path)}`"
        try:
            content = read_file(base / path, MAX_FILE_BYTES).removesuffix(b"\n").removesuffix(b"\r")
        except OSError as error:
            raise ValueError(f"{what} cannot be read: {error.strerror}") from None
    elif _NAME.fullmatch(reference):
        what = f"the environment variable `{shortened(reference)}`"
        if reference not in os.environ:
            raise ValueError(f"{what} is not set")
        content = os.environb[reference.encode()]
    else:
        raise ValueError("expected ${NAME} or ${file:PATH}; a literal `${` is written `$${`")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{what} is not UTF-8") from None
