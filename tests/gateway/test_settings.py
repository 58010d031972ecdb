from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import msgspec
import pytest

from gateway.settings import Secret, Settings, SettingsError, load_settings, redact_url

MINIMAL = """\
providers:
  deepseek:
    kind: openai
    base_url: "https://api.example.com/v1"
    api_key: "env:DEEPSEEK_API_KEY"
models:
  - name: deepseek-chat
    context_window: 131072
    max_output_tokens: 8192
    routes:
      - {provider: deepseek, model: deepseek-chat}
"""
ENVIRON = {"DEEPSEEK_API_KEY": "sk-upstream-0123456789"}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    return path


def load(tmp_path: Path, text: str = MINIMAL, **environ: str) -> Settings:
    return load_settings(write(tmp_path, text), {**ENVIRON, **environ})


def refusal(tmp_path: Path, text: str = MINIMAL, **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text, **environ)
    return str(caught.value).replace(str(tmp_path), "DIR")


def test_the_embedded_default_serves_the_bundled_engine_on_its_own_price_list() -> None:
    settings = load_settings(None, {})
    assert settings.providers["local"].kind == "engine"
    assert settings.price_list("local") == "metergate"
    assert [model.name for model in settings.models] == ["smollm2-135m-instruct"]
    assert settings.models[0].context_window == 8192
    assert settings.database_url == "sqlite:///var/metergate.db"
    assert settings.listen == "127.0.0.1:8000"


def test_a_file_is_read_into_typed_settings(tmp_path: Path) -> None:
    settings = load(tmp_path, MINIMAL + "journal: {fsync: record}\nlimits: {when_store_down: local_share}\n")
    assert settings.providers["deepseek"].base_url == "https://api.example.com/v1"
    assert settings.price_list("deepseek") == "deepseek"
    assert settings.models[0].routes[0].weight == 1
    assert (settings.journal.fsync, settings.journal.fsync_ms, settings.journal.retain_hours) == ("record", 20, 48)
    assert settings.limits.when_store_down == "local_share"


def test_a_null_database_means_sqlite_under_home(tmp_path: Path) -> None:
    settings = load(tmp_path, MINIMAL + "database_url: null\n", METERGATE_HOME="/srv/metergate")
    assert settings.database_url == "sqlite:////srv/metergate/metergate.db"
    assert settings.home == Path("/srv/metergate")


def test_every_setting_has_a_twin_in_the_environment(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        METERGATE_DATABASE_URL="postgresql://metergate@db/metergate",
        METERGATE_JOURNAL__FSYNC_MS="50",
        METERGATE_AUTH_STALE_S="60",
        METERGATE_TRUSTED_PROXIES="10.0.0.0/8, ::1",
        METERGATE_PROVIDERS__DEEPSEEK__TIMEOUT_S="30",
        METERGATE_PROVIDERS__CLAUDE="{kind: openai, base_url: 'https://claude.example.com'}",
        METERGATE_PROVIDERS__CLAUDE__PRICE_AS="anthropic",
        METERGATE_MODELS__DEEPSEEK_CHAT__CONTEXT_WINDOW="65536",
        METERGATE_MODELS__0__ROUTES__1="{provider: claude, model: c}",
        METERGATE_MODELS__1__NAME="second",
        METERGATE_MODELS__1__ROUTES="[{provider: claude, model: second}]",
    )
    assert settings.database_url == "postgresql://metergate@db/metergate"
    assert settings.journal.fsync_ms == 50
    assert settings.auth_stale_s == 60
    assert settings.trusted_proxies == ["10.0.0.0/8", "::1"]
    assert settings.providers["deepseek"].timeout_s == 30
    assert settings.price_list("claude") == "anthropic"
    assert settings.models[0].context_window == 65536
    assert [route.provider for route in settings.models[0].routes] == ["deepseek", "claude"]
    assert settings.models[1].name == "second"


def test_an_empty_variable_means_the_default(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL + "redis_url: redis://r:6379/0\n", METERGATE_REDIS_URL="").redis_url is None


def test_text_that_looks_like_a_number_stays_text_where_text_is_meant(tmp_path: Path) -> None:
    settings = load(tmp_path, METERGATE_ADMIN_KEY="1234567890123456")
    assert settings.admin_key is not None
    assert settings.admin_key.reveal() == "1234567890123456"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            MINIMAL + "databse_url: x\n",
            "DIR/gateway.yaml:12: databse_url: unknown setting; did you mean `database_url`?",
        ),
        (
            MINIMAL.replace("base_url", "base_ulr"),
            "DIR/gateway.yaml:4: providers.deepseek.base_ulr: unknown setting; did you mean `base_url`?",
        ),
        (
            MINIMAL.replace("provider: deepseek", "provider: deepsek"),
            "DIR/gateway.yaml:11: models[0].routes[0].provider: there is no provider 'deepsek'; configured: deepseek",
        ),
        (
            MINIMAL.replace("kind: openai", "kind: opneai"),
            "DIR/gateway.yaml:3: providers.deepseek.kind: Invalid enum value 'opneai' ('opneai'); "
            "allowed: engine, openai, anthropic, gemini",
        ),
        (
            MINIMAL + "journal: {fsync_ms: 0}\n",
            "DIR/gateway.yaml:12: journal.fsync_ms: Expected `int` >= 1 (0)",
        ),
        (
            MINIMAL + "journal: {fsync_ms: soon}\n",
            "DIR/gateway.yaml:12: journal.fsync_ms: Expected `int`, got `str` ('soon')",
        ),
        (MINIMAL + "home: a\nhome: b\n", "DIR/gateway.yaml:13: home: is set twice; keep one"),
        (
            MINIMAL + "home: [\n",
            "DIR/gateway.yaml:13: not valid YAML: expected the node content, but found '<stream end>'",
        ),
        ("- a\n", "DIR/gateway.yaml:1: the configuration must be a mapping of settings, such as `providers: …`"),
        (
            MINIMAL.replace('    base_url: "https://api.example.com/v1"\n', ""),
            "DIR/gateway.yaml:2: providers.deepseek: lacks `base_url`, which a provider of kind openai needs",
        ),
        (
            MINIMAL.replace("kind: openai\n", "price_as: x\n"),
            "DIR/gateway.yaml:2: providers.deepseek: lacks `kind`, which must be set",
        ),
        (
            MINIMAL.replace("max_output_tokens: 8192", "max_output_tokens: 999999"),
            "DIR/gateway.yaml:9: models[0].max_output_tokens: exceeds the context_window of 131072",
        ),
        (
            MINIMAL + "webhook: {url: 'https://hooks.example.com/x'}\n",
            "DIR/gateway.yaml:12: webhook: lacks `secret`, with which every event is signed; make it a long random text",
        ),
        (
            MINIMAL + "webhook: {url: 'http://hooks.example.com/x', secret: s}\n",
            "DIR/gateway.yaml:12: webhook.url: http:// is for receivers in webhook.networks; use https://",
        ),
        (
            MINIMAL + "webhook: {networks: [here]}\n",
            "DIR/gateway.yaml:12: webhook.networks[0]: 'here' is no IP address or network, such as 10.0.0.0/8",
        ),
        (
            MINIMAL + "trusted_proxies: [10.0.0.0/40]\n",
            "DIR/gateway.yaml:12: trusted_proxies[0]: '10.0.0.0/40' is no IP address or network, such as 10.0.0.0/8",
        ),
        (
            MINIMAL + "admin_listen: '8001'\n",
            "DIR/gateway.yaml:12: admin_listen: '8001' must be HOST:PORT, such as 127.0.0.1:8000 or [::]:8000",
        ),
        (
            MINIMAL + "database_url: mysql://u:pw@h/d\n",
            "DIR/gateway.yaml:12: database_url: 'mysql://u:***@h/d' must begin with sqlite: or postgresql: or postgres:",
        ),
    ],
)
def test_a_mistake_is_refused_with_its_line_its_name_and_the_remedy(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text) == message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("METERGATE_DATABSE_URL", "x", "METERGATE_DATABSE_URL: no such setting; did you mean `database_url`?"),
        ("METERGATE_JOURNAL__FSYNK", "x", "METERGATE_JOURNAL__FSYNK: no such setting; did you mean `fsync`?"),
        (
            "METERGATE_JOURNAL__FSYNC_MS",
            "ten",
            "METERGATE_JOURNAL__FSYNC_MS: journal.fsync_ms: Expected `int`, got `str` ('ten')",
        ),
        (
            "METERGATE_MODELS__9__NAME",
            "x",
            "METERGATE_MODELS__9__NAME: no entry '9'; use an index from 0 to 1 or the entry's name",
        ),
    ],
)
def test_a_mistake_in_the_environment_is_refused_by_the_variables_name(
    tmp_path: Path, name: str, value: str, message: str
) -> None:
    assert refusal(tmp_path, **{name: value}) == message


def test_variables_that_kubernetes_injects_for_a_service_of_our_name_are_no_settings(tmp_path: Path) -> None:
    load(
        tmp_path,
        METERGATE_PORT="tcp://10.0.0.1:8000",
        METERGATE_SERVICE_HOST="10.0.0.1",
        METERGATE_SERVICE_PORT_HTTP="8000",
        METERGATE_PORT_8000_TCP_ADDR="10.0.0.1",
        METERGATE_ADMIN_SERVICE_PORT="8001",
        METERGATE_CONFIG="/etc/metergate.yaml",
    )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="absent.yaml: cannot read the configuration: No such file"):
        load_settings(tmp_path / "absent.yaml", {})


def test_a_secret_is_read_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "claude"
    file.write_text("sk-from-file\n")
    from_file = load(tmp_path, MINIMAL.replace("env:DEEPSEEK_API_KEY", f"file:{file}")).providers["deepseek"].api_key
    from_environment = load(tmp_path).providers["deepseek"].api_key
    assert from_file is not None
    assert from_environment is not None
    assert from_file.reveal() == "sk-from-file"
    assert from_environment.reveal() == "sk-upstream-0123456789"


def test_a_secret_that_is_not_there_is_refused_by_its_name(tmp_path: Path) -> None:
    assert refusal(tmp_path, MINIMAL.replace("DEEPSEEK_API_KEY", "NOWHERE")) == (
        "DIR/gateway.yaml:5: providers.deepseek.api_key: the environment variable NOWHERE is not set"
    )
    assert refusal(tmp_path, MINIMAL.replace("env:DEEPSEEK_API_KEY", "file:/nowhere/key")) == (
        "DIR/gateway.yaml:5: providers.deepseek.api_key: cannot read the secret file /nowhere/key: No such file or directory"
    )


def test_rule_27_a_secret_never_prints(tmp_path: Path) -> None:
    settings = load(tmp_path, METERGATE_DATABASE_URL="postgresql://u:hunter2hunter2@h/d")
    secret = settings.providers["deepseek"].api_key
    assert secret is not None
    shown = f"{settings!r} {settings} {settings.providers!r} {secret} {secret!r} {secret:>10} {[secret]} {f'{secret}'}"
    assert "sk-upstream" not in shown
    assert "hunter2" not in shown
    assert copy.deepcopy(secret) is secret
    with pytest.raises(TypeError, match="never serialised"):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        msgspec.json.encode(settings.providers)


def test_secrets_compare_by_value() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a")}) == 1


def test_redaction_keeps_everything_but_the_password() -> None:
    assert redact_url("postgresql://u:p@h:5432/d?x=1") == "postgresql://u:***@h:5432/d?x=1"
    assert redact_url("sqlite:///var/metergate.db") == "sqlite:///var/metergate.db"


@pytest.mark.parametrize(
    ("provider", "why"),
    [
        ("{kind: openai, base_url: 'https://x/v1', cost_per_hour: 1 USD}", "applies only to engines"),
        ("{kind: engine, model: m, cost_per_hour: 1 XXQ}", "XXQ is no ISO 4217 currency code"),
        ("{kind: engine, model: m, cost_per_hour: 999999999999999999999 USD}", "beyond 9223372036.854775807"),
        ("{kind: engine, model: m, cost_per_hour: -1 USD}", "cost_per_hour"),
        ("{kind: engine, model: m, cost_per_hour: 1.5}", "cost_per_hour"),
    ],
)
def test_an_hour_of_an_engine_that_cannot_cost_that_is_refused(tmp_path: Path, provider: str, why: str) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(f"providers: {{a: {provider}}}\n")
    with pytest.raises(SettingsError, match=why):
        load_settings(config, {})


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "its aliases stand for more than 200,000 values; write them out"),
        ("a: &a [*a]\n", "its aliases stand for more than 200,000 values; write them out"),
        ("providers: " + "[" * 20_000, "it is nested too deeply for a configuration"),
        ("providers: " + "{a: " * 3_000 + "1" + "}" * 3_000, "it is nested too deeply for a configuration"),
    ],
    ids=["aliases of aliases", "a list inside itself", "open brackets", "deep mappings"],
)
def test_a_file_that_stands_for_more_than_it_says_is_refused_at_once(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"gateway.yaml: {said}")):
        load(tmp_path, text)


@pytest.mark.parametrize("value", ["2026-13-45", "!!int x", "!!timestamp x", "!!python/name:os.system x"])
def test_a_value_that_does_not_fit_its_own_tag_is_named(tmp_path: Path, value: str) -> None:
    for text in (f"log_level: {value}\n", f"{{ {value}: 1 }}\n"):
        with pytest.raises(SettingsError, match=r"gateway\.yaml:1: .*: not a plain value"):
            load(tmp_path, text)


def test_an_alias_within_reason_is_what_it_stands_for(tmp_path: Path) -> None:
    text = MINIMAL + "trusted_proxies: &own [10.0.0.0/8]\nwebhook: {networks: *own}\n"
    assert load(tmp_path, text).webhook.networks == ["10.0.0.0/8"]
