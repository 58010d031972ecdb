"""What a step has to tell about its sequences, and the words in which the HTTP process hears it."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Update
from .sequence import FinishReason, Sequence
from .token_logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class News:
    """What one step has to tell about a sequence."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    prompt_logprobs: list[TokenLogprobs]


NOTHING = News([], [], [])


def update_of(sequence: Sequence, news: News) -> Update:
    return Update(
        id=sequence.id,
        tokens=news.tokens,
        compute_us=sequence.compute_us,
        cached_tokens=sequence.cached_tokens or 0,
        finish_reason=sequence.finish_reason,
        stop_token=sequence.stop_token,
        error=sequence.error,
        logprobs=news.logprobs,
        prompt_logprobs=news.prompt_logprobs,
        embedding=_embedding(sequence),
    )


def _embedding(sequence: Sequence) -> list[float]:
    if sequence.pooled is None or sequence.finish_reason is not FinishReason.STOP:
        return []
    tokens = len(sequence.prompt) if sequence.params.pooling == "mean" else 1
    return [float(value) for value in sequence.pooled / tokens]
