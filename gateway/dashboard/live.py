"""What is going on at this moment: the routes' health, and each engine's batch, cache and queue. Both refresh themselves."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

import httpx
from litestar import Controller, Response, get

from gateway.dashboard.app import Seen
from gateway.dashboard.inside import Json
from gateway.dashboard.visit import Visit

TIMEOUT_S: Final = 2.0
_SAMPLE: Final = re.compile(r"^(vllm:|metergate_engine_)([a-z_0-9]+)(?:\{[^}]*\})? ([0-9.eE+\-]+)$", re.MULTILINE)
"""vLLM's names, which our engine speaks too, and our own."""


class LiveController(Controller):
    path = "/"

    @get("/routes", include_in_schema=False)
    async def routes(self, visit: Seen) -> Response[str]:
        rows = (await visit.api.get("/routes"))["data"]
        return visit.page("route_rows" if "part" in visit.look.query else "routes", rows=rows)

    @get("/engine", include_in_schema=False)
    async def engine(self, visit: Seen) -> Response[str]:
        visit.require("GET /admin/v1/routes")
        engines = [await _engine(visit, name) for name in _names(visit)]
        return visit.page("engine_cards" if "part" in visit.look.query else "engine", engines=engines)


def _names(visit: Visit) -> list[str]:
    return [name for name, each in visit.services.router.providers.items() if each.settings.kind == "engine"]


async def _engine(visit: Visit, name: str) -> Json:
    """What the engine's own metrics say; `up` is False when nobody answers there."""
    provider = visit.services.router.providers[name]
    found: Json = {"name": name, "model": provider.settings.model, "up": False, "figures": {}, "address": None}
    if provider.base_url is None:
        return found
    base = str(provider.base_url).removesuffix("/").removesuffix("/v1")
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
            answer = await client.get(f"{base}/metrics")
            answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL):
        return found
    return {**found, "up": True, "figures": figures(answer.text)}


def figures(exposition: str) -> Json:
    """Whole numbers and percents of an engine's own metrics; None for what this engine does not tell."""
    sums: dict[str, float] = {}
    for prefix, sample, value in _SAMPLE.findall(exposition):
        sums[prefix + sample] = sums.get(prefix + sample, 0.0) + float(value)

    def whole(name: str) -> int | None:
        value = sums.get(f"vllm:{name}", sums.get(f"metergate_engine_{name}"))
        return None if value is None else int(value)

    queries, hits = whole("prefix_cache_queries_total"), whole("prefix_cache_hits_total")
    used = sums.get("vllm:kv_cache_usage_perc")
    return {
        "running": whole("num_requests_running"),
        "waiting": whole("num_requests_waiting"),
        "kv": None if used is None else Decimal(str(round(used * 100, 1))),
        "blocks": whole("kv_blocks"),
        "free": whole("kv_blocks_free"),
        "hits": Decimal(hits * 1000 // queries) / 10 if hits is not None and queries else None,
        "prompt": whole("prompt_tokens_total"),
        "generated": whole("generation_tokens_total"),
        "preempted": whole("num_preemptions_total"),
    }
