"""The engine without its process: sequences in, tokens out, one step at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Seq
from typing import Protocol

from .batch import ScheduledSequence, StepOutput
from .block_pool import BlockPool, root_hash
from .compute_time import split, token_weight
from .config import BLOCK_SIZE, EngineConfig
from .errors import ConfigError
from .messages import Abort, AddSequence, ResetPrefixCache, Stats, Update
from .scheduler import Scheduler, Share
from .sequence import FinishReason, Sequence
from .step_budget import StepBudget

log = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
"""So many failing steps in a row mean that the device is lost, not that a request was bad."""


class Runner(Protocol):
    """The seam to the model (runner.py)."""

    num_blocks: int
    vocab_size: int
    max_model_len: int
    window: int | None
    """Tokens that every layer looks back on, the current one included; None where some layer sees everything."""

    def execute(self, batch: Seq[ScheduledSequence]) -> StepOutput: ...


class EngineCore:
    """Scheduler and runner together. One thread calls it; `step` returns when the step is computed."""

    def __init__(self, config: EngineConfig, runner: Runner, *, adapt_steps: bool = False) -> None:
        self.max_model_len = _fit_model_len(config, runner)
        self._runner = runner
        self._pool = BlockPool(runner.num_blocks, enable_caching=config.enable_prefix_caching)
        self._scheduler = Scheduler(
            self._pool,
            max_num_seqs=config.max_num_seqs,
            max_model_len=self.max_model_len,
            policy=config.scheduling_policy,
            window=runner.window,
        )
        self._budget = StepBudget(config.max_num_batched_tokens, config.step_target_ms * 1_000 if adapt_steps else 0)
        self._ended: list[Sequence] = []
        self._failed_in_a_row = 0
        self._steps = self._busy_us = self._execute_us = 0
        self._prompt_tokens = self._generated_tokens = self._failed = 0

    @property
    def has_work(self) -> bool:
        """Something to compute or to report."""
        return self._scheduler.has_work or bool(self._ended)

    def handle(self, message: AddSequence | Abort | ResetPrefixCache) -> None:
        if isinstance(message, AddSequence):
            self._add(message)
        elif isinstance(message, Abort):
            self._abort(message)
        else:
            self._pool.reset_cache()

    def step(self) -> list[Update]:
        """Computes one step if there is anything to compute, and reports every sequence that moved or ended.

        A runner that raises fails the sequences of that step alone; `MAX_FAILED_STEPS` in a row re-raise.
        """
        began = time.perf_counter_ns()
        shares = self._scheduler.schedule(self._budget.for_step(len(self._scheduler.running)))
        tokens = self._compute(shares) if shares else {}
        if shares:
            elapsed_us = (time.perf_counter_ns() - began) // 1_000
            weights = [token_weight(share.count, share.sequence.id in tokens) for share in shares]
            for share, part_us in zip(shares, split(elapsed_us, weights), strict=True):
                share.sequence.compute_us += part_us
            self._busy_us += elapsed_us
            self._budget.observe(sum(share.count for share in shares), elapsed_us)
        moved = [
            share.sequence for share in shares if tokens.get(share.sequence.id) is not None or share.sequence.error
        ]
        ended, self._ended = self._ended, []
        return [_update(sequence, tokens.get(sequence.id)) for sequence in (*moved, *ended)]

    def stats(self) -> Stats:
        scheduler, pool = self._scheduler, self._pool
        return Stats(
            running=len(scheduler.running),
            waiting=scheduler.waiting_count,
            free_blocks=pool.free_count,
            num_blocks=pool.count,
            steps=self._steps,
            busy_us=self._busy_us,
            execute_us=self._execute_us,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=scheduler.preemptions,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            failed=self._failed,
        )

    def check_integrity(self) -> None:
        """Raises AssertionError when pages and sequences disagree; cheap enough for every time the engine falls idle."""
        self._scheduler.check_integrity()

    def _add(self, message: AddSequence) -> None:
        sequence = Sequence(
            id=message.id,
            prompt=message.prompt,
            params=message.params,
            choice_index=message.choice_index,
            root=root_hash(message.salt),
        )
        self._prompt_tokens += len(message.prompt)
        self._scheduler.add(sequence, priority=message.priority, leader=message.leader)

    def _abort(self, message: Abort) -> None:
        """Ends the sequence between two steps. One that has ended already has been reported: nothing to do."""
        sequence = self._scheduler.find(message.id)
        if sequence is not None:
            self._scheduler.finish(sequence, FinishReason.ABORT, keep=message.keep)
            self._ended.append(sequence)

    def _compute(self, shares: list[Share]) -> dict[int, int | None]:
        """Runs the model. Returns, for the sequences that sample, the token (None where its logits were NaN)."""
        batch = [_scheduled(share) for share in shares]
        samples = [share.samples for share in shares]
        self._steps += 1
        began = time.perf_counter_ns()
        try:
            output = self._runner.execute(batch)
        except Exception as error:
            self._fail_step(shares, error)
            return {}
        self._execute_us += (time.perf_counter_ns() - began) // 1_000
        self._failed_in_a_row = 0
        failed = set(output.nan_sequences)
        tokens: dict[int, int | None] = {}
        for share, token, sampled in zip(shares, output.tokens, samples, strict=True):
            sequence = share.sequence
            if sequence.id in failed:
                self._fail(sequence, "The model computed NaN for this request; the engine goes on with the others.")
                continue
            assert (token is not None) == sampled, "the runner samples exactly where it was asked to"
            self._scheduler.complete(share, token)
            if token is not None:
                tokens[sequence.id] = token
                self._generated_tokens += 1
        return tokens

    def _fail_step(self, shares: list[Share], error: Exception) -> None:
        self._failed_in_a_row += 1
        log.exception("step %d failed for its %d sequences", self._steps, len(shares))
        for share in shares:
            self._fail(share.sequence, f"The engine failed to compute this step: {type(error).__name__}: {error}")
        if self._failed_in_a_row >= MAX_FAILED_STEPS:
            raise error

    def _fail(self, sequence: Sequence, message: str) -> None:
        self._failed += 1
        sequence.error = message
        self._scheduler.finish(sequence, FinishReason.ERROR, keep=0)


def _fit_model_len(config: EngineConfig, runner: Runner) -> int:
    capacity = runner.num_blocks * BLOCK_SIZE
    if runner.max_model_len <= capacity:
        return runner.max_model_len
    if config.max_model_len is not None and config.max_model_len > capacity:
        raise ConfigError(
            f"--max-model-len {config.max_model_len} does not fit: the KV cache holds {capacity} tokens "
            f"({runner.num_blocks} blocks of {BLOCK_SIZE}). Lower --max-model-len, or give more memory by "
            "--kv-cache-memory-bytes (CPU) or --gpu-memory-utilization (GPU)."
        )
    log.warning("context limited to %d tokens by the KV cache (the model allows %d)", capacity, runner.max_model_len)
    return capacity


def _scheduled(share: Share) -> ScheduledSequence:
    sequence = share.sequence
    return ScheduledSequence(
        sequence_id=sequence.id,
        token_ids=sequence.token_ids[sequence.computed : sequence.computed + share.count],
        start=sequence.computed,
        block_table=sequence.block_table,
        samples=share.samples,
        params=sequence.params,
        choice_index=sequence.choice_index,
        output_position=len(sequence.output),
        prompt_token_ids=sequence.prompt,
        output_token_ids=sequence.output,
    )


def _update(sequence: Sequence, token: int | None) -> Update:
    return Update(
        id=sequence.id,
        token=token,
        compute_us=sequence.compute_us,
        cached_tokens=sequence.cached_tokens or 0,
        finish_reason=sequence.finish_reason,
        stop_token=sequence.stop_token,
        error=sequence.error,
    )
