"""How much output a request may make: every name that some server takes for a cap, read as one.

What is reserved must be what reaches the provider. A server that knows another name than the one that was reserved by would
spend past any budget, so of several caps the smallest counts, and it goes up under one name.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from gateway.api.surface import read_count

CHAT: Final = ("max_tokens", "max_completion_tokens")
"""Chat's own names; of the two, nearly every server knows the first."""
PLAIN: Final = ("max_tokens",)
CAPS: Final = frozenset(
    (
        "max_tokens max_completion_tokens max_output_tokens maxOutputTokens max_new_tokens max_gen_len max_length"
        " max_tokens_to_sample n_predict num_predict"
    ).split()
)


def read_cap(fields: dict[str, Raw], own: tuple[str, ...], *, least: int = 0) -> int | None:
    """The smallest cap that `fields` name, None when they name none; at most one is left in them, under a name of `own`.

    Raises `ApiError` 400.
    """
    found = CAPS.intersection(fields)
    if not found:
        return None
    if len(found) == 1 and found.issubset(own):
        (only,) = found
        return read_count(fields, only, least=least)
    counts = {name: read_count(fields, name, least=least) for name in found}
    named = {name: count for name, count in counts.items() if count is not None}
    smallest = min(named.values(), default=None)
    for name in found:
        del fields[name]
    if smallest is not None:
        fields[next((name for name in own if name in named), own[0])] = Raw(str(smallest).encode())
    return smallest
