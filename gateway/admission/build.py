"""The one place where the store is chosen: memory for one process, Valkey or Redis as soon as there is a `redis_url`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.admission.admission import Admission, CatalogView
from gateway.admission.listener import BudgetListener
from gateway.admission.memory import MemoryStore
from gateway.admission.seeding import UNHEARD
from gateway.admission.store import LimitStore

if TYPE_CHECKING:
    from gateway.settings import Settings


def build_admission(
    settings: Settings,
    catalog: CatalogView,
    database: AsyncEngine,
    on_store_state: Callable[[bool], None] | None = None,
    on_store_reset: Callable[[], None] | None = None,
    inheriting: Callable[[], bool] = lambda: False,
    listener: BudgetListener = UNHEARD,
) -> Admission:
    """`on_store_state` hears whether a shared store answers and `on_store_reset` that it came back empty or set back
    (metrics); `inheriting` says whether journals of dead processes are still on their way into the database; `listener` hears of
    budgets. `Admission.start` connects."""
    store = build_store(settings, on_store_state, on_store_reset)
    return Admission(catalog, store, settings, database, inheriting=inheriting, listener=listener)


def build_store(
    settings: Settings,
    on_store_state: Callable[[bool], None] | None = None,
    on_store_reset: Callable[[], None] | None = None,
) -> LimitStore:
    """Raises `ImportError` with its remedy when a shared store is configured and redis-py is not installed."""
    if settings.redis_url is None:
        if on_store_state is not None:
            on_store_state(True)
        return MemoryStore()
    try:
        from gateway.admission.shared import SharedStore
        from gateway.admission.valkey import ValkeyStore
    except ImportError as error:
        raise ImportError(f"redis_url is set but {error.name} is missing; pip install 'metergate[redis]'") from error
    remote = ValkeyStore(settings.redis_url)
    return SharedStore(remote, settings.limits.when_store_down, on_state=on_store_state, on_reset=on_store_reset)
