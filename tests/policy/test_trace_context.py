"""W3C Trace Context: which traces are continued, which begin, and which of those are sampled."""

import random

import pytest

from gateway.headers import Headers
from gateway.policy.trace_context import NEW_TRACE_BITS, trace_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
BITS = (0xABC << 128) | 0xDEF


def traced(*values: str, state: str = "") -> Headers:
    fields = [("traceparent", value) for value in values]
    return Headers([*fields, ("tracestate", state)] if state else fields)


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-02", False),  # a flag of a later level
        (f"00-{TRACE}-{SPAN}-ff", True),
        (f"01-{TRACE}-{SPAN}-01", True),  # a later version
        (f"cc-{TRACE}-{SPAN}-01-what-comes-then", True),
    ],
)
@pytest.mark.parametrize("share", [0, 1])
def test_a_trace_of_the_client_is_continued_as_it_was_sampled(value: str, is_sampled: bool, share: float) -> None:
    trace = trace_of(traced(value, state="a=1"), BITS, share)
    assert (trace.trace_id, trace.parent_id, trace.span_id) == (TRACE, SPAN, "0000000000000abc")
    assert (trace.is_sampled, trace.state) == (is_sampled, "a=1")
    flags = "01" if is_sampled else "00"
    assert trace.fields("1" * 16) == [("traceparent", f"00-{TRACE}-{'1' * 16}-{flags}"), ("tracestate", "a=1")]


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("",),
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE.upper()}-{SPAN}-01",),
        (f"00-{'0' * 32}-{SPAN}-01",),
        (f"00-{TRACE}-{'0' * 16}-01",),
        (f"ff-{TRACE}-{SPAN}-01",),
        (f"00-{TRACE}-{SPAN}-01-more",),
        (f"00-{TRACE}-{SPAN}-1",),
        (f"01-{TRACE}-{SPAN}-01more",),
        (f"00-{TRACE}-{SPAN}",),
        (f"00-{TRACE[:-1]}g-{SPAN}-01",),
        (f" 00-{TRACE}-{SPAN}-01",),
    ],
)
def test_without_one_valid_traceparent_a_trace_begins(values: tuple[str, ...]) -> None:
    trace = trace_of(traced(*values, state="a=1"), BITS, 1)
    assert (trace.trace_id, trace.parent_id, trace.state) == (f"{0xDEF:032x}", "", "")
    assert trace.fields("1" * 16) == [("traceparent", f"00-{0xDEF:032x}-{'1' * 16}-01")]


@pytest.mark.parametrize(
    ("state", "is_right"),
    [
        ("a=1", True),
        ("", True),
        (" a=1\t, ,b-_*/=x y:z ,", True),
        ("1tenant@vendor=!", True),
        (",".join(f"k{number}=v" for number in range(32)), True),
        (",".join(f"k{number}=v" for number in range(33)), False),
        (",".join(f"k{number}={'v' * 124}" for number in range(8)), True),
        (",".join(f"k{number}={'v' * 125}" for number in range(8)), False),
        ("a=1,a=2", False),
        ("a", False),
        ("a=", False),
        ("a=b=c", False),
        ("A=1", False),
        ("1a=1", False),
        ("a=é", False),
        (f"a={'v' * 257}", False),
    ],
)
def test_what_is_no_tracestate_is_not_passed_on(state: str, is_right: bool) -> None:
    trace = trace_of(traced(f"00-{TRACE}-{SPAN}-01", state=state), BITS, 1)
    assert (trace.trace_id, trace.state) == (TRACE, state if is_right else "")


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 1])
def test_a_share_of_the_traces_that_begin_is_sampled(share: float) -> None:
    rng = random.Random(1)
    sampled = [trace_of(Headers(), rng.getrandbits(NEW_TRACE_BITS), share).is_sampled for _ in range(10_000)]
    assert sum(sampled) == pytest.approx(10_000 * share, rel=0.2)


def test_no_id_is_ever_zero() -> None:
    trace = trace_of(Headers(), 0, 1)
    assert (int(trace.trace_id, 16), int(trace.span_id, 16)) == (1, 1)
