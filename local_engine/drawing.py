"""What a step draws: the rows whose logits are needed, the tokens drawn from them, drafts that held, log probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from .batch import ScheduledSequence, StepOutput, Vector
from .logit_rules import Line
from .sampler import Draw, logprobs_of, sample
from .token_logprobs import TokenLogprobs

PROMPT_ROWS = 128
"""Of a prompt, logits are made for so many tokens at a time: over a large vocabulary they are large."""

Logits = Callable[[torch.Tensor], torch.Tensor]
"""float32 [len(rows), vocab] for int64 rows of the step."""


def draw_step(
    batch: Sequence[ScheduledSequence], query_start: Sequence[int], logits_of: Logits, draw: Draw
) -> StepOutput:
    """`query_start[i]` is the step's row of sequence i's first token."""
    output = StepOutput([[] for _ in batch])
    sampling = [number for number, sequence in enumerate(batch) if sequence.samples]
    lines = [line for number in sampling for line in _lines(batch[number])]
    if lines:
        rows = [
            row
            for number in sampling
            for row in range(query_start[number + 1] - 1 - len(batch[number].drafts), query_start[number + 1])
        ]
        logits = logits_of(torch.tensor(rows, dtype=torch.int64))
        asked = [row for row, line in enumerate(lines) if line.params.logprobs is not None]
        raw = logits[asked] if asked else None
        drawn = sample(logits, lines, draw)
        told = _told(raw, asked, lines, drawn) if raw is not None else {}
        at = 0
        for number in sampling:
            _take(output, number, batch[number], drawn, told, at)
            at += 1 + len(batch[number].drafts)
    for number, sequence in enumerate(batch):
        if sequence.prompt_logprobs_from is not None:
            output.prompt_logprobs[number] = list(_of_prompt(sequence, query_start[number], logits_of))
    return output


def pool_step(batch: Sequence[ScheduledSequence], query_start: Sequence[int], vectors_of: Logits) -> dict[int, Vector]:
    """What this step adds to the vectors of sequences that ask for one. `vectors_of`: float32 [len(rows), hidden] for rows."""
    pooled: dict[int, Vector] = {}
    for number, sequence in enumerate(batch):
        first, end = query_start[number], query_start[number + 1]
        if sequence.params.pooling == "mean":
            pooled[number] = vectors_of(torch.arange(first, end)).sum(dim=0).cpu().numpy()
        elif sequence.params.pooling == "last" and sequence.start + end - first == len(sequence.prompt_token_ids):
            pooled[number] = vectors_of(torch.tensor([end - 1]))[0].cpu().numpy()
    return pooled


def _lines(sequence: ScheduledSequence) -> Iterator[Line]:
    """One for the token after the newest one, and one for the token after each draft."""
    for drafts in range(1 + len(sequence.drafts)):
        before = [*sequence.output_token_ids, *sequence.drafts[:drafts]] if drafts else sequence.output_token_ids
        yield Line(
            sequence.params,
            sequence.choice_index,
            sequence.output_position + drafts,
            sequence.prompt_token_ids,
            before,
            sequence.masks[drafts] if sequence.masks else None,
        )


def _told(
    raw: torch.Tensor, asked: list[int], lines: Sequence[Line], drawn: Sequence[int | None]
) -> dict[int, TokenLogprobs]:
    """By line. A line whose logits are broken has none."""
    fine = [place for place, row in enumerate(asked) if drawn[row] is not None]
    if not fine:
        return {}
    tokens = [drawn[asked[place]] or 0 for place in fine]
    best = [lines[asked[place]].params.logprobs or 0 for place in fine]
    return dict(zip((asked[place] for place in fine), logprobs_of(raw[fine], tokens, best), strict=True))


def _take(
    output: StepOutput,
    number: int,
    sequence: ScheduledSequence,
    drawn: Sequence[int | None],
    told: dict[int, TokenLogprobs],
    at: int,
) -> None:
    """The tokens of one sequence: a draft holds while it is the token drawn in its place; the first other token is the last."""
    tokens: list[int] = []
    for place in range(1 + len(sequence.drafts)):
        token = drawn[at + place]
        if token is None:
            break
        tokens.append(token)
        if place == len(sequence.drafts) or sequence.drafts[place] != token:
            break
    if not tokens:
        output.nan_sequences.append(sequence.sequence_id)
        return
    output.tokens[number] = tokens
    if sequence.params.logprobs is not None:
        output.logprobs[number] = [told[at + place] for place in range(len(tokens))]


def _of_prompt(sequence: ScheduledSequence, first_row: int, logits_of: Logits) -> Iterator[TokenLogprobs]:
    """The token at position p is told by the logits of position p - 1; the very first one by nothing."""
    assert sequence.prompt_logprobs_from is not None and sequence.params.prompt_logprobs is not None
    first = max(sequence.start, sequence.prompt_logprobs_from - 1)
    last = min(sequence.start + len(sequence.token_ids), len(sequence.prompt_token_ids) - 1)
    for position in range(first, last, PROMPT_ROWS):
        positions = range(position, min(position + PROMPT_ROWS, last))
        logits = logits_of(torch.tensor([first_row + p - sequence.start for p in positions], dtype=torch.int64))
        tokens = [sequence.prompt_token_ids[p + 1] for p in positions]
        yield from logprobs_of(logits, tokens, [sequence.params.prompt_logprobs] * len(tokens))
