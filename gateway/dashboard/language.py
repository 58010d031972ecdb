"""English and Chinese: texts, money, numbers and dates, as a reader of that language writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
from babel import Locale, dates, numbers

LANGUAGES: Final = {"en": "English", "zh": "中文"}
_LOCALES: Final = {"en": "en_US", "zh": "zh_Hans_CN"}


@cache
def texts(language: str) -> Mapping[str, str]:
    """English text → the language's; a text without a translation stays English."""
    if language == "en":
        return {}
    return msgspec.json.decode((Path(__file__).parent / f"{language}.json").read_bytes(), type=dict[str, str])


def choose(asked: str | None, accepts: str | None) -> str:
    """The language asked for, else the first that the browser accepts, else English."""
    if asked in LANGUAGES:
        return asked
    for part in (accepts or "").split(","):
        name = part.partition(";")[0].strip().lower()[:2]
        if name in LANGUAGES:
            return name
    return "en"


@dataclass(frozen=True, slots=True)
class Speech:
    """One language and one time zone. Money keeps every digit that it has: nothing is rounded for show."""

    language: str
    timezone: str

    @property
    def html(self) -> str:
        return {"en": "en", "zh": "zh-Hans"}[self.language]

    @property
    def locale(self) -> Locale:
        return Locale.parse(_LOCALES[self.language])

    def say(self, text: str, **values: object) -> str:
        found = texts(self.language).get(text, text)
        return found.format(**values) if values else found

    def money(self, view: Mapping[str, str] | None) -> str:
        """`{"amount", "currency"}` of the API."""
        if view is None:
            return "–"
        return numbers.format_currency(
            Decimal(view["amount"]), view["currency"], locale=self.locale, decimal_quantization=False
        )

    def number(self, value: int | str | Decimal) -> str:
        return numbers.format_decimal(Decimal(value), locale=self.locale, decimal_quantization=False)

    def compact(self, value: Decimal) -> str:
        """For the ticks of an axis."""
        if abs(value) >= 1000:
            return numbers.format_compact_decimal(value, locale=self.locale, fraction_digits=1)
        return self.number(value.normalize())

    def percent(self, text: str | None) -> str:
        return "–" if text is None else f"{self.number(text)} %"

    def share(self, percent: Decimal) -> str:
        return self.percent(str(percent.quantize(Decimal("0.1")).normalize() + 0))

    def time(self, text: str | None) -> str:
        """An RFC 3339 time of the API, in the zone."""
        if text is None:
            return "–"
        zone = ZoneInfo(self.timezone)
        written = dates.format_datetime(self._moment(text), "medium", tzinfo=zone, locale=self.locale)
        return written.replace(" ", "\u00a0")  # a moment stays on one line

    def label(self, text: str, interval: str) -> str:
        """A bucket's start, as short as its interval allows."""
        zone = ZoneInfo(self.timezone)
        moment = self._moment(text)
        if interval == "hour":
            return dates.format_time(moment, "HH:mm", tzinfo=zone, locale=self.locale)
        skeleton = "MMMd" if interval == "day" else "yMMM"
        return dates.format_skeleton(skeleton, moment, tzinfo=zone, locale=self.locale)

    @staticmethod
    def _moment(text: str) -> datetime:
        return datetime.fromisoformat(text)
