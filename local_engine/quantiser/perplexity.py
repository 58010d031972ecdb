"""exp of the mean negative log probability that a model gives to each next token of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from ..batch import ScheduledSequence
from ..config import BLOCK_SIZE
from ..runner import ModelRunner
from ..sampling_params import SamplingParams

CALIBRATION, EVALUATION = "calibration", "evaluation"


def text(name: str) -> str:
    """A text that is shipped: one to choose scales by, another to measure on."""
    return (Path(__file__).parent / f"{name}.md").read_text(encoding="utf-8")


def perplexity(runner: ModelRunner, token_ids: Sequence[int]) -> float:
    """Of one sequence in one step; the runner's step and pool must hold it."""
    blocks = -(-len(token_ids) // BLOCK_SIZE)
    whole = ScheduledSequence(0, list(token_ids), 0, list(range(blocks)), samples=True, params=SamplingParams())
    log_probabilities = runner.logits([whole])[:-1].log_softmax(-1)
    following = torch.tensor(token_ids[1:])
    return math.exp(-float(log_probabilities.gather(1, following[:, None]).mean()))
