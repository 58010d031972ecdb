"""transformers looks for a package called `kernels`, by name and by distribution: ours must not be taken for it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import kernels.dispatch
import torch, transformers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import import_utils

assert not import_utils.is_kernels_available()
config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
model = LlamaForCausalLM(config).eval()
ids = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=0)
print(ids.shape[1])
"""


def test_transformers_loads_and_generates_with_our_kernels_imported() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240, check=False)
    assert (result.returncode, result.stdout) == (0, "6\n"), result.stderr
