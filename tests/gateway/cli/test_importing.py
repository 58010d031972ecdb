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
from gateway.cli.errors import CliError
from gateway.litellm_config import read
from gateway.litellm_file import LiteLLMError
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


def test_what_stands_twice_in_the_file_is_taken_once(tmp_path: Path) -> None:
    """Posted twice, the second team and the second price are refused, and what comes after them is not made."""
    path = tmp_path / "litellm.yaml"
    path.write_text(
        "model_list:\n"
        + "".join(
            f"  - {{model_name: {name}, litellm_params: {{model: openai/x, input_cost_per_token: {cost}}}}}\n"
            for name, cost in (("a", "0.000001"), ("b", "0.0000010"), ("c", "0.000002"))
        )
        + "litellm_settings:\n"
        "  max_budget: 1\n"
        "  default_team_settings: [{team_id: research}, {team_id: ads}, {team_id: research}]\n"
    )
    imported = read(path)
    assert [each["name"] for each in imported.teams] == ["research", "ads"]
    assert [(each["model"], each["amount_per_mtok"]) for each in imported.prices] == [("x", "1")]
    assert len(imported.budgets) == 1
    assert imported.left == [
        "model_list[2].input_cost_per_token: openai asks 1 for x elsewhere in the file, which is taken",
        "litellm_settings.default_team_settings[2].team_id: 'research' stands there already",
    ]
    done = CliRunner().invoke(cli, ["import", "litellm", str(path)])
    assert done.output.endswith("3 models over 1 provider; 2 teams, 1 budget, 1 price found; --apply makes them\n")


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "models: []",
        "model_list: 5",
        "- x",
        LAUGHS + "model_list: *a29",
        LAUGHS.replace("[x, x]", "{x: x}").replace("[*", "{<<: [*").replace("]\n", "]}\n") + "model_list: [*a29]",
        "model_list: &a [*a]",
        "model_list: " + "[" * 5000,
        "model_list: " + "[" * 5000 + "]" * 5000,
        "model_list: [2026-13-45]",
        "model_list: [" + "1" * 5000 + "]",
        "model_list: [!!int '']",
        "model_list: [!!timestamp x]",
        "model_list: [!!bool x]",
        "model_list: [{[a]: b}]",
    ],
)
def test_another_file_is_one_line_of_refusal(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(text)
    with pytest.raises(LiteLLMError, match="other.yaml"):
        read(path)
    done = CliRunner().invoke(cli, ["import", "litellm", str(path)])
    assert done.exit_code != 0
    assert isinstance(done.exception, CliError) and "\n" not in str(done.exception)


def test_an_alias_is_taken_as_what_it_stands_for(tmp_path: Path) -> None:
    path = tmp_path / "litellm.yaml"
    path.write_text(
        "shared: &shared {api_key: os.environ/K, rpm: 5}\n"
        "model_list: [{model_name: a, litellm_params: {<<: *shared, model: openai/a}}]\n"
    )
    assert read(path).settings["providers"]["openai"]["requests_per_minute"] == 5


def test_each_value_that_cannot_be_meant_is_named_and_the_rest_is_taken(tmp_path: Path) -> None:
    path, ours = tmp_path / "litellm.yaml", tmp_path / "gateway.yaml"
    path.write_text(
        "model_list:\n"
        "  - model_name: a\n"
        "    litellm_params: {model: openai/a, api_key: 5, weight: -1, order: x, timeout: .inf, rpm: 0, tpm: 1.5,"
        " input_cost_per_token: 1e300, output_cost_per_token: .nan}\n"
        "    model_info: {max_input_tokens: 8, max_output_tokens: 9, max_tokens: none}\n"
        "  - {model_name: a b, litellm_params: {model: openai/x}}\n"
        "  - {model_name: c, litellm_params: {model: openai/x, api_base: 'ftp://x'}}\n"
        "litellm_settings: {fallbacks: [{x: 5}, 7], default_fallbacks: a, default_team_settings: [{}],"
        " max_budget: 1, budget_duration: 3h}\n"
        "router_settings: {model_group_alias: {'x y': a, 5: a}}\n"
        "general_settings: 5\nenvironment_variables: {A: b}\n"
    )
    done = CliRunner().invoke(cli, ["import", "litellm", str(path), "--output", str(ours)])
    assert done.exit_code == 0, done.output
    said = [line.removeprefix("not taken: ").partition(": ")[0] for line in done.output.splitlines()[:-1]]
    params = [
        "api_key", "rpm", "tpm", "timeout", "weight", "order", "input_cost_per_token", "output_cost_per_token",
    ]  # fmt: skip
    assert [each.rpartition(".")[2] for each in said if each.startswith("model_list[0].")] == [
        *params[:6], "max_output_tokens", *params[6:],
    ]  # fmt: skip
    assert {
        "a b", "c", "fallbacks.x", "fallbacks[1]", "default_fallbacks", "litellm_settings.default_team_settings[0]",
        "litellm_settings.budget_duration", "router_settings.model_group_alias.x y", "router_settings.model_group_alias.5",
        "general_settings", "environment_variables",
    } <= set(said)  # fmt: skip
    settings = load_settings(ours, {})
    assert [(model.name, len(model.routes)) for model in settings.models] == [("a", 1)]
    assert list(settings.providers) == ["openai"]


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
    ours = path.with_name("ours.yaml")
    ours.write_text(imported.yaml())
    keys = [str(each.get("api_key")) for each in imported.settings["providers"].values()]
    load_settings(ours, {key.removeprefix("env:"): "x" for key in keys if key.startswith("env:")})
