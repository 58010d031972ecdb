from __future__ import annotations

import pytest

from local_engine import cli
from local_engine.config import EngineConfig, ServerConfig


def parsed(*argv: str) -> dict[str, object]:
    return vars(cli.make_parser().parse_args(["some-model", *argv]))


def test_every_setting_has_a_flag_with_its_default() -> None:
    values = parsed()
    for kind in (EngineConfig, ServerConfig):
        for name, setting in kind.__dataclass_fields__.items():
            if name not in ("model", "served_model_names", "data_parallel_rank"):
                assert values[name] == setting.default, name


def test_vllms_flag_names_are_understood() -> None:
    values = parsed(
        *("--max-model-len", "32k", "--kv-cache-memory-bytes", "2G", "--no-enable-prefix-caching"),
        *("--served-model-name", "a", "b", "--scheduling-policy", "priority", "--tensor-parallel-size", "2"),
        *("--gpu-memory-utilization", "0.5", "--max-num-seqs", "8", "--max-num-batched-tokens", "512"),
    )
    expected = {
        "max_model_len": 32_000,
        "kv_cache_memory_bytes": 2 << 30,
        "enable_prefix_caching": False,
        "served_model_names": ["a", "b"],
        "scheduling_policy": "priority",
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.5,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
    }
    assert {name: values[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere/model"], "error: there is no model 'nowhere/model'"),
        (["m", "--block-size", "32"], "error: --block-size 32 is not supported: this engine's blocks hold 16"),
        (["m", "--max-num-seqs", "0"], "error: --max-num-seqs must be at least 1, not 0"),
        (
            ["m", "--max-num-seqs", "1" + "0" * 20],
            "error: --max-num-seqs must be at most 4611686018427387903, not 1000",
        ),
        (
            ["m", "--seed", "1" + "0" * 20],
            "error: --seed must be at least -4611686018427387903 and at most 46116860184",
        ),
        (["m", "--core-timeout-seconds", "1"], "error: --core-timeout-seconds must be at least 5, not 1"),
        (["m", "--device", "tpu"], "error: --device 'tpu' is not supported; choose one of: auto, cpu, cuda"),
        (["m", "--gpu-memory-utilization", "1.5"], "error: --gpu-memory-utilization must lie in (0, 1], not 1.5"),
    ],
)
def test_a_wrong_start_is_one_line_and_status_1(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.serve(argv) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"local_engine: {message}")


def test_an_unknown_flag_or_command_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.serve(["m", "--frobnicate"])
    assert caught.value.code == 2
    assert cli.main(["bake"]) == 2
    assert "unknown command 'bake'; there are: serve, plan, quantize" in capsys.readouterr().err


def test_a_number_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.serve(["m", "--max-model-len", "many"])
    assert "'many' is no number (examples: 8192, 32k, 2G)" in capsys.readouterr().err
