"""The pages in a real Chromium: every one in both themes and languages, at desk and phone width, and the playground's stream.

METERGATE_SCREENSHOTS=1 writes the pictures of docs/images again. Where no Chromium is installed these tests are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from gateway.admin.roles import RULES
from tests.e2e.product import ROOT, Product, until
from tests.gateway.dashboard.world import ADMIN_KEY, World

CHROMIUM = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)
PICTURES = ROOT / "docs" / "images"
DESK: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}
SHOWN = {
    "overview-en-light",
    "overview-zh-dark",
    "explore-en-light",
    "request-en-light",
    "team-en-light",
    "prices-zh-dark",
    "audit-en-light",
}
ZONE = "range=30d&tz=Asia/Shanghai"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt install chromium)")


def pages(world: World) -> dict[str, str]:
    return {
        "overview": f"?{ZONE}",
        "explore": f"/explore?group=model&{ZONE}",
        "requests": f"/requests?{ZONE}",
        "request": f"/requests/{world.request}?{ZONE}",
        "teams": f"/teams?{ZONE}",
        "team": f"/teams/{world.search}?{ZONE}",
        "prices": f"/prices?{ZONE}",
        "statements": f"/statements?{ZONE}",
        "routes": f"/routes?{ZONE}",
        "engine": f"/engine?{ZONE}",
        "playground": f"/playground?{ZONE}",
        "audit": f"/audit?check=yes&{ZONE}",
        "access": f"/access?{ZONE}",
    }


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Window:
    """A page that is signed in, with everything that its console said."""

    def __init__(self, browser: Browser, url: str, size: Any) -> None:
        self.url = url
        self.context = browser.new_context(viewport=size)
        self.page: Page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", lambda said: self._note(said.type, said.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.goto(f"{url}/dashboard/sign-in")
        self.page.fill("input[name=key]", ADMIN_KEY)
        self.page.click("button.primary")
        self.page.wait_for_url(re.compile(r"/dashboard$"))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.faults.append(f"{self.page.url}: {text}")

    def show(self, language: str, theme: str) -> None:
        self.page.goto(f"{self.url}/dashboard/show?language={language}&theme={theme}&back=/dashboard/routes")

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.url}/dashboard{path}")
        self.page.wait_for_load_state()
        return self.page


def picture(page: Page, name: str) -> None:
    if os.environ.get("METERGATE_SCREENSHOTS"):
        PICTURES.mkdir(exist_ok=True)
        size = page.viewport_size
        assert size is not None
        clip: Any = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 640)}
        page.screenshot(path=PICTURES / f"{name}.png", clip=clip)
        assert (PICTURES / f"{name}.png").stat().st_size < 150_000, name


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_is_sound_in_both_themes_and_languages_at_a_desk_and_on_a_phone(
    chromium: Browser, product: Product, world: World, language: str, theme: str
) -> None:
    window = Window(chromium, product.url, DESK)
    window.show(language, theme)
    axe = Axe()
    for name, path in pages(world).items():
        page = window.open(path)
        assert page.locator("html").get_attribute("lang") == {"en": "en", "zh": "zh-Hans"}[language]
        assert page.locator("html").get_attribute("data-theme") == theme
        if language == "zh":
            assert re.search(r"[\u4e00-\u9fff]", page.inner_text("h1")) or name == "team"
        if name == "prices":
            expect(page.locator("section [aria-live] table")).to_be_visible(timeout=30_000)
        found = axe.run(page).response["violations"]
        serious = [
            (each["id"], [node["html"][:120] for node in each["nodes"]][:3])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == [], f"{name} {language} {theme}"
        if f"{name}-{language}-{theme}" in SHOWN:
            picture(page, f"{name}-{language}")
        page.set_viewport_size(PHONE)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} {language}: {wide} px too wide for a phone"
        page.set_viewport_size(DESK)
    assert window.faults == []
    window.context.close()


def test_the_menu_is_closed_on_a_phone(chromium: Browser, product: Product, world: World) -> None:
    window = Window(chromium, product.url, PHONE)
    page = window.open(pages(world)["overview"])
    expect(page.locator("nav")).to_be_hidden()
    page.click(".menu summary")
    expect(page.locator("nav")).to_be_visible()
    page.click(".menu summary")
    picture(page, "overview-phone")
    assert window.faults == []
    window.context.close()


def test_the_api_s_description_is_read_and_tried_without_anything_from_outside(
    chromium: Browser, product: Product
) -> None:
    window = Window(chromium, product.url, DESK)
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))
    page = window.page
    page.goto(f"{product.url}/schema")
    expect(page.locator(".opblock")).to_have_count(len(RULES), timeout=30_000)
    picture(page, "schema-en")
    page.click("button.authorize")
    page.fill("input[aria-label=auth-bearer-value]", ADMIN_KEY)
    page.click(".auth-btn-wrapper button.authorize")
    page.click(".auth-btn-wrapper button.btn-done")
    me = page.locator(".opblock", has=page.locator("[data-path='/admin/v1/me']"))
    me.locator(".opblock-summary-control").click()
    me.locator("button.try-out__btn").click()
    me.locator("button.execute").click()
    expect(me.locator(".live-responses-table tbody .response-col_status")).to_contain_text("200", timeout=20_000)
    expect(me.locator(".live-responses-table")).to_contain_text('"role": "owner"')
    assert [url for url in asked if not url.startswith((product.url, "data:"))] == []
    assert window.faults == []
    window.context.close()


def test_the_playground_streams_and_its_cost_is_the_ledgers(chromium: Browser, product: Product, world: World) -> None:
    window = Window(chromium, product.url, DESK)
    page = window.open(f"/playground?{ZONE}")
    page.select_option("select[name=key_id]", world.keys["assistant"])
    page.select_option("select[name=model]", "deepseek-chat")
    page.fill("textarea[name=system]", "[[prompt=1000;output=40;chunks=8;gap_ms=30;text=word]]")
    page.fill("textarea[name=question]", "What does a question cost?")
    page.click("button.primary")
    expect(page.locator("#cost")).to_have_text(re.compile("^about "), timeout=20_000)
    expect(page.locator("#cost")).to_have_text(re.compile("^charged "), timeout=20_000)
    assert "word" in page.inner_text("#answer")
    assert page.inner_text("#tokens") == "1000 + 40"
    charged = page.inner_text("#cost").split()
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    query = {"key_id": world.keys["assistant"], "limit": "1"}

    def newest() -> Any:
        row = client.get("/admin/v1/usage/requests", params=query).json()["data"][0]
        return row if "playground" in row["tags"] else None

    with httpx.Client(base_url=product.url, headers=headers, trust_env=False) as client:
        row = until(newest, 20, "the row is recorded")
    assert (row["tokens"]["total"], row["tags"]) == (1040, {"playground": "admin"})
    assert (Decimal(charged[1]), charged[2]) == (Decimal(row["settled"]["amount"]), row["settled"]["currency"])
    page.fill("textarea[name=system]", "[[status=500]]")
    page.click("button.primary")
    page.wait_for_selector("#stop", state="hidden")
    expect(page.locator("#answer")).to_have_text(re.compile("."), timeout=20_000)
    assert "charged" not in page.inner_text("#cost")
    window.context.close()


def test_routes_refresh_and_lists_grow_without_loading_the_page(
    chromium: Browser, product: Product, world: World
) -> None:
    window = Window(chromium, product.url, DESK)
    page = window.open(f"/requests?{ZONE}")
    before = page.locator("tbody tr").count()
    page.click("tr.more button")
    expect(page.locator("tbody tr")).not_to_have_count(before)
    assert page.locator("tbody tr").count() > before + 10
    page = window.open("/routes")
    with page.expect_response(re.compile(r"part=rows"), timeout=20_000) as answer:
        pass
    assert answer.value.status == 200
    page = window.open(f"/explore?{ZONE}")
    page.wait_for_selector(".zoom canvas")
    assert window.faults == []
    window.context.close()


def test_what_was_refused_is_mended_where_it_is_shown(chromium: Browser, product: Product, world: World) -> None:
    window = Window(chromium, product.url, PHONE)
    page = window.open(f"/teams/{world.ads}")
    page.click("details.new summary >> text=New key")
    page.fill("details.new input[name=name]", "mended in the browser")
    page.fill("details.new input[name=max_parallel]", "many")
    page.click("details.new button.primary >> text=Create")
    expect(page.locator("[role=alert]")).to_contain_text("limits.max_parallel")
    assert page.evaluate("document.activeElement.name") == "max_parallel"
    serious = [
        each["id"] for each in Axe().run(page).response["violations"] if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
    page.fill("input[name=max_parallel]", "3")
    page.click("main button.primary")
    expect(page.locator("#secret")).to_have_text(re.compile("^sk-mg-"))
    assert [fault for fault in window.faults if "422" not in fault] == []
    window.context.close()


def test_a_keyboard_reaches_the_content_and_the_menu(chromium: Browser, product: Product, world: World) -> None:
    window = Window(chromium, product.url, DESK)
    page = window.open("/teams")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    window.context.close()
