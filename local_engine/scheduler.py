"""Which tokens the next step computes.

There are no phases. A step has one token budget: running sequences take from it first, in order, each as many of its
uncomputed tokens as fit (one when it decodes, a chunk when its prompt is read), then waiting ones are admitted. When the
pages run out, the last running sequence gives all of its back and is recomputed later (preemption by recompute).
"""

from __future__ import annotations

import bisect
import heapq
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from .block_pool import BlockPool, block_hash
from .config import BLOCK_SIZE
from .sequence import FinishReason, Sequence, Status
from .speculation import Speculator

AGEING_US_PER_TOKEN = 1_000
"""Policy `shortest`: a prompt token weighs as much as so much waiting, hence nothing starves (rule 44)."""


@dataclass(frozen=True, slots=True)
class Share:
    """One sequence's part of a step: `count` tokens from its first uncomputed one, the last of them `drafts`."""

    sequence: Sequence
    count: int
    drafts: tuple[int, ...] = ()

    @property
    def samples(self) -> bool:
        if self.sequence.params.pooling is not None:
            return False
        return self.count - len(self.drafts) == self.sequence.uncomputed


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


class Scheduler:
    """Owns all live sequences and their pages. Single-threaded; knows nothing of models, text or sockets."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_model_len: int,
        policy: str = "fcfs",
        window: int | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        """`window`: tokens that the model looks back on, the current one included; None: all."""
        assert blocks_for(max_model_len) <= pool.count, "the longest sequence fits into the pool alone"
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.policy = policy
        self.window = window
        self._speculator = speculator
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._live: dict[int, Sequence] = {}
        self._waiting: list[tuple[tuple[int, int], Sequence]] = []
        self._arrivals = 0

    def add(self, sequence: Sequence, *, priority: int = 0, leader: int | None = None) -> None:
        """Queues a sequence. Its `leader` is a sibling with the same prompt, whose pages are worth waiting for."""
        assert sequence.id not in self._live
        assert len(sequence.token_ids) < self.max_model_len
        self._arrivals += 1
        sequence.order = (self._key(sequence, priority), self._arrivals)
        sequence.leader = leader
        self._live[sequence.id] = sequence
        self._enqueue(sequence)

    @property
    def could_admit(self) -> bool:
        """Somebody waits and there is a seat, though perhaps no page."""
        return self.waiting_count > 0 and len(self.running) < self.max_num_seqs

    def reserve_next(self, sequences: Seq[Sequence]) -> bool:
        """Pages for the token after the one that the step at hand computes of each; for all, or false."""
        missing = [max(0, blocks_for(each.computed + 2) - len(each.block_table)) for each in sequences]
        if sum(missing) > self.pool.free_count:
            return False
        for each, count in zip(sequences, missing, strict=True):
            if count:
                each.block_table += self.pool.allocate(count)
        return True

    def find(self, sequence_id: int) -> Sequence | None:
        return self._live.get(sequence_id)

    def count_users(self, adapter: int) -> int:
        """Live sequences with this adapter."""
        return sum(1 for sequence in self._live.values() if sequence.adapter == adapter)

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    @property
    def waiting_count(self) -> int:
        return len(self._live) - len(self.running)

    def schedule(self, budget: int) -> list[Share]:
        """The next step's shares. Never empty while there is work and the budget is positive."""
        shares, left, preempted = self._schedule_running(budget)
        if not preempted:
            shares += self._admit_waiting(left)
        assert shares or not self._live or budget <= 0, "work is left and nothing was scheduled"
        return shares

    def complete(self, share: Share, tokens: Seq[int]) -> int:
        """The step computed this share and drew `tokens`; returns how many of them count: what follows an end does not.

        May finish the sequence and free its pages.
        """
        sequence = share.sequence
        reason, taken = None, 0
        while taken < len(tokens) and reason is None:
            token = tokens[taken]
            taken += 1
            sequence.append(token)
            reason = sequence.reason_after(token, self.max_model_len)
        sequence.computed += share.count - len(share.drafts) + max(0, taken - 1)
        self._commit(sequence)
        self._leave_behind(sequence)
        if sequence.params.pooling is not None and not sequence.uncomputed:
            self.finish(sequence, FinishReason.STOP)
            return 0
        if reason is not None:
            last = tokens[taken - 1]
            sequence.stop_token = last if reason is FinishReason.STOP and sequence.is_end(last) else None
            self.finish(sequence, reason)
        return taken

    def finish(self, sequence: Sequence, reason: FinishReason, *, keep: int | None = None) -> None:
        """Ends a live sequence and gives its pages back. Output beyond `keep` tokens was discarded: it is not cached."""
        assert sequence.status is not Status.FINISHED
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        if keep is not None and self.pool.enable_caching:
            first = (len(sequence.prompt) + keep) // BLOCK_SIZE
            for index in range(first, sequence.committed):
                self.pool.uncache(sequence.block_table[index], sequence.block_hashes[index])
        self._release(sequence)
        sequence.status = Status.FINISHED
        sequence.finish_reason = reason
        del self._live[sequence.id]
        if self._speculator is not None:
            self._speculator.forget(sequence.id)

    def check_integrity(self) -> None:
        """Raises AssertionError when pages, tables and lists disagree."""
        self.pool.check_integrity([sequence.held for sequence in self._live.values()])
        assert all(sequence.status is Status.RUNNING for sequence in self.running)
        if not self._live:
            assert self.pool.free_count == self.pool.count, "pages leaked"

    def _schedule_running(self, budget: int) -> tuple[list[Share], int, bool]:
        shares: list[Share] = []
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            count = min(sequence.uncomputed, budget)
            drafts = self._drafts(sequence, budget - (len(self.running) - index))
            if drafts and not self._extend(sequence, count + len(drafts)):
                drafts = ()
            while not self._extend(sequence, count):
                preempted = True
                if self._preempt_last() is sequence:
                    return shares, budget, preempted
            shares.append(Share(sequence, count + len(drafts), drafts))
            budget -= count + len(drafts)
            index += 1
        return shares, budget, preempted

    def _drafts(self, sequence: Sequence, spare: int) -> tuple[int, ...]:
        """Guesses for a sequence that decodes: as many as the budget leaves beside one token for each of the others."""
        if self._speculator is None or sequence.uncomputed != 1 or sequence.params.pooling is not None:
            return ()
        most = min(
            spare,
            sequence.params.max_tokens - len(sequence.output) - 1,
            self.max_model_len - len(sequence.token_ids) - 1,
        )
        drafts = self._speculator.guess(sequence.id, sequence.token_ids, most)
        return drafts if sequence.grammar is None else drafts[: sequence.grammar.allowed(drafts)]

    def _admit_waiting(self, budget: int) -> list[Share]:
        shares: list[Share] = []
        deferred: list[Sequence] = []
        while self._waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self._waiting[0][1]
            if sequence.status is Status.FINISHED:
                heapq.heappop(self._waiting)
                continue
            if self._leader_reads(sequence):
                deferred.append(heapq.heappop(self._waiting)[1])
                continue
            if not self._take_prefix(sequence):
                break
            heapq.heappop(self._waiting)
            count = min(sequence.uncomputed, budget)
            extended = self._extend(sequence, count)
            assert extended, "admission made sure of the pages"
            sequence.status = Status.RUNNING
            bisect.insort(self.running, sequence, key=_order)
            shares.append(Share(sequence, count))
            budget -= count
        for sequence in deferred:
            self._enqueue(sequence)
        return shares

    def _take_prefix(self, sequence: Sequence) -> bool:
        """Shares the cached pages of its beginning if the whole of it finds room; at least one token stays to compute."""
        hits: list[int] = []
        if self.pool.enable_caching and not sequence.reads_all:
            full = (len(sequence.token_ids) - 1) // BLOCK_SIZE
            hits = self.pool.match(self._chain(sequence, full)[:full])
        needed = blocks_for(len(sequence.token_ids)) - len(hits) + self.pool.free_among(hits)
        if self.pool.free_count - needed < self._reserve():
            return False
        self.pool.share(hits)
        sequence.block_table = hits
        sequence.computed = len(hits) * BLOCK_SIZE
        sequence.committed = len(hits)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self.prefix_queries += len(sequence.token_ids)
            self.prefix_hits += sequence.computed
        return True

    def _reserve(self) -> int:
        """Pages that the running sequences will want soon: the rest of their prompts, and one more each.

        Admitting into them would preempt somebody a moment later, and again, and again.
        """
        return sum(blocks_for(len(running.token_ids)) + 1 - len(running.block_table) for running in self.running)

    def _leader_reads(self, sequence: Sequence) -> bool:
        if sequence.leader is None or not self.pool.enable_caching:
            return False
        leader = self._live.get(sequence.leader)
        return leader is not None and leader.computed < len(leader.prompt)

    def _extend(self, sequence: Sequence, count: int) -> bool:
        missing = blocks_for(sequence.computed + count) - len(sequence.block_table)
        if missing > self.pool.free_count:
            return False
        if missing > 0:
            sequence.block_table += self.pool.allocate(missing)
        return True

    def _preempt_last(self) -> Sequence:
        victim = self.running.pop()
        self._release(victim)
        victim.pooled = None
        victim.status = Status.WAITING
        victim.preemptions += 1
        self.preemptions += 1
        self._enqueue(victim)
        return victim

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.held)
        sequence.block_table = []
        sequence.computed = sequence.committed = sequence.given_back = 0

    def _leave_behind(self, sequence: Sequence) -> None:
        """Gives back the pages wholly before the window of the next token; what they cached stays until they are taken."""
        if self.window is None:
            return
        first = max(sequence.given_back, (sequence.computed + 1 - self.window) // BLOCK_SIZE)
        self.pool.release(sequence.block_table[sequence.given_back : first])
        sequence.given_back = first

    def _commit(self, sequence: Sequence) -> None:
        """Offers newly filled pages to the prefix cache."""
        full = sequence.computed // BLOCK_SIZE
        if not self.pool.enable_caching or full == sequence.committed:
            return
        chain = self._chain(sequence, full)
        for index in range(sequence.committed, full):
            self.pool.cache(sequence.block_table[index], chain[index])
        sequence.committed = full

    def _chain(self, sequence: Sequence, blocks: int) -> Seq[bytes]:
        """Hashes of at least the first `blocks` blocks, computed once."""
        chain = sequence.block_hashes
        while len(chain) < blocks:
            at = len(chain) * BLOCK_SIZE
            parent = chain[-1] if chain else sequence.root
            chain.append(block_hash(parent, sequence.token_ids[at : at + BLOCK_SIZE]))
        return chain

    def _enqueue(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (sequence.order, sequence))

    def _key(self, sequence: Sequence, priority: int) -> int:
        if self.policy == "priority":
            return priority
        if self.policy == "shortest":
            return time.monotonic_ns() // 1_000 + AGEING_US_PER_TOKEN * len(sequence.prompt)
        return 0


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
