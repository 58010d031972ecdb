"""`metergate engine plan`: the page, the JSON, and what it says about a flag that cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from local_engine.cli import main

ROOT = Path(__file__).resolve().parents[3]


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["plan", *argv]) == 0
    return capsys.readouterr().out


def test_the_page_shows_how_the_figures_come_about(capsys: pytest.CaptureFixture[str]) -> None:
    page = planned(capsys, "llama-3.1-70b", "--gpu", "H100", "-tp", "4", "--max-model-len", "8192")
    assert "70,553,706,496 weights, published in bf16" in page
    assert "327,680 bytes per token = 2 x 80 layers x 8 KV heads x 128 x 2" in page
    assert "Each of 4 x H100 (79.6 GiB, 0.9 of it used), weights in bf16" in page
    assert "metergate engine serve llama-3.1-70b --tensor-parallel-size 4 --max-model-len 8192" in page


def test_json_has_the_same_figures_as_integers(capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(
        planned(capsys, "llama-3.1-70b", "--gpu", "H200", "-q", "fp8", "--max-model-len", "32K", "--json")
    )
    assert plan["kv_bytes_per_token"] == 327_680
    assert plan["kv_bytes_per_sequence"] == 327_680 * 32_768
    assert plan["weight_bytes"]["bf16"]["total"] == 2 * plan["parameters"] == 2 * 70_553_706_496
    device = plan["device"]
    assert (device["device"], device["ranks"], device["fits"]) == ("H200", 1, True)
    assert device["tokens"] == device["blocks"] * 16 == device["pool_bytes"] // (327_680 * 16) * 16
    assert device["serve"] == "metergate engine serve llama-3.1-70b --quantization fp8 --max-model-len 32768"
    assert any("write one by `metergate engine quantize MODEL --awq`" in note for note in plan["notes"])
    assert {"device": "H200", "precision": "fp8", "tensor_parallel_size": 1}.items() <= next(
        row for row in plan["fits"] if row["device"] == "H200" and row["precision"] == "fp8"
    ).items()


def test_a_group_that_a_split_would_cut_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("qwen2.5-0.5b", "--gpu", "L4", "-tp", "2", "--max-model-len", "1024", "-q")
    refused = "over 2 ranks: attention's output matrix would be cut within its groups of 128 inputs"
    assert refused in planned(capsys, *asked, "int4-g128")
    assert refused not in planned(capsys, *asked, "int4-g64")
    whole = planned(capsys, "smollm2-135m", "--gpu", "L4", "-q", "int4-g128")
    assert "the 576 inputs of attention's output matrix do not divide into groups of 128" in whole
    assert "over 1 ranks" not in whole


@pytest.mark.parametrize("model", ["llama-3.1-70b", "meta-llama/Llama-3.1-8B-Instruct"])
def test_a_command_with_a_name_that_brings_no_weights_says_so(capsys: pytest.CaptureFixture[str], model: str) -> None:
    said = f"{model} is known here by its config.json alone: in the command, give the folder that holds its weights"
    assert said in planned(capsys, model, "--gpu", "H200")
    assert said in json.loads(planned(capsys, model, "--gpu", "H200", "--json"))["notes"]
    assert said not in planned(capsys, model)
    assert "config.json alone" not in planned(capsys, "smollm2-135m-instruct", "--gpu", "T4")


def test_without_a_split_the_fewest_gpus_are_planned_for(capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(planned(capsys, "llama-3.1-70b", "--gpu", "a100-80gb", "--json"))
    assert (plan["device"]["ranks"], plan["device"]["fits"]) == (4, True)
    assert planned(capsys, "llama-3.1-405b", "--gpu", "l4").count("It does not fit") == 1


def test_a_context_too_long_for_the_gpu_is_shortened_in_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    page = planned(capsys, "llama-3.1-8b", "--gpu-memory-bytes", "24G", "-tp", "1")
    assert "No room for one sequence of 131,072 tokens" in page
    assert "--max-model-len " in page


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["gpt-7"], "there is no model 'gpt-7'"),
        (["llama-3.1-8b", "--gpu", "abacus"], "--gpu abacus is not known here; known are T4"),
        (["llama-3.1-8b", "-tp", "2"], "--tensor-parallel-size needs a GPU to plan for"),
        (
            ["llama-3.1-8b", "--gpu", "L4", "-tp", "3"],
            "--tensor-parallel-size 3 does not divide 32 query and 8 KV heads",
        ),
        (["smollm2-135m", "--max-model-len", "9000"], "--max-model-len 9000 is more than the model's 8192 positions"),
        (["deepseek-v3", "--dtype", "float32"], "--dtype does not change weights that are published in fp8"),
        (["llama-3.1-8b", "--gpu-memory-utilization", "0"], "--gpu-memory-utilization must lie in (0, 1], not 0.0"),
        (["llama-3.1-8b", "--gpu-memory-bytes", "0"], "--gpu-memory-bytes must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_planned_is_one_line_and_status_1(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *argv]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"local_engine: error: {message}")


def test_planning_loads_no_torch_and_no_numpy() -> None:
    script = (
        "import sys; from local_engine.cli import main; main(['plan', 'smollm2-135m', '--json'])\n"
        "print([name for name in ('torch', 'numpy', 'tokenizers', 'gguf') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout)["kv_bytes_per_token"] == 23_040
    assert done.stderr.strip() == "[]"


def test_the_gateways_command_is_the_same_one() -> None:
    command = [sys.executable, "-m", "gateway.cli", "engine", "plan", "qwen2.5-7b", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout)["kv_bytes_per_token"] == 57_344
