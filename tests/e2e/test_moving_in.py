"""Moving in from a LiteLLM proxy: its file is read, our configuration is served, and the books are filled, once."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

from tests.e2e.product import Product
from tests.gateway.cli.test_importing import CONFIG, ENVIRON


def test_a_litellm_file_is_applied_to_a_running_gateway_as_often_as_one_likes_and_once(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "litellm.yaml", tmp_path / "gateway.yaml"
    theirs.write_text(CONFIG)
    before = tmp_path / "before.yaml"
    before.write_text(
        'providers: {up: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}\n'
        "models: [{name: m, routes: [{provider: up, model: m}]}]\n"
    )
    product = Product(tmp_path / "var", config=before)
    try:
        product.wait_ready()
        for _ in range(2):
            product.metergate("import", "litellm", str(theirs), "--output", str(ours), "--apply")
        teams = json.loads(product.metergate("team", "list", "--json"))
        assert [each["name"] for each in teams if each["name"] != "default"] == ["research"]
        (budget,) = json.loads(product.metergate("budget", "list", "--json"))
        assert (budget["scope"], budget["amount"], budget["currency"], budget["hard"]) == ("all", "100", "USD", True)
        prices = json.loads(product.metergate("price", "list", "--provider", "openai", "--model", "gpt-4o", "--json"))
        current = {row["token_class"]: Decimal(row["amount"]) for row in prices if row["in_force"]}
        assert current == {"input": Decimal("2.5"), "output": Decimal("10")}
    finally:
        product.close()
    served = Product(tmp_path / "var", config=ours, environ=ENVIRON)
    try:
        served.wait_ready()
        with served.admin() as admin:
            rows = admin.get("/routes").json()["data"]
        assert {row["model"] for row in rows} == {"gpt-4o", "claude", "local"}
        assert next(row for row in rows if row["provider"] == "openai")["priced"] is True
    finally:
        served.close()
