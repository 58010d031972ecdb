"""Fixtures that every test may use."""

from __future__ import annotations

import os

# Read by triton when it is first imported, by whichever test: its kernels then run on the CPU, in the interpreter.
os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = ["tests.fixtures.databases"]
