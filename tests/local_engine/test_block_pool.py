from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from local_engine.block_pool import BlockPool, block_hash, root_hash
from local_engine.config import BLOCK_SIZE


def tokens(first: int) -> list[int]:
    return list(range(first, first + BLOCK_SIZE))


def test_pages_come_in_order_and_go_back_to_the_free_list() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.free_count == 1
    pool.release([0, 1, 2])
    assert pool.free_count == 4
    pool.check_integrity([])


def test_anonymous_pages_are_taken_before_cached_ones() -> None:
    pool = BlockPool(3)
    cached, plain = pool.allocate(2)
    pool.cache(cached, block_hash(root_hash(b""), tokens(0)))
    pool.release([cached])
    pool.release([plain])
    assert pool.allocate(3) == [plain, 2, cached]


def test_the_tail_of_a_released_table_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(3)
    table = pool.allocate(3)
    parent = root_hash(b"")
    chain = []
    for index, block in enumerate(table):
        parent = block_hash(parent, tokens(index * BLOCK_SIZE))
        pool.cache(block, parent)
        chain.append(parent)
    pool.release(table)
    assert pool.match(chain) == table
    assert pool.allocate(1) == [table[2]]
    assert pool.match(chain) == table[:2]


def test_a_shared_page_is_free_only_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.share([block])
    pool.release([block])
    assert pool.free_count == 1
    pool.release([block])
    assert pool.free_count == 2


def test_a_free_cached_page_can_be_shared_again() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    digest = block_hash(root_hash(b""), tokens(0))
    pool.cache(block, digest)
    pool.release([block])
    assert pool.match([digest]) == [block]
    assert pool.free_among([block]) == 1
    pool.share([block])
    assert pool.free_count == 1
    pool.check_integrity([[block]])


def test_rule_37_the_hash_depends_on_salt_adapter_and_everything_before() -> None:
    roots = {root_hash(b""), root_hash(b"a"), root_hash(b"b"), root_hash(b"", b"a"), root_hash(b"a", b"b")}
    assert len(roots) == 5
    first = block_hash(root_hash(b""), tokens(0))
    other = block_hash(root_hash(b""), tokens(1))
    assert len(first) == 32
    assert block_hash(first, tokens(16)) != block_hash(other, tokens(16))


def test_integrity_check_finds_a_leaked_page() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([])


def test_forgotten_prefixes_are_not_found() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    digest = block_hash(root_hash(b""), tokens(0))
    pool.cache(block, digest)
    pool.reset_cache()
    assert pool.match([digest]) == []
    pool.check_integrity([[block]])


class PoolMachine(RuleBasedStateMachine):
    """Any mix of allocating, sharing, caching and releasing keeps the pool whole."""

    @initialize()
    def start(self) -> None:
        self.pool = BlockPool(7)
        self.tables: list[list[int]] = []
        self.digests: dict[int, bytes] = {}
        self.serial = 0

    @rule(count=st.integers(0, 4))
    def allocate(self, count: int) -> None:
        if count <= self.pool.free_count:
            table = self.pool.allocate(count)
            assert len(set(table)) == count
            self.tables.append(table)

    @rule(data=st.data())
    def cache(self, data: st.DataObject) -> None:
        held = [block for table in self.tables for block in table]
        if held:
            self.serial += 1
            digest = block_hash(root_hash(b""), tokens(data.draw(st.integers(0, 5))))
            self.pool.cache(data.draw(st.sampled_from(held)), digest)

    @rule(first=st.integers(0, 5))
    def share(self, first: int) -> None:
        found = self.pool.match([block_hash(root_hash(b""), tokens(first))])
        if found:
            self.pool.share(found)
            self.tables.append(found)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.tables:
            self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_integrity(self.tables)

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for table in self.tables:
                self.pool.release(table)
            assert self.pool.free_count == self.pool.count


test_pool_machine = PoolMachine.TestCase
