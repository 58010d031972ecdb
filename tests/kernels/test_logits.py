"""The logits of a step: their memory is taken once, whatever number of rows comes."""

from __future__ import annotations

import torch

from kernels.cpu.operations import CpuOperations
from kernels.linear import stored


def test_logits_lie_in_memory_that_is_taken_once() -> None:
    """Megabytes a step: given back and taken anew, they would be cleared by the system at every one."""
    operations = CpuOperations(2, 8, 64)
    random = torch.Generator().manual_seed(1)
    weights = torch.randn(200, 64, generator=random)
    head, norm = operations.pack([stored(weights)]), torch.rand(64, generator=random)
    places = set()
    for rows in (8, 1, 5, 8):
        x = torch.randn(rows, 64, generator=random)
        logits = operations.logits(x, norm, 1e-5, head)
        normed = torch.nn.functional.rms_norm(x, (64,), norm, 1e-5)
        torch.testing.assert_close(logits, normed @ weights.T, rtol=0, atol=1e-4)
        places.add(logits.data_ptr())
    (place,) = places
    assert place % 64 == 0, "a vector that lies across two lines costs two reads"
