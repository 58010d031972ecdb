"""What the parent of several workers and each of them say to each other."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from gateway.metrics_sum import Report


class Work(Struct, frozen=True, tag=True):
    """To a worker, first of all: `listeners` are descriptors of sockets that it inherited. Where `others_serve`, it says nothing
    on them before it can serve as well."""

    config: str | None
    listeners: list[int]
    others_serve: bool


class EngineAt(Struct, frozen=True, tag=True):
    """To a worker: where the engine of a provider answers, None for nowhere."""

    provider: str
    base_url: str | None
    secret: str


class Ask(Struct, frozen=True, tag=True):
    """To a worker: send `Counted` now."""


class Total(Struct, frozen=True, tag=True):
    """To a worker that asked: what all of them have counted."""

    report: Report


class Stop(Struct, frozen=True, tag=True):
    """To a worker: finish what runs and end; the second one: at once."""


class Serving(Struct, frozen=True, tag=True):
    """To the parent: requests are answered."""


class Counted(Struct, frozen=True, tag=True):
    """To the parent: counted since the last time, and the gauges."""

    report: Report


class Scrape(Struct, frozen=True, tag=True):
    """To the parent: somebody wants the total."""


Order = Work | EngineAt | Ask | Total | Stop
News = Serving | Counted | Scrape
read_order: Final[msgspec.msgpack.Decoder[Order]] = msgspec.msgpack.Decoder(Order)
read_news: Final[msgspec.msgpack.Decoder[News]] = msgspec.msgpack.Decoder(News)
