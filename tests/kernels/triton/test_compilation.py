"""Every kernel becomes machine code for a GPU, on a machine that has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_kernel_compiles_for_hopper_and_fits_its_shared_memory(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.kernels.triton.compile_for_gpu", "90"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = [line.split(": ")[1].split()[0] for line in done.stdout.splitlines()]
    assert set(kernels) == {
        *("_add_rms_norm", "_gated_mul", "_rotary", "_write", "_attend", "_join", "_draw"),
        *("_int8_linear", "_int4_linear", "_fp8_linear", "_shrink", "_expand"),
    }
    assert all(" sm_90 ok " in line for line in done.stdout.splitlines())
