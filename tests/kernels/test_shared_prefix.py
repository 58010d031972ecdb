"""Blocks that several tokens of a step see whole are read once for all of them, and nobody's result tells."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.batch import BLOCK, StepLayout
from kernels.cpu.cache import arrange
from kernels.cpu.operations import CpuOperations
from kernels.cpu.pairs import pairs_work
from kernels.cpu.work_items import LEAST_BLOCKS, LEAST_TOKENS, attention_items
from kernels.operations import Attention
from kernels.paged_attention import paged_attention_reference

from .layouts import mixed

BLOCKS, CAPACITY, LONGEST = 160, 640, 320
REASON = pairs_work(2)
KINDS = ["float32", "bfloat16", pytest.param("pairs", marks=pytest.mark.skipif(REASON is not None, reason=str(REASON)))]


@dataclass(frozen=True)
class Member:
    """`common` blocks of the family's, then blocks of its own; `cached` tokens before this step's `tokens`."""

    family: int
    common: int
    cached: int
    tokens: int


members = st.builds(
    Member,
    st.integers(0, 1),
    st.integers(0, 9),
    st.integers(0, 200),
    st.one_of(st.just(1), st.integers(1, 12), st.integers(60, 90)),
)


def step(batch: list[Member]) -> tuple[StepLayout, set[int]]:
    """The step, and every slot that holds a key of one of its sequences."""
    order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(len(batch))).tolist()
    families = [[order.pop() for _ in range(9)] for _ in range(2)]
    tables: list[list[int]] = []
    owned: set[int] = set()
    positions: list[int] = []
    slots: list[int] = []
    query_start = [0]
    for member in batch:
        context = member.cached + member.tokens
        common = families[member.family][: min(member.common, member.cached // BLOCK)]
        table = common + [order.pop() for _ in range(-(-context // BLOCK) - len(common))]
        places = [table[p // BLOCK] * BLOCK + p % BLOCK for p in range(context)]
        tables.append(table)
        owned.update(places)
        positions += range(member.cached, context)
        slots += places[member.cached :]
        query_start.append(query_start[-1] + member.tokens)
    widest = max(map(len, tables))
    layout = StepLayout(
        query_start=query_start,
        context=[member.cached + member.tokens for member in batch],
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
        block_tables=torch.tensor([table + [0] * (widest - len(table)) for table in tables]),
    )
    return layout, owned


def attend_both(
    kind: str, batch: list[Member], heads: tuple[int, int, int], how: tuple[int | None, float | None]
) -> tuple[torch.Tensor, torch.Tensor]:
    """By the kernels over a pool whose other slots hold NaN, and by plain torch."""
    (count, kv_heads, size), (window, softcap) = heads, how
    layout, owned = step(batch)
    random = torch.Generator().manual_seed(3)
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    keys, values = (torch.randn(BLOCKS, kv_heads, BLOCK, size, generator=random).to(dtype) for _ in range(2))
    foreign = torch.ones(BLOCKS * BLOCK, dtype=torch.bool)
    foreign[list(owned)] = False
    for cache in (keys, values):
        cache.masked_fill_(foreign.view(BLOCKS, 1, BLOCK, 1), float("nan"))
    # Large scores: what is left of a part depends on where its maximum lies.
    q = torch.randn(layout.tokens, count, size, generator=random) * 3
    attention = Attention(count, size**-0.5, window, softcap)
    expected = paged_attention_reference(q, keys, values, layout, attention.scale, window=window, softcap=softcap)
    operations = CpuOperations(2, CAPACITY, LONGEST, pairs=kind == "pairs")
    qkv, out = operations.buffer((count + 2 * kv_heads) * size), operations.buffer(count * size)
    qkv[: layout.tokens, : count * size] = q.flatten(1)
    caches = arrange(keys, values)
    operations.run(lambda: operations.attention(qkv, caches, attention, out), layout)
    return out[: layout.tokens], expected.flatten(1)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(
    batch=st.lists(members, min_size=1, max_size=7),
    heads=st.sampled_from([(9, 3, 64), (4, 4, 32), (8, 1, 16), (6, 2, 48)]),
    how=st.sampled_from([(None, None), (None, 2.0), (40, None)]),
)
def test_rule_39_whoever_shares_gets_what_plain_torch_gets_and_no_foreign_slot_is_read(
    kind: str, batch: list[Member], heads: tuple[int, int, int], how: tuple[int | None, float | None]
) -> None:
    actual, expected = attend_both(kind, batch, heads, how)
    if kind == "pairs":
        torch.testing.assert_close(actual, expected, rtol=0, atol=0.06)
        assert (actual - expected).square().mean().sqrt() <= 0.01 * expected.square().mean().sqrt()
    else:
        torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)


@given(st.lists(members, min_size=1, max_size=9))
def test_a_prefix_is_the_beginning_of_each_members_table_and_lies_before_its_position(batch: list[Member]) -> None:
    layout, _ = step(batch)
    work = attention_items(layout)
    depth_of = {}
    for sequence, first, tokens, _, blocks in work.items.tolist():
        depth_of.update(dict.fromkeys(range(first, first + tokens), (sequence, blocks)))
    assert sorted(depth_of) == list(range(layout.tokens))
    read = {}
    for leader, first, tokens, blocks in work.prefixes.tolist():
        assert blocks >= LEAST_BLOCKS and blocks % 2 == 0
        for token in work.members[first : first + tokens].tolist():
            sequence, own = depth_of[token]
            assert own == blocks and blocks * BLOCK <= layout.positions[token]
            assert torch.equal(layout.block_tables[sequence, :blocks], layout.block_tables[leader, :blocks])
            assert token not in read
            read[token] = blocks
    assert {token for token, (_, blocks) in depth_of.items() if blocks} == set(read)


def test_callers_with_one_long_beginning_read_it_together_and_others_alone() -> None:
    batch = [Member(0, 8, 140, 1)] * LEAST_TOKENS + [Member(1, 9, 150, 1)] * (LEAST_TOKENS - 1)
    layout, _ = step(batch)
    assert attention_items(layout).prefixes.tolist() == [[0, 0, LEAST_TOKENS, 8]]


def test_work_items_cover_every_token_once_with_the_longest_first() -> None:
    layout = mixed([(40, 1), (0, 37), (3, 1)], 24)
    assert attention_items(layout).items.tolist() == [
        [1, 17, 16, 16, 0], [1, 1, 16, 0, 0], [1, 33, 5, 32, 0], [0, 0, 1, 40, 0], [2, 38, 1, 3, 0],
    ]  # fmt: skip
