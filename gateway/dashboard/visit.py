"""One request of somebody who is signed in: who they are, how they read, what they look at, and the way to the admin API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode
from zoneinfo import available_timezones

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import Request, Response
from litestar.response import Redirect

from billing.money import Money
from gateway import errors
from gateway.admin.roles import RULES, Principal
from gateway.dashboard.charts import share
from gateway.dashboard.inside import Inside, Json, Refused
from gateway.dashboard.language import LANGUAGES, Speech, choose
from gateway.dashboard.ranges import RANGES, ZONES, Range, read_range
from gateway.dashboard.security import HEADERS, HOME
from gateway.dashboard.sessions import Session

if TYPE_CHECKING:
    from gateway.services import Services

LANGUAGE, THEME, ZONE = "metergate_language", "metergate_theme", "metergate_zone"
THEMES: Final = ("auto", "light", "dark")
FOLDER: Final = Path(__file__).parent
PAGES: Final = (
    ("", "Overview", "GET /admin/v1/usage"),
    ("/explore", "Explore", "GET /admin/v1/usage"),
    ("/requests", "Requests", "GET /admin/v1/usage/requests"),
    ("/teams", "Teams and keys", "GET /admin/v1/keys"),
    ("/prices", "Prices and rates", "GET /admin/v1/prices"),
    ("/statements", "Statements", "GET /admin/v1/statements/{team_id}"),
    ("/routes", "Routes", "GET /admin/v1/routes"),
    ("/engine", "Engine", "GET /admin/v1/routes"),
    ("/playground", "Playground", "POST /admin/v1/keys"),
    ("/audit", "Audit", "GET /admin/v1/audit"),
    ("/access", "Access", "GET /admin/v1/tokens"),
)
"""Path below /dashboard, name, and the route that somebody must be allowed to see the page at all."""


@cache
def environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@dataclass(frozen=True, slots=True)
class Look:
    """How a page is shown, known before anybody has signed in."""

    speech: Speech
    theme: str
    path: str
    query: Mapping[str, str]

    def page(self, template: str, status: int = 200, **values: Any) -> Response[str]:
        shown = environment().get_template(f"{template}.html.jinja")
        text = shown.render(
            look=self,
            s=self.speech,
            _=self.speech.say,
            languages=LANGUAGES,
            themes=THEMES,
            **values,
        )
        return Response(text, status_code=status, media_type="text/html", headers=HEADERS)

    @property
    def here(self) -> str:
        return self.path + (f"?{urlencode(self.query)}" if self.query else "")


@dataclass(frozen=True, slots=True)
class Visit:
    services: Services
    look: Look
    session: Session
    range: Range
    api: Inside
    form: Mapping[str, str] = field(default_factory=dict)
    """What was sent, without what was left empty and without the session's token."""

    @property
    def principal(self) -> Principal:
        return self.session.principal

    @property
    def team(self) -> Mapping[str, str]:
        """What a team admin has to say with every question."""
        team_id = self.principal.team_id
        return {} if team_id is None else {"team_id": team_id}

    @property
    def names(self) -> dict[str, str]:
        """What people call the teams and keys that this person may know of, by their ids."""
        snapshot, own = self.services.catalog.snapshot, self.principal.team_id
        teams = {team.id: team.name for team in snapshot.teams.values() if own in (None, team.id)}
        keys = {key.key_id: key.key_name for key in snapshot.keys.values() if own in (None, key.team_id)}
        return teams | keys

    def may(self, route: str) -> bool:
        return RULES[route].allows(self.principal.role)

    def require(self, route: str) -> None:
        """Raises `ApiError` 403, in the admin API's words, for a page that asks it nothing itself."""
        if not self.may(route):
            raise errors.forbidden(f"The role {self.principal.role} may not do this.", code="role_not_allowed")

    def link(self, path: str, **query: object) -> str:
        """A page of ours that keeps the range; what is None or empty is left out of the URL."""
        given = {**self.range.query, **{name: str(value) for name, value in query.items() if value not in (None, "")}}
        return f"{HOME}{path}?{urlencode(given)}"

    def page(self, template: str, status: int = 200, **values: Any) -> Response[str]:
        pages = [(path, name) for path, name, route in PAGES if self.may(route)]
        return self.look.page(
            template,
            status,
            visit=self,
            pages=pages,
            ranges=RANGES,
            zones=sorted({*ZONES, self.range.timezone}),
            share=share,
            **values,
        )

    def problem(self, refused: Refused) -> Response[str]:
        """What the admin API refused, in its own words, with what was sent, to be mended and sent again."""
        wrong = (refused.field or "").rpartition(".")[2]
        fields = {name: value for name, value in self.form.items() if name != "csrf"}
        if fields and wrong.isidentifier():
            fields.setdefault(wrong, "")
        return self.page("refused", refused.status, refused=refused, fields=fields, wrong=wrong)

    def back(self, path: str, **query: object) -> Redirect:
        """After a change: to a page that shows it."""
        return Redirect(self.link(path, **query), status_code=303)


def read_look(request: Request[Any, Any, Any], timezone: str = "UTC") -> Look:
    query = {name: value for name, value in request.query_params.items() if len(value) <= 500}
    language = choose(request.cookies.get(LANGUAGE), request.headers.get("accept-language"))
    theme = request.cookies.get(THEME, "auto")
    return Look(Speech(language, timezone), theme if theme in THEMES else "auto", request.url.path, query)


def read_visit(
    request: Request[Any, Any, Any], services: Services, session: Session, app: Any, form: Mapping[str, str]
) -> Visit:
    zone = request.cookies.get(ZONE, "UTC")
    look = read_look(request)
    chosen = read_range(dict(look.query), zone if zone in available_timezones() else "UTC")
    look = Look(Speech(look.speech.language, chosen.timezone), look.theme, look.path, look.query)
    client = request.client
    forwarded = tuple(value for name, value in request.scope["headers"] if name == b"x-forwarded-for")
    api = Inside(app, session.principal, None if client is None else (client.host, client.port), forwarded)
    return Visit(services, look, session, chosen, api, form)


def total(moneys: Sequence[Sequence[Mapping[str, str]]]) -> list[Json]:
    """Lists of money added up per currency, exactly; one alone is its own sum."""
    if len(moneys) == 1:
        return [dict(view) for view in moneys[0]]
    sums: dict[str, int] = {}
    for each in moneys:
        for view in each:
            currency = view["currency"]
            sums[currency] = sums.get(currency, 0) + Money.parse(view["amount"], currency).nano
    return [{"amount": Money(currency, nano).amount, "currency": currency} for currency, nano in sorted(sums.items())]


def worth(moneys: Sequence[Mapping[str, str]], currency: str) -> Decimal:
    """The amount in that currency; 0 where there is none."""
    return sum((Decimal(view["amount"]) for view in moneys if view["currency"] == currency), Decimal(0))
