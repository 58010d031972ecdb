"""The bytes of a segment: whole frames pass, everything else is recognised for what it is."""

from __future__ import annotations

from struct import pack
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.errors import SegmentError
from gateway.metering.frames import (
    FRAME_BYTES,
    HEADER_BYTES,
    MAX_PAYLOAD,
    check_header,
    is_blank,
    pack_frame,
    pack_header,
    resync,
    scan,
)

payloads = st.lists(st.binary(min_size=1, max_size=300), max_size=12)


def test_a_header_names_format_and_segment() -> None:
    header = pack_header(7)
    assert len(header) == HEADER_BYTES == 20
    assert header[:8] == b"MGJOURNL"
    assert check_header(header, 7)


def test_a_header_that_was_half_written_is_no_header() -> None:
    header = pack_header(1)
    for length in range(HEADER_BYTES):
        assert not check_header(header[:length] + bytes(HEADER_BYTES - length), 1)


def test_a_newer_format_is_named_and_not_guessed_at() -> None:
    head = pack("<8sHHI", b"MGJOURNL", 2, 0, 1)
    with pytest.raises(SegmentError, match="format version 2; this release reads version 1"):
        check_header(head + pack("<I", crc32(head)), 1)


def test_a_renamed_segment_is_refused() -> None:
    with pytest.raises(SegmentError, match="segment 2 says that it is segment 1"):
        check_header(pack_header(1), 2)


@given(payloads, st.integers(0, 100))
def test_what_was_packed_is_scanned(written: list[bytes], zeros: int) -> None:
    data = b"".join(map(pack_frame, written)) + bytes(zeros)
    assert [frame.payload for frame in scan(data, 0, 1000)] == written


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4), st.booleans())
def test_a_tail_torn_at_any_byte_keeps_every_whole_frame(written: list[bytes], preallocated: bool) -> None:
    frames = [pack_frame(payload) for payload in written]
    data = b"".join(frames)
    ends = [sum(map(len, frames[: index + 1])) for index in range(len(frames))]
    for cut in range(len(data) + 1):
        torn = data[:cut] + (bytes(len(data) - cut) if preallocated else b"")
        whole = sum(end <= cut for end in ends)
        found = [frame.payload for frame in scan(torn, 0, 1000)]
        # Zeros may happen to complete a frame whose own last bytes are zeros: then it is whole.
        assert found[:whole] == written[:whole]
        assert found == written[: len(found)]
        if not preallocated:
            assert len(found) == whole


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=2, max_size=5), st.data())
def test_one_flipped_bit_never_yields_another_record(written: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(map(pack_frame, written))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    found = [frame.payload for frame in scan(bytes(damaged), 0, 1000)]
    assert found == written[: len(found)]
    assert len(found) < len(written)


@given(st.binary(min_size=1, max_size=60), st.lists(st.binary(min_size=5, max_size=40), min_size=1, max_size=4))
def test_reading_goes_on_behind_damage(garbage: bytes, written: list[bytes]) -> None:
    data = b"\xff" * FRAME_BYTES + garbage + b"".join(map(pack_frame, written)) + bytes(FRAME_BYTES)
    at = resync(data, 1)
    assert at is not None
    found = [frame.payload for frame in scan(data, at, 1000)]
    assert found[-len(written) :] == written


def test_a_length_of_zero_or_beyond_the_limit_is_no_frame() -> None:
    assert scan(bytes(100), 0, 10) == []
    assert scan(pack("<II", MAX_PAYLOAD + 1, 0) + bytes(MAX_PAYLOAD + 1), 0, 10) == []


def test_blank_means_that_nothing_was_written() -> None:
    assert is_blank(bytes(50), 10)
    assert is_blank(b"x" * 10 + bytes(5), 10)
    assert not is_blank(bytes(49) + b"x", 10)


def test_a_scan_stops_at_its_limit() -> None:
    data = pack_frame(b"a") + pack_frame(b"b") + pack_frame(b"c")
    found = scan(data, 0, 2)
    assert [frame.payload for frame in found] == [b"a", b"b"]
    assert found[-1].end == 2 * (FRAME_BYTES + 1)
