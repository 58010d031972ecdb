"""What requests change about logits before a token is drawn, for a whole batch at once.

The order is vLLM's: what is forbidden (grammar, allowed_token_ids, bad_words, ends before min_tokens), logit_bias, penalties.
Each rule gathers the places it touches from all lines and changes them by one operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .batch import Mask
from .sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Line:
    """One token to draw: the request's parameters, which token of which choice, and what came before it."""

    params: SamplingParams
    choice_index: int = 0
    output_position: int = 0
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()
    mask: Mask | None = None


def apply_rules(logits: torch.Tensor, lines: Sequence[Line]) -> None:
    """Changes float32 `logits` [len(lines), vocab] in place."""
    _keep_only(logits, lines)
    _forbid(logits, lines)
    _add_bias(logits, lines)
    _penalise(logits, lines)


def changes_logits(params: SamplingParams) -> bool:
    """Whether any rule may change a token's logits; grammars' masks are not in the parameters."""
    return bool(
        params.allowed_token_ids is not None
        or params.min_tokens
        or params.bad_words
        or params.logit_bias
        or params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
    )


def _keep_only(logits: torch.Tensor, lines: Sequence[Line]) -> None:
    """Grammars' masks and allowed_token_ids: everything else becomes -inf."""
    masked = [(row, line.mask) for row, line in enumerate(lines) if line.mask is not None]
    if masked:
        forbidden = torch.from_numpy(_unpacked([mask for _, mask in masked], logits.shape[1]) == 0)
        rows = torch.tensor([row for row, _ in masked], device=logits.device)
        logits[rows] = logits[rows].masked_fill_(forbidden.to(logits.device), -math.inf)
    for row, line in enumerate(lines):
        if line.params.allowed_token_ids is not None:
            allowed = torch.tensor(line.params.allowed_token_ids, device=logits.device)
            kept = logits[row, allowed]
            logits[row] = -math.inf
            logits[row, allowed] = kept


def _unpacked(masks: list[Mask], vocab: int) -> NDArray[np.uint8]:
    """One byte per token, 0 beyond what a mask covers."""
    bits = np.unpackbits(np.stack(masks).view(np.uint8), axis=1, bitorder="little")
    short = vocab - bits.shape[1]
    return bits[:, :vocab] if short <= 0 else np.pad(bits, ((0, 0), (0, short)))


def _forbid(logits: torch.Tensor, lines: Sequence[Line]) -> None:
    """Ends before min_tokens, and the last token of a bad word whose others were just drawn."""
    rows: list[int] = []
    ids: list[int] = []
    for row, line in enumerate(lines):
        params = line.params
        if line.output_position < params.min_tokens and _may_go_on(line):
            ids += params.ending_token_ids
        for word in params.bad_words:
            before = len(word) - 1
            if before == 0 or tuple(line.output_token_ids[-before:]) == word[:-1]:
                ids.append(word[-1])
        rows += [row] * (len(ids) - len(rows))
    if rows:
        logits[torch.tensor(rows, device=logits.device), torch.tensor(ids, device=logits.device)] = -math.inf


def _may_go_on(line: Line) -> bool:
    """A grammar that allows nothing but the end is through, however few tokens that took."""
    if line.mask is None:
        return True
    left = line.mask.copy()
    for token in line.params.ending_token_ids:
        if token // 32 < len(left):
            left[token // 32] &= ~np.int32(np.uint32(1 << (token % 32)).view(np.int32))
    return bool(left.any())


def _add_bias(logits: torch.Tensor, lines: Sequence[Line]) -> None:
    rows: list[int] = []
    ids: list[int] = []
    values: list[float] = []
    for row, line in enumerate(lines):
        if bias := line.params.logit_bias:
            rows += [row] * len(bias)
            ids += bias.keys()
            values += bias.values()
    if rows:
        place = torch.tensor(rows, device=logits.device), torch.tensor(ids, device=logits.device)
        logits[place] += torch.tensor(values, dtype=logits.dtype, device=logits.device)


def _penalise(logits: torch.Tensor, lines: Sequence[Line]) -> None:
    """Repetition over prompt and output (divides what is positive, multiplies what is not); the others over output alone."""
    repeated: list[tuple[int, NDArray[np.int64], float]] = []
    counted: list[tuple[int, NDArray[np.int64], NDArray[np.float64]]] = []
    for row, line in enumerate(lines):
        params = line.params
        if params.repetition_penalty == 1.0 and not params.presence_penalty and not params.frequency_penalty:
            continue
        ids, counts = np.unique(np.asarray(line.output_token_ids, dtype=np.int64), return_counts=True)
        if params.repetition_penalty != 1.0:
            seen = np.union1d(ids, np.asarray(line.prompt_token_ids, dtype=np.int64))
            repeated.append((row, seen, params.repetition_penalty))
        if params.presence_penalty or params.frequency_penalty:
            amount = counts.astype(np.float64) * params.frequency_penalty + params.presence_penalty
            counted.append((row, ids, amount))
    if repeated:
        place = _places(logits, [(row, ids) for row, ids, _ in repeated])
        penalty = torch.from_numpy(np.concatenate([np.full(len(ids), by) for _, ids, by in repeated])).to(logits)
        values = logits[place]
        logits[place] = torch.where(values > 0, values / penalty, values * penalty)
    if counted:
        place = _places(logits, [(row, ids) for row, ids, _ in counted])
        logits[place] -= torch.from_numpy(np.concatenate([amount for _, _, amount in counted])).to(logits)


def _places(logits: torch.Tensor, ids_of: list[tuple[int, NDArray[np.int64]]]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = np.repeat([row for row, _ in ids_of], [len(ids) for _, ids in ids_of])
    ids = np.concatenate([ids for _, ids in ids_of])
    return torch.from_numpy(rows).to(logits.device), torch.from_numpy(ids).to(logits.device)
