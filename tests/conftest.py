"""Fixtures that every test may use."""

from __future__ import annotations

import os
import sys

from hypothesis import HealthCheck, settings

# Read by triton when it is first imported, by whichever test: its kernels then run on the CPU, in the interpreter.
os.environ["TRITON_INTERPRET"] = "1"

# Compiled once, not anew in each of the hundreds of processes that the tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# As written, here and in the processes that the tests start: many a test replaces a part of what would be compiled. The compiled
# path has tests/gateway/test_compiled.py, which runs some of these tests again.
if os.environ.setdefault("METERGATE_COMPILED", "off") == "on":
    from gateway import compiled  # before any module that is compiled

    assert compiled.is_active(), "nothing is compiled of these sources: metergate compile"

settings.register_profile("laws", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("laws")
"""A busy machine is no finding: how long an example takes says nothing about the law."""

pytest_plugins = ["tests.fixtures.databases"]
