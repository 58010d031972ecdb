"""The pages of the KV cache: who holds them, which are free, and which still hold a known prefix.

A free page keeps its content and its hash until it is taken for something else, so that the free list is also the cache:
least recently freed pages go first. Every operation is O(1) per page.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence

from .config import BLOCK_SIZE

_NONE = -1


def root_hash(salt: bytes, adapter: bytes = b"") -> bytes:
    """Where a chain begins: pages are shared only under the same salt and the same adapter content."""
    return hashlib.sha256(len(salt).to_bytes(4, "little") + salt + adapter).digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """SHA-256 over the parent's hash and the block's tokens: equal hashes mean an equal prefix from its first token on."""
    assert len(tokens) == BLOCK_SIZE
    return hashlib.sha256(parent + array("q", tokens).tobytes()).digest()


class BlockPool:
    """Reference-counted pages 0..count-1. The free list is doubly linked through arrays; `count` is its sentinel."""

    def __init__(self, count: int, *, enable_caching: bool = True) -> None:
        assert count > 0
        self.count = count
        self.enable_caching = enable_caching
        self.free_count = count
        self._references = [0] * count
        self._hash_of: list[bytes | None] = [None] * count
        self._cached: dict[bytes, int] = {}
        self._next = [*range(1, count + 1), 0]
        self._previous = [count, *range(count)]

    def allocate(self, wanted: int) -> list[int]:
        """Takes the least recently freed pages; what they cached is forgotten. The caller has checked `free_count`."""
        assert 0 <= wanted <= self.free_count
        taken = []
        for _ in range(wanted):
            block = self._next[self.count]
            self._unlink(block)
            self._forget(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each of these pages, free ones included."""
        for block in blocks:
            if self._references[block] == 0:
                self._unlink(block)
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less. Tails are given back first, so that the beginning of a prefix outlives its end."""
        for block in reversed(blocks):
            assert self._references[block] > 0
            self._references[block] -= 1
            if self._references[block] == 0:
                self._link(block, last=self._hash_of[block] is not None)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The pages of the longest cached beginning of this chain."""
        found = []
        for digest in hashes:
            block = self._cached.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def free_among(self, blocks: Iterable[int]) -> int:
        return sum(1 for block in blocks if self._references[block] == 0)

    def cache(self, block: int, digest: bytes) -> None:
        """The page is full and computed. A second page of the same content stays anonymous."""
        assert self._references[block] > 0
        if self.enable_caching and digest not in self._cached:
            self._forget(block)
            self._cached[digest] = block
            self._hash_of[block] = digest

    def uncache(self, block: int, digest: bytes) -> None:
        """Forgets the page if it stands for this chain: its tokens were discarded after all."""
        if self._hash_of[block] == digest:
            self._forget(block)

    def reset_cache(self) -> None:
        """Forgets every prefix; pages in use stay with their holders."""
        self._cached.clear()
        self._hash_of = [None] * self.count

    @property
    def cached_count(self) -> int:
        return len(self._cached)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless counts, free list and cache agree with the block tables of all live sequences."""
        held = [0] * self.count
        for table in tables:
            for block in table:
                held[block] += 1
        assert held == self._references, "reference counts differ from the block tables"
        block, seen = self._next[self.count], 0
        while block != self.count:
            assert self._references[block] == 0, f"block {block} is free and held"
            assert self._previous[self._next[block]] == block, f"the free list is torn at block {block}"
            seen += 1
            assert seen <= self.free_count, "the free list is longer than its count"
            block = self._next[block]
        assert seen == self.free_count == held.count(0), "free count differs from the free list"
        for digest, cached in self._cached.items():
            assert self._hash_of[cached] == digest, f"the cache and block {cached} disagree"
        named = sum(1 for digest in self._hash_of if digest is not None)
        assert named == len(self._cached), "a block is named that the cache does not know"

    def _forget(self, block: int) -> None:
        digest = self._hash_of[block]
        if digest is not None:
            del self._cached[digest]
            self._hash_of[block] = None

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self._next[block] = self._previous[block] = _NONE
        self.free_count -= 1

    def _link(self, block: int, *, last: bool) -> None:
        """Cached pages join at the end (taken last), anonymous ones at the front (taken at once)."""
        before = self._previous[self.count] if last else self.count
        after = self._next[before]
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self.free_count += 1
