"""A LiteLLM configuration becomes ours: what it says is served, what cannot be taken is named, no key is repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli import cli
from gateway.litellm_config import LiteLLMError, read
from gateway.settings import load_settings

PLAIN_KEY = "sk-plain-0123456789abcdef"
CONFIG = f"""\
model_list:
  - model_name: gpt-4o
    litellm_params: {{model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY, weight: 3, input_cost_per_token: 0.0000025}}
    model_info: {{max_input_tokens: 128000, max_output_tokens: 16384, output_cost_per_token: 0.00001}}
  - model_name: gpt-4o
    litellm_params: {{model: azure/mine, api_base: "https://mine.openai.azure.com/", api_key: {PLAIN_KEY}, rpm: 60, beta: x}}
  - model_name: claude
    litellm_params: {{model: claude-sonnet-4, api_key: os.environ/ANTHROPIC_API_KEY}}
    model_info: {{max_input_tokens: 200000}}
  - model_name: local
    litellm_params: {{model: hosted_vllm/org/model, api_base: "http://gpu:8000/v1", timeout: 30}}
  - model_name: cloud
    litellm_params: {{model: bedrock/anthropic.claude-v2}}
  - model_name: "*"
    litellm_params: {{model: "openai/*"}}
litellm_settings:
  fallbacks: [{{gpt-4o: [claude, cloud]}}, {{claude: [gpt-4o]}}]
  context_window_fallbacks: [{{local: [claude]}}]
  default_team_settings: [{{team_id: research, success_callback: [x]}}]
  max_budget: 100
  budget_duration: 30d
  success_callback: [langfuse]
router_settings:
  routing_strategy: latency-based-routing
  model_group_alias: {{best: gpt-4o}}
general_settings: {{master_key: sk-1234, database_url: "postgresql://x"}}
"""
ENVIRON = {"OPENAI_API_KEY": "a-key", "ANTHROPIC_API_KEY": "b-key", "IMPORTED_KEY_1": "c-key"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "litellm.yaml"
    path.write_text(CONFIG)
    return path


def test_what_it_says_is_what_is_served(config: Path, tmp_path: Path) -> None:
    ours = tmp_path / "gateway.yaml"
    done = CliRunner().invoke(cli, ["import", "litellm", str(config), "--output", str(ours)])
    assert done.exit_code == 0, done.output
    settings = load_settings(ours, ENVIRON)
    models = {model.name: model for model in settings.models}
    assert list(models) == ["gpt-4o", "claude", "local"]
    best = models["gpt-4o"]
    assert best.aliases == ["best"]
    assert [(each.provider, each.model, each.weight) for each in best.routes] == [
        ("openai", "gpt-4o", 3),
        ("azure", "mine", 1),
    ]
    assert (best.strategy, best.context_window, best.max_output_tokens) == ("fastest", 128000, 16384)
    assert (models["gpt-4o"].fallbacks, models["local"].fallbacks) == (["claude"], ["claude"])
    azure = settings.providers["azure"]
    assert azure.api_version is None
    assert (azure.base_url, azure.requests_per_minute) == ("https://mine.openai.azure.com/openai/v1", 60)
    assert settings.providers["anthropic"].kind == "anthropic" and settings.providers["hosted-vllm"].timeout_s == 30
    assert models["local"].routes[0].model == "org/model"


def test_what_is_not_taken_is_named_and_no_key_is_repeated(config: Path) -> None:
    done = CliRunner().invoke(cli, ["import", "litellm", str(config)])
    assert PLAIN_KEY not in done.output and "sk-1234" not in done.output
    for place in (
        "model_list[1].litellm_params.api_key: stands in plain text; set the environment variable IMPORTED_KEY_1",
        "model_list[1].litellm_params.beta: has no counterpart",
        "model_list[4]: 'bedrock/anthropic.claude-v2': providers of the kind 'bedrock'",
        "model_list[5]: '*' is a wildcard",
        "fallbacks.gpt-4o: 'gpt-4o' or 'cloud' is not among the models that are taken",
        "fallbacks.claude: 'gpt-4o' leads back to 'claude'",
        "litellm_settings.success_callback: has no counterpart",
        "litellm_settings.default_team_settings[0].success_callback: has no counterpart",
        "general_settings.database_url: keys stay behind",
    ):
        assert f"not taken: {place}" in done.output, place


def test_prices_budgets_and_teams_are_bodies_of_the_admin_api(config: Path) -> None:
    imported = read(config)
    assert [(each["token_class"], each["amount_per_mtok"]) for each in imported.prices] == [
        ("input", "2.5"),
        ("output", "10"),
    ]
    assert imported.teams == [{"name": "research", "settlement_currency": "USD"}]
    assert [(each["scope"], each["amount"], each["period"]) for each in imported.budgets] == [("all", "100", "month")]


@pytest.mark.parametrize("text", ["", "a: [", "models: []", "model_list: 5", "- x"])
def test_another_file_is_one_line_of_refusal(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(text)
    with pytest.raises(LiteLLMError, match="other.yaml"):
        read(path)
    done = CliRunner().invoke(cli, ["import", "litellm", str(path)])
    assert done.exit_code != 0


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**18) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OTHERS = dict.fromkeys(
    ("api_base", "api_version", "api_key", "rpm", "weight", "order", "timeout", "input_cost_per_token"), JUNK
)
CALLED = JUNK | st.sampled_from(["gpt", "openai/x", "azure/y", "/", "x/y/z"])
PARAMS = JUNK | st.fixed_dictionaries({"model": CALLED}, optional=OTHERS)
NAMES = st.sampled_from(["a", "b", 5, None])
NAMED = st.fixed_dictionaries({"model_name": NAMES, "litellm_params": PARAMS}, optional={"model_info": JUNK})
SETTINGS = "fallbacks default_fallbacks model_group_alias max_budget default_team_settings routing_strategy".split()


@given(
    listed=st.lists(NAMED | JUNK, max_size=4),
    settings=st.fixed_dictionaries({}, optional=dict.fromkeys(SETTINGS, JUNK)),
)
def test_whatever_stands_in_the_file_is_taken_or_named(
    tmp_path_factory: pytest.TempPathFactory, listed: list[Any], settings: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "junk.yaml"
    path.write_text(yaml.safe_dump({"model_list": listed, "litellm_settings": settings, "router_settings": settings}))
    imported = read(path)
    assert all(":" in line for line in imported.left)
    assert yaml.safe_load(imported.yaml()) == imported.settings
