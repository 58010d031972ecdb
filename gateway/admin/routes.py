"""Puts the admin API together: routers that are closed by default, whose controllers only translate."""

from __future__ import annotations

from typing import Any, Final

import litestar
from litestar import Request, Response
from litestar.di import Provide

from gateway.access.admin_key import load_admin_key
from gateway.admin.audit_routes import AuditController
from gateway.admin.budgets import BudgetsController
from gateway.admin.corrections import CorrectionsController
from gateway.admin.exchange import RatesController, TermsController
from gateway.admin.failures import HANDLERS
from gateway.admin.focus import FocusController
from gateway.admin.guard import acting_of, admin_guard, refuse_unknown_query
from gateway.admin.keys import KeysController
from gateway.admin.live_routes import RoutesController
from gateway.admin.organization import OrganizationController
from gateway.admin.price_books import PriceBooksController, PriceExplanationController
from gateway.admin.prices import PricesController
from gateway.admin.redemption_codes import RedemptionCodesController
from gateway.admin.rerating import ReratingController
from gateway.admin.roles import ADMIN, ORGANIZATION
from gateway.admin.sell_prices import SellPricesController
from gateway.admin.services import AdminServices, Editable, Rooms, etag
from gateway.admin.statements import StatementsController
from gateway.admin.teams import TeamsController
from gateway.admin.token_routes import MeController, TokensController
from gateway.admin.usage import UsageController
from gateway.admin.wallets import AllWalletsController, WalletsController
from gateway.admin.what_if import BreakEvenController, WhatIfController
from gateway.ids import new_request_id

MAX_BODY_BYTES = 1 << 20


CONTROLLERS: Final = (
    TeamsController,
    KeysController,
    PricesController,
    PriceBooksController,
    PriceExplanationController,
    RatesController,
    TermsController,
    BudgetsController,
    UsageController,
    FocusController,
    StatementsController,
    WhatIfController,
    BreakEvenController,
    AllWalletsController,
    WalletsController,
    RedemptionCodesController,
    SellPricesController,
    CorrectionsController,
    ReratingController,
    RoutesController,
    AuditController,
    TokensController,
    MeController,
)


def name_request(response: Response[Any]) -> Response[Any]:
    """An id for every answer, and the ETag of what can be edited."""
    response.headers["x-request-id"] = str(new_request_id())
    if isinstance(response.content, Editable) and not response.content.shown_once:
        response.headers["etag"] = etag(response.content)
    return response


def admin_routers(services: AdminServices) -> list[litestar.Router]:
    """The routers for `services`: ours, and OpenAI's organization endpoints, behind one guard.

    Reads (or at a first start makes) the admin key; raises `SettingsError` when it cannot.
    """
    guard = admin_guard(services, load_admin_key(services.settings))

    async def rooms(request: Request[Any, Any, Any]) -> Rooms:
        return Rooms(services, await acting_of(request, services))

    shared: dict[str, Any] = {
        "guards": [guard],
        "after_request": name_request,
        "dependencies": {"rooms": Provide(rooms)},
        "exception_handlers": HANDLERS,
        "request_max_body_size": MAX_BODY_BYTES,
    }
    return [
        litestar.Router(ADMIN, route_handlers=CONTROLLERS, before_request=refuse_unknown_query, **shared),
        litestar.Router(ORGANIZATION, route_handlers=[OrganizationController], **shared),
    ]
