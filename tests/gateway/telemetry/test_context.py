"""Laws of trace context: a caller's trace is continued, a broken header begins a new one; ids are the same everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ids import new_request_id
from gateway.telemetry.context import Parent, is_sampled, read_traceparent, span_id, trace_id, traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False), ("03", True)])
def test_a_valid_header_is_read(flags: str, sampled: bool) -> None:
    assert read_traceparent(f"00-{TRACE}-{SPAN}-{flags}".encode()) == Parent(TRACE, SPAN, sampled)


def test_a_later_version_may_say_more() -> None:
    assert read_traceparent(f"01-{TRACE}-{SPAN}-01-what-comes".encode()) == Parent(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE[:-1]}-{SPAN}-01",
    ],
)
def test_an_invalid_header_begins_a_new_trace(header: str) -> None:
    assert read_traceparent(header.encode()) is None


@given(st.binary())
def test_no_header_breaks_the_reader(header: bytes) -> None:
    read_traceparent(header)


@given(st.binary())
def test_what_is_kept_of_a_header_is_the_parent_and_nothing_more(more: bytes) -> None:
    parent = read_traceparent(f"01-{TRACE}-{SPAN}-01-".encode() + more)
    if parent is not None:
        assert read_traceparent(parent.header().encode()) == parent and len(parent.header()) == 55


@given(number=st.integers(0, 32))
def test_what_is_sent_is_a_valid_header_of_the_span_that_is_described(number: int) -> None:
    identifier = new_request_id().bytes
    for parent in (None, Parent(TRACE, SPAN, True)):
        sent = read_traceparent(traceparent(identifier, number, parent, sampled=True).encode())
        assert sent == Parent(trace_id(identifier, parent), span_id(identifier, number), True)
    assert span_id(identifier, number) != span_id(identifier, number + 1)


def test_the_caller_decides_what_is_sampled_and_else_a_share_is() -> None:
    identifiers = [new_request_id().bytes for _ in range(2000)]
    assert not any(is_sampled(each, None, 0.0) for each in identifiers)
    assert all(is_sampled(each, None, 1.0) for each in identifiers)
    assert 800 < sum(is_sampled(each, None, 0.5) for each in identifiers) < 1200
    assert is_sampled(identifiers[0], Parent(TRACE, SPAN, True), 0.0)
    assert not is_sampled(identifiers[0], Parent(TRACE, SPAN, False), 1.0)
