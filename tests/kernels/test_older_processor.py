"""A processor with AVX2 and no more: the same kernels compile for it, agree with plain torch, and round no activations."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

AVX2 = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
CHOOSE = """
import logging, torch
from kernels.dispatch import choose_operations
logging.basicConfig(level=logging.INFO)
chosen = choose_operations(
    torch.device("cpu"), torch.float32, threads=2, capacity=16, max_context=64, widths=[64], head_dim=16, int8=True
)
print(type(chosen).__name__, chosen.name)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX2 is x86's")
def test_the_kernels_run_on_avx2_alone() -> None:
    # The compiled code is kept by processor and instruction sets, so that only a machine's first run compiles it.
    environment = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", CHOOSE], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "CpuOperations numba kernels on 2 CPU threads, float32 activations\n", done.stderr
    assert "own 8-bit linears are off (the processor has no AVX-512 VNNI)" in done.stderr
