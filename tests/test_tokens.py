"""The file of tokens: what it may say, and messages that name the line and repeat nothing of it."""

import os
from pathlib import Path

import pytest

from gateway.config.tokens import MAX_FILE_BYTES, read_tokens
from gateway.errors import ConfigError
from gateway.policy.access import digest_of


def read(tmp_path: Path, content: bytes) -> dict[bytes, str]:
    path = tmp_path / "tokens.txt"
    path.write_bytes(content)
    return read_tokens(path)


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        (b"alice: abc\n", {"abc"}),
        (
            b"\xef\xbb\xbf# who may come\r\n\r\n  alice :abc  # since May\r\n\tbob:a:b=\r\n",
            {"abc", "a:b="},
        ),
        ("jos\u00e9:x".encode(), {"x"}),
    ],
)
def test_names_and_tokens_with_comments_and_blank_lines(tmp_path: Path, content: bytes, tokens: set[str]) -> None:
    assert set(read(tmp_path, content)) == {digest_of(token) for token in tokens}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"alice: abc\nhunter2\n", ":2: expected `name: token`, each without blanks"),
        (b"alice:\n", ":1: expected `name: token`"),
        (b": hunter2\n", ":1: expected `name: token`"),
        (b"alice: hunter2 x\n", ":1: expected `name: token`"),
        (b"alice # hunter2: x\n", ":1: expected `name: token`"),
        (b"\n\nalice: hunter2#x\n", ":3: expected `name: token`, each"),
        ("alice: hunter2\u00e9".encode(), ":1: expected `name: token`, each"),
        (b"alice: hunter2\x01", ":1: expected `name: token`, each"),
        (b"alice: hunter2\n#\nalice: x\n", ":3: its name or its token stands in an earlier line"),
        (b"alice: hunter2\nbob: hunter2\n", ":2: its name or its token stands in an earlier line"),
        (b"", ": holds no token"),
        (b"# alice: hunter2\n", ": holds no token"),
        (b"alice: \xff", ": not UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), f": cannot be read: more than {MAX_FILE_BYTES} bytes"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_line_alone(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, content)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path / 'tokens.txt'}{reason}")
    assert "hunter2" not in message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokens: cannot be read: No such file"):
        read_tokens(tmp_path / "tokens")


def test_a_pipe_in_place_of_the_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokens")
    with pytest.raises(ConfigError, match="tokens: cannot be read: not a regular file"):
        read_tokens(tmp_path / "tokens")
