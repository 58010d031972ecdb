"""The reading half: every whole record in order, past torn tails and damage, live or dead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.errors import SegmentError
from gateway.metering.frames import HEADER_BYTES, pack_frame, pack_header
from gateway.metering.journal import Journal
from gateway.metering.reader import START, JournalReader, Place
from gateway.metering.records import Record, encode
from gateway.metering.segments import segment_path
from tests.gateway.metering.records import closed, opened


def write_segment(folder: Path, number: int, *records: Record, tail: bytes = b"") -> bytes:
    folder.mkdir(exist_ok=True)
    data = pack_header(number) + b"".join(pack_frame(encode(record)) for record in records) + tail
    segment_path(folder, number).write_bytes(data)
    return data


def read_all(folder: Path, *, dead: bool, place: Place = START) -> tuple[list[Record | None], JournalReader]:
    reader = JournalReader(folder, place)
    found = reader.read(1_000, dead=dead)
    reader.close()
    return [one.record for one in found], reader


def test_a_torn_tail_at_every_byte_loses_no_whole_record(tmp_path: Path) -> None:
    """Law: whatever byte the power failed at, the records before it are read, and the torn one never is."""
    attempt = opened()
    first = pack_header(1) + pack_frame(encode(attempt))
    whole = first + pack_frame(encode(closed(attempt)))
    for cut in range(len(first), len(whole) + 1):
        for rest in (b"", bytes(len(whole) - cut + 4096), b"\x5a" * 7):
            folder = tmp_path / "torn"
            folder.mkdir(exist_ok=True)
            segment_path(folder, 1).write_bytes(whole[:cut] + (rest if cut < len(whole) else b""))
            records, reader = read_all(folder, dead=True)
            assert records == ([attempt, closed(attempt)] if cut == len(whole) else [attempt])
            assert all(gap.torn for gap in reader.gaps)
            again, _ = read_all(folder, dead=True, place=reader.place)
            assert again == []


def test_a_live_writer_is_waited_for_where_a_dead_one_would_be_torn(tmp_path: Path) -> None:
    attempt = opened()
    whole = write_segment(tmp_path, 1, attempt, closed(attempt))
    segment_path(tmp_path, 1).write_bytes(whole[:-3])
    reader = JournalReader(tmp_path)
    assert [one.record for one in reader.read(10, dead=False)] == [attempt]
    assert reader.read(10, dead=False) == []
    segment_path(tmp_path, 1).write_bytes(whole)
    assert [one.record for one in reader.read(10, dead=False)] == [closed(attempt)]
    assert reader.gaps == []
    reader.close()


def test_damage_in_the_middle_is_skipped_and_counted(tmp_path: Path) -> None:
    attempts = [opened() for _ in range(3)]
    data = bytearray(write_segment(tmp_path, 1, *attempts))
    second = HEADER_BYTES + len(pack_frame(encode(attempts[0])))
    data[second + 20] ^= 0xFF
    segment_path(tmp_path, 1).write_bytes(bytes(data))
    records, reader = read_all(tmp_path, dead=True)
    assert records == [attempts[0], attempts[2]]
    assert [(gap.start, gap.length, gap.torn) for gap in reader.gaps] == [
        (Place(1, second), len(pack_frame(encode(attempts[1]))), False)
    ]


def test_a_damaged_end_of_an_older_segment_does_not_hide_the_next(tmp_path: Path) -> None:
    first, second = opened(), opened()
    write_segment(tmp_path, 1, first, tail=b"garbage that is no frame")
    write_segment(tmp_path, 2, second)
    records, reader = read_all(tmp_path, dead=False)
    assert records == [first, second]
    assert [gap.torn for gap in reader.gaps] == [False]


def test_a_segment_whose_header_was_never_written_is_passed_over(tmp_path: Path) -> None:
    attempt = opened()
    tmp_path.joinpath("00000001.mgj").write_bytes(bytes(5000))
    write_segment(tmp_path, 2, attempt)
    records, _ = read_all(tmp_path, dead=True)
    assert records == [attempt]


def test_deleted_segments_are_passed_over(tmp_path: Path) -> None:
    attempt = opened()
    write_segment(tmp_path, 3, attempt)
    records, reader = read_all(tmp_path, dead=True)
    assert records == [attempt]
    assert reader.place.segment == 3


def test_a_record_of_a_later_release_is_kept_as_bytes(tmp_path: Path) -> None:
    tmp_path.joinpath("00000001.mgj").write_bytes(pack_header(1) + pack_frame(b"\x92\xa1z\x01"))
    reader = JournalReader(tmp_path)
    found = reader.read(10, dead=True)
    reader.close()
    assert [(one.record, one.payload) for one in found] == [(None, b"\x92\xa1z\x01")]


def test_a_segment_of_another_version_stops_the_reader_with_a_clear_error(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, opened())
    segment_path(tmp_path, 1).rename(segment_path(tmp_path, 2))
    with pytest.raises(SegmentError, match="segment 2 says that it is segment 1"):
        read_all(tmp_path, dead=True)


def test_a_record_larger_than_the_read_chunk_is_read(make_journal: Callable[..., Journal]) -> None:
    journal = make_journal()
    attempt = opened(tags={"big": "x" * 900_000})
    journal.open(attempt)
    assert read_all(journal.folder, dead=False)[0] == [attempt]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=10), st.integers(0, 20))
def test_reading_in_pieces_is_reading_at_once(
    tmp_path_factory: pytest.TempPathFactory, limits: list[int], count: int
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    attempts = [opened() for _ in range(count)]
    write_segment(folder, 1, *attempts[: count // 2])
    write_segment(folder, 2, *attempts[count // 2 :])
    found: list[Record | None] = []
    place = START
    for limit in [*limits, 1000]:
        reader = JournalReader(folder, place)
        piece = reader.read(limit, dead=True)
        reader.close()
        assert len(piece) <= limit
        found += [one.record for one in piece]
        place = reader.place
    assert found == attempts
