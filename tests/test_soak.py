"""The soak's judge: each rule that it watches can be seen to be broken."""

import random

import pytest

from gateway.config import parse
from gateway.errors import ConfigError
from tests.soak.__main__ import WRONG, Rest, compare, configurations
from tests.soak.attacking import LARGE_FIELDS, LONG_BODY_ELEMENTS, SEEN_BYTES, TOO_LARGE
from tests.soak.client import TINY_CHUNKS_BYTES, message
from tests.soak.journal import Journal, Plan


def plan(kind: str = "binary", fault: str = "none", id_: int = 7) -> Plan:
    return Plan(id_, kind, fault, delay_s=0.0, elements=2, answer_bytes=10)


def reply(of: Plan) -> tuple[bytes, int]:
    """The right reply to a binary inference, with the length of its JSON."""
    text = b'{"id":"%b","outputs":[]}' % of.mark.encode()
    return text + of.array().tobytes(), len(text)


def test_a_right_reply_breaks_no_rule() -> None:
    journal, mine = Journal(), plan()
    journal.execute(mine)
    journal.judge(mine, 200, *reply(mine))
    assert not journal.violations


@pytest.mark.parametrize("status", [200, 404, 502])
def test_the_mark_of_another_request_is_seen(status: int) -> None:
    journal = Journal()
    journal.judge(plan(), status, *reply(plan(id_=8)))
    journal.close()
    assert list(journal.violations) == ["a reply was of another request"]


@pytest.mark.parametrize(("other", "seen"), [(8, False), (9, True)])
def test_bytes_that_crossed_a_request_on_the_wire_are_excused_and_no_others(other: int, seen: bool) -> None:
    journal, mine = Journal(), plan()
    journal.judge(mine, 200, b'{"id":"#8#"}', None)
    mine.raced_with = other
    journal.close()
    assert bool(journal.violations) == seen


@pytest.mark.parametrize(("other", "seen"), [(8, False), (9, True)])
def test_bytes_that_crossed_a_request_that_was_never_read_are_excused(other: int, seen: bool) -> None:
    journal = Journal()
    journal.judge(plan(), 200, b'{"id":"#8#"}', None)
    journal.crossed.add(other)
    journal.close()
    assert bool(journal.violations) == seen


def test_a_tensor_of_another_request_is_seen() -> None:
    journal, mine = Journal(), plan()
    body, length = reply(mine)
    journal.judge(mine, 200, body[:-1] + b"\x55", length)
    assert list(journal.violations) == ["a tensor was not the request's own"]


def test_a_relayed_body_that_nobody_sent_is_seen() -> None:
    journal, mine = Journal(), plan("get")
    mine.texts.append(b"#7#..........")
    journal.judge(mine, 200, b"#7#..........", None)
    assert not journal.violations
    journal.judge(mine, 200, b"#7#.........", None)
    assert list(journal.violations) == ["a body was not what the backend had sent"]


@pytest.mark.parametrize(("kind", "allowed"), [("binary", 1), ("json", 1), ("post", 1), ("get", 2), ("head", 2)])
def test_executions_beyond_what_is_allowed_are_seen(kind: str, allowed: int) -> None:
    journal, mine = Journal(), plan(kind)
    for _ in range(allowed):
        journal.execute(mine)
    assert not journal.violations
    journal.execute(mine)
    assert list(journal.violations) == ["a request was executed twice"]


@pytest.mark.parametrize(("fault", "seen"), [("none", True), ("drop", False)])
@pytest.mark.parametrize("ending", ["502", "cut"])
def test_a_whole_answer_that_is_lost_is_seen(fault: str, seen: bool, ending: str) -> None:
    journal, mine = Journal(), plan("post", fault)
    mine.answered = True
    if ending == "cut":
        journal.cut(mine, "in a test", still_sending=False)
    else:
        journal.judge(mine, 502, b'{"error":"lost"}', None)
    assert bool(journal.violations) == seen


@pytest.mark.parametrize(("body", "seen"), [(b'{"error":"too slow"}', True), (b'{"error":"backend sent it"}', False)])
def test_a_quick_client_that_is_called_slow_is_seen(body: bytes, seen: bool) -> None:
    journal, mine = Journal(), plan("post")
    journal.judge(mine, 408, body, None)
    assert bool(journal.violations) == seen


@pytest.mark.parametrize(("grown_mib", "seen"), [(60, False), (70, True)])
def test_memory_that_has_grown_is_seen(grown_mib: int, seen: bool) -> None:
    journal = Journal()
    compare(Rest(20, 2**27), Rest(20, 2**27 + grown_mib * 2**20), 2, journal)
    assert list(journal.violations) == (["memory has grown"] if seen else [])


def test_the_soaks_configurations_load_and_its_wrong_ones_do_not() -> None:
    texts = configurations(random.Random(1), ["http://127.0.0.1:1", "http://127.0.0.1:2"], 2, "")
    assert {parse(next(texts)).workers for _ in range(30)} == {2}
    for text in WRONG:
        with pytest.raises(ConfigError):
            parse(text)


def test_many_violations_are_counted_and_few_are_told() -> None:
    journal = Journal()
    for number in range(1000):
        journal.violated("a rule", str(number))
    assert journal.violations == {"a rule": 1000}
    assert len(journal.examples) == 10


def test_attacks_are_on_the_side_of_the_limits_that_they_are_meant_to_be_on() -> None:
    kib = 1024
    shortest, longest = (
        len(message(Plan(1, "post", "none", 0.0, elements, 0), chunk_bytes=1).body) for elements in LONG_BODY_ELEMENTS
    )
    assert 2 * 64 * kib < shortest < longest < SEEN_BYTES
    assert 64 * kib > 7 * 6 * TINY_CHUNKS_BYTES
    assert len(message(plan("get"), fields=LARGE_FIELDS).head) < 64 * kib < len(TOO_LARGE)
