"""SentencePiece's BPE out of a GGUF's pieces and scores (`tokenizer.ggml.model = llama`), as a tokenizers object.

The two neighbours whose union is the piece of the highest score are joined, again and again; so a merge's rank is its union's
place by score. Spaces are U+2581; one stands before every text, unless `add_space_prefix` is false (Gemma). What no piece
spells is written in pieces of single bytes. Sources: llm_tokenizer_spm in llama.cpp's src/llama-vocab.cpp, SentencePiece's
bpe_model.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers

from .errors import TokenizerError

SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of pieces (`tokenizer.ggml.token_type`); only normal ones come of joining."""


def build_spm(
    path: Path, pieces: Sequence[str], scores: Sequence[float], kinds: Sequence[int], *, space_prefix: bool
) -> tokenizers.Tokenizer:
    """Without special tokens. Raises `TokenizerError` where the lists do not fit together."""
    if not len(pieces) == len(scores) == len(kinds):
        raise TokenizerError(
            f"{path} has {len(pieces)} pieces, {len(scores)} scores and {len(kinds)} kinds of them: fetch the file again"
        )
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    unknown = next((piece for piece, kind in zip(pieces, kinds, strict=True) if kind == UNKNOWN), None)
    try:
        model = models.BPE(
            vocab=vocabulary,
            merges=_merges(pieces, scores, kinds),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path}: pieces do not make a vocabulary: {error}") from error
    backend = tokenizers.Tokenizer(model)
    replace, back = normalizers.Replace(" ", SPACE), decoders.Replace(SPACE, " ")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if space_prefix else replace
    stages = [back, decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*stages, decoders.Strip(" ", 1, 0)] if space_prefix else stages)
    return backend


def _merges(pieces: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> list[tuple[str, str]]:
    """Every way to make a normal piece of two, the best pieces first."""
    normal = {piece: index for index, (piece, kind) in enumerate(zip(pieces, kinds, strict=True)) if kind == NORMAL}
    ranked = [
        (-scores[index], index, cut)
        for piece, index in normal.items()
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]
    return [(pieces[index][:cut], pieces[index][cut:]) for _, index, cut in sorted(ranked)]
