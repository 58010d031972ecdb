"""The settings of rate feeds: where market rates come from, and what a file of them must be like."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from billing.currencies import MINOR_DIGITS
from gateway.settings_source import Source, check_networks

ECB_DAILY: Final = "https://www.ecb.europa.eu/stats/eurofxref/eurofxref-daily.xml"


class RateFeedSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where market rates come from: the ECB's XML, or JSON of `base`, `date` and `rates` (billing/rate_feed.py)."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    format: Literal["ecb", "json"]
    url: str | None = None
    """By default the bank's own, for the format `ecb`."""
    currencies: list[str] = []
    """Those that a file must have, and that are taken of it; none: all that it has."""
    max_step_percent: Annotated[int, Meta(ge=1, le=1000)] = 10
    """A rate further off the last one refuses its whole file."""
    networks: list[str] = []
    """Networks beside the public internet in which the feed may be."""
    timeout_s: Annotated[float, Meta(gt=0, le=120)] = 20.0

    @property
    def address(self) -> str:
        return self.url or ECB_DAILY

    def allowed(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(ip_network(text, strict=False) for text in self.networks)


class RateSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    feeds: Annotated[list[RateFeedSettings], Meta(max_length=20)] = []
    every_s: Annotated[int, Meta(ge=60, le=86_400)] = 3600


def check_feeds(feeds: list[RateFeedSettings], source: Source) -> None:
    """What no single value shows. Raises `SettingsError`."""
    for index, feed in enumerate(feeds):
        path = ("rates", "feeds", index)
        if feed.name in [each.name for each in feeds[:index]]:
            raise source.error((*path, "name"), f"there are two feeds {feed.name!r}")
        if feed.url is None and feed.format != "ecb":
            raise source.error(path, "lacks `url`, which a feed of this format needs")
        check_networks(feed.networks, source, (*path, "networks"))
        parts = urlsplit(feed.address)
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or parts.fragment:
            raise source.error((*path, "url"), "must be an https:// address without user and fragment")
        if parts.scheme == "http" and not feed.networks:
            raise source.error((*path, "url"), "http:// is for feeds in the feed's own `networks`; use https://")
        unknown = [code for code in feed.currencies if code not in MINOR_DIGITS]
        if unknown:
            raise source.error((*path, "currencies"), f"{unknown[0]!r} is no ISO 4217 currency code")
