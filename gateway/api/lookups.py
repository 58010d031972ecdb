"""GET /v1/models, /v1/models/{id} and /v1/key: what a caller may ask about itself. None of them costs money."""

from __future__ import annotations

import time
from urllib.parse import unquote

import msgspec

from billing.money import MICRO, format_scaled
from billing.times import format_time, now_us
from billing.usage import TokenClass
from gateway.access.authenticator import check_model
from gateway.access.identity import Identity
from gateway.admission.key_state import BudgetLeft, Remaining, WalletLeft, key_state
from gateway.admission.limits import Limits
from gateway.api.asgi import JSON, Receive, Scope, Send, send_bytes, send_error
from gateway.catalog import Snapshot
from gateway.errors import ApiError
from gateway.ids import new_request_id
from gateway.routing.routes import Model, Route
from gateway.services import Services

_encode = msgspec.json.Encoder().encode


class ModelView(msgspec.Struct, frozen=True):
    """OpenAI's model object, with what a caller needs to choose one."""

    id: str
    created: int
    context_window: int | None
    max_output_tokens: int | None
    pricing: dict[str, str] | None
    object: str = "model"
    owned_by: str = "metergate"


class ModelPage(msgspec.Struct, frozen=True):
    data: list[ModelView]
    object: str = "list"


def pricing(snapshot: Snapshot, team_id: str, route: Route, at_us: int) -> dict[str, str] | None:
    """What a unit of each class costs this team now on this route, below any threshold; None where output has no price.

    One currency and one unit, those of the output price; a class that is priced otherwise is left out.
    """
    books, pins = snapshot.books, snapshot.pins
    sold = books.sell.sold(
        books.prices, team_id, route.price_list, route.model, at_us=at_us, book=pins.book, version=pins.sell
    )
    found = {
        token_class: books.prices.find(sold.price_list, route.model, token_class, at_us=at_us, version=pins.book)
        for token_class in TokenClass
    }
    main = found[TokenClass.OUTPUT] or found[TokenClass.REQUEST]
    if main is None:
        return None
    amounts = {
        token_class.value: format_scaled(row.amount_micro * sold.multiplier_micro, MICRO * MICRO)
        for token_class, row in found.items()
        if row is not None and (row.currency, row.unit) == (main.currency, main.unit)
    }
    return {"currency": main.currency, "unit": main.unit, **amounts}


class _Lookup:
    def __init__(self, services: Services) -> None:
        self._services = services

    def _identify(self, scope: Scope) -> Identity:
        client = scope.get("client")
        return self._services.authenticator.identify(scope["headers"], client[0] if client else None)

    async def _answer(self, send: Send, value: object) -> None:
        await send_bytes(send, 200, _encode(value), [JSON, (b"x-request-id", _fresh_id())])

    async def _refuse(self, send: Send, error: ApiError) -> None:
        self._services.metrics.refused.labels(str(error.status)).inc()
        await send_error(send, error, _fresh_id())


class ModelLookup(_Lookup):
    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._created = int(time.time())

    async def every(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The models that this key may use."""
        try:
            identity = self._identify(scope)
            models = [
                self._view(each, identity) for each in self._services.router.models() if _may_use(identity, each.name)
            ]
        except ApiError as error:
            await self._refuse(send, error)
            return
        await self._answer(send, ModelPage(models))

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = unquote(scope["path"].removeprefix("/v1").removeprefix("/models/"))
        try:
            identity = self._identify(scope)
            model = self._services.router.find(name)
            check_model(identity, model.name)
        except ApiError as error:
            await self._refuse(send, error)
            return
        await self._answer(send, self._view(model, identity))

    def _view(self, model: Model, identity: Identity) -> ModelView:
        return ModelView(
            model.name,
            self._created,
            model.settings.context_window,
            model.settings.max_output_tokens,
            pricing(self._services.catalog.snapshot, identity.team_id, model.routes[0], now_us()),
        )


class KeyView(msgspec.Struct, frozen=True):
    """What a caller may know of its own key."""

    id: str
    team_id: str
    name: str
    limits: Limits
    remaining: Remaining
    budgets: list[BudgetLeft]
    wallet: WalletLeft | None
    models: list[str] | None
    expires_at: str | None


class KeyLookup(_Lookup):
    async def show(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        try:
            identity = self._identify(scope)
            state = await key_state(services.admission, services.catalog.snapshot, identity, now_us())
        except ApiError as error:
            await self._refuse(send, error)
            return
        view = KeyView(
            id=identity.key_id,
            team_id=identity.team_id,
            name=identity.key_name,
            limits=identity.limits,
            remaining=state.remaining,
            budgets=state.budgets,
            wallet=state.wallet,
            models=None if identity.models is None else sorted(identity.models),
            expires_at=None if identity.expires_at_us is None else format_time(identity.expires_at_us),
        )
        await self._answer(send, view)


def _may_use(identity: Identity, model: str) -> bool:
    return identity.models is None or model in identity.models


def _fresh_id() -> bytes:
    return str(new_request_id()).encode()
