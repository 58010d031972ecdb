"""Whatever becomes of block tables between steps, every rank has those of rank 0."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from local_engine.batch import ScheduledSequence
from local_engine.parallel.tables import KeptTables, SentTables
from local_engine.sampling_params import SamplingParams

TABLES = st.dictionaries(st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=4)


def scheduled(sequence: int, table: list[int]) -> ScheduledSequence:
    return ScheduledSequence(sequence, [7], len(table), table, True, SamplingParams(), adapter=sequence)


@given(st.lists(TABLES, max_size=8))
def test_a_rank_has_the_tables_of_rank_0_after_every_step(steps: list[dict[int, list[int]]]) -> None:
    sent, kept = SentTables(), KeptTables()
    for tables in steps:
        batch = [scheduled(sequence, table) for sequence, table in tables.items()]
        heard = kept.batch(sent.step(batch))
        assert [(each.sequence_id, each.block_table, each.start, each.token_ids, each.adapter) for each in heard] == [
            (each.sequence_id, each.block_table, each.start, each.token_ids, each.adapter) for each in batch
        ]


def test_a_table_that_grows_travels_once() -> None:
    sent = SentTables()
    told = [sent.step([scheduled(1, list(range(length)))]).works[0].blocks for length in (500, 500, 501)]
    assert [len(blocks) for blocks in told] == [500, 0, 1]
