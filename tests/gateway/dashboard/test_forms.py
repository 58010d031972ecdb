"""Every form that a page shows: found by reading the pages, filled in with what is meant to break them, and sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.product import Product
from tests.gateway.dashboard.world import ADMIN_KEY, NASTY, World, build, serving

WORDS = {
    "currency": "USD",
    "settlement_currency": "USD",
    "base": "EUR",
    "quote": "JPY",
    "tz": "UTC",
    "month": "2026-01",
}
"""What fields with a pattern take."""
LAST = ("/revoke", "/end", "/discard")
"""What takes away what other forms are about."""


@dataclass
class Form:
    """One `<form method="post">`: where it goes, its hidden fields, and the names and attributes of those to fill in."""

    action: str
    hidden: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, dict[str, str]] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return urlsplit(self.action).path

    def filled(self, text: str) -> dict[str, str]:
        """`text` wherever a text can stand; numbers, codes and choices as they are meant."""
        found = dict(self.hidden)
        for name, attributes in self.inputs.items():
            if attributes.get("inputmode") in ("decimal", "numeric"):
                found[name] = "3"
            elif name in WORDS:
                found[name] = WORDS[name]
            elif attributes.get("type") == "checkbox":
                found[name] = attributes.get("value", "on")
            elif not attributes.get("placeholder", "").startswith("20"):  # a moment; left out it is now
                found[name] = text
        return found | {name: next((each for each in values if each), "") for name, values in self.choices.items()}


class Forms(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.links: list[str] = []
        self._form: Form | None = None
        self._select = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._form = Form(given.get("action", "")) if given.get("method") == "post" else None
            self.forms += [] if self._form is None else [self._form]
        elif tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif self._form is None:
            return
        elif tag == "input" and given.get("type") == "hidden":
            self._form.hidden[given["name"]] = given.get("value", "")
        elif tag in ("input", "textarea") and "name" in given:
            self._form.inputs[given["name"]] = given
        elif tag == "select":
            self._select = given["name"]
            self._form.choices[self._select] = []
        elif tag == "option" and self._select in self._form.choices:
            self._form.choices[self._select].append(given.get("value", "text"))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "select":
            self._select = ""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """One of its own: what the forms do stays done."""
    return build(tmp_path_factory.mktemp("world"), "http://127.0.0.1:9", requests=30)


@pytest.fixture(scope="module")
def browser(world: World) -> Iterator[httpx.Client]:
    with serving(world) as product, httpx.Client(base_url=product.url, trust_env=False, timeout=30) as client:
        client.post("/dashboard/sign-in", data={"key": ADMIN_KEY})
        yield client
        _nothing_failed(product)


def _nothing_failed(product: Product) -> None:
    assert "Traceback" not in product.text


def pages(world: World) -> list[str]:
    names = ("", "/explore", "/requests", "/teams", "/prices", "/prices/drift", "/statements", "/routes", "/engine")
    own = (f"/teams/{world.search}", f"/requests/{world.request}", f"/statements?team_id={world.search}")
    return [*names, "/playground", "/audit", "/access", *own]


def shown(browser: httpx.Client, world: World) -> dict[str, Forms]:
    found = {}
    for path in pages(world):
        answer = browser.get(f"/dashboard{path}")
        assert answer.status_code == 200, f"{path}: {answer.text[-300:]}"
        assert "<img src=x" not in answer.text, path
        found[path] = Forms(answer.text)
    return found


def test_rule_29_whatever_is_written_into_any_form_is_text_on_every_page(browser: httpx.Client, world: World) -> None:
    month = {"csrf": next(form.hidden["csrf"] for form in Forms(browser.get("/dashboard").text).forms)}
    browser.post("/dashboard/statements", data={**month, "team_id": world.search, "month": "2026-11"})
    forms = {form.path: form for each in shown(browser, world).values() for form in each.forms}
    assert len(forms) > 15
    taken = 0
    way_out = forms.pop("/dashboard/sign-out")
    for form in sorted(forms.values(), key=lambda form: form.path.endswith(LAST)):
        assert form.path.startswith("/dashboard"), form.action
        assert len(form.hidden["csrf"]) == 64, form.action
        for text in (NASTY, "'; DROP TABLE teams; --", "{{ 7 * 7 }}", "=HYPERLINK(1)"):
            answer = browser.post(form.action, data=form.filled(text))
            assert answer.status_code in (200, 303, 403, 404, 409, 422), f"{form.action}: {answer.status_code}"
            assert "<img src=x" not in answer.text, form.action
            taken += answer.status_code in (200, 303)
            if answer.status_code >= 400:
                assert 'role="alert"' in answer.text or answer.status_code == 404, form.action
        if not form.path.endswith(LAST):
            shown(browser, world)
    assert taken > 25
    browser.post(way_out.action, data=way_out.hidden)
    assert browser.get("/dashboard").status_code == 303


def test_what_was_refused_can_be_mended_where_it_is_shown_and_sent_again(browser: httpx.Client, world: World) -> None:
    browser.post("/dashboard/sign-in", data={"key": ADMIN_KEY})
    path = f"/dashboard/teams/{world.ads}/keys?range=7d&tz=UTC"
    csrf = Forms(browser.get("/dashboard").text).forms[0].hidden["csrf"]
    for sent, wrong, mended in (
        ({"name": "mended", "max_parallel": "many", "models": "gpt-4.1, x"}, "max_parallel", "3"),
        ({"max_parallel": "4"}, "name", "mended too"),
    ):
        refused = browser.post(path, data={"csrf": csrf, **sent})
        assert (refused.status_code, "Nothing was changed." in refused.text) == (422, True)
        (form,) = [each for each in Forms(refused.text).forms if each.path != "/dashboard/sign-out"]
        assert {name: each.get("value") for name, each in form.inputs.items()} == {wrong: "", **sent}
        assert [name for name, each in form.inputs.items() if "aria-invalid" in each] == [wrong]
        again = {name: each.get("value", "") for name, each in form.inputs.items()} | {wrong: mended}
        assert browser.post(form.action, data={**form.hidden, **again}).status_code == 200
    keys = {each["name"]: each for each in _keys(browser, world.ads)}
    assert (keys["mended"]["limits"]["max_parallel"], keys["mended"]["models"]) == (3, ["gpt-4.1", "x"])
    assert keys["mended too"]["limits"]["max_parallel"] == 4


def _keys(browser: httpx.Client, team: str) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    rows: list[dict[str, Any]] = browser.get("/admin/v1/keys", params={"team_id": team}, headers=headers).json()["data"]
    return rows


def test_no_link_of_any_page_leads_outside(browser: httpx.Client, world: World) -> None:
    browser.post("/dashboard/sign-in", data={"key": ADMIN_KEY})
    for path, page in shown(browser, world).items():
        for link in page.links:
            assert link.startswith(("/dashboard", "/schema", "#")) or (
                path == "/prices" and link.startswith("https://")
            ), link
