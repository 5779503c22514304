"""Values from outside the configuration's file: `${NAME}` of the environment, `${file:PATH}` of a file.

Not here: what becomes of them, and where they are hidden (`loading`), and what other files hold that a configuration
names (`tokens`, `gateway.certificates`).
"""

import errno
import os
import re
from pathlib import Path

from gateway.config.values import shortened

MAX_FILE_BYTES = 64 * 1024
"""The most that one `${file:PATH}` may hold. Tokens, certificates' passwords and addresses are far smaller."""

MAX_ALL_BYTES = 4 * 1024 * 1024
"""The most that all values from outside of one configuration may hold, each counted as often as it is used."""

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
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


class Outside:
    """Puts values from outside into text. Files are read once, relative to the folder *base*."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._files: dict[str, str] = {}
        self._n_bytes = 0

    def put_into(self, text: str) -> tuple[str, bool]:
        """*text* with all references replaced, and whether there were any.

        `$${` becomes a literal `${`. Raises `ValueError`: what is missing, never a value.
        """
        is_from_outside = any(match[0] != "$${" for match in _REFERENCE.finditer(text))
        return _REFERENCE.sub(self._replaced, text), is_from_outside

    def _replaced(self, match: re.Match[str]) -> str:
        return "${" if match[0] == "$${" else self._value(match[1])

    def _value(self, reference: str | None) -> str:
        if reference is None:
            raise ValueError("expected `}` after `${`; a literal `${` is written `$${`")
        if reference.startswith("file:"):
            value = self._content(reference.removeprefix("file:"))
        elif not _NAME.fullmatch(reference):
            raise ValueError("expected ${NAME} or ${file:PATH}; a literal `${` is written `$${`")
        elif reference not in os.environ:
            raise ValueError(f"the environment variable `{shortened(reference)}` is not set")
        else:
            value = os.environ[reference]
        try:
            self._n_bytes += len(value.encode())
        except UnicodeEncodeError:
            raise ValueError(f"the environment variable `{shortened(reference)}` is not UTF-8") from None
        if self._n_bytes > MAX_ALL_BYTES:
            raise ValueError(f"values from outside have more than {MAX_ALL_BYTES} bytes together")
        return value

    def _content(self, path: str) -> str:
        """The file at *path*, without the end of its last line."""
        if path not in self._files:
            name = f"the file `{shortened(path)}`"
            try:
                content = read_file(self._base / path, MAX_FILE_BYTES)
            except OSError as error:
                raise ValueError(f"{name} cannot be read: {error.strerror}") from None
            try:
                self._files[path] = content.decode().removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError:
                raise ValueError(f"{name} is not UTF-8") from None
        return self._files[path]
