"""The settings: what a file and the environment may say, typed, checked once at the edge and trusted from there on.

`load_settings` reads one YAML file (or the embedded `default.yaml`), lays the environment twins over it
(`METERGATE_DATABASE_URL`, `METERGATE_JOURNAL__FSYNC`, `METERGATE_PROVIDERS__DEEPSEEK__BASE_URL`,
`METERGATE_MODELS__DEEPSEEK_CHAT__CONTEXT_WINDOW`) and returns frozen structs. Whatever is unknown, misspelt or impossible
raises `SettingsError`, whose message names the file, the line, the setting and the remedy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Meta, Struct, field

from gateway.secret import MASK, Secret
from gateway.settings_rates import RateFeedSettings, RateSettings, check_feeds
from gateway.settings_routing import Count, ModelSettings, ProviderSettings, RouteSettings, Seconds, check_routing
from gateway.settings_source import Path_, SettingsError, Source, build, check_networks, read_source, resolve_text

__all__ = [
    "CacheSettings",
    "JournalSettings",
    "LimitSettings",
    "ModelSettings",
    "ProviderSettings",
    "RateFeedSettings",
    "RateSettings",
    "RetentionSettings",
    "RouteSettings",
    "Secret",
    "Settings",
    "SettingsError",
    "WebhookSettings",
    "load_resolvable",
    "load_settings",
]

DEFAULT_CONFIG: Final = Path(__file__).with_name("default.yaml")


class JournalSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    fsync: Literal["batched", "record"] = "batched"
    fsync_ms: Annotated[int, Meta(ge=1, le=10_000)] = 20
    """Under `batched`, a power loss costs at most about this much; a killed process costs nothing under either."""
    retain_hours: Annotated[int, Meta(ge=0)] = 48
    when_full: Literal["refuse", "spill"] = "refuse"
    max_bytes: Annotated[int, Meta(ge=1 << 20)] = 4 << 30


class LimitSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    when_store_down: Literal["closed", "open", "local_share"] = "closed"
    default_output_reserve: Count = 4096
    """Output tokens reserved when neither the caller nor the model says a maximum."""
    budget_thresholds: Annotated[list[Annotated[int, Meta(ge=1, le=1000)]], Meta(max_length=20)] = field(
        default_factory=lambda: [50, 80, 100]
    )
    """At these percentages of its amount a budget is told of, where it says nothing else itself."""


class WebhookSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where events go (a budget's threshold, a wallet's low balance), each signed with `secret`. Without a `url` nowhere."""

    url: str | None = None
    secret: Secret | None = None
    networks: list[str] = []
    """Networks beside the public internet in which the receiver may be."""
    timeout_s: Annotated[float, Meta(gt=0, le=30)] = 10.0

    def allowed(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(ip_network(text, strict=False) for text in self.networks)


class PriceDriftSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The alarm for prices that differ from what others list."""

    known: Path | None = None
    """The differences that stand on purpose, as `metergate price drift --known FILE --acknowledge NOTE` writes them."""


class OidcSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Signing in to the dashboard through an OpenID Connect provider. Without an `issuer` only keys and tokens open it."""

    issuer: str | None = None
    client_id: str = ""
    client_secret: Secret | None = None
    public_url: str = ""
    """Where browsers find this gateway, such as https://gateway.example: the provider sends them to /dashboard/oidc there."""
    name: Annotated[str, Meta(min_length=1, max_length=60)] = "single sign-on"
    scopes: list[str] = field(default_factory=lambda: ["openid", "email", "profile"])
    claim: Annotated[str, Meta(min_length=1)] = "groups"
    """The claim of the id token whose values are looked up in `roles`."""
    roles: dict[str, str] = {}
    """Value → owner, billing, operator, viewer, or team_admin:TEAM_ID. Who has none of them is not let in."""


class TelemetrySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Traces and GenAI metrics over OTLP/HTTP. Without an `endpoint` none."""

    endpoint: str | None = None
    """The receiver's base URL, such as http://collector:4318."""
    headers: dict[str, Secret] = {}
    service: Annotated[str, Meta(min_length=1, max_length=200)] = "metergate"
    share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Of the requests whose caller sends no trace of its own."""


class CacheSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How answers are kept for the models that say `cache`."""

    ttl_s: Seconds = 3600.0
    max_bytes: Count = 64 << 20
    """In memory, where there is no Redis."""
    max_answer_bytes: Count = 1 << 20


class RetentionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    usage_days: Annotated[int, Meta(ge=62)] | None = None
    """Single usage rows older than this are deleted, in chunks; null keeps them for ever. Sums and statements stay in any case.
    At least two months, so that a month's rows are there while its statement is made."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    home: Path = Path("var")
    listen: str = "127.0.0.1:8000"
    admin_listen: str | None = None
    database_url: str = ""
    """After loading never empty: without one, `metergate.db` under `home`."""
    redis_url: str | None = None
    admin_key: Secret | None = None
    key_pepper: Secret | None = None
    metrics_token: Secret | None = None
    providers: dict[str, ProviderSettings] = {}
    models: list[ModelSettings] = []
    default_model: str | None = None
    """What serves a request for a model that is not listed; without it that is a 404."""
    journal: JournalSettings = field(default_factory=JournalSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    webhook: WebhookSettings = field(default_factory=WebhookSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    oidc: OidcSettings = field(default_factory=OidcSettings)
    rates: RateSettings = field(default_factory=RateSettings)
    price_drift: PriceDriftSettings = field(default_factory=PriceDriftSettings)
    trusted_proxies: list[str] = []
    """Addresses or networks whose `x-forwarded-for` is believed."""
    auth_stale_s: Annotated[int, Meta(ge=1)] = 900
    """How long a cached key serves while the database is away."""
    shutdown_grace_s: Count = 60
    """After SIGTERM running requests have so long. No longer than what kills the process allows it."""
    request_max_bytes: Annotated[int, Meta(ge=1024)] = 32 << 20
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    def proxy_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(ip_network(text, strict=False) for text in self.trusted_proxies)

    def price_list(self, provider: str) -> str:
        """The price list of a provider: its `price_as`, or its own name."""
        return self.providers[provider].price_as or provider

    def __repr__(self) -> str:
        redis = redact_url(self.redis_url) if self.redis_url else None
        return (
            f"Settings(home={str(self.home)!r}, database_url={redact_url(self.database_url)!r}, redis_url={redis!r}, "
            f"providers={list(self.providers)}, models={[model.name for model in self.models]})"
        )


def load_settings(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of a file (the embedded default without one) under the environment's twins.

    Raises `SettingsError`. Secrets written `env:NAME` or `file:/path` are read now; calling again reads them afresh.
    """
    return _load(_source(path, environ))


def load_resolvable(
    path: Path | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Settings, dict[Path_, SettingsError]]:
    """The settings with every `env:NAME` and `file:/path` that cannot be read left as it is written, and why, by where it stands.

    Raises `SettingsError` for whatever else is wrong.
    """
    source = _source(path, environ)
    unresolved: dict[Path_, SettingsError] = {}
    source.unresolved = unresolved
    return _load(source), unresolved


def _source(path: Path | None, environ: Mapping[str, str] | None) -> Source:
    return read_source(path or DEFAULT_CONFIG, os.environ if environ is None else environ, Settings)


def _load(source: Source) -> Settings:
    settings = build(Settings, source)
    assert isinstance(settings, Settings)
    database_url = resolve_text(settings.database_url, source, ("database_url",))
    redis_url = settings.redis_url and resolve_text(settings.redis_url, source, ("redis_url",))
    settings = msgspec.structs.replace(
        settings,
        database_url=database_url or f"sqlite:///{settings.home / 'metergate.db'}",
        redis_url=redis_url or None,
    )
    _check(settings, source)
    return settings


def redact_url(url: str) -> str:
    """The URL with its password masked, fit for a log line."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:{MASK}@{host}"))


def _check(settings: Settings, source: Source) -> None:
    """What no single value shows: schemes, addresses, and names that must exist."""
    _check_url(settings.database_url, ("sqlite", "postgresql", "postgres"), source, "database_url")
    if settings.redis_url is not None:
        _check_url(settings.redis_url, ("redis", "rediss", "unix"), source, "redis_url")
    for name in ("listen", "admin_listen"):
        if getattr(settings, name) is not None:
            _check_listen(getattr(settings, name), source, name)
    check_networks(settings.trusted_proxies, source, ("trusted_proxies",))
    _check_webhook(settings.webhook, source)
    _check_oidc(settings.oidc, source)
    if settings.telemetry.endpoint is not None:
        parts = urlsplit(settings.telemetry.endpoint)
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.query:
            raise source.error(
                ("telemetry", "endpoint"), "must be an http:// or https:// base URL, such as http://collector:4318"
            )
    check_feeds(settings.rates.feeds, source)
    days = settings.retention.usage_days
    if days is not None and settings.journal.retain_hours >= days * 24:
        raise source.error(
            ("retention", "usage_days"), "must be longer than journal.retain_hours, or a replay would count rows twice"
        )
    check_routing(settings.providers, settings.models, source)
    if settings.default_model is not None and settings.default_model not in {each.name for each in settings.models}:
        raise source.error(("default_model",), f"there is no model {settings.default_model!r} in `models`")


def _check_webhook(webhook: WebhookSettings, source: Source) -> None:
    check_networks(webhook.networks, source, ("webhook", "networks"))
    if webhook.url is None:
        return
    parts = urlsplit(webhook.url)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or parts.fragment:
        raise source.error(("webhook", "url"), "must be an https:// address without user and fragment")
    if parts.scheme == "http" and not webhook.networks:
        raise source.error(("webhook", "url"), "http:// is for receivers in webhook.networks; use https://")
    if not webhook.secret:
        raise source.error(("webhook",), "lacks `secret`, with which every event is signed; make it a long random text")


def _check_oidc(oidc: OidcSettings, source: Source) -> None:
    if oidc.issuer is None:
        return
    for name, address in (("issuer", oidc.issuer), ("public_url", oidc.public_url)):
        parts = urlsplit(address)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost")):
            raise source.error(("oidc", name), "must be an https:// address (http:// for 127.0.0.1 alone)")
    if not oidc.client_id:
        raise source.error(("oidc", "client_id"), "is needed beside an issuer")
    if "openid" not in oidc.scopes:
        raise source.error(("oidc", "scopes"), "must have openid among them")
    for value, role in oidc.roles.items():
        name, _, team = role.partition(":")
        if name not in ("owner", "billing", "operator", "viewer", "team_admin") or (name == "team_admin") != bool(team):
            raise source.error(
                ("oidc", "roles", value), f"{role!r} is none of owner, billing, operator, viewer, team_admin:TEAM_ID"
            )


def _check_url(url: str, schemes: tuple[str, ...], source: Source, name: str) -> None:
    if (name,) in (source.unresolved or ()):
        return
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme not in schemes:
        raise source.error(
            (name,), f"{redact_url(url)!r} must begin with {' or '.join(f'{known}:' for known in schemes)}"
        )


def _check_listen(text: str, source: Source, name: str) -> None:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise source.error((name,), f"{text!r} must be HOST:PORT, such as 127.0.0.1:8000 or [::]:8000")
