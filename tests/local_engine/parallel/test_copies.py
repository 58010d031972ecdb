"""Four ranks of a model with two KV heads: each pair holds the same head, and draws the same tokens as one process."""

from __future__ import annotations

from pathlib import Path

from ..models.test_families import save_tiny, threads
from .test_equality import MODELS, check, started

__all__ = ["threads"]


def test_four_ranks_hold_copies_of_two_kv_heads(tmp_path: Path) -> None:
    with started(4) as ranks:
        for name in ("Mistral", "Mixtral", "Gemma 3"):
            save_tiny(tmp_path / name, *MODELS[name])
            assert check(ranks, tmp_path / name)._model.config.kv_heads == 1
