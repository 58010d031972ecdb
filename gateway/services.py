"""One place that wires the gateway: every long-lived part, built, started and stopped in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database
from gateway.access.authenticator import Authenticator
from gateway.access.pepper import load_pepper
from gateway.admission.admission import Admission
from gateway.admission.build import build_admission
from gateway.admission.thresholds import Thresholds
from gateway.answer_cache import AnswerCache
from gateway.api.watch import Watch
from gateway.audit_watch import AuditWatch
from gateway.catalog import Catalog
from gateway.maintenance import Maintenance
from gateway.metering.journal import Journal
from gateway.metering.process import RecorderProcess, Recording
from gateway.metering.progress import watch_journal
from gateway.metering.reconcile import Reconciliation
from gateway.metrics import MAX_ROUTES, Metrics
from gateway.price_drift import PriceDrift
from gateway.rates.keeper import RateKeeper
from gateway.routing.allowances import Allowances
from gateway.routing.breaker import State
from gateway.routing.router import Router
from gateway.settings import Settings
from gateway.telemetry.target import Target
from gateway.wallets import WalletKeeper
from gateway.webhooks.sender import build_sender
from gateway.webhooks.webhooks import Webhooks

logger = logging.getLogger(__name__)

GC_YOUNG: Final = 20_000
"""A request makes a few hundred objects that all die by reference count; only cycles need the collector. The default of 700
would look for them on every second request; what lives from the start is frozen out of its sight."""
SWITCH_S: Final = 50e-6
"""So long a thread asks for the interpreter before it must be given. The loop lets go of it between any two events, which wakes
whoever waits, and has it again before that one is awake: with the default of 5 ms a hundred times in vain. And no longer than
that does the loop itself wait for a thread that is busy."""
SETTLE_S: Final = 5.0
CIRCUITS: Final = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}
INHERIT_S: Final = 30.0
"""So long a process that starts is not ready while it ships what a dead one left. Requests without a hard budget need not wait
longer; the others get 503 until it is done."""


@dataclass(slots=True)
class Services:
    """`journal` is this process's; `watch` looks after running requests; `draining` refuses new ones."""

    settings: Settings
    database: AsyncEngine
    catalog: Catalog
    authenticator: Authenticator
    admission: Admission
    router: Router
    allowances: Allowances
    answers: AnswerCache
    journal: Journal
    recorder: Recording
    metrics: Metrics
    wallets: WalletKeeper
    webhooks: Webhooks
    thresholds: Thresholds
    rates: RateKeeper
    price_drift: PriceDrift
    maintenance: Maintenance
    reconciliation: Reconciliation
    audit: AuditWatch
    watch: Watch = field(default_factory=Watch)
    exposition: Callable[[], Awaitable[bytes]] = field(init=False)
    """What `/metrics` answers; one of several workers puts what they count together in its place."""
    draining: bool = False
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _started: bool = False
    _ready_by_s: float = 0.0

    def __post_init__(self) -> None:
        self.exposition = self._own_figures

    async def start(self) -> None:
        """Once; a database that is away only delays readiness. Raises what no waiting mends (`PepperError`)."""
        if self._started:
            return
        self._started = True
        self._ready_by_s = time.monotonic() + INHERIT_S
        self.recorder.start()
        await self.catalog.start()
        await self.admission.start()
        self.reconciliation.start()
        self.audit.start()
        self.wallets.start()
        self.webhooks.start()
        self.thresholds.start()
        self.rates.start()
        self.price_drift.start()
        self.watch.start()
        self.maintenance.start()
        self._watch_metrics()
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_YOUNG, 20, 50)
        sys.setswitchinterval(SWITCH_S)

    def drain(self) -> None:
        """No longer ready, and new requests are refused; running ones go on."""
        if not self.draining:
            logger.info("asked to stop; %d requests are under way", len(self.watch.running))
        self.draining = True

    async def stop(self) -> None:
        """After the last request: settle what is still being settled, then ship the journal."""
        if not self._started:
            self.journal.stop()
            await self.database.dispose()
            return
        self._started = False
        self.draining = True
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=SETTLE_S)
        await self.watch.stop()
        await self.maintenance.stop()
        await self.router.aclose()
        await self.answers.aclose()
        await self.reconciliation.stop()
        await self.audit.stop()
        await self.admission.stop()
        await asyncio.to_thread(self.journal.stop)
        shipped = await self.recorder.stop()
        await self.wallets.stop()
        await self.rates.stop()
        await self.price_drift.stop()
        await self.thresholds.stop()
        await self.webhooks.stop()
        await self.catalog.stop()
        await self.database.dispose()
        if shipped:
            logger.info("stopped; everything is in the database")
        else:
            logger.warning("stopped; what %s has not shipped is shipped by the next start", self.journal.folder)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` to its end whatever happens to its request; `stop` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def not_ready(self) -> list[str]:
        """Why this process should get no requests now; empty when it should."""
        reasons = []
        if not self.catalog.ready:
            reasons.append(self.catalog.refused or "the catalog has not been read from the database yet")
        if not self.journal.writable:
            reasons.append(self.journal.trouble or "the journal cannot be written")
        if not self.admission.seeding.current and time.monotonic() < self._ready_by_s:
            reasons.append("what a process that died had journalled is on its way into the database")
        if self.draining:
            reasons.append("shutting down")
        return reasons

    async def _own_figures(self) -> bytes:
        await self.recorder.refresh()
        return await asyncio.to_thread(self.metrics.render)

    def _watch_metrics(self) -> None:
        metrics, journal = self.metrics, self.journal
        metrics.watch(metrics.in_flight, lambda: float(len(self.watch.running)))
        metrics.watch(metrics.catalog_stale, self.catalog.age_s)
        metrics.before_render(self._look_at_routes)
        watch_journal(metrics, journal, lambda: self.recorder.progress)

    def _look_at_routes(self) -> None:
        metrics = self.metrics
        gauges = (metrics.route_circuit, metrics.route_in_flight, metrics.route_pace)
        for gauge in gauges:
            gauge.clear()
        for model, route, state in islice(self.router.states(time.monotonic()), MAX_ROUTES):
            labels = (model, route.provider_name, route.model)
            metrics.route_circuit.labels(*labels).set(CIRCUITS[state])
            metrics.route_in_flight.labels(*labels).set(route.in_flight)
            if route.mean_pace_s is not None:
                metrics.route_pace.labels(*labels).set(route.mean_pace_s)


StartRecorder = Callable[[Journal, Path, Settings, Metrics], Recording]


def _recorder_process(journal: Journal, folder: Path, settings: Settings, metrics: Metrics) -> Recording:
    telemetry = settings.telemetry
    target = telemetry.endpoint and Target(
        telemetry.endpoint,
        {name: secret.reveal() for name, secret in telemetry.headers.items()},
        telemetry.service,
        telemetry.share,
    )
    return RecorderProcess(
        journal, folder, settings.database_url, settings.journal, metrics, target or None, settings.log_format
    )


async def build_services(settings: Settings, record: StartRecorder = _recorder_process) -> Services:
    """Everything wired, nothing started. Takes the journal's folder under `settings.home`; the database must be migrated.

    Raises `SettingsError` (pepper), `JournalFull` or `JournalBroken`.
    """
    database = open_database(settings.database_url)
    metrics = Metrics()
    engines = [name for name, each in settings.providers.items() if each.kind == "engine" and each.base_url is None]
    metrics.expect(settings.providers, engines)
    pepper = load_pepper(settings)
    catalog = Catalog(database, pepper)
    authenticator = Authenticator(
        catalog, pepper, trusted_proxies=settings.proxy_networks(), auth_stale_s=settings.auth_stale_s
    )
    folder = settings.home / "journal"
    journal = Journal(folder, settings.journal, asyncio.get_running_loop().call_later)
    recorder = record(journal, folder, settings, metrics)
    webhooks = Webhooks(database, metrics, build_sender(settings.webhook))
    thresholds = Thresholds(database, catalog, webhooks, metrics, settings.limits.budget_thresholds)
    admission = build_admission(
        settings,
        catalog,
        database,
        _gauge_of(metrics),
        metrics.limit_store_resets.inc,
        lambda: recorder.inheriting,
        thresholds,
    )
    return Services(
        settings=settings,
        database=database,
        catalog=catalog,
        authenticator=authenticator,
        admission=admission,
        router=Router(settings, catalog=catalog),
        allowances=Allowances(admission.store),
        answers=AnswerCache(settings, metrics),
        journal=journal,
        recorder=recorder,
        reconciliation=Reconciliation(database, metrics),
        audit=AuditWatch(database, metrics),
        metrics=metrics,
        wallets=WalletKeeper(database, metrics),
        webhooks=webhooks,
        thresholds=thresholds,
        rates=RateKeeper(database, metrics, settings.rates),
        price_drift=PriceDrift(catalog, settings.price_drift.known, metrics),
        maintenance=Maintenance(database, settings.retention),
    )


def _gauge_of(metrics: Metrics) -> Callable[[bool], None]:
    return lambda up: metrics.limit_store_up.set(1.0 if up else 0.0)
