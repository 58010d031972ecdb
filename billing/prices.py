"""The price book: every price row ever published, in memory, and which of them applies at a moment.

A row is keyed on price list, model, token class, service tier, processing and input threshold, and starts at a moment; the
next row of the same key closes it. A threshold is a cliff: strictly above it the whole request takes the higher row. Rows are
never changed or removed, so a lookup with a pinned version answers the same for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from billing.usage import TokenClass

UNIT_SIZE: Final[dict[str, int]] = {
    "mtok": 1_000_000,
    "request": 1,
    "second": 1,
    "image": 1,
    "hour": 3_600_000_000,  # the quantity is compute time in microseconds
}
"""How many of a class's quantity make one priced unit."""


@dataclass(frozen=True, slots=True)
class PriceRow:
    """`amount_micro` millionths of one `currency` unit per `unit`. `book_version` is the version its posting published."""

    id: int
    book_version: int
    price_list: str
    model: str
    token_class: TokenClass
    currency: str
    amount_micro: int
    unit: str
    service_tier: str
    processing: str
    min_input_tokens: int
    effective_from_us: int
    source: str | None

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        return (self.price_list, self.model, self.token_class, self.service_tier, self.processing)


_Tiers: TypeAlias = tuple[tuple[int, tuple[PriceRow, ...]], ...]
PriceKey: TypeAlias = tuple[str, str, str, str, str]
"""Price list, model, token class, service tier, processing."""


class PriceBook:
    """The whole history, immutable. `version` is the newest published version; 0 is the empty book."""

    def __init__(self, rows: Iterable[PriceRow], version: int | None = None) -> None:
        self.rows: tuple[PriceRow, ...] = tuple(sorted(rows, key=lambda row: row.id))
        newest = max((row.book_version for row in self.rows), default=0)
        self.version = newest if version is None else version
        self._by_id = {row.id: row for row in self.rows}
        grouped: dict[PriceKey, dict[int, list[PriceRow]]] = {}
        for row in self.rows:
            grouped.setdefault(row.key, {}).setdefault(row.min_input_tokens, []).append(row)
        self._keys: dict[tuple[str, str], list[PriceKey]] = {}
        for key in grouped:
            self._keys.setdefault((key[0], key[1]), []).append(key)
        self._tiers: dict[PriceKey, _Tiers] = {
            key: tuple(
                (threshold, tuple(sorted(rows, key=lambda row: (row.effective_from_us, row.id), reverse=True)))
                for threshold, rows in sorted(by_threshold.items(), reverse=True)
            )
            for key, by_threshold in grouped.items()
        }

    def find(
        self,
        price_list: str,
        model: str,
        token_class: TokenClass,
        *,
        at_us: int,
        version: int,
        total_input: int = 0,
        service_tier: str = "default",
        processing: str = "standard",
    ) -> PriceRow | None:
        """The row that prices this class at `at_us`, as version `version` of the book knew it; None: not priced."""
        return self.row_of((price_list, model, token_class, service_tier, processing), at_us, version, total_input)

    def row_of(self, key: PriceKey, at_us: int, version: int, total_input: int) -> PriceRow | None:
        """`find` for a key that the caller holds already (on the hot path)."""
        for threshold, rows in self._tiers.get(key, ()):
            if threshold and total_input <= threshold:
                continue
            for row in rows:
                if row.book_version <= version and row.effective_from_us <= at_us:
                    return row
        return None

    def by_id(self, row_id: int) -> PriceRow | None:
        return self._by_id.get(row_id)

    def covers(self, price_list: str, model: str, *, at_us: int, version: int) -> bool:
        """Whether a call can be priced: input and output both have a row, or the request's row is the price of all."""
        if all(
            self.find(price_list, model, each, at_us=at_us, version=version) is not None
            for each in (TokenClass.INPUT, TokenClass.OUTPUT)
        ):
            return True
        fee = self.find(price_list, model, TokenClass.REQUEST, at_us=at_us, version=version)
        return fee is not None and self.is_whole(fee, at_us=at_us, version=version)

    def is_whole(self, fee: PriceRow, *, at_us: int, version: int) -> bool:
        """Whether this row of the `request` class is the price of the whole request, whatever it counts: engine time is, and so
        is a price per request where no other class of the model has a price in force, in any tier."""
        if fee.unit == "hour":
            return True
        return not any(
            row.book_version <= version and row.effective_from_us <= at_us
            for key in self._keys[fee.price_list, fee.model]
            if key[2] != TokenClass.REQUEST
            for _, rows in self._tiers[key]
            for row in rows
        )

    def tiers(
        self,
        price_list: str,
        model: str,
        token_class: TokenClass,
        *,
        at_us: int,
        version: int,
        service_tier: str = "default",
        processing: str = "standard",
    ) -> Iterator[PriceRow]:
        """The rows in force for one class, one per input threshold, the highest threshold first."""
        for _, rows in self._tiers.get((price_list, model, token_class, service_tier, processing), ()):
            for row in rows:
                if row.book_version <= version and row.effective_from_us <= at_us:
                    yield row
                    break

    def current(self, *, at_us: int, version: int) -> Iterator[PriceRow]:
        """Every row in force at `at_us` under `version`, in the order of their ids."""
        found = [
            next((row for row in rows if row.book_version <= version and row.effective_from_us <= at_us), None)
            for tiers in self._tiers.values()
            for _, rows in tiers
        ]
        yield from sorted((row for row in found if row is not None), key=lambda row: row.id)

    def explain(
        self,
        price_list: str,
        model: str,
        token_class: TokenClass,
        *,
        at_us: int,
        version: int,
        total_input: int = 0,
        service_tier: str = "default",
        processing: str = "standard",
    ) -> list[tuple[PriceRow, str]]:
        """Every row of this key with the reason why it applies or does not, in words."""
        chosen = self.find(
            price_list,
            model,
            token_class,
            at_us=at_us,
            version=version,
            total_input=total_input,
            service_tier=service_tier,
            processing=processing,
        )
        answer: list[tuple[PriceRow, str]] = []
        for threshold, rows in self._tiers.get((price_list, model, token_class, service_tier, processing), ()):
            for row in rows:
                if row is chosen:
                    why = "applies"
                elif row.book_version > version:
                    why = f"published in version {row.book_version}, after the pinned version {version}"
                elif row.effective_from_us > at_us:
                    why = "starts later"
                elif threshold and total_input <= threshold:
                    why = f"for more than {threshold} input tokens; this request has {total_input}"
                else:
                    why = "closed by a later row or by a higher threshold"
                answer.append((row, why))
        return answer

    def diff(self, older: int, newer: int) -> list[PriceRow]:
        """The rows that version `newer` has and version `older` has not, in the order they were published."""
        return [row for row in self.rows if older < row.book_version <= newer]
