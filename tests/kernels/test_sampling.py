"""The CPU's draw against its reference: the same uniform number gives the same token, whatever the filters."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu.operations import CpuOperations
from kernels.sampling import DrawSettings, draw_reference

ROWS = 40


@pytest.mark.parametrize("vocabulary", [7, 100, 5000])
@pytest.mark.parametrize(
    "temperature, top_k, top_p, min_p",
    [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.7, 0, 0.9, 0.0), (1.3, 5, 1.0, 0.0), (1.0, 50, 0.8, 0.0), (2.0, 0, 1.0, 0.05),
     (1.0, 6, 0.6, 0.01), (5.0, 0, 0.99, 0.0), (1.0, 1, 1.0, 0.0)],
)  # fmt: skip
def test_the_same_number_gives_the_same_token(
    vocabulary: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    random = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(ROWS, vocabulary, generator=random) * 3
    settings = DrawSettings(
        [temperature] * ROWS,
        [top_k] * ROWS,
        [top_p] * ROWS,
        [min_p] * ROWS,
        [(row + 0.37) / ROWS for row in range(ROWS)],
    )
    assert CpuOperations(2, 16, 16).draw(logits.clone(), settings) == draw_reference(logits.clone(), settings)


def test_a_number_close_to_one_gives_the_last_token_with_any_weight() -> None:
    logits = torch.tensor([[0.0, 0.0, float("-inf"), float("-inf")]])
    settings = DrawSettings([1.0], [0], [1.0], [0.0], [1 - 2**-53])
    assert CpuOperations(2, 16, 16).draw(logits.clone(), settings) == [1]
    assert draw_reference(logits.clone(), settings) == [1]
