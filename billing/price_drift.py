"""Our price book beside a public feed: where they differ, and which differences somebody has looked at. It never writes.

A feed is a hint. It may be late, wrong, or speak of another tier; so a difference is reported and waits for a person, who
publishes a price or acknowledges the difference. An acknowledgement holds for one pair of figures: when either side moves, the
difference is reported again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import yaml

from billing.checks import parse_field
from billing.errors import InvalidPrice
from billing.money import MICRO, format_scaled
from billing.usage import TokenClass
from billing.yaml_text import YamlFault, read_yaml


class ListedPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A price per million tokens (or per request) above so many input tokens; `amount` is a decimal string in USD."""

    provider: str
    model: str
    token_class: str
    amount: str
    min_input_tokens: int = 0

    @property
    def key(self) -> tuple[str, str, str, int]:
        return (self.provider, self.model, self.token_class, self.min_input_tokens)


class Drift(msgspec.Struct, frozen=True):
    """One figure that differs: null on the side that has no such price. `known`: acknowledged as it stands."""

    provider: str
    model: str
    token_class: str
    min_input_tokens: int
    ours: str | None
    theirs: str | None
    known: bool


class Acknowledged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A difference that somebody has looked at, with why it stands."""

    provider: str
    model: str
    token_class: str
    ours: str | None
    theirs: str | None
    min_input_tokens: int = 0
    note: str = ""


def price_drift(
    ours: Iterable[ListedPrice], theirs: Iterable[ListedPrice], known: Iterable[Acknowledged] = ()
) -> list[Drift]:
    """Differences over the models that both sides price, sorted by provider, model and class.

    Raises `InvalidPrice` for a feed that gives no price at all, a class that does not exist, a figure that is none, or two
    figures for one price: a feed that is malformed or partial says nothing, and must not pass for agreement.
    """
    our_book, feed = _by_key(ours, "the book"), _by_key(theirs, "the feed")
    if not feed:
        raise InvalidPrice("feed: it prices none of the book's models; is it the right one?", field="feed")
    acknowledged = _acknowledged(known)
    shared = {key[:2] for key in our_book} & {key[:2] for key in feed}
    found = []
    for key in sorted(our_book.keys() | feed.keys()):
        left, right = our_book.get(key), feed.get(key)
        if key[:2] not in shared or left == right:
            continue
        found.append(Drift(*key, _text(left), _text(right), (*key, left, right) in acknowledged))
    return found


def is_known(drift: Drift, known: Iterable[Acknowledged]) -> bool:
    """Whether somebody has looked at this difference as it stands."""
    return (*_key(drift), _micro(drift.ours), _micro(drift.theirs)) in _acknowledged(known)


def _acknowledged(known: Iterable[Acknowledged]) -> set[tuple[str, str, str, int, int | None, int | None]]:
    return {(*_key(each), _micro(each.ours), _micro(each.theirs)) for each in known}


def read_acknowledged(text: str) -> list[Acknowledged]:
    """The YAML list that `write_acknowledged` makes. Raises `InvalidPrice`."""
    try:
        return msgspec.convert(read_yaml(text) or [], list[Acknowledged])
    except (YamlFault, msgspec.ValidationError) as error:
        raise InvalidPrice(f"known: no list of acknowledged differences: {error}", field="known") from error


def write_acknowledged(drifts: Sequence[Drift], before: Sequence[Acknowledged], note: str) -> str:
    """What is still acknowledged, and now these differences too, as YAML to keep under version control."""
    standing = {(*_key(each), each.ours, each.theirs): each for each in before}
    kept = []
    for each in drifts:
        old = standing.get((*_key(each), each.ours, each.theirs))
        kept.append(
            old
            or Acknowledged(
                each.provider, each.model, each.token_class, each.ours, each.theirs, each.min_input_tokens, note
            )
        )
    return yaml.safe_dump(msgspec.to_builtins(kept), sort_keys=False, allow_unicode=True)


def _key(each: Drift | Acknowledged) -> tuple[str, str, str, int]:
    return (each.provider, each.model, each.token_class, each.min_input_tokens)


def _by_key(prices: Iterable[ListedPrice], side: str) -> Mapping[tuple[str, str, str, int], int]:
    found: dict[tuple[str, str, str, int], int] = {}
    for price in prices:
        if price.token_class not in list(TokenClass):
            raise InvalidPrice(f"feed: {side} has an unknown class {price.token_class!r}", field="feed")
        micro = parse_field(price.amount, MICRO, "feed")
        if micro < 0 or found.get(price.key, micro) != micro:
            raise InvalidPrice(
                f"feed: {side} gives {price.model} {price.token_class} twice, or below zero", field="feed"
            )
        found[price.key] = micro
    return found


def _micro(text: str | None) -> int | None:
    return None if text is None else parse_field(text, MICRO, "known")


def _text(micro: int | None) -> str | None:
    return None if micro is None else format_scaled(micro, MICRO)
