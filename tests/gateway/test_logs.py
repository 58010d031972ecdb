"""Rule 27: whatever reaches the log, keys do not leave it; JSON lines are JSON, one a record."""

from __future__ import annotations

import json
import logging

import pytest

from gateway.ids import new_request_id, text_of
from gateway.logs import JsonFormatter, TextFormatter, scrubbed, teller

SECRETS = [
    "sk-mg-0a1b2c3d4e5f-abcdefghijklmnopqrstuv",
    "sk-proj-abcdefgh12345678",
    "sk-ant-api03-aaaa_bbbb-cccc",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "key {} refused", "Authorization: Bearer {}", '{{"x-api-key": "{}"}}'])
def test_rule_27_a_key_is_masked_wherever_it_stands(secret: str, around: str) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record(around.format(secret)))
        assert secret not in line and secret[-8:] not in line


def test_rule_27_bearer_tokens_and_passwords_of_addresses_are_masked() -> None:
    assert scrubbed("bearer abcdefghijklmnop==") == "***"
    assert scrubbed("postgresql://metergate:hunter2@db/x") == "postgresql://metergate:***@db/x"
    assert scrubbed("redis://:hunter2@valkey:6379/0") == "redis://:***@valkey:6379/0"


def test_what_is_no_secret_stays() -> None:
    plain = "risk-free task-list at http://127.0.0.1:8000/v1: 3 requests, mask-of-a-thing"
    assert scrubbed(plain) == plain


def test_rule_27_a_traceback_is_masked_too() -> None:
    try:
        raise ValueError(SECRETS[0])
    except ValueError:
        import sys

        failed = record("it failed", exc_info=sys.exc_info())
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(failed)
        assert "ValueError" in line and SECRETS[0] not in line


def test_a_json_line_names_the_request_that_it_is_about() -> None:
    identifier = text_of(new_request_id())
    line = json.loads(JsonFormatter().format(record("request %s: attempt at %s failed", identifier, "up")))
    assert line["request_id"] == identifier and line["message"] == f"request {identifier}: attempt at up failed"
    assert line["level"] == "info" and line["logger"] == "gateway.x" and line["time"].endswith("Z")


def test_a_message_of_many_lines_is_one_line_of_json() -> None:
    line = JsonFormatter().format(record("a\nb"))
    assert "\n" not in line and json.loads(line)["message"] == "a\nb"


def test_an_engines_words_are_json_where_the_log_is(capsys: pytest.CaptureFixture[str]) -> None:
    teller("json")("[engine local] 4 GiB of KV cache")
    assert json.loads(capsys.readouterr().err)["message"] == "[engine local] 4 GiB of KV cache"
    teller("text")("[engine local] ready")
    assert capsys.readouterr().err == "[engine local] ready\n"


def record(message: str, *values: object, **more: object) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "gateway.x", "levelname": "INFO", "msg": message, "args": values, **more})
