"""Every page of the dashboard."""

from __future__ import annotations

from typing import Any, Final

from gateway.dashboard.access import AccessController
from gateway.dashboard.explore import ExploreController
from gateway.dashboard.live import LiveController
from gateway.dashboard.overview import OverviewController
from gateway.dashboard.playground import PlaygroundController
from gateway.dashboard.prices import PricesController
from gateway.dashboard.requests import RequestsController
from gateway.dashboard.sign_in import SignInController
from gateway.dashboard.statements import StatementsController
from gateway.dashboard.teams import TeamsController

PAGES: Final[list[Any]] = [
    SignInController,
    OverviewController,
    ExploreController,
    RequestsController,
    TeamsController,
    PricesController,
    StatementsController,
    LiveController,
    PlaygroundController,
    AccessController,
]
