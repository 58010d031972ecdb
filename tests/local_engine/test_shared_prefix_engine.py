"""Callers whose prompts begin alike get the same tokens whether their blocks are the same, and read once for all, or copies."""

from __future__ import annotations

from pathlib import Path

from kernels.cpu.operations import CpuOperations
from local_engine.batch import ScheduledSequence
from local_engine.config import EngineConfig
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams

from .models.tiny_llama import save_tiny_llama

COMMON = [(7 * n) % 50 + 3 for n in range(80)]
CALLERS = 6
PAGES = 7
GREEDY = SamplingParams(temperature=0.0)


def generated(folder: Path, kernels: str, *, shared: bool) -> tuple[list[list[int]], int]:
    """12 tokens for each caller, and the most blocks that a step read for a group of them."""
    engine = ModelRunner(
        EngineConfig(
            str(folder), device="cpu", dtype="float32", kernels=kernels, num_blocks_override=CALLERS * PAGES,
            max_num_batched_tokens=640, max_model_len=PAGES * 16,
        )
    )  # fmt: skip
    operations = engine._model._operations
    tables = [[number * PAGES + page for page in range(PAGES)] for number in range(CALLERS)]
    if shared:
        tables = [tables[0][:5] + own[5:] for own in tables]
    tokens = [[*COMMON, 3 + number, 9] for number in range(CALLERS)]
    done = [0] * CALLERS
    together = 0
    for position in range(12):
        batch = [
            ScheduledSequence(
                sequence_id=number, token_ids=own[done[number] :], start=done[number], block_table=tables[number],
                samples=True, params=GREEDY, output_position=position,
            )
            for number, own in enumerate(tokens)
        ]  # fmt: skip
        for number, (token,) in enumerate(engine.execute(batch).tokens):
            done[number] = len(tokens[number])
            tokens[number].append(token)
        if position and isinstance(operations, CpuOperations):
            step = operations._step
            together = max(together, int(step.prefixes[0, 3]) if step.header[2] else 0)
    return [own[len(COMMON) :] for own in tokens], together


def test_shared_blocks_are_read_together_and_give_the_tokens_that_copies_give(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, num_attention_heads=4, num_key_value_heads=2)
    together, blocks = generated(tmp_path, "auto", shared=True)
    alone, none = generated(tmp_path, "auto", shared=False)
    assert (blocks, none) == (4, 0)
    assert together == alone == generated(tmp_path, "torch", shared=False)[0]
