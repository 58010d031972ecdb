"""Log probabilities of one token and of its rivals, as they travel from the core to the HTTP process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the model's own distribution, before any parameter of the request changed it (rule 40).

    The first of `ids` is the token itself, whether or not it is among the best; the best follow, best first.
    """

    ids: list[int]
    values: list[float]
    rank: int
    """Of the token itself: 1 for the best."""
