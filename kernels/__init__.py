"""The machine room: one operation per file, each with its formula, its shapes and a plain torch reference."""

import torch

# MKL computes torch's cos, tanh, exp, log and sqrt. It finds out at the first of them what processor this is, and a thread that
# looks while another is at it takes the kernels with half of the digits (a cos is then off by 1.5e-4). So one thread goes first.
# https://github.com/pytorch/pytorch/issues/188792
torch.ones(1, dtype=torch.float32, device="cpu").cos()
