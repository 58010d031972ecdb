"""The CPU path: numba kernels that run in torch's own thread pool, one launch per step (tape.py)."""
