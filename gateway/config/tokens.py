"""The file of tokens that clients show (`access.tokens_file`): lines `name: token`.

A token is digested as soon as it is read, and no message repeats anything that stands in the file.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from gateway.config.outside import read_file
from gateway.config.schema import Config
from gateway.errors import ConfigError
from gateway.policy.access import digest_of

MAX_FILE_BYTES = 1024 * 1024
"""The largest file that is read: some ten thousand tokens."""

_COMMENT = re.compile(r"(?:^|\s)#.*")
_EXPECTED = "expected `name: token`, each without blanks, the token of printable ASCII characters other than `#`"
_LINE = re.compile(r"([^\s:]+)\s*:\s*([!\"$-~]+)")


def read_tokens(path: Path) -> dict[bytes, str]:
    """The digests of the tokens in the file *path*, each with its name.

    `#` at the start of a line or behind a blank begins a comment. Raises `ConfigError`: file, line, reason.
    """
    try:
        lines = read_file(path, MAX_FILE_BYTES).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None
    tokens: dict[bytes, str] = {}
    seen: set[str | bytes] = set()
    for number, line in enumerate(lines, 1):
        text = _COMMENT.sub("", line).strip()
        if not text:
            continue
        pair = _LINE.fullmatch(text)
        if pair is None:
            raise ConfigError(f"{path}:{number}: {_EXPECTED}")
        name, digest = pair[1], digest_of(pair[2])
        if name in seen or digest in seen:
            raise ConfigError(f"{path}:{number}: its name or its token stands in an earlier line")
        seen |= {name, digest}
        tokens[digest] = name
    if not tokens:
        raise ConfigError(f"{path}: holds no token, so that no client could use the gateway")
    return tokens


def token_problems(config: Config) -> Iterator[tuple[str, str]]:
    """What is wrong with the file of tokens that *config* names, if it names one: the path of the key, the reason."""
    if config.access.tokens_file is not None:
        try:
            read_tokens(Path(config.access.tokens_file))
        except ConfigError as error:
            yield "access.tokens_file", str(error)
