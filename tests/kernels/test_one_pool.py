"""One pool of threads, whatever other packages bring along: the threads of a second one would spin beside the first."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNT = """
import os, {first}, {second}
import torch
from kernels.cpu.operations import CpuOperations
from kernels.linear import stored

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(2)
torch.ones(1 << 20).exp_()
before = threads()
operations = CpuOperations(2, 8, 64)
operations.logits(torch.ones(8, 64), torch.ones(64), 1e-5, operations.pack([stored(torch.ones(4096, 64))]))
print(threads() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("first, second", [("torch", "sentencepiece"), ("sentencepiece", "torch")])
def test_kernels_run_in_the_threads_that_torch_has_already(first: str, second: str) -> None:
    """sentencepiece, which gguf imports, has a libgomp of its own. (With this seed the order of a set once chose that one.)"""
    done = subprocess.run(
        [sys.executable, "-c", COUNT.format(first=first, second=second)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "0\n", done.stderr
