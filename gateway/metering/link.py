"""What a gateway and its recorder's process say to each other."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from gateway.logs import Format
from gateway.metering.progress import Progress
from gateway.metrics_sum import Report
from gateway.settings import JournalSettings
from gateway.telemetry.target import Target


class Job(Struct, frozen=True, tag=True):
    """To the recorder, first of all: the journals under `folder`, of which `own` is the gateway's that lives."""

    folder: str
    own: str
    database_url: str
    journal: JournalSettings
    log_level: int
    log_format: Format
    telemetry: Target | None = None


class Ask(Struct, frozen=True, tag=True):
    """To the recorder: send a `News` now."""


class Finish(Struct, frozen=True, tag=True):
    """To the recorder: the journal is stopped; ship what it holds, for `drain_s` at most, and end."""

    drain_s: float


class News(Struct, frozen=True, tag=True):
    """To the gateway. `progress` is None before the recorder's first look. `finished` is set in the last one: whether everything
    was shipped."""

    progress: Progress | None
    report: Report
    finished: bool | None = None


Order = Job | Ask | Finish

read_news: Final = msgspec.msgpack.Decoder(News)
read_order: Final[msgspec.msgpack.Decoder[Order]] = msgspec.msgpack.Decoder(Order)
