"""torch's own cos, exp and tanh have all their digits from the first call on, on however many threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROCESSOR_BEFORE_AND_AFTER = """
import ctypes
from pathlib import Path
import torch

library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
detect = ctypes.cast(library.mkl_vml_serv_cpu_detect, ctypes.c_void_p).value
code = ctypes.string_at(detect, 6)
assert code[:2] == bytes.fromhex("8b05")  # mov eax, [rip + offset]
processor = ctypes.c_int32.from_address(detect + 6 + int.from_bytes(code[2:], "little", signed=True))
print(processor.value)
import kernels
print(processor.value)
"""
UNKNOWN = -1


def test_mkl_knows_the_processor_before_several_threads_ask_for_it() -> None:
    """Asked by two threads at once, it may tell one of them a number that stands for another processor and for few digits."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESSOR_BEFORE_AND_AFTER], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no MKL in this torch, or another one: {done.stderr.strip().splitlines()[-1]}")
    before, after = map(int, done.stdout.split())
    assert before == UNKNOWN
    assert after > UNKNOWN
