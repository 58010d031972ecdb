"""The tolerance rule: a kernel may lose twice what plain torch of the same precision loses, beside the same sum in float64."""

from __future__ import annotations

import torch

POISON = float("nan")


def assert_as_close(kernel: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor) -> None:
    """max|kernel - exact| <= 2 max|reference - exact| + 1e-5 scale. A value left as poison (NaN) fails."""
    assert exact.dtype == torch.float64
    assert kernel.shape == reference.shape == exact.shape
    lost = (kernel.double() - exact).abs().max()
    allowed = 2 * (reference.double() - exact).abs().max() + 1e-5 * exact.abs().max()
    assert bool(lost <= allowed), f"the kernel is off by {lost:.3e}, allowed are {allowed:.3e}"


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """An output in which every value must be written to pass."""
    return torch.full(shape, POISON, dtype=dtype)
