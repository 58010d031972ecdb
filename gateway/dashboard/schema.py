"""The admin API's description at /schema: a page to read and try it, and the document itself. Both are open, as the code is."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import litestar
import msgspec
from litestar import Request, Response, get
from litestar.exceptions import HTTPException

from gateway.admin.description import description
from gateway.admin.failures import HANDLERS
from gateway.dashboard.security import HEADERS
from gateway.dashboard.visit import read_look
from gateway.litestar_app import LitestarApp

SCHEMA: Final = "/schema"


def create_schema_pages(admin: litestar.Litestar) -> litestar.Litestar:
    """The application under /schema, about `admin`. The document is made when somebody asks for it first."""
    made: list[bytes] = []
    making = asyncio.Lock()

    @get("/openapi.json", include_in_schema=False)
    async def document() -> Response[bytes]:
        async with making:
            if not made:  # a fifth of a second, beside callers' requests
                made.append(await asyncio.to_thread(lambda: msgspec.json.encode(description(admin))))
        return Response(made[0], media_type="application/vnd.oai.openapi+json", headers=HEADERS)

    @get("/", include_in_schema=False)
    async def page(request: Request[Any, Any, Any]) -> Response[str]:
        return read_look(request).page("schema")

    return LitestarApp(
        route_handlers=[litestar.Router(SCHEMA, route_handlers=[page, document])],
        exception_handlers={**HANDLERS, HTTPException: HANDLERS[Exception]},
        openapi_config=None,
        logging_config=None,
    )
