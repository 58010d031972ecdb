"""The admin API's own description: what Litestar reads off the handlers, with the words and examples of `operations.yaml`.

Every operation says what it is for, who may call it, how it is refused, and shows a body and an answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import litestar
import msgspec
import yaml
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from gateway.admin.idempotency import HEADER, MAX_KEY
from gateway.admin.roles import RULES, Role

Json = dict[str, Any]

FOLDER: Final = Path(__file__).parent
METHODS: Final = ("get", "post", "patch")
_BEARER: Final = SecurityScheme(type="http", scheme="bearer", description="The admin key, or a role's token.")
CONFIG: Final = OpenAPIConfig(
    title="Metergate",
    version="1",
    path="/schema",
    render_plugins=[JsonRenderPlugin(path="/openapi.json")],
    components=Components(security_schemes={"key": _BEARER}),
    security=[{"key": []}],
)
_ABOUT: Final = (
    "The admin API: who may call, at which prices, what was used, and what is billed. Money, prices and rates are decimal "
    "strings, times are RFC 3339. Lists page by `cursor`. Unknown fields and query parameters are a 422 that names them. A write "
    "under an `Idempotency-Key` is done once; an edit under `If-Match` is a 412 when somebody changed the thing meanwhile."
)
_ERROR: Final[Json] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "description": "What is wrong and what to do about it."},
                "type": {"type": "string"},
                "param": {
                    "type": ["string", "null"],
                    "description": "The field, parameter or header that it is about.",
                },
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_REFUSALS: Final[dict[str, tuple[str, str, str | None, str]]] = {
    "400": ("The body is no JSON.", "invalid_request_error", None, "invalid_json"),
    "401": (
        "No credential, or one that is unknown, revoked or expired.",
        "authentication_error",
        None,
        "invalid_api_key",
    ),
    "403": ("The role may not do this.", "permission_error", None, "role_not_allowed"),
    "404": ("Nothing stands under this id, or it is another team's.", "invalid_request_error", "id", "not_found"),
    "409": ("What is there does not allow it.", "invalid_request_error", None, "conflict"),
    "412": ("If-Match names another version.", "invalid_request_error", "If-Match", "changed_meanwhile"),
    "422": (
        "A field or parameter cannot be accepted; `param` names it.",
        "invalid_request_error",
        "name",
        "invalid_value",
    ),
}
_HEADERS: Final[Json] = {
    "IdempotencyKey": {
        "name": HEADER,
        "in": "header",
        "required": False,
        "description": "Done once a day and key: said again, the write is answered again (`idempotent-replayed: true`).",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[A-Za-z0-9_.:-]+$"},
        "example": "7d1f0c52",
    },
    "IfMatch": {
        "name": "If-Match",
        "in": "header",
        "required": False,
        "description": "The ETag that was read: the edit is a 412 when somebody changed the thing meanwhile.",
        "schema": {"type": "string", "pattern": '^("[0-9a-f]{32}"|\\\\*)$'},
        "example": "*",
    },
}


def operations() -> Json:
    """`operations.yaml`: by `METHOD /path`, and `parameters` by name."""
    found: Json = yaml.safe_load((FOLDER / "operations.yaml").read_text(encoding="utf-8"))
    return found


def answers() -> Json:
    """What each operation answered when its example was last sent: JSON, or a text."""
    found: Json = msgspec.json.decode((FOLDER / "operations_answers.json").read_bytes())
    return found


def description(app: litestar.Litestar) -> Json:
    """The OpenAPI document of an application that was made with `CONFIG`."""
    document: Json = app.openapi_schema.to_schema()
    document["info"]["description"] = _ABOUT
    components = document["components"]
    components["schemas"]["Error"] = _ERROR
    components["parameters"] = _HEADERS
    components["responses"] = {status: _refusal(status) for status in _REFUSALS}
    words, shown = operations(), answers()
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                name = f"{method.upper()} {path}"
                _describe(methods[method], name, words[name], words["parameters"], shown.get(name))
    return document


def _describe(operation: Json, name: str, words: Json, parameters: dict[str, str], answer: object) -> None:
    rule, method = RULES[name], name.partition(" ")[0]
    may = ", ".join(f"`{role}`" for role in Role if rule.allows(role))
    operation["description"] = f"{words['about'].strip()}\n\nRoles: {may}."
    asked = operation.setdefault("parameters", [])
    asked += words.get("parameters", [])
    for parameter in asked:
        parameter.setdefault("description", parameters.get(parameter["name"], ""))
        if parameter["name"] in words.get("query", {}):
            parameter["example"] = words["query"][parameter["name"]]
    if method != "GET":
        asked.append({"$ref": "#/components/parameters/IdempotencyKey"})
    if method == "PATCH":
        asked.append({"$ref": "#/components/parameters/IfMatch"})
    if "requestBody" in operation:
        for content in operation["requestBody"]["content"].values():
            content["examples"] = {"example": {"value": words["body"]}}
    responses = operation["responses"]
    responses.pop("400", None)
    for response in responses.values():
        for kind, content in response.get("content", {}).items():
            if answer is not None and isinstance(answer, str) == (kind != "application/json"):
                content["examples"] = {"example": {"value": answer}}
    for status in _refused_with(method, path_names="{" in name, body="requestBody" in operation):
        responses[status] = {"$ref": f"#/components/responses/{status}"}


def _refused_with(method: str, *, path_names: bool, body: bool) -> list[str]:
    found = ["401", "403", "422"]
    found += ["404"] if path_names else []
    found += ["400"] if body else []
    found += ["409"] if method != "GET" else []
    found += ["412"] if method == "PATCH" else []
    return sorted(found)


def _refusal(status: str) -> Json:
    words, kind, param, code = _REFUSALS[status]
    example = {"error": {"message": words, "type": kind, "param": param, "code": code}}
    schema = {"$ref": "#/components/schemas/Error"}
    content = {"application/json": {"schema": schema, "examples": {"example": {"value": example}}}}
    return {"description": words, "content": content}
