"""The case the product was made for: list dollars settled as yuan one for one, beside what the official rate would have made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.product import ROOT, Product, running, until


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a scripted provider in a process of its own."""
    port_file = tmp_path_factory.mktemp("upstream") / "port"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.upstream_server", "--port-file", str(port_file)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    try:
        port = until(lambda: port_file.exists() and port_file.read_text().strip(), 20, "the scripted provider")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory, upstream: str) -> Iterator[Product]:
    """The product in front of it, without an engine."""
    folder = tmp_path_factory.mktemp("founding")
    config = folder / "metergate.yaml"
    config.write_text(
        "providers:\n"
        f"  deepseek: {{kind: openai, base_url: '{upstream}', api_key: 'env:DEEPSEEK_API_KEY'}}\n"
        "models:\n"
        "  - name: deepseek-chat\n"
        "    context_window: 131072\n"
        "    max_output_tokens: 8192\n"
        "    routes: [{provider: deepseek, model: deepseek-chat}]\n"
    )
    with running(folder / "var", config=config, environ={"DEEPSEEK_API_KEY": "sk-deepseek-secret"}) as product:
        yield product


@pytest.fixture(scope="module")
def key(product: Product) -> str:
    """A key of a team that settles in CNY, one yuan for one list dollar; made with the command line."""
    team = json.loads(product.metergate("team", "create", "search", "--currency", "CNY", "--json"))
    product.metergate("terms", "post", "USD", "CNY", "--team", team["id"], "--rate", "1")
    made = json.loads(
        product.metergate(
            "key", "create", team["id"], "ci", "--model", "deepseek-chat", "--tag", "project=search", "--json"
        )
    )
    key: str = made["key"]
    return key


def call(product: Product, key: str, script: str) -> tuple[dict[str, Any], str]:
    """One chat through the SDK; the usage row of it, and the cost header."""
    with openai.OpenAI(base_url=f"{product.url}/v1", api_key=key, max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="deepseek-chat", messages=[{"role": "user", "content": "你好"}], user=script
        )
    request_id = raw.headers["x-request-id"]

    def fetch() -> dict[str, Any] | None:
        with product.admin() as admin:
            answer = admin.get(f"/usage/requests/{request_id}")
        if answer.status_code == 404:
            return None
        row: dict[str, Any] = answer.raise_for_status().json()
        return row

    row: dict[str, Any] = until(fetch, 10, "the usage row")
    return row, raw.headers["x-metergate-cost"]


def test_a_million_output_tokens_of_deepseek_settle_at_one_to_one(product: Product, key: str) -> None:
    row, cost_header = call(product, key, "prompt=0;output=1000000")
    assert row["tokens"]["output"] == 1_000_000
    assert row["list"] == {"amount": "0.42", "currency": "USD"}
    assert row["policy"] == {"amount": "3.066", "currency": "CNY"}
    assert row["settled"] == {"amount": "0.42", "currency": "CNY"}
    assert cost_header == "0.42 CNY"
    saving = 1 - Fraction(row["settled"]["amount"]) / Fraction(row["policy"]["amount"])
    assert saving == 1 - 1 / Fraction("7.3")
    assert round(100 * saving, 4) == Fraction("86.3014")
    assert row["saving_percent"] == "86.3014"


def test_every_figure_names_the_rows_it_was_computed_from(product: Product, key: str) -> None:
    row, _ = call(product, key, "prompt=0;output=1000000")
    (price,) = row["price_rows"]
    assert (price["provider"], price["model"], price["token_class"]) == ("deepseek", "deepseek-chat", "output")
    assert (price["amount"], price["currency"], price["unit"]) == ("0.42", "USD", "mtok")
    assert price["source"].startswith("https://api-docs.deepseek.com/")
    (rate,) = row["rates"]
    assert (rate["base"], rate["quote"], rate["kind"], rate["rate"]) == ("USD", "CNY", "policy", "7.3")
    assert row["terms"]["policy"] == "fixed"
    assert row["terms"]["rate"] == "1"


def test_cached_input_is_priced_once_and_at_its_own_price(product: Product, key: str) -> None:
    row, _ = call(product, key, "prompt=1000000;cached=600000;output=0;text=")
    assert row["tokens"]["input"] == 400_000
    assert row["tokens"]["cache_read"] == 600_000
    assert row["list"] == {"amount": "0.1288", "currency": "USD"}  # 0.4 x 0.28 + 0.6 x 0.028
    assert row["settled"] == {"amount": "0.1288", "currency": "CNY"}


def test_a_posted_price_changes_the_next_row_and_no_earlier_one(product: Product, key: str) -> None:
    before, _ = call(product, key, "prompt=0;output=1000000")
    with product.admin() as admin:
        posted = admin.post(
            "/prices",
            json={
                "provider": "deepseek",
                "model": "deepseek-chat",
                "token_class": "output",
                "currency": "USD",
                "amount_per_mtok": "0.5",
                "effective_from": "2026-01-02T00:00:00Z",
            },
        )
        assert posted.status_code == 201, posted.text
        after, _ = call(product, key, "prompt=0;output=1000000")
        again = admin.get(f"/usage/requests/{before['id']}").raise_for_status().json()
    assert after["list"] == {"amount": "0.5", "currency": "USD"}
    assert again == before


def test_the_report_sums_what_the_rows_say(product: Product, key: str) -> None:
    call(product, key, "prompt=0;output=1000000")
    report = json.loads(product.metergate("usage", "report", "--group-by", "team", "--json"))
    rows = json.loads(product.metergate("usage", "requests", "--limit", "1000", "--json"))
    settled = sum((Fraction(row["settled"]["amount"]) for row in rows), Fraction(0))
    totals = [
        Fraction(money["amount"]) for bucket in report for money in bucket["settled"] if money["currency"] == "CNY"
    ]
    assert sum(totals, Fraction(0)) == settled > 0
    assert sum(bucket["requests"] for bucket in report) == len(rows)


def test_the_key_may_call_its_models_only_and_the_provider_key_stays_secret(product: Product, key: str) -> None:
    with product.caller(key) as caller:
        answer = caller.post(
            "/v1/chat/completions",
            json={
                "model": "deepseek-chat",
                "messages": [{"role": "user", "content": "x"}],
                "user": "status=401;quote=sk-deepseek-secret",
            },
        )
    assert answer.status_code == 502
    assert "sk-deepseek-secret" not in answer.text + str(answer.headers)
    assert "sk-deepseek-secret" not in product.text


def test_usage_show_prints_the_figures_for_people(product: Product, key: str) -> None:
    row, _ = call(product, key, "prompt=0;output=1000000")
    text = product.metergate("usage", "show", row["id"])
    for figure in (row["list"], row["policy"], row["settled"]):
        assert f"{figure['amount']} {figure['currency']}" in text


def test_the_month_is_stated_and_asked_about_from_the_shell(product: Product, key: str, tmp_path: Path) -> None:
    row, _ = call(product, key, "prompt=0;output=1000000")
    team, month = row["team_id"], row["at"][:7]
    draft = json.loads(product.metergate("statement", "draft", team, month, "--json"))
    line = next(each for each in draft["document"]["lines"] if each["token_class"] == "output")
    assert line["quantity"] >= 1_000_000
    assert line["unit_price"] == {"amount": "0.42", "currency": "USD"}
    assert line["saving_percent"] == "86.3014"
    number = str(draft["id"])
    assert "0.42 USD" in product.metergate("statement", "show", team, number)
    for form, first in (("csv", "statement,team_id"), ("focus", "BilledCost,"), ("html", "<!doctype html>")):
        target = tmp_path / f"statement.{form}"
        product.metergate("statement", "show", team, number, "--format", form, "--output", str(target))
        assert target.read_text().startswith(first)
    refused = product.metergate("statement", "issue", team, number, expect=1)
    assert "can be issued from" in refused
    assert "journal" in product.metergate("statement", "journals")
    span = ("--start", f"{month}-01T00:00:00Z", "--end", row["at"][:10] + "T23:59:59Z")
    terms = ("--base", "USD", "--quote", "CNY", "--rate", "7.3")
    (other,) = json.loads(product.metergate("usage", "what-if", *span, "--team", team, *terms, "--json"))
    settled, otherwise = other["actual"]["settled"][0], other["what_if"]["settled"][0]
    assert Fraction(otherwise["amount"]) == Fraction(settled["amount"]) * Fraction("7.3")


def test_a_price_file_is_looked_at_drafted_published_and_explained_from_the_shell(
    product: Product, tmp_path: Path
) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(
        "provider,model,token_class,currency,amount,effective_from\n"
        "deepseek,deepseek-v4,output,USD,0.84,2026-01-01T00:00:00Z\n"
    )
    assert "nothing was published" in product.metergate("price", "import", str(file), "--dry-run")
    draft = json.loads(product.metergate("price", "import", str(file), "--draft", "--json"))
    assert [each["change"] for each in draft["prices"]] == ["new"]
    published = json.loads(product.metergate("price", "publish", str(draft["id"]), "--json"))
    assert "deepseek-v4" in product.metergate("price", "diff", str(published["version"]))
    why = product.metergate("price", "explain", "deepseek", "deepseek-v4", "output")
    assert "applies" in why
    assert "0.84" in why


def test_a_wallet_is_filled_and_checked_and_a_row_corrected_from_the_shell(product: Product, key: str) -> None:
    team = json.loads(
        product.metergate("team", "create", "payer", "--currency", "CNY", "--billing", "prepaid", "--json")
    )["id"]
    product.metergate(
        "wallet",
        "top-up",
        team,
        "100",
        "CNY",
        "--external-id",
        "wire-1",
        "--method",
        "bank_transfer",
        "--reason",
        "May",
    )
    product.metergate("wallet", "adjust", team, "-7.5", "--reason", "late fee", "--actor", "ann")
    (code,) = json.loads(product.metergate("wallet", "codes", "create", "20", "CNY", "--json"))["codes"]
    product.metergate("wallet", "redeem", team, code)
    assert json.loads(product.metergate("wallet", "show", team, "--json"))["available"] == "112.5"
    assert "late fee" in product.metergate("wallet", "entries", team)
    assert json.loads(product.metergate("wallet", "check", team, "--json"))["agrees"] is True
    row, _ = call(product, key, "prompt=0;output=1000000")
    product.metergate("price", "sell", "post", row["team_id"], "--multiplier", "2", "--from", "2026-01-01T00:00:00Z")
    answer = json.loads(product.metergate("usage", "correct", row["id"], "--reason", "sold too cheap", "--json"))
    assert Fraction(answer["rows"][1]["settled"]["amount"]) == 2 * Fraction(row["settled"]["amount"])
    assert "sold too cheap" in product.metergate("usage", "corrections", row["id"])
