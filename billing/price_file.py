"""Price books as YAML or CSV files: parsed and checked as a whole, before anything is published."""

from __future__ import annotations

import csv
import io

import msgspec

from billing.errors import InvalidPrice
from billing.publishing import PriceDraft
from billing.times import parse_time
from billing.yaml_text import YamlFault, read_yaml


class _Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    provider: str
    model: str
    currency: str
    effective_from: str
    prices: dict[str, str]
    source: str | None = None
    unit: str | None = None
    service_tier: str = "default"
    processing: str = "standard"
    min_input_tokens: int = 0


class RateEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    base: str
    quote: str
    kind: str
    rate: str
    effective_from: str
    source: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: list[_Model]
    note: str | None = None
    rates: list[RateEntry] = []


class PriceFile(msgspec.Struct, frozen=True):
    """What a price file says: drafts to publish as one version, its note, and rates to record."""

    drafts: list[PriceDraft]
    note: str | None
    rates: list[RateEntry]


def parse_yaml(text: str) -> PriceFile:
    """A book in the form of `price_book.yaml`. Amounts are quoted decimals; a bare number is refused, as YAML makes a binary
    fraction of it. Raises `InvalidPrice`, or `InvalidTime` for a start."""
    try:
        parsed = msgspec.convert(read_yaml(text), _File)
    except YamlFault as error:
        raise InvalidPrice(f"the price file: {error}", field="file") from error
    except msgspec.ValidationError as error:
        raise InvalidPrice(
            f'the price file: {error} (amounts are quoted decimals such as "0.42")', field="file"
        ) from error
    drafts = [
        PriceDraft(
            price_list=each.provider,
            model=each.model,
            token_class=token_class,
            currency=each.currency,
            amount=amount,
            effective_from_us=parse_time(each.effective_from, "effective_from"),
            unit=each.unit,
            service_tier=each.service_tier,
            processing=each.processing,
            min_input_tokens=each.min_input_tokens,
            source=each.source,
        )
        for each in parsed.models
        for token_class, amount in each.prices.items()
    ]
    return PriceFile(drafts, parsed.note, parsed.rates)


_CSV_NEEDED = ("provider", "model", "token_class", "currency", "amount", "effective_from")
_CSV_OPTIONAL = ("unit", "service_tier", "processing", "min_input_tokens", "source")


def parse_csv(text: str) -> PriceFile:
    """One price per line; the header names provider, model, token_class, currency, amount, effective_from and, as wanted, unit,
    service_tier, processing, min_input_tokens, source. Raises `InvalidPrice` with the line, or `InvalidTime`."""
    reader = csv.DictReader(io.StringIO(text), strict=True)
    names = reader.fieldnames or []
    for name in _CSV_NEEDED:
        if name not in names:
            raise InvalidPrice(f"line 1: the column {name!r} is missing", field=name)
    for name in names:
        if name not in (*_CSV_NEEDED, *_CSV_OPTIONAL):
            raise InvalidPrice(f"line 1: unknown column {name!r}", field=name)
    drafts = []
    try:
        for line in reader:
            if None in line or None in line.values():
                raise InvalidPrice(f"line {reader.line_num}: not {len(names)} columns", field="file")
            drafts.append(_draft(line, reader.line_num))
    except csv.Error as error:
        raise InvalidPrice(f"line {reader.line_num}: {error}", field="file") from error
    return PriceFile(drafts, None, [])


def _draft(line: dict[str, str], number: int) -> PriceDraft:
    threshold = line.get("min_input_tokens") or "0"
    if not threshold.isascii() or not threshold.isdigit():
        raise InvalidPrice(f"line {number}: min_input_tokens {threshold!r} is no count", field="min_input_tokens")
    return PriceDraft(
        price_list=line["provider"],
        model=line["model"],
        token_class=line["token_class"],
        currency=line["currency"],
        amount=line["amount"],
        effective_from_us=parse_time(line["effective_from"], "effective_from"),
        unit=line.get("unit") or None,
        service_tier=line.get("service_tier") or "default",
        processing=line.get("processing") or "standard",
        min_input_tokens=int(threshold),
        source=line.get("source") or None,
    )
