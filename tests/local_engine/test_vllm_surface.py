"""Flags, paths, fields and names that somebody who comes from vLLM looks for are there, and each rule has a test of its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from local_engine import cli
from local_engine.config import ServerConfig
from local_engine.llm import LLM
from local_engine.messages import Stats
from local_engine.metrics import VLLM, EngineMetrics
from local_engine.server.app import EngineApp
from local_engine.server.requests import ChatRequest, CompletionRequest, StreamOptions
from local_engine.server.service import Service

FLAGS = """
--enable-lora --lora-modules --speculative-config --tool-call-parser --enable-auto-tool-choice --reasoning-parser --chat-template
--generation-config --seed --max-logprobs --enforce-eager --data-parallel-size --tensor-parallel-size --max-model-len
--gpu-memory-utilization --max-num-seqs --max-num-batched-tokens --served-model-name --api-key --quantization --kv-cache-dtype
""".split()
PATHS = """
/health /ping /version /metrics /load /tokenize /detokenize /reset_prefix_cache /v1/models /v1/chat/completions /v1/completions
/v1/embeddings /v1/load_lora_adapter /v1/unload_lora_adapter
""".split()
RULES = range(35, 45)


def test_every_flag_is_understood() -> None:
    known = set(re.findall(r"--[a-z][a-z-]+", cli.make_parser().format_help()))
    assert set(FLAGS) - known == set()


def test_every_path_is_answered() -> None:
    nothing: Any = None
    app = EngineApp(Service(nothing, nothing, None, ("m",), ServerConfig(), 0, "0"))
    assert set(PATHS) - {*app._open, *app._keyed} == set()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ChatRequest, {"chat_template_kwargs", "continue_final_message", "include_reasoning", "structured_outputs"}),
        (CompletionRequest, {"echo", "prompt_logprobs", "guided_json", "ignore_eos", "truncate_prompt_tokens"}),
        (StreamOptions, {"include_usage", "continuous_usage_stats"}),
    ],
)
def test_every_field_is_taken(kind: Any, fields: set[str]) -> None:
    assert fields - set(kind.__struct_fields__) == set()


def test_metrics_bear_vllms_names_too_and_python_has_its_class() -> None:
    metrics = EngineMetrics("m")
    metrics.follow(Stats)
    text = metrics.render().decode()
    for theirs in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "time_to_first_token_seconds",
    ):
        assert f"{VLLM}{theirs}" in text, theirs
    assert {"generate", "chat"} <= set(dir(LLM))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_the_engine_has_a_test_of_its_name(rule: int) -> None:
    """Rules learned from the field, 35 to 44: streams, equality, pages, parameters, prompts, log probabilities, templates,
    references, broken files, ageing."""
    here = Path(__file__).parent
    named = [path for path in here.rglob("test_*.py") if f"def test_rule_{rule}_" in path.read_text(encoding="utf-8")]
    assert named, f"no test is named test_rule_{rule}_…"
