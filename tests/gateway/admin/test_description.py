"""The OpenAPI document: every operation is described, and every example of it was really sent and answered.

METERGATE_EXAMPLES=1 writes the answers of `operations_answers.json` again.
"""

from __future__ import annotations

import os
import re
from typing import Any
from uuid import UUID

import jsonschema
import litestar
import msgspec
import pytest

from billing.ledger import record
from billing.teams import get_team
from billing.times import HOUR_US, now_us
from billing.usage import Usage
from billing.watermarks import raise_watermark
from gateway.admin.description import CONFIG, FOLDER, answers, description, operations
from gateway.admin.roles import RULES, Role
from gateway.admin.routes import admin_routers
from tests.billing.helpers import at, request_id
from tests.billing.world import request
from tests.gateway.admin.conftest import Gateway, Operator
from tests.gateway.rates.server import good, http, serving

Json = dict[str, Any]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def app(gateway: Gateway) -> litestar.Litestar:
    return litestar.Litestar(admin_routers(gateway), openapi_config=CONFIG)


@pytest.fixture
def document(app: litestar.Litestar) -> Json:
    made: Json = msgspec.json.decode(msgspec.json.encode(description(app)))
    return made


def each_operation(document: Json) -> dict[str, Json]:
    found = {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert set(found) == set(RULES)
    return found


def test_every_operation_and_parameter_says_what_it_is_for(document: Json) -> None:
    for name, operation in each_operation(document).items():
        assert len(operation["summary"]) > 5, name
        words, _, roles = operation["description"].rpartition("\n\nRoles: ")
        assert len(words) > 20, name
        assert set(re.findall(r"`(\w+)`", roles)) == {str(role) for role in Role if RULES[name].allows(role)}
        for parameter in operation["parameters"]:
            if "$ref" not in parameter:
                assert len(parameter["description"]) > 5, f"{name}: {parameter['name']}"
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


def test_every_write_shows_a_body_and_every_operation_an_answer_that_its_schema_allows(document: Json) -> None:
    shown = 0

    def check(value: Any, schema: Json, name: str) -> None:
        validator = jsonschema.Draft202012Validator({**schema, "components": document["components"]})
        faults = [error.message for error in validator.iter_errors(value)]
        assert faults == [], name

    for name, operation in each_operation(document).items():
        for content in operation.get("requestBody", {}).get("content", {}).values():
            check(content["examples"]["example"]["value"], content["schema"], name)
        good = next(answer for status, answer in operation["responses"].items() if status.startswith("2"))
        for kind, content in good["content"].items():
            example = content["examples"]["example"]["value"]
            if kind == "application/json":
                check(example, content["schema"], name)
            shown += 1
        for status, answer in operation["responses"].items():
            assert status.startswith("2") or answer["$ref"] == f"#/components/responses/{status}", name
    assert shown >= len(RULES)
    for answer in document["components"]["responses"].values():
        (content,) = answer["content"].values()
        check(content["examples"]["example"]["value"], content["schema"], answer["description"])


TEAM, KEY, REQUEST = "team_4f0c2d9b7a61e835", "key_9d3b71c05ea2f648", "019bf47d-21c0-7c3e-9f21-5b8d4e6a7c90"
STATEMENT_MONTH = "2026-01-20T12:00:00Z"


class Story:
    """Sends each operation's example in the file's order. `real` is what stands for the examples' ids in this world."""

    def __init__(self, gateway: Gateway, operator: Operator) -> None:
        self.gateway, self.operator = gateway, operator
        self.real: dict[str, str] = {"local": "local"}
        self.path: dict[str, str] = {}
        self.answers: Json = {}

    async def tell(self) -> Json:
        for name, words in operations().items():
            if name == "parameters":
                continue
            before = getattr(self, "before_" + re.sub(r"\W+", "_", name).strip("_").lower(), None)
            if before is not None:
                await before()
            await self.send(name, words)
        return self.answers

    async def send(self, name: str, words: Json) -> None:
        method, _, path = name.partition(" ")
        path = re.sub(r"\{(\w+)\}", lambda found: self.path[found[1]], path)
        body = self.renamed(words.get("body"), self.real) if method != "GET" else None
        headers = {"authorization": self.operator.authorization}
        answer = await self.operator.client.request(method, path, json=body, params=words.get("query"), headers=headers)
        assert answer.status_code in (200, 201), f"{name}: {answer.status_code} {answer.text}"
        shown = answer.json() if answer.headers["content-type"] == "application/json" else answer.text
        self.learn(name, shown)
        self.answers[name] = self.renamed(shown, {real: example for example, real in self.real.items()})

    def learn(self, name: str, answer: Any) -> None:
        match name:
            case "POST /admin/v1/teams":
                self.real[TEAM] = self.path["team_id"] = answer["id"]
            case "POST /admin/v1/keys":
                self.real[KEY] = self.path["key_id"] = answer["id"]
                self.real["sk-mg-4f0c2d9b7a61e835-the-secret-is-shown-this-once"] = answer["key"]
            case "POST /admin/v1/price-books/drafts":
                self.path["draft_id"] = str(answer["id"])
            case "POST /admin/v1/budgets":
                self.path["budget_id"] = str(answer["id"])
            case "POST /admin/v1/usage/rerating":
                self.real["the plan of the look"] = answer["plan"]
            case "POST /admin/v1/wallets/{team_id}/top-ups":
                self.path["entry_id"] = str(answer["id"])
            case "POST /admin/v1/redemption-codes":
                self.path["batch_id"] = str(answer["id"])
                self.real["the code"] = answer["codes"][0]
                self.real["another code"] = answer["codes"][1]
            case "POST /admin/v1/statements/{team_id}":
                self.path["statement_id"] = str(answer["id"])
            case "POST /admin/v1/tokens":
                self.path["token_id"] = answer["id"]
                self.real["sk-mg-op-the-token-is-shown-this-once"] = answer["token"]

    @staticmethod
    def renamed(value: Any, names: dict[str, str]) -> Any:
        text = msgspec.json.encode(value).decode()
        for one, other in sorted(names.items(), key=lambda pair: -len(pair[0])):
            text = text.replace(one, other)
        return msgspec.json.decode(text)

    async def before_post_admin_v1_price_books_drafts_draft_id_discard(self) -> None:
        words = operations()["POST /admin/v1/price-books/drafts"]
        draft = await self.operator.post("/price-books/drafts", words["body"])
        self.path["draft_id"], self.path["version"] = str(draft["id"]), "2"

    async def before_get_admin_v1_usage(self) -> None:
        await self.operator.post("/prices", {**PRICE, "token_class": "input", "amount_per_mtok": "0.28"})
        for moment in (STATEMENT_MONTH, None):
            async with self.gateway.database.begin() as connection:
                team = await get_team(connection, self.path["team_id"])
                assert team is not None
                books = self.gateway.catalog.snapshot.books
                identity = request_id(at(moment)) if moment else UUID(REQUEST)
                made = request(
                    books, team, "deepseek-chat", Usage(input=1_200_000, output=340_000), moment or 0, identity
                )
                await record(connection, [msgspec.structs.replace(made, key_id=self.path["key_id"])])
            self.path["request_id"] = str(identity)

    async def before_post_admin_v1_usage_requests_request_id_corrections(self) -> None:
        await self.operator.post("/prices", {**PRICE, "amount_per_mtok": "0.40", "supersede": True})

    async def before_post_admin_v1_usage_rerating(self) -> None:
        await self.operator.post("/prices", {**PRICE, "amount_per_mtok": "0.38", "supersede": True})

    async def before_get_admin_v1_reports_break_even(self) -> None:
        """A request that the engine served, of an hour ago."""
        async with self.gateway.database.begin() as connection:
            team = await get_team(connection, self.path["team_id"])
            assert team is not None
            books, usage = self.gateway.catalog.snapshot.books, Usage(input=900, output=300, compute_us=2_000_000)
            made = request(books, team, "in-house", usage, now_us() - HOUR_US)
            served = {"provider": "local", "provider_model": "smollm2-135m-instruct"}
            attempt = msgspec.structs.replace(made.attempts[0], **served)
            await record(connection, [msgspec.structs.replace(made, **served, attempts=(attempt,))])

    async def before_post_admin_v1_statements_team_id_statement_id_issue(self) -> None:
        async with self.gateway.database.begin() as connection:
            await raise_watermark(connection, "gateway-0", at("2026-06-01T00:00:00Z"))

    async def before_post_admin_v1_statements_team_id_statement_id_discard(self) -> None:
        draft = await self.operator.post(f"/statements/{self.path['team_id']}", {"month": "2026-02"})
        self.path["statement_id"] = str(draft["id"])


PRICE: Json = {
    "provider": "deepseek",
    "model": "deepseek-chat",
    "token_class": "output",
    "currency": "USD",
    "effective_from": "2026-01-01T00:00:00Z",
}


async def test_every_example_is_taken_and_answered_in_the_shape_that_is_shown(
    gateway: Gateway, operator: Operator
) -> None:
    async with serving(http("200 OK", good())) as feed:
        gateway.settings.rates.feeds[:] = [feed]
        told = await Story(gateway, operator).tell()
    if os.environ.get("METERGATE_EXAMPLES"):
        encoded = msgspec.json.format(msgspec.json.encode(told), indent=1)
        (FOLDER / "operations_answers.json").write_bytes(encoded + b"\n")
    for name, shown in answers().items():
        assert shape(told[name], shown), f"{name}: {told[name]} is not shaped as {shown}"
    assert set(told) == set(answers()) == set(RULES)


def shape(one: Any, other: Any) -> bool:
    """Whether two JSON values have the same names and types; null, and a list without entries, fit any."""
    if one is None or other is None:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(shape(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return not one or not other or shape(one[0], other[0])
    return type(one) is type(other)
