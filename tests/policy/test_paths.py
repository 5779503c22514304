"""Paths that a backend might read as another path."""

import pytest

from gateway.policy.paths import MAX_CHARACTERS, MAX_DECODINGS, MAX_PERCENT_SIGNS, find_path_fault

PASSED = [
    "/",
    "/v2",
    "/v2/models/resnet/infer",
    "/v2/models/resnet.v1/versions/1/infer",
    "/v2/models/a%20b%C3%A9/infer",
    "/v2/models/100%25/infer",
    "/v2/models/a..b/infer",
    "/v2/models/..a/infer",
    "/v2/models/.../infer",
    "/v2/models/.hidden/infer",
    "/v2/models/a%2eb/infer",
    "/v2/models/a%2e%2e/infer",
    "/v2/models/%zz%/infer",
    "/v2/models/a;b/infer",
    "/api/runs/a%2Fb",
    "/a%5Cb",
    "//x",
]
DOTS = [
    "/.",
    "/..",
    "/v2/models/public/../secret/infer",
    "/v2/models/public/./infer",
    "/v2/models/..",
    "/v2/models/public/%2e%2e/secret/infer",
    "/v2/models/public/%2E./secret/infer",
    "/v2/models/public/.%2e/secret/infer",
    "/v2/models/public/%252e%252e/secret/infer",
    "/v2/models/public/%25252e./secret/infer",
    "/v2/models/public/%2%65%2e/secret/infer",
    "/v2/models/public%2F..%2Fsecret/infer",
    "/v2/models/public%252F..%252Fsecret/infer",
    "/v2/models/public\\..\\secret/infer",
    "/v2/models/public%5C..%5Csecret/infer",
    "/v2/models/public/..;a=b/secret/infer",
    "/v2/models/public/..%3Ba/secret/infer",
    "/v2/models/public/..%00/secret/infer",
    "/v2/models/public/%c0%ae%C0%AE/secret/infer",
    "/%2e/v2",
]
SLASHES = [
    "/v2/models/a%2Fb/infer",
    "/v2/models/a%2fb/infer",
    "/v2/models/a%252Fb",
    "/v2/models/a%5Cb/infer",
    "/v2/models/a\\b/infer",
    "/v2/models/%2Fa/infer",
    "/v2%2Fmodels%2Fsecret%2Finfer",
    "/v2%2Fmodels/secret/infer",
    "/v2/models%2Fsecret/infer",
    "/v2/repository/models/a%2Fb/load",
    "/prod/v2/models/a%2Fb/infer",
]
WORDS = ["/v2/mod%65ls/secret/infer", "/%762/models/secret/infer", "/v2/models/a/%69nfer", "/v2/m%256fdels/a/infer"]
# what servers leave out at the end of a segment, or before the end of a line
WORDS += ["/v2/models/a/infer%0A", "/v2/models/a/infer%250a", "/v2/models/a/infer%20", "/v2/models/a/infer%00x"]


@pytest.mark.rule("8.6")
@pytest.mark.parametrize("path", PASSED)
def test_a_path_that_means_the_same_to_all_passes(path: str) -> None:
    assert find_path_fault(path) is None


@pytest.mark.rule("8.6")
@pytest.mark.parametrize(
    ("path", "words"),
    [(path, "'.' or '..'") for path in DOTS]
    + [(path, "encoded slash or a backslash") for path in SLASHES]
    + [(path, "words of the protocol") for path in WORDS],
)
def test_a_path_that_may_mean_another_is_refused(path: str, words: str) -> None:
    fault = find_path_fault(path)
    assert fault is not None
    assert words in fault


def test_a_path_that_is_encoded_without_end_is_refused_after_a_few_decodings() -> None:
    fault = find_path_fault("/%" + "25" * 2000 + "2e")
    assert fault is not None
    assert f"more than {MAX_DECODINGS - 1} times" in fault


@pytest.mark.parametrize("path", ["/" + "%25" * 2_000, "/v2/models/" + "%2f" * 2_000, "/v2/models/" + "%61" * 1025])
def test_a_path_with_very_many_percent_signs_is_refused_before_it_is_decoded(path: str) -> None:
    assert find_path_fault(path) == f"the path has more than {MAX_PERCENT_SIGNS} percent signs"


def test_a_path_that_is_longer_than_any_server_reads_is_refused_before_it_is_looked_at() -> None:
    assert find_path_fault("/" + "a" * (MAX_CHARACTERS - 1)) is None
    assert find_path_fault("/." * MAX_CHARACTERS) == f"the path has more than {MAX_CHARACTERS} characters"
