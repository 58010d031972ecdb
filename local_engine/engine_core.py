"""The engine without its process: sequences in, tokens out, one step at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .batch import ScheduledSequence
from .block_pool import BlockPool, root_hash
from .compute_time import split, token_weight
from .config import BLOCK_SIZE, EngineConfig
from .errors import ConfigError, EngineError, RanksLost
from .messages import Abort, AdapterDone, AddSequence, LoadAdapter, ResetPrefixCache, Stats, UnloadAdapter, Update
from .news import NOTHING, News, update_of
from .run_ahead import RunAhead
from .runner_protocol import Runner
from .scheduler import Scheduler, Share
from .sequence import FinishReason, Sequence
from .speculation import Speculator
from .step_budget import StepBudget

if TYPE_CHECKING:
    from .grammars import Compilation, GrammarCompiler

log = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
"""So many failing steps in a row mean that the device is lost, not that a request was bad."""
NO_TOKEN = (
    "The model computed NaN for this request, or its parameters forbid every token; the engine goes on with the others."
)


@dataclass(frozen=True, slots=True)
class Held:
    """A sequence that waits for its grammar, outside the scheduler."""

    sequence: Sequence
    message: AddSequence
    compilation: Compilation


class EngineCore:
    """Scheduler and runner together. One thread calls it; `step` returns when the step is computed."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        *,
        adapt_steps: bool = False,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.max_model_len = _fit_model_len(config, runner)
        self._runner = runner
        self._pool = BlockPool(runner.num_blocks, enable_caching=config.enable_prefix_caching)
        self._speculator = Speculator(config.speculative_config) if config.speculative_config is not None else None
        self._scheduler = Scheduler(
            self._pool,
            max_num_seqs=config.max_num_seqs,
            max_model_len=self.max_model_len,
            policy=config.scheduling_policy,
            window=runner.window,
            speculator=self._speculator,
        )
        self._budget = StepBudget(config.max_num_batched_tokens, config.step_target_ms * 1_000 if adapt_steps else 0)
        launcher = runner.launcher if self._speculator is None else None
        self._ahead = RunAhead(launcher, self._scheduler) if launcher is not None else None
        self._grammars = grammars
        self._held: dict[int, Held] = {}
        self._ended: list[Sequence] = []
        self._failed_in_a_row = 0
        self._steps = self._busy_us = self._execute_us = 0
        self._prompt_tokens = self._generated_tokens = self._failed = 0

    @property
    def has_work(self) -> bool:
        """Something to compute or to report. A sequence whose grammar is still being compiled is neither."""
        return self._scheduler.has_work or bool(self._ended) or any(held.compilation.done for held in self.held)

    @property
    def held(self) -> Seq[Held]:
        """Sequences that wait for their grammars."""
        return list(self._held.values())

    def handle(
        self, message: AddSequence | Abort | ResetPrefixCache | LoadAdapter | UnloadAdapter
    ) -> AdapterDone | None:
        """Takes a message in, between two steps; returns the answer to it, where there is one."""
        if isinstance(message, AddSequence):
            self._add(message)
        elif isinstance(message, Abort):
            self._abort(message)
        elif isinstance(message, ResetPrefixCache):
            self._pool.reset_cache()
        else:
            return AdapterDone(self._change_adapters(message))
        return None

    def step(self) -> list[Update]:
        """Computes one step if there is anything to compute, and reports every sequence that moved or ended.

        A runner that raises fails the sequences of that step alone; `MAX_FAILED_STEPS` in a row re-raise.
        """
        for held in self.held:
            if held.compilation.done:
                self._release(held)
        began = time.perf_counter_ns()
        running = len(self._scheduler.running)
        if self._speculator is not None:
            self._speculator.begin_step(running)
        shares = self._ahead.shares() if self._ahead is not None else []
        shares = shares or self._scheduler.schedule(self._budget.for_step(running))
        news = self._compute(shares) if shares else {}
        if shares:
            elapsed_us = (time.perf_counter_ns() - began) // 1_000
            weights = [token_weight(share.count, bool(news.get(share.sequence.id, NOTHING).tokens)) for share in shares]
            for share, part_us in zip(shares, split(elapsed_us, weights), strict=True):
                share.sequence.compute_us += part_us
            self._busy_us += elapsed_us
            self._budget.observe(sum(share.count for share in shares), elapsed_us)
            self._judge_drafts(running, shares, news, elapsed_us)
        moved = [share.sequence for share in shares if share.sequence.id in news or share.sequence.error]
        ended, self._ended = self._ended, []
        return [update_of(sequence, news.get(sequence.id, NOTHING)) for sequence in (*moved, *ended)]

    def _judge_drafts(self, running: int, shares: list[Share], news: dict[int, News], elapsed_us: int) -> None:
        """Tells the speculator of a step in which everybody decoded."""
        if self._speculator is None or any(share.count - len(share.drafts) != 1 for share in shares):
            return
        drawn = [
            (len(share.drafts), len(news[share.sequence.id].tokens)) for share in shares if share.sequence.id in news
        ]
        self._speculator.end_step(
            running,
            drafted=sum(drafts for drafts, _ in drawn),
            accepted=sum(max(0, tokens - 1) for _, tokens in drawn),
            tokens=sum(tokens for _, tokens in drawn),
            elapsed_us=elapsed_us,
        )

    def stats(self) -> Stats:
        scheduler, pool = self._scheduler, self._pool
        return Stats(
            running=len(scheduler.running),
            waiting=scheduler.waiting_count + len(self._held),
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
            drafted=self._speculator.drafted if self._speculator is not None else 0,
            accepted=self._speculator.accepted if self._speculator is not None else 0,
        )

    def check_integrity(self) -> None:
        """Raises AssertionError when pages and sequences disagree; cheap enough for every time the engine falls idle."""
        self._scheduler.check_integrity()

    def _add(self, message: AddSequence) -> None:
        adapter = self._runner.adapters.get(message.adapter) if message.adapter is not None else None
        sequence = Sequence(
            id=message.id,
            prompt=message.prompt,
            params=message.params,
            choice_index=message.choice_index,
            root=root_hash(message.salt, adapter.digest if adapter is not None else b""),
            adapter=adapter.slot if adapter is not None else None,
        )
        if message.adapter is not None and adapter is None:
            self._refuse(sequence, f"The adapter {message.adapter} was unloaded.")
            return
        if message.params.grammar is None:
            self._schedule(sequence, message)
            return
        if self._grammars is None:
            self._refuse(sequence, "Structured output needs the package llguidance in the engine's process.")
            return
        held = self._held[sequence.id] = Held(sequence, message, self._grammars.begin(message.params.grammar))
        if held.compilation.done:
            self._release(held)

    def _schedule(self, sequence: Sequence, message: AddSequence) -> None:
        self._prompt_tokens += len(message.prompt)
        self._scheduler.add(sequence, priority=message.priority, leader=message.leader)

    def _refuse(self, sequence: Sequence, words: str, reason: FinishReason = FinishReason.ERROR) -> None:
        """Ends a sequence that was never scheduled."""
        self._failed += 1
        sequence.error, sequence.finish_reason = words, reason
        self._ended.append(sequence)

    def _change_adapters(self, message: LoadAdapter | UnloadAdapter) -> str | None:
        """None, or why not. An adapter that serves somebody stays."""
        try:
            if isinstance(message, LoadAdapter):
                self._runner.load_adapter(message.name, message.folder)
                return None
        except RanksLost:
            raise
        except (EngineError, MemoryError, OSError) as error:
            return str(error)
        adapter = self._runner.adapters[message.name]
        users = self._scheduler.count_users(adapter.slot)
        users += sum(1 for held in self.held if held.sequence.adapter == adapter.slot)
        if users:
            return f"adapter {message.name} serves {users} sequences: unload it when they have ended"
        self._runner.unload_adapter(message.name)
        return None

    def _release(self, held: Held) -> None:
        """Its grammar is compiled, or is none: then this request, and no other, ends."""
        sequence = held.sequence
        del self._held[sequence.id]
        try:
            sequence.grammar = held.compilation.grammar()
        except Exception as error:  # whatever the tokenizer's files or the library raise
            log.exception("a grammar does not compile")
            self._refuse(sequence, f"The grammar cannot be compiled: {error}")
            return
        if broken := sequence.grammar.error:
            self._refuse(sequence, f"The grammar cannot be compiled: {broken.strip()}", FinishReason.REFUSED)
        else:
            self._schedule(sequence, held.message)

    def _abort(self, message: Abort) -> None:
        """Ends the sequence between two steps. One that has ended already has been reported: nothing to do."""
        if (held := self._held.pop(message.id, None)) is not None:
            held.sequence.finish_reason = FinishReason.ABORT
            held.compilation.leave()
            self._ended.append(held.sequence)
            return
        sequence = self._scheduler.find(message.id)
        if sequence is not None:
            self._scheduler.finish(sequence, FinishReason.ABORT, keep=message.keep)
            self._ended.append(sequence)

    def _compute(self, shares: list[Share]) -> dict[int, News]:
        """Runs the model. Returns what each sequence has to report, if anything."""
        batch = [_scheduled(share) for share in shares]
        self._mask(shares, batch)
        samples = [share.samples for share in shares]
        self._steps += 1
        began = time.perf_counter_ns()
        try:
            output = self._ahead.execute(shares, batch) if self._ahead is not None else None
            if output is None:
                output = self._runner.execute(batch)
        except RanksLost:
            raise
        except Exception as error:
            self._fail_step(shares, error)
            return {}
        self._execute_us += (time.perf_counter_ns() - began) // 1_000
        self._failed_in_a_row = 0
        failed = set(output.nan_sequences)
        news: dict[int, News] = {}
        for number, (share, tokens, sampled) in enumerate(zip(shares, output.tokens, samples, strict=True)):
            sequence = share.sequence
            if sequence.id in failed:
                self._fail(sequence, NO_TOKEN)
                continue
            assert bool(tokens) == sampled, "the runner samples exactly where it was asked to"
            if number in output.pooled:
                part = output.pooled[number].astype(np.float64)
                sequence.pooled = part if sequence.pooled is None else sequence.pooled + part
            taken = self._scheduler.complete(share, tokens)
            if sequence.grammar is not None and (broken := sequence.grammar.error) and sequence.finish_reason is None:
                self._fail(sequence, f"The grammar cannot go on: {broken}")
                continue
            of_prompt = output.prompt_logprobs.get(number, [])
            sequence.prompt_logprobs_told += len(of_prompt)
            self._generated_tokens += taken
            if taken or of_prompt or sequence.finish_reason is not None:
                news[sequence.id] = News(tokens[:taken], output.logprobs.get(number, [])[:taken], of_prompt)
        return news

    def _mask(self, shares: list[Share], batch: list[ScheduledSequence]) -> None:
        """Asks the grammars of all sequences that sample, at once."""
        asking = [
            (scheduled, share.sequence.grammar, share.drafts)
            for share, scheduled in zip(shares, batch, strict=True)
            if share.samples and share.sequence.grammar is not None
        ]
        if asking:
            assert self._grammars is not None
            masks = self._grammars.masks([(grammar, drafts) for _, grammar, drafts in asking])
            for (scheduled, _, _), found in zip(asking, masks, strict=True):
                scheduled.masks = found

    def _fail_step(self, shares: list[Share], error: Exception) -> None:
        self._failed_in_a_row += 1
        log.exception("step %d failed for its %d sequences", self._steps, len(shares))
        words = _failure_words(error, sum(share.count for share in shares))
        for share in shares:
            self._fail(share.sequence, words)
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
        token_ids=[*sequence.token_ids[sequence.computed : sequence.computed + share.count], *share.drafts],
        drafts=share.drafts,
        start=sequence.computed,
        block_table=sequence.block_table,
        samples=share.samples,
        params=sequence.params,
        choice_index=sequence.choice_index,
        output_position=len(sequence.output),
        prompt_token_ids=sequence.prompt,
        output_token_ids=sequence.output,
        adapter=sequence.adapter,
        prompt_logprobs_from=sequence.prompt_logprobs_told if sequence.wants_prompt_logprobs else None,
    )


def _failure_words(error: Exception, tokens: int) -> str:
    """torch raises its own error on a GPU, and on the CPU a RuntimeError of its allocator."""
    name = type(error).__name__
    if isinstance(error, MemoryError) or name == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error):
        return (
            f"Out of memory in a step of {tokens} tokens ({name}): lower --max-num-batched-tokens or --max-num-seqs, or leave "
            "more room by --gpu-memory-utilization."
        )
    return f"The engine failed to compute this step: {name}: {error}"
